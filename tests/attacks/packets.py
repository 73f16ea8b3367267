"""What attackers of the dataplane send, and whether it arrived. Knows namespaces, but no lab."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address

from devtools.nodes import netns
from devtools.traffic.traffic import PATIENCE, RESEND
from mcagent.model.net import internet_checksum
from tests.attacks import tunnel_packets

SILENCE = 1.0  # seconds without an answer or a packet that count as "never": what is dropped never arrives
_SYN, _ACK = 0x02, 0x10


@contextlib.contextmanager
def listening(namespace: str, port: int, kind: int = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    """Give a socket that listens on every address of a namespace, as kubelet does on a Node."""

    def open_() -> socket.socket:
        sock = socket.socket(socket.AF_INET, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
        if kind == socket.SOCK_STREAM:
            sock.listen(64)
        sock.setblocking(False)
        return sock

    with netns.call(namespace, open_) as sock:
        yield sock


def connects(namespace: str, address: object, port: int, *, within: float = PATIENCE) -> bool:
    """Tell whether a TCP connection comes about (or is refused by a reset: somebody has answered).

    `within`: seconds; SILENCE where no answer is expected.
    """

    def connect() -> bool:
        try:
            socket.create_connection((str(address), port), timeout=within).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    return netns.call(namespace, connect)


def echoes(namespace: str, address: object, *, within: float = PATIENCE) -> bool:
    """Tell whether an address answers ICMP echo requests, sent each second.

    `within`: seconds; SILENCE where no answer is expected.
    """
    argv = ["ping", "-n", "-q", "-c", "1", "-w", f"{within:.0f}", str(address)]
    return netns.execute(namespace, argv, check=False).returncode == 0


def arrives(server: socket.socket, token: bytes, send: Callable[[], object]) -> bool:
    """Tell whether what `send` sends, a datagram with these bytes, arrives at a socket; it may be sent again."""
    for _ in range(round(PATIENCE / RESEND)):
        send()
        if received(server, token, within=RESEND):
            return True
    return False


def received(server: socket.socket, token: bytes, *, within: float = PATIENCE) -> bool:
    """Tell whether a datagram with these bytes, which was sent once, arrives at a socket.

    `within`: seconds; SILENCE where none is expected.
    """
    deadline = time.monotonic() + within
    while select.select([server], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if token in server.recv(65536):
            return True
    return False


def datagram(namespace: str, address: object, port: int, payload: bytes, *, ttl: int = 64) -> None:
    """Send one datagram from a namespace."""
    datagrams(namespace, address, port, (payload,), ttl=ttl)


def datagrams(namespace: str, address: object, port: int, payloads: Iterable[bytes], *, ttl: int = 64) -> None:
    """Send datagrams from a namespace as fast as the kernel takes them."""

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            for payload in payloads:
                sender.sendto(payload, (str(address), port))

    netns.call(namespace, send)


def ipv4(source: IPv4Address, destination: IPv4Address, protocol: int, payload: bytes) -> bytes:
    """Return an IPv4 packet (RFC 791)."""
    fields = (0x45, 0, 20 + len(payload), 1, 0, 60, protocol, 0, source.packed, destination.packed)
    head = struct.pack("!BBHHHBBH4s4s", *fields)
    return head[:10] + struct.pack("!H", internet_checksum(head)) + head[12:] + payload


def udp(source_port: int, port: int, payload: bytes) -> bytes:
    """Return a UDP datagram without a checksum (RFC 768)."""
    return struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload


def tcp(source: IPv4Address, destination: IPv4Address, ports: tuple[int, int], *, syn: bool) -> bytes:
    """Return an empty TCP segment: a SYN, or one in the middle of a connection that nobody opened (RFC 9293)."""
    head = struct.pack("!HHIIBBHHH", *ports, 1000, 0 if syn else 2000, 5 << 4, _SYN if syn else _ACK, 64240, 0, 0)
    pseudo = source.packed + destination.packed + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(head))
    return head[:16] + struct.pack("!H", internet_checksum(pseudo + head)) + head[18:]


def flood(namespace: str, source: IPv4Address, destination: IPv4Address, segments: Iterable[bytes]) -> int:
    """Send TCP segments from a Pod as root; return how many."""

    def send() -> int:
        sent = 0
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP) as sock:
            sock.bind((str(source), 0))
            for segment in segments:
                sock.sendto(segment, (str(destination), 0))
                sent += 1
        return sent

    return netns.call(namespace, send)


def geneve(namespace: str, peer: IPv4Address, frame: bytes, *, vni: int = 0) -> None:
    """Send a frame to a gateway of another cluster by the tunnel, from a gateway's own namespace (RFC 8926)."""
    datagram(namespace, peer, tunnel_packets.GENEVE, tunnel_packets.geneve(frame, vni=vni))


def ethernet(destination: str, source: str, packet: bytes) -> bytes:
    """Return an Ethernet frame with an IPv4 packet."""
    return bytes.fromhex(destination.replace(":", "") + source.replace(":", "")) + b"\x08\x00" + packet


def token() -> bytes:
    """Return bytes that nobody else sends."""
    return os.urandom(16)


PORT_UNREACHABLE, FRAGMENTATION_NEEDED = (3, 3), (3, 4)


SMALL_MTU = 600


def icmp_error(kind: tuple[int, int], source: IPv4Address, quoted: bytes) -> bytes:
    """Return an ICMP error to the sender of the quoted IPv4 packet (RFC 792; RFC 1191, section 4)."""
    mtu = SMALL_MTU if kind == FRAGMENTATION_NEEDED else 0
    head = struct.pack("!BBHHH", *kind, 0, 0, mtu)
    body = head + quoted[:576]
    body = body[:2] + struct.pack("!H", internet_checksum(body)) + body[4:]
    return ipv4(source, IPv4Address(quoted[12:16]), socket.IPPROTO_ICMP, body)
