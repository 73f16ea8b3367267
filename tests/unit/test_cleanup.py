"""What cleanup removes, in which order, and how it goes on when something fails."""

from __future__ import annotations

from collections.abc import Sequence

from mcagent.agent.cleanup import ORDER, remove_all
from mcagent.model.dataplane.backend import Backend
from mcagent.model.plan import ApplyResult, Op, Step
from tests.worlds.agentworld import Facility, World


def used() -> dict[Backend, Facility]:
    """Return the facilities of a Node that an agent has set up."""
    world = World()
    world.list_all()
    world.start()
    world.wait(world.settled)
    world.stop()
    return world.facilities


def test_everything_of_ours_goes() -> None:
    """Afterwards no facility holds anything of ours, and a second run has nothing to do."""
    facilities = used()
    cleaned = remove_all(facilities, dry_run=False)
    assert not any(facility.world for facility in facilities.values())
    assert cleaned.errors == ()
    assert {step.op for step in cleaned.done} == {Op.DELETE}
    assert remove_all(facilities, dry_run=False).done == ()


def test_a_dry_run_removes_nothing() -> None:
    """It tells the same steps."""
    facilities = used()
    before = {name: dict(facility.world) for name, facility in facilities.items()}
    cleaned = remove_all(facilities, dry_run=True)
    assert len(cleaned.done) == sum(map(len, before.values()))
    assert {name: facility.world for name, facility in facilities.items()} == before


def order_of_removal() -> list[Backend]:
    """Clean up, and return the facilities in the order in which they were changed."""
    order: list[Backend] = []

    class Recorder(Facility):
        def apply(self, steps: Sequence[Step]) -> ApplyResult:
            order.append(self.name)
            return super().apply(steps)

    facilities = {name: Recorder(name) for name in Backend}
    for name, facility in used().items():
        facilities[name].world = facility.world
    remove_all(facilities, dry_run=False)
    return order


def test_routes_go_first_and_the_bridge_last() -> None:
    """No packet is sent into a bridge that is being taken down."""
    # encryption was off
    assert order_of_removal() == [name for name in ORDER if name is not Backend.WIREGUARD]


def test_packet_rules_go_after_the_bridge() -> None:
    """While tunnels forward for other Nodes, and routes to WireGuard are gone, rules drop what is unencrypted."""
    order = order_of_removal()
    assert order.index(Backend.NFT) > max(order.index(Backend.OPENFLOW), order.index(Backend.OVSDB))


def test_a_facility_that_fails_does_not_stop_the_others() -> None:
    """What can be removed is removed; the error is told."""
    facilities = used()
    facilities[Backend.NFT].unreachable()
    cleaned = remove_all(facilities, dry_run=False)
    assert [error.backend for error in cleaned.errors] == ["nft"]
    assert [name for name, facility in facilities.items() if facility.world] == [Backend.NFT]
