"""Reads how well this gateway reaches other clusters: liveness, and traffic since the last look."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from mcagent.model.links import Link, settled
from mcagent.model.resources import PortStatistics
from mcagent.observe.gateways import LiveReport
from mcagent.observe.links import bytes_by_cluster, links_of


class LinkReader:
    """Calling it returns the links now. Keeps the counters of the last look, and the rates that it told."""

    def __init__(
        self,
        live: Callable[[], LiveReport],
        ports: Callable[[], Mapping[str, PortStatistics]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._ports, self._clock = live, ports, clock
        self._counted: dict[str, int] = {}
        self._at = clock()
        self._rates: dict[str, int] = {}

    def __call__(self) -> tuple[Link, ...]:
        """Return a link for each cluster that there are tunnels to, by name."""
        live, now = self._live(), self._clock()
        if now - self._at >= SPAN:
            carried = bytes_by_cluster(live, {name: port.counters for name, port in self._ports().items()})
            self._rates = settled(self._rates, _rates(self._counted, carried, now - self._at))
            self._counted, self._at = carried, now
        return links_of(live, self._rates)


SPAN = 10.0  # seconds that a rate is of, at least: Open vSwitch counts every five


def _rates(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> dict[str, int]:
    """Return bytes per second. A tunnel that was made anew counts from 0: less than before is no traffic."""
    return {
        cluster: max(0, round((carried - before.get(cluster, carried)) / seconds))
        for cluster, carried in now.items()
    }
