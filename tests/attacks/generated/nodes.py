"""Three clusters whose Nodes have what the agent's compiler makes for them: nft rules, tunnels and flows.

Owns the way of a datagram through the kernels of Nodes (nft, the CNI's masquerade, a rule of kube-proxy) into the
tunnel that takes it. `without` takes protections out of what was compiled. Must not know attacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from ipaddress import IPv4Address, IPv4Network

from flows.simulator import Datapath, Packet, SimulatedSwitch
from flows.simulator.view import mac_number
from mcagent.core.fragments.kernel import HOST_ADDRESS
from mcagent.model.config import Config, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import FlowEntry, NftChain, Resource, TunnelPort
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.net import Address
from mcagent.model.objects import ApiObject, IpProtocol, ServicePort, WireGuardInfo
from mcagent.trace.simulator import SimulatedNode, simulate
from tests.attacks.generated.netfilter import Datagram, Netfilter
from tests.attacks.generated.places import (
    BRIDGE_HOST,
    BROADCAST_HOST,
    CLAIMANT,
    CLUSTERS,
    GENEVE,
    OUTSIDE,
    PLACES,
    POD_PORT,
    SERVICE_PORT,
    WIREGUARD,
    KubeProxyRule,
    Place,
    endpoint,
    number_of,
    pod_address,
    service_address,
)
from tests.worlds import core_inputs as inputs
from tests.worlds.switch_network import Network

Weakening = Callable[[Resource], Resource | None]
_weakenings: list[Weakening] = []


@contextmanager
def without(weakening: Weakening) -> Iterator[None]:
    """Compile Nodes with another resource in the place of each, or none (None)."""
    _weakenings.append(weakening)
    try:
        yield
    finally:
        _weakenings.remove(weakening)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Where a datagram ends: in the tunnel `port` of a Node, or (None) in a Pod to which a Service leads there."""

    place: Place
    port: int | None


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """All Nodes of the clusters, compiled."""

    nodes: dict[Place, SimulatedNode]
    links: dict[tuple[str, int], tuple[str, int]]  # tunnels between switches, as of the code with all protections
    datapath: DatapathType
    encrypted: bool

    @cached_property
    def network(self) -> Network:
        """The switches of all Nodes, without connections."""
        switches = _Switches({place.name: node for place, node in self.nodes.items()})
        kind = Datapath.KERNEL if self.datapath is DatapathType.SYSTEM else Datapath.USERSPACE
        return Network(switches=switches, tunnels=self.links, datapath=kind)

    def addresses(self, place: Place) -> tuple[IPv4Address, ...]:
        """Return the addresses on a Node's devices; with encryption, that of its WireGuard device, too."""
        return (*place.addresses, endpoint(place)) if self.encrypted and place.gateway else place.addresses

    @cached_property
    def places(self) -> dict[IPv4Address, Place]:
        """The Nodes by their addresses."""
        return {address: place for place in PLACES for address in self.addresses(place)}

    def netfilter(self, place: Place) -> Netfilter:
        """Return the nft tables of a Node, all of whose peers in its cluster were heard of on its link."""
        heard_of = {other.address for other in PLACES if other.cluster == place.cluster}
        return replace(self._netfilters[place], learned={"mct_on_link": heard_of})

    @cached_property
    def _netfilters(self) -> dict[Place, Netfilter]:
        return {place: self._netfilter(place) for place in PLACES}

    def _netfilter(self, place: Place) -> Netfilter:
        resources = (r for f in self.nodes[place].desired.fragments.values() for r in f.resources)
        local = (*self.addresses(place), pod_address(place.cluster, place.node, BRIDGE_HOST), HOST_ADDRESS)
        broadcast = pod_address(place.cluster, place.node, BROADCAST_HOST)
        types = dict.fromkeys(local, "local") | {broadcast: "broadcast"}
        return Netfilter.of(resources, lambda address: types.get(address, "unicast"))

    def ports(self, place: Place) -> tuple[TunnelPort, ...]:
        """Return the tunnels of a Node."""
        return tuple(self.nodes[place].tunnels.values())

    def port_from(self, place: Place, peer: Place) -> int | None:
        """Return the number of a Node's port for packets of a peer; None: it has none."""
        ends = (end for end, other in self.links.items() if other[0] == peer.name)
        return next((number for name, number in ends if name == place.name), None)

    def reaches_node(self, name: str, packet: Packet) -> bool:
        """Tell whether a packet that the bridge delivers at a Node is for the Node itself, and accepted."""
        netfilter = self.netfilter(next(place for place in PLACES if place.name == name))
        assert isinstance(packet.src, IPv4Address)
        assert isinstance(packet.dst, IPv4Address)
        datagram = Datagram(
            source=packet.src,
            destination=packet.dst,
            port=packet.dst_port,
            device="mc-gw0",
            mac=mac_number(packet.eth_src),
        )
        return netfilter.address_type(packet.dst) != "unicast" and netfilter.passes("prerouting", datagram)

    def accepts_answer(self, place: Place, packet: Packet, pod: IPv4Address | None) -> bool:
        """Tell whether a Node takes what its bridge delivers for the answer to a connection through its uplink.

        `pod`: whose connection that is, if the CNI translates its source.
        """
        assert isinstance(packet.src, IPv4Address)
        assert isinstance(packet.dst, IPv4Address)
        datagram = Datagram(
            source=packet.src,
            destination=pod or packet.dst,
            port=packet.dst_port,
            device="mc-gw0",
            mac=mac_number(packet.eth_src),
            answers=True,
            elsewhere=frozenset({packet.src}),
        )
        return self.netfilter(place).passes("prerouting", datagram)

    def enters_bridge(self, place: Place, datagram: Datagram) -> bool:
        """Tell whether the kernel of a Node forwards a datagram of a Pod there into the agent's bridge."""
        netfilter = self.netfilter(place)
        into_bridge = replace(datagram, out_device="mc-gw0")
        return all(netfilter.passes(hook, into_bridge) for hook in ("prerouting", "forward"))

    def leaves(self, place: Place, datagram: Datagram, rule: KubeProxyRule | None) -> Arrival | None:
        """Send a datagram of a Pod on a Node; return where it arrives.

        The CNI gives what leaves the Node the Node's address, unless it has an address of a peer already.
        """
        netfilter = self.netfilter(place)
        if not netfilter.passes("prerouting", datagram):
            return None
        translate(rule, place, datagram)
        if datagram.destination in self.addresses(place):
            return self._input(place, netfilter, datagram)
        if not netfilter.passes("forward", datagram):
            return None
        if datagram.source == pod_address(place.cluster, place.node):
            datagram.source = place.address
        return self.arrives(replace(datagram, device="eth0", device_kind="", tracked=True, translated=False), rule)

    def arrives(self, datagram: Datagram, rule: KubeProxyRule | None = None) -> Arrival | None:
        """Return where a datagram from the underlay ends; None: it is dropped, or no tunnel's."""
        place = self.places.get(datagram.destination)
        if place is None:
            return None
        netfilter = self.netfilter(place)
        if self.datapath is DatapathType.NETDEV:  # its uplink is a port of Open vSwitch: netfilter sees nothing
            return self._tunnel(place, datagram)
        if not netfilter.passes("prerouting", datagram):
            return None
        translate(rule, place, datagram)
        if datagram.destination not in self.addresses(place):
            return Arrival(place=place, port=None) if netfilter.passes("forward", datagram) else None
        return self._input(place, netfilter, datagram)

    def sends(self, place: Place, datagram: Datagram, rule: KubeProxyRule | None) -> Arrival | None:
        """Send a datagram of a Node itself, as its tunnels do; return where it arrives (`arrives`)."""
        if self.datapath is DatapathType.SYSTEM:
            netfilter = self.netfilter(place)
            if not netfilter.passes("output", datagram):
                return None
            translate(rule, place, datagram)
            if not netfilter.passes("postrouting", datagram):
                return None
            if datagram.translated and self.places.get(datagram.destination) is None:
                return Arrival(place=place, port=None)
        return self.arrives(replace(datagram, device="eth0", tracked=True, translated=False), rule)

    def _input(self, place: Place, netfilter: Netfilter, datagram: Datagram) -> Arrival | None:
        if self.datapath is DatapathType.NETDEV:
            return None  # no tunnel of the kernel listens
        return self._tunnel(place, datagram) if netfilter.passes("input", datagram) else None

    def _tunnel(self, place: Place, datagram: Datagram) -> Arrival | None:
        if datagram.port != GENEVE:
            return None
        for port in self.ports(place):
            if port.remote_ip == datagram.source and port.local_ip in (None, datagram.destination):
                return Arrival(place=place, port=port.ofport)
        return None


class _Switches(dict[str, SimulatedSwitch]):
    """The switches of Nodes by name, each built when the first packet comes to it."""

    def __init__(self, nodes: dict[str, SimulatedNode]) -> None:
        super().__init__()
        self._nodes = nodes

    def __missing__(self, name: str) -> SimulatedSwitch:
        self[name] = self._nodes[name].switch
        return self[name]


def translate(rule: KubeProxyRule | None, place: Place, datagram: Datagram) -> None:
    """Apply a rule of kube-proxy in prerouting or output (priority -100), which untracked packets do not pass."""
    if rule is None or rule.cluster != place.cluster or not datagram.tracked:
        return
    if (datagram.destination, datagram.port) == (rule.address, rule.port):
        datagram.destination, datagram.port, datagram.translated = rule.endpoint, rule.endpoint_port, True


def fleet(datapath: DatapathType, *, encrypted: bool = False, exposed: bool = False) -> Fleet:
    """Return the compiled Nodes, without the protections that are taken out. `exposed`: with `exposeNodes`."""
    return _fleet(datapath, encrypted, exposed, tuple(_weakenings))


@cache
def _fleet(datapath: DatapathType, encrypted: bool, exposed: bool, weakenings: tuple[Weakening, ...]) -> Fleet:
    nodes = {place: _compiled(place, datapath, encrypted, exposed) for place in PLACES}
    links = _links(nodes)
    for weakening in weakenings:
        nodes = {place: _weakened(node, weakening) for place, node in nodes.items()}
    return Fleet(nodes=nodes, links=links, datapath=datapath, encrypted=encrypted)


def _weakened(node: SimulatedNode, weakening: Weakening) -> SimulatedNode:
    fragments = {
        owner: replace(fragment, resources=tuple(filter(None, map(weakening, fragment.resources))))
        for owner, fragment in node.desired.fragments.items()
    }
    return replace(node, desired=replace(node.desired, fragments=fragments))


def _links(nodes: dict[Place, SimulatedNode]) -> dict[tuple[str, int], tuple[str, int]]:
    """Join the ports whose ends are each other's."""
    ends: dict[tuple[Address | None, Address | None], tuple[str, int]] = {
        (port.local_ip, port.remote_ip): (place.name, port.ofport)
        for place, node in nodes.items()
        for port in node.tunnels.values()
    }
    return {end: ends[remote, local] for (local, remote), end in ends.items() if (remote, local) in ends}


@cache
def _compiled(place: Place, datapath: DatapathType, encrypted: bool, exposed: bool) -> SimulatedNode:
    mode = TrafficEncryption.WIREGUARD if encrypted else TrafficEncryption.NONE
    config = Config(
        node_name=place.node,
        cluster_id=place.cluster,
        enable_pod_to_pod=True,
        encryption=mode,
        expose_nodes=exposed,
        imported_traffic="",
    )
    link = IPv4Network((place.address, 24), strict=False)
    facts = Facts(datapath=datapath, addresses=place.addresses, connected=(link,))
    if encrypted and place.gateway:
        facts = replace(facts, wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=_key(place))
    return simulate(inputs.snapshot(*_objects(place.cluster, encrypted)), facts, config)


def _key(place: Place) -> str:
    """Return a public key of a gateway: 32 bytes in base64."""
    return f"{'BCDEFGHIJ'[PLACES.index(place)] * 42}A="


def _objects(cluster: str, encrypted: bool) -> Iterator[ApiObject]:
    number = number_of(cluster)
    for place in PLACES:
        if place.cluster == cluster:
            subnet = str(IPv4Network((int(pod_address(cluster, place.node)) & 0xFFFFFF00, 24)))
            yield inputs.node(place.node, str(place.address), subnet)
            if place.gateway:
                gateway = inputs.gateway(place.node, str(place.address), cidr=f"10.{100 + number}.0.0/16")
                key = WireGuardInfo(public_key=_key(place), port=WIREGUARD) if encrypted else None
                yield replace(gateway, wireguard=key)
    for other in CLUSTERS:
        if other != cluster:
            yield _import_of(other, encrypted)
    ports = [ServicePort(name="", port=SERVICE_PORT, protocol=kind) for kind in (IpProtocol.TCP, IpProtocol.UDP)]
    yield inputs.service("web", str(service_address(cluster)), *ports)
    yield inputs.export("web")
    endpoint = inputs.endpoint(str(pod_address(cluster, "w1")))
    tcp = inputs.endpoint_slice("web-1", "web", [endpoint], ("", POD_PORT))
    udp = tuple(replace(port, protocol=IpProtocol.UDP) for port in tcp.ports)
    yield replace(tcp, ports=(*tcp.ports, *udp))


def _import_of(cluster: str, encrypted: bool) -> ApiObject:
    number = number_of(cluster)
    gateways = [place for place in PLACES if place.cluster == cluster and place.gateway]
    info = inputs.cluster(
        cluster,
        f"10.{100 + number}.0.0/16",
        f"10.{number}.0.0/16",
        gateways=(*(str(place.address) for place in gateways), *((str(OUTSIDE),) if cluster == CLAIMANT else ())),
    )
    info = replace(info, our_agents=True)
    if not encrypted:
        return info
    keys = tuple((place.address, WireGuardInfo(public_key=_key(place), port=WIREGUARD)) for place in gateways)
    return replace(info, wireguard=keys[0][1], gateway_wireguard=keys)


# --- protections that are taken out -----------------------------------------------------------------------


def without_chains(*names: str) -> Weakening:
    """Return what removes nft chains."""
    return lambda resource: None if isinstance(resource, NftChain) and resource.name in names else resource


def without_local_end(resource: Resource) -> Resource | None:
    """Let tunnels listen on every address of the Node, and remove the chain that guards them there."""
    if isinstance(resource, TunnelPort):
        return replace(resource, local_ip=None)
    return without_chains("mct_tunnel_in")(resource)


def with_rules(name: str, change: Callable[[str], str]) -> Weakening:
    """Return what changes the rules of an nft chain."""
    return lambda resource: (
        replace(resource, rules=tuple(map(change, resource.rules)))
        if isinstance(resource, NftChain) and resource.name == name
        else resource
    )


def with_flows(change: Callable[[FlowEntry], FlowEntry | None]) -> Weakening:
    """Return what changes flows."""
    return lambda resource: change(resource) if isinstance(resource, FlowEntry) else resource
