"""Counting copies: an AF_PACKET socket in a namespace that sees every packet as it arrives (packet(7))."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address
from types import TracebackType

from devtools.nodes import netns

ETH_P_IP, ETH_P_IPV6 = 0x0800, 0x86DD  # linux/if_ether.h
ETHERNET_HEADER = 14  # bytes
BUFFER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Packet:
    """An Ethernet frame with an IPv4 packet (RFC 791) in it."""

    frame: bytes

    @property
    def protocol(self) -> int:
        """The transport protocol's number."""
        return self.frame[ETHERNET_HEADER + 9]

    @property
    def source(self) -> IPv4Address:
        """The source address."""
        return IPv4Address(self.frame[ETHERNET_HEADER + 12 : ETHERNET_HEADER + 16])


class Capture:
    """Everything of one kind, IPv4 by default, that arrives at a device from now on; a context manager."""

    def __init__(self, namespace: str, device: str = "eth0", *, ethertype: int = ETH_P_IP) -> None:
        def listen() -> socket.socket:
            listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ethertype))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            listener.bind((device, ethertype))
            listener.setblocking(False)
            return listener

        self._socket = netns.call(namespace, listen)
        self._frames: list[bytes] = []

    def frames(self) -> list[bytes]:
        """Return the frames that have come in so far (what the namespace itself sends is left out)."""
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, (_, _, packet_type, *_) = self._socket.recvfrom(65536)
                if packet_type != socket.PACKET_OUTGOING:
                    self._frames.append(frame)
        return self._frames

    def count(self, token: bytes) -> int:
        """Return how many packets hold these bytes; an ICMP error that quotes one is no copy of it."""
        return len(self.holding(token))

    def holding(self, token: bytes) -> list[Packet]:
        """Return the packets that hold these bytes, ICMP errors left out."""
        packets = [Packet(frame) for frame in self.frames() if token in frame]
        return [packet for packet in packets if packet.protocol != socket.IPPROTO_ICMP]

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
