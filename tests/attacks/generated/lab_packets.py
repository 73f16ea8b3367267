"""Generated packets through a lab: real agents, real Open vSwitch. Judged by what arrives, and by the simulator.

The simulator has the flows and groups that each Node's Open vSwitch prints. Packets are those that a gateway of a
member sends through its tunnel; fragments, whose number the bridges limit, and BFD, which ends a tunnel, are left
out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

from hypothesis import strategies as st
from scapy.all import ICMP, IP, TCP, UDP, Ether, Raw

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, SERVICE_PORT, Cluster, Node
from devtools.traffic import traffic
from devtools.traffic.capture import Capture
from devtools.waiting import wait_until
from flows.fields import IP_ICMP, IP_SCTP, IP_TCP
from flows.parse import parse_flow, parse_group
from flows.simulator import Datapath, Packet, SimulatedSwitch
from tests.attacks import packets as wire
from tests.attacks import tunnel_packets
from tests.attacks.generated import packets
from tests.attacks.generated.packets import PLAIN, described
from tests.attacks.generated.search import AttackClass
from tests.worlds.switch_network import Network

ETH_P_ALL = 3  # linux/if_ether.h
BRIDGE, HOST_PORT = "br-mc", "mc-gw0"
BATCH = 20  # packets that are sent at once
BFD_MAC, BFD_PORT = "00:23:20:00:00:01", 3784
NAME = "packets"
FIRST_PORT = 20000  # source ports, each of one packet: the simulator and conntrack begin without connections


def frame(packet: Packet, token: bytes) -> bytes:
    """Return a packet as bytes, with a token in it."""
    ether = Ether(src=packet.eth_src, dst=packet.eth_dst, type=packet.eth_type)
    if packet.src is None:
        return bytes(ether / Raw(token + bytes(46)))
    return bytes(ether / _ipv4(packet, token))


def _ipv4(packet: Packet, token: bytes) -> IP:
    ip = IP(src=str(packet.src), dst=str(packet.dst), ttl=packet.ttl, proto=packet.proto)
    if packet.proto == IP_TCP:
        sequences = {"seq": 1000, "ack": 1001}
        return (
            ip
            / TCP(sport=packet.src_port, dport=packet.dst_port, flags=packet.tcp_flags, **sequences)
            / Raw(token)
        )
    if packet.proto != IP_ICMP:
        return ip / UDP(sport=packet.src_port, dport=packet.dst_port) / Raw(token)
    if packet.quoted is None:
        return ip / ICMP(type=packet.icmp_type, code=packet.icmp_code, id=packet.src_port) / Raw(token)
    return ip / ICMP(type=packet.icmp_type, code=packet.icmp_code) / _ipv4(packet.quoted, token)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Packets that the attacker's gateway sends to the victim's."""

    inner: tuple[Packet, ...]

    def __str__(self) -> str:
        return "\n    ".join(["through a tunnel, by a gateway of cluster north:", *map(described, self.inner)])


@dataclass(frozen=True, kw_only=True)
class PodPacket:
    """A tunnel packet that the Pod of a Node sends. `forged`: its outer source; None: the Pod's address."""

    node: Node
    forged: IPv4Address | None
    destination: IPv4Address
    port: int
    inner: Packet

    def outer(self, token: bytes) -> bytes:
        """Return the packet as bytes."""
        source = self.forged or self.node.pods[0].address
        inside = frame(self.inner, token)
        is_geneve = self.port == tunnel_packets.GENEVE
        payload = (
            tunnel_packets.geneve(inside, vni=self.inner.tun_id) if is_geneve else tunnel_packets.vxlan(inside)
        )
        datagram = tunnel_packets.udp(source, self.destination, self.port, payload)
        return tunnel_packets.ipv4(source, self.destination, datagram)

    def __str__(self) -> str:
        source = self.forged or self.node.pods[0].address
        outer = f"UDP {source} > {self.destination}:{self.port}"
        return f"a Pod on {self.node.name} sends {outer}, inside: {described(self.inner)}"


@dataclass(frozen=True, kw_only=True)
class PodBatch:
    """Tunnel packets that Pods send."""

    packets: tuple[PodPacket, ...]

    def __str__(self) -> str:
        return "\n    ".join(map(str, self.packets))


class PacketRange:
    """A lab of three clusters; the third attacks the first."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.victim, _, self.attacker = lab.topology.clusters
        self.network = self._read()
        self._next_port = FIRST_PORT
        self.delivered = 0  # packets that arrived, fences not counted

    def grammar(self) -> st.SearchStrategy[Batch]:
        """Return the grammar of batches, with the addresses of the lab."""
        inner = packets.inner_packets(hosts=self._hosts()).filter(_is_comparable)
        return st.builds(Batch, inner=st.lists(inner, min_size=1, max_size=BATCH).map(tuple))

    def _hosts(self) -> packets.Hosts:
        addresses = [address for cluster in self.lab.topology.clusters for address in _addresses(cluster)]
        return packets.Hosts(
            pods=tuple(pod.address for _, _, pod in self.lab.topology.pods()),
            everything=(*addresses, *packets.ELSEWHERE),
        )

    def judge(self, batch: Batch) -> str:
        """Send the packets; return what arrives in another's name, or where simulator and packets differ."""
        numbered = [self._numbered(packet) for packet in batch.inner]
        tokens = [os.urandom(16) for _ in numbered]
        expected = [self._simulated(packet) for packet in numbered]
        gateway, peer = self.attacker.gateways[0], self.victim.gateways[0]
        with contextlib.ExitStack() as stack:
            captures = {
                node.name: stack.enter_context(Capture(self.lab.namespace(node), HOST_PORT, ethertype=ETH_P_ALL))
                for cluster, node in self.lab.topology.nodes()
                if cluster is not self.attacker  # where answers to the attacker's packets arrive
            }

            def arrived(token: bytes) -> set[str]:
                return {name for name, capture in captures.items() if any(token in f for f in capture.frames())}

            for packet, token in zip(numbered, tokens, strict=True):
                wire.geneve(self.lab.namespace(gateway), peer.address, frame(packet, token), vni=packet.tun_id)
            with contextlib.suppress(LabError):  # reported below
                wait_until(
                    lambda: all(nodes <= arrived(token) for nodes, token in zip(expected, tokens, strict=True)),
                    "all packets that the simulator delivers",
                    timeout=traffic.PATIENCE,
                )
            self._fence(arrived)
            results = [arrived(token) for token in tokens]
        self.delivered += sum(map(bool, results))
        for packet, simulated, nodes in zip(numbered, expected, results, strict=True):
            owner = self._owner(packet.src)
            if nodes and owner != self.attacker.name:
                name = f"in the name of cluster {owner or 'none'}"
                return f"delivered at {', '.join(nodes)} {name}: {described(packet)}"
            if nodes != simulated:
                return (
                    f"packets and simulator differ: delivered at {sorted(nodes) or 'no Node'}, simulated at "
                    f"{sorted(simulated) or 'no Node'}: {described(packet)}"
                )
        return ""

    def pod_grammar(self) -> st.SearchStrategy[PodBatch]:
        """Return the grammar of tunnel packets that Pods send."""
        nodes = [node for _, node in self.lab.topology.nodes()]
        ends = [node.address for node in nodes]
        packet = st.builds(
            PodPacket,
            node=st.sampled_from(nodes),
            forged=st.none() | st.sampled_from(ends),
            destination=st.sampled_from(ends),
            port=st.sampled_from((tunnel_packets.GENEVE, tunnel_packets.VXLAN)),
            inner=packets.inner_packets(hosts=self._hosts()).filter(_is_comparable),
        )
        return st.builds(PodBatch, packets=st.lists(packet, min_size=1, max_size=BATCH).map(tuple))

    def judge_pods(self, batch: PodBatch) -> str:
        """Send tunnel packets of Pods; return what comes out of a tunnel."""
        tokens = [os.urandom(16) for _ in batch.packets]
        with contextlib.ExitStack() as stack:
            captures = {
                node.name: stack.enter_context(Capture(self.lab.namespace(node), HOST_PORT, ethertype=ETH_P_ALL))
                for _, node in self.lab.topology.nodes()
            }
            for packet, token in zip(batch.packets, tokens, strict=True):
                namespace = self.lab.namespace(packet.node.pods[0])
                tunnel_packets.send_raw(namespace, packet.destination, packet.outer(token))
            for sender in {packet.node.name: packet.node for packet in batch.packets}.values():
                target = self.victim if sender not in self.victim.nodes else self.attacker
                traffic.udp(
                    self.lab.namespace(sender.pods[0]), target.services[0].cluster_ip, SERVICE_PORT, b"honest"
                )
            for packet, token in zip(batch.packets, tokens, strict=True):
                for name, capture in captures.items():
                    if any(token in frame for frame in capture.frames()):
                        return f"it comes out of a tunnel at {name}: {packet}"
        return ""

    def _fence(self, arrived: object) -> None:
        """Send honest packets to each Node of the victim after the others, and wait until they have arrived."""
        assert callable(arrived)
        gateway, peer = self.attacker.gateways[0], self.victim.gateways[0]
        source = self.attacker.workers[0].pods[0].address
        for node in self.victim.nodes:
            token, destination = os.urandom(16), node.pods[0].address
            inner = tunnel_packets.inner(source, destination, POD_PORT, token)

            def is_there(token: bytes = token, name: str = node.name, inner: bytes = inner) -> bool:
                wire.geneve(self.lab.namespace(gateway), peer.address, inner)
                return name in arrived(token)

            wait_until(is_there, f"an honest packet at {node.name}", timeout=20)

    def _simulated(self, packet: Packet) -> set[str]:
        """Return the Nodes at which the simulator delivers a packet."""
        port = self._port(self.victim.gateways[0], self.attacker.gateways[0])
        walk = self.network.send(self.victim.gateways[0].name, replace(packet, in_port=port))
        self.network = walk.network
        return {name for name, _ in walk.deliveries if self.lab.topology.node(name)[0] is not self.attacker}

    def _numbered(self, packet: Packet) -> Packet:
        """Return the packet with a source port, or an echo identifier, that no other packet has."""
        self._next_port += 1
        port = FIRST_PORT + (self._next_port - FIRST_PORT) % 10000
        if packet.quoted is not None:
            return replace(packet, quoted=replace(packet.quoted, src_port=port))
        return packet if packet.src is None else replace(packet, src_port=port)

    def _owner(self, address: object) -> str:
        for cluster in self.lab.topology.clusters:
            nets = (cluster.pod_cidr, cluster.service_cidr, cluster.subnet)
            if isinstance(address, IPv4Address) and any(address in net for net in nets):
                return cluster.name
        return ""

    def _port(self, node: Node, peer: Node) -> int:
        return next(
            number
            for (name, number), other in self.network.tunnels.items()
            if (name, other[0]) == (node.name, peer.name)
        )

    def _read(self) -> Network:
        """Return the switches as Open vSwitch prints them, and the tunnels between them."""
        switches, ends = {}, {}
        for _, node in self.lab.topology.nodes():
            ovs = self.lab.ovs(node.name)
            flows = ovs.ofctl("--no-names", "--no-stats", "dump-flows", ovs.mgmt(BRIDGE)).splitlines()
            groups = ovs.ofctl("--no-names", "dump-groups", ovs.mgmt(BRIDGE)).splitlines()
            switches[node.name] = SimulatedSwitch.of(
                [parse_flow(line) for line in flows if "actions=" in line],
                [parse_group(line) for line in groups if "group_id=" in line],
            )
            tunnels = self.lab.status(node.name)["tunnels"]
            assert isinstance(tunnels, list)
            for tunnel in tunnels:
                ends[node.name, self._node_at(tunnel["remoteIP"]).name] = tunnel["ofport"]
        tunnels = {(a, number): (b, ends[b, a]) for (a, b), number in ends.items()}
        kind = Datapath.USERSPACE if self.lab.userspace else Datapath.KERNEL
        return Network(switches=switches, tunnels=tunnels, datapath=kind)

    def _node_at(self, address: str) -> Node:
        return next(node for _, node in self.lab.topology.nodes() if str(node.address) == address)


def _addresses(cluster: Cluster) -> Iterator[IPv4Address]:
    for service in cluster.services:
        yield service.cluster_ip
    for node in cluster.nodes:
        yield node.address
        yield from (pod.address for pod in node.pods)
        if node.pod_cidr is not None:
            yield node.pod_cidr[1]


def _is_comparable(packet: Packet) -> bool:
    """Tell whether packets and simulator can be compared."""
    bfd = packet.eth_dst == BFD_MAC or BFD_PORT in (packet.src_port, packet.dst_port)
    whole = packet.fragment.value == 0 and packet.proto != IP_SCTP
    return whole and not bfd and packet.eth_type != 0x8100 and (packet.src is not None or packet.eth_dst != PLAIN)


def packet_classes(field: PacketRange) -> tuple[AttackClass, ...]:
    """Return the classes of attacks that are judged by packets of a lab."""
    return (
        AttackClass(
            name=NAME,
            title="a member's gateway sends any packets through its tunnel, in a lab",
            grammar=field.grammar(),
            judge=field.judge,
            property="only packets of the cluster arrive, and they arrive just where the simulator delivers them",
        ),
        AttackClass(
            name=NAME,
            title="Pods send tunnel packets to Nodes, in a lab",
            grammar=field.pod_grammar(),
            judge=field.judge_pods,
            property="nothing that a Pod sends to a Node comes out of a tunnel",
        ),
    )
