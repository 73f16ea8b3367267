"""One client's connection: reads requests and sends answers, limited in bytes.

Every stage (handshake and request; work and answer) has one deadline, which arriving bytes do not extend. The
listener ends connections that are late or have to give way.
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
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: discard unsent data, socket(7)


class RequestStage(StrEnum):
    """Stage of a connection."""

    ASKING = "asking"  # the request is incomplete: connecting, TLS handshake, receiving
    IDLE = "idle"  # kept open after an answer
    WORKING = "working"
    ANSWERING = "answering"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of connections. Times in seconds, for the whole stage."""

    slots: int
    ask: float  # handshake, head and body
    answer: float  # the work and the answer
    idle: float = 0.0
    request_bytes: int = 64 * 1024 * 1024  # of all connections together


@dataclass(slots=True, eq=False, kw_only=True)
class ClientConnection:
    """One client. Its own thread reads and writes it; any thread may call `end`."""

    stream: socket.socket
    handle: socket.socket  # the same socket without TLS
    source: str
    since: float
    deadline: float
    limits: Limits
    stage: RequestStage = RequestStage.ASKING
    received: bytearray = field(default_factory=bytearray)
    on_large_request: Callable[[], None] = lambda: None

    def enter(self, stage: RequestStage, seconds: float) -> None:
        """Begin a stage with a deadline in `seconds`."""
        self.since = time.monotonic()
        self.stage, self.deadline = stage, self.since + seconds

    def end(self) -> None:
        """Reset the connection: reads and writes of its thread fail at once."""
        with suppress(OSError):
            self.handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.handle.shutdown(socket.SHUT_RDWR)

    def head(self) -> Head | None:
        """Read the head of the next request; None: the client closed. Raises BadRequestError, OSError."""
        scanned = 0
        while (end := self.received.find(b"\r\n\r\n", max(scanned - 3, 0))) < 0:
            scanned = len(self.received)
            if scanned > MAX_HEAD:
                raise BadRequestError(f"the head is larger than {MAX_HEAD} bytes", 431)
            if not self._receive(4096):
                return None
        text = bytes(self.received[:end])
        del self.received[: end + 4]
        if len(text) > MAX_HEAD:
            raise BadRequestError(f"the head is larger than {MAX_HEAD} bytes", 431)
        return parse_head(text)

    def body(self, length: int) -> bytes:
        """Read `length` bytes; memory is allocated only as bytes arrive. Raises OSError."""
        while len(self.received) < length:
            if not self._receive(_BLOCK):
                raise ConnectionResetError("the client disconnected mid-request")
        text = bytes(self.received[:length])
        del self.received[:length]
        return text

    def _receive(self, limit: int) -> bool:
        data = self.stream.recv(limit)
        if data and self.stage is RequestStage.IDLE:
            self.enter(RequestStage.ASKING, self.limits.ask)
        self.received += data
        if len(self.received) > MAX_HEAD:
            self.on_large_request()
        return bool(data)

    def send(self, data: bytes) -> None:
        """Send an answer. Raises OSError."""
        self.since, self.stage = time.monotonic(), RequestStage.ANSWERING
        self.stream.sendall(data)
