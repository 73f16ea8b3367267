"""Virtual Pod CIDRs: clusters with the same Pod CIDR reach each other's Pods, without state of the translation."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import pipeline
from flows.fields import IP_ICMP
from flows.pipeline.prefixes import address_in_bridge, address_in_kernel, network_in_bridge
from flows.simulator import Datapath, Packet
from flows.simulator.packet import UNREACHABLE, IpFragment
from mcagent.model.net import PodPrefix
from tests.properties import costly
from tests.worlds.contradictions import contradictions
from tests.worlds.conversations import Call, calls, exchange, none, one
from tests.worlds.topologies import World, from_kernel, worlds

SEEDS = st.integers(0, 2**32)
VIRTUAL = worlds(min_clusters=2, max_clusters=3, virtual=True)
PREFIX = PodPrefix(real=ip_network("10.244.0.0/16"), virtual=ip_network("100.72.0.0/16"))


def translated(world: World, call: Call) -> bool:
    """Tell whether one of the two ends of a call is a Pod with a virtual address."""
    called = call.service is None and world.cluster(call.cluster).virtual_cidr is not None
    return called or world.abroad(call.client) != call.client.address


@costly
@given(VIRTUAL, SEEDS, st.sampled_from(Datapath))
def test_there_and_back_with_one_pod_cidr(world: World, seed: int, datapath: Datapath) -> None:
    """The server sees the client's virtual address, and both kernels only real addresses of their own Pods."""
    network = world.network.over(datapath)
    for call in calls(world, Random(seed), 20, wanted=lambda call: translated(world, call)):
        first = exchange(world, network, call, call.packet)
        network = exchange(world, first.network, call, call.later).network


@costly
@given(VIRTUAL, SEEDS)
def test_any_gateway_forwards_any_packet(world: World, seed: int) -> None:
    """Between published Pods each packet passes by any pair of gateways, of which none knows the connection."""

    def wanted(call: Call) -> bool:
        return call.service is None and translated(world, call) and world.keeps_source(call.client, call.cluster)

    for call in calls(world, Random(seed), 4, wanted=wanted):
        first = exchange(world, world.network, call, call.packet)
        ends = {call.client.node, first.node}
        near, far = (
            [gateway.name for gateway in world.cluster(name).gateways if gateway.name not in ends]
            for name in (call.client.cluster, call.cluster)
        )
        for names in product(near or [""], far or [""]):
            remaining = first.network.losing(*({*near, *far} - set(names)))
            connections_of_ends = {name: table for name, table in remaining.connections.items() if name in ends}
            exchange(world, replace(remaining, connections=connections_of_ends), call, call.later)


@costly
@given(VIRTUAL, SEEDS)
def test_the_real_address_is_unknown_abroad(world: World, seed: int) -> None:
    """No packet has a real address abroad, or is delivered to it; no Pod sends from a virtual one."""
    random = Random(seed)
    for call in calls(world, random, 6, wanted=lambda call: translated(world, call)):
        near, far = world.cluster(call.client.cluster), world.cluster(call.cluster)
        for name, walk in world.network.send(call.client.node, call.packet).walks[:-1]:
            if world.nodes[name].cluster == far.name and call.client.address in near.pod_cidr:
                assert walk.packet.src not in near.pod_cidr or near.virtual_cidr is None
        if far.virtual_cidr is not None:
            pod = next(pod for pod in far.pods if pod.address in far.pod_cidr)
            for gateway in far.gateways:
                for source in near.gateways:
                    port = world.ports[gateway.name, source.name]
                    packet = replace(call.packet, in_port=port, src=world.abroad(call.client), dst=pod.address)
                    none(world.network.send(gateway.name, packet))
        if near.virtual_cidr is not None:
            for forged in (
                near.virtual_cidr[5],
                near.virtual_cidr[int(random.choice(near.pods).address) & 0xFFFF],
            ):
                none(world.network.send(call.client.node, replace(call.packet, src=forged)))


@costly
@given(VIRTUAL, SEEDS, st.sampled_from(Datapath))
def test_errors_quote_addresses_that_their_receiver_knows(world: World, seed: int, datapath: Datapath) -> None:
    """With the quote as nft changes it on both sides, an ICMP error reaches the sender of the packet."""
    network = world.network.over(datapath)

    def wanted(call: Call) -> bool:
        return call.protocol != IP_ICMP and translated(world, call)

    for call in calls(world, Random(seed), 12, wanted=wanted):
        met = exchange(world, network, call, call.packet)
        request = met.seen
        about = Packet(
            in_port=1, src=request.dst, dst=request.src, proto=IP_ICMP, icmp_type=UNREACHABLE, quoted=request
        )
        sent = world.quoting_gateways(from_kernel(about), call.cluster)
        where, arrived = one(met.network.send(met.node, sent))
        assert where == call.client.node
        received = world.quoting_pods(arrived, call.client.cluster)
        names = ("src", "src_port", "dst", "dst_port")
        assert [getattr(received.quoted, n) for n in names] == [getattr(call.packet, n) for n in names]


@costly
@given(VIRTUAL, SEEDS)
def test_fragments_are_translated_alike(world: World, seed: int) -> None:
    """Each fragment of a request reaches the Node with the same addresses."""
    for call in calls(world, Random(seed), 4, wanted=lambda c: c.service is None and translated(world, c)):
        if not world.keeps_source(call.client, call.cluster):
            continue
        places = set()
        for fragment in IpFragment:
            walk = world.network.send(call.client.node, replace(call.packet, fragment=fragment))
            node, packet = one(walk)
            places.add((node, packet.src, packet.dst))
        assert len(places) == 1


@costly
@given(VIRTUAL)
def test_flows_do_not_contradict_each_other(world: World) -> None:
    """No two flows of one priority in one table overlap and act differently."""
    for node in world.nodes.values():
        flows, _ = world.entries(node)
        assert not [f"{a.match_text} | {b.match_text} in {a.table}" for a, b in contradictions(flows)]


@given(st.ip_addresses(v=4), st.integers(8, 32), st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_addresses_are_translated_one_to_one(
    real: IPv4Address, length: int, virtual: IPv4Address, address: IPv4Address
) -> None:
    """Prefixes are replaced, the other bits stay, and there is a way back."""
    networks = [IPv4Network((int(a) >> (32 - length) << (32 - length), length)) for a in (real, virtual)]
    prefixes = (PodPrefix(real=networks[0], virtual=networks[1]),)
    inside = networks[0][int(address) & int(networks[0].hostmask)]
    in_bridge = address_in_bridge(inside, prefixes)
    assert in_bridge in networks[1]
    assert int(in_bridge) & int(networks[0].hostmask) == int(inside) & int(networks[0].hostmask)
    assert address_in_kernel(in_bridge, prefixes) == inside
    assert network_in_bridge(IPv4Network(inside), prefixes) == IPv4Network(in_bridge)
    if address not in networks[0]:
        assert address_in_bridge(address, prefixes) == address


@pytest.mark.parametrize(
    ("network", "in_bridge"),
    [
        ("10.244.0.0/16", "100.72.0.0/16"),
        ("10.244.3.0/24", "100.72.3.0/24"),
        ("10.244.0.0/15", "10.244.0.0/15"),
        ("10.245.0.0/24", "10.245.0.0/24"),
    ],
)
def test_networks_inside_a_prefix_are_translated(network: str, in_bridge: str) -> None:
    """A network around a prefix, or elsewhere, stays."""
    assert network_in_bridge(ip_network(network), (PREFIX,)) == ip_network(in_bridge)


def test_one_flow_for_each_direction() -> None:
    """Each Node has the same masked actions, whatever the number of other clusters, and no more conntrack."""
    env = pipeline.Env(gateway=False, ct_zone_base=100, local_gateways=(2,), prefixes=(PREFIX,))
    hops = pipeline.NextHopGroup(next_hops=(pipeline.NextHop(ofport=2),))
    flows = {flow.match_text: flow for flow in pipeline.base(env, hops).flows if flow.table in (8, 82)}
    out, into = flows["ip,nw_src=10.244.0.0/16"], flows["ip,nw_dst=100.72.0.0/16"]
    assert out.actions_text == "set_field:100.72.0.0/16->ip_src,goto_table:10"
    assert into.actions_text == "set_field:10.244.0.0/16->ip_dst,set_field:0a:6d:63:00:00:01->eth_dst,output:1"
    assert flows["ip,nw_src=100.72.0.0/16"].actions_text == "drop"
    assert address_in_bridge(ip_address("10.244.7.9"), env.prefixes) == ip_address("100.72.7.9")
    without = pipeline.base(replace(env, prefixes=()), hops)
    assert not [flow for flow in without.flows if flow.table in (8, 82)]
