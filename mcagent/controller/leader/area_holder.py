"""One controller leads a ClusterSet: the reconciler that claims it, and the guard of all other reconcilers.

A key is "area/name" of a leader's ClusterSet. It owns the two annotations of `contract.area_holder`. The mark of
a refused controller is removed after REFUSED_KEPT; one that is still refused writes it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract.area_holder import (
    HOLDER_ANNOTATION,
    REFUSED_HOLDER_ANNOTATION,
    SECOND_CONTROLLER,
    holders,
    may_lead,
    message,
)
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.leader.cluster_set import ONE_CONTROLLER
from mcagent.controller.leader.members import REFUSED_KEPT
from mcagent.controller.machinery.reconciler import (
    Access,
    AnyIndex,
    DesiredObjects,
    ObjectChange,
    Reconciler,
    Ref,
    View,
    Wanted,
)
from mcagent.controller.settings import LeaderSettings
from mcagent.model.api.base import condition_of
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.api.patches import annotated
from mcagent.model.event import Event
from mcagent.model.objects import Kind


class AreaHolder:
    """Claims the ClusterSets of no other controller, and reports two controllers."""

    name = "area-holder"
    needs_leader = False
    reads = Access(local={Kind.CLUSTER_SET})
    writes = Access(local={Kind.CLUSTER_SET})
    indexes: Sequence[AnyIndex] = ()

    def __init__(self, settings: LeaderSettings) -> None:
        self._home = settings.home

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return the ClusterSet that changed."""
        return [change.object.key]

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all ClusterSets."""
        return [cluster_set.key for cluster_set in view.list(ClusterSet)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ClusterSet's annotations."""
        area, name = key.split("/", 1)
        ref = Ref(kind=Kind.CLUSTER_SET, namespace=area, name=name)
        cluster_set = view.get(ref, ClusterSet)
        if not self._home or cluster_set is None or cluster_set.is_deleting or not cluster_set.is_leaders:
            return DesiredObjects()
        notes: dict[str, str | None] = {}
        again = None
        holder, refused = holders(cluster_set)
        if not may_lead(cluster_set, self._home):
            if not refused:
                notes[REFUSED_HOLDER_ANNOTATION] = self._home
        else:
            if holder != self._home:
                notes[HOLDER_ANNOTATION] = self._home
            since = time_of(condition_of(cluster_set.status.conditions, ONE_CONTROLLER).last_transition_time)
            if refused and since is not None:
                again = since + REFUSED_KEPT - now
            if refused == self._home or (again is not None and again <= 0):
                notes[REFUSED_HOLDER_ANNOTATION] = None
                again = None  # the write brings the key back
        text = message(cluster_set)
        events = [Event(subject=str(ref), reason=SECOND_CONTROLLER, message=text)] if text else []
        steps = [Wanted(ref=ref, body=annotated(ClusterSet, notes), create=False)] if notes else []
        return DesiredObjects(steps=steps, events=events, again=again)


class Guarded:
    """A reconciler that does nothing in a Common Area that the controller of another namespace leads."""

    def __init__(self, reconciler: Reconciler, home: str) -> None:
        self._reconciler, self._home = reconciler, home
        self.name, self.needs_leader = reconciler.name, reconciler.needs_leader
        self.writes, self.indexes = reconciler.writes, reconciler.indexes
        self.reads = Access(local=reconciler.reads.local | {Kind.CLUSTER_SET}, leader=reconciler.reads.leader)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the keys that a change touches: all of a Common Area that this controller may lead now."""
        old, new = change.of(ClusterSet)
        if old is not None and new is not None and not self._may_lead([old]) and self._may_lead([new]):
            return [key for key in self.all_keys(view) if _area(key) == new.namespace]
        return self._reconciler.keys(change, view) if change.kind in self._reconciler.reads.local else ()

    def all_keys(self, view: View) -> Iterable[str]:
        """Return every key."""
        return self._reconciler.all_keys(view)

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return what the objects of a key should be, unless another controller decides it."""
        if not self._may_lead(view.list(ClusterSet, namespace=_area(key))):
            return DesiredObjects()
        return self._reconciler.desired(key, view, now)

    def _may_lead(self, cluster_sets: Iterable[ClusterSet]) -> bool:
        return all(may_lead(cluster_set, self._home) for cluster_set in cluster_sets if cluster_set.is_leaders)


def _area(key: str) -> str:
    return key.partition("/")[0]
