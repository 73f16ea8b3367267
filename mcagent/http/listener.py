"""A listening socket that slow or many connections cannot block: a thread for each, with deadlines and slots.

Owns sockets, threads and the limits in time, number and bytes. When all slots are taken, the source with the most
connections loses the oldest of those that have not sent a whole request: the connections of one Pod push each
other out, and nobody else's. Knows nothing of what is served.
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

from mcagent.http.connection import Connection, Limits, Stage
from mcagent.http.listening import Address, bound, client_source
from mcagent.supervised import Supervised, attempt

log = logging.getLogger(__name__)

_LOOK = 0.25  # seconds between two looks at deadlines
_PATIENCE = 1.0  # seconds for which a client may be slow to take its answer while others wait for a slot


def oldest_of_most(waiting: Iterable[Connection]) -> Connection | None:
    """Return the oldest connection of the source that has the most."""
    found = list(waiting)
    held = Counter(one.source for one in found)
    return min(found, key=lambda one: (-held[one.source], one.since), default=None)


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
            log.warning("%s: cannot accept a connection: %s", self._name, error)
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
                source=client_source(peer),
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
            log.warning("%s: cannot serve a connection: %s", self._name, error)
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
            log.debug("%s: a connection from %s broke: %s", self._name, connection.source, error)
        elif error is not None:
            where = connection.source
            log.error("%s: a request from %s failed, which is a bug", self._name, where, exc_info=error)

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
