"""Admission of ClusterSets: one for each namespace, its identity fixed, not deleted under its members. Pure."""

from __future__ import annotations

from mcagent.controller.admission.decision import ALLOWED, Decision, Lookup, Operation, Request, denied
from mcagent.controller.leader.cluster_set import is_leader_set
from mcagent.model.api.multicluster import ClusterSet


def review_cluster_set(request: Request, lookup: Lookup) -> Decision:
    """Decide on a ClusterSet (contract section 1.4)."""
    if request.operation is Operation.CREATE:
        there = lookup.cluster_sets(request.namespace)
        if there:
            return denied(f"namespace {request.namespace} has a ClusterSet already: {there[0].name}", code=412)
        return ALLOWED
    old, new = request.of(ClusterSet)
    if request.operation is Operation.UPDATE:
        return _update(old, new)
    members = lookup.announces(request.namespace) if is_leader_set(old) else ()
    if members:
        clusters = ", ".join(sorted(member.cluster_id for member in members)[:5])
        return denied(
            f"{len(members)} clusters are still members and must leave first: {clusters}"
            + (", ..." if len(members) > 5 else ""),
            code=412,
        )
    return ALLOWED


def _update(old: ClusterSet, new: ClusterSet) -> Decision:
    before = old.spec.cluster_id
    if before and before != new.spec.cluster_id:  # a ClusterSet of before v1alpha2 has none, and gets it once
        return denied(f"spec.clusterID cannot be changed: it is {before}", code=412)
    if old.leader_id != new.leader_id:
        return denied(f"spec.leaders[0].clusterID cannot be changed: it is {old.leader_id}", code=412)
    return ALLOWED
