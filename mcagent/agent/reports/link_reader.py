"""Reads this gateway's links to other clusters: liveness, traffic per second, and which cluster answers probes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from mcagent.model.dataplane.resources import PortStatistics
from mcagent.model.parsing.links import ClusterLink, settled
from mcagent.observe.cluster_links import Answers, bytes_by_cluster, links_of
from mcagent.observe.gateways import LiveReport


class LinkReader:
    """Calling it returns the present links. Keeps the last counters and rates."""

    def __init__(
        self,
        live: Callable[[], LiveReport],
        ports: Callable[[], Mapping[str, PortStatistics]],
        answers: Callable[[LiveReport], Answers] = lambda _: {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._ports, self._answers, self._clock = live, ports, answers, clock
        self._counters: dict[str, int] = {}
        self._at = clock()
        self._rates: dict[str, int] = {}

    def __call__(self) -> tuple[ClusterLink, ...]:
        """Return a link for each cluster with tunnels, by name."""
        live, now = self._live(), self._clock()
        if now - self._at >= SPAN:
            carried = bytes_by_cluster(live, {name: port.counters for name, port in self._ports().items()})
            self._rates = settled(self._rates, _rates(self._counters, carried, now - self._at))
            self._counters, self._at = carried, now
        return links_of(live, self._rates, self._answers(live))


SPAN = 10.0  # seconds: least period of a rate; Open vSwitch updates its counters every 5 s


def _rates(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> dict[str, int]:
    """Return bytes per second. A tunnel that was created again counts from 0: less than before is no traffic."""
    return {
        cluster: max(0, round((carried - before.get(cluster, carried)) / seconds))
        for cluster, carried in now.items()
    }
