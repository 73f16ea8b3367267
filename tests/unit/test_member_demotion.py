"""The order of gateways that clusters with Antrea follow: a first gateway that others report as dead goes last."""

from __future__ import annotations

import pytest

from mcagent.controller.member.networks.cluster_info import ClusterInfoExport
from mcagent.controller.member.networks.gateways import GatewayElection
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import DEMOTIONS_ANNOTATION
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.member_gateways import add, gateway, info, ready
from tests.worlds.member_world import HOME, leader, member, node, settings

ADDRESSES = {"10.0.0.1": "n1", "10.0.0.2": "n2", "10.0.0.3": "n3"}


class World:
    """A member with gateways n1, n2 and perhaps n3, and a cluster that runs Antrea."""

    def __init__(self, count: int = 2, *, antrea: bool = True) -> None:
        self.view: MemoryView = member()
        self.settings = settings(max_active_gateways=count)
        self.controller = Controller(self.view, [GatewayElection(self.settings), ClusterInfoExport(self.settings)])
        for number in range(1, count + 1):
            add(self.view, node(f"n{number}", f"10.0.0.{number}"))
            self.controller.settle()
            self.view.local.clock.forward(10)
        if antrea:
            self.status("n1", antreaClusters=["west"])

    def status(self, name: str, **fields: object) -> None:
        """Let the agent of a gateway report."""
        self.view.local.change(Kind.GATEWAY, HOME, name, {"status": fields})
        self.controller.settle()

    def report(self, name: str, *dead: str) -> list[str]:
        """Let the agent of a gateway report dead siblings; return the published order."""
        self.status(name, unreachableGateways=list(dead))
        return self.order()

    def order(self) -> list[str]:
        """Return the gateways as other clusters see them."""
        return [ADDRESSES[item["gatewayIP"]] for item in info(self.view)["gatewayInfos"]]


def test_a_dead_first_gateway_is_put_last_at_once() -> None:
    """By the report of its sibling alone, while its Node is still Ready; an Event says so."""
    world = World()
    assert world.order() == ["n1", "n2"]
    assert world.report("n2", "n1") == ["n2", "n1"]
    assert gateway(world.view, "n1")["metadata"]["annotations"] == {DEMOTIONS_ANNOTATION: "1"}
    (event,) = world.controller.all_events()
    assert (event.subject, event.reason) == (f"Gateway {HOME}/n1", "GatewayDemoted")
    assert event.message.startswith("it stopped answering BFD of n2")


def test_a_gateway_that_returns_stays_last() -> None:
    """Each move ends connections: the order changes again only when the first gateway dies."""
    world = World()
    world.report("n2", "n1")
    assert world.report("n2") == ["n2", "n1"]
    assert world.report("n1", "n2") == ["n1", "n2"]
    assert world.report("n1") == ["n1", "n2"]
    world.view.local.writes.clear()
    world.controller.settle()
    assert world.view.local.writes == []


def test_the_leader_is_not_needed_for_the_own_nodes() -> None:
    """The Gateway changes while the leader is away; other clusters learn of it later."""
    world = World()
    world.view.leader = leader(connected=False)
    world.view.local.change(Kind.GATEWAY, HOME, "n2", {"status": {"unreachableGateways": ["n1"]}})
    world.controller.run()
    assert gateway(world.view, "n1")["metadata"]["annotations"] == {DEMOTIONS_ANNOTATION: "1"}


def test_without_antrea_nothing_changes() -> None:
    """Gateways of mcagent use each other by BFD: no order matters to them."""
    world = World(antrea=False)
    assert world.report("n2", "n1") == ["n1", "n2"]
    assert "annotations" not in gateway(world.view, "n1")["metadata"]


def test_one_wrong_reporter_changes_nothing() -> None:
    """With three gateways the other one must agree, unless the reporter calls it dead, too."""
    world = World(3)
    assert world.report("n2", "n1") == ["n1", "n2", "n3"]
    assert world.report("n3", "n1") == ["n2", "n3", "n1"]


def test_two_gateways_die_at_once() -> None:
    """The last one has to decide alone; a report of one of the dead is no veto."""
    world = World(3)
    assert world.report("n3", "n1", "n2") == ["n3", "n1", "n2"]


def test_two_gateways_that_report_each_other_are_both_alive() -> None:
    """The path between them is broken. When one of them dies, its Node's readiness decides."""
    world = World()
    world.view.local.change(Kind.GATEWAY, HOME, "n1", {"status": {"unreachableGateways": ["n2"]}})
    assert world.report("n2", "n1") == ["n1", "n2"]
    ready(world.view, "n1", "Unknown")
    world.controller.settle()
    assert world.order() == ["n2"]


def test_a_node_that_is_not_ready_has_no_vote() -> None:
    """Its last report may be old, and so may its silence."""
    world = World()
    ready(world.view, "n2", "Unknown")
    assert world.report("n2", "n1") == ["n1"]
    assert World(3).report("n3", "n2") == ["n1", "n2", "n3"]


def test_reporters_may_report_each_other() -> None:
    """Both reach no gateway, so each calls the other dead, too: both wrote that, so both are alive."""
    world = World(3)
    world.view.local.change(Kind.GATEWAY, HOME, "n2", {"status": {"unreachableGateways": ["n1", "n3"]}})
    world.view.local.change(Kind.GATEWAY, HOME, "n3", {"status": {"unreachableGateways": ["n1", "n2"]}})
    world.controller.settle()
    assert world.order() == ["n2", "n3", "n1"]


def test_a_new_gateway_comes_last() -> None:
    """Also after demotions: one that returns as a new Gateway takes nothing from a gateway that works."""
    world = World()
    world.report("n2", "n1")
    world.report("n2")
    world.report("n1", "n2")
    assert world.order() == ["n1", "n2"]
    ready(world.view, "n2", "Unknown")
    world.controller.settle()
    assert world.order() == ["n1"]
    ready(world.view, "n2", "True")
    world.controller.settle()
    assert world.order() == ["n1", "n2"]


@pytest.mark.parametrize("text", ["", "-1", "x", "1" * 10, "٣"])
def test_an_invalid_number_is_none(text: str) -> None:
    """An administrator may have changed the annotation."""
    world = World()
    world.view.local.change(Kind.GATEWAY, HOME, "n1", {"metadata": {"annotations": {DEMOTIONS_ANNOTATION: text}}})
    world.controller.settle()
    assert world.order() == ["n1", "n2"]
    assert world.report("n2", "n1") == ["n2", "n1"]
