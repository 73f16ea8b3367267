"""Attacks in the name of servers outside the ClusterSet, and of gateways, through the tunnel of another gateway.

Member north names such a server as its gateway (`places.OUTSIDE`). Connections that leave by the uplink are also
those to addresses in networks of other clusters to which a Node has a rule of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address

from hypothesis import strategies as st

from flows.fields import IP_TCP, IP_UDP
from flows.pipeline import tables as t
from flows.simulator import Packet
from flows.simulator.packet import ACK
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import FlowEntry, NftChain, Resource
from tests.attacks.generated import nodes, packets, places
from tests.attacks.generated.packets import HOSTS, OUTSIDE_HOSTS, described
from tests.attacks.generated.places import OUTSIDE, PLACES, Place
from tests.attacks.generated.search import AttackClass
from tests.attacks.generated.tunnels import GatewayPackets, gateway_packets, judge_gateway

DATAPATHS = st.sampled_from(DatapathType)


# --- A5: answers to connections that left by the uplink -----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ForgedAnswer:
    """A packet of a member's gateway that looks like the answer to a connection through the uplink of `victim`."""

    datapath: DatapathType
    sender: Place
    receiver: Place
    victim: Place
    masqueraded: bool  # the connection is of a Pod, whose source the CNI translates
    exposed: bool  # other clusters may open connections to Nodes (`exposeNodes`)
    answer: Packet

    def __str__(self) -> str:
        client = "a Pod, by the Node's address," if self.masqueraded else "the Node"
        node = f"{self.victim} (exposed)" if self.exposed else f"{self.victim}"
        return (
            f"{client} on {node} has a connection with {self.answer.src} by the uplink;\n"
            f"  {self.sender} sends through its tunnel to {self.receiver}: {described(self.answer)} "
            f"({self.datapath} datapath)"
        )


@st.composite
def _answers(draw: st.DrawFn) -> ForgedAnswer:
    gateways = [place for place in PLACES if place.gateway]
    sender = draw(st.sampled_from(gateways))
    victim = draw(st.sampled_from([place for place in PLACES if place.cluster != sender.cluster]))
    answer = Packet(
        in_port=0,
        src=draw(st.sampled_from((*OUTSIDE_HOSTS, *packets.addresses(sender.cluster)))),
        dst=places.pod_address(victim.cluster, victim.node, places.BRIDGE_HOST),
        proto=draw(st.sampled_from((IP_UDP, IP_TCP))),
        src_port=draw(st.sampled_from((123, 443))),
        dst_port=40000,
        tcp_flags=ACK,
        eth_dst=packets.PLAIN,
    )
    return ForgedAnswer(
        datapath=draw(DATAPATHS),
        sender=sender,
        receiver=draw(st.sampled_from([place for place in gateways if place.cluster == victim.cluster])),
        victim=victim,
        masqueraded=draw(st.booleans()),
        exposed=draw(st.booleans()),
        answer=answer if answer.proto == IP_TCP else replace(answer, tcp_flags=0),
    )


def _judge_answer(attack: ForgedAnswer) -> str:
    fleet = nodes.fleet(attack.datapath, exposed=attack.exposed)
    port = fleet.port_from(attack.receiver, attack.sender)
    assert port is not None
    pod = places.pod_address(attack.victim.cluster, attack.victim.node) if attack.masqueraded else None
    walk = fleet.network.send(attack.receiver.name, replace(attack.answer, in_port=port))
    for name, delivered in walk.deliveries:
        arrives = name == attack.victim.name and delivered.src == attack.answer.src
        if arrives and fleet.accepts_answer(attack.victim, delivered, pod):
            return f"cluster {attack.sender.cluster} answers at {name} in the name of {delivered.src}"
    return ""


def _believing_answers(resource: Resource, *, closed: bool) -> Resource:
    """Return the chain of Nodes, closed or exposed, that accepts replies through the bridge from any address."""
    if not isinstance(resource, NftChain) or resource.name != "mct_nodes":
        return resource
    if closed is not any("fib daddr" in rule for rule in resource.rules):
        return resource
    return replace(resource, rules=tuple(rule for rule in resource.rules if "fib saddr" not in rule))


A5 = AttackClass(
    name="A5",
    title="a member answers a connection that a Node, or a masqueraded Pod, has through its uplink",
    grammar=_answers(),
    judge=_judge_answer,
    property="a reply is accepted by the device only by which the request left",
    protections={
        "replies arrive by the device of the route to their source": partial(
            nodes.without, partial(_believing_answers, closed=True)
        ),
        "they do so on exposed Nodes, too": partial(nodes.without, partial(_believing_answers, closed=False)),
    },
    examples=500,
)


# --- A9: gateways' addresses in tunnels of others -----------------------------------------------------------

_GATEWAYS = (OUTSIDE, *(place.address for place in PLACES if place.gateway))


def _believing_gateways(flow: FlowEntry) -> FlowEntry:
    """Return the flow of table Owner that accepts a gateway's address in all tunnels of its cluster."""
    if flow.table == t.OWNER.number and "->reg0," in flow.actions:
        return replace(flow, actions=flow.actions.partition("->reg0,")[2])
    return flow


def _named(sources: tuple[IPv4Address, ...]) -> st.SearchStrategy[GatewayPackets]:
    return gateway_packets(packets.inner_packets(sources=sources, destinations=HOSTS.pods))


A9 = AttackClass(
    name="A9",
    title="a member's gateway sends in the name of another gateway, which may be an outside host's address",
    grammar=_named(_GATEWAYS),
    judge=judge_gateway,
    property="the address of a gateway is the source of what its own tunnel delivers, and of nothing else",
    protections={
        "a gateway's address is a source in its own tunnel": partial(
            nodes.without, nodes.with_flows(_believing_gateways)
        )
    },
    examples=500,
)
