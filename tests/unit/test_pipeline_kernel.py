"""Properties of what a Node's kernel is handed: the source MAC tells what its cluster's gateways translated."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import actions as act
from flows.fields import IP_ICMP, IP_UDP
from flows.pipeline import tables as t
from flows.pipeline.registers import IDENTITY_UNKNOWN, MAPPED_ADDRESSES, TOS_REPAIRED
from flows.simulator import Datapath, Packet, SimulatedSwitch
from flows.simulator.packet import ACK, SYN, UNREACHABLE
from mcagent.core.addresses.underlay import mapped_addresses
from mcagent.core.fragments import kernel
from tests.properties import costly
from tests.worlds import small_topology
from tests.worlds.conversations import Call, calls, exchange
from tests.worlds.switch_network import PacketWalk
from tests.worlds.topologies import HOST_MAC, PLAIN, REPLY, TRANSLATED, World, worlds

SEEDS = st.integers(0, 2**32)
OF_A_POD = Packet(
    in_port=1,
    eth_src=HOST_MAC,
    eth_dst=PLAIN,
    src=ip_address("10.10.1.9"),
    dst=ip_address("10.21.0.5"),
    proto=IP_UDP,
)


@pytest.mark.parametrize("gateway", [True, False])
def test_a_packet_that_is_too_large_for_tunnels_returns_to_the_kernel(gateway: bool) -> None:
    """Unchanged but for the MAC addresses: the kernel answers it by the route's MTU. One that fits goes on."""
    parts = small_topology.parts(gateway=gateway)
    switch = SimulatedSwitch.of(small_topology.flows_of(parts), small_topology.groups_of(parts))
    sent = replace(OF_A_POD, size=1451)
    assert switch.walk(sent).outputs == (
        (1, replace(sent, eth_src=PLAIN, eth_dst=HOST_MAC, tun_id=IDENTITY_UNKNOWN)),
    )
    assert [port == 1 for port, _ in switch.walk(replace(sent, size=1450)).outputs] == [False]


@pytest.mark.parametrize("gateway", [True, False])
def test_an_icmp_error_past_netfilter_returns_to_the_kernel(gateway: bool) -> None:
    """Nft replaces the mapped address that it quotes, and marks it: the bridge then takes it for a reply."""
    parts = small_topology.parts(gateway=gateway)
    switch = SimulatedSwitch.of(small_topology.flows_of(parts), small_topology.groups_of(parts))
    address = next(mapped_addresses(ip_address("10.9.1.1")))
    error = replace(OF_A_POD, dst=address, proto=IP_ICMP, icmp_type=UNREACHABLE)
    ((port, returned),) = switch.walk(error).outputs
    assert (port, returned.eth_dst, returned.dst) == (1, HOST_MAC, address)
    assert address in MAPPED_ADDRESSES
    assert t.DEPARTURE.number in [step.table for step in switch.walk(replace(error, tos=TOS_REPAIRED)).steps]


FORGED = ("0a:6d:00:00:00:00", "0a:6d:00:00:00:01", "0a:6d:00:ff:ff:ff", HOST_MAC, "02:00:00:00:00:77")


def marked(packet: Packet) -> bool:
    """Tell whether the kernel takes a packet for one of a translated Service, as the rule of nft does."""

    def number(mac: str) -> int:
        return int(mac.replace(":", ""), 16)

    return number(packet.eth_src) & number(kernel.TRANSLATED_MASK) == number(kernel.TRANSLATED_MAC)


def forgeries(world: World, packet_walk: PacketWalk) -> list[tuple[str, Packet]]:
    """Return what hostile gateways can make of the packets that they sent, each with the Node that it comes to."""
    packets = []
    for name, walk in packet_walk.walks:
        peer = world.peer(world.nodes[name], walk.packet.in_port)
        if peer is not None and peer.cluster != world.nodes[name].cluster:
            packets += [
                (name, replace(walk.packet, eth_src=source, eth_dst=destination))
                for source in FORGED
                for destination in (PLAIN, TRANSLATED, REPLY)
            ]
    return packets


@costly
@given(worlds(min_clusters=2), SEEDS, st.sampled_from(Datapath))
def test_what_is_translated_is_marked_and_nothing_else(world: World, seed: int, datapath: Datapath) -> None:
    """Requests to Services carry the mark, first and later ones; requests to Pods and all replies do not."""
    network = world.network.over(datapath)
    for call in calls(world, Random(seed), 16):
        for packet in (call.packet, call.later, call.later):
            met = exchange(world, network, call, packet)
            network = met.network
            assert marked(met.seen) == (call.service is not None), met.there
            assert not marked(met.back.deliveries[0][1]), met.back


@costly
@given(worlds(min_clusters=2), SEEDS, st.sampled_from(Datapath))
def test_another_clusters_gateway_cannot_forge_the_mark(world: World, seed: int, datapath: Datapath) -> None:
    """Whatever MACs another cluster writes, the kernel sees the mark only on what a Service led to it."""
    for call in calls(world, Random(seed), 4):
        met = exchange(world, world.network.over(datapath), call, call.packet)
        for network in (world.network.over(datapath), met.network):  # as the first packet, and as a later one
            for flags in (SYN, ACK):
                for name, forged in forgeries(world, met.there):
                    packet_walk = network.send(name, replace(forged, tcp_flags=flags))
                    judge(call, packet_walk)


def judge(call: Call, packet_walk: PacketWalk) -> None:
    """Fail if what a kernel got of a forged request is marked without having been translated."""
    assert not packet_walk.problems, packet_walk
    for _, delivery in packet_walk.deliveries:
        assert marked(delivery) == (delivery.dst != call.address), packet_walk


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_a_forged_mark_on_a_reply_is_lost(world: World, seed: int) -> None:
    """A reply that another cluster sends with the mark on it arrives without."""
    for call in calls(world, Random(seed), 6):
        met = exchange(world, world.network, call, call.packet)
        for name, forged in forgeries(world, met.back):
            for _, delivery in met.network.send(name, forged).deliveries:
                assert not marked(delivery)


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_strange_packets_of_other_clusters_are_not_marked(world: World, seed: int) -> None:
    """A packet to any address, from any of the cluster's own, arrives with the mark only if it was translated."""
    random = Random(seed)
    for call in calls(world, random, 4):
        met = exchange(world, world.network, call, call.packet)
        for name, forged in forgeries(world, met.there):
            pod = random.choice(world.pods)
            packet_walk = world.network.send(name, replace(forged, dst=pod.address))
            for _, delivery in packet_walk.deliveries:
                assert not marked(delivery), packet_walk


def metered(packet_walk: PacketWalk) -> list[tuple[str, int]]:
    """Return the Nodes at which a packet passed a meter, with its number."""
    return [
        (name, action.meter_id)
        for name, walk in packet_walk.walks
        for step in walk.steps
        if step.flow is not None
        for action in step.flow.actions
        if isinstance(action, act.Meter)
    ]


@costly
@given(worlds(min_clusters=2), SEEDS, st.sampled_from(Datapath))
def test_only_new_connections_of_other_clusters_pass_a_meter(world: World, seed: int, datapath: Datapath) -> None:
    """The first packet passes the calling cluster's where a Service is translated, and where it arrives.

    No other does, also not the second one of a sender whom nobody has answered yet.
    """
    network = world.network.over(datapath)
    for call in calls(world, Random(seed), 12):
        number = world.cluster(call.client.cluster).number
        first = network.send(call.client.node, call.packet)
        node = first.deliveries[0][0]
        gateway = next(name for name in first.path if world.nodes[name].cluster == call.cluster)
        translated = [(gateway, number)] if call.service is not None else []
        assert metered(first) == [*translated, (node, number)], first
        second = first.network.send(call.client.node, call.packet)
        assert metered(second) == [], second
        again = exchange(world, first.network, call, call.later)
        assert metered(again.there) == metered(again.back) == []
        network = again.network
