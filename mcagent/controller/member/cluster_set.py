"""The reconciler of a member's ClusterSet: its status, its finalizer, and the ID of this cluster.

A key is the ClusterSet's name. It fills an empty `spec.clusterID` from the ClusterClaim that held it in older
versions. What happens once the ClusterSet is deleted is in `leave`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import claimed
from mcagent.controller.contract.conditions import FALSE, TRUE, UNKNOWN, condition, find
from mcagent.controller.contract.raw import (
    is_deleting,
    items_at,
    name_of,
    namespace_of,
    text_at,
    texts_at,
    value_at,
)
from mcagent.controller.machinery.connection.membership import membership
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Leader,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.announce import announce_ref
from mcagent.controller.member.membership import NOT_TAKEN, cluster_set_of
from mcagent.controller.settings import MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind

# Seconds: whether the leader takes the announcement is no object, and wakes nobody.
LOOK_AGAIN, CHECK_AGAIN = 0.5, 5.0
_NOT_KEPT = "the leader's older CRDs drop"


class MemberClusterSet:
    """Keeps the ClusterSet's status."""

    name = "membership"
    needs_leader = False
    reads = Access(local={Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM})
    writes = Access(local={Kind.CLUSTER_SET})
    indexes = ()

    def __init__(self, settings: MemberSettings) -> None:
        """Nothing of the settings is needed."""

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the ClusterSets that a change touches: all of this namespace, as only one of them counts."""
        here = change.side is Side.LOCAL and namespace_of(change.new or change.old) == view.namespace
        touched = here and change.kind in (Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM)
        return self.all_keys(view) if touched else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all ClusterSets of this namespace."""
        return [name_of(raw) for raw in view.list(Kind.CLUSTER_SET, namespace=view.namespace)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ClusterSet's status."""
        ref = Ref(kind=Kind.CLUSTER_SET, namespace=view.namespace, name=key)
        raw, chosen = view.get(ref), cluster_set_of(view)
        if raw is None:
            return DesiredObjects()
        finalizers = texts_at(raw, "metadata", "finalizers")
        if chosen is None or name_of(chosen) != key:
            return _not_chosen(raw, ref, chosen, now)
        leader = view.leader if view.leader is not None and view.leader.cluster_set == key else None
        if is_deleting(raw):
            return DesiredObjects()  # `leave` has it
        body: RawObject = {}
        if names.MEMBER_FINALIZER not in finalizers:
            body["metadata"] = {"finalizers": [*finalizers, names.MEMBER_FINALIZER]}
        claims = view.list(Kind.CLUSTER_CLAIM, namespace=view.namespace)
        if not text_at(raw, "spec", "clusterID"):
            found = claimed(claims)
            if isinstance(found, str) and names.is_cluster_id(found):
                body["spec"] = {"clusterID": found}
        status, reason, message = _state(raw, claims, leader, view)
        events = []
        if status == FALSE and reason != NOT_TAKEN:  # of that `announce` makes an Event
            events.append(Event(subject=str(ref), reason=reason, message=message))
        wanted = Wanted(ref=ref, body=body, status=_status(raw, (status, reason, message), now), create=False)
        again = None if leader is None else CHECK_AGAIN if status == TRUE else LOOK_AGAIN
        return DesiredObjects(steps=[wanted], events=events, again=again)


def _state(raw: RawObject, claims: Sequence[RawObject], leader: Leader | None, view: View) -> tuple[str, str, str]:
    """Return status, reason and message of the condition Ready: the leader has this cluster's announcement."""
    try:
        membership([raw], claims)
    except InputError as err:
        return FALSE, "InvalidClusterSet", f"{err.path}: {err.reason}"
    if leader is None:
        return UNKNOWN, "LeaderNotConnected", "Leader not yet connected"
    if not leader.connected:
        why = f": {leader.error}" if leader.error else ""
        return FALSE, "Disconnected", f"Disconnected from leader{why}"
    if not leader.synced:
        return UNKNOWN, "LeaderNotConnected", "Leader not yet connected"
    ref = announce_ref(leader)
    accepted = view.accepted(ref)
    if why := view.failure(ref):
        return FALSE, NOT_TAKEN, f"the leader does not accept this cluster's announcement: {why}"
    if not accepted:
        return UNKNOWN, "NotAnnounced", "the leader has no announcement of this cluster yet"
    lost = view.unkept(Side.LEADER)
    return TRUE, "Connected", f"{_NOT_KEPT}: {', '.join(lost)}" if lost else ""


def _status(raw: RawObject, ready: tuple[str, str, str], now: float) -> RawObject:
    """Return the status: of all clusters a member sees only its leader."""
    status, reason, message = ready
    connected = TRUE if status == TRUE else FALSE
    before = items_at(raw, "status", "conditions")
    leader = next((text_at(item, "clusterID") for item in items_at(raw, "spec", "leaders")), "")
    last: object = None
    for item in items_at(raw, "status", "clusterStatuses"):
        if text_at(item, "clusterID") == leader:
            last = item.get("conditions")
    others = [item for item in before if text_at(item, "type") != "Ready"]
    generation = value_at(raw, "metadata", "generation")
    conditions = [
        condition(last, "Ready", status, reason=reason, message=message, now=now),
        condition(last, "IsLeader", connected if status != UNKNOWN else UNKNOWN, now=now),
        condition(last, "ClusterConnected", connected, now=now),
    ]
    return {
        "totalClusters": 1,
        "readyClusters": 1 if status == TRUE else 0,
        "observedGeneration": generation if isinstance(generation, int) else None,
        "conditions": [condition(before, "Ready", status, reason=reason, message=message, now=now), *others],
        "clusterStatuses": [{"clusterID": leader, "conditions": conditions}],
    }


def _not_chosen(raw: RawObject, ref: Ref, chosen: RawObject | None, now: float) -> DesiredObjects:
    """Return what is written about a ClusterSet that does not count: it is a leader's, or not the first."""
    finalizers = texts_at(raw, "metadata", "finalizers")
    if names.MEMBER_FINALIZER in finalizers and is_deleting(raw):
        rest = [text for text in finalizers if text != names.MEMBER_FINALIZER]
        return DesiredObjects(
            steps=[Wanted(ref=ref, body={"metadata": {"finalizers": rest or None}}, create=False)]
        )
    leaders = items_at(raw, "spec", "leaders")
    if chosen is None or not any(text_at(leader, "server") for leader in leaders):
        return DesiredObjects()
    message = f"ClusterSet {name_of(chosen)} is older: a cluster is a member of one ClusterSet at a time"
    before = items_at(raw, "status", "conditions")
    ready = condition(before, "Ready", FALSE, reason="AnotherClusterSet", message=message, now=now)
    others = [item for item in before if text_at(item, "type") != "Ready"]
    status = {"totalClusters": 0, "readyClusters": 0, "conditions": [ready, *others]}
    events = (
        [Event(subject=str(ref), reason="AnotherClusterSet", message=message)] if not find(before, "Ready") else []
    )
    return DesiredObjects(steps=[Wanted(ref=ref, status=status, create=False)], events=events)
