"""Packet sizes that reach an address: ICMP echoes, and UDP to a closed port, with fragmentation forbidden.

Both at once, as either may be filtered. IP_PMTUDISC_PROBE (ip(7)) ignores the path MTU that the kernel has learned
and never fragments; with IP_RECVERR the socket receives ICMP errors: "port unreachable" of the peer is an answer,
"fragmentation needed" has a router's MTU. ICMP needs CAP_NET_RAW if the Node forbids ping sockets
(net.ipv4.ping_group_range); without it only UDP is sent.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from mcagent.model.net import Address, internet_checksum

SMALL = 100  # bytes of the IP packet
TRIES, WAIT = 3, 0.4  # packets of each size, and seconds to wait after each
MAX_TARGETS = 64
_STEPS = (1280, 1350, 1380, 1400, 1420, 1440, 1450, 1460, 1472, 1480, 1492, 1500, 4000, 8900, 8950, 9000)
_PORT = 33434  # where traceroute(8) begins: closed on any host
# linux/in.h, linux/in6.h
_IP_MTU_DISCOVER, _IP_RECVERR, _IPV6_MTU_DISCOVER, _IPV6_RECVERR, _PMTUDISC_PROBE = 10, 11, 23, 25, 3
_ERROR = struct.Struct("=IBBBxII")  # struct sock_extended_err (linux/errqueue.h)
_ORIGIN_ICMP, _ORIGIN_ICMP6 = 2, 3
_UNREACHABLE = {4: (3, 3), 6: (1, 4)}  # type and code of "port unreachable" (RFC 792, RFC 4443)
_TOO_BIG = {4: (3, 4), 6: (2, 0)}


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


@dataclass(slots=True)
class _Target:
    address: Address
    size: int
    ping: socket.socket | None = None
    raw: bool = False
    udp: socket.socket | None = None
    answered: set[int] = field(default_factory=set)  # sizes
    protocols: set[str] = field(default_factory=set)
    reported_mtu: int = 0

    @property
    def header(self) -> int:
        """Bytes of the IP header; those of ICMP and UDP have 8 more."""
        return 20 if self.address.version == 4 else 40


def probe_paths(targets: Iterable[tuple[Address, int]]) -> tuple[ProbedPath, ...]:
    """Probe addresses with packets of a size each (bytes with IP header), all at once, in about two seconds.

    If only small packets pass, sizes in between are tried. Raises no error: an unsent packet has no answer.
    """
    with ExitStack() as opened:
        opened_targets = [_open(address, size, opened) for address, size in list(targets)[:MAX_TARGETS]]
        _round(opened_targets, {id(target): (SMALL, target.size) for target in opened_targets})
        narrow = [
            target for target in opened_targets if SMALL in target.answered and target.size not in target.answered
        ]
        if narrow:
            _round(narrow, {id(target): [step for step in _STEPS if step < target.size] for target in narrow})
        return tuple(
            ProbedPath(
                address=target.address,
                size=target.size,
                small=bool(target.answered),
                full=target.size in target.answered,
                passes=max(target.answered, default=0),
                reported_mtu=target.reported_mtu,
                protocols=tuple(sorted(target.protocols)),
            )
            for target in opened_targets
        )


def _open(address: Address, size: int, opened: ExitStack) -> _Target:
    target = _Target(address, size)
    version = address.version
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    protocol = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        with suppress(OSError):
            target.ping = opened.enter_context(_connected(family, kind, protocol, address, 0))
            target.raw = kind == socket.SOCK_RAW
            break
    with suppress(OSError):
        target.udp = opened.enter_context(_connected(family, socket.SOCK_DGRAM, 0, address, _PORT))
    return target


def _connected(family: int, kind: int, protocol: int, address: Address, port: int) -> socket.socket:
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        if address.version == 4:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
        sock.connect((str(address), port))
    except OSError:
        sock.close()
        raise
    return sock


def _round(targets: Sequence[_Target], sizes: dict[int, Sequence[int]]) -> None:
    """Send every size that is not answered yet, up to TRIES times, and receive answers."""
    for _ in range(TRIES):
        waiting = False
        for target in targets:
            for size in sizes[id(target)]:
                if size not in target.answered:
                    waiting = True
                    _send(target, size)
        if not waiting:
            return
        _receive(targets, sizes, time.monotonic() + WAIT)


def _send(target: _Target, size: int) -> None:
    payload = size - target.header - 8
    if target.ping is not None:
        kind = 8 if target.address.version == 4 else 128
        body = struct.pack("!H", size) + bytes(payload - 2)
        echo = struct.pack("!BBHHH", kind, 0, 0, os.getpid() & 0xFFFF, size & 0xFFFF) + body
        if target.raw and target.address.version == 4:  # the kernel fills it in for the other ways
            echo = echo[:2] + struct.pack("!H", internet_checksum(echo)) + echo[4:]
        with suppress(OSError):  # a queued error, or a packet larger than the device's MTU
            target.ping.send(echo)
    if target.udp is not None:
        with suppress(OSError):
            target.udp.send(struct.pack("!H", size) + bytes(payload - 2))


def _receive(targets: Sequence[_Target], sizes: dict[int, Sequence[int]], until: float) -> None:
    sockets = {sock: target for target in targets for sock in (target.ping, target.udp) if sock is not None}
    poll = select.poll()
    for sock in sockets:
        poll.register(sock, select.POLLIN)
    by_number = {sock.fileno(): sock for sock in sockets}
    while (remaining := until - time.monotonic()) > 0:
        if all(size in target.answered for target in targets for size in sizes[id(target)]):
            return
        for number, _ in poll.poll(remaining * 1000):
            sock = by_number[number]
            _take(sockets[sock], sock)


def _take(target: _Target, sock: socket.socket) -> None:
    """Receive an answer or an ICMP error of a socket."""
    with suppress(OSError):
        if sock is target.ping:
            data = sock.recv(65536)
            data = data[(data[0] & 15) * 4 :] if target.raw and target.address.version == 4 else data
            _echoed(target, data)
        else:
            sock.recv(65536)
    with suppress(OSError):
        while True:
            data, controls, _, _ = sock.recvmsg(65536, 1024, socket.MSG_ERRQUEUE)
            for _, _, control in controls:
                if len(control) >= _ERROR.size:
                    _error(target, sock, data, _ERROR.unpack_from(control))


def _echoed(target: _Target, data: bytes) -> None:
    reply = 0 if target.address.version == 4 else 129
    if len(data) >= 10 and data[0] == reply:
        if target.raw and int.from_bytes(data[4:6]) != os.getpid() & 0xFFFF:
            return  # of another program
        target.answered.add(int.from_bytes(data[8:10]))
        target.protocols.add("icmp")


def _error(target: _Target, sock: socket.socket, quoted: bytes, error: tuple[int, ...]) -> None:
    """Evaluate an ICMP error. `quoted`: the beginning of our packet's payload in the error."""
    _, origin, kind, code, mtu, _ = error
    if origin not in {_ORIGIN_ICMP, _ORIGIN_ICMP6}:
        return
    version = target.address.version
    if (kind, code) == _TOO_BIG[version] and mtu:
        target.reported_mtu = min(target.reported_mtu or mtu, mtu)
    elif (kind, code) == _UNREACHABLE[version] and sock is target.udp and len(quoted) >= 2:
        target.answered.add(int.from_bytes(quoted[:2]))
        target.protocols.add("udp")
