"""`mcagent plan --what-if`: what would be lost, end or move, and that it is what would really happen."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flows.actions import Output, ToGroup
from flows.flow import Bucket, Flow, Group, GroupType, Match
from flows.pipeline import Env, NextHop
from flows.pipeline.groups import next_hop_groups
from flows.simulator import Packet, SimulatedSwitch
from flows.simulator.groups import shares
from mcagent.api.plan import ForecastChange
from mcagent.cli.main import main
from mcagent.core.compile import compile_desired
from mcagent.core.plan.diff import diff_desired
from mcagent.core.snapshot import ATTRIBUTE, Delete, Relist, Upsert, apply_changes
from mcagent.model.config import Config, DatapathChoice, GatewayMode
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import TunnelPort
from mcagent.model.errors import InputError
from mcagent.model.objects import ApiObject, Kind, Snapshot
from mcagent.trace.whatif.assumptions import World, assume, facts_unseen, read_assumption
from mcagent.trace.whatif.compare import Comparison, Effect, compare
from mcagent.trace.whatif.forecast import WORKERS as OF_WORKERS
from mcagent.trace.whatif.forecast import forecast
from tests.properties import costly
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    export,
    gateway,
    imported_slice,
    node,
    service,
    service_import,
    snapshot,
)

EAST = cluster("east", "10.97.0.0/16", "10.20.0.0/16", gateways=("203.0.113.1", "203.0.113.2"))
WEST = cluster("west", "10.98.0.0/16", "10.30.0.0/16", gateways=("203.0.113.8",))
THIRD: tuple[ApiObject, ...] = (node("g3", "192.0.2.4", "10.10.4.0/24"), gateway("g3", "192.0.2.4"))
WORKERS: tuple[ApiObject, ...] = (node("w2", "192.0.2.5", "10.10.5.0/24"),)
WORLD = World(snapshot=snapshot(*HOME, *THIRD, *WORKERS, EAST, WEST))
PODS: dict[str, Any] = {"enable_pod_to_pod": True}
THIRD_OF = 1 / 3
PACKET = Packet(in_port=1, src=ip_address("10.1.0.1"), dst=ip_address("10.2.0.1"), dst_port=80)


def ask(*texts: str, world: World = WORLD, on: str = "w1", **values: Any) -> Comparison:
    """Return what would differ if this happened, as Node `on` tells it."""
    settings = config(on, **{**PODS, **values})
    then = world
    for text in texts:
        then = assume(then, read_assumption(text, then.snapshot, settings))
    return compare(forecast(world, settings), forecast(then, settings))


def of(answer: Comparison, effect: Effect) -> list[ForecastChange]:
    """Return the findings of an effect."""
    return [one for one in answer.findings if one.effect is effect]


def one(answer: Comparison, effect: Effect, *nodes: str) -> ForecastChange:
    """Return the only finding of an effect about exactly these Nodes."""
    (found,) = [finding for finding in of(answer, effect) if finding.nodes == nodes]
    return found


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("", "must be"),
        ("gateway g1", "must be"),
        ("router g1 down", "must be"),
        ("gateway g1 removed", "can be down or drained"),
        ("gateway g9 down", "there are g1, g2, g3, 203.0.113.1, 203.0.113.2, 203.0.113.8"),
        ("gateway w1 down", "there are g1, g2, g3"),
        ("gateway 203.0.113.1 drained", "drain it there"),
        ("node g9 down", "there are g1, g2, g3, w1, w2"),
        ("cluster north removed", "there are east, west"),
    ],
)
def test_what_cannot_be_assumed_is_told_with_what_can(text: str, right: str) -> None:
    """A person reads what is allowed, or which names there are."""
    with pytest.raises(InputError, match="what-if") as error:
        read_assumption(text, WORLD.snapshot, config("w1"))
    assert right in str(error.value)


GRAMMAR = (
    'must be "gateway NAME down" (a Node of this cluster, or the gatewayIP of another\'s), "node NAME down", '
    '"node NAME drained", or "cluster ID removed"'
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gateway g1", GRAMMAR),
        ("gateway g1 down now", GRAMMAR),
        ("router g1 down", f'cannot assume anything of "router": {GRAMMAR}'),
        ("gateway g1 removed", 'a gateway can be down or drained, not "removed"'),
        ("cluster east down", 'a cluster can be removed, not "down"'),
        (
            "gateway 203.0.113.1 drained",
            '203.0.113.1 is a gateway of another cluster: drain it there; here it can be assumed "down"',
        ),
        ("node g9 down", 'there is no node "g9": there are g1, g2, g3, w1, w2'),
        ("cluster north removed", 'there is no cluster "north": there are east, west'),
    ],
)
def test_an_assumption_is_refused_with_its_text_and_a_reason(text: str, reason: str) -> None:
    """The reason has the words and names that are possible."""
    with pytest.raises(InputError) as error:
        read_assumption(text, WORLD.snapshot, config("w1"))
    assert str(error.value) == f'--what-if "{text}": {reason}'


def test_an_assumption_without_any_object_names_none() -> None:
    """A snapshot may be empty; eight names of many are listed."""
    for kind in ("gateway", "node"):
        with pytest.raises(InputError, match=f'there is no {kind} "x": no {kind} is known$'):
            read_assumption(f"{kind} x down", snapshot(), config("w1"))
    many = snapshot(*(node(f"n{number}", f"192.0.2.{number}") for number in range(1, 10)))
    with pytest.raises(InputError, match=r"n1, n2, n3, n4, n5, n6, n7, n8 and 1 more$"):
        read_assumption("node x down", many, config("w1"))


@pytest.mark.parametrize(
    "text", ["gateway g1 down", "node w1 drained", "cluster east removed", "gateway g2 drained"]
)
def test_an_assumption_is_written_as_it_is_read(text: str) -> None:
    """Spaces around the words do not count."""
    settings = config("w1")
    assumption = read_assumption(f"  {text.replace(' ', '   ')} ", WORLD.snapshot, settings)
    assert str(assumption) == text
    assert assumption == read_assumption(text, WORLD.snapshot, settings)


def test_an_assumed_event_changes_its_objects_only() -> None:
    """A Node that is down is not ready and silent; a drained one answers; a remote gateway is no object here."""
    settings = config("w1")

    def after(text: str) -> World:
        return assume(WORLD, read_assumption(text, WORLD.snapshot, settings))

    for kind in ("gateway", "node"):
        down = after(f"{kind} g1 down")
        assert (down.silent, down.facts) == (frozenset({"g1"}), WORLD.facts)
        g1 = replace(WORLD.snapshot.nodes["g1"], ready=False)
        assert down.snapshot == replace(WORLD.snapshot, nodes={**WORLD.snapshot.nodes, "g1": g1})
        drained = after(f"{kind} g1 drained")
        g1 = replace(WORLD.snapshot.nodes["g1"], drain=True)
        assert (drained.silent, drained.snapshot.nodes["g1"]) == (frozenset(), g1)
    far = after("gateway 203.0.113.1 down")
    assert (far.snapshot, far.silent) == (WORLD.snapshot, frozenset({"203.0.113.1"}))
    removed = after("cluster east removed")
    assert {info.cluster_id for info in removed.snapshot.cluster_infos.values()} == {"west"}
    assert removed.silent == frozenset()


@pytest.mark.parametrize(
    ("choice", "facts"),
    [
        (DatapathChoice.AUTO, Facts()),
        (DatapathChoice.NETDEV, Facts(datapath=DatapathType.NETDEV)),
        (DatapathChoice.SYSTEM, Facts(datapath=DatapathType.SYSTEM)),
    ],
)
def test_the_datapath_of_a_node_that_is_not_observed_is_configured(choice: DatapathChoice, facts: Facts) -> None:
    """By default it is the kernel's."""
    assert facts_unseen(config("w1", datapath=choice)) == facts


def test_a_gateway_that_dies_breaks_nothing_but_what_it_translates() -> None:
    """Its third of the connections moves to the others; nothing else does."""
    answer = ask("gateway g1 down")
    moved = one(answer, Effect.MOVED, "w1", "w2")
    assert moved.clusters == ("east", "west")
    assert moved.share == THIRD_OF
    assert moved.after == {"g2": 0.5, "g3": 0.5}
    broken = one(answer, Effect.BROKEN, "w1", "w2")
    assert broken.share == THIRD_OF
    assert "host's network" in broken.text
    (lost,) = of(answer, Effect.LOST)
    assert lost.nodes == ("g1",)


def test_without_pod_to_pod_every_connection_is_translated() -> None:
    """Then a third of all connections ends with a gateway of three, and is not listed as moved, too."""
    answer = ask("gateway g1 down", enable_pod_to_pod=False)
    assert "all of these are" in one(answer, Effect.BROKEN, "w1", "w2").text
    assert [change for change in of(answer, Effect.MOVED) if change.nodes] == []
    far = ask("gateway 203.0.113.1 down", enable_pod_to_pod=False)
    assert one(far, Effect.MOVED, "g1", "g2", "g3", "w1", "w2").after == {"203.0.113.2": 1.0}
    assert of(far, Effect.BROKEN) == []


def test_the_last_gateway_takes_all_with_it() -> None:
    """Nothing is reached when no gateway is left; nor when those of the other cluster are gone."""
    answer = ask("gateway g1 down", "gateway g2 down", "gateway g3 down")
    assert one(answer, Effect.LOST, "w1", "w2").share == 1
    assert any("no other cluster can connect here" in finding.text for finding in answer.findings)
    far = ask("gateway 203.0.113.8 down")
    lost = one(far, Effect.LOST, "g1", "g2", "g3", "w1", "w2")
    assert (lost.clusters, lost.share) == (("west",), 1.0)


def test_who_is_dead_already_does_not_take_over() -> None:
    """The one gateway that still answers is the one that is asked about."""
    answer = ask("gateway g1 down", world=replace(WORLD, silent=frozenset({"g2", "g3"})))
    assert one(answer, Effect.LOST, "w1", "w2").share == 1


def test_a_far_gateway_that_dies_moves_connections_and_breaks_none() -> None:
    """Half of the connections take the other one; who translates them stays the same."""
    answer = ask("gateway 203.0.113.1 down")
    moved = one(answer, Effect.MOVED, "g1", "g2", "g3", "w1", "w2")
    assert (moved.clusters, moved.share) == (("east",), 0.5)
    assert not of(answer, Effect.BROKEN)
    assert not of(answer, Effect.LOST)


def test_a_peer_that_never_answered_bfd_is_not_left() -> None:
    """Where nothing watches a gateway of the other cluster, what is sent to it is lost."""
    settings = config("g1", **PODS)
    there = compile_desired(WORLD.snapshot, Facts(), settings).desired
    every = (resource for fragment in there.fragments.values() for resource in fragment.resources)
    ports = {one.name: one.ofport for one in every if isinstance(one, TunnelPort)}
    silent_bfd = replace(WORLD, facts=Facts(ofports=ports))  # every tunnel is there, none was ever answered
    answer = ask("gateway 203.0.113.1 down", world=silent_bfd, on="g1")
    lost = next(finding for finding in of(answer, Effect.LOST) if "g1" in finding.nodes)
    assert lost.share == 0.5


def test_active_standby_moves_all_or_nothing() -> None:
    """With an order all connections are by the first gateway; a second one's death moves none."""
    ordered: dict[str, Any] = {"gateways": GatewayMode.ACTIVE_STANDBY}
    assert one(ask("gateway g1 down", **ordered), Effect.MOVED, "w1", "w2").share == 1
    spare = ask("gateway g3 down", **ordered)
    assert not [finding for finding in of(spare, Effect.MOVED) if "w1" in finding.nodes]


def test_a_drained_gateway_hands_over_and_the_only_one_does_not() -> None:
    """Drain moves what a death would move and loses nothing; where nobody would take over it is refused."""
    answer = ask("node g1 drained")
    assert one(answer, Effect.MOVED, "w1", "w2").share == THIRD_OF
    assert not of(answer, Effect.LOST)
    alone = World(snapshot=snapshot(*HOME[:1], HOME[2], HOME[3], EAST))
    refused = ask("node g1 drained", world=alone)
    assert not of(refused, Effect.MOVED)
    assert any("would not drain" in finding.text for finding in of(refused, Effect.NOTED))


def test_a_cluster_that_leaves_is_lost_with_its_endpoints() -> None:
    """A Service that has endpoints elsewhere breaks; one that had them there only is lost."""
    shop, cart = service_import("shop"), service_import("cart")
    slices = (
        imported_slice("shop-east", "shop", "east", [endpoint("10.20.0.5"), endpoint("10.20.0.6")]),
        imported_slice("shop-west", "shop", "west", [endpoint("10.30.0.5")]),
        imported_slice("cart-east", "cart", "east", [endpoint("10.20.0.7")]),
    )
    world = World(snapshot=snapshot(*HOME, EAST, WEST, shop, cart, *slices))
    answer = ask("cluster east removed", world=world)
    texts = [finding.text for finding in of(answer, Effect.LOST)]
    assert any("all connections end" in text for text in texts)
    assert any("default/cart" in text for text in texts)
    (broken,) = of(answer, Effect.BROKEN)
    assert "default/shop" in broken.text
    assert broken.share == 2 / 3


def test_endpoints_on_a_dead_node_are_lost() -> None:
    """An exported Service tells how many of its endpoints are left."""
    served = service("web", "10.96.0.10", 80)
    slices = replace(
        imported_slice("web-1", "web", "", ()),
        service_name="web",
        imported_name="",
        endpoints=(
            replace(endpoint("10.10.3.5"), node_name="w1"),
            replace(endpoint("10.10.5.5"), node_name="w2"),
        ),
    )
    ports = replace(served.ports[0], name="http")
    world = World(snapshot=snapshot(*HOME, *WORKERS, EAST, replace(served, ports=(ports,)), export("web"), slices))
    (broken,) = of(ask("node w2 down", world=world, on="g1"), Effect.BROKEN)
    assert "1 of its 2 endpoints" in broken.text
    both = ask("node w1 down", "node w2 down", world=world, on="g1")
    assert any("no endpoint is left" in finding.text for finding in of(both, Effect.LOST))


def test_the_forecast_places_every_node_that_answers() -> None:
    """A gateway is a place of its own, all other Nodes one; each has the shares of its paths by cluster."""
    view = forecast(replace(WORLD, silent=frozenset({"g3", "w2"})), config("w1", **PODS))
    assert view.places == {"g1": "g1", "g2": "g2", "w1": OF_WORKERS}
    assert (set(view.gateways), set(view.clusters), view.cluster_id) == (
        {"g1", "g2", "g3"},
        {"east", "west"},
        "home",
    )
    assert view.arriving == {"g1": Fraction(1, 2), "g2": Fraction(1, 2)}
    assert view.silent == {"g3", "w2"}
    east = {
        (path.leaves_by, path.source, path.far): share for path, share in view.paths[OF_WORKERS]["east"].items()
    }
    assert east == {
        (name, source, far): Fraction(1, 4)
        for name, source in (("g1", "192.0.2.1"), ("g2", "192.0.2.2"))
        for far in ("203.0.113.1", "203.0.113.2")
    }
    assert {path.leaves_by: share for path, share in view.paths["g1"]["west"].items()} == {"g1": Fraction(1)}
    nowhere = forecast(World(snapshot=snapshot(*HOME[:3], EAST)), config("w1", **PODS))
    assert (nowhere.clusters, nowhere.arriving, nowhere.gateways) == ({}, {}, {})


def test_a_gateway_without_a_live_tunnel_to_a_cluster_relays() -> None:
    """To one with a tunnel that is live: here the other family of addresses leads to another remote gateway."""
    nodes = (node("g2", ("192.0.2.2", "2001:db8::2"), "10.10.2.0/24"), *HOME[:1], HOME[2])
    gateways = (gateway("g1", "192.0.2.1"), gateway("g2", "2001:db8::2", internal="192.0.2.2"))
    north = cluster("north", "10.99.0.0/16", gateways=("203.0.113.7", "2001:db8:1::9"))
    world = World(snapshot=snapshot(*nodes, *gateways, north))

    def by_gateway(world: World, place: str) -> dict[tuple[str, str], Fraction]:
        paths = forecast(world, config("w1")).paths[place]["north"]
        return {(path.leaves_by, path.far): share for path, share in paths.items()}

    half, whole = Fraction(1, 2), Fraction(1)
    ipv4, ipv6 = ("g1", "203.0.113.7"), ("g2", "2001:db8:1::9")
    assert [by_gateway(world, place) for place in ("g1", "g2")] == [{ipv4: whole}, {ipv6: whole}]
    assert by_gateway(world, OF_WORKERS) == {ipv4: half, ipv6: half}
    silent = replace(world, silent=frozenset({"203.0.113.7"}))
    for place in ("g1", "g2", OF_WORKERS):
        assert by_gateway(silent, place) == {ipv6: whole}


def test_other_clusters_choose_as_this_one_does() -> None:
    """All gateways that answer and do not drain or stand by; with an order the first of them."""

    def arriving(world: World, **values: Any) -> dict[str, Fraction]:
        return dict(forecast(world, config("w1", **PODS, **values)).arriving)

    third = Fraction(1, 3)
    assert arriving(WORLD) == {"g1": third, "g2": third, "g3": third}
    drained = assume(WORLD, read_assumption("node g1 drained", WORLD.snapshot, config("w1")))
    assert arriving(drained) == {"g2": Fraction(1, 2), "g3": Fraction(1, 2)}
    ordered: dict[str, Any] = {"gateways": GatewayMode.ACTIVE_STANDBY}
    assert arriving(WORLD, **ordered) == {"g1": Fraction(1)}
    observed = replace(WORLD, facts=Facts(active_order=("g3", "g1")))
    assert arriving(observed, **ordered) == {"g3": Fraction(1)}
    assert arriving(replace(observed, silent=frozenset({"g3"})), **ordered) == {"g1": Fraction(1)}
    assert arriving(replace(observed, silent=frozenset({"g3", "g1"})), **ordered) == {"g2": Fraction(1)}


# --- it is what would really happen


def raw_node(name: str, number: int) -> dict[str, Any]:
    """Return a Node as the API has it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {}},
        "spec": {"podCIDR": f"10.10.{number}.0/24", "podCIDRs": [f"10.10.{number}.0/24"]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": f"192.0.2.{number}"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def raw_gateway(name: str, number: int) -> dict[str, Any]:
    """Return a Gateway as the API has it."""
    return {
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": "mc"},
        "gatewayIP": f"192.0.2.{number}",
        "internalIP": f"192.0.2.{number}",
        "serviceCIDR": "10.96.0.0/16",
    }


def raw_cluster(name: str, number: int) -> dict[str, Any]:
    """Return a ClusterInfoImport as the API has it."""
    return {
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
        "kind": "ClusterInfoImport",
        "metadata": {"name": f"{name}-clusterinfo", "namespace": "mc"},
        "spec": {
            "clusterID": name,
            "serviceCIDR": f"10.{100 + number}.0.0/16",
            "podCIDRs": [f"10.{200 + number}.0.0/16"],
            "gatewayInfos": [{"gatewayIP": f"203.0.113.{10 * number + n}"} for n in (1, 2)],
        },
    }


NODES = {name: raw_node(name, number) for number, name in enumerate(("g1", "g2", "g3", "w1", "w2"), 1)}
GATEWAYS = {name: raw_gateway(name, number) for number, name in enumerate(("g1", "g2", "g3"), 1)}
CLUSTERS = {name: raw_cluster(name, number) for number, name in enumerate(("east", "west"), 1)}
EVENTS = st.sampled_from(
    [
        *(f"node {name} {event}" for name in NODES for event in ("down", "drained")),
        *(f"gateway {name} down" for name in GATEWAYS),
        *(f"cluster {name} removed" for name in CLUSTERS),
    ]
)
SETTINGS = st.sampled_from(
    [
        config(on, **PODS, gateways=mode)
        for on in ("g1", "w1")
        for mode in (GatewayMode.ACTIVE_ACTIVE, GatewayMode.ACTIVE_STANDBY)
    ]
)


def listed() -> Snapshot:
    """Return the snapshot of an agent that has listed all this."""
    kinds = ((Kind.NODE, NODES), (Kind.GATEWAY, GATEWAYS), (Kind.CLUSTER_INFO_IMPORT, CLUSTERS))
    relists = [Relist(kind=kind, items=[deepcopy(one) for one in raw.values()]) for kind, raw in kinds]
    empty = [Relist(kind=kind, items=[]) for kind in ATTRIBUTE if kind not in dict(kinds)]
    return apply_changes(Snapshot(), [*relists, *empty])


def really(before: Snapshot, texts: Iterable[str]) -> Snapshot:
    """Return what an agent reads from the API when it has really happened."""
    nodes = deepcopy(NODES)
    gone = []
    for what, name, event in (text.split() for text in texts):
        if what == "cluster":
            gone.append(Delete(kind=Kind.CLUSTER_INFO_IMPORT, key=f"mc/{name}-clusterinfo"))
        elif event == "drained":
            nodes[name]["metadata"]["annotations"]["mcagent.io/drain"] = "true"
        else:
            nodes[name]["status"]["conditions"][0]["status"] = "Unknown"
    return apply_changes(before, [*(Upsert(kind=Kind.NODE, raw=raw) for raw in nodes.values()), *gone])


@costly
@given(st.lists(EVENTS, max_size=4, unique=True), SETTINGS)
def test_what_is_told_is_what_applying_it_does(texts: list[str], settings: Config) -> None:
    """The assumed objects are those that the API would show, and the steps those that the agent would take."""
    world = World(snapshot=listed())
    then = world
    for text in dict.fromkeys(texts):
        known = then.snapshot.cluster_infos.values()
        if text.startswith("cluster") and text.split()[1] not in {info.cluster_id for info in known}:
            continue
        then = assume(then, read_assumption(text, then.snapshot, settings))
    real = really(world.snapshot, texts)
    assert then.snapshot == real
    before, after = forecast(world, settings), forecast(then, settings)
    answer = compare(before, after)
    assert answer.plan == diff_desired(before.desired, after.desired)
    assert after.desired == forecast(replace(then, snapshot=real), settings).desired
    if not texts:
        assert answer.nothing


@costly
@given(st.lists(EVENTS, max_size=3, unique=True), SETTINGS)
def test_nothing_is_lost_or_found_on_the_way(texts: list[str], settings: Config) -> None:
    """Shares are parts of one whole, before and after, and what moves is no more than there was."""
    then = World(snapshot=listed())
    for text in texts:
        then = assume(then, read_assumption(text, then.snapshot, settings))
    for by_cluster in forecast(then, settings).paths.values():
        for paths in by_cluster.values():
            assert 0 <= sum(paths.values()) <= 1
            assert not {path.leaves_by for path in paths} & then.silent
    for finding in compare(forecast(World(snapshot=listed()), settings), forecast(then, settings)).findings:
        assert finding.share is None or 0 < finding.share <= 1


@pytest.mark.costly
@given(st.sampled_from(sorted(CLUSTERS)), SETTINGS)
def test_removed_and_added_back_is_nothing(name: str, settings: Config) -> None:
    """A cluster that leaves and comes back as it was changes nothing."""
    world = World(snapshot=listed())
    without = assume(world, read_assumption(f"cluster {name} removed", world.snapshot, settings))
    assert not compare(forecast(world, settings), forecast(without, settings)).nothing
    back = apply_changes(without.snapshot, [Upsert(kind=Kind.CLUSTER_INFO_IMPORT, raw=CLUSTERS[name])])
    again = replace(without, snapshot=back)
    assert compare(forecast(world, settings), forecast(again, settings)).nothing


@pytest.mark.costly
@given(
    st.dictionaries(st.integers(2, 9), st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_shares_are_what_the_switch_does(
    hops: dict[int, tuple[bool, bool]], ordered: bool, last_resort: bool, userspace: bool, data: st.DataObject
) -> None:
    """What many connections really take in the simulator is what shares tell, for any liveness."""
    nexts = {n: NextHop(ofport=n, watched=watched, standby=standby) for n, (watched, standby) in hops.items()}
    env = Env(gateway=False, ct_zone_base=1, local_gateways=(), userspace_conntrack=userspace)
    groups = {
        g.group_id: g for g in next_hop_groups(env, 4 << 24, nexts, ordered=ordered, last_resort=last_resort)
    }
    live = frozenset(data.draw(st.sets(st.sampled_from(sorted(hops))))) | {1}
    told = shares(groups, 4 << 24, lambda port: port in live)
    switch = SimulatedSwitch.of([Flow(0, 1, Match(), (ToGroup(4 << 24),))], groups.values())
    number, taken = 200, dict.fromkeys(hops, 0)
    for port in range(number):
        for out, _ in switch.walk(replace(PACKET, src_port=1024 + 7 * port), live=live).outputs:
            taken[out] += 1
    for port, count in taken.items():
        part = told.get(port, Fraction(0))
        assert abs(count / number - part) < 0.2
        assert (part in {0, 1}) <= (Fraction(count, number) == part)


def test_groups_that_lead_to_each_other_end() -> None:
    """Loops of groups, or of watched groups, deliver nothing, as in the switch; indirect groups always do."""
    loop = [Group(n, GroupType.INDIRECT, (Bucket(0, (ToGroup(3 - n),)),)) for n in (1, 2)]
    watching = [
        Group(n, GroupType.SELECT, (Bucket(0, (Output(9),), watch_group=7 - n, weight=1),)) for n in (3, 4)
    ]
    indirect = Group(5, GroupType.INDIRECT, (Bucket(0, (Output(9),), watch_port=9),))
    groups = {group.group_id: group for group in (*loop, *watching, indirect)}
    for number, ports in ((1, []), (3, []), (5, [9])):
        assert list(shares(groups, number, lambda _: False)) == ports
        switch = SimulatedSwitch.of([Flow(0, 1, Match(), (ToGroup(number),))], groups.values())
        assert [port for port, _ in switch.walk(PACKET, live=frozenset()).outputs] == ports


# --- the command


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A directory with the objects of this cluster."""
    every = [*NODES.values(), *GATEWAYS.values(), *CLUSTERS.values()]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(every), encoding="utf-8")
    return tmp_path


def run(manifests: Path, *arguments: str) -> int:
    """Run the command without a Node; return its exit code."""
    config = manifests.with_suffix(".config")
    config.write_text("namespace: mc\nenablePodToPodConnectivity: true\n", encoding="utf-8")
    where = ["--config", str(config), "--node-name", "w1", "--source", f"dir:{manifests}", "--offline"]
    return main(["plan", *where, *arguments])


def test_the_command_tells_it_in_words(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person reads what is lost, what ends and what moves, by which gateways."""
    assert run(manifests, "--what-if", "gateway g1 down") == 0
    told = capsys.readouterr().out
    assert "What if: gateway g1 down" in told
    assert "LOST\n  Node g1 and all that runs on it" in told
    assert "cluster east, west, from w1, w2: 33 %: connections go another way and stay open" in told
    assert "g1 33 % -> 0 %, g2 33 % -> 50 %, g3 33 % -> 50 %" in told


def test_the_command_takes_manifests_and_answers_in_json(
    manifests: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would be applied is compared alike; what is there already changes nothing."""
    new = tmp_path_factory.mktemp("new")
    (new / "north.yaml").write_text(yaml.safe_dump(raw_cluster("north", 3)), encoding="utf-8")
    assert run(manifests, "-f", str(new), "-o", "json", "--exit-code") == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["nothingChanges"]
    assert [(one["effect"], one["clusters"]) for one in told["findings"]] == [("gained", ["north"])]
    assert told["plan"]["counts"]["add"]
    assert run(manifests, "-f", str(manifests / "all.yaml"), "--exit-code") == 0
    assert "nothing changes" in capsys.readouterr().out


def test_the_command_names_what_it_cannot_assume(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong name ends with the code for wrong input; a bad manifest with the file's name."""
    assert run(manifests, "--what-if", "gateway g9 down") == 2
    assert "there are g1, g2, g3" in capsys.readouterr().err
    (manifests / "bad").write_text("kind: [", encoding="utf-8")
    assert run(manifests, "-f", str(manifests / "bad")) == 1
    assert "bad: not YAML" in capsys.readouterr().err
