"""Properties of the pipeline over random worlds: what is live, trusted, on standby, in order, or drains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.properties import costly
from tests.worlds.conversations import Call, Exchange, calls, exchange, one
from tests.worlds.switch_network import Network
from tests.worlds.topologies import World, from_kernel, worlds

SEEDS = st.integers(0, 2**32)
PLAIN = worlds(min_clusters=2, max_clusters=3, plain=True)


def the_same(now: Exchange, before: Exchange) -> None:
    """Fail unless both packets met the same endpoint."""
    assert (now.node, now.seen.dst, now.seen.dst_port) == (before.node, before.seen.dst, before.seen.dst_port)


def gateway_names(world: World, cluster: str) -> list[str]:
    """Return the names of a cluster's gateways."""
    return [gateway.name for gateway in world.cluster(cluster).gateways]


def ends_at(world: World, names: Iterable[str], *, remote_only: bool = False) -> set[tuple[str, str]]:
    """Return the tunnels (see `World.standby`) that lead to one of these Nodes."""
    return {
        (a, b)
        for a, b in world.ports
        if b in names and not (remote_only and world.nodes[a].cluster == world.nodes[b].cluster)
    }


def as_ports(world: World, ends: Iterable[tuple[str, str]]) -> frozenset[tuple[str, int]]:
    """Return the same tunnels as the network names them."""
    return frozenset((a, world.ports[a, b]) for a, b in ends)


def some(random: Random, ends: Iterable[tuple[str, str]], percent: int) -> frozenset[tuple[str, str]]:
    """Draw some of the tunnels."""
    return frozenset(end for end in sorted(ends) if random.randrange(100) < percent)


def lost_gateways(world: World, random: Random) -> list[str]:
    """Draw gateways of which each cluster keeps one."""
    gateways_lost: list[str] = []
    for cluster in world.clusters:
        names = gateway_names(world, cluster.name)
        gateways_lost += random.sample(names, random.randrange(len(names)))
    return gateways_lost


def drawn_order(world: World, random: Random, *, ordered: bool) -> tuple[str, ...]:
    """Draw an order in which gateways are tried; none where it is not asked for."""
    return tuple(random.sample(sorted(world.nodes), len(world.nodes))) if ordered else ()


def is_on(call: Call, before: Exchange, names: Iterable[str]) -> bool:
    """Tell whether client or server live on one of these Nodes."""
    return bool({call.client.node, before.node} & set(names))


def arrive(
    world: World, network: Network, random: Random, gateways_lost: list[str], *, same: bool = True
) -> list[tuple[Call, Exchange]]:
    """Fail unless new connections meet an endpoint, the `same` as when all is well, and pass no lost gateway.

    Return them with what they were then; those whose client or server is on a lost gateway are left out.
    """
    walks = []
    for call in calls(world, random, 8, published=True):
        before = exchange(world, world.network, call, call.packet)
        if is_on(call, before, gateways_lost):
            continue
        now = exchange(world, network, call, call.packet)
        assert not {*now.there.path, *now.back.path} & set(gateways_lost)
        if same or call.service is None:
            the_same(now, before)
        walks.append((call, before))
    assume(walks)
    return walks


@costly
@given(PLAIN, SEEDS, st.sampled_from((0, 20, 50, 100)), st.sampled_from((0, 30, 100)), st.booleans())
def test_one_delivery_while_a_way_is_left(world: World, seed: int, held: int, trusted: int, ordered: bool) -> None:
    """Any gateways but one of each cluster are dead, any ways on standby or trusted: every packet finds its way.

    It arrives once, at the same endpoint as before, its reply is not raw, and no dead gateway is in its path.
    """
    random = Random(seed)
    gateways_lost = lost_gateways(world, random)
    shaken = replace(
        world,
        standby=some(random, world.ports, held),
        # who is dead is known to be: everybody has heard it once
        trusted=some(random, world.ports.keys() - ends_at(world, gateways_lost), trusted),
        order=drawn_order(world, random, ordered=ordered),
    )
    network = shaken.network.losing(*gateways_lost)
    for call, before in arrive(world, network, random, gateways_lost):
        # the connection that was there before moves, with its state where it is
        network_with_connections = replace(network, connections=before.network.connections)
        the_same(exchange(world, network_with_connections, call, call.later), before)
        # a reply that comes first: another gateway takes it, unless it would have to un-translate it
        packet_walk = network_with_connections.send(before.node, from_kernel(before.seen.reply()))
        assert call.service is not None or packet_walk.deliveries, packet_walk
        for node, packet in [one(packet_walk)] if packet_walk.deliveries else []:
            assert (node, packet.src) == (call.client.node, call.address)


@costly
@given(PLAIN, SEEDS, st.integers(1, 99), st.booleans())
def test_what_is_in_reserve_is_used_last(world: World, seed: int, percent: int, ordered: bool) -> None:
    """A new connection takes no way on standby while its Node has a live one that is not."""
    random = Random(seed)
    gateways_lost = lost_gateways(world, random)
    order = drawn_order(world, random, ordered=ordered)
    shaken = replace(world, standby=some(random, world.ports, percent), order=order)
    network = shaken.network.losing(*gateways_lost)

    def wanted(call: Call) -> bool:
        return call.client.node not in gateways_lost and not world.nodes[call.client.node].gateway

    for call in calls(world, random, 8, published=True, wanted=wanted):
        path = network.send(call.client.node, call.packet).path
        for here, there in pairwise(path[:3]):
            cluster = world.nodes[there].cluster
            live = {n for n in gateway_names(world, cluster) if n not in gateways_lost}
            first = {n for n in live if (here, n) not in shaken.standby}
            assert there in (first or live), (path, shaken.standby)


@costly
@given(PLAIN, SEEDS, st.sampled_from((30, 70, 100)), st.booleans())
def test_a_false_alarm_loses_nothing(world: World, seed: int, percent: int, ordered: bool) -> None:
    """Some gateways are gone and on standby; others are taken for dead and are not: all arrives by these.

    A Service's endpoint on a Node that is taken for dead may be left for another one.
    """
    random = Random(seed)
    gateways_lost = lost_gateways(world, random)
    order = drawn_order(world, random, ordered=ordered)
    shaken = replace(world, standby=frozenset(ends_at(world, gateways_lost)), order=order)
    network = replace(
        shaken.network.losing(*gateways_lost), silent=as_ports(world, some(random, world.ports, percent))
    )
    arrive(world, network, random, gateways_lost, same=False)


@costly
@given(PLAIN)
def test_all_in_reserve_is_none_in_reserve(world: World) -> None:
    """Groups and flows are the very same."""
    every = replace(world, standby=frozenset(world.ports))
    for node in world.nodes.values():
        assert every.entries(node) == world.entries(node)


@costly
@given(PLAIN, SEEDS, st.sampled_from((30, 100)))
def test_a_peer_that_never_answers_is_used(world: World, seed: int, percent: int) -> None:
    """Trusted ways carry as if liveness detection knew them to be live."""
    random = Random(seed)
    quiet = some(random, world.ports, percent)
    network = replace(replace(world, trusted=quiet).network, silent=as_ports(world, quiet))
    for call in calls(world, random, 8, published=True):
        before = exchange(world, world.network, call, call.packet)
        now = exchange(world, network, call, call.packet)
        the_same(now, before)
        assert (now.there.path, now.back.path) == (before.there.path, before.back.path)


@costly
@given(PLAIN, SEEDS)
def test_active_standby_uses_the_first_live_one_alone(world: World, seed: int) -> None:
    """Whoever is dead; one that returns takes nothing back while another stands before it in the order."""
    random = Random(seed)
    names = random.sample(sorted(world.nodes), len(world.nodes))
    gateways_lost = lost_gateways(world, random)

    def active(order: list[str], cluster: str, dead: list[str]) -> str:
        return next(n for n in order if n in gateway_names(world, cluster) and n not in dead)

    def check(order: list[str], dead: list[str]) -> None:
        network = replace(world, order=tuple(order)).network.losing(*dead)

        def wanted(call: Call) -> bool:
            return call.client.node not in dead and not world.nodes[call.client.node].gateway

        for call in calls(world, Random(seed), 6, published=True, wanted=wanted):
            path = network.send(call.client.node, call.packet).path
            first = active(order, call.client.cluster, dead)
            assert path[:3] == (call.client.node, first, active(order, call.cluster, dead))

    check(names, gateways_lost)
    # what the agent keeps: those that were active in front
    gateways_used = [active(names, cluster.name, gateways_lost) for cluster in world.clusters]
    after = [*gateways_used, *(n for n in names if n not in gateways_used)]
    check(after, gateways_lost)
    check(after, [])
    for cluster in world.clusters:
        assert active(after, cluster.name, []) == active(names, cluster.name, gateways_lost)


def draining(world: World, network: Network, gateway: str, *, remote_only: bool) -> Network:
    """Return the network in which a gateway has told peers to send nothing more; it still carries all."""
    ends = as_ports(world, ends_at(world, [gateway], remote_only=remote_only))
    return replace(network, silent=ends)


@costly
@given(PLAIN, SEEDS, st.booleans())
def test_drain_loses_nothing(world: World, seed: int, ordered: bool) -> None:
    """Phase by phase every packet of a connection arrives, either way, and in the end none by the gateway.

    Also a reply that comes before the next request, once one request has come in the first phase.
    """
    random = Random(seed)
    world = replace(world, order=drawn_order(world, random, ordered=ordered))
    drained = 0
    for call in calls(world, random, 6, published=True):
        before = exchange(world, world.network, call, call.packet)
        for gateway in {*before.there.path, *before.back.path} - {call.client.node, before.node}:
            if len(gateway_names(world, world.nodes[gateway].cluster)) < 2:
                continue
            drained += 1
            first = draining(world, before.network, gateway, remote_only=True)
            answer = from_kernel(before.seen.reply())
            assert one(first.send(before.node, answer))[0] == call.client.node
            moving = exchange(world, first, call, call.later)
            the_same(moving, before)
            last = draining(world, moving.network, gateway, remote_only=False)
            assert one(last.send(before.node, answer))[0] == call.client.node
            moved = exchange(world, last, call, call.later)
            the_same(moved, before)
            assert gateway not in {*moved.there.path, *moved.back.path}
            back = exchange(world, replace(moved.network, silent=frozenset()), call, call.later)
            the_same(back, before)
    assume(drained)


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS, st.integers(0, 60), st.booleans())
def test_no_loops_and_no_copies_whatever_is_shaken(world: World, seed: int, percent: int, ordered: bool) -> None:
    """Dead, silent, trusted, on standby, in order, SNATed: a packet arrives at most once and never goes round."""
    random = Random(seed)
    shaken = replace(
        world,
        standby=some(random, world.ports, percent),
        trusted=some(random, world.ports, percent),
        order=drawn_order(world, random, ordered=ordered),
    )
    network = replace(
        shaken.network,
        dead=as_ports(world, some(random, world.ports, percent)),
        silent=as_ports(world, some(random, world.ports, percent)),
    )
    for call in calls(world, random, 8):
        for packet in (call.packet, call.later):
            walk = network.send(call.client.node, packet)
            packet_walks = [walk, *(walk.network.send(n, from_kernel(p.reply())) for n, p in walk.deliveries)]
            for packet_walk in packet_walks:
                assert not packet_walk.problems, packet_walk
                assert len(packet_walk.deliveries) <= 1, packet_walk
                assert len(packet_walk.path) <= 6, packet_walk
            for node, delivery in packet_walks[-1].deliveries if len(packet_walks) > 1 else ():
                assert (node, delivery.src) == (call.client.node, call.address), packet_walks[-1]
            network = packet_walks[-1].network
