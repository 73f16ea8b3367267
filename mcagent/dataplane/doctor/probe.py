"""Which sizes of packets get to an address: ICMP echoes, and UDP to a closed port, with fragmentation forbidden.

Both at once, since either may be filtered. IP_PMTUDISC_PROBE (ip(7)) sends them whatever path MTU the kernel has
learned, and never in fragments; with IP_RECVERR ICMP errors come to the socket: "port unreachable" of the peer
itself is an answer, "fragmentation needed" tells a router's MTU. Needs no privilege but, for ICMP where the Node
forbids ping sockets (net.ipv4.ping_group_range), CAP_NET_RAW; without it UDP is left.
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

from mcagent.core.doctor.observed import PathSeen
from mcagent.model.net import Address, internet_checksum

SMALL = 100  # bytes of the IP packet
TRIES, WAIT = 3, 0.4  # packets of each size, and seconds that are waited after each
MOST = 64  # addresses that are probed
_STEPS = (1280, 1350, 1380, 1400, 1420, 1440, 1450, 1460, 1472, 1480, 1492, 1500, 4000, 8900, 8950, 9000)
_PORT = 33434  # where traceroute(8) begins: closed on any host
# linux/in.h, linux/in6.h
_IP_MTU_DISCOVER, _IP_RECVERR, _IPV6_MTU_DISCOVER, _IPV6_RECVERR, _PMTUDISC_PROBE = 10, 11, 23, 25, 3
_ERROR = struct.Struct("=IBBBxII")  # struct sock_extended_err (linux/errqueue.h)
_ORIGIN_ICMP, _ORIGIN_ICMP6 = 2, 3
_UNREACHABLE = {4: (3, 3), 6: (1, 4)}  # type and code of "port unreachable" (RFC 792, RFC 4443)
_TOO_BIG = {4: (3, 4), 6: (2, 0)}


@dataclass(slots=True)
class _Target:
    address: Address
    size: int
    ping: socket.socket | None = None
    raw: bool = False
    udp: socket.socket | None = None
    answered: set[int] = field(default_factory=set)  # sizes
    ways: set[str] = field(default_factory=set)
    told: int = 0

    @property
    def header(self) -> int:
        """Bytes of the IP header; those of ICMP and UDP have 8 more."""
        return 20 if self.address.version == 4 else 40


def probe_paths(targets: Iterable[tuple[Address, int]]) -> tuple[PathSeen, ...]:
    """Probe addresses with packets of a size each (bytes, IP header included), all at once: in about two seconds.

    Where only small packets pass, sizes between are tried. Raises nothing: what cannot be sent is not answered.
    """
    with ExitStack() as opened:
        found = [_open(address, size, opened) for address, size in list(targets)[:MOST]]
        _round(found, {id(one): (SMALL, one.size) for one in found})
        narrow = [one for one in found if SMALL in one.answered and one.size not in one.answered]
        if narrow:
            _round(narrow, {id(one): [step for step in _STEPS if step < one.size] for one in narrow})
        return tuple(
            PathSeen(
                address=one.address,
                size=one.size,
                small=bool(one.answered),
                full=one.size in one.answered,
                passes=max(one.answered, default=0),
                told=one.told,
                ways=tuple(sorted(one.ways)),
            )
            for one in found
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
    one = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        if address.version == 4:
            one.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
            one.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        else:
            one.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
            one.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
        one.connect((str(address), port))
    except OSError:
        one.close()
        raise
    return one


def _round(targets: Sequence[_Target], sizes: dict[int, Sequence[int]]) -> None:
    """Send every size that is not answered yet, several times, and take in what comes."""
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
        with suppress(OSError):  # an error that was queued, or a size that no device takes
            target.ping.send(echo)
    if target.udp is not None:
        with suppress(OSError):
            target.udp.send(struct.pack("!H", size) + bytes(payload - 2))


def _receive(targets: Sequence[_Target], sizes: dict[int, Sequence[int]], until: float) -> None:
    sockets = {one: target for target in targets for one in (target.ping, target.udp) if one is not None}
    poll = select.poll()
    for one in sockets:
        poll.register(one, select.POLLIN)
    by_number = {one.fileno(): one for one in sockets}
    while (left := until - time.monotonic()) > 0:
        if all(size in target.answered for target in targets for size in sizes[id(target)]):
            return
        for number, _ in poll.poll(left * 1000):
            one = by_number[number]
            _take(sockets[one], one)


def _take(target: _Target, one: socket.socket) -> None:
    """Take in an answer, or an ICMP error, that has come to a socket."""
    with suppress(OSError):
        if one is target.ping:
            data = one.recv(65536)
            data = data[(data[0] & 15) * 4 :] if target.raw and target.address.version == 4 else data
            _echoed(target, data)
        else:
            one.recv(65536)
    with suppress(OSError):
        while True:
            data, controls, _, _ = one.recvmsg(65536, 1024, socket.MSG_ERRQUEUE)
            for _, _, control in controls:
                if len(control) >= _ERROR.size:
                    _error(target, one, data, _ERROR.unpack_from(control))


def _echoed(target: _Target, data: bytes) -> None:
    reply = 0 if target.address.version == 4 else 129
    if len(data) >= 10 and data[0] == reply:
        if target.raw and int.from_bytes(data[4:6]) != os.getpid() & 0xFFFF:
            return  # somebody else's
        target.answered.add(int.from_bytes(data[8:10]))
        target.ways.add("icmp")


def _error(target: _Target, one: socket.socket, quoted: bytes, error: tuple[int, ...]) -> None:
    """Take in an ICMP error. `quoted`: the beginning of our packet's payload, as far as the error repeats it."""
    _, origin, kind, code, told, _ = error
    if origin not in {_ORIGIN_ICMP, _ORIGIN_ICMP6}:
        return
    version = target.address.version
    if (kind, code) == _TOO_BIG[version] and told:
        target.told = min(target.told or told, told)
    elif (kind, code) == _UNREACHABLE[version] and one is target.udp and len(quoted) >= 2:
        target.answered.add(int.from_bytes(quoted[:2]))
        target.ways.add("udp")
