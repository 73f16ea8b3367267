"""Attacks on tunnels: who gets a packet into one, in whose name, and who gets another's tunnel packets.

Judged by the compiled nft rules, tunnels and flows of all Nodes (`nodes`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address

from hypothesis import strategies as st

from flows.fields import IP_UDP, PORT_CONTROLLER
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.simulator import Packet
from flows.text import mac_text
from mcagent.core.fragments.kernel import CLOSED_NODES
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import FlowEntry
from tests.attacks.generated import nodes, packets, places
from tests.attacks.generated.netfilter import Datagram
from tests.attacks.generated.nodes import Arrival, Fleet
from tests.attacks.generated.packets import TunnelPacket, described
from tests.attacks.generated.places import (
    CLUSTERS,
    GENEVE,
    LARGE_TTL,
    PLACES,
    POD_PORT,
    WIREGUARD,
    KubeProxyRule,
    Place,
)
from tests.attacks.generated.search import AttackClass

DATAPATHS = st.sampled_from(DatapathType)
PODS = tuple(places.pod_address(place.cluster, place.node) for place in PLACES)
NODE_PORT = 30124


# --- A2: a Service with the address and port of a tunnel ----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DivertedTunnels:
    """A Service of a namespace user, in whose cluster all Nodes translate by it."""

    datapath: DatapathType
    encrypted: bool
    rule: KubeProxyRule

    def __str__(self) -> str:
        return f"{self.rule} ({self.datapath} datapath{', encrypted' if self.encrypted else ''})"


@st.composite
def _services(draw: st.DrawFn, clusters: tuple[str, ...] = CLUSTERS) -> KubeProxyRule:
    return KubeProxyRule(
        cluster=draw(st.sampled_from(clusters)),
        address=draw(st.sampled_from(packets.node_addresses())),
        port=draw(st.sampled_from((GENEVE, WIREGUARD, NODE_PORT, 4789, 3784))),
        endpoint=draw(st.sampled_from((*PODS, *packets.node_addresses()))),
        endpoint_port=draw(st.sampled_from((GENEVE, WIREGUARD, 5000))),
    )


def _judge_services(attack: DivertedTunnels) -> str:
    fleet = nodes.fleet(attack.datapath, encrypted=attack.encrypted)
    for place in PLACES:
        for peer in PLACES:
            number = fleet.port_from(peer, place)
            if number is None or (fleet.encrypted and peer.cluster != place.cluster):
                continue
            datagram = Datagram(
                source=place.address, destination=peer.address, port=GENEVE, ttl=LARGE_TTL, device=""
            )
            arrival = fleet.sends(place, datagram, attack.rule)
            if arrival is None:
                return f"tunnel packets of {place} to {peer} are lost"
            if (arrival.place, arrival.port) != (peer, number):
                return f"tunnel packets of {place} to {peer} arrive at {arrival.place}, in a Pod or another tunnel"
    return _judge_wireguard(fleet, attack.rule) if attack.encrypted else ""


def _judge_wireguard(fleet: Fleet, rule: KubeProxyRule) -> str:
    """Tell whether a packet of WireGuard between gateways is translated on the way."""
    gateways = [place for place in PLACES if place.gateway]
    for place in gateways:
        for peer in (gateway for gateway in gateways if gateway.cluster != place.cluster):
            datagram = Datagram(
                source=place.address, destination=peer.address, port=WIREGUARD, source_port=WIREGUARD, device=""
            )
            for hook, node in (("output", place), ("prerouting", peer)):
                datagram.tracked = True
                fleet.netfilter(node).passes(hook, datagram)
                nodes.translate(rule, node, datagram)
                if datagram.translated:
                    return f"packets of WireGuard of {place} to {peer} are translated on {node}"
    return ""


A2 = AttackClass(
    name="A2",
    title="a Service with the address and port of a tunnel (externalIPs, NodePorts)",
    grammar=st.builds(DivertedTunnels, datapath=DATAPATHS, encrypted=st.booleans(), rule=_services()),
    judge=_judge_services,
    property="every tunnel packet between peers, and every packet of WireGuard, arrives in its tunnel at the peer",
    protections={
        "tunnel packets are not tracked": partial(
            nodes.without, nodes.without_chains("mct_tunnels_pre", "mct_tunnels_out")
        ),
        "packets of WireGuard are not tracked": partial(
            nodes.without, nodes.without_chains("mct_untracked_in", "mct_untracked_out")
        ),
    },
    examples=1000,
)


# --- A3: a Pod sends tunnel packets -------------------------------------------------------------------------


@st.composite
def _pod_packets(draw: st.DrawFn) -> TunnelPacket:
    sender = draw(st.sampled_from(PLACES))
    source = draw(
        st.just(places.pod_address(sender.cluster, sender.node)) | st.sampled_from([p.address for p in PLACES])
    )
    destination = draw(st.sampled_from(packets.node_addresses()))
    return TunnelPacket(
        datapath=draw(DATAPATHS),
        sender=sender,
        source=source,
        destination=destination,
        port=draw(st.sampled_from((GENEVE, GENEVE, GENEVE, NODE_PORT))),
        ttl=draw(st.sampled_from((64, LARGE_TTL))),
        inner=draw(packets.tunnelled(source, destination)),
        rule=draw(st.none() | st.none() | _services()),
    )


def _judge_pod(attack: TunnelPacket) -> str:
    fleet = nodes.fleet(attack.datapath)
    assert attack.sender is not None
    return _out_of_a_tunnel(fleet, fleet.leaves(attack.sender, attack.datagram, attack.rule), attack.inner)


def _out_of_a_tunnel(fleet: Fleet, arrival: Arrival | None, inner: Packet) -> str:
    """Return where a packet comes out of a tunnel that takes it; "" if none does, or it is dropped."""
    if arrival is None or arrival.port is None:
        return ""
    walk = fleet.network.send(arrival.place.name, replace(inner, in_port=arrival.port))
    return "".join(
        f"it comes out of a tunnel at {name}: {described(packet)}" for name, packet in walk.deliveries[:1]
    )


A3 = AttackClass(
    name="A3",
    title="a Pod sends tunnel packets to any address of a Node, with its own or a forged source",
    grammar=_pod_packets(),
    judge=_judge_pod,
    property="nothing that a Pod sends to a Node comes out of a tunnel",
    protections={
        "tunnels end at one address": partial(nodes.without, nodes.without_local_end),
        "Pods do not send to tunnel ports of peers": partial(nodes.without, nodes.without_chains("mct_to_tunnel")),
        "forged sources are dropped where Pods send": partial(nodes.without, nodes.without_chains("mct_forged")),
    },
    examples=4000,
)


# --- A16: a machine behind a router ---------------------------------------------------------------------------


_GATEWAYS = {places.endpoint(place): place.address for place in PLACES if place.gateway}
_ENDS = tuple(_GATEWAYS)  # of encrypted tunnels


@st.composite
def _router_packets(draw: st.DrawFn) -> TunnelPacket:
    encrypted = draw(st.booleans())
    if encrypted and draw(st.booleans()):
        source, destination = draw(st.sampled_from(_ENDS)), draw(st.sampled_from(_ENDS))
    else:
        destination = draw(st.sampled_from(packets.node_addresses()))
        own = [place.address for place in PLACES if place.cluster == places.owner_of(destination)]
        source = draw(st.sampled_from(packets.node_addresses() if encrypted or not own else own))
    claimed, receiver = (_gateway_at(end) for end in (source, destination))
    return TunnelPacket(
        datapath=DatapathType.SYSTEM,
        encrypted=encrypted,
        sender=None,
        source=source,
        destination=destination,
        port=draw(st.sampled_from((GENEVE, GENEVE, GENEVE, WIREGUARD))),
        ttl=draw(st.sampled_from((64, LARGE_TTL - 1, 1))),
        inner=draw(packets.tunnelled(claimed, receiver)),
    )


def _gateway_at(end: IPv4Address) -> IPv4Address:
    """Return the address of the gateway whose encrypted tunnels end at an address; else the address itself."""
    return _GATEWAYS.get(end, end)


def _judge_router(attack: TunnelPacket) -> str:
    fleet = nodes.fleet(attack.datapath, encrypted=attack.encrypted)
    return _out_of_a_tunnel(fleet, fleet.arrives(attack.datagram), attack.inner)


A16 = AttackClass(
    name="A16",
    title="a machine behind a router sends tunnel packets in the name of a Node, around the encryption, too",
    grammar=_router_packets(),
    judge=_judge_router,
    property="nothing that a router has forwarded comes out of a tunnel between Nodes, or of an encrypted one",
    protections={
        "Nodes of a link send the TTL 255": partial(nodes.without, nodes.without_chains("mct_link")),
        "encrypted peers send nothing in the clear": partial(nodes.without, nodes.without_chains("mct_clear_in")),
    },
    examples=4000,
)


# --- sources: a member's gateway sends in the name of others ---------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GatewayPackets:
    """Packets that a gateway of a member sends through its tunnel to a gateway of another one."""

    datapath: DatapathType
    sender: Place
    receiver: Place
    inner: tuple[Packet, ...]

    def __str__(self) -> str:
        lines = [f"    {described(packet)}" for packet in self.inner]
        return "\n".join([f"{self.sender} sends through its tunnel to {self.receiver}:", *lines])


@st.composite
def gateway_packets(draw: st.DrawFn, inner: st.SearchStrategy[Packet]) -> GatewayPackets:
    """Draw packets of any gateway to a gateway of another cluster."""
    gateways = [place for place in PLACES if place.gateway]
    sender = draw(st.sampled_from(gateways))
    return GatewayPackets(
        datapath=draw(DATAPATHS),
        sender=sender,
        receiver=draw(st.sampled_from([place for place in gateways if place.cluster != sender.cluster])),
        inner=tuple(draw(st.lists(inner, min_size=1, max_size=3))),
    )


def judge_gateway(attack: GatewayPackets) -> str:
    """Return what the packets violate; a gateway's own address is that of its cluster in its own tunnel only."""
    fleet = nodes.fleet(attack.datapath)
    network, port = fleet.network, fleet.port_from(attack.receiver, attack.sender)
    assert port is not None
    for packet in attack.inner:
        walk = network.send(attack.receiver.name, replace(packet, in_port=port))
        network = walk.network
        for name, delivered in walk.deliveries:
            source = None if delivered.src is None else places.gateway_behind(delivered.src)
            if source not in (delivered.src, attack.sender.address):
                return f"a packet of gateway {attack.sender.name} is delivered at {name} in the name of {source}"
            owner = "" if source is None else places.owner_of(source)
            if owner != attack.sender.cluster:
                text = f"in the name of cluster {owner}" if owner else "with an address of no cluster"
                return f"a packet of cluster {attack.sender.cluster} is delivered at {name} {text}"
            if fleet.reaches_node(name, delivered):
                return f"a packet of cluster {attack.sender.cluster} reaches the Node {name} itself"
        transit = {name.partition("-")[0] for name in walk.path} - {attack.sender.cluster, attack.receiver.cluster}
        if transit:
            return f"a packet of cluster {attack.sender.cluster} is forwarded to cluster {transit.pop()}"
        for name, step in walk.walks:
            if any(
                number == PORT_CONTROLLER and copy.eth_type == r.ETHERTYPE_AGENTS for number, copy in step.outputs
            ):
                return f"a report of another cluster's agent reaches the agent of {name}"
    return ""


def _believing_sources(flow: FlowEntry) -> FlowEntry:
    """Return the flow of table Source that accepts forged packets of remote clusters."""
    if flow.table == t.SOURCE.number and flow.actions == "drop" and "reg1=" in flow.match:
        return replace(flow, actions=f"goto_table:{t.UNTRANSLATE.number}")
    return flow


SOURCES = AttackClass(
    name="sources",
    title="a member's gateway sends any packets through its tunnel",
    grammar=gateway_packets(packets.inner_packets()),
    judge=judge_gateway,
    property="what the tunnel of a cluster delivers is from that cluster, and for a Pod; no third cluster gets it",
    protections={
        "table Source checks packets of other clusters": partial(
            nodes.without, nodes.with_flows(_believing_sources)
        ),
        "Nodes are closed to other clusters": partial(nodes.without, nodes.without_chains("mct_nodes")),
    },
    examples=500,
)


# --- N1: an endpoint at an address of a Node -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeEndpoint:
    """A datagram to an exported Service with an endpoint at an address of a Node, after the translation."""

    datapath: DatapathType
    place: Place
    address: IPv4Address
    port: int

    def __str__(self) -> str:
        return f"endpoint {self.address}:{self.port} on {self.place} ({self.datapath} datapath)"


@st.composite
def _node_endpoints(draw: st.DrawFn) -> NodeEndpoint:
    place = draw(st.sampled_from(PLACES))
    hosts = (places.BRIDGE_HOST, places.BROADCAST_HOST)
    own = (*place.addresses, *(places.pod_address(place.cluster, place.node, host) for host in hosts))
    return NodeEndpoint(
        datapath=draw(DATAPATHS),
        place=place,
        address=draw(st.sampled_from(own)),
        port=draw(st.sampled_from((22, 6640, POD_PORT, NODE_PORT))),
    )


def _judge_endpoint(attack: NodeEndpoint) -> str:
    packet = Packet(
        in_port=0,
        src=next(pod for pod in PODS if places.owner_of(pod) != attack.place.cluster),
        dst=attack.address,
        proto=IP_UDP,
        src_port=40000,
        dst_port=attack.port,
        eth_src=mac_text(r.MAC_SERVICE | 1),
    )
    if not nodes.fleet(attack.datapath).reaches_node(attack.place.name, packet):
        return ""
    is_listed = attack.address == attack.place.address
    return "" if is_listed else "it reaches a socket of the Node at an address that its Node object does not have"


N1 = AttackClass(
    name="N1",
    title="an exported Service has an endpoint at an address that the CNI gave a Node, or its broadcast address",
    grammar=_node_endpoints(),
    judge=_judge_endpoint,
    property="what the bridge has translated reaches a Node at the addresses of its Node object only",
    protections={
        "translated packets to a Node are not accepted at every address": partial(
            nodes.without,
            nodes.with_rules(CLOSED_NODES, lambda rule: rule.replace(" fib daddr type unicast", "")),
        ),
        "broadcast addresses are the Node's, too": partial(
            nodes.without,
            nodes.with_rules(CLOSED_NODES, lambda rule: rule.replace("unicast", "{ unicast, broadcast }")),
        ),
    },
    examples=100,
)
