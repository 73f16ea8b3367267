"""Properties of the whole pipeline while the configuration changes under connections."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from flows.fields import IP_TCP, PORT_CONTROLLER
from tests.properties import costly
from tests.worlds.conversations import calls, exchange, to_service
from tests.worlds.switch_network import Network
from tests.worlds.topologies import World, worlds

SEEDS = st.integers(0, 2**32)


def over(world: World, before: Network) -> Network:
    """Return the network of a changed world, with the connections that its switches had."""
    return replace(world.network, connections=before.connections)


@costly
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_removing_a_gateway_keeps_connections(world: World, seed: int) -> None:
    """A gateway that is taken out of its cluster takes no connection with it, and may come back."""
    moved = 0
    for call in calls(world, Random(seed), 6, published=True):
        before = exchange(world, world.network, call, call.packet)
        for gone in {*before.there.path, *before.back.path} - {call.client.node, before.node}:
            cluster = world.cluster(world.nodes[gone].cluster)
            if len(cluster.gateways) < 2 or not world.nodes[gone].gateway:
                continue
            moved += 1
            lost_addresses = {p.address for p in cluster.pods if p.node == gone}
            services = (
                replace(s, endpoints=tuple(e for e in s.endpoints if e[0] not in lost_addresses))
                for s in cluster.services
            )
            nodes = tuple(node for node in cluster.nodes if node.name != gone)
            smaller = world.having(replace(cluster, nodes=nodes, services=tuple(services)))
            target = call
            if call.service is not None and call.cluster == cluster.name:
                server = (call.address, call.port, call.protocol)
                now = smaller.cluster(call.cluster).services
                target = call.to(next(s for s in now if (s.address, s.port, s.protocol) == server))
            during = exchange(smaller, over(smaller, before.network), target, target.later)
            after = exchange(world, over(world, during.network), call, call.later)
            for now_at in (during, after):
                assert (now_at.node, now_at.seen.dst, now_at.seen.dst_port) == (
                    before.node,
                    before.seen.dst,
                    before.seen.dst_port,
                )
    assume(moved)


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS)
def test_changed_endpoints_leave_connections_alone(world: World, seed: int) -> None:
    """A connection keeps its endpoint while others come and go; new ones use only what is there.

    A connection without an end of its own (not TCP) keeps it while the endpoint is listed: then its packets are
    dropped, and the agent of the gateway gets them, which deletes the connection.
    """
    random = Random(seed)
    for call in calls(world, random, 6, wanted=to_service):
        assert call.service is not None
        before = exchange(world, world.network, call, call.packet)
        endpoint = next(e for e in call.service.endpoints if e == (before.seen.dst, before.seen.dst_port))
        cluster = world.cluster(call.cluster)
        pods = [pod.address for pod in cluster.pods]
        other_endpoints = tuple({(random.choice(pods), 80) for _ in range(random.randrange(4))} - {endpoint})
        for endpoints in ((endpoint, *other_endpoints), other_endpoints):
            changed = replace(call.service, endpoints=endpoints)
            services = tuple(changed if s == call.service else s for s in cluster.services)
            changed_world = world.having(replace(cluster, services=services))
            if call.protocol == IP_TCP or endpoint in endpoints:
                later = exchange(changed_world, over(changed_world, before.network), call, call.later)
                assert (later.seen.dst, later.seen.dst_port) == endpoint
            else:
                walk = over(changed_world, before.network).send(call.client.node, call.later)
                assert not walk.deliveries
                assert [number for _, hop in walk.walks for number, _ in hop.outputs][-1] == PORT_CONTROLLER
            if endpoints:
                fresh = call.to(changed).on_port(call.client_port ^ 1)
                exchange(changed_world, over(changed_world, before.network), fresh, fresh.packet)


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS)
def test_an_export_that_is_gone_ends_its_connections(world: World, seed: int) -> None:
    """Of all protocols, also if another exported Service has the same endpoint."""
    for call in calls(world, Random(seed), 6, wanted=to_service):
        assert call.service is not None
        before = exchange(world, world.network, call, call.packet)
        cluster = world.cluster(call.cluster)
        first = cluster.services[: cluster.services.index(call.service)]  # these keep their numbers
        with_first = world.having(replace(cluster, services=first))
        walk = over(with_first, before.network).send(call.client.node, call.later)
        assert not walk.deliveries
