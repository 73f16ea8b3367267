"""Real probes in a real Open vSwitch: the datapath's flows tell them from the same packets without their mark."""

from __future__ import annotations

import socket
from functools import partial
from ipaddress import IPv4Address
from random import Random

import pytest
from hypothesis import assume, given
from scapy.all import IP, Ether

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from flows.pipeline.registers import TOS_TRACE
from flows.simulator import Packet
from flows.simulator.packet import PROTOCOL_NAMES
from mcagent.trace.datapath import MARKED, NUMBERS, datapath_of, marked_flows, tracked
from mcagent.trace.probe import Probe
from tests.contract.real_switch import BRIDGE, RealSwitch, frame
from tests.properties import REAL
from tests.worlds.conversations import calls
from tests.worlds.topologies import World, worlds

pytestmark = [pytest.mark.contract, pytest.mark.datapath]


def probe_of(packet: Packet) -> Probe:
    """Return what a Node would be asked about."""
    return Probe(
        in_port=packet.in_port,
        source=IPv4Address(str(packet.src)),
        destination=IPv4Address(str(packet.dst)),
        protocol=PROTOCOL_NAMES[packet.proto],
        source_port=packet.src_port,
        port=packet.dst_port,
    )


def arrive(ovs: OvsInstance, packet: Packet, tos: int) -> None:
    """Let a packet come in by its port: what ovs-ofctl gives to the flows makes none in the datapath."""
    marked = Ether(frame(packet))
    marked[IP].tos = tos
    del marked[IP].chksum
    data = bytes(marked)

    def send() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
            wire.bind((f"x{packet.in_port}", 0))
            wire.send(data)

    netns.call(ovs.namespace, send)


Seen = set[tuple[str, int]]


def seen(ovs: OvsInstance, datapath: str, probe: Probe) -> Seen:
    """Return the datapath's flows of a probe, each with its packets."""
    dump = ovs.appctl("dpctl/dump-flows", datapath, f"filter={MARKED}")
    return {(flow.match, flow.packets) for flow in marked_flows(dump, probe)}


def _differs(ovs: OvsInstance, datapath: str, probe: Probe, before: Seen) -> bool:
    return bool(seen(ovs, datapath, probe) - before)


@REAL
@given(world=worlds(min_clusters=2, max_clusters=2))
def test_probes_have_flows_of_their_own_on_every_node(ovs: OvsInstance, world: World) -> None:
    """Whatever a Node does with them; and what goes into conntrack is found there."""
    met: dict[str, list[Packet]] = {}
    for call in calls(world, Random(1), 8):
        for name, walk in world.network.send(call.client.node, call.packet).walks:
            if PROTOCOL_NAMES.get(walk.packet.proto) in NUMBERS:
                met.setdefault(name, []).append(walk.packet)
    assume(met)
    for name, packets in sorted(met.items(), key=lambda item: -len(item[1]))[:3]:
        switch = RealSwitch.of(ovs, world, world.nodes[name])
        try:
            datapath = datapath_of(ovs.appctl("dpif/show"), BRIDGE)
            for packet in packets[:3]:
                probe = probe_of(packet)

                before = seen(ovs, datapath, probe)
                arrive(ovs, packet, 0)
                assert seen(ovs, datapath, probe) <= before
                arrive(ovs, packet, TOS_TRACE)
                arrive(ovs, packet, TOS_TRACE)
                changed = partial(_differs, ovs, datapath, probe, before)
                wait_until(changed, f"{probe} to be seen on {name}", timeout=10)
                entries = ovs.appctl("dpctl/dump-conntrack", "-m", "-s", datapath)
                assert not any(entry.answered for entry in tracked(entries, probe))
        finally:
            switch.close()
