"""Which packets are taken for tunnels' that are not: sets and rules for every Node."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.agent.reports.counters import NFT_DROP_REASONS
from mcagent.core.addresses.rules import merge_networks
from mcagent.core.compile import Compiled, Compiler, compile_desired
from mcagent.core.fragments.tunnel_guard import (
    BFD_PORT,
    CLEAR,
    FORGED,
    LINK,
    TO_TUNNEL,
    TO_WIREGUARD,
    TUNNEL_IN,
    _merged,
)
from mcagent.model.config import Config, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import (
    DEFAULT_PORTS,
    FlowEntry,
    NftChain,
    NftSet,
    PeerKind,
    TunnelPort,
    TunnelType,
)
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.net import Address, host_network
from mcagent.model.objects import ApiObject, ClusterInfoImport, WireGuardInfo
from tests.worlds.core_inputs import HOME, cluster, config, gateway, namespace, networks, node, resources, snapshot
from tests.worlds.own_endpoints import CLIENTS, OWN, rule

EAST = cluster("east", "10.97.0.0/16", gateways=("203.0.113.1", "203.0.113.2"), created="2026-01-01")
NO_FACTS = Facts()
KEY = "a" * 43 + "="
FACTS = Facts(wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=KEY.replace("a", "b"))
HOME6 = (
    node("g1", ("192.0.2.1", "2001:db8:1::11"), "10.10.1.0/24"),
    node("w1", ("192.0.2.3", "2001:db8:1::13"), "10.10.3.0/24"),
    gateway("g1", "2001:db8:1::11"),
)
EAST6 = cluster("east", "10.97.0.0/16", gateways=("2001:db8:2::11",))


def compiled(*objects: ApiObject, on: str = "w1", facts: Facts = NO_FACTS, **values: object) -> Compiled:
    """Compile a Node with these objects."""
    return compile_desired(snapshot(*objects), facts, config(on, **values))


def found(result: Compiled) -> list[NftChain | NftSet]:
    """Return all that is nft's."""
    return [resource for resource in resources(result) if isinstance(resource, NftChain | NftSet)]


def chains(result: Compiled, name: str) -> dict[str, tuple[str, ...]]:
    """Return the rules of a chain by the family of its table."""
    return {
        resource.family: resource.rules
        for resource in found(result)
        if isinstance(resource, NftChain) and resource.name == name
    }


def sets(result: Compiled, name: str) -> dict[str, NftSet]:
    """Return a set by the family of its table."""
    return {
        resource.family: resource
        for resource in found(result)
        if isinstance(resource, NftSet) and resource.name == name
    }


@pytest.mark.parametrize("on", ["g1", "w1"])
def test_every_node_knows_every_end_of_a_tunnel(on: str) -> None:
    """Workers too: what their Pods send gets their address, and could be forged to have any other."""
    result = compiled(*HOME, EAST, on=on)
    peers = sets(result, "mct_peers")
    assert set(peers) == {"ip"}
    assert peers["ip"].elements == networks("192.0.2.1/32", "192.0.2.2/31", "203.0.113.1/32", "203.0.113.2/32")


def test_what_is_forwarded_is_dropped_before_the_cni_can_give_it_the_nodes_address() -> None:
    """Hook forward: after any destination NAT, before any source NAT. The port first: most have another."""
    (chain,) = [resource for resource in found(compiled(*HOME, EAST)) if resource.name == TO_TUNNEL]
    assert isinstance(chain, NftChain)
    assert (chain.type, chain.hook, chain.priority) == ("filter", "forward", -150)
    assert chain.rules == (
        "udp dport { 3784, 6081 } ip daddr @mct_peers ip saddr != @mct_peers counter drop",
        "udp dport { 3784, 6081 } ip daddr @mct_peers ct status dnat counter drop",
    )


def test_the_port_is_that_of_the_tunnels() -> None:
    """VXLAN's, or the configured one."""
    assert "{ 3784, 4789 }" in chains(compiled(*HOME, tunnel_type=TunnelType.VXLAN), TO_TUNNEL)["ip"][0]
    assert "{ 3784, 5000 }" in chains(compiled(*HOME, tunnel_port=5000), TO_TUNNEL)["ip"][0]


def test_an_ipv6_underlay_has_a_table_of_its_own() -> None:
    """Only families that tunnels have: IPv6 addresses of dual-stack Nodes are not ends of IPv4 tunnels."""
    result = compiled(*HOME6, EAST6)
    assert sets(result, "mct_peers").keys() == {"ip6"}
    assert sets(result, "mct_peers")["ip6"].elements == networks(
        "2001:db8:1::11/128", "2001:db8:1::13/128", "2001:db8:2::11/128"
    )
    rule = "udp dport { 3784, 6081 } ip6 daddr @mct_peers ip6 saddr != @mct_peers counter drop"
    assert chains(result, TO_TUNNEL)["ip6"][0] == rule
    four = compiled(*HOME6[:2], gateway("g1", "192.0.2.1"), EAST)
    assert {resource.family for resource in found(four)} == {"ip"}


def test_sources_are_checked_unless_switched_off() -> None:
    """A Node with asymmetric uplinks can have it off; nothing else of the guard changes."""
    on, off = compiled(*HOME, EAST), compiled(*HOME, EAST, tunnel_source_check=False)
    rules = chains(on, FORGED)["ip"]
    leads_not = "ip saddr @mct_peers fib saddr . iif oif missing counter drop"
    assert rules[:3] == (
        "udp dport != { 3784, 6081 } accept",
        "udp dport { 3784, 6081 } ip daddr @mct_peers fib daddr . iif type local accept",
        f'udp dport {{ 3784, 6081 }} meta iifkind "veth" {leads_not}',
    )
    checks = {FORGED, LINK, "mct_cluster", "mct_on_link"}
    assert [resource for resource in found(on) if resource.name not in checks] == found(off)


def test_a_tunnel_ends_at_one_address_and_is_not_tracked() -> None:
    """To the Node's own end, from peers, and never translated: before and after destination NAT."""
    result = compiled(*HOME, EAST, on="g1")
    assert sets(result, "mct_ends")["ip"].elements == networks("192.0.2.1/32")
    between = "udp dport 6081 ip saddr @mct_peers ip daddr @mct_peers notrack"
    assert chains(result, "mct_tunnels_pre")["ip"] == chains(result, "mct_tunnels_out")["ip"] == (between,)
    assert chains(result, TUNNEL_IN)["ip"] == (
        "udp dport 6081 ct status dnat counter drop",
        "udp dport 6081 ip saddr @mct_peers ip daddr != @mct_ends counter drop",
        "udp dport 6081 ip saddr != @mct_peers ip daddr @mct_ends counter drop",
    )
    ports = {port.peer: port for port in resources(result) if isinstance(port, TunnelPort)}
    assert {(str(port.local_ip), port.ttl) for port in ports.values()} == {("192.0.2.1", 255)}


def test_only_nodes_of_this_cluster_have_to_be_on_the_link() -> None:
    """Gateways of other clusters may be anywhere, and nobody can say that a Node behind a router is not there."""
    result = compiled(*HOME, EAST, facts=replace(NO_FACTS, connected=networks("192.0.2.0/24", "203.0.113.0/24")))
    assert sets(result, "mct_cluster")["ip"].elements == networks("192.0.2.1/32", "192.0.2.2/31")
    compilation = compiled(
        *HOME, EAST, facts=replace(NO_FACTS, connected=networks("192.0.2.2/31", "2001:db8::/32"))
    )
    assert sets(compilation, "mct_cluster")["ip"].elements == networks("192.0.2.2/31")
    assert sets(compiled(*HOME, EAST), "mct_cluster")["ip"].elements == ()
    assert sets(result, "mct_on_link")["ip"].learned
    assert chains(result, LINK)["ip"][0].startswith("udp dport 6081 ip saddr @mct_cluster ip ttl 255 update ")
    six = chains(compiled(*HOME6, EAST6), LINK)["ip6"]
    assert six[0].startswith("udp dport 6081 ip6 saddr @mct_cluster ip6 hoplimit 255 update ")


def test_a_translated_gateway_ends_its_tunnels_at_its_own_address() -> None:
    """The gatewayIP is on no device (an Elastic IP); where the InternalIP is not, either, the end is unknown."""
    public = (*HOME[:-2], gateway("g1", "198.51.100.1", internal="192.0.2.1"), EAST)
    for addresses, end in ((("192.0.2.1",), "192.0.2.1"), (("10.0.0.1",), "None"), ((), "198.51.100.1")):
        facts = replace(NO_FACTS, addresses=tuple(map(ip_address, addresses)))
        result = compiled(*public, on="g1", facts=facts)
        remote = [
            port.local_ip
            for port in resources(result)
            if isinstance(port, TunnelPort) and port.peer_kind is PeerKind.REMOTE
        ]
        assert {str(address) for address in remote} == {end}
        assert ("mct_ends" in {resource.name for resource in found(result)}) is (end != "None")


def test_without_a_role_there_is_no_guard() -> None:
    """No Gateway, no tunnels: no table without other clusters, and else none of its chains is about a tunnel."""
    assert found(compiled(*HOME[:2])) == []
    dropping = found(compiled(*HOME[:2], EAST))
    assert "mct_nodes" in {resource.name for resource in dropping}
    assert not [r for r in dropping if "udp dport" in str(r) or r.name in ("mct_peers", "mct_ends")]


def encrypted(info: ClusterInfoImport, ports: tuple[int, ...]) -> ClusterInfoImport:
    """Return the object with a key for each gateway, and these ports."""
    infos = [WireGuardInfo(public_key=KEY, port=port) for port in ports]
    return replace(info, wireguard=infos[0], gateway_wireguard=tuple(zip(info.gateway_ips, infos, strict=True)))


def test_wireguards_ports_are_each_peers_own() -> None:
    """A port that a cluster publishes is closed on its own gateway alone: elsewhere it may be any service's.

    So are the ports of further devices: of this cluster's gateways those that their configuration allows.
    """
    info = encrypted(EAST, (0, 53))
    result = compiled(*HOME, info, encryption=TrafficEncryption.WIREGUARD, wireguard_devices=2)
    own = (ip_address("192.0.2.1"), ip_address("192.0.2.2"))
    own_ports: list[tuple[Address, int]] = [(address, port) for address in own for port in (51821, 51822)]
    other_ports: list[tuple[Address, int]] = [(ip_address("203.0.113.1"), 51821), (ip_address("203.0.113.2"), 53)]
    assert sets(result, "mct_wireguard")["ip"].sockets == (*own_ports, *other_ports)
    assert chains(result, TO_WIREGUARD)["ip"] == (
        'oifname "mc-wg0" counter drop',
        'iifname "mc-wg0" counter drop',
        # Mapped sources lie in this range, too: replies to them go to the bridge.
        'oifname != "mc-gw0" ip daddr 240.0.0.0/4 counter drop',
        "ip daddr . udp dport @mct_wireguard ip saddr != @mct_peers counter drop",
        "ip daddr . udp dport @mct_wireguard ct status dnat counter drop",
    )
    assert chains(compiled(*HOME, EAST), TO_WIREGUARD) == {}


def test_an_encrypted_peer_is_heard_by_the_wireguard_device_alone() -> None:
    """On gateways: nothing in the clear from it, and nothing but that device leads to this Node's own endpoint."""
    result = compiled(*HOME, encrypted(EAST, (0, 0)), on="g1", facts=FACTS, encryption=TrafficEncryption.WIREGUARD)
    assert chains(result, CLEAR)["ip"] == (
        'iifname != "mc-wg0" udp dport 6081 ip saddr @mct_encrypted counter drop',
        'iifname != "lo" iifname != "mc-wg0" ip daddr @mct_own_ends counter drop',
    )
    assert sets(result, "mct_own_ends")["ip"].elements == networks("240.0.2.1/32")


def test_every_chain_that_counts_has_a_reason() -> None:
    """So every packet that is dropped is in the metric."""
    on = {"encryption": TrafficEncryption.WIREGUARD, "stretched_network_policy": True, "cluster_id": "home"}
    closed = (namespace("default"), *CLIENTS, OWN, rule("stay", 5, "Drop"))
    result = compiled(*HOME, encrypted(EAST, (0, 0)), *closed, on="g1", facts=FACTS, **on)
    counting = {
        resource.name
        for resource in found(result)
        if isinstance(resource, NftChain) and any("counter" in r for r in resource.rules)
    }
    assert counting == set(NFT_DROP_REASONS)


def test_what_is_taken_over_is_what_a_fresh_start_finds() -> None:
    """Clusters that come, go, move or change a port; the others are not looked at again."""
    settings: Config = config("g1", encryption=TrafficEncryption.WIREGUARD)
    west = cluster("west", "10.98.0.0/16", gateways=("203.0.113.9",), created="2026-02-02")
    compiler = Compiler()
    before = compiler.compile(snapshot(*HOME, EAST, west), FACTS, settings)
    for infos in (
        (EAST,),
        (EAST, replace(west, gateway_ips=(ip_address("203.0.113.10"),))),
        (EAST, encrypted(west, (7,))),
        (EAST, west, cluster("north", "10.99.0.0/16", created="2026-03-03")),
        (encrypted(EAST, (8, 9)), west),
    ):
        after = compiler.compile(snapshot(*HOME, *infos), FACTS, settings)
        assert after.desired.fragments["guard"] != before.desired.fragments["guard"]
        assert (
            after.desired.fragments == compile_desired(snapshot(*HOME, *infos), FACTS, settings).desired.fragments
        )
        before = after


def test_a_change_that_moves_no_end_costs_nothing() -> None:
    """The very value of before, when a cluster changes its networks."""
    compiler = Compiler()
    before = compiler.compile(snapshot(*HOME, EAST), NO_FACTS, config("w1"))
    moved = replace(EAST, service_cidr=networks("10.55.0.0/16")[0])
    after = compiler.compile(snapshot(*HOME, moved), NO_FACTS, config("w1"))
    assert after.desired.fragments["guard"] is before.desired.fragments["guard"]


@given(st.sets(st.integers(0, 40) | st.integers(2**32 - 20, 2**32 - 1)), st.sampled_from([4, 6]))
def test_addresses_are_merged_as_nft_lists_them(values: set[int], version: int) -> None:
    """The fewest networks that hold just these: what a restart reads back is what was asked for."""
    networks = {n: host_network(IPv4Address(n) if version == 4 else IPv6Address(n)) for n in values}
    assert _merged(networks) == merge_networks(networks.values())


@pytest.mark.parametrize("datapath", DatapathType)
@pytest.mark.parametrize("port", [0, 4789, 10000, 12000, 30000, 32767, 51000, 65535])
def test_snat_gives_no_port_of_a_tunnel(datapath: DatapathType, port: int) -> None:
    """A reply to such a port would be dropped as forged; and many ports are left, none of Linux' own on netdev."""
    result = compiled(*HOME, EAST, on="g1", facts=Facts(datapath=datapath), tunnel_port=port)
    flows = [resource for resource in resources(result) if isinstance(resource, FlowEntry)]
    ranges = {
        tuple(map(int, two))
        for resource in flows
        for two in re.findall(r"nat\(src=[^:)]*:(\d+)-(\d+)\)", resource.actions)
    }
    ((first, last),) = ranges
    assert sum("nat(src=" in resource.actions for resource in flows) == sum(
        f":{first}-{last})" in resource.actions for resource in flows
    )
    assert not {BFD_PORT, port, *DEFAULT_PORTS.values()} & set(range(first, last + 1))
    assert last - first > 10000
    assert last < 32768 or datapath is DatapathType.SYSTEM
