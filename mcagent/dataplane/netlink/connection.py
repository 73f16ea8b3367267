"""Netlink sockets: for requests, many in one go and each with its own answer; for dumps; and for events.

Owns sequence numbers, acknowledgements and errors of netlink(7). Knows no resources. A socket serves one thread
at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mcagent.dataplane.netlink import messages as nl
from mcagent.dataplane.netlink.messages import attributes, messages, text
from mcagent.model.errors import BackendError

# linux/netlink.h
SOL_NETLINK = 270
NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 10, 11, 12
NETLINK_NETFILTER = 12
SO_RCVBUFFORCE = 33  # asm-generic/socket.h; needs CAP_NET_ADMIN

CHUNK = 256  # messages per send: their acknowledgements fit into the receive buffer together
RECEIVE_BUFFER = 4 << 20  # bytes, of a socket for requests
EVENT_BUFFER = 8 << 20  # bytes: bursts of tens of thousands of events
TIMEOUT = 10.0  # seconds; the kernel answers at once, so this only ends a hang
DUMP_ATTEMPTS = 5  # a dump is interrupted when what it lists changes meanwhile


@dataclass(frozen=True, slots=True)
class Request:
    """One message: RTM_* type, flags beside REQUEST and ACK, and payload after the header."""

    type: int
    flags: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """The kernel's negative answer: errno and, where the kernel gives one, its reason in words."""

    errno: int
    message: str = ""

    def __str__(self) -> str:
        words = os.strerror(self.errno)
        return f"{words} ({self.message})" if self.message else words


def open_events(protocol: int, groups: int) -> socket.socket:
    """Open a non-blocking socket for events of multicast groups, given as bits. Raises OSError."""
    one = _open(protocol, groups, EVENT_BUFFER)
    one.setblocking(False)
    return one


def _open(protocol: int, groups: int, buffer: int) -> socket.socket:
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer)
        one.bind((0, groups))
    except OSError:
        one.close()
        raise
    return one


class NetlinkSocket:
    """A NETLINK_ROUTE socket (or of another netlink protocol) in the network namespace of the calling thread."""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        """Open the socket. Raises BackendError when the kernel gives none."""
        self._sequence = 0
        try:
            self._socket = _open(protocol, 0, RECEIVE_BUFFER)
        except OSError as error:
            raise BackendError("netlink", "open", "socket", error.strerror or str(error)) from None
        self._socket.settimeout(TIMEOUT)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            with contextlib.suppress(OSError):  # only make things shorter, clearer or faster
                self._socket.setsockopt(SOL_NETLINK, option, 1)

    @property
    def port(self) -> int:
        """The socket's port (netlink(7), nl_pid): events of what was changed through it carry it."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(self, requests: Sequence[Request]) -> list[Refusal | None]:
        """Send all requests and return, in the same order, None for done or why the kernel refused.

        One refusal does not stop the others. Raises BackendError when the socket itself fails.
        """
        outcome: list[Refusal | None] = []
        try:
            for start in range(0, len(requests), CHUNK):
                outcome += self._exchange(requests[start : start + CHUNK])
        except OSError as error:
            raise BackendError("netlink", "send", f"{len(requests)} requests", str(error)) from None
        return outcome

    def dump(self, kind: int, payload: bytes) -> list[bytes]:
        """Return the payloads that answer a dump request; empty where the kernel has no such table.

        Raises BackendError when the kernel refuses it, or the listing changes faster than it can be read.
        """
        for _ in range(DUMP_ATTEMPTS):
            found, refusal, whole = self._ask(kind, nl.NLM_F_DUMP, payload)
            if refusal is not None and refusal.errno != errno.ENOENT:  # ENOENT: no such routing table yet
                raise _list_error(kind, str(refusal))
            if whole:
                return found
        raise _list_error(kind, "changes faster than it can be read")

    def get(self, kind: int, payload: bytes) -> bytes | Refusal:
        """Return the payload that answers a request for one object, or why there is none."""
        found, refusal, _ = self._ask(kind, nl.NLM_F_ACK, payload)
        return refusal or (found[0] if found else Refusal(errno.ENOENT))

    def _exchange(self, requests: Sequence[Request]) -> list[Refusal | None]:
        first = self._sequence + 1
        self._sequence += len(requests)
        flags = nl.NLM_F_REQUEST | nl.NLM_F_ACK
        self._socket.send(
            b"".join(
                nl.NLMSGHDR.pack(16 + len(one.payload), one.type, flags | one.flags, first + place, 0)
                + one.payload
                for place, one in enumerate(requests)
            )
        )
        outcome: list[Refusal | None] = [None] * len(requests)
        missing = len(requests)
        while missing:
            for kind, message_flags, sequence, payload in messages(self._socket.recv(65536)):
                place = sequence - first
                if kind == nl.NLMSG_ERROR and 0 <= place < len(requests):
                    missing -= 1
                    outcome[place] = _refusal(payload, message_flags)
        return outcome

    def _ask(self, kind: int, flags: int, payload: bytes) -> tuple[list[bytes], Refusal | None, bool]:
        """Return the answers, the kernel's refusal, and whether the answers belong together."""
        self._sequence += 1
        expected = self._sequence
        found: list[bytes] = []
        whole = True
        try:
            header = nl.NLMSGHDR.pack(16 + len(payload), kind, nl.NLM_F_REQUEST | flags, expected, 0)
            self._socket.send(header + payload)
            while True:
                for answer, message_flags, sequence, body in messages(self._socket.recv(1 << 18)):
                    if sequence != expected:
                        continue  # left over from a request that timed out
                    whole = whole and not message_flags & nl.NLM_F_DUMP_INTR
                    if answer in {nl.NLMSG_ERROR, nl.NLMSG_DONE}:
                        return found, _refusal(body, message_flags) if len(body) >= 4 else None, whole
                    found.append(body)
        except OSError as error:
            raise _list_error(kind, str(error)) from None


def _list_error(kind: int, reason: str) -> BackendError:
    return BackendError("netlink", "list", f"message type {kind}", reason)


def _refusal(payload: bytes, flags: int) -> Refusal | None:
    """Read nlmsgerr (or the error of NLMSG_DONE), with the kernel's words where there are any."""
    code = -int.from_bytes(payload[:4], sys.byteorder, signed=True)
    if not code:
        return None
    message = ""
    if flags & nl.NLM_F_ACK_TLVS and len(payload) >= 20:
        length = nl.NLMSGHDR.unpack_from(payload, 4)[0]
        offset = 4 + (16 if flags & nl.NLM_F_CAPPED else (length + 3) & ~3)
        if len(payload) >= offset + nl.NLATTR.size:
            message = text(attributes(payload, offset).get(nl.NLMSGERR_ATTR_MSG)).rstrip(".")
    return Refusal(code, message)
