"""Properties of the whole pipeline over random worlds: what must not be forwarded, is not."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flows.fields import ETH_ARP, IP_ICMP, IP_TCP, IP_UDP
from flows.simulator import Packet
from flows.simulator.conntrack import Datapath
from flows.simulator.packet import ACK, SYN, UNREACHABLE
from tests.properties import costly
from tests.worlds.conversations import Call, calls, exchange, none, one, to_service
from tests.worlds.topologies import (
    HERE,
    HOST_MAC,
    LOOKUPS,
    OUTSIDERS,
    PLAIN,
    QUESTIONS,
    REPLY,
    TRANSLATED,
    ZONES,
    Cluster,
    Node,
    World,
    strange,
    worlds,
)

SEEDS = st.integers(0, 2**32)


def local(cluster: Cluster, address: IPv4Address) -> bool:
    """Tell whether an address belongs to a Node of this cluster."""
    return any(address in net for node in cluster.nodes for net in node.networks)


def is_endpoint(cluster: Cluster, packet: Packet) -> bool:
    """Tell whether a packet is for an endpoint of an exported TCP Service of this cluster."""
    endpoints = {place for s in cluster.services if s.protocol == IP_TCP for place in s.endpoints}
    return packet.proto == IP_TCP and (packet.dst, packet.dst_port) in endpoints


def serves(world: World, cluster: Cluster, packet: Packet) -> bool:
    """Tell whether a packet is for an exported Service of this cluster that has endpoints."""
    return any(
        (s.address, s.protocol, s.port) == (packet.dst, packet.proto, packet.dst_port) and s.endpoints
        for s in cluster.services
    )


def may_pass(world: World, node: Node, peer: Node | None, packet: Packet) -> bool:
    """Tell whether the first packet of a connection, come to a Node from its kernel (None) or a peer, may get on.

    Says it from the topology alone, without a look at the pipeline.
    """
    own_cluster = world.cluster(node.cluster)
    src, dst = packet.src, packet.dst
    if packet.eth_dst != PLAIN and peer is None:
        return False
    assert isinstance(src, IPv4Address)
    assert isinstance(dst, IPv4Address)
    other_clusters = [c for c in world.clusters if c is not own_cluster]
    networks_of = {c.name: world.accepted(own_cluster, c) for c in other_clusters}

    def belongs(cluster: Cluster) -> bool:
        gateways = [g.address for g in cluster.gateways]
        return src in gateways or any(src in net for net in networks_of[cluster.name])

    def leaves() -> bool:
        if peer is None or not peer.gateway:
            mine = any(src in net for net in (peer or node).networks)
        else:  # a sibling may relay what is its own, its workers' or came out of its Service translation
            mine = local(own_cluster, src) or src in own_cluster.service_cidr
        for remote in other_clusters:
            if any(dst in net for net in networks_of[remote.name]):
                arrives = serves(world, remote, packet) or (remote.publishes and dst in remote.pod_cidr)
                return mine and arrives
        return False

    if peer is None:
        return leaves()
    if (
        peer.cluster == node.cluster
        and packet.eth_dst in LOOKUPS
        and (node.gateway or packet.eth_dst in QUESTIONS)
    ):
        # Only a Node that has the connection gets the packet; nobody else hears of it.
        return (
            packet.eth_dst == HERE and any(belongs(c) for c in other_clusters) and is_endpoint(own_cluster, packet)
        )
    if peer.cluster != node.cluster:
        published = own_cluster.publishes and dst in own_cluster.pod_cidr and local(own_cluster, dst)
        return belongs(world.cluster(peer.cluster)) and (published or serves(world, own_cluster, packet))
    if not node.gateway:
        return any(belongs(c) for c in other_clusters) and any(dst in net for net in node.networks)
    if leaves():
        return True
    return peer.gateway and any(belongs(c) for c in other_clusters) and local(own_cluster, dst)


@st.composite
def junk(draw: st.DrawFn) -> tuple[World, Node, Packet]:
    """Draw a world, a Node, and a strange packet that comes in there."""
    world = draw(worlds())
    node = draw(st.sampled_from(list(world.nodes.values())))
    return world, node, draw(strange(world, node))


def judge(world: World, node: Node, packet: Packet) -> bool:
    """Send a packet that belongs to no connection; fail if it gets anywhere that the topology does not allow."""
    packet_walk = world.network.send(node.name, packet)
    assert not packet_walk.problems, packet_walk
    assert len(packet_walk.deliveries) <= 1, packet_walk
    for where, delivery in packet_walk.deliveries:
        assert may_pass(world, node, world.peer(node, packet.in_port), packet), packet_walk
        assert any(delivery.dst in net for net in world.nodes[where].networks), packet_walk
        assert delivery.eth_dst == HOST_MAC, packet_walk
    return bool(packet_walk.deliveries)


@pytest.mark.costly
@given(junk())
def test_nothing_else_is_forwarded(drawn: tuple[World, Node, Packet]) -> None:
    """A packet without a connection gets to a kernel at most once, and only if the topology allows it."""
    judge(*drawn)


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_near_misses_are_not_forwarded(world: World, seed: int) -> None:
    """A packet on its way in which one thing is changed passes only if the topology allows the changed one."""
    random = Random(seed)
    addresses = [*(p.address for p in world.pods), *(s.address for s in world.services), *OUTSIDERS]
    for call in calls(world, random, 6):
        for name, walk in world.network.send(call.client.node, call.packet).walks:
            ports = [1, *(number for (a, _), number in world.ports.items() if a == name)]
            right = walk.packet
            assert right.dst is not None
            near = [a for a in addresses if int(a) >> 16 == int(right.dst) >> 16] or addresses
            for wrong in (
                replace(right, src=random.choice(addresses)),
                replace(right, src=random.choice(world.cluster(random.choice(world.clusters).name).pods).address),
                replace(right, dst=random.choice(near)),
                replace(right, dst=random.choice(world.cluster(call.cluster).pods).address),
                replace(right, dst_port=right.dst_port + random.choice((-1, 1, 2))),
                replace(right, proto=random.choice((IP_TCP, IP_UDP)), icmp_type=0, dst_port=call.port or 443),
                replace(right, in_port=random.choice(ports)),
                replace(right, in_port=random.choice(ports), src=random.choice(addresses)),
                replace(right, eth_dst=random.choice((TRANSLATED, REPLY, "02:00:00:00:00:99"))),
            ):
                judge(world, world.nodes[name], wrong)


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_only_ip_by_known_ports(world: World, seed: int) -> None:
    """The packets of an allowed call pass by no other port, and nothing that is not IP passes at all."""
    for call in calls(world, Random(seed), 4):
        node, own_ports = call.client.node, {n for (a, _), n in world.ports.items() if a == call.client.node}
        for port in (max(own_ports) + 1, 65535):
            none(world.network.send(node, replace(call.packet, in_port=port)))
        for port in {1, *own_ports}:
            arp = Packet(in_port=port, eth_type=ETH_ARP, eth_dst=PLAIN)
            none(world.network.send(node, arp))
            none(world.network.send(node, replace(arp, eth_dst="ff:ff:ff:ff:ff:ff")))


@costly
@given(worlds(min_clusters=3), SEEDS)
def test_no_transit_between_remote_clusters(world: World, seed: int) -> None:
    """A gateway passes nothing from one remote cluster on to another."""
    tried = 0
    for call in calls(world, Random(seed), 6):
        for middle in world.clusters:
            if middle.name in {call.client.cluster, call.cluster} or local(middle, call.address):
                continue
            for gateway in middle.gateways:
                for source in world.cluster(call.client.cluster).gateways:
                    port = world.ports[gateway.name, source.name]
                    for address in (call.client.address, source.address):
                        packet = replace(call.packet, in_port=port, src=address)
                        packet_walk = world.network.send(gateway.name, packet)
                        none(packet_walk)
                        assert packet_walk.path == (gateway.name,)
                        tried += 1
    assume(tried)


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_replies_never_leave_raw(world: World, seed: int) -> None:
    """When gateways have lost what they translated, replies are dropped, or translated by what else is known."""

    def translated(call: Call) -> bool:
        return to_service(call) or not world.keeps_source(call.client, call.cluster)

    for call in calls(world, Random(seed), 10, wanted=translated):
        talked = exchange(world, world.network, call, call.packet)
        serving = [g.name for g in world.cluster(call.cluster).gateways]
        calling = [g.name for g in world.cluster(call.client.cluster).gateways]
        answer = replace(talked.seen.reply(), in_port=1, eth_dst=PLAIN)
        if call.service is not None:
            # The Node of an endpoint remembers in its own zone; a gateway forgets only what it translated.
            packet_walk = talked.network.forgetting(ZONES.service, *serving).send(talked.node, answer)
            home, delivery = one(packet_walk)
            expected = (call.client.node, call.address, call.port)
            assert (home, delivery.src, delivery.src_port) == expected, packet_walk
        if not world.keeps_source(call.client, call.cluster):
            none(talked.network.forgetting(ZONES.snat, *calling).send(talked.node, answer))


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_only_an_endpoints_reply_is_translated_without_state(world: World, seed: int) -> None:
    """A gateway that does not know the connection drops what is not of an endpoint of the Service named."""
    random = Random(seed)
    for call in calls(world, random, 6, wanted=to_service):
        assert call.service is not None
        talked = exchange(world, world.network, call, call.packet)
        serving = [g.name for g in world.cluster(call.cluster).gateways]
        network = talked.network.forgetting(ZONES.service, *serving)
        answer = replace(talked.seen.reply(), in_port=1, eth_dst=PLAIN)
        fewer = tuple(e for e in call.service.endpoints if e != (talked.seen.dst, talked.seen.dst_port))
        cluster = world.cluster(call.cluster)
        services = tuple(
            replace(call.service, endpoints=fewer) if s == call.service else s for s in cluster.services
        )
        changed = world.having(replace(cluster, services=services))
        none(replace(changed.network, connections=network.connections).send(talked.node, answer))
        for name, walk in network.send(talked.node, answer).walks:
            right = walk.packet
            if name not in serving or right.eth_dst != TRANSLATED:
                continue
            number = 1 + cluster.services.index(call.service)
            assert right.eth_src == f"0a:6d:00:00:00:{number:02x}"
            none(network.send(name, replace(right, src_port=right.src_port + 1)))
            none(network.send(name, replace(right, proto=IP_TCP + IP_UDP - right.proto)))
            none(network.send(name, replace(right, eth_src=HOST_MAC)))
            none(network.send(name, replace(right, eth_src="0a:6d:00:00:00:00")))
            other_addresses = [
                p.address for p in cluster.pods if (p.address, right.src_port) not in call.service.endpoints
            ]
            none(network.send(name, replace(right, src=random.choice(other_addresses))))


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_unasked_replies_are_dropped(world: World, seed: int) -> None:
    """A reply of a connection that nobody opened reaches nobody."""
    for call in calls(world, Random(seed), 6, wanted=lambda call: call.protocol == IP_TCP and to_service(call)):
        backwards = replace(call.packet.reply(), tcp_flags=SYN | ACK, in_port=1, eth_dst=PLAIN)
        for pod in world.cluster(call.cluster).pods:
            none(world.network.send(pod.node, replace(backwards, src=pod.address)))


@costly
@given(worlds(min_clusters=3), SEEDS, st.sampled_from(Datapath))
def test_errors_about_connections_of_others_are_dropped(world: World, seed: int, datapath: Datapath) -> None:
    """No third cluster's ICMP error about a connection reaches the client or the server; none about none does."""
    network = world.network.over(datapath)
    tried = 0
    for call in calls(world, Random(seed), 6, wanted=lambda call: call.protocol != IP_ICMP):
        talked = exchange(world, network, call, call.packet)
        client, server = call.client.cluster, call.cluster
        for near, far, walk in ((client, server, talked.there), (server, client, talked.back)):
            gateways = [gateway.name for gateway in world.cluster(far).gateways]
            quoted = next(error_walk.packet for name, error_walk in walk.walks if name in gateways)
            for (name, peer), port in world.ports.items():
                node, sender = world.nodes[name], world.nodes[peer]
                if node.cluster != near or not node.gateway or sender.cluster == near:
                    continue
                error = Packet(
                    in_port=port,
                    src=sender.address,
                    dst=quoted.src,
                    proto=IP_ICMP,
                    icmp_type=UNREACHABLE,
                    eth_dst=PLAIN,
                    quoted=quoted,
                )
                none(network.send(name, error))
                if sender.cluster != far:
                    none(talked.network.send(name, error))
                    tried += 1
    assume(tried)
