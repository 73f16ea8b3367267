"""Worlds to try the pipeline in: clusters of Nodes with Pods and Services, and their network of switches.

A world is a plain value. `network` builds every Node's pipeline with `flows.pipeline`, as the agent's core would,
and joins the switches. `worlds` draws random ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from ipaddress import IPv4Address, IPv4Network
from types import SimpleNamespace

from hypothesis import strategies as st

from flows import pipeline
from flows.fields import IP_ICMP, IP_TCP, IP_UDP
from flows.flow import Flow, Group
from flows.pipeline.prefixes import address_in_bridge, address_in_kernel
from flows.pipeline.registers import IDENTITY_UNKNOWN, TOS_REPAIRED
from flows.simulator import Packet, SimulatedSwitch
from flows.simulator.packet import ACK, ECHO_REQUEST, SYN
from mcagent.core.addresses.underlay import mapped_addresses
from mcagent.core.fragments.build import snat_ports
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import DEFAULT_PORTS, TunnelType
from mcagent.model.net import PodPrefix
from tests.worlds.switch_network import Network

GENEVE = DEFAULT_PORTS[TunnelType.GENEVE]
ZONES = SimpleNamespace(arrival=100, service=101, snat=102, restored=103)


def mapped(gateway: IPv4Address) -> IPv4Address:
    """Return the address of a gateway in the kernels of other clusters' Nodes."""
    return next(mapped_addresses(gateway))


PLAIN, TRANSLATED, REPLY = (f"aa:bb:cc:dd:ee:f{n}" for n in range(3))  # see flows.pipeline.registers
ASK, ASK_ALL, NOT_HERE, HERE = (f"aa:bb:cc:dd:ee:f{n}" for n in range(5, 9))
HOST_MAC = "0a:6d:63:00:00:01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A Pod, or a host-network process: an address on a Node."""

    cluster: str
    node: str
    address: IPv4Address
    published: bool  # remote clusters may reach and see it


@dataclass(frozen=True, kw_only=True)
class Node:
    """A Node. Beside its Pod CIDR it has one Pod with an address from elsewhere, as cloud CNIs give them."""

    name: str
    cluster: str
    gateway: bool
    address: IPv4Address
    pod_cidr: IPv4Network
    other_pod: IPv4Address

    @property
    def rank(self) -> int:
        """A number below 40 that no other Node of the world has."""
        return 10 * "abcd".index(self.cluster) + int(self.name[2:])

    @cached_property
    def networks(self) -> tuple[IPv4Network, ...]:
        """What is delivered to this Node and may come from it."""
        return (self.pod_cidr, IPv4Network(self.address), IPv4Network(self.other_pod))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One port of an exported Service; endpoints are addresses of Pods with their ports."""

    cluster: str
    address: IPv4Address
    protocol: int
    port: int
    affinity: bool
    endpoints: tuple[tuple[IPv4Address, int], ...]
    old_endpoints: tuple[tuple[IPv4Address, int], ...] = ()  # keep their connections, and get no new ones


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster. `publishes`: its Pod CIDR is told to the others, or `virtual_cidr` in its place."""

    name: str
    number: int
    nodes: tuple[Node, ...]
    services: tuple[Service, ...]
    pod_cidr: IPv4Network
    service_cidr: IPv4Network
    publishes: bool
    virtual_cidr: IPv4Network | None = None

    @property
    def prefixes(self) -> tuple[PodPrefix, ...]:
        """The Pod CIDR that the bridge translates."""
        return () if self.virtual_cidr is None else (PodPrefix(real=self.pod_cidr, virtual=self.virtual_cidr),)

    @property
    def published_cidr(self) -> IPv4Network:
        """The Pod CIDR as other clusters know it."""
        return self.virtual_cidr or self.pod_cidr

    def abroad(self, address: IPv4Address) -> IPv4Address:
        """Return the address of a Pod as other clusters know it."""
        return IPv4Address(address_in_bridge(address, self.prefixes))

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """Pods of every Node: two of its Pod CIDR, one from elsewhere, and the Node itself."""
        addresses = []
        for node in self.nodes:
            first = node.pod_cidr.network_address
            for address in (first + 5, first + 6, node.other_pod, node.address):
                published = self.publishes and address in self.pod_cidr
                addresses.append(Pod(cluster=self.name, node=node.name, address=address, published=published))
        return tuple(addresses)

    @property
    def gateways(self) -> tuple[Node, ...]:
        """The Nodes that are gateways."""
        return tuple(node for node in self.nodes if node.gateway)

    def shares_endpoints(self, service: Service) -> bool:
        """Tell whether another Service leads to one of its endpoints."""
        other_services = (
            other for other in self.services if other is not service and other.protocol == service.protocol
        )
        return any(not set(other.endpoints).isdisjoint(service.endpoints) for other in other_services)

    @property
    def told(self) -> tuple[IPv4Network, ...]:
        """The CIDRs that other clusters learn."""
        return (self.service_cidr, *([self.published_cidr] if self.publishes else []))


@dataclass(frozen=True, kw_only=True)
class World:
    """Clusters that know of each other. `pod_to_pod` is off in none of them.

    `trusted` and `standby` are tunnels by the Node that has it and the Node that it leads to. With
    an `order` (names of Nodes) all gateways are used in that order, instead of all together.
    """

    clusters: tuple[Cluster, ...]
    trusted: frozenset[tuple[str, str]] = frozenset()
    standby: frozenset[tuple[str, str]] = frozenset()
    order: tuple[str, ...] = ()
    userspace_conntrack: bool = True  # see `pipeline.Env`
    any_snat_port: bool = False  # SNAT has no range of ports: which one conntrack chooses there is not simulated
    identities: bool = False  # tunnels carry label identities: each Pod has a number of its own
    rules: tuple[pipeline.PolicyRule, ...] = ()  # of policies, each of a level of its own

    def identity(self, pod: Pod) -> int:
        """Return the number of a Pod; that for "unknown" of a host-network process."""
        if pod.address == self.nodes[pod.node].address:
            return IDENTITY_UNKNOWN
        return (self.cluster(pod.cluster).number << 16) + (int(pod.address) & 0xFFFF)

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """All Nodes by name."""
        return {node.name: node for cluster in self.clusters for node in cluster.nodes}

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """All Pods of all clusters."""
        return tuple(pod for cluster in self.clusters for pod in cluster.pods)

    @cached_property
    def services(self) -> tuple[Service, ...]:
        """All exported Services of all clusters."""
        return tuple(service for cluster in self.clusters for service in cluster.services)

    def having(self, changed: Cluster) -> World:
        """Return the world with this cluster in the place of the one with its name."""
        return replace(self, clusters=tuple(changed if c.name == changed.name else c for c in self.clusters))

    def cluster(self, name: str) -> Cluster:
        """Return a cluster by its name."""
        return next(cluster for cluster in self.clusters if cluster.name == name)

    def accepted(self, importing: Cluster, exporting: Cluster) -> tuple[IPv4Network, ...]:
        """Return the CIDRs of `there` that `here` uses: none that it has itself, none that another has first."""
        return self._accepted[importing.name, exporting.name]

    @cached_property
    def _accepted(self) -> dict[tuple[str, str], tuple[IPv4Network, ...]]:
        networks_of: dict[tuple[str, str], tuple[IPv4Network, ...]] = {}
        for importing in self.clusters:
            occupied = [importing.service_cidr, importing.pod_cidr, importing.published_cidr]
            for other in self.clusters:
                if other is not importing:
                    mine = tuple(net for net in other.told if not any(net.overlaps(t) for t in occupied))
                    networks_of[importing.name, other.name] = mine
                    occupied += mine
        return networks_of

    def snat(self, importing: Cluster, exporting: Cluster) -> bool:
        """Tell whether connections from `here` to `there` hide behind a gateway.

        They do unless both publish their Pods, and nobody could mistake them: neither has addresses that some
        other cluster has told everybody, too.
        """
        if (
            not (importing.publishes and exporting.publishes)
            or self.accepted(importing, exporting) != exporting.told
        ):
            return True
        return any(
            importing.published_cidr.overlaps(net) for c in self.clusters if c is not importing for net in c.told
        )

    def reaches(self, pod: Pod, other: Pod) -> bool:
        """Tell whether `pod` may open connections to `other` of another cluster."""
        nets = self.accepted(self.cluster(pod.cluster), self.cluster(other.cluster))
        return other.published and any(self.abroad(other) in net for net in nets)

    def abroad(self, pod: Pod) -> IPv4Address:
        """Return the address of a Pod as other clusters know it."""
        return self.cluster(pod.cluster).abroad(pod.address)

    def keeps_source(self, pod: Pod, exporting: str) -> bool:
        """Tell whether cluster `there` sees the Pod's own address."""
        return pod.published and not self.snat(self.cluster(pod.cluster), self.cluster(exporting))

    @cached_property
    def ports(self) -> dict[tuple[str, str], int]:
        """The number of the tunnel's port, by the Node that has it and the Node that it leads to."""
        numbers: dict[tuple[str, str], int] = {}
        for node in self.nodes.values():
            for peer in self.nodes.values():
                local = peer.cluster == node.cluster
                if peer is not node and (
                    (node.gateway and peer.gateway) or (local and (node.gateway or peer.gateway))
                ):
                    # The same whoever else there is, as the agent keeps numbers, and another on every Node.
                    numbers[node.name, peer.name] = 2 + (peer.rank + 5 * node.rank) % 40
        return numbers

    def peer(self, node: Node, port: int) -> Node | None:
        """Return the Node that a tunnel port leads to; None for the host port."""
        names = (b for (a, b), number in self.ports.items() if a == node.name and number == port)
        return next((self.nodes[name] for name in names), None)

    def env(self, node: Node) -> pipeline.Env:
        """Return what all parts of a Node's pipeline share."""
        cluster = self.cluster(node.cluster)
        other_ports = sorted(self.ports[node.name, g.name] for g in cluster.gateways if g is not node)
        datapath = DatapathType.NETDEV if self.userspace_conntrack else DatapathType.SYSTEM
        return pipeline.Env(
            gateway=node.gateway,
            ct_zone_base=ZONES.arrival,
            local_gateways=tuple(other_ports),
            own_gateway_ips=(node.address,) if node.gateway else (),
            service_cidrs=(cluster.service_cidr,),
            published_pods=(cluster.published_cidr,) if cluster.publishes else (),
            prefixes=cluster.prefixes,
            userspace_conntrack=self.userspace_conntrack,
            snat_ports=(None, None) if self.any_snat_port else snat_ports(datapath, GENEVE),
            identities=self.identities,
            mtu=1450,
            ended_meter=0xFFFF,
        )

    def ordered(self, gateways: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return gateways in the order in which they are to be used; as they come, if there is none."""
        return tuple(sorted(gateways, key=lambda g: self.order.index(g.name))) if self.order else gateways

    def choice(self, node: Node) -> pipeline.NextHopGroup:
        """Return the gateways of its own cluster that a Node chooses from."""
        other_gateways = (g for g in self.ordered(self.cluster(node.cluster).gateways) if g is not node)
        ways = (self.next_hop(node.name, g.name) for g in other_gateways)
        return pipeline.NextHopGroup(next_hops=tuple(filter(None, ways)), ordered=bool(self.order))

    def next_hop(self, *end: str) -> pipeline.NextHop | None:
        """Return the tunnel of one Node to another, if there is one."""
        if end not in self.ports:
            return None
        watched, standby = end not in self.trusted, end in self.standby
        return pipeline.NextHop(ofport=self.ports[end], watched=watched, standby=standby)

    def parts(self, node: Node) -> Iterator[pipeline.Entries]:
        """Yield the parts of a Node's pipeline."""
        env, own_cluster = self.env(node), self.cluster(node.cluster)
        yield _base(env, self.choice(node))
        for other_cluster in self.clusters:
            if other_cluster is not own_cluster:
                remotes = (
                    pipeline.RemoteGateway(address=g.address, next_hop=self.next_hop(node.name, g.name))
                    for g in self.ordered(other_cluster.gateways)
                )
                yield _cluster(
                    env,
                    pipeline.RemoteCluster(
                        id=other_cluster.number,
                        cidrs=self.accepted(own_cluster, other_cluster),
                        gateways=tuple(remotes),
                        snat=self.snat(own_cluster, other_cluster),
                        ordered=bool(self.order),
                        mapped=tuple((g.address, mapped(g.address)) for g in other_cluster.gateways),
                        meter=other_cluster.number,
                    ),
                )
        for number, peer in enumerate(own_cluster.nodes, 1):
            if peer is node or node.gateway:
                ofport = 1 if peer is node else self.ports[node.name, peer.name]
                yield _node(
                    env,
                    pipeline.LocalNode(id=number, ofport=ofport, gateway=peer.gateway, networks=peer.networks),
                )
        if self.identities:
            yield from self.identity_parts(node)
        yield _endpoints(
            tuple(
                pipeline.ServiceEndpoint(address=a, port=p)
                for service in own_cluster.services
                for a, p in (*service.endpoints, *service.old_endpoints)
                if service.protocol == IP_TCP and any(a in net for net in node.networks)
            ),
            own_cluster.prefixes,
        )
        for number, service in enumerate(own_cluster.services, 1):
            if node.gateway:
                yield _service(
                    env,
                    pipeline.LocalService(
                        id=number,
                        address=service.address,
                        protocol=service.protocol,
                        port=service.port,
                        client_ip_affinity=service.affinity,
                        endpoints=tuple(self.endpoint(node, a, p) for a, p in service.endpoints),
                        old_endpoints=tuple(self.endpoint(node, a, p) for a, p in service.old_endpoints),
                        shares_endpoints=own_cluster.shares_endpoints(service),
                    ),
                )

    def identity_parts(self, node: Node) -> Iterator[pipeline.Entries]:
        """Yield what marks packets of a Node's Pods, their policies, and which numbers it believes of others."""
        for pod in self.pods:
            number = self.identity(pod)
            if pod.node == node.name and number != IDENTITY_UNKNOWN:
                yield _pod_identity(self.env(node), pod.address, number)
        for rule in self.rules:
            pods = tuple(pod for pod in rule.pods if any(pod in net for net in node.networks))
            yield _rules((replace(rule, pods=pods),), self.cluster(node.cluster).prefixes)
        for other_cluster in self.clusters if node.gateway else ():
            if other_cluster.name != node.cluster:
                numbers = {self.identity(pod) for pod in other_cluster.pods} - {IDENTITY_UNKNOWN}
                yield _claimed_identities(other_cluster.number, tuple(sorted(numbers)))

    def quoting_gateways(self, error: Packet, cluster: str = "") -> Packet:
        """Return an ICMP error of a kernel of `cluster` as nft sends it to the bridge.

        It quotes the gateway's own address, and the Pod's virtual one.
        """
        sources = {mapped(g.address): g.address for cluster in self.clusters for g in cluster.gateways}
        assert error.quoted is not None
        source, destination = error.quoted.src, error.quoted.dst
        assert isinstance(source, IPv4Address)
        assert isinstance(destination, IPv4Address)
        if cluster:
            destination = self.cluster(cluster).abroad(destination)
        quoted = replace(error.quoted, src=sources.get(source, source), dst=destination)
        return replace(error, tos=TOS_REPAIRED, quoted=quoted)

    def quoting_pods(self, error: Packet, cluster: str) -> Packet:
        """Return an ICMP error to a kernel of `cluster` as nft changes it: it quotes the real address."""
        assert error.quoted is not None
        assert error.quoted.src is not None
        source = address_in_kernel(error.quoted.src, self.cluster(cluster).prefixes)
        return replace(error, quoted=replace(error.quoted, src=source))

    def endpoint(self, node: Node, address: IPv4Address, port: int) -> pipeline.ServiceEndpoint:
        """Return an endpoint as a gateway sees it: with the tunnel to its Node, where that is watched."""
        host = next(n for n in self.cluster(node.cluster).nodes if any(address in net for net in n.networks))
        watched = host is not node and (node.name, host.name) not in self.trusted
        ofport = self.ports[node.name, host.name] if watched else None
        return pipeline.ServiceEndpoint(address=address, port=port, ofport=ofport)

    def entries(self, node: Node) -> tuple[tuple[Flow, ...], tuple[Group, ...]]:
        """Return all flows and groups of a Node's bridge."""
        parts = tuple(self.parts(node))
        flows = tuple(flow for part in parts for flow in part.flows)
        return flows, tuple(group for part in parts for group in part.groups)

    @cached_property
    def network(self) -> Network:
        """The switches of all Nodes, joined by their tunnels."""
        tunnels = {(a, n): (b, self.ports[b, a]) for (a, b), n in self.ports.items()}
        return Network(switches=Switches(self), tunnels=tunnels)


# Worlds that differ in one thing have most of their entries in common.
_CACHE = lru_cache(maxsize=1024)
_base = _CACHE(pipeline.base)
_cluster = _CACHE(pipeline.cluster)
_node = _CACHE(pipeline.node)
_service = _CACHE(pipeline.service)
_endpoints = _CACHE(pipeline.endpoints)
_pod_identity = _CACHE(pipeline.pod_identity)
_rules = _CACHE(pipeline.rules)
_claimed_identities = _CACHE(pipeline.claimed_identities)


class Switches(dict[str, SimulatedSwitch]):
    """The switches of a world's Nodes by name, each built when the first packet comes to it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __missing__(self, name: str) -> SimulatedSwitch:
        self[name] = SimulatedSwitch.of(*self.world.entries(self.world.nodes[name]))
        return self[name]


def from_kernel(packet: Packet) -> Packet:
    """Return the packet as a Node's kernel hands it to the bridge: by the host port, to the virtual neighbour."""
    return replace(packet, in_port=1, eth_src=HOST_MAC, eth_dst=PLAIN)


@st.composite
def worlds(
    draw: st.DrawFn, *, min_clusters: int = 1, max_clusters: int = 4, plain: bool = False, virtual: bool = False
) -> World:
    """Draw a world. `plain` (every second one anyway): no overlap, all published, so that no Pod needs SNAT.

    `virtual`: clusters have the same Pod CIDR, and most of them a virtual one.
    """
    plain = plain or draw(st.booleans())
    clusters: list[Cluster] = []
    for index in range(draw(st.integers(min_clusters, max_clusters))):
        name = "abcd"[index]
        block = index if plain else draw(st.integers(0, 3))
        virtual_cidr = IPv4Network(f"172.{16 + index}.0.0/16") if virtual and draw(st.integers(0, 3)) else None
        block = 50 if virtual_cidr is not None else block
        pod_cidr = IPv4Network(f"10.{block}.0.0/16")
        gateways, workers = draw(st.integers(1, 3)), draw(st.integers(0, 3))
        nodes = tuple(
            Node(
                name=f"{name}{'g' if place < gateways else 'w'}{place}",
                cluster=name,
                gateway=place < gateways,
                address=IPv4Address(f"192.168.{index}.{place + 1}"),
                pod_cidr=IPv4Network(f"10.{block}.{place}.0/24"),
                other_pod=IPv4Address(f"100.64.{index}.{place + 1}"),
            )
            for place in range(gateways + workers)
        )
        addresses = [a for n in nodes for a in (*(n.pod_cidr.network_address + k for k in (5, 6)), n.other_pod)]
        endpoint = st.tuples(st.sampled_from(addresses), st.sampled_from((80, 8080)))
        service_cidr = IPv4Network(f"10.{100 + index}.0.0/16")
        services = tuple(
            Service(
                cluster=name,
                address=service_cidr.network_address + 10 + number // 2,  # two ports of one Service
                protocol=draw(st.sampled_from((6, 17))),
                port=443 + number,
                affinity=draw(st.booleans()),
                endpoints=tuple({draw(endpoint) for _ in range(draw(st.sampled_from((0, 1, 2, 3, 4, 4))))}),
            )
            for number in range(draw(st.integers(0, 3)))
        )
        clusters.append(
            Cluster(
                name=name,
                number=index + 1,
                nodes=nodes,
                services=services,
                pod_cidr=pod_cidr,
                service_cidr=service_cidr,
                publishes=plain or draw(st.booleans()),
                virtual_cidr=virtual_cidr,
            )
        )
    return World(clusters=tuple(clusters), userspace_conntrack=draw(st.booleans()))


OUTSIDERS = tuple(IPv4Address(a) for a in ("8.8.8.8", "10.250.0.1", "169.254.77.1", "224.0.0.5", "127.0.0.1"))


QUESTIONS = (ASK, ASK_ALL)


LOOKUPS = (*QUESTIONS, NOT_HERE, HERE)


@st.composite
def strange(draw: st.DrawFn, world: World, node: Node, *, begins: bool = False) -> Packet:
    """Draw a packet of addresses that mean something somewhere. `begins`: it may open a connection."""
    peers = [number for (name, _), number in world.ports.items() if name == node.name]
    pods = [pod.address for pod in world.pods]
    addresses = [*pods, *(s.address for s in world.services), *OUTSIDERS]
    addresses += [c.service_cidr.network_address + 200 for c in world.clusters]
    proto = draw(st.sampled_from((IP_TCP, IP_TCP, IP_UDP, IP_ICMP)))
    flags = (SYN, ACK) if begins else (SYN, ACK, SYN | ACK)
    return Packet(
        in_port=draw(st.sampled_from([1, *peers])),
        src=draw(st.sampled_from([*pods, *OUTSIDERS])),
        dst=draw(st.sampled_from(addresses)),
        proto=proto,
        src_port=draw(st.integers(1, 65535)),
        dst_port=0 if proto == IP_ICMP else draw(st.sampled_from((443, 444, 445, 80, 8080, 22))),
        icmp_type=ECHO_REQUEST if proto == IP_ICMP else 0,
        tcp_flags=draw(st.sampled_from(flags)),
        eth_src=draw(st.sampled_from((HOST_MAC, HOST_MAC, *(f"0a:6d:00:00:00:0{n}" for n in (1, 2, 3))))),
        eth_dst=draw(st.sampled_from((PLAIN, PLAIN, TRANSLATED, REPLY, *LOOKUPS, "02:00:00:00:00:99"))),
    )
