"""Deletes connections to Services that have lost their reason: the export or the endpoint is gone.

Flows find them by their packets, which they drop (`flows.pipeline.steps.service`), so the table is not searched,
and connections whose reason ended while the agent was down are found, too. Owns the thread that deletes.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from mcagent.model.dataplane.conntrack import OriginalTuple
from mcagent.model.errors import BackendError
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

MOST = 1000  # connections that wait; packets of others come again


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
