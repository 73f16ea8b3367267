"""The bytes of a change of key: notices as datagrams, nft's rules, messages about packets that wait."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.dataplane import wireguard_hold as hold
from mcagent.dataplane.netlink.messages import attribute
from mcagent.dataplane.wireguard_rekey import _datagram, _rules
from mcagent.model.net import parse_address


@given(
    payload=st.binary(max_size=200), port=st.integers(1, 65535), version=st.sampled_from([4, 16]), data=st.data()
)
def test_a_datagram_s_checksum_is_right(payload: bytes, port: int, version: int, data: st.DataObject) -> None:
    """The sum over pseudo-header, header and payload is all ones (RFC 768), for both families."""
    source, to = (data.draw(st.binary(min_size=version, max_size=version)) for _ in range(2))
    found = _datagram(source, to, 51821, port, payload)
    assert struct.unpack(">HHH", found[:6]) == (51821, port, len(found))
    assert found[8:] == payload
    whole = source + to + struct.pack(">II", len(found), 17) + found + bytes(len(found) % 2)
    total = sum(struct.unpack(f">{len(whole) // 2}H", whole))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF


def test_rules_name_each_address_once_and_end_by_themselves() -> None:
    """What is dropped and what is held back are elements with a timeout; nothing to hold: no queue."""
    outer = [parse_address("192.0.2.1"), parse_address("2001:db8::1"), parse_address("192.0.2.1")]
    text = _rules(51821, outer, [parse_address("240.0.2.1")])
    assert text.count("192.0.2.1 timeout") == text.count("2001:db8::1 timeout") == 1
    assert "240.0.2.1 timeout" in text
    assert f"queue num {hold.QUEUE} bypass" in text
    assert "queue" not in _rules(51821, outer, [])


def packet(number: int, head: bytes) -> bytes:
    """Return a message about a packet, as the kernel writes it."""
    body = attribute(1, struct.pack(">IHB", number, 0x0800, 4)) + attribute(10, head)
    return struct.pack("=IHHII", 20 + len(body), hold._PACKET, 0, 0, 0) + struct.pack(">BBH", 2, 0, 1) + body


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (bytes([0x45]) + bytes(15) + bytes([240, 0, 2, 1]), parse_address("240.0.2.1")),
        (bytes([0x60]) + bytes(19), None),
        (b"\x45", None),
    ],
)
def test_a_packet_is_known_by_number_and_destination(head: bytes, expected: object) -> None:
    """IPv4 by its header; of what is shorter, or another protocol, only the number."""
    assert hold._parse(packet(7, head)) == (7, expected)


def test_other_messages_are_no_packets() -> None:
    """An acknowledgement, for one."""
    assert hold._parse(struct.pack("=IHHIIi", 20, 2, 0, 0, 0, 0)) == (None, None)
