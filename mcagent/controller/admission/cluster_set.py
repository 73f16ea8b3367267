"""Admission of ClusterSets: one for each namespace, its identity fixed, not deleted under its members. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.controller.admission.decision import ALLOWED, Decision, Lookup, Operation, Request, denied
from mcagent.controller.contract.raw import text_at
from mcagent.controller.leader.cluster_set import is_leader_set
from mcagent.kube.source import RawObject


def review_cluster_set(request: Request, lookup: Lookup) -> Decision:
    """Decide on a ClusterSet (contract section 1.4)."""
    if request.operation is Operation.CREATE:
        there = lookup.cluster_sets(request.namespace)
        if there:
            name = text_at(there[0], "metadata", "name")
            return denied(f"namespace {request.namespace} has a ClusterSet already: {name}", code=412)
        return ALLOWED
    if request.operation is Operation.UPDATE:
        return _update(request.old, request.object)
    members = lookup.announces(request.namespace) if is_leader_set(request.old) else ()
    if members:
        clusters = ", ".join(sorted(text_at(member, "clusterID") for member in members)[:5])
        return denied(
            f"{len(members)} clusters are still members and must leave first: {clusters}"
            + (", ..." if len(members) > 5 else ""),
            code=412,
        )
    return ALLOWED


def _update(old: RawObject, new: RawObject) -> Decision:
    before, after = text_at(old, "spec", "clusterID"), text_at(new, "spec", "clusterID")
    if before and before != after:  # a ClusterSet of before v1alpha2 has none, and gets it once
        return denied(f"spec.clusterID cannot be changed: it is {before}", code=412)
    first, then = _leader(old), _leader(new)
    if first != then:
        return denied(f"spec.leaders[0].clusterID cannot be changed: it is {first}", code=412)
    return ALLOWED


def _leader(raw: RawObject) -> str:
    spec = raw.get("spec")
    leaders = spec.get("leaders") if isinstance(spec, Mapping) else None
    return text_at(leaders[0], "clusterID") if isinstance(leaders, list) and leaders else ""
