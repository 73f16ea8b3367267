"""Attacks on connections of others: ICMP errors of a third cluster, fragments, floods of new connections.

The simulator has no rates: for floods it judges that a meter of the cluster, or of the Pod, precedes what a flood
would fill.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from hypothesis import strategies as st

from flows.actions import Ct, Meter
from flows.fields import IP_ICMP, IP_TCP, IP_UDP
from flows.pipeline import tables as t
from flows.pipeline.registers import TOS_REPAIRED
from flows.simulator import IpFragment, Packet, SwitchWalk
from flows.simulator.packet import ACK, ECHO_REQUEST, SYN
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import FlowEntry
from tests.attacks.generated import nodes, packets, places
from tests.attacks.generated.packets import PLAIN, described
from tests.attacks.generated.places import CLUSTERS, PLACES, POD_PORT, SERVICE_PORT, Place
from tests.attacks.generated.search import AttackClass
from tests.worlds.switch_network import Network

DATAPATHS = st.sampled_from(DatapathType)
HOST_MAC = "0a:6d:63:00:00:01"
CLIENT_PORT = 33333


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A connection of a Pod with a Pod or Service of another cluster. `packets`: how many were exchanged."""

    client: Place
    server: str  # cluster
    service: bool
    protocol: int
    packets: int

    @property
    def request(self) -> Packet:
        """The client's first packet."""
        server = places.service_address(self.server) if self.service else places.pod_address(self.server, "w1")
        port = SERVICE_PORT if self.service else POD_PORT
        icmp = self.protocol == IP_ICMP
        return Packet(
            in_port=1,
            src=places.pod_address(self.client.cluster, self.client.node),
            dst=server,
            proto=self.protocol,
            src_port=CLIENT_PORT,
            dst_port=0 if icmp else port,
            icmp_type=ECHO_REQUEST if icmp else 0,
            tcp_flags=SYN,
            eth_src=HOST_MAC,
            eth_dst=PLAIN,
        )

    def opened(self, network: Network) -> tuple[Network, Packet | None]:
        """Exchange the packets; return the network, and the last request at the server (None: it is lost)."""
        request, received = self.request, None
        for number in range(self.packets):
            flags = SYN if number == 0 else ACK
            walk = network.send(self.client.name, replace(request, tcp_flags=flags))
            network = walk.network
            if not walk.deliveries:
                return network, None
            name, received = walk.deliveries[0]
            reply = received.reply(in_port=1, eth_src=HOST_MAC, eth_dst=PLAIN)
            network = network.send(name, reply).network
        return network, received

    def __str__(self) -> str:
        target = f"{'Service' if self.service else 'Pod'} of cluster {self.server}"
        return f"a Pod on {self.client} has a connection with a {target}: {described(self.request)}"


@st.composite
def connections(draw: st.DrawFn) -> Connection:
    """Draw a connection between two clusters."""
    client = draw(st.sampled_from(PLACES))
    service = draw(st.booleans())
    return Connection(
        client=client,
        server=draw(st.sampled_from([cluster for cluster in CLUSTERS if cluster != client.cluster])),
        service=service,
        protocol=draw(st.sampled_from((IP_TCP, IP_UDP) if service else (IP_TCP, IP_UDP, IP_ICMP))),
        packets=draw(st.integers(1, 2)),
    )


# --- A6: ICMP errors of a third cluster ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ForeignErrors:
    """ICMP errors that a third cluster's gateway sends, while two others have a connection."""

    datapath: DatapathType
    connection: Connection
    sender: Place
    receiver: Place
    errors: tuple[Packet, ...]

    def __str__(self) -> str:
        lines = [f"    {described(error)}" for error in self.errors]
        return "\n".join(
            [f"{self.connection};", f"  {self.sender} sends through its tunnel to {self.receiver}:", *lines]
        )


@st.composite
def _foreign_errors(draw: st.DrawFn) -> ForeignErrors:
    connection = draw(connections())
    (third,) = set(CLUSTERS) - {connection.client.cluster, connection.server}
    gateways = [place for place in PLACES if place.gateway]
    sender = draw(st.sampled_from([place for place in gateways if place.cluster == third]))
    victim = draw(st.sampled_from((connection.client.cluster, connection.server)))
    request = connection.request
    at_server = replace(request, dst=places.pod_address(connection.server, "w1"), dst_port=POD_PORT)
    quotable = [request, request.reply(), at_server, at_server.reply()]
    inside = replace(
        request, dst=places.pod_address(connection.client.cluster, "g1")
    )  # a connection without the bridge
    sources = packets.addresses(third)
    errors = [
        draw(packets.icmp_errors(src=draw(st.sampled_from(sources)), quoted=draw(quoted)))
        for quoted in draw(
            st.lists(st.just(st.sampled_from([*quotable, inside]) | st.none()), min_size=1, max_size=3)
        )
    ]
    return ForeignErrors(
        datapath=draw(DATAPATHS),
        connection=connection,
        sender=sender,
        receiver=draw(st.sampled_from([place for place in gateways if place.cluster == victim])),
        errors=tuple(errors),
    )


def _judge_errors(attack: ForeignErrors) -> str:
    network, _ = attack.connection.opened(nodes.fleet(attack.datapath).network)
    port = nodes.fleet(attack.datapath).port_from(attack.receiver, attack.sender)
    assert port is not None
    for error in attack.errors:
        walk = network.send(attack.receiver.name, replace(error, in_port=port))
        network = walk.network
        for name, delivered in walk.deliveries:
            quoted = delivered.quoted
            if quoted is None or quoted.dst is None:
                continue
            other = places.owner_of(quoted.dst)
            if other != attack.sender.cluster:
                return (
                    f"cluster {attack.sender.cluster} has an ICMP error delivered at {name} about a connection "
                    f"with cluster {other or 'none'}"
                )
    return ""


_TO_ADMIT = f"goto_table:{t.ADMIT.number}"


def _believing_errors(flow: FlowEntry) -> FlowEntry:
    """Return the flows that accept ICMP errors of every cluster about every connection."""
    if flow.table == t.RELATED.number:
        return replace(flow, actions=_TO_ADMIT)
    return flow


A6 = AttackClass(
    name="A6",
    title="ICMP errors of a third cluster about connections of two others",
    grammar=_foreign_errors(),
    judge=_judge_errors,
    property="a cluster's ICMP error is delivered only if the connection that it quotes is with this cluster",
    protections={
        "tables Related and Source compare the connection": partial(
            nodes.without, nodes.with_flows(_believing_errors)
        )
    },
    examples=500,
)


# --- floods --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FloodPacket:
    """A packet that a member's gateway could send a million times."""

    datapath: DatapathType
    sender: Place
    receiver: Place
    packet: Packet

    def __str__(self) -> str:
        return f"{self.sender} sends through its tunnel to {self.receiver}: {described(self.packet)}"

    def walks(self) -> Iterator[tuple[str, SwitchWalk, int]]:
        """Yield the packet's walk in each switch, with the number of connections before it."""
        fleet = nodes.fleet(self.datapath)
        port = fleet.port_from(self.receiver, self.sender)
        assert port is not None
        before: dict[str, int] = {}
        for name, walk in fleet.network.send(self.receiver.name, replace(self.packet, in_port=port)).walks:
            yield name, walk, before.get(name, 0)
            before[name] = len(walk.connections.connections)


@st.composite
def _floods(draw: st.DrawFn, fragments: tuple[IpFragment, ...]) -> FloodPacket:
    gateways = [place for place in PLACES if place.gateway]
    sender = draw(st.sampled_from(gateways))
    own = packets.addresses(sender.cluster)
    packet = draw(packets.inner_packets(sources=own).filter(lambda packet: packet.src is not None))
    return FloodPacket(
        datapath=draw(DATAPATHS),
        sender=sender,
        receiver=draw(st.sampled_from([place for place in gateways if place.cluster != sender.cluster])),
        packet=replace(packet, fragment=draw(st.sampled_from(fragments))),
    )


def _metered(walk: SwitchWalk, until: type[Ct] | None) -> bool:
    """Tell whether a packet passes a meter in a switch: before its first ct action, or at all (`until` None)."""
    for step in walk.steps:
        for action in step.flow.actions if step.flow is not None else ():
            if isinstance(action, Meter):
                return True
            if until is not None and isinstance(action, until):
                return False
    return False


def _is_tracked(walk: SwitchWalk) -> bool:
    actions = (action for step in walk.steps if step.flow is not None for action in step.flow.actions)
    return any(isinstance(action, Ct) for action in actions)


def _judge_fragment(attack: FloodPacket) -> str:
    for name, walk, _ in attack.walks():
        if _is_tracked(walk) and not _metered(walk, Ct):
            return f"fragments of cluster {attack.sender.cluster} are reassembled at {name} at any rate"
    return ""


def _judge_new_connection(attack: FloodPacket) -> str:
    for name, walk, before in attack.walks():
        if len(walk.connections.connections) > before and not _metered(walk, None):
            return f"cluster {attack.sender.cluster} makes entries of conntrack at {name} at any rate"
    return ""


_METER = re.compile(rf"(meter:\d+|resubmit\(,{t.NEW_CONNECTIONS.number}\)),?")


def _without_meters(*numbers: int) -> nodes.Weakening:
    def changed(flow: FlowEntry) -> FlowEntry:
        return replace(flow, actions=_METER.sub("", flow.actions)) if flow.table in numbers else flow

    return nodes.with_flows(changed)


A7 = AttackClass(
    name="A7",
    title="a flood of fragments that never become whole",
    grammar=_floods((IpFragment.FIRST, IpFragment.LATER)),
    judge=_judge_fragment,
    property="every fragment of another cluster passes a meter of that cluster before conntrack reassembles it",
    protections={
        "gateways and Nodes meter fragments": partial(nodes.without, _without_meters(t.FRAGMENTS.number)),
    },
    examples=500,
)


@dataclass(frozen=True, kw_only=True)
class SentFragment:
    """A fragment that a Pod sends to another cluster."""

    datapath: DatapathType
    place: Place
    packet: Packet

    def __str__(self) -> str:
        return f"a Pod on {self.place} sends {described(self.packet)} ({self.datapath} datapath)"

    def meter(self, source: int) -> int | None:
        """Return the meter before the reassembly on the Pod's Node, if its address has this last number."""
        address = places.pod_address(self.place.cluster, self.place.node)
        packet = replace(self.packet, src=type(address)(int(address) & ~0xFF | source))
        walk = nodes.fleet(self.datapath).network.send(self.place.name, packet).walks[0][1]
        for step in walk.steps:
            for action in step.flow.actions if step.flow is not None else ():
                if isinstance(action, Meter | Ct):
                    return action.meter_id if isinstance(action, Meter) else None
        return None


@st.composite
def _sent_fragments(draw: st.DrawFn) -> SentFragment:
    place = draw(st.sampled_from(PLACES))
    protocol = draw(st.sampled_from((IP_UDP, IP_TCP, IP_ICMP)))
    return SentFragment(
        datapath=draw(DATAPATHS),
        place=place,
        packet=Packet(
            in_port=1,
            dst=places.pod_address(draw(st.sampled_from([c for c in CLUSTERS if c != place.cluster])), "w1"),
            src=places.pod_address(place.cluster, place.node),
            proto=protocol,
            src_port=CLIENT_PORT,
            dst_port=0 if protocol == IP_ICMP else POD_PORT,
            icmp_type=draw(st.sampled_from((ECHO_REQUEST, 3))) if protocol == IP_ICMP else 0,
            tos=draw(st.sampled_from((0, TOS_REPAIRED))),
            fragment=draw(st.sampled_from((IpFragment.FIRST, IpFragment.LATER))),
            eth_src=HOST_MAC,
            eth_dst=PLAIN,
        ),
    )


def _judge_sent_fragment(attack: SentFragment) -> str:
    meter, meter_of_neighbour = attack.meter(5), attack.meter(6)
    if meter is None:
        return "a Pod uses up what other clusters accept of its cluster's fragments"
    return "" if meter != meter_of_neighbour else "a Pod uses up what its neighbour may send in fragments"


N6 = AttackClass(
    name="N6",
    title="a Pod sends many large datagrams to another cluster",
    grammar=_sent_fragments(),
    judge=_judge_sent_fragment,
    property="fragments pass a meter of their sender before its Node reassembles them, and neighbours have others",
    protections={
        "Nodes meter the fragments that they send": partial(
            nodes.without, _without_meters(t.SENT_FRAGMENTS.number)
        )
    },
    examples=100,
)
FLOODS = AttackClass(
    name="(p)",
    title="a flood of new connections",
    grammar=_floods((IpFragment.NO,)),
    judge=_judge_new_connection,
    property="a packet of another cluster that makes an entry of conntrack has passed a meter of that cluster",
    protections={
        "clusters have meters of new connections": partial(
            nodes.without, _without_meters(t.NEW_CONNECTIONS.number)
        ),
        "Nodes meter new connections": partial(nodes.without, _without_meters(t.ADMIT.number)),
        "gateways meter new connections to Services": partial(
            nodes.without, _without_meters(t.ADMIT_SERVICE.number)
        ),
    },
    examples=1000,
)
