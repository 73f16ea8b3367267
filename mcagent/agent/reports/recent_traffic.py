"""What the tunnels of this Node carried in the last seconds, by readings of their counters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from mcagent.agent.reports.link_reader import SPAN
from mcagent.model.dataplane.resources import PortStatistics
from mcagent.observe.gateways import TunnelCounters

Counters = Mapping[str, Mapping[str, int]]


class RecentTraffic:
    """Calling it returns what each tunnel has counted in the last one or two `SPAN`s.

    The loop calls `sample` on every turn; other threads may call the object. A tunnel that was created meanwhile
    counts from 0.
    """

    def __init__(
        self, ports: Callable[[], Mapping[str, PortStatistics]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ports, self._clock = ports, clock
        self._samples: tuple[tuple[float, Counters], ...] = ()  # two at most, the older one first
        self._sampled_at = -math.inf

    def sample(self) -> None:
        """Read the counters if the last reading is a `SPAN` old."""
        now = self._clock()
        if now - self._sampled_at >= SPAN:
            self._sampled_at, last = now, self._samples[-1:]
            if counters := self._read() or (last[0][1] if last else {}):  # empty: they could not be read
                self._samples = (*last, (now, counters))

    def __call__(self) -> TunnelCounters:
        """Return the increase of each counter; nothing before a `SPAN` has passed."""
        samples, now = self._samples, self._clock()
        if not samples or now - samples[0][0] < SPAN:
            return {}
        before = samples[0][1]
        return {name: _increase(before.get(name, {}), counters) for name, counters in self._read().items()}

    def _read(self) -> Counters:
        return {name: port.counters for name, port in self._ports().items()}


def _increase(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return the increase of each counter; one that is less than before has begun anew."""
    return {name: count - was if count >= (was := before.get(name, 0)) else count for name, count in now.items()}
