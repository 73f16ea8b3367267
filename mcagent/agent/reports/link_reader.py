"""Reads this gateway's links to other clusters: liveness, traffic, round trip, answers to probes, refusals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.dataplane.resources import PortStatistics
from mcagent.model.net import Network
from mcagent.model.parsing.links import ClusterLink, settled
from mcagent.observe.cluster_links import Answers, bytes_by_cluster, links_of, round_trips_of
from mcagent.observe.gateways import LiveReport


class LinkReader:
    """Calling it returns the present links. Keeps the last counters, rates and round trips."""

    def __init__(
        self,
        live: Callable[[], LiveReport],
        ports: Callable[[], Mapping[str, PortStatistics]],
        answers: Callable[[LiveReport], Answers] = lambda _: {},
        refused: Callable[[], Mapping[str, tuple[Network, ...]]] = dict,
        *,
        probed: Callable[[], Mapping[str, ProbeState]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._ports, self._answers, self._refused = live, ports, answers, refused
        self._probed, self._clock = probed, clock
        self._counters: dict[str, int] = {}
        self._at = clock()
        self._rates: dict[str, int] = {}
        self._round_trips: dict[str, int] = {}  # microseconds

    def __call__(self) -> tuple[ClusterLink, ...]:
        """Return a link for each cluster with tunnels, by name."""
        live, now = self._live(), self._clock()
        # Without ports, they could not be read: the present values stay.
        if now - self._at >= SPAN and (ports := self._ports()):
            carried = bytes_by_cluster(live, {name: port.counters for name, port in ports.items()})
            self._rates = settled(self._rates, _rates(self._counters, carried, now - self._at))
            self._counters, self._at = carried, now
            seconds = round_trips_of(live, self._probed())
            micros = {cluster: max(1, round(1e6 * trip)) for cluster, trip in seconds.items()}
            self._round_trips = settled(self._round_trips, micros)
        return links_of(live, self._rates, self._answers(live), self._refused(), self._round_trips)


SPAN = 10.0  # seconds: least period of a rate; Open vSwitch updates its counters every 5 s


def _rates(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> dict[str, int]:
    """Return bytes per second. A tunnel that was created again counts from 0: less than before is no traffic."""
    return {
        cluster: max(0, round((carried - before.get(cluster, carried)) / seconds))
        for cluster, carried in now.items()
    }
