"""Properties of the whole pipeline over random worlds: gateways and tunnels come and go, connections stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import combinations
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from flows.fields import IP_ICMP, IP_TCP, IP_UDP, PORT_CONTROLLER
from flows.simulator import Datapath
from flows.simulator.packet import ACK, RST, SYN, Packet
from mcagent.dataplane.conntrack import TrackedConnection, client_probes
from mcagent.model.net import host_network
from mcagent.model.node_state import AcceptedCluster, ExportedPort, NodeState
from tests.properties import costly
from tests.worlds.conversations import Call, Exchange, calls, exchange, none, one, to_service
from tests.worlds.switch_network import Network
from tests.worlds.topologies import PLAIN, ZONES, World, from_kernel, mapped, worlds

SEEDS = st.integers(0, 2**32)


def the_same(now: Exchange, before: Exchange) -> None:
    """Fail unless both packets met the same endpoint."""
    assert (now.node, now.seen.dst, now.seen.dst_port) == (before.node, before.seen.dst, before.seen.dst_port)


def without(world: World, network: Network, gateway: str, cluster: str) -> Network:
    """Return the network in which a gateway has lost a remote cluster, and keeps its own."""
    far = [g.name for g in world.cluster(cluster).gateways]
    ends = {(a, world.ports[a, b]) for g in far for a, b in ((gateway, g), (g, gateway))}
    return replace(network, dead=network.dead | ends)


@costly
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_losing_a_gateway_keeps_the_connection(world: World, seed: int) -> None:
    """A connection that keeps its source goes on by another gateway, with the same endpoint, and back again."""
    moved = 0
    for call in calls(world, Random(seed), 10, published=True):
        before = exchange(world, world.network, call, call.packet)
        for lost in {*before.there.path, *before.back.path} - {call.client.node, before.node}:
            if len(world.cluster(world.nodes[lost].cluster).gateways) < 2:
                continue
            moved += 1
            during = exchange(world, before.network.losing(lost), call, call.later)
            assert lost not in {*during.there.path, *during.back.path}
            the_same(during, before)
            the_same(exchange(world, replace(during.network, dead=frozenset()), call, call.later), before)
    assume(moved)


def patterns(world: World, network: Network, call: Call, node: str) -> Iterator[Network]:
    """Yield the network with any serving gateways but one dead, then with one more cut off from the client."""
    gateways = [g.name for g in world.cluster(call.cluster).gateways if g.name != node]
    usable = 0 if world.nodes[node].gateway else 1
    for number in range(len(gateways) - usable + 1):
        for lost_gateways in combinations(gateways, number):
            yield network.losing(*lost_gateways)
            remaining = [name for name in gateways if name not in lost_gateways]
            # To a sibling that lost the other cluster a gateway Node's reply has had its one hop.
            if usable and len(remaining) > 1:
                for gateway in remaining:
                    yield without(world, network.losing(*lost_gateways), gateway, call.client.cluster)


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS, st.sampled_from(Datapath))
def test_a_server_is_heard_without_the_gateway_that_translated(
    world: World, seed: int, datapath: Datapath
) -> None:
    """While only the server sends, its replies reach the client, translated, by gateways that know nothing."""
    for call in calls(world, Random(seed), 5, wanted=to_service):
        before = exchange(world, world.network.over(datapath), call, call.packet)
        gateways = [g.name for g in world.cluster(call.cluster).gateways]
        known_network = exchange(world, before.network, call, call.later).network
        # A Node that missed the first packets learns of the connection when the gateway knows it already.
        late = exchange(world, known_network.forgetting(ZONES.arrival, before.node), call, call.later).network
        for state in (before.network, known_network, late):
            for network in patterns(world, state.forgetting(ZONES.service, *gateways), call, before.node):
                for reply in (before.seen.reply(), replace(before.seen.reply(), tcp_flags=ACK)):
                    home, delivery = one(network.send(before.node, from_kernel(reply)))
                    assert home == call.client.node
                    expected_reply = call.packet.reply()
                    names = ("src", "src_port", "dst", "dst_port", "proto")
                    assert [getattr(delivery, n) for n in names] == [getattr(expected_reply, n) for n in names]
                    assert delivery.eth_src == PLAIN
                the_same(exchange(world, network, call, call.later), before)


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS, st.sampled_from(Datapath))
def test_a_node_that_lost_its_conntrack_recovers(world: World, seed: int, datapath: Datapath) -> None:
    """Also when the server speaks first, which looks like a connection of its own: the client's next packet heals.

    Where nothing is translated the server's packet itself arrives; but that of an endpoint of an exported Service
    never does, since it may have to be translated.
    """
    # An echo reply begins nothing.
    for call in calls(world, Random(seed), 5, wanted=lambda call: call.protocol != IP_ICMP):
        before = exchange(world, world.network.over(datapath), call, call.packet)
        known_network = exchange(world, before.network, call, call.later).network
        network = known_network.forgetting(ZONES.arrival, before.node)
        spoken = network.send(before.node, from_kernel(replace(before.seen.reply(), tcp_flags=ACK)))
        if is_endpoint(world, before):
            none(spoken)
        elif call.service is None:
            home, delivery = one(spoken)
            assert (home, delivery.dst, delivery.dst_port) == (
                call.client.node,
                call.packet.src,
                call.packet.src_port,
            )
        now = exchange(world, spoken.network, call, call.later)
        the_same(now, before)
        again = exchange(world, now.network, call, call.later)
        home, delivery = one(
            again.network.send(before.node, from_kernel(replace(before.seen.reply(), tcp_flags=ACK)))
        )
        assert (home, delivery.src, delivery.src_port) == (call.client.node, call.address, call.packet.dst_port)


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS)
def test_a_gateway_that_knew_a_connection_once_takes_it_over_unchanged(world: World, seed: int) -> None:
    """Also while what undid NAT is left of the expired connection, and takes its place in userspace conntrack.

    One that begins anew as well, where no other Service leads to its endpoint; of UDP both look alike.
    """
    world = replace(world, userspace_conntrack=True)

    def shares_endpoints(call: Call) -> bool:
        return call.service is not None and world.cluster(call.cluster).shares_endpoints(call.service)

    def wanted(call: Call) -> bool:
        return to_service(call) and (
            call.protocol == IP_TCP or (call.protocol == IP_UDP and not shares_endpoints(call))
        )

    for call in calls(world, Random(seed), 5, wanted=wanted):
        shares = shares_endpoints(call)
        before = exchange(world, world.network.over(Datapath.USERSPACE), call, call.packet)
        network = before.network
        gateways = [g.name for g in world.cluster(call.cluster).gateways]
        for first in (call.later, call.later if shares else call.packet):
            network = network.expiring(ZONES.service, *gateways)
            for packet in (first, call.later):
                now = exchange(world, network, call, packet)
                the_same(now, before)
                assert (now.seen.src, now.seen.src_port) == (before.seen.src, before.seen.src_port)
                network = now.network


def is_endpoint(world: World, met: Exchange) -> bool:
    """Tell whether what was met is a TCP endpoint of a Service of its cluster."""
    services = world.cluster(world.nodes[met.node].cluster).services
    place = (met.seen.dst, met.seen.dst_port)
    return met.seen.proto == IP_TCP and any(s.protocol == IP_TCP and place in s.endpoints for s in services)


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS, st.sampled_from(Datapath))
def test_a_client_that_only_receives_is_asked_how_it_came(world: World, seed: int, datapath: Datapath) -> None:
    """The server's Node has lost its conntrack: its agent asks in every way, and the answer puts all right.

    A client whose gateway translates it is not found where connection tracking minds the numbers in a question.
    """
    answered = 0
    for call in straight_too(world, calls(world, Random(seed), 8, wanted=to_service)):
        before = exchange(world, world.network.over(datapath), call, call.packet)
        keeps_source = world.keeps_source(call.client, call.cluster)
        if not is_endpoint(world, before) or (not keeps_source and datapath is Datapath.USERSPACE):
            continue
        answered += 1
        known_network = exchange(world, before.network, call, call.later).network
        reply = from_kernel(replace(before.seen.reply(), tcp_flags=ACK))
        walk = known_network.forgetting(ZONES.arrival, before.node).send(before.node, reply)
        none(walk)
        network = walk.network
        for question in questions_to(world, before):
            packet_walk = network.send(before.node, question)
            network = packet_walk.network
            for home, delivery in packet_walk.deliveries:
                assert home == call.client.node
                mine = (delivery.src, delivery.src_port) == (call.address, call.port)
                if mine:
                    network = network.send(home, call.later).network
                    continue
                # Linux repeats the type of service of what it refuses.
                refusal = replace(
                    call.later, dst=delivery.src, dst_port=delivery.src_port, tcp_flags=RST, tos=delivery.tos
                )
                none(network.send(home, refusal))
        home, delivery = one(network.send(before.node, reply))
        assert (home, delivery.src, delivery.src_port) == (call.client.node, call.address, call.port)
    assume(answered)


def straight_too(world: World, calls: list[Call]) -> Iterator[Call]:
    """Yield calls of Services, and for each one of the same client straight to each of the endpoints behind it."""
    for call in calls:
        if call.service is not None:
            yield call
            for pod in world.pods:
                for address, port in call.service.endpoints:
                    there = (pod.cluster, pod.address) == (call.cluster, address)
                    if there and world.reaches(call.client, pod):
                        yield replace(call, address=address, port=port, service=None)


def questions_to(world: World, met: Exchange) -> Iterator[Packet]:
    """Yield what the agent of the server's Node asks the client, as its bridge gets it."""
    services = world.cluster(world.nodes[met.node].cluster).services
    server, client = met.seen.dst, met.seen.src
    assert server is not None
    assert client is not None
    endpoint = (server, met.seen.dst_port)
    connection = TrackedConnection(int(client), met.seen.src_port, int(server), met.seen.dst_port)
    ids = {str(n): n for n, s in enumerate(services, 1) if s.protocol == IP_TCP and endpoint in s.endpoints}
    gateways = {mapped(g.address): g.address for cluster in world.clusters for g in cluster.gateways}
    pairs = tuple((source, gateway) for gateway, source in gateways.items())
    remote_cluster = AcceptedCluster(
        cluster_id="there",
        cidrs=(host_network(client),),
        gateways=(),
        sources=tuple(gateways.values()),
        snat=False,
        mapped=pairs,
    )
    port = ExportedPort(
        name="", address=server, protocol="tcp", port=1, client_ip_affinity=False, endpoints=(endpoint,)
    )
    state = NodeState(clusters={"there": remote_cluster}, services=dict.fromkeys(ids, port), service_ids=ids)
    for frame in client_probes([connection], state):
        answer = met.seen.reply()
        assert isinstance(answer.dst, IPv4Address)
        yield replace(
            answer,
            dst=gateways.get(answer.dst, answer.dst),
            in_port=PORT_CONTROLLER,
            eth_dst=frame[:6].hex(":"),
            eth_src=frame[6:12].hex(":"),
            tcp_flags=SYN | ACK,
            tos=frame[15],
        )


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS, st.sampled_from(Datapath))
def test_new_connections_avoid_endpoints_on_dead_nodes(world: World, seed: int, datapath: Datapath) -> None:
    """While a live Node has an endpoint of the Service, a new connection gets to one on a live Node."""
    random = Random(seed)
    for call in calls(world, random, 12, wanted=to_service):
        assert call.service is not None
        serving = world.cluster(call.cluster)
        hosts = {
            n.name for n in serving.nodes for a, _ in call.service.endpoints if any(a in x for x in n.networks)
        }
        kept = {random.choice(sorted(hosts)), random.choice(serving.gateways).name}
        names = [n.name for n in serving.nodes if n.name not in kept and random.random() < 0.6]
        met = exchange(world, world.network.over(datapath).losing(*names), call, call.packet)
        assert met.node not in names


@costly
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_a_gateway_that_lost_a_remote_cluster_asks_its_sibling(world: World, seed: int) -> None:
    """A gateway that cannot reach a remote cluster passes packets, and replies, to one that can."""
    passed_on = 0
    for call in calls(world, Random(seed), 8, published=True):
        before = exchange(world, world.network, call, call.packet)
        answer = from_kernel(before.seen.reply())
        for here, there in ((call.client.cluster, call.cluster), (call.cluster, call.client.cluster)):
            mine = {g.name for g in world.cluster(here).gateways}
            lost = next(name for name in before.there.path if name in mine)
            if len(mine) > 1:
                passed_on += 1
                network = without(world, before.network, lost, there)
                # A reply that a sibling has to un-translate has had its one hop: the client must speak first.
                if before.node == lost or not world.nodes[before.node].gateway:
                    assert one(network.send(before.node, answer))[0] == call.client.node
                the_same(exchange(world, network, call, call.later), before)
    assume(passed_on)


@costly
@given(worlds(min_clusters=2, max_clusters=3, plain=True), SEEDS)
def test_hidden_clients_are_passed_on_as_well(world: World, seed: int) -> None:
    """A gateway that lost a remote cluster need not take the replies: the sibling that SNATed sends them home."""

    def wanted(call: Call) -> bool:
        has_several = len(world.cluster(call.client.cluster).gateways) > 1
        return has_several and not world.keeps_source(call.client, call.cluster)

    for call in calls(world, Random(seed), 8, wanted=wanted):
        gateways = {g.name for g in world.cluster(call.client.cluster).gateways}
        before = exchange(world, world.network, call, call.packet)
        lost_gateway = next(name for name in before.there.path if name in gateways)
        opened = exchange(world, without(world, world.network, lost_gateway, call.cluster), call, call.packet)
        if call.client.node != lost_gateway:
            assert lost_gateway not in opened.back.path


@costly
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
            walk = now.send(call.client.node, packet)
            packet_walks = [walk]
            for node, delivery in walk.deliveries:
                packet_walks.append(walk.network.send(node, from_kernel(delivery.reply())))
            for packet_walk in packet_walks:
                assert not packet_walk.problems, packet_walk
                assert len(packet_walk.deliveries) <= 1, packet_walk
                for cluster in world.clusters:
                    passed = [
                        n for n in packet_walk.path[1:] if n in gateways and world.nodes[n].cluster == cluster.name
                    ]
                    begins = world.nodes[packet_walk.path[0]].cluster == cluster.name
                    assert len(passed) <= 2, packet_walk
                    assert packet_walk.path[0] not in passed, packet_walk
                    if begins and packet_walk.path[0] in gateways:
                        assert len(passed) <= 1 or packet_walk is not walk, packet_walk
                assert len(packet_walk.path) <= 6, packet_walk
            now = packet_walks[-1].network


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS)
def test_hidden_clients_find_a_way_after_a_loss(world: World, seed: int) -> None:
    """A client that hides behind a gateway opens new connections by another when its own is lost."""

    def wanted(call: Call) -> bool:
        has_several = len(world.cluster(call.client.cluster).gateways) > 1
        return has_several and not world.keeps_source(call.client, call.cluster)

    for call in calls(world, Random(seed), 6, wanted=wanted):
        for lost_gateway in (g.name for g in world.cluster(call.client.cluster).gateways):
            if lost_gateway != call.client.node:
                opened = exchange(world, world.network.losing(lost_gateway), call, call.packet)
                assert lost_gateway not in opened.there.path
