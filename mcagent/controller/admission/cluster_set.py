"""Admission of ClusterSets: one for each namespace, not deleted while it has members. Pure."""

from __future__ import annotations

from mcagent.controller.admission.decision import (
    ALLOWED,
    AdmissionDecision,
    Lookup,
    Operation,
    ReviewRequest,
    denied,
)
from mcagent.model.api.multicluster import ClusterSet

_SHOWN = 5  # members that are named in a message


def review_cluster_set(request: ReviewRequest, lookup: Lookup) -> AdmissionDecision:
    """Decide on a ClusterSet (contract section 1.4)."""
    if request.operation is Operation.CREATE:
        existing = lookup.cluster_sets(request.namespace)
        if existing:
            return denied(f"namespace {request.namespace} has a ClusterSet already: {existing[0].name}", code=412)
    if request.operation is Operation.DELETE:
        old, _ = request.of(ClusterSet)
        members = lookup.announces(request.namespace) if old.is_leaders else ()
        if members:
            clusters = sorted(member.cluster_id for member in members)
            shown = ", ".join(clusters[:_SHOWN]) + (", ..." if len(clusters) > _SHOWN else "")
            return denied(f"{len(members)} clusters are still members and must leave first: {shown}", code=412)
    return ALLOWED
