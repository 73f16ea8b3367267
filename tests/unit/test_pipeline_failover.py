"""Properties of the whole pipeline over random worlds: gateways and tunnels come and go, connections stay."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from flows.simulate import Network
from tests.conversations import Exchange, calls, examples, exchange, one
from tests.topologies import World, from_kernel, worlds

SEEDS = st.integers(0, 2**32)


def the_same(now: Exchange, before: Exchange) -> None:
    """Fail unless both packets met the same endpoint."""
    assert (now.node, now.seen.dst, now.seen.dst_port) == (before.node, before.seen.dst, before.seen.dst_port)


def without(world: World, network: Network, gateway: str, cluster: str) -> Network:
    """Return the network in which a gateway has lost a remote cluster, and keeps its own."""
    far = [g.name for g in world.cluster(cluster).gateways]
    ends = {(a, world.ports[a, b]) for g in far for a, b in ((gateway, g), (g, gateway))}
    return replace(network, dead=network.dead | ends)


@examples(25)
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_losing_a_gateway_keeps_the_connection(world: World, seed: int) -> None:
    """A connection that keeps its source goes on by another gateway, with the same endpoint, and back again."""
    for call in calls(world, Random(seed), 10, published=True):
        before = exchange(world, world.network, call, call.packet)
        for lost in {*before.there.path, *before.back.path} - {call.client.node, before.node}:
            if len(world.cluster(world.nodes[lost].cluster).gateways) < 2:
                continue
            during = exchange(world, before.network.losing(lost), call, call.later)
            assert lost not in {*during.there.path, *during.back.path}
            the_same(during, before)
            the_same(exchange(world, replace(during.network, dead=frozenset()), call, call.later), before)


@examples(25)
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_a_gateway_that_lost_a_remote_cluster_asks_its_sibling(world: World, seed: int) -> None:
    """A gateway that cannot reach a remote cluster passes packets, and replies, to one that can."""
    for call in calls(world, Random(seed), 8, published=True):
        before = exchange(world, world.network, call, call.packet)
        answer = from_kernel(before.seen.reply())
        for here, there in ((call.client.cluster, call.cluster), (call.cluster, call.client.cluster)):
            mine = {g.name for g in world.cluster(here).gateways}
            lost = next(name for name in before.there.path if name in mine)
            if len(mine) > 1:
                network = without(world, before.network, lost, there)
                # A reply that a sibling has to un-translate has had its one hop: the client must speak first.
                if before.node == lost or not world.nodes[before.node].gateway:
                    assert one(network.send(before.node, answer))[0] == call.client.node
                the_same(exchange(world, network, call, call.later), before)


@examples(25)
@given(worlds(min_clusters=2), SEEDS, st.integers(0, 60))
def test_no_loops_whatever_is_dead(world: World, seed: int, percent: int) -> None:
    """With any set of dead tunnel ends a packet takes one sibling hop at most and arrives at most once."""
    random = Random(seed)
    dead = frozenset(end for end in sorted(world.network.tunnels) if random.randrange(100) < percent)
    network = replace(world.network, dead=dead)
    gateways = {name for name, node in world.nodes.items() if node.gateway}
    for gateway in sorted(gateways):
        for cluster in world.clusters:
            if cluster.name != world.nodes[gateway].cluster and random.randrange(100) < percent:
                network = without(world, network, gateway, cluster.name)
    for call in calls(world, random, 10):
        now = network
        for packet in (call.packet, call.later):
            there = now.send(call.client.node, packet)
            journeys = [there]
            for node, seen in there.deliveries:
                journeys.append(there.network.send(node, from_kernel(seen.reply())))
            for journey in journeys:
                assert not journey.problems, journey
                assert len(journey.deliveries) <= 1, journey
                for cluster in world.clusters:
                    passed = [
                        n for n in journey.path[1:] if n in gateways and world.nodes[n].cluster == cluster.name
                    ]
                    begins = world.nodes[journey.path[0]].cluster == cluster.name
                    assert len(passed) <= 2, journey
                    assert journey.path[0] not in passed, journey
                    if begins and journey.path[0] in gateways:
                        assert len(passed) <= 1 or journey is not there, journey
                assert len(journey.path) <= 6, journey
            now = journeys[-1].network


@examples(20)
@given(worlds(min_clusters=2, max_clusters=3), SEEDS)
def test_hidden_clients_find_a_way_after_a_loss(world: World, seed: int) -> None:
    """A client that hides behind a gateway opens new connections by another when its own is lost."""
    for call in calls(world, Random(seed), 6):
        gateways = [g.name for g in world.cluster(call.client.cluster).gateways]
        for lost in gateways:
            if len(gateways) > 1 and lost != call.client.node:
                opened = exchange(world, world.network.losing(lost), call, call.packet)
                assert lost not in opened.there.path
