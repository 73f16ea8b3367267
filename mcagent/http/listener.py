"""A listening socket that slow or many connections cannot block: a thread for each, with deadlines and slots.

Owns sockets, threads and the limits in time, number and bytes. When all slots are taken, the source with the most
connections loses the oldest of those without a complete request: connections of one Pod replace each other, not
those of other clients. Does not know what is served.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from mcagent.http.connection import ClientConnection, Limits, RequestStage
from mcagent.http.listening import Address, bound, client_source
from mcagent.supervised import Supervised, attempt

log = logging.getLogger(__name__)

_POLL = 0.25  # seconds between two checks of deadlines
_PATIENCE = 1.0  # seconds that a client may take to receive its answer while others wait for a slot
# Stages of connections that are ended for a new one, in this order, each after so many seconds in its stage.
_GIVING_WAY = ((RequestStage.ASKING, 0.0), (RequestStage.IDLE, 0.0), (RequestStage.ANSWERING, _PATIENCE))


def oldest_of_most(waiting: Iterable[ClientConnection]) -> ClientConnection | None:
    """Return the oldest connection of the source that has the most."""
    candidates = list(waiting)
    count_by_source = Counter(connection.source for connection in candidates)
    return min(candidates, key=lambda c: (-count_by_source[c.source], c.since), default=None)


class Listener:
    """Serves connections until closed: `serve` is called for each, in a separate thread.

    With `context` connections use TLS; while it returns None they are closed at once.
    """

    def __init__(
        self,
        address: Address,
        serve: Callable[[ClientConnection], None],
        limits: Limits,
        *,
        context: Callable[[], ssl.SSLContext | None] | None = None,
        name: str = "http",
    ) -> None:
        """Listen. Raises OSError when the address cannot be bound."""
        self._serve, self._limits, self._context, self._name = serve, limits, context, name
        self._lock = threading.Lock()
        self._connections: set[ClientConnection] = set()
        self._threads = 0  # including those of ended connections
        self._listening = bound(address)
        self._path = address if isinstance(address, Path) else None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = threading.Event()
        self._thread = Supervised(self._run, until=self._closing, name=name)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port, also if 0 (any) was requested; 0 for a Unix socket."""
        name = self._listening.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    @property
    def alive(self) -> bool:
        """Whether the listener's thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop listening; requests in progress end with the process."""
        self._closing.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._listening.close()
        os.close(self._wake)
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        with self._lock:
            waiting = [c for c in self._connections if c.stage in (RequestStage.ASKING, RequestStage.IDLE)]
        for connection in waiting:
            connection.end()

    # --- the listener's thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._closing.is_set():
            poll.poll(_POLL * 1000 if self._connections else None)
            if not self._closing.is_set():
                self._end_late()
                self._accept()

    def _end_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [connection for connection in self._connections if now >= connection.deadline]
        for connection in late:
            log.debug("%s: %s: took too long (%s)", self._name, connection.source, connection.stage)
            connection.end()

    def _accept(self) -> None:
        try:
            raw, peer = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # out of file descriptors or memory: pause
            log.warning("%s: cannot accept a connection: %s", self._name, error)
            self._make_room(always=True)
            time.sleep(_POLL)
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
            connection = ClientConnection(
                stream=raw,
                handle=raw.dup(),
                source=client_source(peer),
                since=now,
                deadline=now + self._limits.ask,
                limits=self._limits,
                on_large_request=self._limit_bytes,
            )
            with self._lock:
                self._connections.add(connection)
                self._threads += 1
            threading.Thread(
                target=self._work, args=(connection,), name=f"{self._name}-client", daemon=True
            ).start()
        except (OSError, RuntimeError) as error:  # RuntimeError: the system gives no more threads
            log.warning("%s: cannot serve a connection: %s", self._name, error)
            raw.close()
            if connection is not None:
                self._forget(connection)

    def _make_room(self, *, always: bool = False) -> bool:
        """End a connection if there is no slot; return whether there is a slot now."""
        with self._lock:
            if len(self._connections) < self._limits.slots and not always:
                return True
            now = time.monotonic()
            for stage, least in _GIVING_WAY:
                victim = oldest_of_most(
                    c for c in self._connections if c.stage is stage and now - c.since >= least
                )
                if victim is not None:
                    self._connections.discard(victim)
                    victim.end()
                    return self._threads < 2 * self._limits.slots
        return False

    # --- the connections' threads -------------------------------------------------------------------------

    def _work(self, connection: ClientConnection) -> None:
        _, error = attempt(lambda: self._handle(connection))
        self._forget(connection)
        if isinstance(error, OSError):  # the client disconnected: no error of the server
            log.debug("%s: a connection from %s broke: %s", self._name, connection.source, error)
        elif error is not None:
            where = connection.source
            log.error("%s: a request from %s failed, which is a bug", self._name, where, exc_info=error)

    def _handle(self, connection: ClientConnection) -> None:
        if self._context is not None:
            context = self._context()
            if context is None:
                return
            connection.stream = context.wrap_socket(connection.stream, server_side=True)
        self._serve(connection)

    def _forget(self, connection: ClientConnection) -> None:
        with suppress(OSError):
            connection.stream.close()
        with self._lock:
            self._connections.discard(connection)
            self._threads -= 1
            connection.handle.close()

    def _limit_bytes(self) -> None:
        """Above the limit of bytes, end the largest request of the source with the most bytes."""
        with self._lock:
            receiving = [c for c in self._connections if c.stage is RequestStage.ASKING]
            if sum(len(c.received) for c in self._connections) <= self._limits.request_bytes:
                return
            bytes_by_source: Counter[str] = Counter()
            for connection in receiving:
                bytes_by_source[connection.source] += len(connection.received)
            victim = max(receiving, key=lambda c: (bytes_by_source[c.source], len(c.received)), default=None)
            if victim is not None:
                self._connections.discard(victim)
                victim.end()
