"""The member cluster that a ServiceAccount stands for, and cluster IDs that exclude each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.model.api.kubernetes import ServiceAccount


def bound_cluster(account: ServiceAccount) -> str | None:
    """Return the cluster ID that a ServiceAccount is annotated with; None if it has no annotation."""
    return account.annotation(names.CLUSTER_ID_ANNOTATION)


def ambiguous_with(cluster_id: str, others: Iterable[str]) -> str:
    """Return a cluster ID that this one makes a dash-prefix pair with, "" if there is none.

    Names are joined by dashes: of `east` and `east-1` the one could name exports as the other's controller does.
    """
    for other in sorted(set(others)):
        if other.startswith(f"{cluster_id}-") or cluster_id.startswith(f"{other}-"):
            return other
    return ""


def bound_clusters(accounts: Iterable[ServiceAccount]) -> set[str]:
    """Return all cluster IDs that ServiceAccounts stand for."""
    return {cluster for account in accounts if (cluster := bound_cluster(account))}
