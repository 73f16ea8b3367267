"""Deletes the datapath flows of ovs-vswitchd a second after policies changed, on the userspace datapath.

There, Open vSwitch 3.1 may keep a flow with the actions of a policy that is gone, or without those of a new one,
for as long as packets match it (docs/failover.md, "Flows that overlap on the userspace datapath"). Flows
are created again by the next packets. Owns the thread that deletes.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable

from flows.pipeline.steps.policy import TABLE
from mcagent.model.backoff import Backoff
from mcagent.model.dataplane.resources import FlowEntry
from mcagent.model.errors import BackendError
from mcagent.model.plan import Step
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

DELAY = 1.0  # seconds in which Open vSwitch has examined all flows: it does so after each change, and every 0.5 s
PAUSE = 5.0  # seconds between two purges at least: each costs the first packets of all flows an upcall
RETRIES = Backoff(first=1.0, most=60.0, jitter=0.0)
COMMAND = "revalidator/purge"  # of ovs-vswitchd(8); it concerns all bridges of the daemon
_TABLES = frozenset(table.number for table in TABLE.values())


def changes_policies(steps: Iterable[Step]) -> bool:
    """Return whether steps change flows of the rules of policies."""
    return any(isinstance(step.resource, FlowEntry) and step.resource.table in _TABLES for step in steps)


class FlowPurge(BackgroundLoop):
    """Purges datapath flows after changes of policies. `start`, then `stop`."""

    def __init__(self, purge: Callable[[], object]) -> None:
        """`purge` deletes all datapath flows, or raises BackendError."""
        super().__init__(self._purge_once, name="flow-purge", delay=DELAY)
        self._purge = purge
        self._due = threading.Event()
        self._failures = 0  # in a row

    def policies_changed(self) -> None:
        """Let flows be purged after a moment; called by the thread that has changed policies."""
        self._due.set()
        self.wake()

    def _purge_once(self) -> float:
        if not self._due.is_set():
            return math.inf
        self._due.clear()
        try:
            self._purge()
        except BackendError as error:
            self._due.set()
            self._failures += 1
            delay = RETRIES.delay(self._failures)
            log.warning("flows may keep the actions of earlier policies for another %.0f s: %s", delay, error)
            return delay
        self._failures = 0
        self.pause(PAUSE)
        return math.inf
