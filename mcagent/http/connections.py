"""A listening socket that slow or many connections cannot block: a thread for each, with deadlines and slots.

Owns sockets, threads and the limits in time, number and bytes. Every stage of a connection (handshake and request;
work and answer) has one deadline, however many bytes drip in meanwhile. When all slots are taken, the source with
the most connections loses the oldest of those that have not sent a whole request: the connections of one Pod push
each other out, and nobody else's. Knows nothing of what is served.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from mcagent.http.listening import Address, bound, oldest_of_most, source_of
from mcagent.http.request import MAX_HEAD, BadRequestError, Head, parse_head
from mcagent.supervised import Supervised, attempt

log = logging.getLogger(__name__)

_BLOCK = 64 * 1024
_LOOK = 0.25  # seconds between two looks at deadlines
_PATIENCE = 1.0  # seconds for which a client may be slow to take its answer while others wait for a slot
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
                raise ConnectionResetError("the client went away within its request")
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


class Listener:
    """Serves connections until closed: `serve` is called for each, in a thread of its own.

    With `context` connections are TLS; while it returns None they are closed at once.
    """

    def __init__(
        self,
        address: Address,
        serve: Callable[[Connection], None],
        limits: Limits,
        *,
        context: Callable[[], ssl.SSLContext | None] | None = None,
        name: str = "http",
    ) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self._serve, self._limits, self._context, self._name = serve, limits, context, name
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._threads = 0  # those of connections that gave way end a little later than these
        self._listening = bound(address)
        self._path = address if isinstance(address, Path) else None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = threading.Event()
        self._thread = Supervised(self._run, until=self._closing, name=name)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port listened on; of interest when 0 was asked for. 0 for a Unix socket."""
        name = self._listening.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop listening; what is being worked on ends with the process."""
        self._closing.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._listening.close()
        os.close(self._wake)
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        with self._lock:
            left = [one for one in self._connections if one.stage in (Stage.ASKING, Stage.IDLE)]
        for one in left:
            one.end()

    # --- the listener's thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._closing.is_set():
            poll.poll(_LOOK * 1000 if self._connections else None)
            if not self._closing.is_set():
                self._end_late()
                self._accept()

    def _end_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [one for one in self._connections if now >= one.deadline]
        for one in late:
            log.debug("%s: %s: took too long (%s)", self._name, one.source, one.stage)
            one.end()

    def _accept(self) -> None:
        try:
            raw, peer = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # no file descriptor is left, or no memory: not in a tight loop
            log.warning("%s: a connection cannot be accepted: %s", self._name, error)
            self._make_room(always=True)
            time.sleep(_LOOK)
            return
        if not self._make_room():
            raw.close()
            return
        connection = None
        try:
            raw.setblocking(True)
            if raw.family != socket.AF_UNIX:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            now = time.monotonic()
            connection = Connection(
                stream=raw,
                handle=raw.dup(),
                source=source_of(peer),
                since=now,
                deadline=now + self._limits.ask,
                limits=self._limits,
                grew=self._grew,
            )
            with self._lock:
                self._connections.add(connection)
                self._threads += 1
            threading.Thread(
                target=self._work, args=(connection,), name=f"{self._name}-client", daemon=True
            ).start()
        except (OSError, RuntimeError) as error:  # RuntimeError: the system gives no more threads
            log.warning("%s: a connection cannot be served: %s", self._name, error)
            raw.close()
            if connection is not None:
                self._forget(connection)

    def _make_room(self, *, always: bool = False) -> bool:
        """Let a connection give way if there is no slot. Returns whether there is one now."""
        with self._lock:
            if len(self._connections) < self._limits.slots and not always:
                return True
            now = time.monotonic()
            for stage, least in ((Stage.ASKING, 0.0), (Stage.IDLE, 0.0), (Stage.ANSWERING, _PATIENCE)):
                victim = oldest_of_most(
                    one for one in self._connections if one.stage is stage and now - one.since >= least
                )
                if victim is not None:
                    self._connections.discard(victim)
                    victim.end()
                    return self._threads < 2 * self._limits.slots
        return False

    # --- the connections' threads -------------------------------------------------------------------------

    def _work(self, connection: Connection) -> None:
        _, error = attempt(lambda: self._whole(connection))
        self._forget(connection)
        if isinstance(error, OSError):  # a client that goes away is nobody's error
            log.debug("%s: a connection of %s broke: %s", self._name, connection.source, error)
        elif error is not None:
            where = connection.source
            log.error("%s: a request of %s broke, which is a bug", self._name, where, exc_info=error)

    def _whole(self, connection: Connection) -> None:
        if self._context is not None:
            context = self._context()
            if context is None:
                return
            connection.stream = context.wrap_socket(connection.stream, server_side=True)
        self._serve(connection)

    def _forget(self, connection: Connection) -> None:
        with suppress(OSError):
            connection.stream.close()
        with self._lock:
            self._connections.discard(connection)
            self._threads -= 1
            connection.handle.close()

    def _grew(self) -> None:
        """Let the source that holds most bytes give way when there are too many."""
        with self._lock:
            asking = [one for one in self._connections if one.stage is Stage.ASKING]
            if sum(len(one.received) for one in self._connections) <= self._limits.held:
                return
            of: Counter[str] = Counter()
            for one in asking:
                of[one.source] += len(one.received)
            victim = max(asking, key=lambda one: (of[one.source], len(one.received)), default=None)
            if victim is not None:
                self._connections.discard(victim)
                victim.end()
