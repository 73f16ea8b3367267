"""The grammar of packets inside tunnels, and of tunnel packets, in the words of a network engineer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from ipaddress import IPv4Address

from hypothesis import strategies as st

from flows.fields import IP_ICMP, IP_SCTP, IP_TCP, IP_UDP, TCP_BITS
from flows.pipeline import registers as r
from flows.simulator import IpFragment, Packet
from flows.simulator.packet import ACK, ECHO_REPLY, ECHO_REQUEST, FIN, PROTOCOL_NAMES, RST, SYN, UNREACHABLE
from flows.text import mac_text
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.net import Address
from tests.attacks.generated import places
from tests.attacks.generated.netfilter import Datagram
from tests.attacks.generated.places import CLUSTERS, NODES, PLACES, POD_PORT, SERVICE_PORT

PLAIN = mac_text(r.MAC_PLAIN)
MACS = tuple(
    mac_text(mac)
    for mac in (
        *(r.MAC_PLAIN, r.MAC_TRANSLATED, r.MAC_REPLY, r.MAC_ASK, r.MAC_ASK_ALL, r.MAC_NOT_HERE, r.MAC_HERE),
        *(r.MAC_RESTORE, r.MAC_PROBE, r.MAC_ANSWER, r.HOST_MAC, 0x002320000001, 0xFFFFFFFFFFFF),
    )
)
SOURCE_MACS = tuple(mac_text(mac) for mac in (r.HOST_MAC, r.MAC_SERVICE | 1, r.MAC_REJECT_IN, 0x020000000001))
ETHERNET_TYPES = (0x0806, 0x86DD, 0x8100, r.ETHERTYPE_AGENTS, r.ETHERTYPE_PROBE)  # ARP, IPv6, VLAN and the agents'
FLAGS = (SYN, SYN | ACK, ACK, RST, RST | ACK, FIN | ACK, TCP_BITS["urg"])
VNIS = (0, 7, r.IDENTITY_UNKNOWN)
PORTS = (SERVICE_PORT, POD_PORT, 40000, 3784, places.GENEVE)
OUTSIDE_HOSTS = (places.OUTSIDE, IPv4Address("10.255.255.255"))
ELSEWHERE = (*OUTSIDE_HOSTS, *map(IPv4Address, ("169.254.77.1", "127.0.0.1", "224.0.0.1", "0.0.0.0")))
ICMP_ERRORS = (3, 4, 5, 11, 12)


@cache
def addresses(*clusters: str) -> tuple[IPv4Address, ...]:
    """Return addresses of clusters: Pods, the CNI's bridges, ClusterIPs and Nodes."""
    return tuple(
        address
        for cluster in clusters
        for address in (
            places.service_address(cluster),
            *(places.pod_address(cluster, node, host) for node in NODES for host in (5, 1)),
            *(places.node_address(cluster, node) for node in NODES),
        )
    )


@cache
def _to(chosen: tuple[IPv4Address, ...]) -> st.SearchStrategy[IPv4Address]:
    return st.sampled_from(chosen)


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The addresses of which packets are made: Pods, and everything with an address."""

    pods: tuple[IPv4Address, ...]
    everything: tuple[IPv4Address, ...]


HOSTS = Hosts(
    pods=tuple(places.pod_address(cluster, node) for cluster in CLUSTERS for node in NODES),
    everything=(*addresses(*CLUSTERS), *ELSEWHERE),
)


@st.composite
def inner_packets(
    draw: st.DrawFn,
    *,
    sources: tuple[IPv4Address, ...] = (),
    destinations: tuple[IPv4Address, ...] = (),
    hosts: Hosts = HOSTS,
) -> Packet:
    """Draw a packet inside a tunnel; a third are datagrams from Pod to Pod.

    `sources`, `destinations`: possible addresses; default: all.
    """
    kind = draw(st.sampled_from(("ordinary", "ordinary", "any", "any", "other MACs", "not IPv4")))
    eth_dst, eth_src = PLAIN, SOURCE_MACS[0]
    if kind == "ordinary":
        return Packet(
            in_port=0,
            src=draw(_to(sources or hosts.pods)),
            dst=draw(_to(destinations or hosts.pods)),
            proto=IP_UDP,
            src_port=40000,
            dst_port=POD_PORT,
            eth_src=eth_src,
            eth_dst=eth_dst,
        )
    if kind != "any":
        eth_dst, eth_src = draw(st.sampled_from(MACS)), draw(st.sampled_from(SOURCE_MACS))
    vni = draw(st.sampled_from(VNIS))
    if kind == "not IPv4":
        eth_type = draw(st.sampled_from(ETHERNET_TYPES))
        return Packet(in_port=0, eth_type=eth_type, tun_id=vni, eth_src=eth_src, eth_dst=eth_dst)
    protocol = draw(st.sampled_from((IP_UDP, IP_TCP, IP_ICMP, IP_SCTP)))
    packet = Packet(
        in_port=0,
        src=draw(_to(sources or hosts.everything)),
        dst=draw(_to(destinations or hosts.everything)),
        proto=protocol,
        src_port=draw(st.sampled_from(PORTS)),
        dst_port=draw(st.sampled_from(PORTS)),
        ttl=draw(st.sampled_from((64, 2, 1, 255))),
        tun_id=vni,
        eth_src=eth_src,
        eth_dst=eth_dst,
    )
    if protocol == IP_TCP:
        return replace(packet, tcp_flags=draw(st.sampled_from(FLAGS)))
    if protocol == IP_UDP:
        return replace(packet, fragment=draw(st.sampled_from((IpFragment.NO, IpFragment.FIRST, IpFragment.LATER))))
    if protocol == IP_ICMP:
        return draw(_icmp(packet, hosts))
    return packet


@st.composite
def _icmp(draw: st.DrawFn, packet: Packet, hosts: Hosts) -> Packet:
    kind = draw(st.sampled_from((ECHO_REQUEST, ECHO_REPLY, *ICMP_ERRORS)))
    if kind not in ICMP_ERRORS:
        return replace(packet, icmp_type=kind, dst_port=0)
    return draw(icmp_errors(src=packet.src, mac=packet.eth_dst, hosts=hosts))


@st.composite
def icmp_errors(
    draw: st.DrawFn,
    *,
    src: Address | None,
    mac: str = PLAIN,
    quoted: Packet | None = None,
    hosts: Hosts = HOSTS,
) -> Packet:
    """Draw an ICMP error of `src` to the sender of the packet that it quotes, by default any packet."""
    if quoted is None:
        quoted = Packet(
            in_port=0,
            src=draw(_to(hosts.everything)),
            dst=draw(_to(hosts.everything)),
            proto=draw(st.sampled_from((IP_TCP, IP_UDP))),
            src_port=draw(st.sampled_from(PORTS)),
            dst_port=draw(st.sampled_from(PORTS)),
        )
    return Packet(
        in_port=0,
        src=src,
        dst=quoted.src,
        proto=IP_ICMP,
        icmp_type=draw(st.sampled_from((UNREACHABLE, *ICMP_ERRORS))),
        icmp_code=draw(st.sampled_from((3, 4, 0, 13))),
        quoted=quoted,
        eth_dst=mac,
    )


def described(packet: Packet) -> str:
    """Return a packet as text for a person."""
    if packet.src is None:
        return f"a frame of Ethernet type 0x{packet.eth_type:04x} to {packet.eth_dst}, VNI {packet.tun_id}"
    text = f"{PROTOCOL_NAMES.get(packet.proto, str(packet.proto)).upper()} {packet.src} > {packet.dst}"
    if packet.proto in (IP_TCP, IP_UDP, IP_SCTP):
        protocol = PROTOCOL_NAMES[packet.proto].upper()
        text = f"{protocol} {packet.src}:{packet.src_port} > {packet.dst}:{packet.dst_port}"
    if packet.proto == IP_TCP:
        flags = [name for name, bit in TCP_BITS.items() if packet.tcp_flags & bit]
        text += f" [{' '.join(flags)}]"
    if packet.proto == IP_ICMP:
        text += f" type {packet.icmp_type} code {packet.icmp_code}"
    if packet.fragment is not IpFragment.NO:
        text += f", {packet.fragment.name.lower()} fragment"
    if packet.quoted is not None:
        text += f", quoting [{described(packet.quoted)}]"
    macs = "" if packet.eth_dst == PLAIN else f", MAC {packet.eth_src} > {packet.eth_dst}"
    return f"{text}{macs}, VNI {packet.tun_id}, TTL {packet.ttl}"


@dataclass(frozen=True, kw_only=True)
class TunnelPacket:
    """A datagram to a tunnel port with a packet inside. `sender`: the Node whose Pod sends it; None: a router."""

    datapath: DatapathType
    encrypted: bool = False
    sender: places.Place | None
    source: IPv4Address
    destination: IPv4Address
    port: int
    ttl: int
    inner: Packet
    rule: places.KubeProxyRule | None = None

    def __str__(self) -> str:
        sender = "a machine behind a router" if self.sender is None else f"a Pod on {self.sender}"
        kind = f"({self.datapath} datapath, tunnels {'' if self.encrypted else 'not '}encrypted)"
        text = (
            f"{sender} sends UDP {self.source} > {self.destination}:{self.port}, TTL {self.ttl} {kind};\n"
            f"    inside Geneve: {described(self.inner)}"
        )
        return text if self.rule is None else f"{text};\n    {self.rule}"

    @property
    def datagram(self) -> Datagram:
        """The outer datagram, where it is sent."""
        device, device_kind = ("eth0", "") if self.sender is None else ("veth1", "veth")
        return Datagram(
            source=self.source,
            destination=self.destination,
            port=self.port,
            ttl=self.ttl,
            device=device,
            device_kind=device_kind,
        )


@cache
def node_addresses() -> tuple[IPv4Address, ...]:
    """Return all addresses of Nodes, also those at which no tunnel ends, and the ends of encrypted tunnels."""
    ends = (places.endpoint(place) for place in PLACES if place.gateway)
    return (*(address for place in PLACES for address in place.addresses), *ends)


@st.composite
def tunnelled(draw: st.DrawFn, source: IPv4Address, destination: IPv4Address) -> Packet:
    """Draw a packet for a tunnel between two addresses; half of them are such that their Nodes would accept it."""
    sender, receiver = places.owner_of(source), places.owner_of(destination)
    if not sender or not receiver or draw(st.booleans()):
        return draw(inner_packets())
    # Between Nodes of a cluster are packets of others.
    sources = addresses(
        *(cluster for cluster in CLUSTERS if sender == receiver != cluster or cluster == sender != receiver)
    )
    return draw(inner_packets(sources=sources, destinations=addresses(receiver)))
