"""Whole desired states, as `compile` makes them, against the real thing: applied, read back, taken away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from mcagent.core.compile import Compiled, Compiler, compile_desired
from mcagent.core.plan.diff import diff, diff_desired
from mcagent.core.plan.render import plan_text
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from mcagent.dataplane.ovsdb.backend import OvsdbBackend
from mcagent.model.config import Config, GatewayMode
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType, Drain, Facts
from mcagent.model.dataplane.resources import TunnelPort
from mcagent.model.objects import ApiObject
from mcagent.model.plan import Actual, Desired, Plan
from tests.contract.inside import Inside
from tests.worlds.core_inputs import (
    EAST6,
    HOME,
    HOME6,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    gateway,
    node,
    service,
    snapshot,
)

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

EAST = cluster("east", "10.97.0.0/16", "10.20.0.0/16", gateways=("203.0.113.1", "10.20.0.9"))
WEST = cluster("west", "10.98.0.0/16", gateways=("203.0.113.3",))
WEB: tuple[ApiObject, ...] = (
    service("web", "10.96.0.7", 80, affinity=True),
    service("dns", "10.96.0.8", 53),
    export("web"),
    export("dns"),
    endpoint_slice("s", "web", [endpoint("10.10.3.9"), endpoint("10.10.1.9")], ("", 8080)),
)

World = Mapping[Backend, Inside]


@pytest.fixture
def world(fresh_ovs: OvsInstance) -> Iterator[World]:
    """Give the four backends of a Node that is a namespace."""
    backends = (
        OvsdbBackend(fresh_ovs.socket),
        OpenFlowBackend(fresh_ovs.mgmt("br-mc")),
        NetlinkBackend(route_tables=(28003, 28004), route_protocol=111, devices=("mc-gw0",)),
        NftBackend(table="mcagent"),
    )
    for address in ("192.0.2.1/32", "192.0.2.3/32"):  # of the Nodes that the tests play
        netns.add_address(fresh_ovs.namespace, "lo", address)
    with ExitStack() as stack:
        for backend in backends:
            stack.callback(backend.close)
        yield {backend.name: Inside(fresh_ovs.namespace, backend) for backend in backends}


def observe(world: World) -> Actual:
    """Return all that is."""
    return {name: backend.observe() for name, backend in world.items()}


def apply(world: World, plan: Plan) -> None:
    """Apply a plan, stage by stage; every step has to succeed."""
    for stage in plan.stages:
        result = world[stage.backend].apply(stage.steps)
        assert not result.failed, [str(error) for _, error in result.failed]


def facts_of(world: World) -> Facts:
    """Return the facts that follow from what is there."""
    ports = {r.name: r.ofport for r in world[Backend.OVSDB].observe().values() if isinstance(r, TunnelPort)}
    return Facts(datapath=DatapathType.NETDEV, ofports=ports)


def settled(world: World, compiled: Compiled) -> None:
    """Check that the world is as desired."""
    steps = diff(observe(world), compiled.desired)
    assert not steps.stages, plan_text(steps)


SETTINGS: tuple[Config, ...] = (
    config("g1", enable_pod_to_pod=True),
    config("g1", bfd_local_interval=0.1, bfd_remote_interval=0.3, tunnel_port=7000),
    config("w1", enable_pod_to_pod=True),
)


@pytest.mark.parametrize("settings", SETTINGS, ids=["gateway", "gateway with BFD", "worker"])
def test_a_desired_state_is_read_back_as_it_was_asked_for(world: World, settings: Config) -> None:
    """From nothing to everything, through changes of clusters and roles, and back to nothing: no step fails."""
    objects = (*HOME, EAST, WEST, *WEB)
    facts = facts_of(world)
    compiler = Compiler()
    first = compiler.compile(snapshot(*objects), facts, settings)
    apply(world, diff(observe(world), first.desired))
    settled(world, first)

    # a restart that finds the world right does nothing
    settled(world, compile_desired(snapshot(*objects), facts_of(world), settings))

    # a gateway of another cluster moves, a cluster goes, a worker becomes a gateway, a Service loses its endpoints
    moved = replace(EAST, gateway_ips=(ip_address("203.0.113.77"),))
    second = compiler.compile(
        snapshot(*HOME, node("w2", "192.0.2.4", "10.10.4.0/24"), gateway("w2", "192.0.2.4"), moved, *WEB[:4]),
        facts_of(world),
        settings,
    )
    apply(world, diff_desired(first.desired, second.desired))
    settled(world, second)
    promoted = compiler.compile(
        snapshot(*HOME, gateway("w1", "192.0.2.3"), moved, *WEB), facts_of(world), settings
    )
    apply(world, diff_desired(second.desired, promoted.desired))
    settled(world, promoted)

    # a cluster takes the gateway address of one that is gone
    heir = cluster("heir", "10.99.0.0/16", gateways=("203.0.113.77",))
    last = compiler.compile(snapshot(*HOME, heir), facts_of(world), settings)
    apply(world, diff_desired(promoted.desired, last.desired))
    settled(world, last)

    apply(world, diff(observe(world), Desired(fragments={})))
    assert not any(observe(world).values())


@pytest.mark.parametrize("on", ["g1", "w1"])
def test_ways_change_in_place(world: World, on: str) -> None:
    """Seen, held, not Ready, draining, in order and back: each is taken by a running switch, and read back."""
    source = snapshot(*HOME, EAST, WEST, node("g3", "192.0.2.9", "10.10.9.0/24"), gateway("g3", "192.0.2.9"))
    tired = replace(source, nodes={**source.nodes, "g2": replace(source.nodes["g2"], ready=False)})
    plain, ordered = config(on), config(on, gateways=GatewayMode.ACTIVE_STANDBY)
    apply(world, diff(observe(world), compile_desired(source, facts_of(world), plain).desired))
    facts = facts_of(world)
    seen = replace(facts, bfd_seen=frozenset(facts.ofports))
    held = replace(seen, damped=frozenset(sorted(facts.ofports)[:1]))
    for objects, known, settings in (
        (source, facts, plain),
        (source, seen, plain),
        (source, held, plain),
        (tired, seen, plain),
        (source, replace(seen, drain=Drain.ALL), plain),
        (source, replace(held, active_order=("g3", "g2")), ordered),
        (tired, facts, ordered),
        (tired, held, plain),
        (source, facts, plain),
    ):
        compiled = compile_desired(objects, known, settings)
        apply(world, diff(observe(world), compiled.desired))
        settled(world, compiled)


@pytest.mark.parametrize("on", ["g1", "w1"])
def test_an_underlay_of_ipv6_is_read_back_as_it_was_asked_for(world: World, on: str) -> None:
    """Tunnels to IPv6 addresses, what stands for them in routes and flows; nothing is left to do."""
    compiled = compile_desired(snapshot(*HOME6, EAST6), facts_of(world), config(on, enable_pod_to_pod=True))
    apply(world, diff(observe(world), compiled.desired))
    tunnels = [tunnel for tunnel in world[Backend.OVSDB].observe().values() if isinstance(tunnel, TunnelPort)]
    assert tunnels
    assert {tunnel.remote_ip.version for tunnel in tunnels} == {6}
    settled(world, compiled)
    settled(world, compile_desired(snapshot(*HOME6, EAST6), facts_of(world), config(on, enable_pod_to_pod=True)))
