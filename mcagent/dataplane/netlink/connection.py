"""One rtnetlink socket for requests: many messages in one go, each with its own answer; and dumps.

Owns sequence numbers, acknowledgements and errors of netlink(7). Knows no resources. A socket serves one
thread at a time. Events come by a socket of their own (`netlink_monitor`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mcagent.dataplane.netlink.messages import (
    NLATTR,
    NLM_F_ACK,
    NLM_F_ACK_TLVS,
    NLM_F_CAPPED,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    NLMSGERR_ATTR_MSG,
    NLMSGHDR,
    attributes,
    messages,
)
from mcagent.model.errors import BackendError

# linux/netlink.h
SOL_NETLINK = 270
NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 10, 11, 12
NETLINK_NETFILTER = 12
SO_RCVBUFFORCE = 33  # asm-generic/socket.h; needs CAP_NET_ADMIN

CHUNK = 256  # messages per send: their acknowledgements fit into the receive buffer together
RECEIVE_BUFFER = 4 << 20  # bytes
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


class NetlinkSocket:
    """A NETLINK_ROUTE socket (or another netlink protocol) in the network namespace of the calling thread."""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        """Open the socket. Raises BackendError when the kernel gives none."""
        self._sequence = 0
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
            self._socket.bind((0, 0))
        except OSError as error:
            raise BackendError("netlink", "open", "socket", error.strerror or str(error)) from None
        self._socket.settimeout(TIMEOUT)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            with contextlib.suppress(OSError):  # only make things shorter, clearer or faster
                self._socket.setsockopt(SOL_NETLINK, option, 1)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)

    @property
    def port(self) -> int:
        """The socket's port (netlink(7), nl_pid): events of routes that were changed through it carry it."""
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

    def _exchange(self, requests: Sequence[Request]) -> list[Refusal | None]:
        first = self._sequence + 1
        self._sequence += len(requests)
        flags = NLM_F_REQUEST | NLM_F_ACK
        self._socket.send(
            b"".join(
                NLMSGHDR.pack(16 + len(one.payload), one.type, flags | one.flags, first + place, 0) + one.payload
                for place, one in enumerate(requests)
            )
        )
        outcome: list[Refusal | None] = [None] * len(requests)
        missing = len(requests)
        while missing:
            for kind, message_flags, sequence, payload in messages(self._socket.recv(65536)):
                place = sequence - first
                if kind == NLMSG_ERROR and 0 <= place < len(requests):
                    missing -= 1
                    outcome[place] = _refusal(payload, message_flags)
        return outcome

    def dump(self, kind: int, payload: bytes) -> list[bytes]:
        """Return the payloads that answer a dump request; empty where the kernel has no such table.

        Raises BackendError when the kernel refuses it, or the listing changes faster than it can be read.
        """
        for _ in range(DUMP_ATTEMPTS):
            found = self._listing(kind, NLM_F_DUMP, payload)
            if found is not None:
                return found
        raise BackendError("netlink", "list", f"message type {kind}", "changes faster than it can be read")

    def get(self, kind: int, payload: bytes) -> bytes | Refusal:
        """Return the payload that answers a request for one object, or why there is none."""
        try:
            found = self._listing(kind, NLM_F_ACK, payload)
        except _RefusedError as refused:
            return refused.refusal
        assert found is not None  # only dumps are interrupted
        return found[0] if found else Refusal(2)

    def _listing(self, kind: int, flags: int, payload: bytes) -> list[bytes] | None:
        """Return the answers, or None when the kernel says that they do not belong together."""
        self._sequence += 1
        expected = self._sequence
        found: list[bytes] = []
        whole = True
        try:
            header = NLMSGHDR.pack(16 + len(payload), kind, NLM_F_REQUEST | flags, expected, 0)
            self._socket.send(header + payload)
            while True:
                for answer, message_flags, sequence, body in messages(self._socket.recv(1 << 18)):
                    if sequence != expected:
                        continue  # left over from a request that timed out
                    whole = whole and not message_flags & NLM_F_DUMP_INTR
                    if answer in {NLMSG_ERROR, NLMSG_DONE}:
                        refusal = _refusal(body, message_flags) if len(body) >= 4 else None
                        if refusal is None:
                            return found if whole else None
                        if refusal.errno == 2 and flags == NLM_F_DUMP:  # ENOENT: no such routing table yet
                            return found
                        raise _RefusedError(kind, refusal)
                    found.append(body)
        except OSError as error:
            raise BackendError("netlink", "list", f"message type {kind}", str(error)) from None


class _RefusedError(BackendError):
    def __init__(self, kind: int, refusal: Refusal) -> None:
        super().__init__("netlink", "list", f"message type {kind}", str(refusal))
        self.refusal = refusal


def _refusal(payload: bytes, flags: int) -> Refusal | None:
    """Read nlmsgerr (or the error of NLMSG_DONE), with the kernel's words where there are any."""
    number = -int.from_bytes(payload[:4], sys.byteorder, signed=True)
    if not number:
        return None
    message = ""
    if flags & NLM_F_ACK_TLVS and len(payload) >= 20:
        length = NLMSGHDR.unpack_from(payload, 4)[0]
        offset = 4 + (16 if flags & NLM_F_CAPPED else (length + 3) & ~3)
        if len(payload) >= offset + NLATTR.size:
            words = attributes(payload, offset).get(NLMSGERR_ATTR_MSG, b"")
            message = words.rstrip(b"\0").decode(errors="replace").rstrip(".")
    return Refusal(number, message)
