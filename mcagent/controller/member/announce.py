"""The reconciler of this cluster's MemberClusterAnnounce on the leader, which makes it a member; its heartbeat.

A heartbeat has the time at which its period began, so there is one write a period however often the key is
reconciled; the clusters' IDs spread them over the period. The object is not watched, because the watch would
deliver the announcements of all members. It also reports the policies of the ClusterSet that are not applied
here, what is left out of imported Services, and the links to other clusters: a tunnel that goes up or down is
reported at once, the rest with the next heartbeat. It writes no heartbeat into the announcement of another cluster
with the same ID (`cluster_uid`), or of a copy of this cluster (`instances`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import CLUSTER_UID_ANNOTATION, DUPLICATE, is_refusal, refuse
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.health import HEALTH_ANNOTATION, announced_health
from mcagent.controller.contract.instances import (
    INSTANCE_ANNOTATION,
    REFUSED_INSTANCE_ANNOTATION,
    AnnouncementHolder,
    instance_text,
    is_waiting,
)
from mcagent.controller.contract.problems import as_report
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Leader,
    ObjectChange,
    Ref,
    Refusal,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.membership import (
    announcing_leader,
    cluster_set_of,
    concerns_membership,
    is_duplicate,
)
from mcagent.controller.member.policies.consent import read_kinds
from mcagent.controller.member.policies.policy_imports import POLICIES, report
from mcagent.controller.member.services.service_import import ServiceImports
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ApiGateway, MemberClusterAnnounce
from mcagent.model.api.patches import annotated, metadata_patch, patch
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing import links
from mcagent.model.parsing.links import ClusterLink

KEY = "announce"
LOOK_AGAIN = 2.0  # seconds: at an announcement that another process may still hold


class Announce:
    """Announces this cluster to the leader."""

    name = "announce"
    needs_leader = False
    writes = Access(leader={Kind.MEMBER_CLUSTER_ANNOUNCE})
    indexes = (POLICIES,)

    def __init__(self, settings: MemberSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._period, self._clock = settings, settings.heartbeat_period, clock
        self._holder = AnnouncementHolder(settings.instance)  # what others' heartbeats are is in no object of here
        kinds = {Kind.CLUSTER_SET, Kind.GATEWAY, *read_kinds(settings)}
        self.reads = Access(local=kinds, leader={Kind.RESOURCE_IMPORT})

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return KEY if membership changed, or a link went up or down."""
        if change.kind is Kind.CLUSTER_SET and announced_health(change.old) != announced_health(change.new):
            return [KEY]
        if change.kind is Kind.GATEWAY:
            return [KEY] if _states(change.old) != _states(change.new) else []
        return [KEY] if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return KEY."""
        return [KEY]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the announcement with the heartbeat of this period."""
        leader, cluster_set = announcing_leader(view), cluster_set_of(view)
        if leader is None or cluster_set is None or not leader.connected:
            return DesiredObjects()  # a change enqueues the key again
        offset = zlib.crc32(leader.cluster_id.encode()) / 2**32 * self._period
        beat = (now - offset) // self._period * self._period + offset
        ref = announce_ref(leader)
        notes: dict[str, str | None] = {names.HEARTBEAT_ANNOTATION: time_text(beat)}
        notes[links.ANNOTATION] = _links(view)
        notes[HEALTH_ANNOTATION] = announced_health(cluster_set)
        if uid := self._settings.cluster_uid:
            notes[CLUSTER_UID_ANNOTATION] = uid
        if self._settings.instance:
            notes[INSTANCE_ANNOTATION] = instance_text(self._settings.instance, self._period)
        if leader.synced:  # else the policies are unknown
            notes[names.POLICY_PROBLEMS_ANNOTATION] = as_report(report(view, leader, self._settings, now))
            if now >= leader.since + self._period:  # else not every import has been reconciled
                notes[names.IMPORT_PROBLEMS_ANNOTATION] = as_report(_import_problems(view))
        events = []
        again = beat + self._period - now
        if self._holder.refused == self._settings.instance:  # it was the copy, until it took over
            notes[REFUSED_INSTANCE_ANNOTATION] = None
        elif self._holder.refused:
            message = (
                f"another cluster announced itself with the ID of this one, {leader.cluster_id}, and was refused: "
                f"it is a copy of this cluster (its controller is {self._holder.refused})"
            )
            events.append(Event(subject=cluster_set.subject, reason=DUPLICATE, message=message))
        if is_waiting(failure := view.failure(ref)):
            again = min(again, LOOK_AGAIN)
        elif failure:
            message = f"this cluster cannot announce itself to the leader: {failure}"
            reason = DUPLICATE if is_refusal(failure) else "AnnounceFailed"
            events.append(Event(subject=cluster_set.subject, reason=reason, message=message))
        duplicate = is_duplicate(cluster_set)
        body = patch(
            MemberClusterAnnounce,
            metadata=metadata_patch(annotations=notes),
            cluster_id=leader.cluster_id,
            cluster_set_id=leader.cluster_set,
            leader_cluster_id=leader.leader_cluster_id,
        )
        step = Wanted(
            ref=ref, body=body, refuse=lambda present: self._refuse(present, leader, duplicate=duplicate)
        )
        return DesiredObjects(steps=[step], events=events, again=again)

    def _refuse(self, present: ApiObject, leader: Leader, duplicate: bool) -> Refusal | None:
        """Return why the present announcement cannot be this cluster's; None: it can."""
        if present.is_deleting:
            return Refusal(reason="the leader still removes the earlier announcement of this cluster ID")
        return refuse(present, leader.cluster_id, self._settings.cluster_uid) or self._holder.refuse(
            present, leader.cluster_id, self._clock(), duplicate=duplicate
        )


def released_announcement(view: View, settings: MemberSettings) -> Sequence[Wanted]:
    """Return the write after which another process may announce this cluster at once."""
    leader = announcing_leader(view)
    if leader is None or not leader.connected or not settings.instance:
        return ()
    text = instance_text(settings.instance, settings.heartbeat_period)

    def refuse_others(present: ApiObject) -> Refusal | None:
        holder = present.annotation(INSTANCE_ANNOTATION)
        return None if holder in (text, None) else Refusal(reason="another process announces this cluster")

    body = annotated(MemberClusterAnnounce, {INSTANCE_ANNOTATION: None})
    return [Wanted(ref=announce_ref(leader), body=body, create=False, refuse=refuse_others)]


def _import_problems(view: View) -> dict[str, str]:
    """Return what is left out of imported Services, by "name.namespace". A missing Namespace is no warning."""
    problems: dict[str, str] = {}
    for key, events in view.events(ServiceImports.name).items():
        namespace, _, name = key.partition("/")
        if reasons := sorted(f"{event.reason}: {event.message}" for event in events if event.warning):
            problems[f"{name}.{namespace}"] = "; ".join(reasons)
    return problems


def _links(view: View) -> str | None:
    """Return the links of this cluster's gateways to other clusters, merged, as text; None: there are none."""
    gateways = view.list(ApiGateway, namespace=view.namespace)
    announced = links.most_telling(links.merged(map(_reported, gateways)))
    return links.as_text(announced) if announced else None


def _reported(gateway: ApiObject | None) -> Sequence[ClusterLink]:
    return links.read(gateway.status.links) if isinstance(gateway, ApiGateway) else ()


def _states(gateway: ApiObject | None) -> object:
    return [(link.cluster, link.live, link.tunnels) for link in _reported(gateway)]


def announce_ref(leader: Leader) -> Ref:
    """Return the reference to this cluster's announcement on the leader."""
    return Ref(
        side=Side.LEADER,
        kind=Kind.MEMBER_CLUSTER_ANNOUNCE,
        namespace=leader.namespace,
        name=names.announce(leader.cluster_id),
    )
