"""What the export ranges of a Common Area mean for the claims of its members. Pure.

The reconciler `export_ranges` writes them to the leader's ClusterSet; `ledger` and `cluster_infos` read them here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import lru_cache

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CidrClaim
from mcagent.controller.contract.export_ranges import (
    RANGES_ANNOTATION,
    Assigned,
    mode_of,
    parse_ranges,
    read_ranges,
    service_cidr_of,
)
from mcagent.controller.contract.pod_ranges import (
    POD_CIDRS_ANNOTATION,
    POD_RANGES_ANNOTATION,
    AssignedPodCidrs,
    parse_pod_ranges,
    pod_cidrs_of,
    pod_mode_of,
    read_pod_ranges,
    recorded_pods,
)
from mcagent.controller.contract.ranges import Networks, range_of
from mcagent.controller.machinery.reconciler import ObjectChange, Ref, View
from mcagent.model.api.multicluster import ClusterSet, ResourceExport
from mcagent.model.objects import Kind


def leader_set(view: View, area: str) -> ClusterSet | None:
    """Return the leader's ClusterSet of an area that has the ranges: the oldest one."""
    cluster_sets = (obj for obj in view.list(ClusterSet, namespace=area) if obj.is_leaders)
    return min((obj for obj in cluster_sets if not obj.is_deleting), key=lambda obj: obj.age, default=None)


def answer(view: View, area: str, cluster: str) -> Assigned | None:
    """Return the last decision on a member, as the member reads it; None if there is none yet."""
    assigned = _ranges(view, area).get(cluster)
    if assigned is None or assigned.why:
        return assigned
    return Assigned(service_cidr=assigned.service_cidr) if assigned.service_cidr else None


def pod_answer(view: View, area: str, cluster: str) -> AssignedPodCidrs | None:
    """Return the last decision on a member's Pods, as the member reads it; None if there is none yet."""
    assigned = _pod_ranges(view, area).get(cluster)
    if assigned is None or assigned.why:
        return assigned
    return AssignedPodCidrs(pod_cidrs=assigned.pod_cidrs) if assigned.pod_cidrs else None


def changed_ranges(change: ObjectChange) -> list[str]:
    """Return the clusters whose decisions a change of the leader's ClusterSet changes."""
    changed: set[str] = set()
    for read in (read_ranges, read_pod_ranges):
        old, new = (read(obj) if obj is not None else {} for obj in change.of(ClusterSet))
        changed |= {cluster for cluster in old.keys() | new.keys() if old.get(cluster) != new.get(cluster)}
    return sorted(changed)


def own_ranges(view: View, area: str, cluster: str) -> frozenset[str]:
    """Return the ranges that a cluster uses, which are granted to it in spite of its limits."""
    assigned = _ranges(view, area).get(cluster, Assigned())
    pods = _pod_ranges(view, area).get(cluster, AssignedPodCidrs())
    virtual = (str(pair.virtual) for pair in pods.pairs if pods.why)
    return frozenset((*((assigned.cidr,) if assigned.why and assigned.cidr else ()), *virtual))


def _ranges(view: View, area: str) -> Mapping[str, Assigned]:
    cluster_set = leader_set(view, area)
    return read_ranges(cluster_set) if cluster_set is not None else {}


def _pod_ranges(view: View, area: str) -> Mapping[str, AssignedPodCidrs]:
    cluster_set = leader_set(view, area)
    return read_pod_ranges(cluster_set) if cluster_set is not None else {}


def range_refusals(
    view: View, area: str, cluster: str, claims: Iterable[CidrClaim], granted: Container[CidrClaim]
) -> dict[str, str]:
    """Return the claims of a cluster that are not granted because of export ranges: the reasons, by their text.

    These are the ranges of other clusters, and the real Service and Pod CIDRs of a member that gets others, or on
    which the leader has not decided yet: two clusters that have the same one must not get it in turns. `granted`:
    the claims that are granted already, which stay until the member gives them up.
    """
    cluster_set = leader_set(view, area)
    if cluster_set is None:
        return {}
    texts = (cluster_set.annotation(key) or "" for key in (RANGES_ANNOTATION, POD_RANGES_ANNOTATION))
    recorded = _recorded(*texts)
    export_ref = Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=names.cluster_info(cluster))
    export = view.get(export_ref, ResourceExport)
    undecided = _real_refusals(cluster_set, export) if export is not None else {}
    refused: dict[str, str] = {}
    for claim in claims:
        if claim.range is None or claim.range[0] != 4 or claim in granted:
            continue
        overlaps = (owner.split(" ") for owner in recorded.overlapping(*claim.range[1:]))
        why = next(
            (f"it overlaps {cidr}, the export range of cluster {c}" for c, cidr in overlaps if c != cluster), ""
        )
        if not claim.gateway:
            why = why or undecided.get(claim.text, "")
        if why:
            refused[claim.text] = f"{claim} is not granted: {why}"
    return refused


def _real_refusals(cluster_set: ClusterSet, export: ResourceExport) -> dict[str, str]:
    """Return why the real Service and Pod CIDRs of a member are not granted, by their text."""
    cluster, why = export.spec.cluster_id, {}
    real = service_cidr_of(export) if mode_of(export) else None
    if real is not None:
        own = read_ranges(cluster_set).get(cluster, Assigned())
        if own.service_cidr != real.text:
            why[real.text] = "whether the cluster needs an export range is not decided yet"
        elif own.why and own.cidr:
            why[real.text] = f"the cluster's Services have addresses of {own.cidr}, because {own.why}"
    pods = pod_cidrs_of(export) if pod_mode_of(export) else ()
    decision = read_pod_ranges(cluster_set).get(cluster, AssignedPodCidrs())
    if pods and decision.pod_cidrs != export.annotation(POD_CIDRS_ANNOTATION):
        why |= {claim.text: "whether the cluster needs virtual Pod CIDRs is not decided yet" for claim in pods}
    elif decision.why:
        for pair in decision.pairs:
            why[str(pair.real)] = f"the cluster's Pods have addresses of {pair.virtual}, because {decision.why}"
    return why


@lru_cache(maxsize=8)
def _recorded(text: str, pods: str) -> Networks:
    """Return the ranges in annotations of the leader's ClusterSet; an owner is cluster ID and range."""
    ranges = (
        (*bounds, f"{cluster} {assigned.cidr}")
        for cluster, assigned in parse_ranges(text).items()
        if (bounds := range_of(assigned.cidr)) is not None
    )
    return Networks((*ranges, *recorded_pods(parse_pod_ranges(pods))))
