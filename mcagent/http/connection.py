"""One connection to a server of ours: what it sends, with a deadline for every stage. Bounded in bytes.

Every stage (handshake and request; work and answer) has one deadline, however many bytes drip in meanwhile. Who
ends a connection that is late, or has to give way, is the listener's business.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from mcagent.http.request import MAX_HEAD, BadRequestError, Head, parse_head

_BLOCK = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what was not taken is thrown away, socket(7)


class Stage(StrEnum):
    """How far a connection is."""

    ASKING = "asking"  # no whole request yet: connecting, shaking hands, sending
    IDLE = "idle"  # kept open after an answer
    WORKING = "working"
    ANSWERING = "answering"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What connections may take. Times in seconds, for the whole of a stage."""

    slots: int
    ask: float  # handshake, head and body
    answer: float  # the work and the answer
    idle: float = 0.0
    held: int = 64 * 1024 * 1024  # bytes of requests, of all connections together


@dataclass(slots=True, eq=False, kw_only=True)
class Connection:
    """One client. Read and written by its own thread only; `end` is for any."""

    stream: socket.socket
    handle: socket.socket  # the same connection, whatever TLS makes of the stream
    source: str
    since: float
    deadline: float
    limits: Limits
    stage: Stage = Stage.ASKING
    received: bytearray = field(default_factory=bytearray)
    grew: Callable[[], None] = lambda: None

    def enter(self, stage: Stage, seconds: float) -> None:
        """Begin a stage that has so long."""
        self.since = time.monotonic()
        self.stage, self.deadline = stage, self.since + seconds

    def end(self) -> None:
        """Cut the connection: whoever reads or writes it stops at once."""
        with suppress(OSError):
            self.handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.handle.shutdown(socket.SHUT_RDWR)

    def head(self) -> Head | None:
        """Return the next request; None when the client has gone. Raises BadRequestError, OSError."""
        seen = 0
        while (end := self.received.find(b"\r\n\r\n", max(seen - 3, 0))) < 0:
            seen = len(self.received)
            if seen > MAX_HEAD:
                raise BadRequestError(f"the head is larger than {MAX_HEAD} bytes", 431)
            if not self._more(4096):
                return None
        text = bytes(self.received[:end])
        del self.received[: end + 4]
        if len(text) > MAX_HEAD:
            raise BadRequestError(f"the head is larger than {MAX_HEAD} bytes", 431)
        return parse_head(text)

    def body(self, length: int) -> bytes:
        """Return so many bytes. What is announced takes no memory before it comes. Raises OSError."""
        while len(self.received) < length:
            if not self._more(_BLOCK):
                raise ConnectionResetError("the client disconnected mid-request")
        text = bytes(self.received[:length])
        del self.received[:length]
        return text

    def _more(self, most: int) -> bool:
        data = self.stream.recv(most)
        if data and self.stage is Stage.IDLE:
            self.enter(Stage.ASKING, self.limits.ask)
        self.received += data
        if len(self.received) > MAX_HEAD:
            self.grew()
        return bool(data)

    def send(self, data: bytes) -> None:
        """Send an answer. Raises OSError."""
        self.since, self.stage = time.monotonic(), Stage.ANSWERING
        self.stream.sendall(data)
