"""Properties of the whole pipeline over random worlds: gateways and tunnels come and go, connections stay."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.conversations import calls, examples, exchange
from tests.topologies import World, worlds

SEEDS = st.integers(0, 2**32)


@examples(40)
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_losing_a_gateway_keeps_the_connection(world: World, seed: int) -> None:
    """A connection that keeps its source goes on by another gateway, with the same endpoint, and back again."""
    for call in calls(world, Random(seed), 8):
        if not call.client.published:
            continue
        before = exchange(world, world.network, call, call.packet)
        for lost in {*before.there.path, *before.back.path} - {call.client.node, before.node}:
            if len(world.cluster(world.nodes[lost].cluster).gateways) < 2:
                continue
            during = exchange(world, before.network.losing(lost), call, call.later)
            assert lost not in {*during.there.path, *during.back.path}
            after = exchange(world, replace(during.network, dead=frozenset()), call, call.later)
            for now in (during, after):
                assert (now.node, now.seen.dst, now.seen.dst_port) == (
                    before.node,
                    before.seen.dst,
                    before.seen.dst_port,
                )


@examples(40)
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_a_gateway_that_lost_a_remote_cluster_asks_its_sibling(world: World, seed: int) -> None:
    """A gateway that cannot reach a remote cluster passes packets to one that can, and the way back works too."""
    for call in calls(world, Random(seed), 6):
        mine = world.cluster(call.client.cluster).gateways
        theirs = world.cluster(call.cluster).gateways
        if not call.client.published or len(mine) < 2:
            continue
        before = exchange(world, world.network, call, call.packet)
        lost = next(n for n in before.there.path if n in {g.name for g in mine})
        gone = {((lost, world.ports[lost, g.name]), (g.name, world.ports[g.name, lost])) for g in theirs}
        network = replace(before.network, dead=frozenset(end for ends in gone for end in ends))
        during = exchange(world, network, call, call.later)
        assert (during.node, during.seen.dst, during.seen.dst_port) == (
            before.node,
            before.seen.dst,
            before.seen.dst_port,
        )


@examples(60)
@given(worlds(min_clusters=2), SEEDS, st.integers(0, 100))
def test_no_loops_whatever_is_dead(world: World, seed: int, percent: int) -> None:
    """With any set of dead tunnel ends a packet takes one sibling hop at most and arrives at most once."""
    random = Random(seed)
    ends = sorted(world.network.tunnels)
    network = replace(world.network, dead=frozenset(end for end in ends if random.randrange(100) < percent))
    for call in calls(world, random, 8):
        now = network
        for packet in (call.packet, call.later):
            there = now.send(call.client.node, packet)
            assert not there.problems, there
            assert len(there.deliveries) <= 1, there
            for cluster, most in ((call.client.cluster, 3), (call.cluster, 2)):
                own = [name for name in there.path if world.nodes[name].cluster == cluster]
                assert len(own) <= most, there
                assert len(set(own)) == len(own), there
            for node, seen in there.deliveries:
                back = there.network.send(node, replace(seen.reply(), in_port=1, eth_dst="aa:bb:cc:dd:ee:f0"))
                assert not back.problems, back
                assert len(back.deliveries) <= 1, back
                assert len(back.path) <= 5, back
            now = there.network


@examples(30)
@given(worlds(min_clusters=2, max_clusters=3), SEEDS)
def test_hidden_clients_find_a_way_after_a_loss(world: World, seed: int) -> None:
    """A client that hides behind a gateway opens new connections by another when its own is lost."""
    for call in calls(world, Random(seed), 6):
        gateways = [g.name for g in world.cluster(call.client.cluster).gateways]
        for lost in gateways:
            if len(gateways) > 1 and lost != call.client.node:
                opened = exchange(world, world.network.losing(lost), call, call.packet)
                assert lost not in opened.there.path
