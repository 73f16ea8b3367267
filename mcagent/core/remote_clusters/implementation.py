"""The implementation of a remote cluster's gateways, mcagent or Antrea, and its consequences.

Antrea's gateways speak no BFD, answer only the first gateway of another cluster (`gatewayInfos[0]`) and send it
all packets, and reject connections only towards its address (pkg/agent/openflow/multicluster.go). So connections
to such a cluster are SNATed to the gateway's address, even with disjoint Pod CIDRs, and leave through this
cluster's first gateway.

The implementation is detected from what the cluster publishes and from BFD. In doubt it is mcagent, the default,
so that a wrong result never breaks a connection between two clusters that run mcagent. Must not know flows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mcagent.core.local_cluster.nodes import Standby
from mcagent.core.remote_clusters.claims import CheckedCluster
from mcagent.core.remote_clusters.mapped import MappedSources
from mcagent.core.tunnels import Tunnel
from mcagent.model.node_state import AcceptedCluster, LocalGateway, NodeState
from mcagent.model.objects import ClusterInfoImport


def with_implementation(
    value: tuple[AcceptedCluster, CheckedCluster, MappedSources, tuple[Tunnel, ...] | None],
    unanswered: frozenset[str],
    antrea: frozenset[str],
) -> AcceptedCluster:
    """Add the mapped sources to a cluster, and mark it if its gateways run Antrea.

    `value`: the accepted cluster, its checked object, its mapped sources, and this Node's tunnels to its gateways
    (None on workers). `unanswered`: names of tunnels whose peer never answered BFD although it had the time to.
    `antrea`: clusters that ran Antrea before, or by another gateway of this cluster (`verdicts`).
    """
    cluster, checked, mapped, tunnels = value
    names = (tunnel.name for tunnel in tunnels or ())
    runs = runs_antrea(checked.info, names, unanswered, before=cluster.cluster_id in antrea)
    return replace(cluster, mapped=mapped, antrea=runs, snat=cluster.snat or runs)


def runs_antrea(
    info: ClusterInfoImport, tunnels: Iterable[str], unanswered: frozenset[str], *, before: bool = False
) -> bool:
    """Tell whether a cluster's gateways run Antrea.

    They run mcagent if the cluster says so, if it publishes what Antrea never does (several gateways, or a key per
    gateway), or if one of them has ever answered BFD. `before`: the cluster ran Antrea, and none
    of its present gateways has answered BFD; a new tunnel then needs no time to be judged.
    """
    if info.our_agents or len(info.gateway_ips) > 1 or info.gateway_wireguard:
        return False
    names = frozenset(tunnels)
    return bool(names) and (before or names <= unanswered)


def first_gateway(gateways: Iterable[LocalGateway]) -> str:
    """Return the Node of the gateway that this cluster publishes first; "" without gateways."""
    remaining = (gateway for gateway in gateways if gateway.standby != Standby.LEAVING)
    return min(((gateway.place, gateway.node) for gateway in remaining), default=(0, ""))[1]


def unused_clusters(state: NodeState, node: str) -> frozenset[str]:
    """Return the clusters to which gateway `node` sends nothing, because only the first gateway does."""
    if first_gateway(state.gateways) == node:
        return frozenset()
    return frozenset(name for name, cluster in state.clusters.items() if cluster.antrea)
