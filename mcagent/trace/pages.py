"""The page /trace: what this Node's flows would do with a packet. Validates the query and limits its rate."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mcagent.api.codec import CamelRecord, Record, to_json
from mcagent.api.trace import NodeTrace
from mcagent.dataplane.openflow.unixctl import call
from mcagent.http.server import Page
from mcagent.model.config import Config
from mcagent.model.errors import BackendError
from mcagent.model.plan import Desired
from mcagent.trace.names import with_names
from mcagent.trace.ofproto import read
from mcagent.trace.probe import Probe, read_query

T = TypeVar("T")
PER_SECOND = 10.0
_BURST = 20.0


class RateLimit:
    """A token bucket: `per_second` requests, and bursts of `burst`. Thread-safe."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._lock = threading.Lock()
        self._left, self._at = burst, clock()

    def take(self) -> bool:
        """Take a token; return whether there was one."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class VswitchdControl:
    """Commands to ovs-vswitchd by its control socket, in the directory of the database's socket `ovsdb`."""

    def __init__(self, ovsdb: str, config: Config) -> None:
        self.config = config
        self._directory = Path(ovsdb.removeprefix("unix:")).parent

    def trace(self, probe: Probe) -> NodeTrace:
        """Run ofproto/trace for a packet on our bridge. Raises BackendError."""
        bridge = self.config.bridge
        return read(self.call("ofproto/trace", bridge, *probe.arguments()), bridge, probe)

    def call(self, command: str, *arguments: str) -> str:
        """Run a command of ovs-appctl(8) and return its output. Raises BackendError."""
        return call(self._directory, command, *arguments)


class TracePage:
    """The page /trace. `desired` is the desired state behind the flows, None before the first pass."""

    def __init__(
        self,
        switch: VswitchdControl,
        desired: Callable[[], Desired | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._switch, self._desired = switch, desired
        self._limit = RateLimit(PER_SECOND, _BURST, clock)

    def __call__(self, query: str) -> Page:
        """Return the trace as JSON."""
        busy = f"more than {PER_SECOND:g} traces a second: ask again"
        return answer(lambda: read_query(query), self._trace, self._limit, busy)

    def _trace(self, probe: Probe) -> Page:
        return json_page(with_names(self._switch.trace(probe), probe, self._desired(), self._switch.config))


def answer(read: Callable[[], T], respond: Callable[[T], Page], limit: RateLimit, busy: str) -> Page:
    """Answer a query: status 400 (ValueError of `read`), 429 (text `busy`), or 503 (BackendError of `respond`)."""
    try:
        request = read()
    except ValueError as error:
        return Page(body=f"{error}\n", status=400)
    if not limit.take():
        return Page(body=f"{busy}\n", status=429)
    try:
        return respond(request)
    except BackendError as error:
        return Page(body=f"{error}\n", status=503)


def json_page(value: Record | CamelRecord) -> Page:
    """Return a value of the API as a page of JSON."""
    return Page(body=json.dumps(to_json(value)) + "\n", content_type="application/json")
