"""Properties of open connections to Services: whichever gateway gets a packet, only its own endpoint is reached.

Gateways see Nodes as dead or alive independently of each other, lose their connection tracking or keep it, and
learn of changed endpoints. Random worlds, on the simulator.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from flows.fields import IP_TCP, PORT_CONTROLLER
from flows.simulator import Datapath
from flows.simulator.packet import SYN
from mcagent.dataplane.conntrack import TrackedConnection, restoration
from tests.properties import costly
from tests.worlds.conversations import Call, Exchange, calls, exchange, one
from tests.worlds.switch_network import Network
from tests.worlds.topologies import ZONES, Service, World, worlds

SEEDS = st.integers(0, 2**32)
Endpoint = tuple[str, object, int]  # Node, address, port


def service_calls(world: World, random: Random, number: int) -> list[Call]:
    """Draw calls of TCP Services that have a choice of endpoints, by clients whose address is kept."""

    def with_choice(call: Call) -> bool:
        return call.service is not None and call.protocol == IP_TCP and len(call.service.endpoints) > 1

    return calls(world, random, number, published=True, wanted=with_choice)


def some_dead(world: World, network: Network, random: Random, cluster: str, percent: int) -> Network:
    """Return the network in which each gateway of a cluster takes Nodes of the cluster for dead, as drawn."""
    ends = {
        (a, port)
        for (a, b), port in world.ports.items()
        if world.nodes[a].gateway and world.nodes[a].cluster == world.nodes[b].cluster == cluster
    }
    return replace(network, silent=frozenset(end for end in sorted(ends) if random.randrange(100) < percent))


def shaken(world: World, network: Network, random: Random, call: Call, keep: str) -> Network:
    """Return the network after faults: other views, gateways lost or without their state; one way is left."""
    gateways = [g.name for g in world.cluster(call.cluster).gateways]
    away = [g for g in gateways if g != keep and random.random() < 0.6]
    network = network.forgetting(ZONES.service, *(g for g in gateways if random.random() < 0.6))
    abroad = [n for n, node in world.nodes.items() if node.cluster != call.cluster]
    cut = network.cutting(*((g, n) for g in away for n in abroad))
    return some_dead(world, cut, random, call.cluster, random.choice((0, 30, 100)))


def met_by(network: Network, call: Call) -> tuple[set[Endpoint], Network]:
    """Send a later packet of a call; return who got it (nobody: it was dropped and counted), and the network."""
    packet_walk = network.send(call.client.node, call.later)
    assert not packet_walk.problems, packet_walk
    assert packet_walk.deliveries or packet_walk.drops, packet_walk
    return {
        (node, delivery.dst, delivery.dst_port) for node, delivery in packet_walk.deliveries
    }, packet_walk.network


def opened(before: Exchange) -> set[Endpoint]:
    """Return the endpoint that a connection was opened to."""
    return {(before.node, before.seen.dst, before.seen.dst_port)}


def others_ready(world: World, call: Call, random: Random, taken: tuple[object, int]) -> World:
    """Return the world in which other endpoints are ready; that of the connection may get no new ones."""
    assert call.service is not None
    cluster = world.cluster(call.cluster)
    pods = [pod.address for pod in cluster.pods if pod.address not in {n.address for n in cluster.nodes}]
    ready = tuple({(random.choice(pods), 80) for _ in range(random.randrange(4))} - {taken})
    old = tuple(e for e in call.service.endpoints if e not in ready)
    if random.random() < 0.5:
        ready, old = (*ready, *(e for e in old if e == taken)), tuple(e for e in old if e != taken)
    changed: Service = replace(call.service, endpoints=ready, old_endpoints=old)
    services = tuple(changed if s == call.service else s for s in cluster.services)
    return world.having(replace(cluster, services=services))


@costly
@given(worlds(min_clusters=2, max_clusters=2, plain=True), SEEDS, st.sampled_from(Datapath))
def test_a_packet_of_an_open_connection_meets_its_endpoint(world: World, seed: int, datapath: Datapath) -> None:
    """At any gateway, whatever each of them sees and has lost, and while the endpoints of the Service change."""
    world = replace(world, userspace_conntrack=datapath is Datapath.USERSPACE)
    random = Random(seed)
    for call in service_calls(world, random, 4):
        network = some_dead(world, world.network.over(datapath), random, call.cluster, 30)
        before = exchange(world, network, call, call.packet)
        network = before.network
        for _ in range(4):
            keep = random.choice(world.cluster(call.cluster).gateways).name
            network = shaken(world, replace(network, dead=frozenset()), random, call, keep)
            if random.random() < 0.5:
                changed = others_ready(world, call, random, (before.seen.dst, before.seen.dst_port))
                network = replace(network, switches=changed.network.switches)
            for _ in range(2):
                met, network = met_by(network, call)
                assert met == opened(before)


@costly
@given(worlds(min_clusters=2, max_clusters=2, plain=True), SEEDS, st.sampled_from(Datapath))
def test_no_other_endpoint_is_reached_when_nodes_lose_their_state_too(
    world: World, seed: int, datapath: Datapath
) -> None:
    """A packet that no Node knows is dropped and counted."""
    world = replace(world, userspace_conntrack=datapath is Datapath.USERSPACE)
    random = Random(seed)
    for call in service_calls(world, random, 4):
        network = some_dead(world, world.network.over(datapath), random, call.cluster, 30)
        before = exchange(world, network, call, call.packet)
        network = before.network.forgetting(
            ZONES.arrival, *(n.name for n in world.cluster(call.cluster).nodes if random.random() < 0.5)
        )
        keep = random.choice(world.cluster(call.cluster).gateways).name
        met, _ = met_by(shaken(world, network, random, call, keep), call)
        assert met <= opened(before)


@costly
@given(worlds(min_clusters=2, max_clusters=2, plain=True), SEEDS)
def test_what_the_kernel_still_knows_is_found(world: World, seed: int) -> None:
    """All of a cluster's userspace datapaths have lost their conntrack; agents restore what their kernels have."""
    world = replace(world, userspace_conntrack=True)
    random = Random(seed)
    for call in service_calls(world, random, 4):
        before = exchange(world, world.network.over(Datapath.USERSPACE), call, call.packet)
        nodes = [node.name for node in world.cluster(call.cluster).nodes]
        network = before.network.forgetting(ZONES.service, *nodes).forgetting(ZONES.arrival, *nodes)
        assert not met_by(network, call)[0]
        server = before.seen.dst
        assert server is not None
        ends = (int(call.client.address), call.client_port, int(server), before.seen.dst_port)
        frame = restoration(TrackedConnection(*ends))
        restored = replace(
            before.seen, in_port=PORT_CONTROLLER, eth_dst=frame[:6].hex(":"), eth_src=frame[6:12].hex(":")
        )
        restored_walk = network.send(before.node, replace(restored, tcp_flags=SYN))
        assert not restored_walk.deliveries
        later = exchange(world, restored_walk.network, call, call.later)
        assert opened(later) == opened(before)


@costly
@given(worlds(min_clusters=2, max_clusters=2, plain=True), SEEDS, st.sampled_from(Datapath))
def test_a_gateway_asks_once(world: World, seed: int, datapath: Datapath) -> None:
    """The gateway that has asked for a connection knows it: the next packet passes each switch once."""
    world = replace(world, userspace_conntrack=datapath is Datapath.USERSPACE)
    random = Random(seed)
    for call in service_calls(world, random, 4):
        before = exchange(world, world.network.over(datapath), call, call.packet)
        gateways = [g.name for g in world.cluster(call.cluster).gateways]
        forgotten = before.network.forgetting(ZONES.service, *gateways)
        later = exchange(world, forgotten, call, call.later)
        assert opened(later) == opened(before)
        again = later.network.send(call.client.node, call.later)
        assert opened(before) == {(node, delivery.dst, delivery.dst_port) for node, delivery in [one(again)]}
        assert len(set(again.path)) == len(again.path)


@costly
@given(worlds(min_clusters=2, max_clusters=2, plain=True), SEEDS, st.sampled_from(Datapath))
def test_a_server_resets_a_connection_whose_source_another_gateway_translates(
    world: World, seed: int, datapath: Datapath
) -> None:
    """The client's gateway is lost: the next packet has another source and meets an endpoint, which can answer.

    So does the packet after it, if the first one was lost on its way.
    """
    world = replace(world, userspace_conntrack=datapath is Datapath.USERSPACE)

    def translated(call: Call) -> bool:
        has_several = len(world.cluster(call.client.cluster).gateways) > 1
        tcp_service = call.service is not None and call.protocol == IP_TCP
        return tcp_service and has_several and not world.keeps_source(call.client, call.cluster)

    lost_gateways = 0
    for call in calls(world, Random(seed), 6, wanted=translated):
        before = exchange(world, world.network.over(datapath), call, call.packet)
        gateways = {g.name for g in world.cluster(call.client.cluster).gateways}
        lost_gateway = next(name for name in before.there.path if name in gateways)
        if lost_gateway == call.client.node:
            continue
        lost_gateways += 1
        abroad = [node.name for node in world.cluster(call.cluster).nodes]
        network = exchange(world, before.network.losing(lost_gateway), call, call.later).network
        exchange(world, network, call, call.later)
        network = network.forgetting(ZONES.service, *abroad).forgetting(ZONES.arrival, *abroad)
        exchange(world, network, call, call.later)
    assume(lost_gateways)
