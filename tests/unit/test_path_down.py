"""A tunnel is used by peers only while the flows are there: plans that say "path down" first."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.plan.diff import diff, flows_first, path_down, takes_into_use, turns
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import (
    Bfd,
    Bridge,
    FlowEntry,
    NftChain,
    PeerKind,
    Resource,
    ResourceKey,
    Route,
    TunnelPort,
    TunnelType,
)
from mcagent.model.plan import Desired, Fragment, Op, Plan, StageKind

BFD = Bfd(min_tx=100, min_rx=100)
FLOW = FlowEntry(table=0, priority=0, match="", cookie=1, actions="drop")


def tunnel(number: int, bfd: Bfd | None = BFD, ofport: int = 2) -> TunnelPort:
    """Return a tunnel port to peer `number`."""
    return TunnelPort(
        bridge="br-mc",
        name=f"mcn-{number}",
        type=TunnelType.GENEVE,
        remote_ip=ip_address(f"192.0.2.{number}"),
        dst_port=0,
        ofport=ofport,
        peer_kind=PeerKind.NODE,
        peer=f"n{number}",
        bfd=bfd,
    )


BFDS = st.sampled_from([None, BFD, Bfd(min_tx=100, min_rx=100, cpath_down=True), Bfd(min_tx=200, min_rx=200)])
RESOURCES: st.SearchStrategy[Resource] = st.one_of(
    st.builds(tunnel, st.integers(1, 3), BFDS, st.integers(2, 3)),
    st.just(FLOW),
    st.just(Bridge(name="br-mc", datapath=DatapathType.NETDEV)),
    st.just(Route(table=1, destination=ip_network("10.1.0.0/16"))),
)
WORLDS = st.lists(RESOURCES, max_size=8).map(lambda found: {(r.backend, r.key): r for r in found})
World = dict[tuple[Backend, ResourceKey], Resource]


def contents(world: World) -> dict[Backend, dict[ResourceKey, Resource]]:
    """Return the world as backends report it."""
    resources: dict[Backend, dict[ResourceKey, Resource]] = {backend: {} for backend in Backend}
    for (backend, key), resource in world.items():
        resources[backend][key] = resource
    return resources


def desired_of(world: World) -> Desired:
    """Return the world as one fragment."""
    return Desired(fragments={"u": Fragment(owner="u", resources=tuple(world.values()))})


@given(WORLDS, WORLDS)
def test_no_tunnel_is_used_before_the_flows_are_there(before: World, after: World) -> None:
    """Until flows and routes are done only tunnels forward that did before, none at all on a bridge without flows.

    And the end is the same as without that.
    """
    blank = (Backend.OPENFLOW, FLOW.key) not in before
    resources = contents(before)
    plan = flows_first(diff(resources, desired_of(after)), resources[Backend.OVSDB].values(), blank=blank)
    world, opened = dict(before), False
    for stage in plan.stages:
        opened = opened or stage.kind in (StageKind.TUNNELS_IN_USE, StageKind.FIRST_TUNNELS)
        for step in stage.steps:
            assert world.get((step.backend, step.key)) == step.old
            if step.new is None:
                del world[step.backend, step.key]
                continue
            world[step.backend, step.key] = step.new
            was = before.get((step.backend, step.key))
            in_use = isinstance(was, TunnelPort) and not (was.bfd and was.bfd.cpath_down) and not blank
            if isinstance(step.new, TunnelPort) and not opened and not in_use:
                assert path_down(step.new) == step.new
        if blank and stage.kind is StageKind.FLOWS:
            ports = [port for port in world.values() if isinstance(port, TunnelPort)]
            expected = {port.key for port in after.values() if isinstance(port, TunnelPort)}
            assert all(path_down(port) == port for port in ports if port.key in expected)
    assert world == after
    late = [step for stage in plan.stages if stage.kind is StageKind.TUNNELS_IN_USE for step in stage.steps]
    assert all(map(takes_into_use, late))


def test_an_empty_bridge_gets_its_tunnels_when_all_else_is_there() -> None:
    """Flows stand beside what the Node itself needs; tunnels come after both, in use at once."""
    bridge = Bridge(name="br-mc", datapath=DatapathType.NETDEV)
    chain = NftChain(table="t", name="c", type="nat", hook="postrouting", priority=99, rules=())
    route = Route(table=1, destination=ip_network("10.1.0.0/16"), via=ip_address("192.0.2.9"))
    desired = Desired(fragments={"u": Fragment(owner="u", resources=(bridge, tunnel(1), FLOW, route, chain))})
    worlds: tuple[dict[ResourceKey, Resource], ...] = ({}, {bridge.key: bridge})
    for world in worlds:
        plan = flows_first(diff({Backend.OVSDB: world}, desired), world.values(), blank=True)
        order = [[[stage.kind for stage in lane] for lane in turn] for turn in turns(plan)]
        assert order == [
            *([] if world else [[[StageKind.TUNNELS]]]),
            [[StageKind.FLOWS], [StageKind.NFT]],
            [[StageKind.ROUTES]],
            [[StageKind.FIRST_TUNNELS]],
        ]
        assert [step.new for step in plan.stages[-1].steps] == [tunnel(1)]


@given(WORLDS)
def test_nothing_is_done_where_all_is_right(world: World) -> None:
    """An agent that starts and finds its flows there touches no tunnel."""
    world[Backend.OPENFLOW, FLOW.key] = FLOW
    resources = contents(world)
    assert (
        flows_first(diff(resources, desired_of(world)), resources[Backend.OVSDB].values(), blank=False) == Plan()
    )


def test_a_bridge_that_lost_its_flows_says_so_by_every_tunnel() -> None:
    """All tunnels say path down in the first stage, and are taken into use after the flows."""
    ports: dict[ResourceKey, Resource] = {p.key: p for p in (tunnel(1), tunnel(2), tunnel(3, bfd=None))}
    desired = Desired(fragments={"u": Fragment(owner="u", resources=(*ports.values(), FLOW))})
    plan = flows_first(diff({Backend.OVSDB: ports}, desired), ports.values(), blank=True)
    assert [(stage.kind, len(stage.steps)) for stage in plan.stages] == [
        (StageKind.TUNNELS, 2),
        (StageKind.FLOWS, 1),
        (StageKind.TUNNELS_IN_USE, 2),
    ]
    assert {step.op for step in plan.stages[0].steps} == {Op.REPLACE}
