"""The reconciler of the ClusterSet's status on the leader: members, their readiness, and their contradictions.

A key is "area/name" of a leader's ClusterSet. A member is Ready while its announcement changes. A monotonic
clock of this process measures for how long an announcement has been unchanged; the time in it is compared only
with itself. So a wrong clock on either side makes no member Disconnected. A Disconnected member stays so until
its heartbeat differs from that in the condition's message, which a restarted leader reads too. The status is
written when it changes, not with every heartbeat.

It also fills an empty `spec.clusterID` from the ClusterClaim that held it in older versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mcagent.controller.contract import area_holder, names
from mcagent.controller.contract.antrea_before_2_7 import claimed
from mcagent.controller.contract.cidr_claims import claims_in, pairs
from mcagent.controller.contract.cluster_uid import DUPLICATE, uids
from mcagent.controller.contract.conditions import FALSE, TRUE, UNKNOWN, by_type, condition, time_of, time_text
from mcagent.controller.contract.health import health_condition, read_health
from mcagent.controller.contract.instances import refused_instance
from mcagent.controller.leader.claims import publishes_key
from mcagent.controller.leader.exports.bounds import (
    ACCOUNTS_BY_CLUSTER,
    bounds_of,
    changed_accounts,
    cluster_id_of,
    defaults_of,
)
from mcagent.controller.leader.exports.header import CLUSTER_INFOS, announce_ref, announces, heartbeat
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.core.health import Health, HealthFinding, HealthReason, in_order
from mcagent.model.api.base import ApiObject, Condition, condition_of
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import (
    ApiClusterSetStatus,
    ApiClusterStatus,
    ClusterClaim,
    ClusterSet,
    ClusterSetSpec,
    MemberClusterAnnounce,
    ResourceExport,
)
from mcagent.model.api.patches import UNSET, patch
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import listed, printable

READY = "Ready"
UNIQUE = "UniqueClusterID"  # of mcagent: False while another cluster tries to use a member's cluster ID
CONSISTENT = "Consistent"  # of mcagent: IDs are unique, CIDRs do not overlap, and all clusters or none encrypt
ONE_CONTROLLER = "OneController"  # of mcagent: False while the controller of another namespace wants to lead it
LIMITED = "CIDRsLimited"  # of mcagent: each member has a list of CIDRs that it may claim
_LOST = "No MemberClusterAnnounce update after"
_SHOWN = 5  # overlaps that are named in a message
_COUNTED = 100  # overlaps that are counted
_SOONEST = 0.2  # seconds until the next check, at least: a rounding error must not make it early


def ready_of(cluster_set: ClusterSet, cluster: str) -> Condition:
    """Return the condition Ready of a cluster in a ClusterSet's status; without status if it has none."""
    return condition_of(cluster_set.conditions_of(cluster), READY)


def members_by_state(view: View, namespace: str | None) -> dict[str, int]:
    """Return the number of members that are ready and away, of the leader's ClusterSets (None: all namespaces)."""
    counts = {"ready": 0, "away": 0}
    for cluster_set in view.list(ClusterSet, namespace=namespace):
        if cluster_set.is_leaders:
            for member in cluster_set.status.cluster_statuses:
                counts["ready" if condition_of(member.conditions, READY).is_true else "away"] += 1
    return counts


def is_lost(ready: Condition, announce: MemberClusterAnnounce) -> bool:
    """Tell whether a member is Disconnected by its condition, and has sent no heartbeat since."""
    return ready.is_false and ready.message.startswith(f"{_LOST} {heartbeat(announce)};")


def marks(announce: ApiObject | None) -> tuple[str, ...]:
    """Return the UIDs in an announcement, and the instance that was refused; "": none."""
    return (*uids(announce), refused_instance(announce))


class ClusterSetStatus:
    """Writes the status of a leader's ClusterSets."""

    name = "cluster-set-status"
    needs_leader = False
    reads = Access(
        local={
            Kind.CLUSTER_SET,
            Kind.CLUSTER_CLAIM,
            Kind.MEMBER_CLUSTER_ANNOUNCE,
            Kind.RESOURCE_EXPORT,
            Kind.SERVICE_ACCOUNT,
        }
    )
    writes = Access(local={Kind.CLUSTER_SET})
    indexes = (ACCOUNTS_BY_CLUSTER, CLUSTER_INFOS)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the ClusterSets that a change touches: none for a heartbeat of a Ready member."""
        changed = change.object
        area = changed.namespace
        if isinstance(changed, ClusterSet):
            return [changed.key]
        if change.kind is Kind.RESOURCE_EXPORT and _published(change.old) == _published(change.new):
            return []
        if isinstance(changed, ServiceAccount) and not changed_accounts(change):
            return []
        sets = view.list(ClusterSet, namespace=area)
        if isinstance(changed, MemberClusterAnnounce) and _announced(change.old) == _announced(change.new):
            sets = [s for s in sets if not ready_of(s, changed.cluster_id).is_true]
        return [cluster_set.key for cluster_set in sets]

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all ClusterSets."""
        return [cluster_set.key for cluster_set in view.list(ClusterSet)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the status of a ClusterSet."""
        area, name = key.split("/", 1)
        ref = Ref(kind=Kind.CLUSTER_SET, namespace=area, name=name)
        cluster_set = view.get(ref, ClusterSet)
        if cluster_set is None or cluster_set.is_deleting or not cluster_set.is_leaders:
            return DesiredObjects()
        statuses: list[ApiClusterStatus] = []
        events: list[Event] = []
        again: list[float] = []
        duplicates: list[str] = []
        findings: list[HealthFinding] = []
        misfits: list[str] = []
        accounts_are_bound = any(map(cluster_id_of, view.list(ServiceAccount, namespace=area)))
        for announce in view.list(MemberClusterAnnounce, namespace=area):
            if not announces(announce):
                continue
            if misfit := _misfit(announce, cluster_set, view, accounts_are_bound=accounts_are_bound):
                misfits.append(misfit)
            if announce.cluster_set_id != name:
                continue
            cluster = announce.cluster_id
            quiet = view.quiet_for(announce_ref(area, cluster))
            before = cluster_set.conditions_of(cluster)
            ready_condition = self._ready(announce, before, quiet, now)
            cluster_conditions = [ready_condition]
            finding = _finding(announce, ready_condition)
            if finding is not None:
                cluster_conditions.append(health_condition(before, finding, now))
                findings.append(replace(finding, message=f"{cluster}: {finding.message}"))
            if duplicate := _duplicate(announce):
                cluster_conditions.append(
                    condition(before, UNIQUE, FALSE, reason=DUPLICATE, message=duplicate, now=now)
                )
                duplicates.append(duplicate)
            statuses.append(ApiClusterStatus(cluster_id=cluster, conditions=tuple(cluster_conditions)))
            if ready_condition.is_true:
                again.append(max(_SOONEST, self._settings.heartbeat_timeout - quiet))
            else:
                away = f"{cluster}: {ready_condition.message}"
                events.append(Event(subject=str(ref), reason="Disconnected", message=away))
        statuses.sort(key=lambda item: item.cluster_id)
        ready = sum(item.conditions[0].is_true for item in statuses)
        conditions = cluster_set.status.conditions
        members = {item.cluster_id for item in statuses}
        consistent = _consistent(view, area, members, conditions, now, duplicates=duplicates, misfits=misfits)
        if consistent.is_false:
            events.append(Event(subject=str(ref), reason=consistent.reason, message=consistent.message))
        health = Health(findings=in_order(findings))
        events += [
            Event(subject=str(ref), reason=finding.reason, message=finding.message)
            for finding in health.findings
            if finding.error and finding.reason is not HealthReason.AWAY  # which is above
        ]
        status = patch(
            ApiClusterSetStatus,
            total_clusters=len(statuses),
            ready_clusters=ready,
            observed_generation=cluster_set.metadata.generation,
            cluster_statuses=tuple(statuses),
        )
        own = [
            _overall(conditions, statuses, ready, now),
            consistent,
            _limited(view, area, members, conditions, now, limits=self._settings.limits),
            health_condition(conditions, health.summary, now),
        ]
        if second := area_holder.message(cluster_set):
            reason = area_holder.SECOND_CONTROLLER
            own.append(condition(conditions, ONE_CONTROLLER, FALSE, reason=reason, message=second, now=now))
        owned = by_type(own, (ONE_CONTROLLER,))
        spec = patch(ClusterSetSpec, cluster_id=_missing_cluster_id(cluster_set, view) or UNSET)
        body = patch(ClusterSet, spec=spec, status=status)
        step = Wanted(ref=ref, body=body, conditions=owned, create=False)
        return DesiredObjects(steps=[step], events=events, again=min(again, default=None))

    def _ready(
        self, announce: MemberClusterAnnounce, before: Sequence[Condition], quiet: float, now: float
    ) -> Condition:
        last = condition_of(before, READY)
        lost_before = is_lost(last, announce)
        if not lost_before and quiet < self._settings.heartbeat_timeout:
            return condition(before, READY, TRUE, reason="Connected", message="Member Connected", now=now)
        since = (time_of(last.last_transition_time) if lost_before else None) or now
        message = (
            f"{_LOST} {heartbeat(announce)}; what it exported is removed at "
            f"{time_text(since + self._settings.stale_after)}"
        )
        earlier = before if lost_before else ()
        return condition(earlier, READY, FALSE, reason="Disconnected", message=message, now=now)


def _finding(announce: MemberClusterAnnounce, ready: Condition) -> HealthFinding | None:
    """Return what is wrong with a member: it is away, or what it announces; None: nothing."""
    if ready.is_false:
        return HealthFinding(HealthReason.AWAY, ready.message)
    return read_health(announce)


def _missing_cluster_id(cluster_set: ClusterSet, view: View) -> str:
    """Return what fills an empty cluster ID; "" if the ClusterClaim names no leader of the ClusterSet."""
    own = claimed(view.list(ClusterClaim, namespace=cluster_set.namespace))
    is_leader = own in {leader.cluster_id for leader in cluster_set.spec.leaders}
    return own if is_leader and not cluster_set.spec.cluster_id else ""


def _overall(
    before: Sequence[Condition], statuses: Sequence[ApiClusterStatus], ready: int, now: float
) -> Condition:
    """Return the ClusterSet's condition Ready. The reason is Antrea's, also if only one member is not Ready."""
    if ready == len(statuses):
        message = "" if statuses else "no cluster has announced itself yet"
        return condition(before, READY, TRUE, message=message, now=now)
    away = [item.cluster_id for item in statuses if not item.conditions[0].is_true]
    message = f"not ready: {listed(away, _SHOWN)}"
    return condition(before, READY, FALSE, reason="NoReadyCluster", message=message, now=now)


def _published(export: ApiObject | None) -> object:
    if not isinstance(export, ResourceExport):
        return None
    return (claims_in(export), _encrypts(export), _settings(export), export.is_deleting)


def _settings(export: ResourceExport) -> dict[str, str]:
    """Return a cluster's settings that should be equal in all clusters; Antrea's members publish none."""
    texts = {key: export.annotation(key) for key in names.SETTING_ANNOTATIONS}
    return {key: printable(text) for key, text in texts.items() if text}


def _encrypts(export: ResourceExport) -> bool | None:
    """Tell whether a cluster publishes WireGuard keys; None while it has no gateway."""
    info = export.spec.cluster_info
    if info is None or not info.gateway_infos:
        return None
    return publishes_key(export)


def _announced(announce: ApiObject | None) -> object:
    """Return what the conditions of a ClusterSet say of an announcement, without its heartbeat."""
    if not isinstance(announce, MemberClusterAnnounce) or not announces(announce):
        return None
    return marks(announce), announce.cluster_set_id, announce.leader_cluster_id, read_health(announce)


def _misfit(
    announce: MemberClusterAnnounce, cluster_set: ClusterSet, view: View, *, accounts_are_bound: bool
) -> str:
    """Return why an announcement is of no member of this ClusterSet; "" if it is.

    The webhook refuses such an announcement, but the leader may be without it. Accounts made before Antrea 2.7
    have no cluster IDs; where none has one, that is no fault. `accounts_are_bound`: some account has one.
    """
    area, cluster = announce.namespace, announce.cluster_id
    if announce.cluster_set_id != cluster_set.name:
        return f"{cluster} announces itself to ClusterSet {printable(announce.cluster_set_id)}"
    if announce.leader_cluster_id != cluster_set.leader_id:
        return f"{cluster} names cluster {printable(announce.leader_cluster_id)} as the leader"
    if accounts_are_bound and not view.indexed(ACCOUNTS_BY_CLUSTER, f"{area}/{cluster}"):
        return f"{cluster} is the cluster ID of no ServiceAccount ({names.CLUSTER_ID_ANNOTATION})"
    return ""


def _duplicate(announce: MemberClusterAnnounce) -> str:
    """Return the message on a second cluster with the ID of a member; "" if there is none."""
    own, refused = uids(announce)
    if copy := refused_instance(announce):
        clusters = f", one a copy of the other: controller {copy} was refused"
    elif own and refused and own != refused:
        clusters = f": the member has UID {own}, the refused one {refused} (of their Namespaces kube-system)"
    else:
        return ""
    return (
        f"two clusters use cluster ID {announce.cluster_id}{clusters}. If the refused one replaces the member: "
        f"kubectl delete memberclusterannounce -n {announce.namespace} {announce.name}"
    )


def _consistent(
    view: View,
    area: str,
    members: set[str],
    before: Sequence[Condition],
    now: float,
    *,
    duplicates: Sequence[str],
    misfits: Sequence[str],
) -> Condition:
    """Return the condition Consistent.

    `duplicates`: messages on cluster IDs that two clusters use; `misfits`: on announcements of no member.
    """
    infos = [e for e in view.indexed(CLUSTER_INFOS, area) if e.spec.cluster_id in members and not e.is_deleting]
    overlaps = pairs(((info.spec.cluster_id, claim) for info in infos for claim in claims_in(info)), _COUNTED)
    notes = [*duplicates[:_SHOWN], *misfits[:_SHOWN]]
    reason = DUPLICATE if duplicates else "NoMember" if misfits else ""
    notes += [f"{a} of {first} overlaps {b} of {second}" for first, a, second, b in overlaps[:_SHOWN]]
    if len(overlaps) > _SHOWN:
        notes.append(f"{len(overlaps) - _SHOWN}{' or more' if len(overlaps) == _COUNTED else ''} more overlaps")
    if overlaps:
        reason = reason or "OverlappingCIDRs"
    encrypting = sorted(info.spec.cluster_id for info in infos if _encrypts(info) is True)
    plain = sorted(info.spec.cluster_id for info in infos if _encrypts(info) is False)
    if encrypting and plain:
        reason = reason or "EncryptionDiffers"
        notes.append(f"WireGuard is on in {_some(encrypting)} and off in {_some(plain)}")
    for key, setting in names.SETTING_ANNOTATIONS.items():
        values: dict[str, list[str]] = {}
        for info in infos:
            if value := _settings(info).get(key):
                values.setdefault(value, []).append(info.spec.cluster_id)
        if len(values) > 1:
            reason = reason or "SettingsDiffer"
            shown = [f"{value} in {_some(sorted(values[value]))}" for value in sorted(values)]
            notes.append(f"{setting} is {', '.join(shown)}")
    status = FALSE if notes else TRUE if infos or not members else UNKNOWN
    if status == UNKNOWN:
        reason, notes = "NoClusterInfo", ["no member has published its CIDRs yet"]
    return condition(before, CONSISTENT, status, reason=reason, message="; ".join(notes), now=now)


def _limited(
    view: View, area: str, members: set[str], before: Sequence[Condition], now: float, *, limits: MemberLimits
) -> Condition:
    """Return the condition CIDRsLimited."""
    defaults = defaults_of(limits)
    unlimited = sorted(member for member in members if bounds_of(view, area, member, defaults).cidrs is None)
    if limits.cluster_cidrs or not unlimited:
        return condition(before, LIMITED, TRUE, now=now)
    message = (
        f"no list for {_some(unlimited)}, which may claim every private network that no other member has: "
        f"annotate their ServiceAccounts ({names.ALLOWED_CIDRS_ANNOTATION}), or set members.allowedCIDRs"
    )
    return condition(before, LIMITED, FALSE, reason="AnyPrivateNetwork", message=message, now=now)


def _some(clusters: Sequence[str]) -> str:
    return ", ".join(clusters[:_SHOWN]) + (", ..." if len(clusters) > _SHOWN else "")
