"""Tells who sent a WireGuard handshake initiation that was sent to us, and writes notices of a new key.

The first message of Noise_IKpsk2 (WireGuard whitepaper, section 5.4.2) holds the sender's public key, encrypted
for the receiver, and a timestamp that only the owner of that key's private part can have encrypted.

A notice is such a message with other reserved bytes. WireGuard drops it unread (its type is none it knows), so it
proves the sender's key to mcagent without beginning a handshake.
"""

from __future__ import annotations

import base64
import hmac
import os
import time
from collections.abc import Iterable
from hashlib import blake2s
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

INITIATION_LENGTH = 148  # bytes
INITIATION = b"\x01\0\0\0"  # type and reserved bytes
NOTICE = b"\x01mca"
TAI64 = (1 << 62) + 10  # of the epoch (TAI64 labels, 10 s of leap seconds in 1970)
_CONSTRUCTION = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"
_IDENTIFIER = b"WireGuard v1 zx2c4 Jason@zx2c4.com"
_LABEL_MAC1 = b"mac1----"
_NONCE = bytes(12)
_CHAIN = blake2s(_CONSTRUCTION).digest()
_HASH = blake2s(_CHAIN + _IDENTIFIER).digest()


def initiator(message: bytes, private_keys: Iterable[bytes]) -> str | None:
    """Return the public key of who sent the initiation or notice, proven to be his; None if it is none for us."""
    if len(message) != INITIATION_LENGTH or message[:4] not in (INITIATION, NOTICE):
        return None
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    for private in private_keys:
        ours = X25519PrivateKey.from_private_bytes(private)
        public = ours.public_key().public_bytes_raw()
        mac = blake2s(message[:116], digest_size=16, key=blake2s(_LABEL_MAC1 + public).digest()).digest()
        if hmac.compare_digest(mac, message[116:132]):
            return _open(message, ours, public)
    return None


def notice(private: bytes, receiver: bytes) -> bytes:
    """Return a message that proves to the owner of the public key `receiver` who we are now."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    ours, theirs = X25519PrivateKey.from_private_bytes(private), X25519PublicKey.from_public_bytes(receiver)
    once = X25519PrivateKey.generate()
    ephemeral = once.public_key().public_bytes_raw()
    digest = blake2s(blake2s(_HASH + receiver).digest() + ephemeral).digest()
    chain, key = _kdf(_kdf(_CHAIN, ephemeral)[0], once.exchange(theirs))
    static = ChaCha20Poly1305(key).encrypt(_NONCE, ours.public_key().public_bytes_raw(), digest)
    _, key = _kdf(chain, ours.exchange(theirs))
    timestamp = (TAI64 + int(time.time())).to_bytes(8, "big") + bytes(4)
    sealed = ChaCha20Poly1305(key).encrypt(_NONCE, timestamp, blake2s(digest + static).digest())
    message = NOTICE + os.urandom(4) + ephemeral + static + sealed
    mac = blake2s(message, digest_size=16, key=blake2s(_LABEL_MAC1 + receiver).digest()).digest()
    return message + mac + bytes(16)


def _open(message: bytes, ours: X25519PrivateKey, public: bytes) -> str | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    ephemeral, static, timestamp = message[8:40], message[40:88], message[88:116]
    digest = blake2s(blake2s(_HASH + public).digest() + ephemeral).digest()
    chain = _kdf(_CHAIN, ephemeral)[0]
    try:
        chain, key = _kdf(chain, ours.exchange(X25519PublicKey.from_public_bytes(ephemeral)))
        theirs = ChaCha20Poly1305(key).decrypt(_NONCE, static, digest)
        _, key = _kdf(chain, ours.exchange(X25519PublicKey.from_public_bytes(theirs)))
        ChaCha20Poly1305(key).decrypt(_NONCE, timestamp, blake2s(digest + static).digest())
    except (InvalidTag, ValueError):  # ValueError: a point of small order
        return None
    return base64.b64encode(theirs).decode()


def _kdf(key: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the first two outputs of HKDF as WireGuard uses it."""
    secret = hmac.digest(key, data, "blake2s")
    first = hmac.digest(secret, b"\x01", "blake2s")
    return first, hmac.digest(secret, first + b"\x02", "blake2s")
