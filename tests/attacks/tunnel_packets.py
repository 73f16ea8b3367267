"""Packets as a Pod with a raw socket makes them up: tunnel packets, BFD, false sources, options, fragments.

Pure bytes, but for the sockets that send them from a namespace.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address, IPv6Address

from devtools.nodes import netns
from mcagent.model.net import Address, internet_checksum

GENEVE, VXLAN, BFD = 6081, 4789, 3784
_ETHERNET = bytes.fromhex("aabbccddeef00a6d63000001") + b"\x08\x00"  # as a gateway sends it: kernel.GATEWAY_MAC
_BFD_ETHERNET = bytes.fromhex("002320000001aabbccddee01") + b"\x08\x00"  # lib/bfd.c: its own destination
_VXLAN_HEADER = struct.pack("!II", 0x08000000, 0)  # RFC 7348 section 5: VNI 0


def udp(source: Address, destination: Address, port: int, payload: bytes, *, source_port: int = 40000) -> bytes:
    """Return a UDP datagram with its checksum (RFC 768; RFC 8200 section 8.1)."""
    length = 8 + len(payload)
    head = struct.pack("!HHHH", source_port, port, length, 0)
    pseudo = source.packed + destination.packed + struct.pack("!II", length, socket.IPPROTO_UDP)
    checksum = internet_checksum(pseudo + head + payload) or 0xFFFF
    return head[:6] + struct.pack("!H", checksum) + payload


def ipv4(
    source: IPv4Address,
    destination: IPv4Address,
    transport: bytes,
    *,
    options: bytes = b"",
    ident: int = 1,
    fragment: int = 0,
    ttl: int = 64,
) -> bytes:
    """Return an IPv4 packet of UDP (RFC 791). `fragment`: flags and offset as in the header."""
    words = 5 + len(options) // 4
    total = 4 * words + len(transport)
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, total, ident, fragment, ttl, socket.IPPROTO_UDP, 0)
    head += source.packed + destination.packed + options
    return head[:10] + struct.pack("!H", internet_checksum(head)) + head[12:] + transport


def ipv6(source: IPv6Address, destination: IPv6Address, transport: bytes, *, options: bool = False) -> bytes:
    """Return an IPv6 packet of UDP (RFC 8200); with `options` behind a destination options header of padding."""
    between = struct.pack("!BBBB4x", socket.IPPROTO_UDP, 0, 1, 4) if options else b""  # one PadN of 6 bytes
    following = socket.IPPROTO_DSTOPTS if options else socket.IPPROTO_UDP
    head = struct.pack("!IHBB", 6 << 28, len(between) + len(transport), following, 64)
    return head + source.packed + destination.packed + between + transport


def inner(source: IPv4Address, destination: IPv4Address, port: int, payload: bytes) -> bytes:
    """Return a frame with a datagram from one Pod to another, as a gateway puts it into a tunnel."""
    return _ETHERNET + ipv4(source, destination, udp(source, destination, port, payload))


def bfd_down(token: bytes) -> bytes:
    """Return a frame with a BFD control packet that says Down (RFC 5880 section 4.1), as Open vSwitch has it."""
    source, destination = IPv4Address("169.254.1.0"), IPv4Address("169.254.1.1")  # lib/bfd.c: BFD_DEFAULT_…_IP
    control = struct.pack("!BBBBIIIII", 0x20, 0x40, 3, 24, 0x1234, 0, 1_000_000, 1_000_000, 0)
    return _BFD_ETHERNET + ipv4(source, destination, udp(source, destination, BFD, control + token), ttl=255)


def geneve(frame: bytes, *, vni: int = 0) -> bytes:
    """Return what goes into UDP port 6081 (RFC 8926 section 3.4: no options, an Ethernet frame)."""
    return struct.pack("!BBHI", 0, 0, 0x6558, vni << 8) + frame


def vxlan(frame: bytes) -> bytes:
    """Return what goes into UDP port 4789."""
    return _VXLAN_HEADER + frame


def fragments(source: IPv4Address, destination: IPv4Address, transport: bytes, first: int) -> list[bytes]:
    """Return the packet in two fragments, the first with so many bytes (a multiple of 8) of the datagram."""
    more = 0x2000  # RFC 791 section 3.1: MF
    return [
        ipv4(source, destination, transport[:first], ident=77, fragment=more),
        ipv4(source, destination, transport[first:], ident=77, fragment=first // 8),
    ]


def send(namespace: str, destination: Address, port: int, payload: bytes) -> None:
    """Send a datagram as any process can."""
    kind = socket.AF_INET if destination.version == 4 else socket.AF_INET6
    with netns.call(namespace, lambda: socket.socket(kind, socket.SOCK_DGRAM)) as sock:
        sock.sendto(payload, (str(destination), port))


def send_raw(namespace: str, destination: Address, *packets: bytes) -> None:
    """Send whole IP packets as a process with NET_RAW can (raw(7): IPPROTO_RAW means that the header is ours)."""
    kind = socket.AF_INET if destination.version == 4 else socket.AF_INET6
    with netns.call(namespace, lambda: socket.socket(kind, socket.SOCK_RAW, socket.IPPROTO_RAW)) as sock:
        for packet in packets:
            sock.sendto(packet, (str(destination), 0))
