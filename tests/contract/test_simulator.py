"""The simulator and a real Open vSwitch do the same with the same packets."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Set
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from scapy.all import IP, Ether

from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from flows.fields import IP_ICMP, IP_TCP
from flows.simulator import ConnectionTable, Datapath, Packet, SwitchWalk
from flows.simulator.packet import ACK, RST, SYN
from tests.contract.ovs_values import DATAPATH
from tests.contract.real_switch import TRACKING, RealSwitch, frame, known
from tests.properties import REAL
from tests.worlds.conversations import Call, calls, exchange
from tests.worlds.topologies import ZONES, World, from_kernel, strange, worlds

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

SEEDS = st.integers(0, 2**32)


def compared() -> st.SearchStrategy[World]:
    """Draw worlds in which a real conntrack gives the ports that the simulated one does."""
    return worlds(min_clusters=2, max_clusters=3).map(lambda world: replace(world, any_snat_port=True))


def essence(data: bytes) -> tuple[object, ...]:
    """Return what of a packet's bytes the simulator models."""
    ether = Ether(data)
    ip = ether[IP]
    ports = (ip.payload.id,) if ip.proto == IP_ICMP else (ip.payload.sport, ip.payload.dport)
    return (ether.src, ether.dst, ip.src, ip.dst, ip.ttl, ip.proto, *ports)


def same(real: list[tuple[int, bytes]], walk: SwitchWalk, dead: Set[int] = frozenset()) -> None:
    """Fail unless the same packets left by the same ports; nothing gets out by a dead one."""
    simulated = sorted((port, essence(frame(packet))) for port, packet in walk.outputs if port not in dead)
    assert [(port, essence(data)) for port, data in real] == simulated, walk


@REAL
@given(world=compared(), seed=SEEDS, data=st.data())
def test_conversations_pass_the_same_way(ovs: OvsInstance, world: World, seed: int, data: st.DataObject) -> None:
    """Every packet of a world's conversations that meets a Node does there what the simulator says."""
    network = world.network.over(TRACKING)
    met: defaultdict[str, list[SwitchWalk]] = defaultdict(list)
    for call in calls(world, Random(seed), 12):
        for packet in (call.packet, call.packet, call.later):
            there = network.send(call.client.node, packet)
            packet_walks = [there]
            for place, seen in there.deliveries:
                if packet is not call.packet or seen.proto != IP_ICMP:
                    packet_walks.append(there.network.send(place, from_kernel(seen.reply())))
            for packet_walk in packet_walks:
                for name, walk in packet_walk.walks:
                    met[name].append(walk)
                network = packet_walk.network
    busiest = sorted(met, key=lambda name: -len(met[name]))[:3]
    node = world.nodes[data.draw(st.sampled_from(busiest))]
    switch = RealSwitch.of(ovs, world, node)
    try:
        for walk in met[node.name]:
            same(switch.inject(walk.packet, len(walk.outputs)), walk)
        assert switch.settled() == []
        assert switch.connections() == known(network.connections[node.name])
    finally:
        switch.close()


def request(world: World, seed: int) -> tuple[World, str, SwitchWalk, tuple[SwitchWalk, ...]]:
    """Return a Service's request at the gateway that it meets: the world, the gateway, and the gateway's walks.

    First that of the connection's first packet; then those of a later one, of a connection that this gateway does
    not know: it asks, and gets the answer. The Service has its endpoints for itself, and clients keep their ports.
    """
    world = replace(world, userspace_conntrack=True)

    def wanted(call: Call) -> bool:
        alone = call.service is not None and not world.cluster(call.cluster).shares_endpoints(call.service)
        return call.protocol == IP_TCP and alone

    for call in calls(world, Random(seed), 20, wanted=wanted):
        opened = exchange(world, world.network.over(TRACKING), call, call.packet)
        gateway = next(n for n in opened.there.path if world.nodes[n].gateway and n[0] == call.cluster)
        if gateway == opened.node:
            continue
        forgetful = opened.network.forgetting(ZONES.service, gateway)
        later = exchange(world, forgetful, call, call.later).there.walks
        first, *_ = (walk for name, walk in opened.there.walks if name == gateway)
        return world, gateway, first, tuple(walk for name, walk in later if name == gateway)
    return reject()


def translated(switch: RealSwitch) -> list[tuple[str, ...]]:
    """Return what conntrack expects as replies to connections of Services."""
    return [connection.reply for connection in switch.connections() if connection.zone == ZONES.service]


@pytest.mark.timing
@pytest.mark.skipif(TRACKING is Datapath.KERNEL, reason="the kernel looks at no connections that have expired")
@REAL
@given(world=worlds(min_clusters=2, max_clusters=2, plain=True), seed=SEEDS)
def test_a_connection_that_expired_here_goes_on_unchanged(ovs: OvsInstance, world: World, seed: int) -> None:
    """The client keeps its port, though conntrack has another one for it until the expired entry is swept."""
    world, name, _, asking = request(world, seed)
    switch = RealSwitch.of(ovs, world, world.nodes[name])
    policy = [f"{state}=1" for state in ("tcp_syn_sent", "tcp_syn_recv", "tcp_established")]
    zone = f"zone={ZONES.service}"
    ovs.vsctl(
        *("--", "--id=@one", "create", "Datapath", "datapath_version=0"),
        *("--", "set", "Open_vSwitch", ".", f"datapaths:{DATAPATH}=@one"),
        *("--", "add-zone-tp", str(DATAPATH), zone, *policy),
    )
    try:
        for walk in asking:
            same(switch.inject(walk.packet, len(walk.outputs)), walk)
        first = translated(switch)
        wait_until(lambda: not translated(switch), "the connection to expire")
        for walk in asking:
            same(switch.inject(walk.packet, len(walk.outputs)), walk)
        assert len(translated(switch)) == 1
        assert translated(switch) != first, "conntrack has kept the port: this shows nothing"
    finally:
        ovs.vsctl("remove", "Open_vSwitch", ".", "datapaths", str(DATAPATH))
        switch.close()


@pytest.mark.skipif(TRACKING is Datapath.KERNEL, reason="made-up resets are invalid; tests/lab has real ones")
@REAL
@given(world=worlds(min_clusters=2, max_clusters=2, plain=True), seed=SEEDS)
def test_a_client_that_uses_its_port_again_keeps_it(ovs: OvsInstance, world: World, seed: int) -> None:
    """A connection is reset, and another one begins from the same port at once, as clients of a proxy do."""
    world, name, walk, _ = request(world, seed)
    switch = RealSwitch.of(ovs, world, world.nodes[name])
    try:
        ports = []
        for flags in (SYN, RST, SYN, ACK):
            same(switch.inject(replace(walk.packet, tcp_flags=flags), 1), walk)
            ports.append(translated(switch))
        assert ports[2] != ports[0], "conntrack has kept the port: this shows nothing"
    finally:
        switch.close()


@REAL
@given(world=compared(), data=st.data())
def test_strange_packets_end_the_same_way(ovs: OvsInstance, world: World, data: st.DataObject) -> None:
    """Packets of any kind, by any port, with some tunnels dead, leave by the same ports or are dropped by both."""
    node = data.draw(st.sampled_from(list(world.nodes.values())))
    simulated = world.network.switches[node.name]
    switch = RealSwitch.of(ovs, world, node)
    dead = data.draw(st.sets(st.sampled_from(switch.ports[1:]))) if len(switch.ports) > 1 else set()
    connections = ConnectionTable(datapath=TRACKING)
    try:
        switch.cut(dead)
        for _ in range(25):
            packet = data.draw(strange(world, node))
            walk = simulated.walk(packet, connections, frozenset(switch.ports) - dead)
            connections = walk.connections
            expected = sum(port not in dead for port, _ in walk.outputs)
            same(switch.inject(packet, expected), walk, dead)
        assert switch.settled() == []
        assert switch.connections() == known(connections)
    finally:
        switch.close()


@REAL
@given(world=worlds(min_clusters=2, max_clusters=3), data=st.data())
def test_trace_goes_through_the_same_tables(ovs: OvsInstance, world: World, data: st.DataObject) -> None:
    """ofproto/trace of a first packet names the same flows in the same order as the simulator."""
    node = data.draw(st.sampled_from(list(world.nodes.values())))
    simulated = world.network.switches[node.name]
    switch = RealSwitch.of(ovs, world, node)
    try:
        for _ in range(10):
            packet = data.draw(strange(world, node, begins=True))
            walk = simulated.walk(packet, ConnectionTable(datapath=TRACKING))
            assert traced(switch, packet) == [
                (step.table, step.flow.priority if step.flow else None) for step in walk.steps
            ], walk
    finally:
        switch.close()


def traced(switch: RealSwitch, packet: Packet) -> list[tuple[int, int | None]]:
    """Return table and priority of each flow that a trace meets when every connection is new."""
    lines = re.findall(r"^ *(\d+)\. .*?priority (\d+)", switch.trace(packet, ["trk,new"] * 6), re.MULTILINE)
    return [(int(table), int(priority)) for table, priority in lines]
