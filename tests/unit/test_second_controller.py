"""Leader controllers of two namespaces for one ClusterSet: the later one writes nothing, and both report it."""

from __future__ import annotations

from dataclasses import replace

from mcagent.controller.admin.listing import rows
from mcagent.controller.contract.area_holder import HOLDER_ANNOTATION, REFUSED_HOLDER_ANNOTATION, released
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.leader.area_holder import AreaHolder
from mcagent.controller.leader.members import REFUSED_KEPT
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_world import AREA, FLAT, SET, Leader, endpoints, service

FIRST = LeaderSettings(namespace=AREA, allowed_endpoint_cidrs=FLAT, home="first")
SECOND = replace(FIRST, home="second", limits=MemberLimits(max_endpoints=1))


class Pair:
    """A leader's controller in namespace `first`, and another one in `second`, which allows one endpoint."""

    def __init__(self) -> None:
        self.leader = Leader("east", settings=FIRST)
        self.leader.put(service("east"), endpoints("east", ["10.1.0.1", "10.1.0.2"]))
        self.second = Controller(MemoryView(self.leader.api, namespace="second"), leader_reconcilers(SECOND))

    @property
    def first(self) -> Controller:
        """The first controller."""
        return self.leader.controller

    def settle(self) -> None:
        """Let both work until nothing changes."""
        self.second.enqueue_all()
        self.first.enqueue_all()
        for _ in range(20):
            if not self.second.run() + self.first.run():
                return
        raise AssertionError("the controllers write again and again")

    def stop(self, controller: Controller, home: str) -> None:
        """End a controller as SIGTERM does."""
        controller.closed = True
        for released_object in released(controller.view, AREA, home):
            self.leader.api.carry_out(released_object)

    def marks(self) -> tuple[str, str]:
        """Return the annotations of the ClusterSet."""
        notes = (self.leader.api.get(Kind.CLUSTER_SET, AREA, SET) or {})["metadata"].get("annotations", {})
        return notes.get(HOLDER_ANNOTATION, ""), notes.get(REFUSED_HOLDER_ANNOTATION, "")

    def condition(self) -> tuple[str, str]:
        """Return status and reason of the condition OneController; "" if there is none."""
        conditions = {item["type"]: item for item in self.leader.status()["conditions"]}
        condition = conditions.get("OneController", {"status": "", "reason": ""})
        return condition["status"], condition["reason"]


def reasons(controller: Controller) -> set[str]:
    """Return the reasons of a controller's Events."""
    return {event.reason for event in controller.all_events()}


def test_the_later_controller_writes_nothing_and_both_say_so() -> None:
    """Its limit of one endpoint has no effect; the condition names both, and how to give it the ClusterSet."""
    pair = Pair()
    pair.settle()
    assert pair.leader.addresses() == ["10.1.0.1", "10.1.0.2"]
    assert pair.marks() == ("first", "second")
    assert pair.condition() == ("False", "SecondController")
    for controller in (pair.first, pair.second):
        (event,) = [event for event in controller.all_events() if event.reason == "SecondController"]
        assert "namespaces first and second" in event.message
        assert f"kubectl annotate clusterset -n {AREA} {SET} {HOLDER_ANNOTATION}-" in event.message
    (first_row, *_) = rows("clusterset", pair.leader.api.list(Kind.CLUSTER_SET, AREA), 0.0)
    assert event.message in first_row[-1]


def test_the_later_controller_continues_when_the_first_one_stops() -> None:
    """The first one, when it starts again, is the later one."""
    pair = Pair()
    pair.settle()
    pair.stop(pair.first, "first")
    pair.second.run()
    assert pair.leader.addresses() == ["10.1.0.1"]
    assert pair.marks() == ("second", "")
    assert pair.condition() == ("", "")
    pair.leader.settings = FIRST
    pair.leader.start()
    pair.settle()
    assert pair.leader.addresses() == ["10.1.0.1"]
    assert pair.marks() == ("second", "first")


def test_the_report_ends_after_the_later_controller() -> None:
    """At once when it stops; an hour after a crash; while it runs, the report stays."""
    pair = Pair()
    pair.settle()
    pair.leader.forward(REFUSED_KEPT + 20.0, "east")
    pair.settle()
    assert pair.condition() == ("False", "SecondController")
    pair.second.closed = True  # a crash
    pair.leader.forward(REFUSED_KEPT + 20.0, "east")
    assert pair.condition() == ("", "")
    assert "SecondController" not in reasons(pair.first)


def test_the_end_of_the_report_is_written_once() -> None:
    """While that write is refused or reverted, the key waits, instead of coming again at once."""
    pair = Pair()
    pair.settle()
    pair.second.closed = True
    pair.leader.api.refuse = lambda kind, _old, _new: "locked" if kind is Kind.CLUSTER_SET else ""
    pair.leader.forward(REFUSED_KEPT + 20.0, "east")
    outcome = AreaHolder(FIRST).desired(f"{AREA}/{SET}", pair.first.view, pair.leader.api.clock())
    assert len(outcome.steps) == 1
    assert outcome.again is None


def test_replicas_and_a_controller_that_starts_again_are_one() -> None:
    """They have one Lease, in one namespace: what the annotation says is theirs."""
    pair = Pair()
    pair.leader.start()
    pair.settle()
    pair.leader.put(endpoints("east", ["10.1.0.3"]))
    assert pair.leader.addresses() == ["10.1.0.3"]
    assert pair.marks() == ("first", "second")
