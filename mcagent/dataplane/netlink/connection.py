"""Netlink (netlink(7)): the format of its messages, and sockets for requests, dumps and events.

Owns the numbers of linux/netlink.h and linux/rtnetlink.h that more than one module needs, sequence numbers,
acknowledgements and errors; `links` and `routes` have the messages about these. Knows no resources. A socket
is used by one thread at a time.

rtnetlink is encoded here and not by pyroute2, which has classes for all of this: pyroute2 adds 9.6 MiB to the
agent, whose limit is 100 MiB, and 0.1 s of processor time to its start; it takes 4.8 ms for the requests of a pass
besides routes (here: 0.3 ms), and about 100 us for each route of a dump (here: 10 us).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcagent.model.errors import BackendError
from mcagent.model.net import Address, Network

AF_UNSPEC, AF_INET, AF_INET6 = 0, 2, 10
FAMILIES = (AF_INET, AF_INET6)

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR = 0x1, 0x4, 0x10
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_DUMP = 0x300
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200  # in NLMSG_ERROR
NLMSGERR_ATTR_MSG = 1

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTM_NEWNETCONF = 80

NLMSGHDR = struct.Struct("=IHHII")  # length, type, flags, sequence, port
NLATTR = struct.Struct("=HH")  # length, type
U32 = struct.Struct("=I")

SOL_NETLINK = 270
NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 10, 11, 12
NETLINK_NETFILTER = 12
SO_RCVBUFFORCE = 33  # asm-generic/socket.h; needs CAP_NET_ADMIN

CHUNK = 256  # messages per send: their acknowledgements fit into the receive buffer together
RECEIVE_BUFFER = 4 << 20  # bytes, of a socket for requests
EVENT_BUFFER = 8 << 20  # bytes: bursts of tens of thousands of events
TIMEOUT = 10.0  # seconds; the kernel answers at once, so this only ends a deadlock
# Errors that mean an empty list: no such routing table yet; no policy rules of a family that the kernel lacks.
_NONE = frozenset({errno.ENOENT, errno.EAFNOSUPPORT})
DUMP_ATTEMPTS = 5  # a dump is interrupted when the listed table changes meanwhile


def attribute(kind: int, data: bytes) -> bytes:
    """Pack one attribute, padded to four bytes."""
    return NLATTR.pack(4 + len(data), kind) + data + bytes(-len(data) % 4)


def pack(values: Mapping[int, bytes | int | None]) -> bytes:
    """Pack attributes by type, a number as u32; None stands for no attribute."""
    parts = []
    for kind, value in values.items():
        if value is not None:
            parts.append(attribute(kind, value if isinstance(value, bytes) else U32.pack(value)))
    return b"".join(parts)


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """Unpack attributes from `offset` to the end; the last one of a type counts, the nested flag is dropped."""
    values: dict[int, bytes] = {}
    end = len(data)
    while offset + 4 <= end:
        length, kind = NLATTR.unpack_from(data, offset)
        if length < 4:
            break
        values[kind & 0x3FFF] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return values


def family(value: Address | Network) -> int:
    """Return AF_INET or AF_INET6."""
    return AF_INET if value.version == 4 else AF_INET6


def number(data: bytes | None, default: int = 0) -> int:
    """Read a u32 attribute, or the default where there is none."""
    return int(U32.unpack_from(data)[0]) if data else default


def text(data: bytes | None) -> str:
    """Read a string attribute, "" where there is none."""
    return (data or b"").rstrip(b"\0").decode(errors="replace")


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Split received bytes into messages: (type, flags, sequence, payload)."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, sequence, _ = NLMSGHDR.unpack_from(data, offset)
        if length < 16:
            return
        yield kind, flags, sequence, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


@dataclass(frozen=True, slots=True)
class NetlinkRequest:
    """A message: RTM_* type, flags besides REQUEST and ACK, and payload after the header."""

    type: int
    flags: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class NetlinkRefusal:
    """An error answer of the kernel: errno and, where the kernel gives one, a message."""

    errno: int
    message: str = ""

    def __str__(self) -> str:
        words = os.strerror(self.errno)
        return f"{words} ({self.message})" if self.message else words


def open_events(protocol: int, groups: int) -> socket.socket:
    """Open a non-blocking socket for events of multicast groups, given as bits. Raises OSError."""
    events = _open(protocol, groups, EVENT_BUFFER)
    events.setblocking(False)
    return events


def _open(protocol: int, groups: int, buffer: int) -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        with contextlib.suppress(OSError):
            opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer)
        opened.bind((0, groups))
    except OSError:
        opened.close()
        raise
    return opened


class NetlinkSocket:
    """A NETLINK_ROUTE socket (or of another netlink protocol) in the network namespace of the calling thread."""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        """Open the socket. Raises BackendError when that fails."""
        self._sequence = 0
        try:
            self._socket = _open(protocol, 0, RECEIVE_BUFFER)
        except OSError as error:
            raise BackendError("netlink", "open", "socket", error.strerror or str(error)) from None
        self._socket.settimeout(TIMEOUT)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            with contextlib.suppress(OSError):  # optional: shorter acknowledgements, messages, filtered dumps
                self._socket.setsockopt(SOL_NETLINK, option, 1)

    @property
    def port(self) -> int:
        """The socket's port (netlink(7), nl_pid), which events of changes by this socket contain."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(self, requests: Sequence[NetlinkRequest]) -> list[NetlinkRefusal | None]:
        """Send all requests and return, in the same order, None for success or the kernel's error.

        An error does not stop the others. Raises BackendError when the socket itself fails.
        """
        outcome: list[NetlinkRefusal | None] = []
        try:
            for start in range(0, len(requests), CHUNK):
                outcome += self._exchange(requests[start : start + CHUNK])
        except OSError as error:
            raise BackendError("netlink", "send", f"{len(requests)} requests", str(error)) from None
        return outcome

    def dump(self, kind: int, payload: bytes, select: Callable[[bytes], bool] = lambda _: True) -> list[bytes]:
        """Send a dump request and return the payloads of its answers; empty if the kernel has no such table.

        Payloads for which `select` is false are dropped at once, so that they need no memory; it may be called
        again for all of them. Raises BackendError when the kernel refuses the request, or the listing changes
        faster than it can be read.
        """
        requested = payload[0]  # the family is the first byte of requests and answers

        def is_selected(body: bytes) -> bool:
            # Without IPv6 (ipv6.disable=1) the kernel lists IPv4 in its place (rtnetlink_rcv_msg, rtnl_dump_all).
            return requested in (AF_UNSPEC, body[0]) and select(body)

        for _ in range(DUMP_ATTEMPTS):
            answers, refusal, consistent = self._query(kind, NLM_F_DUMP, payload, is_selected)
            if refusal is not None and refusal.errno not in _NONE:
                raise _list_error(kind, str(refusal))
            if consistent:
                return answers
        raise _list_error(kind, "changes faster than it can be read")

    def get(self, kind: int, payload: bytes) -> bytes | NetlinkRefusal:
        """Request one object; return the payload of the answer or the kernel's error."""
        answers, refusal, _ = self._query(kind, NLM_F_ACK, payload)
        return refusal or (answers[0] if answers else NetlinkRefusal(errno.ENOENT))

    def _exchange(self, requests: Sequence[NetlinkRequest]) -> list[NetlinkRefusal | None]:
        first = self._sequence + 1
        self._sequence += len(requests)
        flags = NLM_F_REQUEST | NLM_F_ACK
        self._socket.send(
            b"".join(
                NLMSGHDR.pack(16 + len(request.payload), request.type, flags | request.flags, first + place, 0)
                + request.payload
                for place, request in enumerate(requests)
            )
        )
        outcome: list[NetlinkRefusal | None] = [None] * len(requests)
        missing = len(requests)
        while missing:
            for kind, message_flags, sequence, payload in messages(self._socket.recv(65536)):
                place = sequence - first
                if kind == NLMSG_ERROR and 0 <= place < len(requests):
                    missing -= 1
                    outcome[place] = _refusal(payload, message_flags)
        return outcome

    def _query(
        self, kind: int, flags: int, payload: bytes, select: Callable[[bytes], bool] = lambda _: True
    ) -> tuple[list[bytes], NetlinkRefusal | None, bool]:
        """Send a request; return the selected answers, the kernel's error, and whether the dump is consistent."""
        self._sequence += 1
        expected = self._sequence
        answers: list[bytes] = []
        consistent = True
        try:
            header = NLMSGHDR.pack(16 + len(payload), kind, NLM_F_REQUEST | flags, expected, 0)
            self._socket.send(header + payload)
            while True:
                for answer, message_flags, sequence, body in messages(self._socket.recv(1 << 18)):
                    if sequence != expected:
                        continue  # an answer to a request that timed out
                    consistent = consistent and not message_flags & NLM_F_DUMP_INTR
                    if answer in {NLMSG_ERROR, NLMSG_DONE}:
                        return answers, _refusal(body, message_flags) if len(body) >= 4 else None, consistent
                    if select(body):
                        answers.append(body)
        except OSError as error:
            raise _list_error(kind, str(error)) from None


def _list_error(kind: int, reason: str) -> BackendError:
    return BackendError("netlink", "list", f"message type {kind}", reason)


def _refusal(payload: bytes, flags: int) -> NetlinkRefusal | None:
    """Parse nlmsgerr (or the error of NLMSG_DONE), with the kernel's message if there is one."""
    code = -int.from_bytes(payload[:4], sys.byteorder, signed=True)
    if not code:
        return None
    message = ""
    if flags & NLM_F_ACK_TLVS and len(payload) >= 20:
        length = NLMSGHDR.unpack_from(payload, 4)[0]
        offset = 4 + (16 if flags & NLM_F_CAPPED else (length + 3) & ~3)
        if len(payload) >= offset + NLATTR.size:
            message = text(attributes(payload, offset).get(NLMSGERR_ATTR_MSG)).rstrip(".")
    return NetlinkRefusal(code, message)
