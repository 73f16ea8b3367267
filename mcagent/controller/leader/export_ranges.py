"""The reconciler of export ranges: which members publish CIDRs of the leader instead of their own ones.

A key is a Common Area. It owns the annotation with the ranges of all clusters, also of those that left, on the
leader's ClusterSet, which members cannot write. One key decides for all members of an area, so no two get the same
range. `ledger` enforces the ranges (`assigned_ranges`); docs/notes/export-ranges.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CidrClaim, claims_in
from mcagent.controller.contract.export_ranges import (
    ALWAYS,
    RANGES_ANNOTATION,
    Assigned,
    as_text,
    first_slot,
    mode_of,
    read_ranges,
    service_cidr_of,
    slots,
)
from mcagent.controller.contract.pod_ranges import (
    POD_CIDRS_ANNOTATION,
    POD_RANGES_ANNOTATION,
    AssignedPodCidrs,
    pod_cidrs_of,
    pod_mode_of,
    read_pod_ranges,
    recorded_pods,
)
from mcagent.controller.contract.ranges import Networks, valid_range
from mcagent.controller.leader.assigned_ranges import leader_set
from mcagent.controller.leader.claims import granted_in, read_claims
from mcagent.controller.leader.exports.bounds import ACCOUNTS_BY_CLUSTER, bounds_of, changed_accounts, defaults_of
from mcagent.controller.leader.exports.header import CLUSTER_INFOS, changed_members, is_member
from mcagent.controller.leader.pod_ranges import Occupied, PodMember, assign_pods
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.settings import LeaderSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce, ResourceImport
from mcagent.model.api.patches import annotated
from mcagent.model.event import Event
from mcagent.model.net import parse_network
from mcagent.model.objects import Kind

_SHOWN = 5  # clusters that an Event names
_ALWAYS = "exportCIDR is always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a member's ClusterInfo says."""

    cluster_id: str
    mode: str  # AUTO or ALWAYS, or "": the leader assigns it no range
    service_cidr: CidrClaim | None = None  # the real one, if the member reports it
    may_have_it: bool = True  # by the limits of the member
    granted: tuple[CidrClaim, ...] = ()  # CIDRs
    claimed: tuple[CidrClaim, ...] = ()  # CIDRs, and granted gateways
    pod_mode: str = ""  # likewise for its Pods
    pod_cidrs: tuple[CidrClaim, ...] = ()  # the real ones, if the member reports them
    reported_pods: str = ""  # the text that they were read from
    allowed_pod_cidrs: tuple[CidrClaim, ...] = ()  # those that it may have, by its limits


class ExportRanges:
    """Assigns export ranges."""

    name = "export-ranges"
    needs_leader = False
    reads = Access(
        local={
            Kind.RESOURCE_EXPORT,
            Kind.RESOURCE_IMPORT,
            Kind.CLUSTER_SET,
            Kind.MEMBER_CLUSTER_ANNOUNCE,
            Kind.SERVICE_ACCOUNT,
        }
    )
    writes = Access(local={Kind.CLUSTER_SET})
    indexes = (CLUSTER_INFOS, ACCOUNTS_BY_CLUSTER)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings
        self._pod_pool = settings.limits.pod_export_cidrs

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return the area of a change that may alter a decision."""
        match change.object:
            case MemberClusterAnnounce():
                touched = bool(changed_members(change))
            case ServiceAccount():
                touched = bool(changed_accounts(change))
            case ClusterSet():
                touched = True
            case _:
                touched = _published(change.old) != _published(change.new)
        return [change.object.namespace] if touched else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return the areas of all ClusterSets."""
        return {obj.namespace: None for obj in view.list(ClusterSet)}

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the annotation of the area's ClusterSet."""
        cluster_set = leader_set(view, key)
        if cluster_set is None:
            return DesiredObjects()
        members = list(self._members(view, key))
        pool = self._settings.limits.export_cidrs
        before, pods_before = read_ranges(cluster_set), read_pod_ranges(cluster_set)
        ranges = assign(before, members, pool, recorded_pods(pods_before))
        pods = assign_pods(pods_before, _pod_members(members), self._pod_pool, _occupied(members, ranges))
        annotations = {RANGES_ANNOTATION: as_text(ranges), POD_RANGES_ANNOTATION: as_text(pods)}
        body = annotated(ClusterSet, annotations)
        ref = Ref.of(cluster_set)
        return DesiredObjects(
            steps=[Wanted(ref=ref, body=body, create=False)],
            events=[*_events(ref, ranges, pool), *_pod_events(ref, pods)],
        )

    def _members(self, view: View, area: str) -> Iterator[Member]:
        defaults = defaults_of(self._settings.limits)
        for export in view.indexed(CLUSTER_INFOS, area):
            cluster = export.spec.cluster_id
            claims = read_claims(export)
            if claims is None or export.is_deleting or not is_member(view, area, cluster):
                continue
            ref = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.cluster_info(cluster))
            real = service_cidr_of(export)
            bounds = bounds_of(view, area, cluster, defaults)
            granted = granted_in(view.get(ref, ResourceImport))
            pods = pod_cidrs_of(export)
            yield Member(
                cluster_id=cluster,
                mode=mode_of(export),
                service_cidr=real,
                may_have_it=real is not None and bounds.allows_network(parse_network(real.text)[0]),
                granted=tuple(_cidrs(granted)),
                claimed=(*_cidrs(claims), *(claim for claim in granted if claim.gateway)),
                pod_mode=pod_mode_of(export),
                pod_cidrs=pods,
                reported_pods=export.annotation(POD_CIDRS_ANNOTATION) or "",
                allowed_pod_cidrs=tuple(c for c in pods if bounds.allows_network(parse_network(c.text)[0])),
            )


def _cidrs(claims: Iterable[CidrClaim]) -> Iterator[CidrClaim]:
    return (claim for claim in claims if claim.range is not None and not claim.gateway)


def _published(obj: ApiObject | None) -> object:
    if obj is None or not claims_in(obj):
        return None
    pods = (pod_mode_of(obj), pod_cidrs_of(obj))
    return (claims_in(obj), mode_of(obj), service_cidr_of(obj), pods, obj.is_deleting)


def _events(ref: Ref, ranges: Mapping[str, Assigned], pool: Sequence[str]) -> list[Event]:
    waiting = [cluster for cluster, assigned in ranges.items() if assigned.why and not assigned.cidr]
    if not waiting or not pool:
        return []
    shown = ", ".join(sorted(waiting)[:_SHOWN])
    message = f"exportCIDRs has no free range for {len(waiting)} clusters ({shown}): extend it"
    return [Event(subject=str(ref), reason="ExportRangesExhausted", message=message)]


def _pod_events(ref: Ref, pods: Mapping[str, AssignedPodCidrs]) -> list[Event]:
    waiting = [cluster for cluster, assigned in pods.items() if assigned.missing]
    if not waiting:
        return []
    shown = ", ".join(sorted(waiting)[:_SHOWN])
    message = f"podExportCIDRs has no free CIDR for {len(waiting)} clusters ({shown}): extend it"
    return [Event(subject=str(ref), reason="PodExportRangesExhausted", message=message)]


# --- assignment -----------------------------------------------------------------------------------------------


def _pod_members(members: Iterable[Member]) -> Iterator[PodMember]:
    return (
        PodMember(cluster_id=m.cluster_id, mode=m.pod_mode, pod_cidrs=m.pod_cidrs, reported=m.reported_pods)
        for m in members
    )


def _occupied(members: Sequence[Member], ranges: Mapping[str, Assigned]) -> Occupied:
    """Return the networks of members for the decision on virtual Pod CIDRs."""
    records = ((*valid_range(a.cidr), f"{cluster} {a.cidr}") for cluster, a in ranges.items() if a.cidr)
    return Occupied(
        granted=_networks((member, member.granted) for member in members),
        used=_in_use(members),
        claimed=Networks((*_ranges((m, _all_claims(m)) for m in members), *records)),
    )


def assign(
    before: Mapping[str, Assigned],
    members: Iterable[Member],
    pool: tuple[str, ...],
    virtual: Iterable[tuple[int, int, str]] = (),
) -> dict[str, Assigned]:
    """Return the decision on each member that reports a Service CIDR, and the ranges of clusters that left.

    With `why`, the range is in use; without, it is reserved for a cluster that left or wants none. A range stays
    while the pool has it, unless another member was granted an address in it. New members are decided on in order
    of their IDs. `virtual`: ranges that no new one may overlap, with their owners.
    """
    by_id = {member.cluster_id: member for member in sorted(members, key=lambda member: member.cluster_id)}
    places = slots(pool)
    in_pool = frozenset(places)
    granted = _networks((member, member.granted) for member in by_id.values())
    in_use, claimed = _in_use(by_id.values()), _claimed(by_id.values(), virtual)
    ranges = {
        cluster: a if cluster in by_id and by_id[cluster].mode else Assigned(cidr=a.cidr)
        for cluster, a in before.items()
        if a.cidr in in_pool and not _others(granted, a.cidr, cluster)
    }
    for cluster, member in by_id.items():
        if not member.mode or member.service_cidr is None:
            continue
        present = ranges.get(cluster, Assigned())
        stays = present.cidr and present.why not in ("", _ALWAYS)
        why = present.why if stays else _reason(member, in_use)
        cidr = present.cidr
        if why and not cidr:
            cidr = _new_range(places, cluster, ranges, by_id.keys(), claimed)
            ranges = {other: a for other, a in ranges.items() if not cidr or a.cidr != cidr}
        ranges[cluster] = Assigned(service_cidr=member.service_cidr.text, cidr=cidr, why=why)
    return dict(sorted(ranges.items()))


def _new_range(
    places: Sequence[str],
    cluster: str,
    ranges: Mapping[str, Assigned],
    members: Container[str],
    claimed: Networks,
) -> str:
    """Return a free range; if there is none, one of a cluster that left; "" if there is none of those."""
    recorded = {assigned.cidr: other for other, assigned in ranges.items()}

    def is_free(slot: str) -> bool:
        return slot not in recorded and not _others(claimed, slot, cluster)

    def is_left(slot: str) -> bool:
        return recorded.get(slot, cluster) not in members and not _others(claimed, slot, cluster)

    return first_slot(places, cluster, is_free) or first_slot(places, cluster, is_left)


def _reason(member: Member, in_use: Networks) -> str:
    """Return why a member needs a range; "" if it needs none."""
    if member.mode == ALWAYS:
        return _ALWAYS
    real = member.service_cidr
    if real is None or real.range is None:
        return ""
    for owner in in_use.overlapping(*real.range[1:]):
        cluster, text = owner.split(" ")
        if cluster != member.cluster_id:
            return f"its Service CIDR {real.text} overlaps {text} of cluster {cluster}"
    return ""


def _in_use(members: Iterable[Member]) -> Networks:
    """Return what members use: the CIDRs that are granted to them, and their real Service and Pod CIDRs."""
    return _networks(
        (m, (*m.granted, *((m.service_cidr,) if m.may_have_it else ()), *m.allowed_pod_cidrs)) for m in members
    )


def _claimed(members: Iterable[Member], virtual: Iterable[tuple[int, int, str]]) -> Networks:
    """Return all addresses that no range may have."""
    return Networks((*_ranges((m, _all_claims(m)) for m in members), *virtual))


def _all_claims(member: Member) -> Iterable[CidrClaim | None]:
    return (*member.granted, *member.claimed, member.service_cidr, *member.pod_cidrs)


def _networks(claims: Iterable[tuple[Member, Iterable[CidrClaim | None]]]) -> Networks:
    return Networks(_ranges(claims))


def _ranges(claims: Iterable[tuple[Member, Iterable[CidrClaim | None]]]) -> Iterator[tuple[int, int, str]]:
    return (
        (*claim.range[1:], f"{member.cluster_id} {claim.text}")
        for member, of_member in claims
        for claim in of_member
        if claim is not None and claim.range is not None and claim.range[0] == 4
    )


def _others(networks: Networks, cidr: str, cluster: str) -> bool:
    """Tell whether a range holds an address of another cluster, or of other CIDRs of its own."""
    return any(owner != f"{cluster} {cidr}" for owner in networks.overlapping(*valid_range(cidr)))
