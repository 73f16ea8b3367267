"""The reconciler of members, from their announcement until all their exports are deleted.

A key is "area/announce". It owns the finalizer of the MemberClusterAnnounce. It deletes the exports of a member
whose announcement is being deleted, and the announcement of a member without heartbeats for `stale_after`. The
ClusterSet's status (`cluster_set`) has the time of the last heartbeat, so it outlasts a restart. It removes the
mark of a refused cluster (`cluster_uid`, `instances`) after REFUSED_KEPT; a cluster that is still refused writes
it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import REFUSED_UID_ANNOTATION
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.contract.instances import REFUSED_INSTANCE_ANNOTATION
from mcagent.controller.leader.cluster_set import READY, UNIQUE, is_lost, marks, ready_of
from mcagent.controller.leader.exports.header import BY_CLUSTER, announce_ref, announces, by_cluster
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.settings import LeaderSettings
from mcagent.model.api.base import ApiObject, condition_of
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce, ResourceExport
from mcagent.model.api.patches import metadata_patch, patch
from mcagent.model.event import Event
from mcagent.model.objects import Kind

REFUSED_KEPT = 3600.0  # seconds
_FINALIZER = names.announce_finalizer("")


class Members:
    """Removes the exports of members that leave, and members without heartbeats."""

    name = "members"
    needs_leader = False
    reads = Access(local={Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.RESOURCE_EXPORT, Kind.CLUSTER_SET})
    writes = Access(local={Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.RESOURCE_EXPORT})
    indexes = (BY_CLUSTER,)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the announcements that a change touches. A heartbeat touches none."""
        changed = change.object
        area = changed.namespace
        match changed:
            case MemberClusterAnnounce():
                return [] if _identity(change.old) == _identity(change.new) else [changed.key]
            case ClusterSet():
                return [
                    f"{area}/{names.announce(status.cluster_id)}"
                    for status in changed.status.cluster_statuses
                    if any(condition_of(status.conditions, kind).is_false for kind in (READY, UNIQUE))
                ]
            case ResourceExport():
                ref = announce_ref(area, changed.spec.cluster_id)
                announce = view.get(ref, MemberClusterAnnounce)
                return [f"{area}/{ref.name}"] if announce is not None and announce.is_deleting else []
        return []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all announcements."""
        return [announce.key for announce in view.list(MemberClusterAnnounce)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the announcement's finalizer, or the objects to delete."""
        area, name = key.split("/", 1)
        ref = Ref(kind=Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=area, name=name)
        announce = view.get(ref, MemberClusterAnnounce)
        if announce is None:
            return DesiredObjects()
        finalizers, cluster = list(announce.metadata.finalizers), announce.cluster_id
        if announce.is_deleting:
            exports = view.indexed(BY_CLUSTER, by_cluster(area, cluster)) if cluster else ()
            remaining_exports = [Ref.of(export) for export in exports if not export.is_deleting]
            if exports:
                return DesiredObjects(steps=remaining_exports)  # their deletion enqueues this key again
            foreign = [f for f in finalizers if not f.startswith(_FINALIZER)]
            body = patch(MemberClusterAnnounce, metadata=metadata_patch(finalizers=foreign))
            released = Wanted(ref=ref, body=body, create=False)
            return DesiredObjects(steps=[released] if foreign != finalizers else [])
        if not announces(announce):
            return DesiredObjects()
        wait = self._until_stale(announce, ref, view, now)
        if wait is not None and wait <= 0:
            why = f"cluster {cluster} has been away for {self._settings.stale_after:g} s: no longer a member"
            return DesiredObjects(
                steps=[ref], events=[Event(subject=str(ref), reason="MemberRemoved", message=why)]
            )
        own = names.announce_finalizer(cluster)
        notes: dict[str, None] = {}
        forgotten = _until_forgotten(announce, view, now)
        if forgotten is not None and forgotten <= 0:
            notes = dict.fromkeys((REFUSED_UID_ANNOTATION, REFUSED_INSTANCE_ANNOTATION))
            forgotten = None
        waits = [seconds for seconds in (wait, forgotten) if seconds is not None]
        meta = metadata_patch(annotations=notes, finalizers=None if own in finalizers else [*finalizers, own])
        body = patch(MemberClusterAnnounce, metadata=meta)
        steps = [Wanted(ref=ref, body=body, create=False)] if notes or own not in finalizers else []
        return DesiredObjects(steps=steps, again=min(waits, default=None))

    def _until_stale(self, announce: MemberClusterAnnounce, ref: Ref, view: View, now: float) -> float | None:
        """Return the seconds until a member without heartbeats is removed; None while it has heartbeats.

        The ClusterSet's status has the start. Clocks of different machines are not compared: a member with a wrong
        clock stays, and a step of this clock can shorten the time only of members that are away already.
        """
        patience = self._settings.stale_after
        for cluster_set in view.list(ClusterSet, namespace=ref.namespace):
            if cluster_set.name == announce.cluster_set_id:
                ready = ready_of(cluster_set, announce.cluster_id)
                since = time_of(ready.last_transition_time)
                return since + patience - now if is_lost(ready, announce) and since is not None else None
        return patience - view.quiet_for(ref)  # its ClusterSet does not exist here


def _until_forgotten(announce: MemberClusterAnnounce, view: View, now: float) -> float | None:
    """Return the seconds until the mark of a refused cluster is removed; None: the status reports none."""
    if not any(marks(announce)[1:]):
        return None
    for cluster_set in view.list(ClusterSet, namespace=announce.namespace):
        if cluster_set.name == announce.cluster_set_id:
            unique = condition_of(cluster_set.conditions_of(announce.cluster_id), UNIQUE)
            since = time_of(unique.last_transition_time)
            return since + REFUSED_KEPT - now if unique.is_false and since is not None else None
    return None


def _identity(announce: ApiObject | None) -> object:
    """Return the fields of an announcement that this reconciler reads."""
    if not isinstance(announce, MemberClusterAnnounce):
        return None
    fields = (announce.cluster_id, announce.cluster_set_id, *marks(announce)[1:])
    return (fields, announce.is_deleting, announce.metadata.finalizers)
