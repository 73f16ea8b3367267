"""The page /connections: open connections that end when this gateway hands over, for `mcagent drain`."""

from __future__ import annotations

import time
from collections.abc import Callable

from flows.pipeline.registers import ZONE_SNAT
from mcagent.api.status import TranslatedConnections
from mcagent.dataplane.connection_table import open_connections
from mcagent.http.server import Page
from mcagent.model.errors import BackendError
from mcagent.model.node_state import NodeRole
from mcagent.observe.report import Report
from mcagent.trace.pages import RateLimit, VswitchdControl, json_page

PER_SECOND = 4.0  # each request walks the table of connections
_BURST = 8.0


class ConnectionsPage:
    """The page /connections."""

    def __init__(
        self, switch: VswitchdControl, report: Callable[[], Report], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._switch, self._report = switch, report
        self._limit = RateLimit(PER_SECOND, _BURST, clock)

    def __call__(self) -> Page:
        """Return the number as JSON; status 429 if asked too often, 503 if Open vSwitch does not answer."""
        if not self._limit.take():
            return Page(body=f"more than {PER_SECOND:g} requests a second: ask again\n", status=429)
        try:
            return json_page(TranslatedConnections(translated=self._translated()))
        except BackendError as error:
            return Page(body=f"{error}\n", status=503)

    def _translated(self) -> int:
        report = self._report()
        datapath = report.datapath
        if report.desired is None or datapath is None:
            raise BackendError("openflow", "count", "connections", "the agent has not configured the bridge yet")
        if report.desired.state.role is not NodeRole.GATEWAY:
            return 0
        return open_connections(self._switch.call, datapath, self._switch.config.ct_zone_base + ZONE_SNAT.offset)
