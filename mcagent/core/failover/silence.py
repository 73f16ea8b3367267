"""Silent peers: packets are sent to them, and none has ever arrived from them.

A peer that speaks no BFD (Antrea's gateways) is used without BFD, and so is one behind a firewall: only the
counters of its tunnel tell them apart. The counters are read while a peer has not answered BFD. BFD itself sends a
packet per second (lib/bfd.c), so a silent peer is detected without other traffic. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcagent.model.dataplane.resources import PortStatistics

POLL_INTERVAL = 10.0  # seconds between readings of the counters
ENOUGH = 10  # packets sent to a peer before it can count as silent
UNANSWERED = 5  # packets of traffic to a cluster, as retransmissions of one request, before its silence is a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The ports with received packets (`heard`), the silent ports, and the time of the next reading."""

    heard: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    wake: float = math.inf

    def update(
        self, unanswered: frozenset[str], counters: Callable[[], Mapping[str, PortStatistics]], now: float
    ) -> Silence:
        """Return the next state at the time `now`, in seconds. `unanswered`: ports whose peer never answered BFD.

        `counters` reads the counters of all ports; it is called only if a reading is due. Its exceptions
        propagate.
        """
        waiting = unanswered - self.heard
        if not waiting:
            return Silence(heard=self.heard & unanswered)
        if now < self.wake:
            # An unchanged set stays the same object, so that a pass does not compare 1,000 peers.
            silent = self.silent if self.silent <= waiting else self.silent & waiting
            return Silence(heard=self.heard, silent=silent, wake=min(self.wake, now + POLL_INTERVAL))
        statistics = counters()
        packets = {name: statistics[name].counters for name in waiting if name in statistics}
        heard = {name for name, counts in packets.items() if counts.get("rx_packets")}
        sent = {name for name, counts in packets.items() if counts.get("tx_packets", 0) >= ENOUGH}
        silent = self.silent if self.silent == sent - heard else frozenset(sent - heard)
        return Silence(heard=self.heard | heard, silent=silent, wake=now + POLL_INTERVAL)
