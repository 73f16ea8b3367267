"""The reconciler of the ClusterSet's status on the leader: who is a member, who is Ready, what does not fit.

A key is "area/name" of a leader's ClusterSet. A member is Ready while its announcement changes. How long the
announcement has been unchanged is measured here by a clock that never steps; the time that the member wrote is
compared only with itself. So neither side's clock can make members lost. A lost member stays so until its
heartbeat differs from the one in the condition's message, which also a restarted leader can read. The status is
written when it changes, not with every heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import claims_in, pairs
from mcagent.controller.contract.conditions import FALSE, TRUE, UNKNOWN, condition, find, time_of, time_text
from mcagent.controller.contract.raw import is_deleting, key_of, namespace_of, text_at, value_at
from mcagent.controller.leader.announces import announce_ref, announces, heartbeat
from mcagent.controller.leader.exports import CLUSTER_INFOS, cluster_of
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    ObjectChange,
    Ref,
    View,
    Wanted,
)
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.event import Event
from mcagent.model.field import printable
from mcagent.model.objects import Kind

READY = "Ready"
CONSISTENT = "Consistent"  # ours: the clusters' CIDRs do not overlap, and all or none of them encrypt
_LOST = "No MemberClusterAnnounce update after"
_SHOWN = 5  # overlaps that are named in a message
_COUNTED = 100  # overlaps that are looked for
_SOONEST = 0.2  # seconds; not to be asked again too early by a rounding error


def is_leader_set(raw: RawObject) -> bool:
    """Tell whether a ClusterSet is a leader's own: it names this cluster as leader, and no server to reach it at.

    In a cluster that is leader and member at once the member's ClusterSet has a server and a Secret.
    """
    spec = raw.get("spec")
    leaders = spec.get("leaders") if isinstance(spec, Mapping) else None
    own = text_at(raw, "spec", "clusterID")
    return any(
        isinstance(leader, Mapping)
        and (not own or leader.get("clusterID") == own)
        and not leader.get("server")
        and not leader.get("secret")
        for leader in (leaders if isinstance(leaders, list) else ())
    )


def conditions_by_cluster(cluster_set: RawObject) -> dict[str, object]:
    """Return what a ClusterSet's status has as conditions of each cluster."""
    status = cluster_set.get("status")
    found = status.get("clusterStatuses") if isinstance(status, Mapping) else None
    items = found if isinstance(found, list) else []
    return {text_at(item, "clusterID"): item.get("conditions") for item in items if isinstance(item, Mapping)}


def is_lost(ready: Mapping[str, Any], announce: RawObject) -> bool:
    """Tell whether a Ready condition says that a member is away, and nothing has been heard of it since."""
    message = ready.get("message")
    said = f"{_LOST} {heartbeat(announce)};"
    return ready.get("status") == FALSE and isinstance(message, str) and message.startswith(said)


class ClusterSetStatus:
    """Writes the status of leaders' ClusterSets."""

    name = "cluster-set-status"
    needs_leader = False
    reads = Access(local={Kind.CLUSTER_SET, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.RESOURCE_EXPORT})
    writes = Access(local={Kind.CLUSTER_SET})
    indexes = (CLUSTER_INFOS,)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the ClusterSets that a change touches. A heartbeat of a member that is Ready touches none."""
        raw = change.new or change.old or {}
        area = namespace_of(raw)
        if not self._settings.covers(area):
            return []
        if change.kind is Kind.CLUSTER_SET:
            return [key_of(raw)]
        if change.kind is Kind.RESOURCE_EXPORT and _published(change.old) == _published(change.new):
            return []
        sets = view.list(Kind.CLUSTER_SET, namespace=area)
        if change.kind is Kind.MEMBER_CLUSTER_ANNOUNCE and announces(change.old) and announces(change.new):
            cluster = text_at(raw, "clusterID")
            sets = [s for s in sets if find(conditions_by_cluster(s).get(cluster), READY).get("status") != TRUE]
        return [key_of(cluster_set) for cluster_set in sets]

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all ClusterSets."""
        return [key_of(raw) for raw in view.list(Kind.CLUSTER_SET, namespace=self._settings.namespace or None)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the status of a ClusterSet."""
        area, name = key.split("/", 1)
        ref = Ref(kind=Kind.CLUSTER_SET, namespace=area, name=name)
        raw = view.get(ref)
        if raw is None or is_deleting(raw) or not is_leader_set(raw):
            return DesiredObjects()
        before = conditions_by_cluster(raw)
        statuses: list[RawObject] = []
        events: list[Event] = []
        again: list[float] = []
        for announce in view.list(Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=area):
            if not announces(announce) or text_at(announce, "clusterSetID") != name:
                continue
            cluster = text_at(announce, "clusterID")
            quiet = view.quiet_for(announce_ref(area, cluster))
            made = self._ready(announce, before.get(cluster), quiet, now)
            statuses.append({"clusterID": cluster, "conditions": [made]})
            if made["status"] == TRUE:
                again.append(max(_SOONEST, self._settings.heartbeat_timeout - quiet))
            else:
                events.append(
                    Event(subject=str(ref), reason="Disconnected", message=f"{cluster}: {made['message']}")
                )
        statuses.sort(key=lambda item: str(item["clusterID"]))
        ready = sum(item["conditions"][0]["status"] == TRUE for item in statuses)
        conditions = value_at(raw, "status", "conditions")
        members = {str(item["clusterID"]) for item in statuses}
        consistent = _consistent(view, area, members, conditions, now)
        if consistent["status"] == FALSE:
            events.append(Event(subject=str(ref), reason=consistent["reason"], message=consistent["message"]))
        status = {
            "totalClusters": len(statuses),
            "readyClusters": ready,
            "observedGeneration": raw["metadata"].get("generation"),
            "conditions": [_overall(conditions, statuses, ready, now), consistent],
            "clusterStatuses": statuses,
        }
        wanted = Wanted(ref=ref, status=status, create=False)
        return DesiredObjects(steps=[wanted], events=events, again=min(again, default=None))

    def _ready(self, announce: RawObject, before: object, quiet: float, now: float) -> RawObject:
        last = find(before, READY)
        lost_before = is_lost(last, announce)
        if not lost_before and quiet < self._settings.heartbeat_timeout:
            return condition(before, READY, TRUE, reason="Connected", message="Member Connected", now=now)
        since = (time_of(last.get("lastTransitionTime")) if lost_before else None) or now
        message = (
            f"{_LOST} {heartbeat(announce)}; what it exported is removed at "
            f"{time_text(since + self._settings.stale_after)}"
        )
        kept = before if lost_before else None
        return condition(kept, READY, FALSE, reason="Disconnected", message=message, now=now)


def _overall(before: object, statuses: Sequence[RawObject], ready: int, now: float) -> RawObject:
    """Return the ClusterSet's own Ready: all members are. The reason is Antrea's, also while only some are not."""
    if ready == len(statuses):
        message = "" if statuses else "no cluster has announced itself yet"
        return condition(before, READY, TRUE, message=message, now=now)
    away = [item["clusterID"] for item in statuses if item["conditions"][0]["status"] != TRUE]
    shown = ", ".join(away[:_SHOWN]) + (f" and {len(away) - _SHOWN} more" if len(away) > _SHOWN else "")
    return condition(before, READY, FALSE, reason="NoReadyCluster", message=f"not ready: {shown}", now=now)


def _published(raw: RawObject | None) -> object:
    return (claims_in(raw), _encrypts(raw), _settings(raw), is_deleting(raw))


def _settings(raw: RawObject | None) -> dict[str, str]:
    """Return what a cluster says of settings that should be the same everywhere; Antrea's say nothing."""
    found = {key: text_at(raw, "metadata", "annotations", key) for key in names.SETTING_ANNOTATIONS}
    return {key: printable(text) for key, text in found.items() if text}


def _encrypts(raw: RawObject | None) -> bool | None:
    """Tell whether a cluster publishes WireGuard keys; None while it has no gateway."""
    spec = raw.get("spec") if raw else None
    info = spec.get("clusterInfo") if isinstance(spec, Mapping) else None
    gateways = info.get("gatewayInfos") if isinstance(info, Mapping) else None
    if not isinstance(gateways, list) or not gateways:
        return None
    return any(text_at(holder, "wireGuard", "publicKey") for holder in (info, *gateways))


def _consistent(view: View, area: str, members: set[str], before: object, now: float) -> RawObject:
    infos = [
        raw for raw in view.indexed(CLUSTER_INFOS, area) if cluster_of(raw) in members and not is_deleting(raw)
    ]
    found = pairs(((cluster_of(raw), claim) for raw in infos for claim in claims_in(raw)), _COUNTED)
    notes = [f"{a} of {one} overlaps {b} of {other}" for one, a, other, b in found[:_SHOWN]]
    if len(found) > _SHOWN:
        notes.append(f"{len(found) - _SHOWN}{' or more' if len(found) == _COUNTED else ''} more overlaps")
    reason = "OverlappingCIDRs" if found else ""
    encrypting = sorted(cluster_of(raw) for raw in infos if _encrypts(raw) is True)
    plain = sorted(cluster_of(raw) for raw in infos if _encrypts(raw) is False)
    if encrypting and plain:
        reason = reason or "EncryptionDiffers"
        notes.append(f"WireGuard is on in {_some(encrypting)} and off in {_some(plain)}")
    for key, what in names.SETTING_ANNOTATIONS.items():
        values: dict[str, list[str]] = {}
        for raw in infos:
            if value := _settings(raw).get(key):
                values.setdefault(value, []).append(cluster_of(raw))
        if len(values) > 1:
            reason = reason or "SettingsDiffer"
            shown = [f"{value} in {_some(sorted(values[value]))}" for value in sorted(values)]
            notes.append(f"{what} is {', '.join(shown)}")
    status = FALSE if notes else TRUE if infos or not members else UNKNOWN
    if status == UNKNOWN:
        reason, notes = "NoClusterInfo", ["no member has published its CIDRs yet"]
    return condition(before, CONSISTENT, status, reason=reason, message="; ".join(notes), now=now)


def _some(clusters: Sequence[str]) -> str:
    return ", ".join(clusters[:_SHOWN]) + (", ..." if len(clusters) > _SHOWN else "")
