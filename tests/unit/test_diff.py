"""Diff and render: a plan makes one state into the other, in an order in which nothing hangs in the air."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mcagent.api.codec import to_json
from mcagent.core.plan.diff import diff, diff_desired
from mcagent.core.plan.render import api_desired, api_plan, desired_text, plan_text, resource_text
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import (
    Bridge,
    FlowEntry,
    GroupEntry,
    HostPort,
    Link,
    LinkAddress,
    MeterEntry,
    Neighbour,
    NftChain,
    NftSet,
    PeerKind,
    Resource,
    ResourceKey,
    Route,
    RouteType,
    Rule,
    TunnelPort,
    TunnelType,
)
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardImplementation, WireGuardPeer
from mcagent.model.plan import AFTER, ORDER, Actual, Desired, Fragment, Op, Plan, StageKind

SMALL = st.integers(1, 4)


def tunnel(number: int, ofport: int, kind: PeerKind = PeerKind.NODE, name: str = "") -> TunnelPort:
    """Return a tunnel port to peer `number`."""
    return TunnelPort(
        bridge="br-mc",
        name=name or f"mcn-{number}",
        type=TunnelType.GENEVE,
        remote_ip=ip_address(f"192.0.2.{number}"),
        dst_port=0,
        ofport=ofport,
        peer_kind=kind,
        peer=f"n{number}",
    )


def chain(number: int, rule: int) -> NftChain:
    """Return an nft chain with one rule."""
    return NftChain(
        table="mcagent",
        name=f"c{number}",
        type="filter",
        hook="forward",
        priority=0,
        rules=(f"meta mark {rule}",),
    )


RESOURCES: st.SearchStrategy[Resource] = st.one_of(
    st.just(Bridge(name="br-mc", datapath=DatapathType.NETDEV)),
    st.builds(HostPort, bridge=st.just("br-mc"), name=st.just("mc-gw0"), ofport=SMALL, mac=st.just("m")),
    st.builds(tunnel, SMALL, SMALL),
    st.builds(
        FlowEntry,
        table=SMALL,
        priority=SMALL,
        match=st.sampled_from(["", "ip"]),
        cookie=SMALL,
        actions=st.sampled_from(["drop", "output:1"]),
    ),
    st.builds(GroupEntry, group_id=SMALL, body=st.sampled_from(["type=select", "type=ff"])),
    st.builds(MeterEntry, meter_id=SMALL, rate=SMALL, burst=SMALL),
    st.builds(Link, name=st.just("mc-gw0"), mtu=st.integers(1400, 1402)),
    st.builds(
        LinkAddress, device=st.just("mc-gw0"), address=st.just(ip_address("169.254.77.1")), prefixlen=st.just(32)
    ),
    st.builds(
        Neighbour,
        device=st.just("mc-gw0"),
        address=st.just(ip_address("169.254.77.2")),
        mac=st.sampled_from(["a", "b"]),
    ),
    st.builds(
        Route,
        table=SMALL,
        destination=SMALL.map(lambda n: ip_network(f"10.{n}.0.0/16")),
        device=st.sampled_from(["x", "y"]),
    ),
    st.builds(
        Rule,
        priority=SMALL,
        table=SMALL,
        fwmark=SMALL,
        destination=st.sampled_from([None, ip_network("240.0.0.0/4")]),
        protocol=st.sampled_from([0, 17]),
        source_ports=st.sampled_from([None, (1, 32767), (32768, 65534)]),
    ),
    st.builds(chain, SMALL, SMALL),
    st.builds(
        NftSet,
        table=st.just("mcagent"),
        name=st.just("s"),
        elements=st.sampled_from([(), (ip_network("10.0.0.0/8"),)]),
    ),
)

World = dict[tuple[Backend, ResourceKey], Resource]


def world_of(resources: list[Resource]) -> World:
    """Return the resources by backend and key: no key twice."""
    return {(r.backend, r.key): r for r in resources}


WORLDS = st.lists(RESOURCES, max_size=14).map(world_of)


def actual_of(world: World) -> Actual:
    """Return the world as backends report it."""
    actual: dict[Backend, dict[ResourceKey, Resource]] = {backend: {} for backend in Backend}
    for (backend, key), resource in world.items():
        actual[backend][key] = resource
    return actual


def desired_of(world: World, fragments: list[int]) -> Desired:
    """Return the world as fragments; `fragments` says which resource goes to which."""
    found: dict[str, list[Resource]] = {}
    for index, resource in enumerate(world.values()):
        found.setdefault(f"u{fragments[index % len(fragments)]}", []).append(resource)
    return Desired(fragments={n: Fragment(owner=n, resources=tuple(r)) for n, r in sorted(found.items())})


def applied(world: World, plan: Plan) -> World:
    """Return the world after the plan; every step must fit what it meets."""
    world = dict(world)
    for step in plan.steps:
        place = (step.backend, step.key)
        assert world.get(place) == step.old
        assert (step.op is Op.ADD) == (step.old is None)
        assert (step.op is Op.DELETE) == (step.new is None)
        if step.new is None:
            del world[place]
        else:
            world[place] = step.new
    return world


FRAGMENTS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(WORLDS, WORLDS, FRAGMENTS)
def test_a_plan_makes_the_actual_state_the_desired_one(before: World, after: World, fragments: list[int]) -> None:
    """apply(diff(a, d)) == d, and then there is nothing to do."""
    desired = desired_of(after, fragments)
    plan = diff(actual_of(before), desired)
    assert applied(before, plan) == after
    assert diff(actual_of(after), desired) == Plan()
    assert bool(plan.stages) == (before != after)


@given(WORLDS, WORLDS, FRAGMENTS, FRAGMENTS)
def test_diff_of_two_desired_states_equals_the_full_diff(
    before: World, after: World, fragments: list[int], other_fragments: list[int]
) -> None:
    """Looking at changed fragments only gives the same plan, also when a resource moves to another fragment."""
    old, new = desired_of(before, fragments), desired_of(after, other_fragments)
    assert diff_desired(old, new) == diff(actual_of(before), new)
    assert diff_desired(new, new) == Plan()
    same_unit = Desired(
        fragments={
            **new.fragments,
            **{n: old.fragments[n] for n in old.fragments if old.fragments[n] == new.fragments.get(n)},
        }
    )
    assert diff_desired(old, same_unit) == diff_desired(old, new)


@given(st.lists(RESOURCES, max_size=10))
def test_the_order_of_input_makes_no_difference(resources: list[Resource]) -> None:
    """The same resources in any order, in any fragment order, give the same plan."""
    world = world_of(resources)
    shuffled = dict(reversed(world.items()))
    assert diff({}, desired_of(world, [0])) == diff({}, desired_of(shuffled, [0]))


def test_stages_are_in_the_order_in_which_things_stand_on_each_other() -> None:
    """Tunnels, devices, nft, groups, flows, routes on adding; the other way round on removing."""
    resources: list[Resource] = [
        Rule(priority=300, table=1),
        Route(table=1, destination=ip_network("10.1.0.0/16"), device="mc-gw0", via=ip_address("169.254.77.2")),
        FlowEntry(table=0, priority=1, match="", cookie=1, actions="group:1"),
        GroupEntry(group_id=1, body="type=select"),
        MeterEntry(meter_id=1, rate=5, burst=10),
        chain(1, 1),
        NftSet(table="mcagent", name="s", elements=()),
        Neighbour(device="mc-gw0", address=ip_address("169.254.77.2"), mac="a"),
        Link(name="mc-gw0", mtu=1450),
        tunnel(1, 2),
        Bridge(name="br-mc", datapath=DatapathType.SYSTEM),
    ]
    up = diff({}, desired_of(world_of(resources), [0]))
    assert [type(step.new).__name__ for step in up.steps] == (
        "Bridge TunnelPort Link Neighbour NftSet NftChain MeterEntry GroupEntry FlowEntry Route Rule".split()  # noqa: SIM905
    )
    down = diff(actual_of(world_of(resources)), Desired(fragments={}))
    assert [type(step.old).__name__ for step in down.steps] == (
        "NftChain NftSet FlowEntry GroupEntry MeterEntry Rule Route Neighbour Link TunnelPort Bridge".split()  # noqa: SIM905
    )


def test_the_way_to_a_tunnel_endpoint_stands_before_flows_use_it() -> None:
    """Device, peer, and both routes of an endpoint come before flows; its peer and device go last."""
    endpoint = ip_network("240.0.0.1/32")
    resources: list[Resource] = [
        WireGuardPeer(
            device="mc-wg0",
            public_key="b",
            endpoint=(ip_address("192.0.2.1"), 1),
            allowed_ips=(endpoint,),
            keepalive=1,
        ),
        WireGuardDevice(
            name="mc-wg0",
            listen_port=1,
            mtu=1440,
            public_key="a",
            addresses=(),
            implementation=WireGuardImplementation.KERNEL,
        ),
        Route(table=1, destination=endpoint, type=RouteType.UNREACHABLE),
        Route(table=1, destination=endpoint, device="mc-wg0"),
        FlowEntry(table=0, priority=1, match="", cookie=1, actions="drop"),
        tunnel(1, 2),
    ]
    up = diff({}, desired_of(world_of(resources), [0]))
    assert [type(step.new).__name__ for step in up.steps] == [
        "WireGuardDevice", "WireGuardPeer", "TunnelPort", "Route", "Route", "FlowEntry"
    ]  # fmt: skip
    down = diff(actual_of(world_of(resources)), Desired(fragments={}))
    assert [type(step.old).__name__ for step in down.steps] == [
        "FlowEntry", "Route", "Route", "TunnelPort", "WireGuardPeer", "WireGuardDevice"
    ]  # fmt: skip


def test_a_tunnel_to_the_same_end_under_another_name_makes_room_first() -> None:
    """Open vSwitch takes one tunnel per end: the old one goes before the new one comes, others go last."""
    old = [tunnel(1, 2), tunnel(2, 3)]
    new: list[Resource] = [tunnel(1, 4, PeerKind.GATEWAY, "mcg-1")]
    plan = diff(actual_of(world_of([*old])), desired_of(world_of(new), [0]))
    assert [(s.kind, [(step.op, step.key[2]) for step in s.steps]) for s in plan.stages] == [
        (StageKind.ROOM_FOR_TUNNELS, [(Op.DELETE, "mcn-1")]),
        (StageKind.TUNNELS, [(Op.ADD, "mcg-1")]),
        (StageKind.OLD_TUNNELS, [(Op.DELETE, "mcn-2")]),
    ]


def test_every_stage_has_its_place_after_what_it_needs() -> None:
    """The order of stages keeps every dependency."""
    assert set(ORDER) == set(AFTER) == set(StageKind)
    assert all(ORDER.index(before) < ORDER.index(kind) for kind, befores in AFTER.items() for before in befores)


def test_a_plan_is_told_to_people() -> None:
    """Each step is a line with its sign; a change also says what was."""
    before = world_of([tunnel(1, 2), tunnel(2, 3)])
    after = world_of([tunnel(1, 5), tunnel(3, 4)])
    assert plan_text(diff(actual_of(before), desired_of(after, [0]))) == (
        "1. create bridge and tunnels (ovsdb; 1 to add, 1 to change)\n"
        "  ~ tunnel mcn-1 ofport 5 geneve to 192.0.2.1 (node n1)\n"
        "      was: tunnel mcn-1 ofport 2 geneve to 192.0.2.1 (node n1)\n"
        "  + tunnel mcn-3 ofport 4 geneve to 192.0.2.3 (node n3)\n"
        "2. remove tunnels (ovsdb; 1 to remove)\n"
        "  - tunnel mcn-2 ofport 3 geneve to 192.0.2.2 (node n2)\n"
        "in all: 1 to add, 1 to change, 1 to remove\n"
    )
    assert plan_text(Plan()) == "nothing to do: the dataplane is as it should be\n"


def test_a_changed_switch_of_a_device_is_told() -> None:
    """Forwarding and rp_filter can be all that differs of a link."""
    after, before = Link(name="mc-gw0", mtu=1450), Link(name="mc-gw0", mtu=1450, forwarding=False, rp_filter=1)
    lines = plan_text(diff(actual_of(world_of([before])), desired_of(world_of([after]), [0]))).splitlines()
    assert "  ~ link mc-gw0 up mtu 1450 forwarding 1 rp_filter 2" in lines
    assert "      was: link mc-gw0 up mtu 1450 forwarding 0 rp_filter 1" in lines


def test_what_spreads_packets_over_devices_is_told() -> None:
    """A rule on ports, a mark of encapsulated packets, a loose check of sources: each can be all that differs."""
    rule = Rule(
        priority=299, table=28004, destination=ip_network("240.0.0.0/4"), protocol=17, source_ports=(16384, 32767)
    )
    device = WireGuardDevice(
        name="mc-wg1",
        listen_port=51821,
        mtu=1420,
        public_key="k",
        addresses=(),
        implementation=WireGuardImplementation.KERNEL,
    )
    before: list[Resource] = [tunnel(1, 1), replace(rule, source_ports=None, protocol=0), device]
    after: list[Resource] = [replace(tunnel(1, 1), egress_mark=32), rule, replace(device, loose_source_check=True)]
    text = plan_text(diff(actual_of(world_of(before)), desired_of(world_of(after), [0])))
    assert "rule 299: to 240.0.0.0/4 ipproto 17 sport 16384-32767 lookup 28004" in text
    assert "was: rule 299: to 240.0.0.0/4 lookup 28004" in text
    assert " mark 0x20 (" in text
    assert text.count(" mark ") == 1
    assert text.count("mtu 1420 rp_filter 2 public") == 1


def test_a_peer_is_told_with_its_next_key_where_it_has_one() -> None:
    """One line, in the words of wg(8)."""
    peer = WireGuardPeer(
        device="mc-wg0",
        public_key="k",
        endpoint=(ip_address("192.0.2.1"), 51821),
        allowed_ips=(ip_network("251.0.2.1/32"), ip_network("10.0.0.0/8")),
        keepalive=15,
    )
    text = (
        "wireguard peer k dev mc-wg0 endpoint 192.0.2.1:51821 allowed ips 251.0.2.1/32, 10.0.0.0/8 keepalive 15 s"
    )
    assert resource_text(peer) == text
    assert resource_text(replace(peer, successor="n")) == f"{text} next key n"


def test_flows_and_chains_are_told_as_their_tools_print_them() -> None:
    """A match is left out where there is none, and a hook where other chains jump to the chain."""
    flow = FlowEntry(table=10, priority=100, match="ip,nw_src=10.0.0.0/8", cookie=1, actions="drop")
    assert resource_text(flow) == "flow table=10,priority=100,ip,nw_src=10.0.0.0/8 actions=drop"
    assert resource_text(replace(flow, match="")) == "flow table=10,priority=100 actions=drop"
    chain = NftChain(table="mcagent", name="c", type="filter", hook="forward", priority=-150, rules=("a", "b"))
    assert resource_text(chain) == "nft chain c (forward -150): a; b"
    assert resource_text(replace(chain, type="", hook="", priority=0)) == "nft chain c: a; b"


@given(WORLDS, WORLDS)
def test_plans_and_states_are_json(before: World, after: World) -> None:
    """Everything can be told as JSON and as text, whatever is in it."""
    desired = desired_of(after, [0, 1])
    plan = diff(actual_of(before), desired)
    document = json.loads(json.dumps(to_json(api_plan(plan))))
    assert sum(document["counts"].values()) == len(plan)
    assert [stage["backend"] for stage in document["stages"]] == [str(stage.backend) for stage in plan.stages]
    assert sum(len(stage["steps"]) for stage in document["stages"]) == len(plan)
    state = json.loads(json.dumps(to_json(api_desired(desired))))
    assert sum(map(len, state["fragments"].values())) == len(after)
    assert {"role", "clusters", "encryption"} <= state["summary"].keys()
    assert len(desired_text(desired).splitlines()) == len(after) + len(desired.fragments)
