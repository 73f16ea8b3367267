"""The reconciler of a member's ClusterSet: its status, its finalizer, and the ID of this cluster.

A key is the ClusterSet's name. It fills an empty `spec.clusterID` from the ClusterClaim that held it in older
versions. `leave` reconciles a deleted ClusterSet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import claimed
from mcagent.controller.contract.cluster_uid import DUPLICATE, is_refusal
from mcagent.controller.contract.conditions import FALSE, TRUE, UNKNOWN, by_type, condition
from mcagent.controller.contract.health import health_condition
from mcagent.controller.contract.instances import is_waiting
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
from mcagent.controller.member.health import KINDS, changes_health, seen_cluster
from mcagent.controller.member.leader_token import LEADER_TOKEN, token_conditions, token_state
from mcagent.controller.member.membership import (
    DISCONNECTED,
    NOT_ANNOUNCED,
    NOT_CONNECTED,
    NOT_TAKEN,
    cluster_set_of,
    released,
)
from mcagent.controller.member.published import EXPORT_RANGE, POD_RANGE, range_conditions
from mcagent.core.health import HealthReason, cluster_health
from mcagent.model.api.base import condition_of
from mcagent.model.api.multicluster import (
    ApiClusterSetStatus,
    ApiClusterStatus,
    ClusterClaim,
    ClusterSet,
    ClusterSetSpec,
)
from mcagent.model.api.patches import UNSET, metadata_patch, patch
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind

# Seconds: acceptance of the announcement is not part of an object, so no event enqueues the key.
LOOK_AGAIN, CHECK_AGAIN = 0.5, 5.0
_NOT_KEPT = "the leader's older CRDs drop"


class MemberClusterSet:
    """Writes status and finalizer of the member's ClusterSet."""

    name = "membership"
    needs_leader = False
    reads = Access(local={Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM, *KINDS})
    writes = Access(local={Kind.CLUSTER_SET})
    indexes = ()

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the ClusterSets that a change touches: all of this namespace, of which one is joined."""
        touched = (
            change.side is Side.LOCAL
            and change.object.namespace == view.namespace
            and change.kind in (Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM)
        )
        return self.all_keys(view) if touched or (change.side is Side.LOCAL and changes_health(change)) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all ClusterSets of this namespace."""
        return [cluster_set.name for cluster_set in view.list(ClusterSet, namespace=view.namespace)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return status, finalizer and cluster ID of the ClusterSet."""
        ref = Ref(kind=Kind.CLUSTER_SET, namespace=view.namespace, name=key)
        cluster_set, chosen = view.get(ref, ClusterSet), cluster_set_of(view)
        if cluster_set is None:
            return DesiredObjects()
        finalizers = cluster_set.metadata.finalizers
        if chosen is None or chosen.name != key:
            return _not_chosen(cluster_set, ref, chosen, now)
        leader = view.leader if view.leader is not None and view.leader.cluster_set == key else None
        if cluster_set.is_deleting:
            return DesiredObjects()  # `leave` reconciles it
        has_finalizer = names.MEMBER_FINALIZER in finalizers
        metadata = metadata_patch(finalizers=None if has_finalizer else [*finalizers, names.MEMBER_FINALIZER])
        claims = view.list(ClusterClaim, namespace=view.namespace)
        is_missing = not cluster_set.spec.cluster_id and names.is_cluster_id(claimed(claims))
        spec = patch(ClusterSetSpec, cluster_id=claimed(claims) if is_missing else UNSET)
        before = cluster_set.status.conditions
        status, reason, message = _state(cluster_set, claims, leader, view)
        events = []
        if status == FALSE and reason not in (NOT_TAKEN, DUPLICATE):  # which `announce` reports as an Event
            events.append(Event(subject=str(ref), reason=reason, message=message))
        observed = seen_cluster(cluster_set, view, away=message if reason == DISCONNECTED else "")
        health = cluster_health(observed, now)
        events += [
            Event(subject=str(ref), reason=finding.reason, message=finding.message)
            for finding in health.findings
            if finding.error and finding.reason is not HealthReason.AWAY  # which is above
        ]
        unknown = (
            "" if any(gateway.cluster_id for gateway in observed.gateways) else "no agent of a gateway reports"
        )
        token = token_state(leader, cluster_set.namespace, now) if leader is not None else None
        if token is not None and token[0] == FALSE:
            events.append(Event(subject=str(ref), reason=token[1], message=token[2]))
        own = [
            condition(before, "Ready", status, reason=reason, message=message, now=now),
            health_condition(before, health.summary, now, unknown=unknown),
            *range_conditions(cluster_set, now),
            *token_conditions(cluster_set, token, now),
        ]
        set_status = _status(cluster_set, (status, reason, message), now)
        status_step = Wanted(
            ref=ref,
            body=patch(ClusterSet, metadata=metadata, spec=spec, status=set_status),
            conditions=by_type(own, (EXPORT_RANGE, POD_RANGE, LEADER_TOKEN)),
            create=False,
        )
        again = math.inf if leader is None else CHECK_AGAIN if status == TRUE else LOOK_AGAIN
        again = min(again, health.wake)
        return DesiredObjects(steps=[status_step], events=events, again=again if math.isfinite(again) else None)


def _state(
    cluster_set: ClusterSet, claims: Sequence[ClusterClaim], leader: Leader | None, view: View
) -> tuple[str, str, str]:
    """Return status, reason and message of the condition Ready: the leader has this cluster's announcement."""
    try:
        membership([cluster_set], claims)
    except InputError as err:
        return FALSE, "InvalidClusterSet", f"{err.path}: {err.reason}"
    accepted = leader is not None and view.accepted(announce_ref(leader))  # known from the first question on
    refusal = view.failure(announce_ref(leader)) if leader is not None else ""
    last = condition_of(cluster_set.status.conditions, "Ready")
    if last.reason == DUPLICATE and not accepted:  # also after a restart, and while the leader is away
        return FALSE, DUPLICATE, refusal if is_refusal(refusal) else last.message
    if leader is None:
        return UNKNOWN, NOT_CONNECTED, "Leader not yet connected"
    if not leader.connected:
        why = f": {leader.error}" if leader.error else ""
        return FALSE, DISCONNECTED, f"Disconnected from leader{why}"
    if not leader.synced:
        return UNKNOWN, NOT_CONNECTED, "Leader not yet connected"
    if is_refusal(refusal):
        return FALSE, DUPLICATE, refusal
    if is_waiting(refusal):
        return UNKNOWN, NOT_ANNOUNCED, refusal
    if refusal:
        return FALSE, NOT_TAKEN, f"the leader does not accept this cluster's announcement: {refusal}"
    if not accepted:
        return UNKNOWN, NOT_ANNOUNCED, "the leader has no announcement of this cluster yet"
    dropped_fields = view.dropped_fields(Side.LEADER)
    return TRUE, "Connected", f"{_NOT_KEPT}: {', '.join(dropped_fields)}" if dropped_fields else ""


def _status(cluster_set: ClusterSet, ready: tuple[str, str, str], now: float) -> ApiClusterSetStatus:
    """Return the status without conditions. Its only cluster is the leader: members read no announcements."""
    status, reason, message = ready
    connected = TRUE if status == TRUE else FALSE
    last = cluster_set.conditions_of(cluster_set.leader_id)
    conditions = (
        condition(last, "Ready", status, reason=reason, message=message, now=now),
        condition(last, "IsLeader", connected if status != UNKNOWN else UNKNOWN, now=now),
        condition(last, "ClusterConnected", connected, now=now),
    )
    return patch(
        ApiClusterSetStatus,
        total_clusters=1,
        ready_clusters=1 if status == TRUE else 0,
        observed_generation=cluster_set.metadata.generation,
        cluster_statuses=(ApiClusterStatus(cluster_id=cluster_set.leader_id, conditions=conditions),),
    )


def _not_chosen(cluster_set: ClusterSet, ref: Ref, chosen: ClusterSet | None, now: float) -> DesiredObjects:
    """Return the status of a ClusterSet that is not joined: a leader's, or not the oldest of this namespace."""
    if names.MEMBER_FINALIZER in cluster_set.metadata.finalizers and cluster_set.is_deleting:
        return DesiredObjects(steps=[released(cluster_set)])
    if chosen is None or not cluster_set.leader_server:
        return DesiredObjects()
    message = f"ClusterSet {chosen.name} is older: a cluster is a member of one ClusterSet at a time"
    before = cluster_set.status.conditions
    ready = condition(before, "Ready", FALSE, reason="AnotherClusterSet", message=message, now=now)
    body = patch(ClusterSet, status=patch(ApiClusterSetStatus, total_clusters=0, ready_clusters=0))
    step = Wanted(ref=ref, body=body, conditions={"Ready": ready}, create=False)
    is_new = not condition_of(before, "Ready").status
    events = [Event(subject=str(ref), reason="AnotherClusterSet", message=message)] if is_new else []
    return DesiredObjects(steps=[step], events=events)
