"""What a member leaves out of an imported Service is told to the exporters, by its announcement and the leader."""

from __future__ import annotations

import json

import pytest

from mcagent.controller.contract import names
from mcagent.controller.contract.problems import MAX_REPORTED, as_report
from mcagent.controller.leader.services.import_reports import SETTLED, changed_reports
from mcagent.controller.leader.services.reconciler import ServiceMerge
from mcagent.controller.machinery.current_events import CurrentEvents
from mcagent.controller.machinery.view import DeclaredView
from mcagent.controller.member.announce import Announce
from mcagent.controller.member.services.service_import import ServiceImports
from mcagent.kube.source import RawObject
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView, change_of
from tests.worlds.leader_imports import WEST, endpoints_import, service_import
from tests.worlds.leader_world import AREA, Leader, endpoints, service
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import leader, member, north_of, settings

REFUSED = "EndpointsRefused: endpoints 192.0.2.9: in no CIDR"
NOTE = f"not all is imported: cluster west reports {REFUSED}"
EXPORT = "east-default-nginx-endpoints"


def importer(*imports: RawObject) -> tuple[MemoryView, Controller]:
    """Return member east, that imports these."""
    view = member()
    for raw in (WEST, *imports):
        north_of(view).put(raw)
    config = settings(max_imported_services=1)
    controller = Controller(view, [ServiceImports(config), Announce(config)])
    controller.settle()
    return view, controller


def reported(view: MemoryView) -> dict[str, str]:
    """Return what the member tells the leader."""
    raw = north_of(view).get(Kind.MEMBER_CLUSTER_ANNOUNCE, NORTH, names.announce("east"))
    assert raw is not None
    return dict(json.loads(raw["metadata"]["annotations"].get(names.IMPORT_PROBLEMS_ANNOTATION, "{}")))


def exporter() -> Leader:
    """Return a leader with members east, which exports a Service, and west, which imports it."""
    world = Leader("east", "west")
    world.put(service("east"), endpoints("east", ["10.1.0.1"]))
    world.forward(SETTLED)
    return world


def report(world: Leader, text: str | None, cluster: str = "west") -> None:
    """Announce what a member leaves out, and let the leader follow."""
    notes = {"annotations": {names.IMPORT_PROBLEMS_ANNOTATION: text}}
    world.api.change(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce(cluster), {"metadata": notes})
    world.controller.run()


def note(world: Leader) -> str:
    """Return the note of the Endpoints export, which always succeeds."""
    verdict = world.verdict(EXPORT)
    assert (verdict["type"], verdict["status"]) == ("Succeeded", "True")
    return str(verdict.get("message", ""))


def version(world: Leader) -> str:
    """Return the version of the Endpoints export."""
    raw = world.api.get(Kind.RESOURCE_EXPORT, AREA, EXPORT)
    assert raw is not None
    return str(raw["metadata"]["resourceVersion"])


def test_a_member_reports_endpoints_that_it_refuses_until_it_takes_them() -> None:
    """By the name of the Service, with the reason of the Event."""
    view, controller = importer(service_import(), endpoints_import("10.97.0.5", "192.0.2.9"))
    assert list(reported(view)) == ["web.shop"]
    assert reported(view)["web.shop"].startswith("EndpointsRefused: endpoints 192.0.2.9: in no CIDR")
    north_of(view).put(endpoints_import("10.97.0.5"))
    controller.settle()
    assert reported(view) == {}


@pytest.mark.parametrize(
    ("imports", "name", "reason"),
    [
        ([service_import("a"), service_import("b")], "b.shop", "TooManyImports"),
        ([service_import(ports=[{"name": "http", "port": 0}])], "web.shop", "InvalidImport"),
        ([service_import("w" * 63)], f"{'w' * 63}.shop", "NameTooLong"),
    ],
)
def test_a_member_reports_services_that_it_does_not_import(
    imports: list[RawObject], name: str, reason: str
) -> None:
    """Also those of which there is no object in its cluster."""
    view, _ = importer(*imports)
    assert {key: why.partition(":")[0] for key, why in reported(view).items()} == {name: reason}


def test_a_missing_namespace_is_not_reported() -> None:
    """A cluster need not have all Namespaces of the others."""
    view, controller = importer(service_import(namespace="elsewhere"))
    assert [event.reason for event in controller.all_events()] == ["NamespaceMissing"]
    assert reported(view) == {}


def test_a_member_that_has_just_connected_keeps_its_report() -> None:
    """Until a period has passed it does not know all imports, and would take its report back for a moment."""
    view, _ = importer(service_import(), endpoints_import("192.0.2.9"))
    before = reported(view)
    view.leader = leader(since=view.local.clock())
    restarted = Controller(view, [Announce(settings())])
    restarted.settle()
    assert reported(view) == before != {}
    view.leader = leader(since=0.0)
    restarted.settle()
    assert reported(view) == {}


def test_a_report_is_bounded() -> None:
    """Whatever the reasons are, it is not longer than what a leader reads."""
    text = as_report({f"s{number}.shop": '"\U0001f600\n' * 200 for number in range(99)})
    assert text is not None
    assert len(json.loads(text)) == MAX_REPORTED
    assert len(text) < 32 * 1024


def test_the_exporter_is_told_what_another_member_leaves_out() -> None:
    """In the status of its Endpoints export; the ResourceImports, which all members watch, stay as they are."""
    world = exporter()
    imports = world.api.list(Kind.RESOURCE_IMPORT, AREA)
    report(world, json.dumps({"nginx.default": REFUSED}))
    assert note(world) == NOTE
    world.forward(SETTLED)
    report(world, None)
    assert note(world) == ""
    assert world.api.list(Kind.RESOURCE_IMPORT, AREA) == imports


def test_what_the_leader_leaves_out_comes_first() -> None:
    """The reports of members follow, and a change of the leader's own part does not wait."""
    world = exporter()
    report(world, json.dumps({"nginx.default": REFUSED}))
    world.put(endpoints("east", ["10.1.0.1", "203.0.113.1"]))
    assert note(world).startswith("1 endpoints are left out: 203.0.113.1")
    assert note(world).endswith(f", {NOTE}")


def test_a_member_that_leaves_reports_nothing_more() -> None:
    """Its announcement has gone."""
    world = exporter()
    report(world, json.dumps({"nginx.default": REFUSED}))
    world.forward(SETTLED)
    world.leave("west")
    assert note(world) == ""


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ("east", json.dumps({"nginx.default": "x"})),  # the exporter itself
        ("west", json.dumps({"other.default": "x", "nginx": "x", "nginx.default.x": "x", "/../": "x"})),
        ("west", json.dumps({"nginx.default": ["x"]})),
        ("west", json.dumps({"nginx.default": ""})),
        ("west", json.dumps({f"s{n}.default": "x" for n in range(MAX_REPORTED)} | {"nginx.default": "x"})),
        ("west", json.dumps({"nginx.default": "x" * 40_000})),
        ("west", "[" * 20_000),
    ],
)
def test_reports_that_are_none_change_nothing(cluster: str, text: str) -> None:
    """A member writes what it likes on its announcement: no export is written."""
    world = exporter()
    before = version(world)
    report(world, text, cluster)
    world.settle()
    assert version(world) == before
    assert note(world) == ""


def test_an_announcement_in_the_name_of_another_cluster_reports_nothing() -> None:
    """Its name, which admission checks, has the cluster ID of the member."""
    world = exporter()
    raw = world.api.get(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("west"))
    assert raw is not None
    world.put(raw | {"clusterID": "north"})
    report(world, json.dumps({"nginx.default": "x"}))
    assert note(world) == ""


def test_text_of_others_is_short_and_printable_and_has_their_name() -> None:
    """A member can neither hide the end of a message nor write lines of its own."""
    world = exporter()
    report(world, json.dumps({"nginx.default": "\x1b[2J\nleader: all is well" + "x" * 999}))
    assert note(world).startswith(r"not all is imported: cluster west reports \x1b[2J\nleader: ")
    assert note(world).isprintable()
    assert len(note(world)) < 320


def test_few_of_many_reports_are_shown() -> None:
    """A thousand members may report the same Service."""
    world = Leader("east", *(f"m{number}" for number in range(9)))
    world.put(service("east"), endpoints("east", ["10.1.0.1"]))
    world.forward(SETTLED)
    for number in range(9):
        report(world, json.dumps({"nginx.default": "x"}), f"m{number}")
        world.forward(SETTLED)
    shown = "; ".join(f"cluster m{number} reports x" for number in range(3))
    assert note(world) == f"not all is imported: {shown}; ..."


def test_a_report_that_keeps_changing_is_written_once_a_minute() -> None:
    """However often a member changes it, the exporter is not woken; the last text is shown at last."""
    world = exporter()
    report(world, json.dumps({"nginx.default": "first"}))
    written = version(world)
    for number in range(9):
        report(world, json.dumps({"nginx.default": f"text {number}"}) if number % 2 == 0 else None)
    assert version(world) == written
    world.forward(SETTLED)
    assert note(world) == "not all is imported: cluster west reports text 8"


def test_heartbeats_with_an_unchanged_report_look_at_no_service() -> None:
    """Each member writes one every few seconds."""
    world = exporter()
    report(world, json.dumps({"nginx.default": REFUSED}))
    announcement = world.api.get(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("west"))
    other = change_of(Kind.MEMBER_CLUSTER_ANNOUNCE, None, announcement)
    beat = {"annotations": {names.HEARTBEAT_ANNOTATION: "2030-01-01T00:00:09Z"}}
    world.api.change(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("west"), {"metadata": beat})
    beating = change_of(
        Kind.MEMBER_CLUSTER_ANNOUNCE,
        announcement,
        world.api.get(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("west")),
    )
    view = DeclaredView(world.view, ServiceMerge(world.settings))
    assert [*changed_reports(other, view)] == [f"{AREA}/default/nginx"]
    assert [*changed_reports(beating, view)] == []


def test_events_are_remembered_by_reconciler_and_key() -> None:
    """Until `desired` returns others; they are recorded once after each change."""
    events, event = CurrentEvents(), Event(subject="Service a/b", reason="R", message="m")
    events.remember(("x", "a/b"), frozenset([event]))
    assert events.of("x") == {"a/b": {event}}
    assert events.of("y") == {}
    assert events.take() == frozenset([event])
    events.remember(("x", "a/b"), frozenset([event]))
    assert events.take() is None
    events.remember(("x", "a/b"), frozenset())
    assert events.of("x") == {}
    assert events.take() == frozenset()
