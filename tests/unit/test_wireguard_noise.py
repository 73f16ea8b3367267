"""Whose a handshake initiation is, and which packets are one."""

from __future__ import annotations

import base64
import hmac
import os
import struct
from hashlib import blake2s

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from mcagent.dataplane.wireguard_handover import filter_ipv4, filter_ipv6
from mcagent.dataplane.wireguard_noise import INITIATION_LENGTH, NOTICE, initiator, notice

OURS, THEIRS = os.urandom(32), os.urandom(32)


def public(private: bytes) -> bytes:
    """Return the public key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared(private: bytes, other: bytes) -> bytes:
    """Return the Diffie-Hellman secret."""
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))


def kdf(key: bytes, data: bytes, count: int) -> list[bytes]:
    """Return HKDF's first outputs."""
    secret, previous, found = hmac.digest(key, data, "blake2s"), b"", []
    for number in range(1, count + 1):
        previous = hmac.digest(secret, previous + bytes([number]), "blake2s")
        found.append(previous)
    return found


def initiation(sender: bytes, receiver: bytes, *, claimed: bytes = b"") -> bytes:
    """Write the message of section 5.4.2 of the whitepaper; `claimed` is a public key that is not proven."""
    chain = blake2s(b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s").digest()
    digest = blake2s(chain + b"WireGuard v1 zx2c4 Jason@zx2c4.com").digest()
    digest = blake2s(digest + receiver).digest()
    ephemeral = os.urandom(32)
    message = b"\x01\0\0\0" + os.urandom(4) + public(ephemeral)
    chain = kdf(chain, public(ephemeral), 1)[0]
    digest = blake2s(digest + public(ephemeral)).digest()
    chain, key = kdf(chain, shared(ephemeral, receiver), 2)
    static = ChaCha20Poly1305(key).encrypt(bytes(12), claimed or public(sender), digest)
    digest = blake2s(digest + static).digest()
    _, key = kdf(chain, shared(sender, receiver), 2)
    message += static + ChaCha20Poly1305(key).encrypt(bytes(12), bytes(12), digest)
    mac_key = blake2s(b"mac1----" + receiver).digest()
    return message + blake2s(message, digest_size=16, key=mac_key).digest() + bytes(16)


def test_the_sender_is_known_by_any_of_our_keys() -> None:
    """The key in use, the next and the previous one: a peer may not know yet of a change."""
    expected = base64.b64encode(public(THEIRS)).decode()
    message = initiation(THEIRS, public(OURS))
    assert initiator(message, [os.urandom(32), OURS, os.urandom(32)]) == expected
    assert initiator(message, [os.urandom(32)]) is None
    assert initiator(message, []) is None


def test_a_notice_proves_who_sends_it_and_is_no_initiation() -> None:
    """As an initiation does, to the receiver alone; WireGuard itself knows no message of that type."""
    message = notice(THEIRS, public(OURS))
    assert len(message) == INITIATION_LENGTH
    assert message[:4] == NOTICE
    assert initiator(message, [OURS]) == base64.b64encode(public(THEIRS)).decode()
    assert initiator(message, [os.urandom(32)]) is None
    assert initiator(b"\x01\0\0\0" + message[4:], [OURS]) is None


def test_a_public_key_alone_proves_nothing() -> None:
    """Who knows both public keys can write a message, but not one that is taken for the peer's."""
    assert initiator(initiation(os.urandom(32), public(OURS), claimed=public(THEIRS)), [OURS]) is None


@given(place=st.integers(0, 131), bit=st.integers(0, 7))
def test_a_message_that_was_altered_is_nobodys(place: int, bit: int) -> None:
    """Every bit before the second MAC counts."""
    message = bytearray(initiation(THEIRS, public(OURS)))
    message[place] ^= 1 << bit
    assert initiator(bytes(message), [OURS]) is None


@pytest.mark.parametrize("message", [b"", b"\x01\0\0\0", bytes(148), b"\x01\0\0\0" + bytes(144), bytes(149)])
def test_other_data_is_nobodys(message: bytes) -> None:
    """Whatever arrives on the port raises nothing."""
    assert initiator(message, [OURS]) is None


def passes(program: bytes, packet: bytes) -> bool:
    """Run the few instructions of classic BPF that the filters use."""
    code = [struct.unpack_from("HBBI", program, place) for place in range(0, len(program), 8)]
    accumulator = index = counter = 0
    while True:
        operation, if_true, if_false, value = code[counter]
        counter += 1
        match operation:
            case 0x20 | 0x28 | 0x30 | 0x40 | 0x48:
                start = value + (index if operation & 0x40 else 0)
                size = {0x00: 4, 0x08: 2, 0x10: 1}[operation & 0x18]
                if start + size > len(packet):
                    return False
                accumulator = int.from_bytes(packet[start : start + size], "big")
            case 0xB1:
                index = 4 * (packet[value] & 0xF)
            case 0x15:
                counter += if_true if accumulator == value else if_false
            case 0x45:
                counter += if_true if accumulator & value else if_false
            case 0x06:
                return bool(value)


def udp(port: int, payload: bytes) -> bytes:
    """Return a UDP datagram."""
    return struct.pack(">HHHH", 40000, port, 8 + len(payload), 0) + payload


def ipv4(payload: bytes, *, protocol: int = 17, options: int = 0, fragment: int = 0) -> bytes:
    """Return an IPv4 packet."""
    head = struct.pack(">BBHHHBBH", 0x45 + options, 0, 0, 0, fragment, 64, protocol, 0)
    return head + bytes(8 + 4 * options) + payload


def ipv6(payload: bytes, *, protocol: int = 17) -> bytes:
    """Return an IPv6 packet."""
    return struct.pack(">IHBB", 0x60000000, len(payload), protocol, 64) + bytes(32) + payload


INITIATION = b"\x01\0\0\0" + bytes(144)
DATA = b"\x04\0\0\0" + bytes(144)


def test_the_filters_pass_initiations_to_the_port_and_nothing_else() -> None:
    """By protocol, port, length and type, with IPv4 options too; later fragments are none."""
    four, six = filter_ipv4(51821), filter_ipv6(51821)
    assert passes(four, ipv4(udp(51821, INITIATION)))
    assert passes(four, ipv4(udp(51821, INITIATION), options=3, fragment=0x4000))
    assert passes(six, ipv6(udp(51821, INITIATION)))
    assert passes(four, ipv4(udp(51821, notice(THEIRS, public(OURS)))))
    assert passes(six, ipv6(udp(51821, notice(THEIRS, public(OURS)))))
    for make, program in ((ipv4, four), (ipv6, six)):
        assert not passes(program, make(udp(51822, INITIATION)))
        assert not passes(program, make(udp(51821, DATA)))
        assert not passes(program, make(udp(51821, INITIATION + b"x")))
        assert not passes(program, make(udp(51821, INITIATION), protocol=6))
        assert not passes(program, make(b""))
    assert not passes(four, ipv4(udp(51821, INITIATION), fragment=1))
