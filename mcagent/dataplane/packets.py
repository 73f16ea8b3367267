"""Builds frames that the agent sends into the bridge, from numbers. Knows no pipeline. IPv4 only."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mcagent.model.net import internet_checksum

ICMP, TCP, UDP = 1, 6, 17
RST, SYN, ACK = 0x04, 0x02, 0x10  # flags of TCP

_IPV4 = struct.Struct("!BBHHHBBHII")  # RFC 791, section 3.1
_TCP = struct.Struct("!HHIIBBHHH")  # RFC 9293, section 3.1
_UDP = struct.Struct("!HHHH")  # RFC 768
_ICMP = struct.Struct("!BBHHH")  # RFC 792: echo
_PSEUDO = struct.Struct("!IIHH")  # of the checksum: source, destination, protocol, length
_ETHERTYPE_IPV4 = b"\x08\x00"
_DONT_FRAGMENT, _TTL, _WINDOW, _ECHO_REQUEST = 0x4000, 64, 1024, 8


@dataclass(frozen=True, slots=True)
class Ends:
    """Source and destination address of a packet, as numbers. `ports`: source and destination."""

    source: int
    destination: int
    ports: tuple[int, int] = (0, 0)


def frame(destination: int, source: int, packet: bytes) -> bytes:
    """Return an Ethernet frame with an IPv4 packet."""
    return destination.to_bytes(6) + source.to_bytes(6) + _ETHERTYPE_IPV4 + packet


def ipv4(ends: Ends, protocol: int, payload: bytes, tos: int = 0) -> bytes:
    """Return an IPv4 packet."""
    addresses = ends.source, ends.destination
    ip = _IPV4.pack(0x45, tos, _IPV4.size + len(payload), 0, _DONT_FRAGMENT, _TTL, protocol, 0, *addresses)
    return _with_checksum(ip, 10, ip) + payload


def tcp(ends: Ends, flags: int, sequence: int = 0) -> bytes:
    """Return a TCP segment without data."""
    segment = _TCP.pack(*ends.ports, sequence, 0, _TCP.size // 4 << 4, flags, _WINDOW, 0, 0)
    return _with_checksum(segment, 16, _PSEUDO.pack(ends.source, ends.destination, TCP, len(segment)) + segment)


def udp(ends: Ends, data: bytes) -> bytes:
    """Return a UDP datagram."""
    datagram = _UDP.pack(*ends.ports, _UDP.size + len(data), 0) + data
    return _with_checksum(datagram, 6, _PSEUDO.pack(ends.source, ends.destination, UDP, len(datagram)) + datagram)


def echo(identifier: int, sequence: int, data: bytes) -> bytes:
    """Return an ICMP echo request."""
    message = _ICMP.pack(_ECHO_REQUEST, 0, 0, identifier, sequence) + data
    return _with_checksum(message, 2, message)


def _with_checksum(packet: bytes, at: int, over: bytes) -> bytes:
    return packet[:at] + internet_checksum(over).to_bytes(2) + packet[at + 2 :]
