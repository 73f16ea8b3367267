"""The reconciler of leaving a ClusterSet: what a deleted ClusterSet waits for.

A key is the ClusterSet's name. It takes our finalizer off. The finalizer keeps the ClusterSet, and with it who the
leader is, until all that was made here is gone (`cleanup`) and the leader knows, even if this controller did not
run when the ClusterSet was deleted. A leader that cannot be reached does not hold it up for long.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View
from mcagent.controller.member.announce import announce_ref
from mcagent.controller.member.cleanup import OWNED, owned
from mcagent.controller.member.exports import BY_CLUSTER, export_ref
from mcagent.controller.member.membership import cluster_set_of, released
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.event import Event
from mcagent.model.objects import Kind

PATIENCE = 60.0  # seconds that a leader which cannot be reached holds up leaving
LOOK = 1.0  # seconds between checks of what is left


class Leave:
    """Lets a deleted ClusterSet go when all that it brought has gone."""

    name = "leave"
    needs_leader = False
    reads = Access(local={Kind.CLUSTER_SET, *OWNED}, leader={Kind.RESOURCE_EXPORT})
    writes = Access(local={Kind.CLUSTER_SET}, leader={Kind.RESOURCE_EXPORT, Kind.MEMBER_CLUSTER_ANNOUNCE})
    indexes = (BY_CLUSTER,)

    def __init__(self, settings: MemberSettings) -> None:
        """Nothing of the settings is needed."""

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the deleted ClusterSets when one of them changes; the rest is checked once a second."""
        return self.all_keys(view) if change.kind is Kind.CLUSTER_SET else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return the deleted ClusterSets of this namespace."""
        return [
            cluster_set.name
            for cluster_set in view.list(ClusterSet, namespace=view.namespace)
            if cluster_set.is_deleting
        ]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the next step of leaving: wait for the clean-up here, tell the leader, let the ClusterSet go."""
        ref = Ref(kind=Kind.CLUSTER_SET, namespace=view.namespace, name=key)
        chosen = cluster_set_of(view)
        if chosen is None or chosen.name != key or not chosen.is_deleting:
            return DesiredObjects()
        if names.MEMBER_FINALIZER not in chosen.metadata.finalizers:
            return DesiredObjects()
        leader = view.leader if view.leader is not None and view.leader.cluster_set == key else None
        if next(owned(view), None) is not None:
            return DesiredObjects(again=LOOK)
        late = view.quiet_for(ref) >= PATIENCE
        if leader is not None and leader.connected and leader.synced and not late:
            # With the announcement the leader deletes what was exported; what came after that goes like this.
            exports = view.indexed(BY_CLUSTER, leader.cluster_id)
            remaining_exports = [export_ref(leader, export.name) for export in exports if not export.is_deleting]
            last = [] if exports else [released(chosen, view)]
            return DesiredObjects(steps=[*remaining_exports, announce_ref(leader), *last], again=LOOK)
        if not late:
            return DesiredObjects(again=LOOK)
        message = "the leader could not be notified: it removes this cluster after a day without heartbeats"
        return DesiredObjects(
            steps=[released(chosen, view)],
            events=[Event(subject=str(ref), reason="LeaderNotTold", message=message)],
        )
