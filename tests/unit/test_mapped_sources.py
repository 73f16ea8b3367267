"""Mapped addresses: what stands for the gateways of other clusters in the kernels of this cluster's Nodes."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.addresses.rules import PRIVATE
from mcagent.core.addresses.underlay import MAPPED, endpoint_of, mapped_addresses
from mcagent.core.compile import Compiled, compile_desired
from mcagent.core.fragments import quoted
from mcagent.core.plan.render import node_summary
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import FlowEntry, NftChain, Route
from mcagent.model.objects import ApiObject, ClusterInfoImport, WireGuardInfo
from tests.worlds.core_inputs import HOME, cluster, config, gateway, node, resources, snapshot


def mapped(compiled: Compiled) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the mapped sources by cluster."""
    clusters = compiled.state.clusters.items()
    return {name: tuple((str(source), str(seen)) for source, seen in cluster.mapped) for name, cluster in clusters}


def compiled(*objects: ApiObject, on: str = "g1") -> Compiled:
    """Return what a Node of the cluster home has."""
    return compile_desired(snapshot(*HOME, *objects), Facts(), config(on))


def checksum(address: IPv4Address) -> int:
    """Return the sum of the two halves in one's complement arithmetic."""
    return sum(divmod(int(address), 1 << 16)) % 0xFFFF


def first(source: str) -> str:
    """Return the preferred mapped address of a source."""
    return str(next(mapped_addresses(ip_address(source))))


@given(st.ip_addresses(v=4))
def test_the_checksum_stays_the_same(source: IPv4Address) -> None:
    """Each of the first 256 mapped addresses can replace the source without a change of checksums."""
    candidates = [address for address, _ in zip(mapped_addresses(source), range(256), strict=False)]
    assert len(set(candidates)) == 256
    assert {address in MAPPED for address in candidates} == {True}
    assert {checksum(address) for address in candidates} == {checksum(source)}


@given(st.sampled_from(PRIVATE), st.integers(0, (1 << 24) - 1))
def test_no_tunnel_of_a_private_address_ends_at_a_mapped_address(network: IPv4Network, number: int) -> None:
    """The two ranges have no common address, so no collision is to be resolved in private networks."""
    assert endpoint_of(network[number % network.num_addresses]) not in MAPPED


def test_sources_of_one_private_range_have_different_addresses() -> None:
    """In 10.0.0.0/8 all, elsewhere those with the same first two bytes."""
    sources = [IPv4Address(10 << 24 | second << 16 | last * 257) for second in range(256) for last in range(20)]
    assert len({next(mapped_addresses(source)) for source in sources}) == len(sources)
    assert (first("192.168.1.11"), first("10.1.2.3")) == ("254.168.195.10", "254.1.14.2")


def test_all_nodes_map_alike_and_route_to_the_bridge() -> None:
    """Flows, routes and the repair of quoted packets have the same addresses on gateways and workers."""
    east = cluster("east", "10.97.0.0/16", gateways=("192.168.1.11", "192.168.1.12"))
    for on in ("g1", "w1"):
        compilation = compiled(east, on=on)
        pairs = (("192.168.1.11", "254.168.195.10"), ("192.168.1.12", "254.168.195.11"))
        assert mapped(compilation) == {"east": pairs}
        assert node_summary(compilation.state).clusters["east"].mapped == pairs
        routed = {r.destination for r in resources(compilation) if isinstance(r, Route) and r.device == "mc-gw0"}
        assert {ip_network(seen) for _, seen in pairs} <= routed
        flows = [(flow.match, flow.actions) for flow in resources(compilation) if isinstance(flow, FlowEntry)]
        for source, seen in pairs:
            assert any(f"nw_src={source}" in match and f"set_field:{seen}->ip_src" in do for match, do in flows)
            assert any(f"nw_dst={seen}" in match and f"set_field:{source}->ip_dst" in do for match, do in flows)
        chains = {r.name: r.rules for r in resources(compilation, "mapped") if isinstance(r, NftChain)}
        assert "@th,192,32 0xc0a8010b @th,192,32 set 0xfea8c30a" in chains["mct_quoted_in"]
        assert "@th,160,32 0xfea8c30a @th,160,32 set 0xc0a8010b" in chains["mct_quoted_out"]
    assert quoted.quoted_addresses(Config(node_name="n"), {}) == []


COLLIDING = ("10.1.0.5", "172.1.94.4")  # both have the same sum, and the same second byte


def test_of_two_sources_with_one_address_the_older_keeps_it() -> None:
    """The younger cluster gets the next free address, whatever the names; without the older one, its own."""
    assert first(COLLIDING[0]) == first(COLLIDING[1])
    older = cluster("z", "10.97.0.0/16", gateways=(COLLIDING[0],), created="2026-01-01T00:00:00Z")
    younger = cluster("a", "10.98.0.0/16", gateways=(COLLIDING[1],), created="2026-02-01T00:00:00Z")
    mapped_pairs = mapped(compiled(older, younger))
    assert mapped_pairs["z"] == ((COLLIDING[0], first(COLLIDING[0])),)
    candidates = mapped_addresses(ip_address(COLLIDING[1]))
    next(candidates)
    assert mapped_pairs["a"] == ((COLLIDING[1], str(next(candidates))),)
    assert mapped(compiled(younger))["a"] == ((COLLIDING[1], first(COLLIDING[1])),)


def test_an_address_where_a_tunnel_ends_is_not_used() -> None:
    """A public gateway, or a Node, may have its endpoint in the range of mapped addresses."""
    address = ip_address(first("192.168.1.11"))
    public = ip_address(int(address) & 0x0FFFFFFF | 0x5 << 28)
    assert endpoint_of(public) == address
    east = cluster("east", "10.97.0.0/16", gateways=("192.168.1.11",))
    for other in (
        (cluster("west", "10.98.0.0/16", gateways=(str(public),)),),
        (node("w9", str(public), "10.10.9.0/24"),),
        (node("g9", str(public), "10.10.9.0/24"), gateway("g9", str(public))),
    ):
        mapped_pairs = mapped(compiled(east, *other))
        assert mapped_pairs["east"] != (("192.168.1.11", str(address)),)
        assert {seen for pairs in mapped_pairs.values() for _, seen in pairs}.isdisjoint({str(address)})


@pytest.mark.parametrize("number", [3, 300])
def test_no_number_of_gateways_leaves_a_source_without_an_address(number: int) -> None:
    """Not even if a cluster publishes only gateways with one checksum, which share 256 addresses."""
    sources = [f"172.{16 + n // 64}.{n % 64}.{255 - n % 64 - n // 64}" for n in range(number)]
    compilation = compiled(*(_one(n, sources[n : n + 60]) for n in range(0, number, 60)))
    all_pairs_of_clusters = [pair for pairs in mapped(compilation).values() for pair in pairs]
    assert len({address for _, address in all_pairs_of_clusters}) == len(all_pairs_of_clusters) == number


def _one(number: int, gateways: list[str]) -> ClusterInfoImport:
    return cluster(f"c{number}", f"10.{100 + number // 60}.0.0/16", gateways=tuple(gateways))


def test_ipv6_gateways_are_mapped_by_themselves() -> None:
    """The source on the wire is a mapped address: it is routed, and the bridge changes nothing."""
    east = cluster("east", "10.97.0.0/16", gateways=("2001:db8::1",))
    compilation = compiled(east)
    ((source, seen),) = mapped(compilation)["east"]
    assert source == seen
    assert ip_address(seen) in ip_network("248.0.0.0/5")
    assert not resources(compilation, "mapped")
    flows = [
        flow for flow in resources(compilation) if isinstance(flow, FlowEntry) and f"nw_dst={seen}" in flow.match
    ]
    assert any(flow.table == 5 and "ip_dst" not in flow.actions for flow in flows)


def test_the_endpoint_of_antrea_is_mapped_where_it_encrypts() -> None:
    """Antrea translates to it then, and this cluster's gateways route it to the WireGuard device."""
    info = WireGuardInfo(public_key="A" * 43 + "=")
    east = cluster("east", "10.97.0.0/16", gateways=("203.0.113.1",))
    assert len(mapped(compiled(east))["east"]) == 1
    encrypted = replace(east, wireguard=info)
    assert mapped(compiled(encrypted))["east"][1] == ("10.97.0.0", first("10.97.0.0"))
