"""Tables of policies: what flows decide is what a naive reader of the rules decides."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from flows.fields import IP_ICMP, IP_TCP, IP_UDP
from flows.pipeline import PolicyDirection, PolicyPeers, PolicyPort, PolicyRule, PolicyStage, PolicyVerdict, rules
from flows.pipeline.registers import IDENTITY_UNKNOWN, MAC_REJECT_IN, MAC_REJECT_OUT
from flows.pipeline.steps.policy import ranges
from flows.simulator import IpFragment, Packet, SimulatedSwitch
from flows.simulator.packet import ACK, RST, UNREACHABLE
from flows.text import mac_text
from tests.properties import costly
from tests.worlds.contradictions import contradictions
from tests.worlds.conversations import Call, calls, exchange, none, one
from tests.worlds.policies import policies, request, verdict_of
from tests.worlds.policy_switch import EXITS, flows_of
from tests.worlds.topologies import World, from_kernel, worlds


def decided(switch: SimulatedSwitch, packet: Packet) -> PolicyVerdict:
    """Return what became of a packet."""
    walk = switch.walk(packet)
    assert not walk.problems, walk
    return EXITS[walk.outputs[0][0]] if walk.outputs else PolicyVerdict.DROP


@costly
@given(seed=st.integers(0, 2**32))
def test_flows_decide_as_the_rules_say(seed: int) -> None:
    """Whatever rules there are, and whatever packet comes: allowed, dropped or rejected, as the rules read."""
    random = Random(seed)
    random_policies = policies(random)
    flows = flows_of(random_policies)
    switch = SimulatedSwitch.of(flows)
    assert not list(contradictions(flows))
    for direction in PolicyDirection:
        for _ in range(30):
            packet = request(random, direction)
            assert decided(switch, packet) is verdict_of(random_policies, packet, direction), (
                packet,
                random_policies,
            )


@costly
@given(seed=st.integers(0, 2**32))
def test_the_first_fragment_of_a_request_is_decided_like_the_request(seed: int) -> None:
    """Later fragments pass, and without a port or type that flows can read the first one is dropped."""
    random = Random(seed)
    drawn_policies = policies(random)
    switch = SimulatedSwitch.of(flows_of(drawn_policies))
    for direction in PolicyDirection:
        for _ in range(30):
            packet = request(random, direction)
            first, later = (replace(packet, fragment=place) for place in (IpFragment.FIRST, IpFragment.LATER))
            assert decided(switch, first) is verdict_of(drawn_policies, packet, direction), (
                packet,
                drawn_policies,
            )
            assert decided(switch, later) is PolicyVerdict.ALLOW, (packet, drawn_policies)
            hidden = replace(first, dst_port=0, icmp_type=0)
            assert decided(switch, hidden) is PolicyVerdict.DROP, (packet, drawn_policies)


def test_a_rule_has_as_many_flows_as_pods_peers_and_ports_together() -> None:
    """Its size is the sum, not the product."""
    ports = (PolicyPort(protocol=IP_TCP, low=80, high=80), PolicyPort(protocol=IP_UDP, low=53, high=53))
    rule = PolicyRule(
        id=9,
        direction=PolicyDirection.INGRESS,
        stage=PolicyStage.TIERS,
        level=0,
        verdict=PolicyVerdict.DROP,
        pods=tuple(IPv4Address("10.1.0.0") + n for n in range(100)),
        peers=PolicyPeers(identities=tuple((0, n) for n in range(1, 1001))),
        ports=ports,
    )
    assert len(rules([rule]).flows) == 100 + 1000 + 2 + 1
    assert not rules([replace(rule, peers=PolicyPeers())]).flows
    assert not rules([replace(rule, pods=())]).flows


def ruled(world: World, call: Call, verdict: PolicyVerdict, *pods: IPv4Address, egress: bool = False) -> World:
    """Return the world with a rule for the client of a call: of these Pods, or as the client's own."""
    direction = PolicyDirection.EGRESS if egress else PolicyDirection.INGRESS
    if egress:
        peers = PolicyPeers(networks=(IPv4Network(call.address),))
    else:
        peers = PolicyPeers(identities=((world.cluster(call.client.cluster).number, world.identity(call.client)),))
    level = len(world.rules)
    rule = PolicyRule(
        id=level + 1,
        direction=direction,
        stage=PolicyStage.TIERS,
        level=level,
        verdict=verdict,
        pods=pods,
        peers=peers,
    )
    return replace(world, rules=(*world.rules, rule))


@costly
@given(world=worlds(min_clusters=2, max_clusters=3), seed=st.integers(0, 2**32), own=st.booleans())
def test_policies_apply_to_errors_of_clients(world: World, seed: int, own: bool) -> None:
    """An error about a reply passes where a rule allows the client any request, and nowhere else."""
    random, world = Random(seed), replace(world, identities=True)

    def direct(call: Call) -> bool:
        keeps = world.keeps_source(call.client, call.cluster)
        return keeps and call.service is None and call.protocol != IP_ICMP and known_by_labels(world, call)

    for call in calls(world, random, 4, wanted=direct):
        met = exchange(world, world.network, call, call.packet)
        answer = one(met.back)[1]
        assert isinstance(met.seen.dst, IPv4Address)
        error = Packet(
            in_port=1, src=answer.dst, dst=answer.src, proto=IP_ICMP, icmp_type=UNREACHABLE, quoted=answer
        )
        for verdict in (PolicyVerdict.ALLOW, PolicyVerdict.DROP):
            pod = call.client.address if own else met.seen.dst
            judged = ruled(world, call, verdict, pod, egress=own)
            ports = (PolicyPort(protocol=call.protocol, low=call.port, high=call.port),)
            allowing = verdict is PolicyVerdict.ALLOW
            rule = replace(judged.rules[-1], ports=ports if allowing else ())
            denied = replace(
                rule, id=2, level=1, verdict=PolicyVerdict.DROP, peers=PolicyPeers(any_peer=True), ports=()
            )
            judged = replace(judged, rules=(rule, denied) if allowing else (rule,))
            network = replace(judged.network, connections=met.network.connections)
            (one if allowing else none)(network.send(call.client.node, from_kernel(error)))


def known_by_labels(world: World, call: Call) -> bool:
    """Tell whether a client has a label identity."""
    return world.identity(call.client) != IDENTITY_UNKNOWN


@costly
@given(world=worlds(min_clusters=2, max_clusters=3), seed=st.integers(0, 2**32))
def test_a_rule_ends_an_open_connection_and_no_other(world: World, seed: int) -> None:
    """It counts from the next request on, by whatever gateway; others' connections and all replies go on."""
    random, world = Random(seed), replace(world, identities=True)
    wishes = calls(world, random, 8, wanted=lambda call: known_by_labels(world, call))
    assume(len(wishes) > 1)
    for call, other in pairwise(wishes):
        network = exchange(world, world.network, call, call.packet).network
        exchanges = exchange(world, network, other, other.packet)
        server = (
            exchanges.seen.dst if random.random() < 0.5 else exchange(world, network, call, call.later).seen.dst
        )
        assert isinstance(server, IPv4Address)
        stricter = ruled(world, call, PolicyVerdict.DROP, server)
        network = replace(stricter.network, connections=exchanges.network.connections)
        lost_gateway = random.choice(world.cluster(call.client.cluster).gateways).name
        answer = exchange(world, exchanges.network, call, call.later)
        if answer.seen.dst == server:
            none(network.send(call.client.node, call.later))
            one(network.send(answer.node, from_kernel(answer.seen.reply())))  # a reply is not judged
            if lost_gateway != call.client.node:
                elsewhere = network.losing(lost_gateway).send(
                    call.client.node, call.later
                )  # SNATed anew: any endpoint
                assert server not in [packet.dst for _, packet in elsewhere.deliveries], elsewhere
        clients = {(c.client.cluster, world.identity(c.client)) for c in (call, other)}
        if len(clients) == 2:  # two Pods of a cluster may have one identity
            exchange(world, network, other, other.later)


@costly
@given(world=worlds(min_clusters=2, max_clusters=3), seed=st.integers(0, 2**32))
def test_what_is_rejected_is_answered_as_if_by_the_server(world: World, seed: int) -> None:
    """The kernel of the server's Node gets it, marked; what that answers gets to the client, un-translated."""
    random, world = Random(seed), replace(world, identities=True)
    for call in calls(world, random, 6, wanted=lambda call: known_by_labels(world, call)):
        before = exchange(world, world.network, call, call.packet)
        assert isinstance(before.seen.dst, IPv4Address)
        stricter = ruled(world, call, PolicyVerdict.REJECT, before.seen.dst)
        network = stricter.network
        if random.random() < 0.5:
            network = replace(network, connections=before.network.connections)
        walk = network.send(call.client.node, call.packet)
        node, delivery = one(walk)
        assert (node, delivery.eth_src) == (before.node, mac_text(MAC_REJECT_IN))
        reset = replace(delivery.reply(), tcp_flags=RST | ACK)
        unreachable = Packet(
            in_port=1,
            src=world.nodes[node].address,
            dst=delivery.src,
            proto=IP_ICMP,
            icmp_type=3,
            icmp_code=13,
            quoted=delivery,
        )
        home, answer = one(
            walk.network.send(
                node, from_kernel(reset if call.protocol == IP_TCP else world.quoting_gateways(unreachable))
            )
        )
        assert (home, answer.src, answer.dst) == (call.client.node, call.address, call.client.address)
        if call.protocol != IP_TCP:
            assert answer.quoted is not None
            quoted = (answer.quoted.src, answer.quoted.src_port, answer.quoted.dst, answer.quoted.dst_port)
            assert quoted == (call.client.address, call.client_port, call.address, call.packet.dst_port)


@costly
@given(world=worlds(min_clusters=2, max_clusters=3), seed=st.integers(0, 2**32))
def test_a_pods_own_requests_are_judged_on_its_node(world: World, seed: int) -> None:
    """Dropped, or back to its kernel, marked; what others open to it, and its replies, are not touched."""
    random, world = Random(seed), replace(world, identities=True)
    for call in calls(world, random, 6):
        verdict = random.choice((PolicyVerdict.DROP, PolicyVerdict.REJECT))
        network = ruled(world, call, verdict, call.client.address, egress=True).network
        walk = network.send(call.client.node, call.packet)
        assert walk.path == (call.client.node,)
        if verdict is PolicyVerdict.DROP:
            none(walk)
        else:
            node, delivery = one(walk)
            assert (node, delivery.eth_src, delivery.src) == (
                call.client.node,
                mac_text(MAC_REJECT_OUT),
                call.client.address,
            )
        for other in calls(world, random, 3):
            if other.client.address != call.client.address or other.address != call.address:
                exchange(world, network, other, other.packet)


@given(low=st.integers(0, 65535), size=st.integers(0, 65535))
def test_ranges_cover_what_they_are_to_cover(low: int, size: int) -> None:
    """Every number from the first to the last has one match, no other number has any, and they are few."""
    high = min(low + size, 65535)
    port_ranges = list(ranges(low, high))
    assert sum(0x10000 - mask for _, mask in port_ranges) == high - low + 1
    assert all(low <= value <= value + 0xFFFF - mask <= high for value, mask in port_ranges)
    assert len(port_ranges) <= 30
