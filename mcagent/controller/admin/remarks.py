"""What `mcagent get` prints below the tables of ClusterSets and Gateways: what other objects say about them."""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.admin.cluster import Cluster
from mcagent.controller.contract import names
from mcagent.controller.contract.health import HEALTHY
from mcagent.controller.contract.pod_ranges import configured_pod_cidrs, read_pod_ranges
from mcagent.kube.source import RawObject
from mcagent.model.api.base import condition_of
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiGateway, ClusterSet, MemberClusterAnnounce, ResourceExport
from mcagent.model.parsing import links
from mcagent.model.parsing.decode import read_as
from mcagent.model.parsing.field import listed, printable
from mcagent.model.parsing.links import ClusterLink

_SHOWN = 5  # Nodes that are named


def unreachable(cluster: Cluster, cluster_sets: Iterable[RawObject]) -> list[str]:
    """Return a line for each cluster that another one does not reach. Raises SourceError."""
    lines = []
    for cluster_set in (read_as(ClusterSet, obj) for obj in cluster_sets):
        if condition_of(cluster_set.status.conditions, HEALTHY).type:
            continue  # the table has it; controllers of 0.1.0 write no such condition
        namespace = cluster_set.namespace
        if cluster_set.is_leaders:
            for announce in cluster.typed(MemberClusterAnnounce, namespace):
                reported = links.read_text(announce.annotation(links.ANNOTATION) or "")
                lines += unreachable_lines(cluster_set.name, announce.cluster_id, reported)
        else:
            gateways = cluster.typed(ApiGateway, namespace)
            reported = links.merged(links.read(gateway.status.links) for gateway in gateways)
            lines += unreachable_lines(cluster_set.name, cluster_set.spec.cluster_id, reported)
    return lines


def unreachable_lines(cluster_set: str, source: str, reported: Iterable[ClusterLink]) -> list[str]:
    """Return a line for each link of cluster `source` without a live tunnel."""
    return [
        f"WARNING: ClusterSet {cluster_set}: {printable(source)} has no live tunnel to {link.cluster} since "
        f"{link.since or 'an unknown time'}: {link.why or 'no reason is given'}. "
        "Next: mcagent doctor, on its gateways"
        for link in reported
        if link.tunnels and not link.live
    ]


def waiting_gateways(cluster: Cluster, _gateways: Iterable[RawObject]) -> list[str]:
    """Return a line on the annotated Nodes that have no Gateway in any namespace. Raises SourceError."""
    serving = {gateway.name for gateway in cluster.typed(ApiGateway)}
    annotated = {node.name for node in cluster.typed(ApiNode) if node.annotation(names.GATEWAY_ANNOTATION)}
    if not serving or not (waiting := sorted(annotated - serving)):
        return []
    reason = (
        "there are maxActiveGateways Gateways already, or kubectl describe node NODE has an Event with the reason"
    )
    return [f"annotated and waiting: {listed(waiting, _SHOWN)}. {reason}"]


def configured_ranges(cluster: Cluster, cluster_sets: Iterable[RawObject]) -> list[str]:
    """Return a line for each virtual Pod CIDR that a member has configured itself. Raises SourceError."""
    lines = []
    for cluster_set in (read_as(ClusterSet, obj) for obj in cluster_sets):
        if not cluster_set.is_leaders:
            continue
        assigned = {str(pair.virtual) for pods in read_pod_ranges(cluster_set).values() for pair in pods.pairs}
        lines += [
            f"ClusterSet {cluster_set.name}: virtual Pod CIDR {printable(virtual)} for {real} of "
            f"{printable(export.spec.cluster_id)}, configured by that cluster"
            for export in cluster.typed(ResourceExport, cluster_set.namespace)
            if export.spec.kind == names.ExportKind.CLUSTER_INFO
            for virtual, real in configured_pod_cidrs(export).items()
            if virtual not in assigned
        ]
    return lines
