"""Packet sizes that reach an address: ICMP echoes, and UDP to a closed port, with fragmentation forbidden.

The agent's probes (`mcagent.core.tunnel_probes`) go through tunnels to gateways of other clusters. Where a tunnel
has failed, they cannot tell a closed port from a peer that is down. They do not measure which sizes pass, notice
after up to a minute that the largest one does not, and Nodes of this cluster and gateways of Antrea have none.

Both ways at once, as either may be filtered. IP_PMTUDISC_PROBE (ip(7)) ignores the path MTU that the kernel has
learned and never fragments; with IP_RECVERR the socket receives ICMP errors: "port unreachable" of the peer is an
answer, "fragmentation needed" has a router's MTU. ICMP needs CAP_NET_RAW if the Node forbids ping sockets
(net.ipv4.ping_group_range); without it only UDP is sent.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from mcagent.model.net import Address, internet_checksum

SMALL = 100  # bytes of the IP packet
TRIES, WAIT = 3, 0.4  # packets of each size, and seconds to wait after each
MAX_TARGETS = 64
_STEPS = (1280, 1350, 1380, 1400, 1420, 1440, 1450, 1460, 1472, 1480, 1492, 1500, 4000, 8900, 8950, 9000)
_PORT = 33434  # where traceroute(8) begins: closed on any host
# linux/in.h, linux/in6.h
_IP_MTU_DISCOVER, _IP_RECVERR, _IPV6_MTU_DISCOVER, _IPV6_RECVERR, _PMTUDISC_PROBE = 10, 11, 23, 25, 3
_ERROR = struct.Struct("=IBBBxII")  # struct sock_extended_err (linux/errqueue.h)
_REPLY = {4: b"\x00", 6: b"\x81"}  # the type of an answer (RFC 792, RFC 4443)
# Origin (linux/errqueue.h), type and code of ICMP errors
_UNREACHABLE = {4: (2, 3, 3), 6: (3, 1, 4)}  # of the port
_TOO_BIG = {4: (2, 3, 4), 6: (3, 2, 0)}
_PAYLOAD = struct.Struct("!II")  # how it begins: the size of the packet, and this process


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPath:
    """Probes to an address. `size`: bytes of the IP packet that tunnels make at most.

    `small`, `full`: whether a small packet, and one of that size, were answered; `passes`: the largest answered
    size; `reported_mtu`: the MTU that a router on the path reported (ICMP), 0: none; `protocols` with answers.
    """

    address: Address
    size: int
    small: bool = False
    full: bool = False
    passes: int = 0
    reported_mtu: int = 0
    protocols: tuple[str, ...] = ()


def probe_paths(targets: Iterable[tuple[Address, int]]) -> tuple[ProbedPath, ...]:
    """Probe addresses with packets of a size each (bytes with IP header), all at once, in about two seconds.

    If only small packets pass, sizes in between are tried. Raises no error: an unsent packet has no answer.
    """
    with ThreadPoolExecutor(MAX_TARGETS, "doctor-probe") as pool:
        return tuple(pool.map(_probe, list(targets)[:MAX_TARGETS]))


def _probe(target: tuple[Address, int]) -> ProbedPath:
    address, size = target
    with ExitStack() as opened:
        prober = _Prober(address, opened)
        prober.try_sizes((SMALL, size))
        if SMALL in prober.answered and size not in prober.answered:
            prober.try_sizes([step for step in _STEPS if step < size])
    return ProbedPath(
        address=address,
        size=size,
        small=bool(prober.answered),
        full=size in prober.answered,
        passes=max(prober.answered, default=0),
        reported_mtu=prober.reported_mtu,
        protocols=tuple(sorted(prober.protocols)),
    )


class _Prober:
    """The sockets to an address, and what came back."""

    def __init__(self, address: Address, opened: ExitStack) -> None:
        self._address, self._version, self._opened = address, address.version, opened
        self._sockets: dict[int, tuple[str, socket.socket]] = {}  # with the protocol, by number
        self._poll = select.poll()
        self.answered, self.protocols, self.reported_mtu = set[int](), set[str](), 0
        icmp = socket.IPPROTO_ICMP if address.version == 4 else socket.IPPROTO_ICMPV6
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
            if not self._sockets:
                self._open("icmp", kind, icmp)
        self._open("udp", socket.SOCK_DGRAM, port=_PORT)

    def _open(self, name: str, kind: int, protocol: int = 0, *, port: int = 0) -> None:
        with suppress(OSError):
            family = socket.AF_INET if self._version == 4 else socket.AF_INET6
            sock = self._opened.enter_context(socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol))
            if self._version == 4:
                sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
                sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            else:
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
            sock.connect((str(self._address), port))
            self._sockets[sock.fileno()] = name, sock
            self._poll.register(sock, select.POLLIN)

    def try_sizes(self, sizes: Collection[int]) -> None:
        """Send every size that is not answered yet, up to TRIES times, and receive answers."""
        for _ in range(TRIES):
            for size in sizes:
                if size not in self.answered:
                    self._send(size)
            until = time.monotonic() + WAIT
            while not self.answered.issuperset(sizes) and (remaining := until - time.monotonic()) > 0:
                for number, _ in self._poll.poll(remaining * 1000):
                    self._receive(*self._sockets[number])

    def _send(self, size: int) -> None:
        payload = _PAYLOAD.pack(size, os.getpid()).ljust(size - (28 if self._version == 4 else 48), b"\0")
        kind = 8 if self._version == 4 else 128
        echo = struct.pack("!BxHHH", kind, 0, os.getpid() & 0xFFFF, size & 0xFFFF) + payload
        if self._version == 4:  # the kernel fills in that of ICMPv6
            echo = echo[:2] + struct.pack("!H", internet_checksum(echo)) + echo[4:]
        for name, sock in self._sockets.values():
            with suppress(OSError):  # a queued error, or a packet larger than the device's MTU
                sock.send(echo if name == "icmp" else payload)

    def _receive(self, name: str, sock: socket.socket) -> None:
        """Receive an answer and the ICMP errors of a socket."""
        with suppress(OSError):
            data = sock.recv(65536)
            # Raw sockets of IPv4 receive the IP header, too.
            begin = (data[0] & 15) * 4 if data and data[0] >> 4 == 4 else 0
            if name == "icmp" and data[begin : begin + 1] == _REPLY[self._version]:
                self._take(name, data[begin + 8 :])
        with suppress(OSError):
            while True:
                quoted, controls, _, _ = sock.recvmsg(65536, 1024, socket.MSG_ERRQUEUE)
                for _, _, control in controls:
                    if len(control) >= _ERROR.size:
                        self._take_error(name, quoted, control)

    def _take(self, name: str, payload: bytes) -> None:
        """Note an answer to a probe, by the beginning of the probe's payload; others' are passed over."""
        if len(payload) >= _PAYLOAD.size:
            size, process = _PAYLOAD.unpack_from(payload)
            if process == os.getpid():
                self.answered.add(size)
                self.protocols.add(name)

    def _take_error(self, name: str, quoted: bytes, error: bytes) -> None:
        _, *code, mtu, _ = _ERROR.unpack_from(error)
        if tuple(code) == _TOO_BIG[self._version] and mtu:
            self.reported_mtu = min(self.reported_mtu or mtu, mtu)
        elif tuple(code) == _UNREACHABLE[self._version] and name == "udp":
            self._take(name, quoted)
