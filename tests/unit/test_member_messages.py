"""What a member tells users and its leader: states of the ClusterSet, Events, fields of an announcement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import CLUSTER_UID_ANNOTATION, DUPLICATE_MARK
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.export_ranges import RANGE_ANNOTATION
from mcagent.controller.contract.health import HEALTH_ANNOTATION, HEALTHY
from mcagent.controller.contract.instances import INSTANCE_ANNOTATION
from mcagent.controller.contract.pod_ranges import POD_CIDRS_ANNOTATION, POD_RANGE_ANNOTATION
from mcagent.controller.machinery.reconciler import DesiredObjects, Leader, Ref, Side, Wanted
from mcagent.controller.member.announce import Announce, announce_ref
from mcagent.controller.member.cluster_set import MemberClusterSet
from mcagent.controller.member.leave import Leave
from mcagent.controller.member.membership import import_ref, is_for
from mcagent.controller.member.networks.cluster_info import ClusterInfoExport
from mcagent.controller.member.networks.cluster_info_import import ClusterInfoImports
from mcagent.controller.member.networks.discovery import discover_cluster_uid, discover_service_cidr
from mcagent.controller.member.networks.gateways import GatewayElection
from mcagent.controller.member.services.imported import owner_of
from mcagent.controller.member.services.service_import import ServiceImports
from mcagent.controller.settings import IpPrecedence
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ResourceImport, ResourceImportSpec
from mcagent.model.api.patches import UNSET
from mcagent.model.errors import SourceError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import AGENTS_ANNOTATION, MTU_ANNOTATION, SERVICE_CIDR_ANNOTATION
from mcagent.model.parsing.links import ANNOTATION as LINKS_ANNOTATION
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_imports import WEST, endpoints_import, service_import
from tests.worlds.member_changes import changed, gateway, linked
from tests.worlds.member_refusals import REFUSALS
from tests.worlds.member_world import (
    AREA,
    HOME,
    SET,
    Answers,
    cluster_set,
    leader,
    member,
    node,
    north_of,
    service,
    settings,
    slice_of,
)
from tests.worlds.membership import joined, tick
from tests.worlds.memory_objects import typed

SUBJECT = f"ClusterSet {HOME}/{SET}"
REFUSED = f"{DUPLICATE_MARK} another cluster has the ID"


def wanted(outcome: DesiredObjects, place: int = 0) -> Wanted:
    """Return a write of an outcome."""
    step = outcome.steps[place]
    assert isinstance(step, Wanted)
    return step


def events_of(outcome: DesiredObjects) -> list[tuple[str, str, str]]:
    """Return subject, reason and message of the Events."""
    return [(event.subject, event.reason, event.message) for event in outcome.events]


# --- the ClusterSet


def set_of(view: MemoryView, now: float = 0.0) -> DesiredObjects:
    """Return the outcome for the ClusterSet."""
    return MemberClusterSet().desired(SET, view, now)


def ready_of(outcome: DesiredObjects) -> tuple[str, str, str]:
    """Return status, reason and message of the condition Ready."""
    ready = (wanted(outcome).conditions or {})["Ready"]
    assert ready is not None
    return ready.status, ready.reason, ready.message


@pytest.mark.parametrize(
    ("value", "failure", "accepted", "state"),
    [
        (None, "", False, ("Unknown", "LeaderNotConnected", "Leader not yet connected")),
        (leader(synced=False), "", False, ("Unknown", "LeaderNotConnected", "Leader not yet connected")),
        (leader(connected=False), "", True, ("False", "Disconnected", "Disconnected from leader")),
        (
            leader(connected=False, error="no route"),
            "",
            True,
            ("False", "Disconnected", "Disconnected from leader: no route"),
        ),
        (leader(), REFUSED, False, ("False", "DuplicateClusterID", REFUSED)),
        (
            leader(),
            "a rule is missing",
            False,
            (
                *("False", "AnnounceFailed"),
                "the leader does not accept this cluster's announcement: a rule is missing",
            ),
        ),
        (leader(), "", False, ("Unknown", "NotAnnounced", "the leader has no announcement of this cluster yet")),
        (leader(), "", True, ("True", "Connected", "")),
    ],
)
def test_the_cluster_set_says_how_the_membership_is(
    value: Leader | None, failure: str, accepted: bool, state: tuple[str, str, str]
) -> None:
    """In its condition, the number of ready clusters, the conditions of the leader, and the next look."""
    view = member()
    view.leader = value
    ref = announce_ref(leader())
    if failure:
        view.failures[ref] = failure
    if accepted:
        view.successes.add(ref)
    outcome = set_of(view)
    assert ready_of(outcome) == state
    is_ready = state[0] == "True"
    status = cast("Any", wanted(outcome).body).status
    assert (status.total_clusters, status.ready_clusters) == (1, int(is_ready))
    (cluster,) = status.cluster_statuses
    assert cluster.cluster_id == "north"
    shown = {entry.type: (entry.status, entry.reason, entry.message) for entry in cluster.conditions}
    connected = "True" if is_ready else "False"
    assert shown == {
        "Ready": state,
        "IsLeader": ("Unknown" if state[0] == "Unknown" else connected, "", ""),
        "ClusterConnected": (connected, "", ""),
    }
    assert outcome.again == (None if value is None else 5.0 if is_ready else 0.5)
    reported = state[0] == "False" and state[1] == "Disconnected"
    no_gateway = (SUBJECT, "NoGateway", "this cluster has no Gateway")
    assert events_of(outcome) == [*([(SUBJECT, state[1], state[2])] if reported else []), no_gateway]


def test_an_invalid_cluster_set_says_which_field_is_wrong() -> None:
    """In an Event, too."""
    view = member()
    view.local.put(cluster_set("East!"))
    outcome = set_of(view)
    status, reason, message = ready_of(outcome)
    assert (status, reason) == ("False", "InvalidClusterSet")
    assert message.startswith("spec.clusterID: ")
    assert (SUBJECT, reason, message) in events_of(outcome)


def test_a_refused_cluster_stays_refused_until_it_is_accepted() -> None:
    """Also after a restart and while the leader is away; with the last words of the leader."""
    view = member()
    last = {"type": "Ready", "status": "False", "reason": "DuplicateClusterID", "message": "as before"}
    view.local.put(cluster_set() | {"status": {"conditions": [last]}})
    for value in (None, leader(connected=False), leader()):
        view.leader = value
        assert ready_of(set_of(view)) == ("False", "DuplicateClusterID", "as before")
    ref = announce_ref(leader())
    view.failures[ref] = REFUSED
    assert ready_of(set_of(view))[2] == REFUSED
    del view.failures[ref]
    view.successes.add(ref)
    assert ready_of(set_of(view)) == ("True", "Connected", "")


def test_fields_that_the_leader_drops_are_named() -> None:
    """By the leader's API server, not by this cluster's."""
    view = member()
    view.successes.add(announce_ref(leader()))
    view.lost[Side.LOCAL] = ["Gateway x"]
    assert ready_of(set_of(view))[2] == ""
    view.lost[Side.LEADER] = ["ResourceExport a", "ResourceExport b"]
    assert ready_of(set_of(view))[2] == "the leader's older CRDs drop: ResourceExport a, ResourceExport b"


def test_a_cluster_set_gets_its_finalizer_and_the_claimed_id() -> None:
    """Once, beside other finalizers; an ID that it has stays."""
    view = member()
    metadata = {"finalizers": ["other"], "generation": 4}
    view.local.put(changed(cluster_set(""), metadata=metadata))
    claim = {"kind": "ClusterClaim", "metadata": {"name": "id.k8s.io", "namespace": HOME}, "value": "claimed"}
    view.local.put(claim)
    view.local.put(changed(claim, metadata={"namespace": "a"}) | {"value": "another"})
    body = cast("Any", wanted(set_of(view)).body)
    assert (body.metadata.finalizers, body.spec.cluster_id) == (("other", "mcagent.io/member"), "claimed")
    joined_body = cast("Any", wanted(set_of(member())).body)
    assert joined_body.metadata.finalizers is joined_body.spec.cluster_id is UNSET


def test_the_health_of_a_cluster_is_known_from_the_first_report_of_an_agent() -> None:
    """Before, it is unknown; without a Gateway the cluster is not healthy."""

    def healthy(*raws: RawObject) -> tuple[str, str, str]:
        view = member()
        view.local.put(node("n1", "10.0.0.1"))
        for raw in raws:
            view.local.put(raw)
        entry = (wanted(set_of(view)).conditions or {})[HEALTHY]
        assert entry is not None
        return entry.status, entry.reason, entry.message

    assert healthy(gateway(status={"clusterID": "east"})) == ("True", "", "")
    assert healthy(gateway()) == ("Unknown", "NotReported", "no agent of a gateway reports")
    assert healthy() == ("False", "NoGateway", "this cluster has no Gateway")


def test_a_second_cluster_set_names_the_first() -> None:
    """With an Event when that begins; a leader's ClusterSet, and an unknown one, have no status of a member."""
    view = member()
    second = changed(cluster_set(name="second"), metadata={"creationTimestamp": "2999-01-01T00:00:00Z"})
    view.local.put(second)
    reconciler = MemberClusterSet()
    outcome = reconciler.desired("second", view, 0.0)
    message = f"ClusterSet {SET} is older: a cluster is a member of one ClusterSet at a time"
    assert ready_of(outcome) == ("False", "AnotherClusterSet", message)
    assert events_of(outcome) == [(f"ClusterSet {HOME}/second", "AnotherClusterSet", message)]
    status = cast("Any", wanted(outcome).body).status
    assert (status.total_clusters, status.ready_clusters, wanted(outcome).create) == (0, 0, False)
    ready = {"type": "Ready", "status": "False", "reason": "AnotherClusterSet"}
    view.local.put(changed(second, status={"conditions": [ready]}))
    assert events_of(reconciler.desired("second", view, 0.0)) == []
    view.local.put(changed(cluster_set(name="leaders", leaders=[{"clusterID": "east"}])))
    assert reconciler.desired("leaders", view, 0.0) == DesiredObjects()
    assert reconciler.desired("none", view, 0.0) == DesiredObjects()
    view.local.remove(Kind.CLUSTER_SET, HOME, "second")
    release = wanted(reconciler.desired("second", view, 0.0))
    assert cast("Any", release.body).metadata.finalizers is None
    assert release.create is False


# --- the announcement


def announced(view: MemoryView, now: float = 100.0, **values: Any) -> DesiredObjects:
    """Return the outcome of the announcement."""
    return Announce(settings(**values), lambda: now).desired("announce", view, now)


def notes_of(outcome: DesiredObjects) -> Mapping[str, str | None]:
    """Return the annotations of an announcement."""
    annotations: Mapping[str, str | None] = cast("Any", wanted(outcome).body).metadata.annotations
    return annotations


def test_an_announcement_has_what_the_leader_shows() -> None:
    """Heartbeat, links, health, and who announces it; what is not known is left out or removed."""
    view = member()
    body = cast("Any", wanted(announced(view)).body)
    assert (body.cluster_id, body.cluster_set_id, body.leader_cluster_id) == ("east", SET, "north")
    assert wanted(announced(view)).ref == Ref(
        side=Side.LEADER,
        kind=Kind.MEMBER_CLUSTER_ANNOUNCE,
        namespace=AREA,
        name="member-announce-from-east",
    )
    notes = notes_of(announced(view))
    assert (notes[LINKS_ANNOTATION], notes[HEALTH_ANNOTATION]) == (None, None)
    assert not {CLUSTER_UID_ANNOTATION, INSTANCE_ANNOTATION} & notes.keys()
    notes = notes_of(announced(view, cluster_uid="uid", instance="me", heartbeat_period=7.0))
    assert (notes[CLUSTER_UID_ANNOTATION], notes[INSTANCE_ANNOTATION]) == ("uid", "me 21")
    health = {"type": HEALTHY, "status": "False", "reason": "Degraded", "message": "m"}
    view.local.put(linked())
    ready = {"type": "Ready", "status": "True", "reason": "Connected"}
    view.local.put(cluster_set() | {"status": {"conditions": [ready, health]}})
    notes = notes_of(announced(view))
    assert notes[HEALTH_ANNOTATION] == "Degraded: m"
    assert "west" in (notes[LINKS_ANNOTATION] or "")


def test_reports_wait_until_everything_is_known() -> None:
    """Policies until all kinds are listed, imports for a period more."""
    view = member()
    reports = {names.POLICY_PROBLEMS_ANNOTATION, names.IMPORT_PROBLEMS_ANNOTATION}
    view.leader = leader(since=91.0)
    assert reports & notes_of(announced(view)).keys() == {names.POLICY_PROBLEMS_ANNOTATION}
    view.leader = leader(since=90.0)
    assert reports & notes_of(announced(view)).keys() == reports
    view.leader = leader(since=0.0, synced=False)
    assert not reports & notes_of(announced(view)).keys()


@pytest.mark.parametrize("now", [100.0, 105.5, 1234.25])
def test_a_heartbeat_has_the_time_at_which_its_period_began(now: float) -> None:
    """The next look is at the end of the period; clusters begin it at different times."""
    view = member()
    outcome = announced(view, now)
    assert outcome.again is not None
    beat = now + outcome.again - 10.0
    assert now - 10.0 < beat <= now
    assert notes_of(outcome)[names.HEARTBEAT_ANNOTATION] == time_text(beat)
    assert notes_of(announced(view, beat + 9.9))[names.HEARTBEAT_ANNOTATION] == time_text(beat)
    later = announced(view, beat + 10.1)
    assert notes_of(later)[names.HEARTBEAT_ANNOTATION] == time_text(beat + 10.0)
    assert announced(member("west"), now).again != outcome.again


def test_a_refused_announcement_is_an_event() -> None:
    """With the reason of a second cluster, or of another failure."""
    view = member()
    ref = announce_ref(leader())
    prefix = "this cluster cannot announce itself to the leader: "
    for failure, reason in (("no rights", "AnnounceFailed"), (REFUSED, "DuplicateClusterID")):
        view.failures[ref] = failure
        assert events_of(announced(view)) == [(SUBJECT, reason, prefix + failure)]
    view.failures.clear()
    assert events_of(announced(view)) == []


def test_nothing_is_announced_without_a_leader() -> None:
    """Nor while it is away."""
    view = member()
    for value in (None, leader(connected=False)):
        view.leader = value
        assert announced(view) == DesiredObjects()


# --- leaving


def leaving(**values: Any) -> tuple[MemoryView, Leave]:
    """Return a member whose ClusterSet is deleted."""
    view = member()
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    return view, Leave(settings(**values))


def test_a_member_leaves_the_leader_before_its_cluster_set() -> None:
    """The announcement goes after the exports that came later, then the finalizer."""
    view, leave = leaving()
    outcome = leave.desired(SET, view, 0.0)
    first, second, third = outcome.steps
    ref = announce_ref(leader())
    assert isinstance(first, Wanted)
    assert (first.ref, first.create, second, outcome.again) == (ref, False, ref, 1.0)
    assert isinstance(third, Wanted)
    assert third.ref.name == SET
    raw = {
        "kind": "ResourceExport",
        "metadata": {"name": "east-x", "namespace": AREA, "finalizers": ["x"]},
        "spec": {"clusterID": "east", "kind": "Service"},
    }
    north_of(view).put(raw)
    refs = [step.name for step in leave.desired(SET, view, 0.0).steps if isinstance(step, Ref)]
    assert refs == ["east-x", ref.name]
    north_of(view).remove(Kind.RESOURCE_EXPORT, AREA, "east-x")
    outcome = leave.desired(SET, view, 0.0)
    assert [step.name for step in outcome.steps if isinstance(step, Ref)] == [ref.name]
    assert len(outcome.steps) == 2


def test_a_member_waits_for_objects_and_for_a_leader_that_is_away() -> None:
    """For a minute; then the leader is not told, which an Event says."""
    view, leave = leaving()
    view.local.put(changed(gateway(), metadata={"labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY}}))
    assert leave.desired(SET, view, 0.0) == DesiredObjects(again=1.0)
    view.local.remove(Kind.GATEWAY, HOME, "n1")
    for value in (None, replace(leader(), cluster_set="another"), leader(synced=False), leader(connected=False)):
        view.leader = value
        assert leave.desired(SET, view, 0.0) == DesiredObjects(again=1.0)
    view.local.clock.forward(59.0)
    assert leave.desired(SET, view, 0.0) == DesiredObjects(again=1.0)
    view.local.clock.forward(1.0)
    outcome = leave.desired(SET, view, 0.0)
    assert wanted(outcome).ref.name == SET
    message = "the leader could not be notified: it removes this cluster after a day without heartbeats"
    assert events_of(outcome) == [(SUBJECT, "LeaderNotTold", message)]
    assert leave.desired("another", view, 0.0) == DesiredObjects()


def test_a_refused_cluster_removes_only_its_mark() -> None:
    """The announcement is another cluster's."""
    view, leave = leaving()
    ref = announce_ref(leader())
    view.failures[ref] = REFUSED
    mark, last = leave.desired(SET, view, 0.0).steps
    assert isinstance(mark, Wanted)
    assert isinstance(last, Wanted)
    assert (mark.ref, mark.create, last.ref.name) == (ref, False, SET)
    annotations = cast("Any", mark.body).metadata.annotations
    assert set(annotations.values()) == {None}
    assert len(annotations) == 2


# --- networks


def elected(view: MemoryView, **values: Any) -> list[tuple[str, str, str]]:
    """Return the Events of the election of gateways."""
    return events_of(GatewayElection(settings(**values)).desired("gateways", view, 0.0))


@pytest.mark.parametrize(
    ("raw", "reason", "why"),
    [
        (node("n1"), "NoUsableAddress", "has no InternalIP that other Nodes can reach"),
        (
            node("n1", "10.0.0.1", gateway_ip="x"),
            "InvalidGatewayIP",
            'annotation multicluster.antrea.io/gateway-ip must be a unicast address: "x"',
        ),
        (
            node("n1", "10.0.0.1"),
            "NoExternalIP",
            "has no ExternalIP, which gatewayIPPrecedence: external asks for",
        ),
    ],
)
def test_a_node_that_cannot_be_a_gateway_has_an_event(raw: RawObject, reason: str, why: str) -> None:
    """And the ClusterSet, if there is no other; a Gateway that is there keeps its addresses."""
    view = member()
    view.local.put(raw)
    precedence = IpPrecedence.EXTERNAL if reason == "NoExternalIP" else IpPrecedence.INTERNAL
    events = elected(view, gateway_ip_precedence=precedence)
    assert ("Node n1", reason, f"{why}: no gateway") in events
    message = "no gateway: none of 1 annotated Nodes is Ready with a usable address"
    assert (SUBJECT, "NoGateway", message) in events
    view.local.put(gateway())
    events = elected(view, gateway_ip_precedence=precedence)
    assert ("Node n1", reason, f"{why}: its Gateway keeps its addresses") in events


def test_a_node_that_waits_is_told_who_serves() -> None:
    """Five gateways are named; it is no warning."""
    view = member()
    for number in range(1, 8):
        view.local.put(node(f"n{number}", f"10.0.0.{number}"))
    (waiting,) = elected(view, max_active_gateways=6)
    message = "annotated, and waits: maxActiveGateways is 6, and there are n1, n2, n3, n4, n5; "
    assert waiting == ("Node n7", "GatewayWaiting", f"{message}it takes over when one of these fails")


def info_of(view: MemoryView, **values: Any) -> DesiredObjects:
    """Return the outcome of this cluster's ClusterInfo."""
    return ClusterInfoExport(settings(**values)).desired("cluster-info", view, 0.0)


def with_gateway(**fields: Any) -> MemoryView:
    """Return a member with a Node and its Gateway."""
    view = member()
    view.local.put(node("n1", "10.0.0.1"))
    view.local.put(gateway(**fields))
    return view


def test_the_published_networks_have_notes_for_other_clusters() -> None:
    """On settings, agents, MTU, and what is asked of the leader."""
    notes = notes_of(info_of(with_gateway()))
    assert {key: notes[key] for key in (AGENTS_ANNOTATION, MTU_ANNOTATION, POD_CIDRS_ANNOTATION)} == dict.fromkeys(
        (AGENTS_ANNOTATION, MTU_ANNOTATION, POD_CIDRS_ANNOTATION)
    )
    assert (notes[SERVICE_CIDR_ANNOTATION], notes[RANGE_ANNOTATION]) == ("10.96.0.0/16", "auto")
    assert (notes[POD_RANGE_ANNOTATION], notes[CLUSTER_UID_ANNOTATION]) == ("auto", None)
    view = with_gateway(status={"tunnelMTU": 1400, "links": [{"clusterID": "west", "live": 1, "tunnels": 1}]})
    view.local.put(node("n2", "10.0.0.2"))
    view.local.put(gateway("n2", gatewayIP="10.0.0.2", internalIP="10.0.0.2", status={"tunnelMTU": 1380}))
    values = {
        "max_active_gateways": 2,
        "pod_cidrs": ("10.244.0.0/16", "10.245.0.0/16"),
        "export_cidr": "never",
        "pod_export_cidr": "always",
        "cluster_uid": "uid",
    }
    notes = notes_of(info_of(view, **values))
    assert (notes[AGENTS_ANNOTATION], notes[MTU_ANNOTATION]) == ("mcagent", "1380")
    assert notes[POD_CIDRS_ANNOTATION] == "10.244.0.0/16,10.245.0.0/16"
    assert (notes[RANGE_ANNOTATION], notes[POD_RANGE_ANNOTATION]) == (None, "always")
    assert notes[CLUSTER_UID_ANNOTATION] == "uid"
    by_key = with_gateway(wireGuard={"publicKey": "A" * 43 + "=", "port": 51820})
    assert notes_of(info_of(by_key))[AGENTS_ANNOTATION] == "mcagent"


def test_networks_that_the_leader_refuses_are_an_event() -> None:
    """Without a gateway nothing is published, and what was is deleted."""
    view = with_gateway()
    ref = wanted(info_of(view)).ref
    assert (ref.side, ref.kind, ref.namespace, ref.name) == (
        *(Side.LEADER, Kind.RESOURCE_EXPORT, AREA),
        "east-clusterinfo",
    )
    view.failures[ref] = "too many gateways"
    message = "this cluster's gateways are not published: too many gateways"
    assert events_of(info_of(view)) == [(SUBJECT, "ExportFailed", message)]
    bare = member()
    assert list(info_of(bare).steps) == []
    meta = {"name": "east-clusterinfo", "namespace": AREA, "finalizers": ["x"]}
    north_of(bare).put({"kind": "ResourceExport", "metadata": meta})
    assert info_of(bare).steps == [ref]
    bare.local.put(node("n1", "10.0.0.1"))
    bare.local.put(gateway())
    north_of(bare).remove(Kind.RESOURCE_EXPORT, AREA, "east-clusterinfo")
    assert info_of(bare) == DesiredObjects()


def test_the_service_cidr_is_read_or_provoked() -> None:
    """By the object's name; by a Service of the given namespace that is never created."""
    client = Answers({"spec": {"cidrs": ["10.96.0.0/16"]}})
    discover_service_cidr(client)
    assert client.requests == [("GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes", None)]
    bodies: list[dict[str, Any]] = []

    class Recording(Answers):
        def request(self, method: str, path: str, query: Any = None, **arguments: Any) -> Any:
            bodies.append(arguments.get("body") or {})
            return super().request(method, path, query, **arguments)

    for code in (403, 404):
        dry = Recording(ApiRefusalError("no", code=code), ApiRefusalError(REFUSALS[0][0], code=422))
        assert discover_service_cidr(dry, "shop") == "10.96.0.0/12"
        assert dry.requests[1] == ("POST", "/api/v1/namespaces/shop/services", {"dryRun": "All"})
    assert bodies[-1] == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "mcagent-service-cidr", "namespace": "shop"},
        "spec": {"clusterIP": "0.0.0.0", "ports": [{"port": 443}]},
    }


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            [{"spec": {"cidrs": ["fd00::/108"]}}],
            "ServiceCIDR kubernetes has no IPv4 CIDR that can be used: set serviceCIDR",
        ),
        (
            [ApiRefusalError("no", code=404), {"kind": "Service"}],
            "the Service CIDR cannot be detected: the API server took 0.0.0.0: set serviceCIDR",
        ),
        (
            [ApiRefusalError("no", code=404), ApiRefusalError("forbidden", code=403)],
            "the Service CIDR cannot be detected: set serviceCIDR (forbidden)",
        ),
        (
            [ApiRefusalError("no", code=404), ApiRefusalError(REFUSALS[0][0], code=400)],
            f"the Service CIDR cannot be detected: set serviceCIDR ({REFUSALS[0][0]})",
        ),
        ([ApiRefusalError("broken", code=500)], "broken"),
    ],
)
def test_a_service_cidr_that_is_not_found_says_what_to_do(answers: list[Any], message: str) -> None:
    """A refusal for other reasons is its own."""
    with pytest.raises(SourceError) as error:
        discover_service_cidr(Answers(*answers))
    assert str(error.value) == message


def test_the_uid_of_the_cluster_is_that_of_a_namespace() -> None:
    """Refusals are no UID; other failures are raised."""
    uid = "0b1c7a3e-9c1a-4d5b-8a53-0a1b2c3d4e5f"
    client = Answers({"metadata": {"uid": uid}})
    assert discover_cluster_uid(client) == uid
    assert client.requests == [("GET", "/api/v1/namespaces/kube-system", None)]
    for code in (403, 404):
        assert discover_cluster_uid(Answers(ApiRefusalError("no", code=code))) == ""
    with pytest.raises(ApiRefusalError):
        discover_cluster_uid(Answers(ApiRefusalError("no", code=500)))
    assert discover_cluster_uid(Answers([])) == discover_cluster_uid(Answers({"metadata": {"uid": "x y"}})) == ""


# --- imports


def imports(*raws: RawObject, **values: Any) -> tuple[MemoryView, list[Event]]:
    """Return a member with these imports, and its Events."""
    view = member()
    for raw in (WEST, *raws):
        north_of(view).put(raw)
    controller = Controller(view, [ServiceImports(settings(**values))])
    controller.settle()
    return view, controller.all_events()


def only(events: list[Event]) -> tuple[str, str, str, bool]:
    """Return the fields of the only Event."""
    (event,) = events
    return event.subject, event.reason, event.message, event.warning


def test_an_import_that_is_not_possible_has_an_event_of_the_cluster_set() -> None:
    """With the reason; a missing namespace is no warning."""
    _, events = imports(service_import(namespace="elsewhere"))
    message = "Services of namespace elsewhere are not imported: there is no such namespace here"
    assert only(events) == (SUBJECT, "NamespaceMissing", message, False)
    long_name = "a" * 54
    _, events = imports(service_import(long_name))
    message = f"Service shop/{long_name} is not imported: antrea-mc-{long_name} is too long"
    assert only(events) == (SUBJECT, "NameTooLong", message, True)
    _, events = imports(service_import(), service_import("api"), max_imported_services=1)
    subject, reason, message, _ = only(events)
    assert (subject, reason) == (SUBJECT, "TooManyImports")
    assert message.endswith(
        " is not imported: this cluster has 1 imported Services already, the limit (maxImportedServices)"
    )
    invalid = service_import()
    invalid["spec"]["serviceImport"]["spec"]["ports"] = [{"port": "x"}]
    _, events = imports(invalid)
    subject, reason, message, _ = only(events)
    assert (subject, reason) == (SUBJECT, "InvalidImport")
    assert message.startswith("Service shop/web is not imported while invalid: ")


def test_objects_of_users_are_named_in_events() -> None:
    """A Service of that name, a ServiceImport, and endpoints that are refused."""
    view = member()
    for raw in (WEST, service_import(), endpoints_import("10.97.0.5", "192.0.2.9")):
        north_of(view).put(raw)
    view.local.put({"kind": "ServiceImport", "metadata": {"name": "web", "namespace": "shop"}})
    controller = Controller(view, [ServiceImports(settings())])
    controller.settle()
    events = {event.subject: (event.reason, event.message) for event in controller.all_events()}
    refused = "in no CIDR that another cluster announces, nor in allowedEndpointCIDRs of this one"
    assert events == {
        "ServiceImport shop/web": ("NotImported", "it was not made for an import: left as it is"),
        "Service shop/antrea-mc-web": ("EndpointsRefused", f"endpoints 192.0.2.9: {refused}"),
    }
    view = member()
    north_of(view).put(service_import())
    view.local.put(service("antrea-mc-web"))
    controller = Controller(view, [ServiceImports(settings())])
    controller.settle()
    message = (
        "it has the name of an imported Service but not the annotation multicluster.antrea.io/imported-service: "
    )
    assert only(controller.all_events())[:3] == (
        "Service shop/antrea-mc-web",
        "NotImported",
        f"{message}it is left as it is",
    )


def test_a_service_that_cannot_be_written_is_an_event() -> None:
    """With the words of the API server."""
    view = member()
    north_of(view).put(service_import())
    ref = Ref(kind=Kind.SERVICE, namespace="shop", name="antrea-mc-web")
    view.failures[ref] = "quota exceeded"
    outcome = ServiceImports(settings()).desired("shop/web", view, 0.0)
    message = "Service shop/antrea-mc-web: quota exceeded"
    assert events_of(outcome) == [(SUBJECT, "ImportFailed", message)]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Kind.ENDPOINT_SLICE, "ImportFailed"),
        (Kind.SERVICE_IMPORT, "ImportFailed"),
        (Kind.CLUSTER_INFO_IMPORT, "ImportFailed"),
        (Kind.GATEWAY, "GatewayNotWritten"),
    ],
)
def test_an_object_of_a_membership_that_cannot_be_written_is_an_event(kind: Kind, reason: str) -> None:
    """Quotas count objects of one kind: there may be a Service without an endpoint."""
    view = member()
    view.local.put(node("n1", "10.0.0.1"))
    for raw in (WEST, service_import(), endpoints_import("10.97.0.5")):
        north_of(view).put(raw)
    view.local.refuse = lambda other, _old, _new: "quota exceeded" if other is kind else ""
    config = settings()
    controller = Controller(view, [ServiceImports(config), ClusterInfoImports(config), GatewayElection(config)])
    controller.settle()
    controller.settle()
    (event,) = controller.all_events()
    assert (event.subject, event.reason) == (SUBJECT, reason)
    assert re.fullmatch(f"{kind} .*: quota exceeded", event.message)
    view.local.refuse = lambda _kind, _old, _new: ""
    controller.settle()
    controller.settle()
    assert controller.all_events() == []


def test_a_refusal_that_keeps_a_cluster_from_leaving_is_an_event() -> None:
    """The ClusterSet stays until all is deleted; else nothing says why."""
    view, controller = joined()
    view.local.refuse = lambda kind, _old, new: "it is protected" if kind is Kind.GATEWAY and new is None else ""
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    controller.run()
    tick(view, controller, 1.0)
    (event,) = [event for event in controller.all_events() if event.subject == SUBJECT]
    assert (event.reason, event.message) == ("NotCleanedUp", f"Gateway {HOME}/n1: it is protected")


@pytest.mark.parametrize(
    ("raw", "owner"),
    [
        (service("antrea-mc-web"), "shop/web"),
        (service("web"), ""),
        (slice_of("antrea-mc-web", "10.1.1.1"), "shop/web"),
        (slice_of("web", "10.1.1.1", name="antrea-mc-web"), ""),
        ({"kind": "ServiceImport", "metadata": {"name": "web", "namespace": "shop"}}, "shop/web"),
        ({"kind": "Endpoints", "metadata": {"name": "antrea-mc-web", "namespace": "shop"}}, "shop/web"),
        (gateway(), ""),
    ],
)
def test_an_object_belongs_to_an_import_by_its_name(raw: RawObject, owner: str) -> None:
    """A slice by the name of its Service."""
    assert owner_of(typed(raw, Kind(raw["kind"]))) == owner
    assert owner_of(None) == ""


def test_an_import_is_for_the_clusters_that_it_lists() -> None:
    """Without a list for all; one that is being deleted is for none."""
    ref = import_ref(leader(), "x")
    assert (ref.side, ref.kind, ref.namespace, ref.name) == (Side.LEADER, Kind.RESOURCE_IMPORT, AREA, "x")

    def of(*clusters: str) -> ResourceImport:
        return ResourceImport(spec=ResourceImportSpec(cluster_id=clusters))

    assert is_for(of(), leader())
    assert is_for(of("west", "east"), leader())
    assert not is_for(of("west"), leader())
