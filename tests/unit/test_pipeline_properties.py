"""Properties of the whole pipeline over random worlds: who reaches whom, where, as whom, and what comes back."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from flows import actions as act
from flows.fields import IP_ICMP
from flows.simulator import Datapath, Packet
from flows.simulator.packet import UNREACHABLE
from tests.properties import costly
from tests.worlds.contradictions import contradictions
from tests.worlds.conversations import Call, calls, exchange, none, one, to_service
from tests.worlds.switch_network import PacketWalk
from tests.worlds.topologies import World, from_kernel, worlds

SEEDS = st.integers(0, 2**32)


@costly
@given(worlds(min_clusters=2), SEEDS, st.sampled_from(Datapath))
def test_conversations_reach_and_return(world: World, seed: int, datapath: Datapath) -> None:
    """Every allowed call gets to one endpoint, one copy, and back; the second packet meets the same endpoint."""
    random = Random(seed)
    network = world.network.over(datapath)
    for call in calls(world, random, 24):
        first = exchange(world, network, call, call.packet)
        again = exchange(world, first.network, call, call.later)
        where = ("src", "src_port", "dst", "dst_port")
        assert again.node == first.node
        assert [getattr(again.seen, n) for n in where] == [getattr(first.seen, n) for n in where]
        network = again.network  # the next call meets what this one left


@costly
@given(worlds(min_clusters=2), SEEDS, st.sampled_from(Datapath))
def test_packets_before_the_first_reply(world: World, seed: int, datapath: Datapath) -> None:
    """A client that sends several packets before any reply meets one endpoint, and then hears from it."""
    network = world.network.over(datapath)
    for call in calls(world, Random(seed), 16):
        states_seen = set()
        for packet in (call.packet, call.packet, call.packet):
            packet_walk = network.send(call.client.node, packet)
            assert len(packet_walk.deliveries) == 1, packet_walk
            node, arrived = packet_walk.deliveries[0]
            states_seen.add((node, arrived.src, arrived.src_port, arrived.dst, arrived.dst_port))
            network = packet_walk.network
        assert len(states_seen) == 1
        exchange(world, network, call, call.later)


@costly
@given(worlds(min_clusters=2), SEEDS, st.sampled_from(Datapath))
def test_errors_reach_whom_they_are_about(world: World, seed: int, datapath: Datapath) -> None:
    """What the server's side says of a request reaches its client, about the address that it called.

    What a client says of a reply reaches the server where nothing is translated, or one gateway's conntrack does.
    """
    network = world.network.over(datapath)
    for call in calls(world, Random(seed), 12, wanted=lambda call: call.protocol != IP_ICMP):
        met = exchange(world, network, call, call.packet)
        request, answer = met.seen, one(met.back)[1]
        answered = world.quoting_gateways(error(request))
        told(met.network.send(met.node, answered), call.client.node, call.packet)
        alone = datapath is Datapath.USERSPACE and len(world.cluster(call.cluster).gateways) == 1
        if world.keeps_source(call.client, call.cluster) and (call.service is None or alone):
            told(met.network.send(call.client.node, error(answer)), met.node, request.reply())


def error(about: Packet) -> Packet:
    """Return what the receiver of a packet says to its sender: nobody is here."""
    complaint = Packet(in_port=1, src=about.dst, dst=about.src, proto=IP_ICMP, icmp_type=UNREACHABLE, quoted=about)
    return from_kernel(complaint)


def told(packet_walk: PacketWalk, node: str, packet: Packet) -> None:
    """Fail unless an ICMP error got to the Node that sent the packet, about this very packet."""
    where, arrived = one(packet_walk)
    assert where == node
    names = ("src", "src_port", "dst", "dst_port")
    assert [getattr(arrived.quoted, n) for n in names] == [getattr(packet, n) for n in names], packet_walk


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_any_gateway_chooses_the_same_endpoint(world: World, seed: int) -> None:
    """A connection meets the same endpoint by whichever gateways of the serving cluster it comes."""

    def wanted(call: Call) -> bool:
        has_several = len(world.cluster(call.cluster).gateways) > 1
        return has_several and to_service(call) and world.keeps_source(call.client, call.cluster)

    for call in calls(world, Random(seed), 6, wanted=wanted):
        gateways = world.cluster(call.cluster).gateways
        abroad = [name for name, node in world.nodes.items() if node.cluster != call.cluster]
        met = set()
        for gateway in gateways:
            other_ports = [(g.name, name) for g in gateways if g is not gateway for name in abroad]
            packet_walk = world.network.cutting(*other_ports).send(call.client.node, call.packet)
            met |= {(p.dst, p.dst_port) for _, p in packet_walk.deliveries}
        assert len(met) == 1, call


@costly
@given(worlds(min_clusters=2, max_clusters=3), SEEDS)
def test_clients_with_one_source_port_do_not_meet(world: World, seed: int) -> None:
    """Clients that hide behind one gateway with one source port keep their connections apart."""
    random = Random(seed)
    all_calls = calls(world, random, 30, wanted=lambda call: not world.keeps_source(call.client, call.cluster))
    target = random.choice(all_calls)
    network, open_calls = world.network, []
    for call in all_calls:
        if (call.address, call.protocol, call.port) == (target.address, target.protocol, target.port):
            open_calls.append(call.on_port(4000))
            network = exchange(world, network, open_calls[-1], open_calls[-1].packet).network
    for call in open_calls:
        network = exchange(world, network, call, call.later).network


@costly
@given(worlds(min_clusters=2), SEEDS)
def test_service_without_endpoints_drops(world: World, seed: int) -> None:
    """A call to an exported Service that has no ready endpoint is dropped."""
    random = Random(seed)
    assume(world.services)
    service = replace(random.choice(world.services), endpoints=(), old_endpoints=())
    cluster = world.cluster(service.cluster)
    names = ("address", "protocol", "port")
    services = (s for s in cluster.services if any(getattr(s, name) != getattr(service, name) for name in names))
    empty = world.having(replace(cluster, services=(*services, service)))
    for call in calls(empty, random, 8, wanted=lambda call: call.client.cluster != service.cluster):
        none(empty.network.send(call.client.node, call.to(service).packet))


@costly
@given(worlds())
def test_flows_do_not_contradict_each_other(world: World) -> None:
    """No two flows of one priority in one table overlap and act differently; every group used exists, once."""
    for node in world.nodes.values():
        flows, groups = world.entries(node)
        assert not [f"{a.match_text} | {b.match_text} in {a.table}" for a, b in contradictions(flows)]
        numbers = [group.group_id for group in groups]
        assert len(set(numbers)) == len(numbers)
        used = [flow.actions for flow in flows] + [bucket.actions for g in groups for bucket in g.buckets]
        named = {a.group_id for actions in used for a in actions if isinstance(a, act.ToGroup)}
        watched = {b.watch_group for g in groups for b in g.buckets if b.watch_group is not None}
        assert named | watched <= set(numbers), node
