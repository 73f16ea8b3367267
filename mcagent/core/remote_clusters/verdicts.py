"""The clusters whose gateways run Antrea, remembered by cluster: tunnels come and go when a gateway moves.

Two sources: BFD of this Node's own tunnels, and what gateways of this cluster publish in the status of their
Gateway (`antreaClusters`). The own measurement precedes. A published verdict covers a new gateway of this
cluster, and an agent that was restarted. What a cluster publishes of itself precedes both (`implementation`).
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import Gateway

_Value = TypeVar("_Value")
MAX_ABSENT = 256  # remembered clusters without tunnels, and gateways without objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The verdicts on remote clusters.

    `measured`: whether a cluster runs Antrea, as BFD of this Node last showed. `published`: by gateway of this
    cluster, the clusters that it calls Antrea's; also of gateways that are gone, since their successor needs it.
    """

    measured: Mapping[str, bool] = field(default_factory=dict)
    published: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def update(
        self,
        ports: Iterable[TunnelPort],
        gateways: Iterable[Gateway],
        *,
        seen: frozenset[str],
        unanswered: frozenset[str],
    ) -> Verdicts:
        """Return the next verdicts.

        `seen`: the ports whose peer has ever answered BFD; `unanswered`: those whose peer did not although it
        had the time to. A cluster whose tunnels are in neither keeps its verdict.
        """
        names_by_cluster: dict[str, set[str]] = {}
        for port in ports:
            if port.peer_kind is PeerKind.REMOTE:
                names_by_cluster.setdefault(port.peer, set()).add(port.name)
        measured = _limited(self.measured, names_by_cluster)
        for cluster, names in names_by_cluster.items():
            if names & seen:
                measured[cluster] = False
            elif names <= unanswered:
                measured[cluster] = True
        present = {gateway.meta.name: gateway.antrea_clusters for gateway in gateways}
        return Verdicts(measured=measured, published=_limited(self.published, present) | present)

    @property
    def antrea(self) -> frozenset[str]:
        """The clusters that run Antrea, unless they publish that they do not."""
        heard = {cluster for clusters in self.published.values() for cluster in clusters}
        return frozenset(heard - self.measured.keys()) | {name for name, antrea in self.measured.items() if antrea}

    def to_publish(self, gateway: str, clusters: Mapping[str, AcceptedCluster]) -> frozenset[str]:
        """Return the clusters that run Antrea as this gateway, `gateway`, measured, or published before a restart.

        `clusters`: the accepted ones; those that publish that they run mcagent are left out.
        """
        own = frozenset(self.published.get(gateway, ())) - self.measured.keys()
        antrea = own | {name for name, is_antrea in self.measured.items() if is_antrea}
        return antrea - {name for name in antrea if name in clusters and not clusters[name].antrea}


def _limited(before: Mapping[str, _Value], present: Iterable[str]) -> dict[str, _Value]:
    """Return a copy without all but `MAX_ABSENT` of the names that are not present."""
    absent = sorted(before.keys() - set(present))[MAX_ABSENT:]
    return {name: value for name, value in before.items() if name not in absent}
