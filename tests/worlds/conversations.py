"""Conversations across a simulated network, checked packet by packet. For the property tests of the pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from random import Random

from hypothesis import assume

from flows.fields import IP_ICMP, IP_TCP, IP_UDP
from flows.simulator import Packet
from flows.simulator.packet import ACK, ECHO_REQUEST, SYN
from tests.worlds.switch_network import Network, PacketWalk
from tests.worlds.topologies import HOST_MAC, Pod, Service, World, from_kernel, mapped


@dataclass(frozen=True, kw_only=True)
class Call:
    """A client's wish: a Pod and the address, protocol and port that it calls."""

    client: Pod
    address: IPv4Address
    protocol: int
    port: int
    client_port: int
    service: Service | None = None  # None: a Pod
    cluster: str  # where it is

    @property
    def packet(self) -> Packet:
        """The first packet."""
        ping = self.protocol == IP_ICMP
        return from_kernel(
            Packet(
                in_port=1,
                src=self.client.address,
                dst=self.address,
                proto=self.protocol,
                src_port=self.client_port,
                dst_port=0 if ping else self.port,
                icmp_type=ECHO_REQUEST if ping else 0,
                tcp_flags=SYN,
            )
        )

    @property
    def later(self) -> Packet:
        """A later packet."""
        return replace(self.packet, tcp_flags=ACK)

    def on_port(self, port: int) -> Call:
        """Return the same call from another source port."""
        return replace(self, client_port=port)

    def to(self, service: Service) -> Call:
        """Return the same client's call to a Service."""
        return replace(
            self,
            address=service.address,
            protocol=service.protocol,
            port=service.port,
            service=service,
            cluster=service.cluster,
        )


def to_service(call: Call) -> bool:
    """Tell whether a call is to a Service."""
    return call.service is not None


def calls(
    world: World,
    random: Random,
    number: int,
    *,
    published: bool = False,
    wanted: Callable[[Call], bool] = lambda _: True,
) -> list[Call]:
    """Return calls that should be answered, of every kind alike: `number`, or fewer, but at least one.

    `published`: only of clients that other clusters may see. A world without any such call is no example of the
    property that asks for them (`hypothesis.assume`).
    """
    kinds: defaultdict[tuple[bool, bool, bool], list[tuple[Pod, Service | Pod]]] = defaultdict(list)
    for client in world.pods:
        if published and not client.published:
            continue
        on_gateway = world.nodes[client.node].gateway
        for offered in world.services:
            if offered.cluster != client.cluster and offered.endpoints:
                kinds[client.published, on_gateway, True].append((client, offered))
        for pod in world.pods:
            if pod.cluster != client.cluster and world.reaches(client, pod):
                kinds[client.published, on_gateway, False].append((client, pod))
    drawn: list[Call] = []
    for _ in range(8 * number if kinds else 0):
        client, target = random.choice(kinds[random.choice(sorted(kinds))])
        service = target if isinstance(target, Service) else None
        call = Call(
            client=client,
            address=target.address if isinstance(target, Service) else world.abroad(target),
            protocol=service.protocol if service else random.choice((IP_TCP, IP_UDP, IP_ICMP)),
            port=service.port if service else 8080,
            client_port=random.randint(1024, 65535),
            service=service,
            cluster=target.cluster,
        )
        if wanted(call):
            drawn.append(call)
        if len(drawn) == number:
            break
    assume(drawn)
    return drawn


def one(packet_walk: PacketWalk) -> tuple[str, Packet]:
    """Return where the only copy was handed to a kernel; fail when that is not so."""
    assert not packet_walk.problems, packet_walk
    assert all(len(walk.outputs) == 1 for _, walk in packet_walk.walks), f"copies or a drop\n{packet_walk}"
    assert len(packet_walk.deliveries) == 1, packet_walk
    node, packet = packet_walk.deliveries[0]
    assert packet.eth_dst == HOST_MAC, packet_walk
    return node, packet


def none(packet_walk: PacketWalk) -> None:
    """Fail unless the packet was dropped, without a fault of the flows."""
    assert not packet_walk.problems, packet_walk
    assert not packet_walk.deliveries, packet_walk
    assert packet_walk.drops, packet_walk


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What one packet and its reply did."""

    node: str  # where the server is
    seen: Packet  # as the server saw it
    there: PacketWalk
    back: PacketWalk
    network: Network


def exchange(world: World, network: Network, call: Call, packet: Packet) -> Exchange:
    """Send a packet of a call, check where it gets, and check the reply all the way back to the client."""
    walk = network.send(call.client.node, packet)
    node, delivery = one(walk)
    place = world.nodes[node]
    assert place.cluster == call.cluster, walk
    assert any(delivery.dst in net for net in place.networks), walk
    if call.service is None:
        assert isinstance(delivery.dst, IPv4Address)
        assert (world.cluster(call.cluster).abroad(delivery.dst), delivery.dst_port) == (
            packet.dst,
            packet.dst_port,
        ), walk
    else:
        assert (delivery.dst, delivery.dst_port) in call.service.endpoints, walk
    if world.keeps_source(call.client, call.cluster):
        assert (delivery.src, delivery.src_port) == (world.abroad(call.client), packet.src_port), walk
    else:
        gateways = world.cluster(call.client.cluster).gateways
        assert delivery.src in {mapped(g.address) for g in gateways if g.name in walk.path}, walk
    assert packet.ttl - len(walk.path) <= delivery.ttl < packet.ttl, walk
    back = walk.network.send(node, from_kernel(delivery.reply()))
    home, answer = one(back)
    assert home == call.client.node, back
    reply = packet.reply(in_port=answer.in_port)
    names = ("src", "dst", "proto", "src_port", "dst_port")
    assert [getattr(answer, n) for n in names] == [getattr(reply, n) for n in names], f"{walk}\n{back}"
    return Exchange(node=node, seen=delivery, there=walk, back=back, network=back.network)
