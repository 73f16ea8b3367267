"""Properties of label identities in tunnels: who is told apart, and who is believed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from flows.pipeline.registers import IDENTITY_UNKNOWN
from tests.properties import costly
from tests.worlds.conversations import calls, exchange, one, to_service
from tests.worlds.topologies import PLAIN, World, worlds

SEEDS = st.integers(0, 2**32)


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS)
def test_the_servers_node_knows_whose_pod_asks(world: World, seed: int) -> None:
    """Its number comes through: by Service or to a Pod, translated source or not, with a gateway lost or not."""
    random = Random(seed)
    world = replace(world, identities=True)
    for call in calls(world, random, 6):
        walk = exchange(world, world.network, call, call.packet)
        assert walk.seen.tun_id == world.identity(call.client)
        gateways = [g.name for g in world.cluster(call.client.cluster).gateways if g.name != call.client.node]
        if len(gateways) > 1:
            fewer = world.network.losing(random.choice(gateways))
            assert exchange(world, fewer, call, call.packet).seen.tun_id == world.identity(call.client)


@costly
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_a_cluster_is_believed_its_own_numbers_only(world: World, seed: int) -> None:
    """What it sends with another's, or with none that there is, counts as unknown; it is not dropped for that."""
    random = Random(seed)
    world = replace(world, identities=True)
    for call in calls(world, random, 6, published=True, wanted=lambda call: not to_service(call)):
        receiver = random.choice(world.cluster(call.cluster).gateways)
        sender = random.choice(world.cluster(call.client.cluster).gateways)
        own = world.identity(call.client)
        other_identities = {world.identity(pod) for pod in world.pods if pod.cluster != call.client.cluster}
        for number in (own, random.choice(sorted(other_identities)), 0, 5, IDENTITY_UNKNOWN):
            packet = replace(
                call.packet, in_port=world.ports[receiver.name, sender.name], tun_id=number, eth_dst=PLAIN
            )
            _, delivery = one(world.network.send(receiver.name, packet))
            assert delivery.tun_id == (own if number == own else IDENTITY_UNKNOWN)


@costly
@given(worlds(min_clusters=2, max_clusters=2), SEEDS)
def test_without_policies_nobody_is_told_apart(world: World, seed: int) -> None:
    """Every packet between clusters says that its sender is unknown, whatever the other cluster says."""
    for call in calls(world, Random(seed), 4):
        assert exchange(world, world.network, call, call.packet).seen.tun_id == IDENTITY_UNKNOWN
