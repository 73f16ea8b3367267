"""Gateways that the API has no more, but that stay until all peers have moved.

Knows no clock: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcagent.core.local_cluster.gateways import wanted_gateways
from mcagent.model.config import Config
from mcagent.model.objects import Gateway, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingering:
    """Gateways that the API has no more, each with the time when it goes.

    Peers learn of it one after the other: until all have moved, a gateway that is taken away goes on serving what
    still comes, and the Nodes of its cluster go on taking what it sends.
    """

    known: tuple[Gateway, ...] = ()  # what the API asked for last
    leaving: tuple[Gateway, ...] = ()
    until: Mapping[str, float] | None = None  # by Node name

    def at(self, snapshot: Snapshot, config: Config, now: float, timeout: float) -> Lingering:
        """Return what lingers at the time `now` (seconds of any clock that never goes back).

        A gateway that is no more in `snapshot` lingers for `timeout` seconds from when that is first seen.
        """
        wanted = wanted_gateways(snapshot.gateways, snapshot.nodes, config)
        names = {gateway.meta.name for gateway in wanted}
        until = self.until or {}
        leaving = {g.meta.name: g for g in self.leaving if until[g.meta.name] > now}
        deadlines = {name: until[name] for name in leaving}
        for gateway in self.known:
            name = gateway.meta.name
            if name not in until and name in snapshot.nodes and timeout > 0:
                leaving[name], deadlines[name] = gateway, now + timeout
        kept = tuple(gateway for name, gateway in sorted(leaving.items()) if name not in names)
        if kept == self.leaving:
            kept = self.leaving
        return Lingering(known=wanted, leaving=kept, until={g.meta.name: deadlines[g.meta.name] for g in kept})

    def without(self, *names: str) -> Lingering:
        """Return the same without these Nodes' gateways: they have nothing to do any more."""
        left = tuple(g for g in self.leaving if g.meta.name not in names)
        until = self.until or {}
        return replace(self, leaving=left, until={g.meta.name: until[g.meta.name] for g in left})

    @property
    def wakes(self) -> float | None:
        """When the next one goes; None when none is leaving."""
        return min((self.until or {}).values(), default=None)

    def put_into(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with what lingers; the very same where that is nothing new."""
        return snapshot if snapshot.leaving == self.leaving else replace(snapshot, leaving=self.leaving)
