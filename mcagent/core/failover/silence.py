"""Which peers are silent: packets are sent to them, and nothing has ever come from there.

A peer that speaks no BFD (Antrea's gateways) is used without it, and so is one that a firewall hides: only the
counters of its tunnel tell them apart. They are asked for while there is a peer that has not answered BFD yet, and
BFD alone sends a packet each second (lib/bfd.c), so silence shows without traffic. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcagent.model.resources import PortStatistics

LOOK = 10.0  # seconds between looks at counters
ENOUGH = 10  # packets that a peer must have been sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What is known: ports from which something came, those from which nothing did, and when to look again."""

    heard: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    wake: float = math.inf

    def look(
        self, unanswered: frozenset[str], counters: Callable[[], Mapping[str, PortStatistics]], now: float
    ) -> Silence:
        """Return the next state at the time `now`, in seconds. `unanswered`: ports whose peer never answered BFD.

        `counters` is called when it is time; what it raises comes through.
        """
        waiting = unanswered - self.heard
        if not waiting:
            return Silence(heard=self.heard & unanswered)
        if now < self.wake:
            # The same object while nothing changes: 1,000 peers are not looked at in every pass.
            silent = self.silent if self.silent <= waiting else self.silent & waiting
            return Silence(heard=self.heard, silent=silent, wake=min(self.wake, now + LOOK))
        found = counters()
        packets = {name: found[name].counters for name in waiting if name in found}
        heard = {name for name, counted in packets.items() if counted.get("rx_packets")}
        sent = {name for name, counted in packets.items() if counted.get("tx_packets", 0) >= ENOUGH}
        silent = self.silent if self.silent == sent - heard else frozenset(sent - heard)
        return Silence(heard=self.heard | heard, silent=silent, wake=now + LOOK)
