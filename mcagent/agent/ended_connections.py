"""Deletes connections to Services that have lost their reason: the export, the import or the endpoint is gone.

On gateways, flows find them by their packets, which they drop (`flows.pipeline.steps.service`), so the table is
not searched, and connections whose reason ended while the agent was down are found, too. On the Nodes of clients,
the kernel has translated the packets before the bridge gets them: there the table is walked once for all endpoints
of imported Services that are gone, and once at the start. Owns the threads that delete.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from itertools import islice

from mcagent.model.backoff import Backoff
from mcagent.model.dataplane.conntrack import OriginalTuple
from mcagent.model.errors import BackendError
from mcagent.model.net import Address
from mcagent.model.node_state import ImportedPort
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

Socket = tuple[Address, int]  # an endpoint
Endpoints = Mapping[ImportedPort, frozenset[Socket]]
IsEnded = Callable[[ImportedPort, Socket], bool]

DELAY = 0.5  # seconds: the endpoints of a rollout are deleted together
MOST = 1000  # connections that wait, packets of others come again; also ended endpoints that wait for a retry
RETRIES = Backoff(first=1.0, most=60.0, jitter=0.0)  # after a failed walk over the table


class EndedConnections(BackgroundLoop):
    """Connections that are to be deleted. `start`, then `stop`."""

    def __init__(self, delete: Callable[[OriginalTuple], None]) -> None:
        """`delete` deletes a connection of zone SERVICE, or raises BackendError."""
        super().__init__(self._delete_all, name="ended-connections")
        self._delete = delete
        self._lock = threading.Lock()
        self._waiting: dict[OriginalTuple, None] = {}

    def add(self, connection: OriginalTuple) -> None:
        """Let a connection be deleted; called by the thread that reads packets from the bridge."""
        with self._lock:
            if len(self._waiting) < MOST:
                self._waiting[connection] = None
        self.wake()

    def _delete_all(self) -> float:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            try:
                self._delete(connection)
            except BackendError as error:
                # Its next packets were already on their way when it was deleted; else they come again.
                log.debug("%s: %s", connection, error)
        return math.inf


class EndedImports(BackgroundLoop):
    """Connections of this Node's clients to endpoints that imported Services had. `start`, then `stop`."""

    def __init__(self, delete: Callable[[IsEnded], int]) -> None:
        """`delete` deletes the translated connections for which its argument is true, or raises BackendError."""
        super().__init__(self._delete_ended, name="ended-imports", delay=DELAY)
        self._delete = delete
        self._lock = threading.Lock()
        self._current: Endpoints | None = None  # None: not known yet
        self._ended: set[tuple[ImportedPort, Socket]] = set()
        self._checked = False  # connections of the time before this process
        self._failures = 0  # failed walks in a row

    def update(self, endpoints: Endpoints) -> None:
        """Take the endpoints of all imported Services; the same object while they are equal."""
        with self._lock:
            previous, self._current = self._current, endpoints
            if previous is endpoints:
                return
            self._ended |= ended_endpoints(previous or {}, endpoints)
            if not self._ended and (self._checked or not endpoints):
                return
        self.wake()

    def _delete_ended(self) -> float:
        with self._lock:
            endpoints, ended, all_others = self._current or {}, self._ended, not self._checked
            if not ended and not (all_others and endpoints):
                return math.inf
            self._ended, self._checked = set(), True

        def is_ended(port: ImportedPort, endpoint: Socket) -> bool:
            if endpoint in endpoints.get(port, ()):
                return False
            return (port, endpoint) in ended or (all_others and port in endpoints)

        try:
            if number := self._delete(is_ended):
                log.info("deleted %d connections to endpoints that imported Services no longer have", number)
        except BackendError as error:
            with self._lock:
                self._ended = set(islice(self._ended | ended, MOST))
                self._checked = False  # finds those of the other endpoints, except of Services that are gone
            self._failures += 1
            delay = RETRIES.delay(self._failures)
            log.warning("connections to endpoints that are gone stay for another %.0f s: %s", delay, error)
            return delay
        self._failures = 0
        return math.inf


def ended_endpoints(previous: Endpoints, current: Endpoints) -> set[tuple[ImportedPort, Socket]]:
    """Return the endpoints that were listed before, and are not now."""
    return {
        (port, socket)
        for port, sockets in previous.items()
        if sockets is not current.get(port)
        for socket in sockets - current.get(port, frozenset())
    }
