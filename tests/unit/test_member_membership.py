"""Membership: announcing, the ClusterSet's status, leaving with everything that was made, re-joining."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.controller.contract.conditions import time_of
from mcagent.controller.machinery.reconciler import Leader
from mcagent.controller.member import member_reconcilers
from mcagent.controller.member.leave import PATIENCE
from mcagent.controller.member.membership import concerns_membership
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView, change_of
from tests.worlds.exporting_member import release
from tests.worlds.leader_imports import WEST, endpoints_import, service_import
from tests.worlds.member_world import (
    AREA,
    HOME,
    SET,
    cluster_set,
    conditions_of,
    export_of,
    leader,
    member,
    names_of,
    node,
    north_of,
    service,
    settings,
    slice_of,
)
from tests.worlds.membership import joined, tick

ANNOUNCE = (Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, "member-announce-from-east")
OURS = (Kind.SERVICE, Kind.SERVICE_IMPORT, Kind.ENDPOINT_SLICE, Kind.CLUSTER_INFO_IMPORT, Kind.GATEWAY)


def the_set(view: MemoryView, name: str = SET) -> RawObject:
    """Return the ClusterSet."""
    raw = view.local.get(Kind.CLUSTER_SET, HOME, name)
    assert raw is not None
    return raw


def lead(view: MemoryView, controller: Controller, value: Leader | None) -> None:
    """Change the connection, and tell the reconcilers as the engine does: by a change of the ClusterSet."""
    view.leader = value
    controller.settle()


def made(view: MemoryView) -> dict[str, list[str]]:
    """Return the names of all objects of the kinds that a member makes."""
    return {str(kind): names for kind in OURS if (names := names_of(view.local, kind))}


def test_joining_announces_the_cluster() -> None:
    """The announcement has the contract's name and fields, and a heartbeat from the beginning."""
    view, _ = joined()
    announcement = north_of(view).get(*ANNOUNCE)
    assert announcement is not None
    assert (announcement["clusterID"], announcement["clusterSetID"], announcement["leaderClusterID"]) == (
        "east",
        SET,
        "north",
    )
    at = time_of(announcement["metadata"]["annotations"]["touch-ts"])
    assert at is not None
    assert 0 <= view.local.clock() - at <= 11


def test_nothing_is_made_before_leaving_would_clean_it_up() -> None:
    """Until the ClusterSet has our finalizer nothing is written on the leader, and nothing imported."""
    view = member()
    raw = cluster_set()
    del raw["metadata"]["finalizers"]
    view.local.put(raw)
    for imported in (WEST, service_import(), endpoints_import("10.97.0.5")):
        north_of(view).put(imported)
    for made_here in (node("n1", "10.0.0.1"), service("web"), slice_of("web", "10.10.1.1"), export_of("web")):
        view.local.put(made_here)
    first, *others = member_reconcilers(settings())
    assert first.name == "membership"
    Controller(view, others).settle()
    assert north_of(view).writes == []
    assert set(made(view)) == {"Service", "EndpointSlice", "Gateway"}
    assert names_of(view.local, Kind.SERVICE) == ["web"]
    Controller(view, member_reconcilers(settings())).settle()
    assert north_of(view).get(*ANNOUNCE) is not None
    assert "antrea-mc-web" in names_of(view.local, Kind.SERVICE)


def test_one_heartbeat_a_period_however_often_it_is_looked_at() -> None:
    """Within a period nothing is written; in a minute of ten-second periods there are six heartbeats."""
    view, controller = joined()
    north_of(view).writes.clear()
    for _ in range(120):
        tick(view, controller, 0.5)
        controller.enqueue_all()
        controller.run()
    assert north_of(view).writes == [f"update MemberClusterAnnounce {AREA}/member-announce-from-east"] * 6


@pytest.mark.parametrize("seconds", [-86_400.0, -30.0, 86_400.0])
def test_a_step_of_the_members_clock_stops_no_heartbeat(seconds: float) -> None:
    """Whichever way its clock is set, every period after it has a heartbeat that differs from the one before."""
    view, controller = joined()
    tick(view, controller, 10.0)
    view.local.clock.forward(seconds)
    beats: list[object] = []
    for _ in range(3):
        controller.settle()  # what is due after a period of the monotonic clock
        announcement = north_of(view).get(*ANNOUNCE)
        assert announcement is not None
        beats.append(announcement["metadata"]["annotations"]["touch-ts"])
        view.local.clock.forward(10.0)
    assert len(set(map(str, beats))) == 3


def test_status_follows_the_connection() -> None:
    """Conditions, counts and observedGeneration tell how the connection to the leader is, and since when."""
    view, controller = joined()
    status = the_set(view)["status"]
    assert (status["totalClusters"], status["readyClusters"], status["observedGeneration"]) == (1, 1, 1)
    (entry,) = status["clusterStatuses"]
    assert entry["clusterID"] == "north"
    assert {c["type"]: c["status"] for c in entry["conditions"]} == {
        "Ready": "True",
        "IsLeader": "True",
        "ClusterConnected": "True",
    }
    assert conditions_of(the_set(view))["Ready"] == ("True", "Connected")
    since = status["conditions"][0]["lastTransitionTime"]
    view.local.clock.forward(100)
    controller.settle()
    assert the_set(view)["status"]["conditions"][0]["lastTransitionTime"] == since
    lead(view, controller, leader(connected=False, synced=True, error="connection refused"))
    ready = the_set(view)["status"]["conditions"][0]
    assert (ready["status"], ready["message"]) == ("False", "Disconnected from leader: connection refused")
    assert ready["lastTransitionTime"] != since
    assert the_set(view)["status"]["readyClusters"] == 0
    assert "Disconnected" in {event.reason for event in controller.all_events()}
    lead(view, controller, leader(connected=True, synced=False))
    assert conditions_of(the_set(view))["Ready"] == ("Unknown", "LeaderNotConnected")


def test_a_leader_that_is_away_changes_nothing_here() -> None:
    """While the leader is away what was imported stays; afterwards nothing is written twice."""
    view, controller = joined()
    before = made(view)
    lead(view, controller, leader(connected=False, synced=True))
    for raw in ("shop-web-service", "west-clusterinfo"):
        north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, raw)
        north_of(view).put({"shop-web-service": service_import(), "west-clusterinfo": WEST}[raw])
    view.local.remove(Kind.SERVICE, "shop", "antrea-mc-web")
    controller.settle()
    assert made(view) == before
    view.local.writes.clear()
    lead(view, controller, leader())
    assert {write.split()[1] for write in view.local.writes} <= {"ClusterSet"}


def test_leaving_cleans_up_and_tells_the_leader() -> None:
    """With the ClusterSet deleted all that was made for it goes, then the announcement, then the ClusterSet."""
    view, controller = joined()
    assert set(made(view)) == {str(kind) for kind in OURS}
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    controller.run()
    tick(view, controller, 1.0)
    assert made(view) == {}
    assert north_of(view).get(*ANNOUNCE) is None
    assert north_of(view).writes[-1] == f"delete MemberClusterAnnounce {AREA}/member-announce-from-east"
    assert view.local.get(Kind.CLUSTER_SET, HOME, SET) is not None
    release(view)  # the leader deletes what was exported
    tick(view, controller, 1.0)
    assert view.local.get(Kind.CLUSTER_SET, HOME, SET) is None
    assert "LeaderNotTold" not in {event.reason for event in controller.past_events}


def test_leaving_while_the_controller_is_down_is_made_up_for() -> None:
    """The finalizer keeps the ClusterSet until a controller runs again: it cleans up and tells the leader."""
    view, _ = joined()
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    assert view.local.get(Kind.CLUSTER_SET, HOME, SET) is not None
    controller = Controller(view, member_reconcilers(settings()))
    controller.settle()
    tick(view, controller, 1.0)
    release(view)
    tick(view, controller, 1.0)
    assert made(view) == {}
    assert north_of(view).get(*ANNOUNCE) is None
    assert view.local.get(Kind.CLUSTER_SET, HOME, SET) is None


def test_leaving_does_not_wait_for_a_leader_that_is_gone() -> None:
    """All here is cleaned up at once; the ClusterSet goes after a minute, and an Event says who was not told."""
    view, controller = joined()
    lead(view, controller, leader(connected=False, synced=True))
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    controller.run()
    tick(view, controller, 1.0)
    assert made(view) == {}
    tick(view, controller, PATIENCE - 5)
    assert view.local.get(Kind.CLUSTER_SET, HOME, SET) is not None
    assert "LeaderNotTold" not in {event.reason for event in controller.past_events}
    tick(view, controller, 5.0)
    assert view.local.get(Kind.CLUSTER_SET, HOME, SET) is None
    assert north_of(view).get(*ANNOUNCE) is not None
    (event,) = {event for event in controller.past_events if event.reason == "LeaderNotTold"}
    assert event.subject == f"ClusterSet {HOME}/{SET}"
    assert event.message == (
        "the leader could not be notified: it removes this cluster after a day without heartbeats"
    )


def test_without_a_cluster_set_what_is_ours_goes_at_start_and_nothing_else() -> None:
    """A controller that finds no ClusterSet removes what bears our marks, and leaves what people made."""
    view, _ = joined()
    the_set(view)["metadata"]["finalizers"].clear()
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    view.leader = None
    for raw in (
        {"kind": "Gateway", "metadata": {"name": "own", "namespace": HOME}},
        {"kind": "ClusterInfoImport", "metadata": {"name": "own", "namespace": HOME}},
        {"kind": "ServiceImport", "metadata": {"name": "own", "namespace": "shop"}},
        {"kind": "Service", "metadata": {"name": "antrea-mc-own", "namespace": "shop"}, "spec": {}},
        slice_of("antrea-mc-own", "10.10.1.1", name="own"),
    ):
        view.local.put(raw)
    Controller(view, member_reconcilers(settings())).settle()
    assert made(view) == {
        "Service": ["antrea-mc-own"],
        "ServiceImport": ["own"],
        "EndpointSlice": ["own"],
        "ClusterInfoImport": ["own"],
        "Gateway": ["own"],
    }


@pytest.mark.parametrize("leaves", [False, True], ids=["in no ClusterSet", "leaves"])
def test_what_antrea_imports_stays_unless_this_controller_leaves(leaves: bool) -> None:
    """Its controller is a member by a ClusterSet of its own namespace, in which this controller does not run."""
    view = member()
    service: RawObject = {
        "kind": "Service",
        "metadata": {
            "name": "antrea-mc-theirs",
            "namespace": "shop",
            "annotations": {"multicluster.antrea.io/imported-service": "true"},
        },
        "spec": {"clusterIP": "10.96.1.1"},
    }
    view.local.put(service)
    view.local.put({"kind": "Endpoints", "metadata": dict(service["metadata"])})
    if not leaves:
        the_set(view)["metadata"]["finalizers"].clear()
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    Controller(view, member_reconcilers(settings())).settle()
    assert made(view).get("Service", []) == ([] if leaves else ["antrea-mc-theirs"])


def test_rejoining_makes_everything_anew() -> None:
    """After leaving and joining again there is what there was before."""
    view, controller = joined()
    before = made(view)
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    controller.run()
    tick(view, controller, 1.0)
    release(view)
    tick(view, controller, 1.0)
    lead(view, controller, None)
    view.local.put(cluster_set())
    lead(view, controller, leader())
    assert made(view) == before
    assert north_of(view).get(*ANNOUNCE) is not None


def test_an_empty_cluster_id_is_filled_from_the_claim() -> None:
    """A ClusterSet from before v1alpha2 gets its ID from the ClusterClaim id.k8s.io."""
    view = member()
    old = cluster_set()
    del old["spec"]["clusterID"]
    del old["metadata"]["finalizers"]
    view.local.put(old)
    controller = Controller(view, member_reconcilers(settings()))
    controller.settle()
    assert conditions_of(the_set(view))["Ready"] == ("False", "InvalidClusterSet")
    claim = {"kind": "ClusterClaim", "metadata": {"name": "id.k8s.io", "namespace": HOME}, "value": "east"}
    view.local.put(claim)
    controller.run()
    assert the_set(view)["spec"]["clusterID"] == "east"
    assert conditions_of(the_set(view))["Ready"] == ("True", "Connected")


def test_only_the_first_cluster_set_counts() -> None:
    """A second ClusterSet is told, and changes nothing."""
    view, controller = joined()
    before = made(view)
    view.local.clock.forward(5)
    raw = cluster_set(name="another")
    del raw["metadata"]["finalizers"]
    view.local.put(raw)
    controller.settle()
    assert conditions_of(the_set(view, "another"))["Ready"] == ("False", "AnotherClusterSet")
    assert made(view) == before
    assert "finalizers" not in the_set(view, "another")["metadata"]


def test_the_cluster_set_of_a_leader_is_left_alone() -> None:
    """A ClusterSet without a server is that of a leader: no finalizer, no status, and no clean-up by a member."""
    view = member()
    raw = {
        "kind": "ClusterSet",
        "metadata": {"name": SET, "namespace": HOME},
        "spec": {"clusterID": "north", "leaders": [{"clusterID": "north"}]},
    }
    view.local.put(raw)
    view.leader = None
    Controller(view, member_reconcilers(settings())).settle()
    assert "finalizers" not in the_set(view)["metadata"]
    assert "status" not in the_set(view)


def test_a_refused_announcement_is_told() -> None:
    """What the leader's webhook says of the announcement becomes an Event on the ClusterSet."""
    view = member()
    north_of(view).refuse = lambda kind, old, new: "not your ID" if kind is ANNOUNCE[0] else ""
    controller = Controller(view, member_reconcilers(settings()))
    controller.settle()
    controller.settle()
    assert ("AnnounceFailed", "this cluster cannot announce itself to the leader: not your ID") in {
        (event.reason, event.message) for event in controller.all_events()
    }


def test_what_was_refused_is_tried_again_when_announcements_are_taken_again() -> None:
    """The announcement's recovery and its first success touch the exports' keys; other words touch none."""

    def said(reason: str, **more: str) -> RawObject:
        return cluster_set() | {"status": {"conditions": [{"type": "Ready", "reason": reason, **more}]}}

    def concerned(old: RawObject, new: RawObject) -> bool:
        return concerns_membership(change_of(Kind.CLUSTER_SET, old, new))

    assert concerned(said("AnnounceFailed"), said("Connected"))
    assert not concerned(said("AnnounceFailed", message="one"), said("AnnounceFailed", message="another"))
    assert concerned(cluster_set(), said("Connected"))
    assert concerned(said("Disconnected"), said("NotAnnounced"))
    assert not concerned(said("Connected"), said("Connected", message="the leader drops a field"))


def test_a_cluster_is_ready_when_the_leader_has_taken_its_announcement() -> None:
    """So that joining ends with that, or with why not."""
    view = member()
    north_of(view).refuse = lambda kind, old, new: "not your ID" if kind is ANNOUNCE[0] else ""
    controller = Controller(view, member_reconcilers(settings()))
    controller.settle()
    controller.settle()
    assert conditions_of(the_set(view))["Ready"] == ("False", "AnnounceFailed")
    condition = the_set(view)["status"]["conditions"][0]
    assert condition["message"] == "the leader does not accept this cluster's announcement: not your ID"
    north_of(view).refuse = lambda kind, old, new: ""
    tick(view, controller, 60.0)
    controller.settle()
    controller.settle()
    assert conditions_of(the_set(view))["Ready"] == ("True", "Connected")


@pytest.mark.parametrize("garbage", [None, [], "text", {"leaders": "x"}, {"leaders": [None]}, {"clusterID": 7}])
def test_garbage_in_a_cluster_set_stops_nothing(garbage: Any) -> None:
    """Whatever stands in a ClusterSet, no reconciler raises."""
    view = member()
    raw = cluster_set()
    raw["spec"] = garbage
    view.local.put(raw)
    Controller(view, member_reconcilers(settings())).settle()
