"""Attacks of a Pod on other Pods of its cluster: it sends with their addresses, to be taken for them elsewhere.

Each Pod has a device of its own, to which the kernel's route to its address leads. Where several Pods share one,
the Node reports that it cannot verify labels (`mcagent.core.local_cluster.pod_sources`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

from hypothesis import strategies as st

from flows.fields import IP_ICMP, IP_TCP, IP_UDP
from flows.pipeline.registers import HOST_MAC
from flows.simulator import Packet
from flows.simulator.packet import ACK, ECHO_REQUEST, SYN
from flows.text import mac_text
from mcagent.model.dataplane.facts import DatapathType
from tests.attacks.generated import nodes, packets, places
from tests.attacks.generated.netfilter import Datagram
from tests.attacks.generated.packets import PLAIN, described
from tests.attacks.generated.places import CLUSTERS, NODES, PLACES, POD_PORT, SERVICE_PORT, Place
from tests.attacks.generated.search import AttackClass

DATAPATHS = st.sampled_from(DatapathType)
PODS = (5, 6, 7)  # of each Node, by the last number of their addresses


@dataclass(frozen=True, kw_only=True)
class PodPacket:
    """A packet that a Pod sends to another cluster, with an address of its choice."""

    datapath: DatapathType
    place: Place
    pod: IPv4Address
    packet: Packet

    def __str__(self) -> str:
        return f"Pod {self.pod} on {self.place} sends {described(self.packet)} ({self.datapath} datapath)"

    @property
    def datagram(self) -> Datagram:
        """The packet on its way through the Pod's Node."""
        assert isinstance(self.packet.src, IPv4Address)
        assert isinstance(self.packet.dst, IPv4Address)
        return Datagram(
            source=self.packet.src,
            destination=self.packet.dst,
            port=self.packet.dst_port,
            source_port=self.packet.src_port,
            device="veth-attacker",
            device_kind="veth",
            behind=frozenset({self.pod}),
        )


@st.composite
def _pod_packets(draw: st.DrawFn) -> PodPacket:
    place = draw(st.sampled_from(PLACES))
    neighbours = [places.pod_address(place.cluster, place.node, host) for host in PODS]
    elsewhere = [places.pod_address(cluster, node) for cluster in CLUSTERS for node in NODES]
    other_clusters = [cluster for cluster in CLUSTERS if cluster != place.cluster]
    protocol = draw(st.sampled_from((IP_UDP, IP_TCP, IP_ICMP)))
    is_icmp = protocol == IP_ICMP
    packet = Packet(
        in_port=1,
        src=draw(st.sampled_from(neighbours) | st.sampled_from([*elsewhere, *packets.ELSEWHERE])),
        dst=draw(st.sampled_from(packets.addresses(*other_clusters))),
        proto=protocol,
        src_port=0 if is_icmp else 40000,
        dst_port=0 if is_icmp else draw(st.sampled_from((POD_PORT, SERVICE_PORT))),
        icmp_type=ECHO_REQUEST if is_icmp else 0,
        tcp_flags=draw(st.sampled_from((SYN, ACK))) if protocol == IP_TCP else 0,
        eth_src=mac_text(HOST_MAC),
        eth_dst=PLAIN,
    )
    return PodPacket(datapath=draw(DATAPATHS), place=place, pod=draw(st.sampled_from(neighbours)), packet=packet)


def _judge(attack: PodPacket) -> str:
    fleet = nodes.fleet(attack.datapath)
    if not fleet.enters_bridge(attack.place, attack.datagram):
        return ""
    for name, delivered in fleet.network.send(attack.place.name, attack.packet).deliveries:
        if delivered.src != attack.pod:
            return f"a packet of Pod {attack.pod} is delivered at {name} in the name of {delivered.src}"
    return ""


A15 = AttackClass(
    name="A15",
    title="a Pod sends with the address of another Pod, to have its label identity in other clusters",
    grammar=_pod_packets(),
    judge=_judge,
    property="what a Pod with its own device sends arrives in other clusters with its own address, or not at all",
    protections={
        "Pods send with their own address": partial(nodes.without, nodes.without_chains("mct_pod_sources"))
    },
    examples=300,
)
