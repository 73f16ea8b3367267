"""The reconciler of leaving a ClusterSet: it removes the finalizer from a deleted ClusterSet.

A key is the ClusterSet's name. The finalizer keeps the ClusterSet, which names the leader, until `cleanup` has
deleted all objects of the membership and this cluster's announcement and exports are removed from the leader,
even if this controller did not run when the ClusterSet was deleted. It waits PATIENCE for a leader that cannot
be reached. A cluster whose ID another cluster holds (`cluster_uid`) deletes nothing on the leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import REFUSED_UID_ANNOTATION, is_refusal, refuse
from mcagent.controller.contract.instances import REFUSED_INSTANCE_ANNOTATION
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.member.announce import announce_ref
from mcagent.controller.member.cleanup import owned, owned_kinds
from mcagent.controller.member.exports import BY_CLUSTER, export_ref
from mcagent.controller.member.membership import cluster_set_of, is_duplicate, refused_writes, released
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce
from mcagent.model.api.patches import annotated
from mcagent.model.event import Event
from mcagent.model.objects import Kind

PATIENCE = 60.0  # seconds to wait for a leader that cannot be reached
LOOK = 1.0  # seconds between checks of the remaining objects


class Leave:
    """Removes the finalizer from a deleted ClusterSet after the objects of the membership."""

    name = "leave"
    needs_leader = False
    writes = Access(local={Kind.CLUSTER_SET}, leader={Kind.RESOURCE_EXPORT, Kind.MEMBER_CLUSTER_ANNOUNCE})
    indexes = (BY_CLUSTER,)

    def __init__(self, settings: MemberSettings) -> None:
        self._settings, self._kinds = settings, owned_kinds(settings)
        self.reads = Access(local={Kind.CLUSTER_SET, *self._kinds}, leader={Kind.RESOURCE_EXPORT})

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the deleted ClusterSets if one changes; `desired` repeats the other checks each second."""
        return self.all_keys(view) if change.kind is Kind.CLUSTER_SET else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return the deleted ClusterSets of this namespace."""
        return [
            cluster_set.name
            for cluster_set in view.list(ClusterSet, namespace=view.namespace)
            if cluster_set.is_deleting
        ]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the next step: wait for the clean-up, delete announcement and exports, remove the finalizer."""
        ref = Ref(kind=Kind.CLUSTER_SET, namespace=view.namespace, name=key)
        chosen = cluster_set_of(view)
        if chosen is None or chosen.name != key or not chosen.is_deleting:
            return DesiredObjects()
        if names.MEMBER_FINALIZER not in chosen.metadata.finalizers:
            return DesiredObjects()
        leader = view.leader if view.leader is not None and view.leader.cluster_set == key else None
        if (remaining := next(owned(view, self._kinds), None)) is not None:
            events = tuple(refused_writes([Ref.of(remaining)], view, chosen.subject, "NotCleanedUp"))
            return DesiredObjects(events=events, again=LOOK)
        late = view.quiet_for(ref) >= PATIENCE
        if leader is not None and leader.connected and leader.synced and not late:
            announce, uid = announce_ref(leader), self._settings.cluster_uid
            if is_refusal(view.failure(announce)) or is_duplicate(chosen):
                marks = dict.fromkeys((REFUSED_UID_ANNOTATION, REFUSED_INSTANCE_ANNOTATION))
                unmarked = Wanted(ref=announce, body=annotated(MemberClusterAnnounce, marks), create=False)
                return DesiredObjects(steps=[unmarked, released(chosen)], again=LOOK)
            checked = Wanted(
                ref=announce, create=False, refuse=lambda present: refuse(present, leader.cluster_id, uid)
            )
            exports = view.indexed(BY_CLUSTER, leader.cluster_id)
            # The leader deletes the exports with the announcement; these are later ones.
            remaining_exports = [export_ref(leader, export.name) for export in exports if not export.is_deleting]
            last = [] if exports else [released(chosen)]
            return DesiredObjects(steps=[checked, *remaining_exports, announce, *last], again=LOOK)
        if not late:
            return DesiredObjects(again=LOOK)
        message = "the leader could not be notified: it removes this cluster after a day without heartbeats"
        return DesiredObjects(
            steps=[released(chosen)],
            events=[Event(subject=str(ref), reason="LeaderNotTold", message=message)],
        )
