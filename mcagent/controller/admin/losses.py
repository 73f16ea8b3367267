"""What users lose by a command that removes something: sentences with counts. Only reads."""

from __future__ import annotations

from mcagent.controller.admin import cluster_sets
from mcagent.controller.admin.cluster import Cluster
from mcagent.controller.admission.identity import bound_cluster
from mcagent.controller.contract.names import ExportKind
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import (
    ApiServiceExport,
    ApiServiceImport,
    ClusterSet,
    MemberClusterAnnounce,
    ResourceExport,
)


def of_leaving(cluster: Cluster) -> list[str]:
    """Return what ends when this member leaves; [] if it shares no Service. Raises SourceError."""
    if not cluster.stored(ClusterSet):
        return []
    exports = len(cluster.stored(ApiServiceExport))
    imports = len(cluster.stored(ApiServiceImport))
    if not exports and not imports:
        return []
    return [
        f"Other clusters lose {_services(exports)} of this cluster, and it loses {_services(imports)} of others."
    ]


def of_destroying(cluster: Cluster, namespace: str, cluster_set: str) -> list[str]:
    """Return what ends with a leader's ClusterSet; [] if it has no members. Raises SourceError."""
    members = cluster_sets.members(cluster, namespace, cluster_set)
    if not members:
        return []
    exports = sum(export.spec.kind == ExportKind.SERVICE for export in cluster.stored(ResourceExport, namespace))
    consequence = f"Their tokens and exports, {_services(exports)}, go with it."
    return [f"ClusterSet {cluster_set} has members: {', '.join(members)}. {consequence}"]


def of_token(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """Return what a cluster loses with its token; [] if it is no member now. Raises SourceError."""
    account = cluster.read(ServiceAccount, namespace, name)
    cluster_id = bound_cluster(account) if account is not None else ""
    announces = cluster.stored(MemberClusterAnnounce, namespace)
    if not cluster_id or cluster_id not in {announce.cluster_id for announce in announces}:
        return []
    specs = [export.spec for export in cluster.stored(ResourceExport, namespace)]
    own = sum((spec.cluster_id, spec.kind) == (cluster_id, ExportKind.SERVICE) for spec in specs)
    return [f"Cluster {cluster_id}, a member with {_services(own)} exported, has no access without this token."]


def of_uninstalling(cluster: Cluster, agents: int, *, leaves: bool, crds: bool) -> list[str]:
    """Return what ends with an installation that has so many agents to remove. Raises SourceError.

    `leaves`: whether this member leaves its ClusterSet.
    """
    return [
        *([f"{agents} Nodes lose their connections to other clusters."] if agents else []),
        *(of_leaving(cluster) if agents or leaves else []),
        *(["The CRDs go with all objects stored under them."] if crds else []),
    ]


def _services(count: int) -> str:
    return "1 Service" if count == 1 else f"{count} Services"
