"""The reconciler of members: from their first announcement until nothing is left of them.

A key is "area/announce". It owns the finalizer of the MemberClusterAnnounce, and deletes: what a member exported
once its announcement is being deleted, and the announcement of a member that has been away for too long. That a
member is away, and since when, stands in the ClusterSet's status (`cluster_set`), so it outlasts a restart.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import FALSE, find, time_of
from mcagent.controller.contract.raw import is_deleting, key_of, name_of, namespace_of, text_at
from mcagent.controller.leader.announces import announce_ref, announces
from mcagent.controller.leader.cluster_set import conditions_by_cluster, is_lost
from mcagent.controller.leader.exports import BY_CLUSTER, by_cluster, cluster_of
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
from mcagent.model.objects import Kind

_FINALIZER = names.announce_finalizer("")


class Members:
    """Holds members' announcements until what they exported is gone, and ends those of members that stay away."""

    name = "members"
    needs_leader = False
    reads = Access(local={Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.RESOURCE_EXPORT, Kind.CLUSTER_SET})
    writes = Access(local={Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.RESOURCE_EXPORT})
    indexes = (BY_CLUSTER,)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the announcements that a change touches. A heartbeat touches none."""
        raw = change.new or change.old or {}
        area = namespace_of(raw)
        if not self._settings.covers(area):
            return []
        if change.kind is Kind.MEMBER_CLUSTER_ANNOUNCE:
            return [] if _identity(change.old) == _identity(change.new) else [key_of(raw)]
        if change.kind is Kind.CLUSTER_SET:
            away = conditions_by_cluster(raw).items()
            return [
                f"{area}/{names.announce(cluster)}"
                for cluster, conditions in away
                if find(conditions, "Ready").get("status") == FALSE
            ]
        announce = announce_ref(area, cluster_of(raw))
        return [f"{area}/{announce.name}"] if is_deleting(view.get(announce)) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all announcements."""
        area = self._settings.namespace or None
        return [key_of(raw) for raw in view.list(Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=area)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the announcement's finalizer, or what has to go."""
        area, name = key.split("/", 1)
        ref = Ref(kind=Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=area, name=name)
        raw = view.get(ref)
        if raw is None:
            return DesiredObjects()
        held = raw["metadata"].get("finalizers")
        finalizers = [f for f in held if isinstance(f, str)] if isinstance(held, list) else []
        cluster = text_at(raw, "clusterID")
        if is_deleting(raw):
            exports = view.indexed(BY_CLUSTER, by_cluster(area, cluster)) if cluster else ()
            left = [_export_ref(export) for export in exports if not is_deleting(export)]
            if exports:
                return DesiredObjects(steps=left)  # their going calls for this key again
            rest = [f for f in finalizers if not f.startswith(_FINALIZER)]
            released = Wanted(ref=ref, body={"metadata": {"finalizers": rest or None}}, create=False)
            return DesiredObjects(steps=[released] if rest != finalizers else [])
        if not announces(raw):
            return DesiredObjects()
        wait = self._until_stale(raw, ref, view, now)
        if wait is not None and wait <= 0:
            why = f"cluster {cluster} has been away for {self._settings.stale_after:g} s: no longer a member"
            return DesiredObjects(
                steps=[ref], events=[Event(subject=str(ref), reason="MemberRemoved", message=why)]
            )
        own = names.announce_finalizer(cluster)
        if own in finalizers:
            return DesiredObjects(again=wait)
        held_by_us = Wanted(ref=ref, body={"metadata": {"finalizers": [*finalizers, own]}}, create=False)
        return DesiredObjects(steps=[held_by_us], again=wait)

    def _until_stale(self, raw: RawObject, ref: Ref, view: View, now: float) -> float | None:
        """Return the seconds until a member that is away is given up; None while it is not away.

        A ClusterSet's status tells since when. That no clock is compared with another one's matters: a member with
        a wrong clock stays, and when this one steps only members that are away already can be given up too early.
        """
        patience = self._settings.stale_after
        for cluster_set in view.list(Kind.CLUSTER_SET, namespace=ref.namespace):
            if name_of(cluster_set) == text_at(raw, "clusterSetID"):
                ready = find(conditions_by_cluster(cluster_set).get(text_at(raw, "clusterID")), "Ready")
                since = time_of(ready.get("lastTransitionTime"))
                return since + patience - now if is_lost(ready, raw) and since is not None else None
        return patience - view.quiet_for(ref)  # it announces itself to a ClusterSet that is not here


def _export_ref(raw: RawObject) -> Ref:
    return Ref(kind=Kind.RESOURCE_EXPORT, namespace=namespace_of(raw), name=name_of(raw))


def _identity(raw: RawObject | None) -> object:
    """Return all of an announcement that this reconciler looks at."""
    if raw is None:
        return None
    fields = tuple(text_at(raw, field) for field in ("clusterID", "clusterSetID"))
    return (fields, is_deleting(raw), raw["metadata"].get("finalizers"))
