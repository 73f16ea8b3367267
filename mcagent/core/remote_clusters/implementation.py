"""What runs on another cluster's gateways, mcagent or Antrea, and what is done differently for Antrea's.

Antrea's gateways speak no BFD, answer only the first gateway of another cluster (`gatewayInfos[0]`) and send it
everything, and reject connections only towards its address (pkg/agent/openflow/multicluster.go). So connections to
such a cluster take the gateway's address, whatever Pod CIDRs say, and leave by this cluster's first gateway.

Decides from what the cluster publishes and what its gateways do. In doubt they are taken for ours: then nothing is
done differently, so no connection between clusters of ours ever ends because of a verdict. Knows no flows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mcagent.core.local_cluster.nodes import Standby
from mcagent.core.remote_clusters.settle import CheckedCluster
from mcagent.core.tunnels import Tunnel
from mcagent.model.node_state import AcceptedCluster, LocalGateway, NodeState
from mcagent.model.objects import ClusterInfoImport


def with_implementation(
    value: tuple[AcceptedCluster, CheckedCluster, tuple[Tunnel, ...] | None], unanswered: frozenset[str]
) -> AcceptedCluster:
    """Mark a cluster whose gateways run Antrea; return any other unchanged.

    `value`: the accepted cluster, what it publishes, and this Node's tunnels to its gateways (None on workers).
    `unanswered`: names of tunnels whose peer had time to answer BFD and never did.
    """
    cluster, checked, tunnels = value
    if not runs_antrea(checked.info, (tunnel.name for tunnel in tunnels or ()), unanswered):
        return cluster
    return replace(cluster, antrea=True, snat=True)


def runs_antrea(info: ClusterInfoImport, tunnels: Iterable[str], unanswered: frozenset[str]) -> bool:
    """Tell whether a cluster's gateways run Antrea.

    They are ours if the cluster says so or publishes what Antrea never does (several gateways, or a key of each),
    or if one of them has ever answered BFD.
    """
    if info.our_agents or len(info.gateway_ips) > 1 or info.gateway_wireguard:
        return False
    names = frozenset(tunnels)
    return bool(names) and names <= unanswered


def first_gateway(gateways: Iterable[LocalGateway]) -> str:
    """Return the Node of the gateway that this cluster publishes first, which Antrea answers; "" without any."""
    there = (gateway for gateway in gateways if gateway.standby != Standby.LEAVING)
    return min(((gateway.place, gateway.node) for gateway in there), default=(0, ""))[1]


def unneeded(state: NodeState, node: str) -> frozenset[str]:
    """Return the clusters that nothing is sent to by a gateway of this cluster, because it is not the first."""
    if first_gateway(state.gateways) == node:
        return frozenset()
    return frozenset(name for name, cluster in state.clusters.items() if cluster.antrea)
