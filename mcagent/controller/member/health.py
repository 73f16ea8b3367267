"""What this cluster's objects say about its health, as `mcagent.core.health` reads it. Pure."""

from __future__ import annotations

from mcagent.controller.machinery.reconciler import ObjectChange, View
from mcagent.controller.member.networks.election import node_ready, relevant
from mcagent.core.health import SeenCluster, SeenGateway
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiClusterInfoImport, ApiGateway, ClusterSet
from mcagent.model.objects import Kind
from mcagent.model.parsing import links

KINDS = frozenset({Kind.GATEWAY, Kind.NODE, Kind.CLUSTER_INFO_IMPORT})


def seen_cluster(cluster_set: ClusterSet, view: View, *, away: str = "") -> SeenCluster:
    """Return what is observed in this cluster. `away`: why the leader does not answer, or ""."""
    ready = {node.name for node in view.list(ApiNode) if node_ready(node)}
    gateways = [seen_gateway(gateway, ready) for gateway in view.list(ApiGateway, namespace=view.namespace)]
    imports = view.list(ApiClusterInfoImport, namespace=view.namespace)
    return SeenCluster(
        cluster_id=cluster_set.spec.cluster_id,
        gateways=gateways,
        neighbours={item.spec.cluster_id: item.metadata.creation_timestamp for item in imports},
        since=cluster_set.metadata.creation_timestamp,
        away=away,
    )


def seen_gateway(gateway: ApiGateway, ready: set[str]) -> SeenGateway:
    """Return what is observed of a gateway. `ready`: the names of the Nodes that are Ready."""
    return SeenGateway(
        name=gateway.name,
        ready=gateway.name in ready,
        cluster_id=gateway.status.cluster_id,
        links=links.read(gateway.status.links),
        encryption_error=gateway.status.encryption_error,
    )


def changes_health(change: ObjectChange) -> bool:
    """Tell whether a change may alter the health of this cluster. Traffic of links does not."""
    match change.kind:
        case Kind.GATEWAY:
            return _states(change.old) != _states(change.new)
        case Kind.NODE:
            return relevant(change.old) != relevant(change.new)
    return change.kind is Kind.CLUSTER_INFO_IMPORT and (change.old is None or change.new is None)


def _states(gateway: ApiObject | None) -> object:
    if not isinstance(gateway, ApiGateway):
        return None
    status = gateway.status
    states = [
        (w.cluster, w.live, w.tunnels, w.one_way, w.silent, w.why, w.answers) for w in links.read(status.links)
    ]
    return status.cluster_id, status.encryption_error, states
