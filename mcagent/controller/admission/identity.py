"""Which member cluster a ServiceAccount stands for, and which cluster IDs cannot live together. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.raw import text_at
from mcagent.kube.source import RawObject


def bound_cluster(account: RawObject) -> str | None:
    """Return the cluster ID that a ServiceAccount is annotated with; None when it is not annotated."""
    meta = account.get("metadata")
    annotations = meta.get("annotations") if isinstance(meta, dict) else None
    found = annotations.get(names.CLUSTER_ID_ANNOTATION) if isinstance(annotations, dict) else None
    return found if isinstance(found, str) else None


def ambiguous_with(cluster_id: str, others: Iterable[str]) -> str:
    """Return a cluster ID that this one makes a dash-prefix pair with, "" if there is none.

    Names are joined by dashes: of `east` and `east-1` the one could name exports as the other's controller does.
    """
    for other in sorted(set(others)):
        if other.startswith(f"{cluster_id}-") or cluster_id.startswith(f"{other}-"):
            return other
    return ""


def bound_clusters(accounts: Iterable[RawObject]) -> set[str]:
    """Return all cluster IDs that ServiceAccounts stand for."""
    return {cluster for account in accounts if (cluster := bound_cluster(account))}


def cluster_id_of(raw: RawObject) -> str:
    """Return the cluster ID that a MemberClusterAnnounce names."""
    return text_at(raw, "clusterID")
