"""The health of other clusters as one Node sees it, for its pages, by `mcagent.core.health`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mcagent.core.health import HealthFinding, SeenCluster, SeenGateway, cluster_health, encryption_error
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.node_state import NodeRole, NodeState
from mcagent.model.parsing.links import ClusterLink
from mcagent.model.problem import Problem
from mcagent.observe.cluster_links import answers_of, links_of
from mcagent.observe.gateways import LiveReport
from mcagent.observe.wireguard import WireGuardReport

_ELSEWHERE = "no gateway of this cluster reaches it"


def node_health(
    node: str,
    state: NodeState | None,
    live: LiveReport,
    problems: Sequence[Problem],
    now: float,
    *,
    probed: Mapping[str, ProbeState] = MappingProxyType({}),
) -> tuple[HealthFinding, ...]:
    """Return what is wrong with the ways from a Node to other clusters. `now`: seconds since the epoch.

    A gateway has links to them; `probed`: the results of its probes by tunnel. Another Node knows only which
    clusters no gateway reaches.
    """
    if state is None or state.role is NodeRole.NONE:
        return ()
    links: Sequence[ClusterLink] = links_of(live, {}, answers_of(live, probed, None, WireGuardReport()))
    expected: dict[str, str] = {}
    if state.role is NodeRole.GATEWAY:
        own = next((gateway.gateway_ip for gateway in state.gateways if gateway.node == node), None)
        expected = {name: "" for name, cluster in state.clusters.items() if cluster.reached_from(own)}
    else:
        links = [ClusterLink(cluster=name, live=0, tunnels=1, why=_ELSEWHERE) for name in state.unreachable]
    name = f"Node {node}"
    gateway = SeenGateway(
        name=name, cluster_id=name, links=links, encryption_error=encryption_error(state.encryption, problems)
    )
    return cluster_health(SeenCluster(cluster_id=name, gateways=(gateway,), neighbours=expected), now).findings
