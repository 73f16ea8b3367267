"""What becomes of gateways of other clusters while encryption is on."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.addresses.underlay import ENDPOINTS, endpoint_of
from mcagent.core.compile import Compiled, Compiler, compile_desired
from mcagent.model.config import EncryptionFallback
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import FlowEntry, NftChain, NftSet, Route, RouteType, TunnelPort
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardPeer
from mcagent.model.objects import WireGuardInfo
from mcagent.model.problem import Severity
from tests.worlds.core_inputs import HOME, cluster, config, gateway, node, resources, snapshot
from tests.worlds.encrypted_clusters import EAST, EAST_GATEWAYS, FACTS, OWN, compiled, encrypting, key, keyed


def remote_ends(result: Compiled) -> set[str]:
    """Return where tunnels to other clusters end."""
    return {str(r.remote_ip) for r in resources(result) if isinstance(r, TunnelPort) and r.peer_kind == "remote"}


def reasons(result: Compiled) -> set[str]:
    """Return the reasons of all problems."""
    return {problem.reason for problem in result.desired.problems}


def test_every_gateway_is_a_peer_with_an_endpoint_of_its_own() -> None:
    """Tunnels end behind the device: an address that follows from the gatewayIP, allowed to that peer alone."""
    result = compiled(EAST)
    all_resources = resources(result)
    (device,) = [r for r in all_resources if isinstance(r, WireGuardDevice)]
    assert device.addresses == (ip_address("240.0.2.1"),)
    assert (device.public_key, device.listen_port, device.mtu) == (OWN, 51821, 1440)
    peers = {r.public_key: r for r in all_resources if isinstance(r, WireGuardPeer)}
    assert peers[key(11)].endpoint == (ip_address("203.0.113.1"), 51821)
    assert peers[key(12)].allowed_ips == (ip_network("251.0.113.2/32"),)
    assert remote_ends(result) == {"251.0.113.1", "251.0.113.2"}
    assert result.desired.problems == ()


def test_nothing_gets_past_the_device() -> None:
    """Each endpoint has a last route that leads nowhere, and tunnel packets leave by no other device."""
    all_resources = resources(compiled(EAST))
    last = {str(r.destination) for r in all_resources if isinstance(r, Route) and r.type is RouteType.UNREACHABLE}
    by_device = {str(r.destination) for r in all_resources if isinstance(r, Route) and r.device == "mc-wg0"}
    assert last == by_device == {"251.0.113.1/32", "251.0.113.2/32"}
    (chain,) = [r for r in all_resources if isinstance(r, NftChain) and r.name == "mct_clear"]
    assert chain.hook == "postrouting"
    assert chain.rules == ('oifname != "mc-wg0" ip daddr @mct_encrypted udp dport 6081 drop',)
    (closed,) = [r for r in all_resources if isinstance(r, NftSet) and r.name == "mct_encrypted"]
    for address in (*EAST_GATEWAYS, "251.0.113.1", "240.9.9.9"):
        assert any(ip_address(address) in network for network in closed.elements), address


def test_a_cluster_with_one_key_is_reached_as_antrea_does() -> None:
    """Its only gateway's endpoint is the first address of the Service CIDR, and so is ours towards it."""
    antrea = replace(
        cluster("east", "10.97.0.0/16", gateways=("203.0.113.1",)), wireguard=WireGuardInfo(public_key=key(5))
    )
    all_resources = resources(compiled(antrea))
    (device,) = [r for r in all_resources if isinstance(r, WireGuardDevice)]
    assert device.addresses == (ip_address("10.96.0.0"), ip_address("240.0.2.1"))
    (peer,) = [r for r in all_resources if isinstance(r, WireGuardPeer)]
    assert peer.allowed_ips == (ip_network("10.97.0.0/32"),)
    (route,) = [r for r in all_resources if isinstance(r, Route) and r.device == "mc-wg0"]
    assert (route.destination, route.source) == (ip_network("10.97.0.0/32"), ip_address("10.96.0.0"))


@pytest.mark.parametrize(
    ("service_cidr", "home_cidr", "expected"),
    [
        (None, "10.96.0.0/16", {"NoEndpoint"}),
        ("10.97.0.0/16", None, {"NoEndpoint"}),
        ("10.96.128.0/17", "10.96.0.0/16", {"NoEndpoint", "OverlapsLocal"}),
    ],
)
def test_a_cluster_with_one_key_needs_both_service_cidrs(
    service_cidr: str | None, home_cidr: str | None, expected: set[str]
) -> None:
    """Without one of them, or where that of the cluster is refused, nothing is sent to its gateway."""
    antrea = replace(
        cluster("east", service_cidr, "10.20.0.0/16", gateways=("203.0.113.1",)),
        wireguard=WireGuardInfo(public_key=key(5)),
    )
    home = (node("g1", "192.0.2.1", "10.10.1.0/24"), gateway("g1", "192.0.2.1", cidr=home_cidr))
    result = compile_desired(snapshot(*home, antrea), FACTS, encrypting(enable_pod_to_pod=True))
    assert remote_ends(result) == set()
    assert not [r for r in resources(result) if isinstance(r, WireGuardPeer)]
    assert reasons(result) == expected
    (problem,) = (problem for problem in result.desired.problems if problem.reason == "NoEndpoint")
    assert problem.subject == "ClusterInfoImport mc/east-clusterinfo"
    assert (problem.path, problem.severity) == ("spec.wireGuard", Severity.ERROR)
    assert problem.message == "203.0.113.1 is not used: without both Service CIDRs there is no tunnel endpoint"
    keyed_gateway = compile_desired(
        snapshot(*home, keyed(antrea, key(5))), FACTS, encrypting(enable_pod_to_pod=True)
    )
    assert remote_ends(keyed_gateway) == {"251.0.113.1"}


def test_such_a_cluster_sees_connections_from_the_address_it_knows() -> None:
    """Sources are translated to the first address of our Service CIDR towards it, to the gatewayIP for others."""
    antrea = replace(
        cluster("east", "10.97.0.0/16", gateways=("203.0.113.1",)), wireguard=WireGuardInfo(public_key=key(5))
    )
    west = keyed(cluster("west", "10.98.0.0/16", gateways=("203.0.113.9",)), key(20))
    result = compiled(antrea, west)
    assert "nat(src=10.96.0.0:" in _flows(result, "cluster/east")
    assert "nat(src=" not in _flows(result, "cluster/west")
    assert "nat(src=192.0.2.1:" in _flows(result, "base")


def _flows(result: Compiled, owner: str) -> str:
    return "\n".join(r.actions for r in result.desired.fragments[owner].resources if isinstance(r, FlowEntry))


def test_one_side_alone_encrypting_is_told() -> None:
    """A cluster that publishes a key while encryption is off here gets a warning."""
    assert reasons(compiled(EAST, settings=config("g1"))) == {"PeerEncrypts"}


def test_of_a_cluster_with_one_key_only_the_first_gateway_is_used() -> None:
    """A second gateway without a key of its own cannot be encrypted to, and is told."""
    antrea = replace(EAST, gateway_wireguard=())
    result = compiled(antrea)
    assert remote_ends(result) == {"10.97.0.0"}
    assert reasons(result) == {"NoKey"}


@pytest.mark.parametrize("fallback", list(EncryptionFallback))
def test_without_wireguard_nothing_leaves_unless_it_is_allowed(fallback: EncryptionFallback) -> None:
    """No implementation, no key, or a datapath past WireGuard: no tunnel, or one in the clear if allowed."""
    cases = (
        replace(FACTS, wireguard=None),
        replace(FACTS, wireguard_public_key=""),
        replace(FACTS, datapath=DatapathType.NETDEV),
    )
    for facts in cases:
        result = compiled(EAST, facts=facts, settings=encrypting(encryption_fallback=fallback))
        clear = fallback is EncryptionFallback.ALLOW_CLEAR
        assert remote_ends(result) == (set(EAST_GATEWAYS) if clear else set())
        assert not [r for r in resources(result) if isinstance(r, (WireGuardDevice, WireGuardPeer))]
        assert reasons(result) == {"EncryptionUnavailable"}
        (closed,) = [r for r in resources(result) if isinstance(r, NftSet) and r.name == "mct_encrypted"]
        open_now = {a for a in EAST_GATEWAYS if not any(ip_address(a) in n for n in closed.elements)}
        assert open_now == (set(EAST_GATEWAYS) if clear else set())


def test_a_cluster_that_does_not_encrypt_is_not_reached_unless_it_is_allowed() -> None:
    """No key published: refused, or used in the clear with a warning."""
    clear = cluster("west", "10.98.0.0/16", gateways=("203.0.113.9",))
    assert remote_ends(compiled(EAST, clear)) == {"251.0.113.1", "251.0.113.2"}
    allowed = compiled(EAST, clear, settings=encrypting(encryption_fallback=EncryptionFallback.ALLOW_CLEAR))
    assert remote_ends(allowed) == {"251.0.113.1", "251.0.113.2", "203.0.113.9"}
    assert reasons(allowed) == {"NotEncrypted"}


def test_a_key_belongs_to_the_oldest_cluster_that_has_it() -> None:
    """A younger cluster, or one with our own key, cannot attract what is another's."""
    thief = keyed(cluster("west", "10.98.0.0/16", gateways=("203.0.113.9",), created="2026-02-02"), key(12))
    result = compiled(EAST, thief)
    assert remote_ends(result) == {"251.0.113.1", "251.0.113.2"}
    assert reasons(result) == {"DuplicateKey"}
    mirror = keyed(cluster("west", "10.98.0.0/16", gateways=("203.0.113.9",)), OWN)
    assert remote_ends(compiled(EAST, mirror)) == {"251.0.113.1", "251.0.113.2"}
    announced = keyed(
        cluster("west", "10.98.0.0/16", gateways=("203.0.113.9",), created="2026-02-02"),
        WireGuardInfo(public_key=key(77), next_public_key=key(11)),
    )
    assert reasons(compiled(EAST, announced)) == {"DuplicateKey"}


def test_an_endpoint_belongs_to_the_oldest_cluster_that_has_it() -> None:
    """Two gatewayIPs that differ in their first four bits only: the younger one is refused."""
    twin = keyed(cluster("west", "10.98.0.0/16", gateways=("11.0.113.1",), created="2026-02-02"), key(13))
    assert endpoint_of(ip_address("11.0.113.1")) == endpoint_of(ip_address("203.0.113.1"))
    result = compiled(EAST, twin)
    assert remote_ends(result) == {"251.0.113.1", "251.0.113.2"}
    assert reasons(result) == {"DuplicateAddress"}


def test_a_changed_peer_changes_that_peer_alone() -> None:
    """New key, port, or successor of one cluster: every other fragment is the very same object.

    But a new port is one more that nobody but tunnels may send to.
    """
    west = keyed(cluster("west", "10.98.0.0/16", gateways=("203.0.113.9",), created="2026-02-02"), key(20))
    compiler = Compiler()
    for changed in (
        key(21),
        WireGuardInfo(public_key=key(20), port=5),
        WireGuardInfo(public_key=key(20), next_public_key=key(22)),
    ):
        before = compiler.compile(snapshot(*HOME, EAST, west), FACTS, encrypting())
        again = compiler.compile(snapshot(*HOME, EAST, keyed(west, changed)), FACTS, encrypting())
        different = {
            n for n, fragment in again.desired.fragments.items() if before.desired.fragments.get(n) is not fragment
        }
        assert different == ({"cluster/west", "guard"} if getattr(changed, "port", 0) else {"cluster/west"})
        assert again.desired.fragments == compiled(EAST, keyed(west, changed)).desired.fragments


def test_workers_have_no_device_but_leave_room_for_it() -> None:
    """The MTU of routes is the same on all Nodes of the cluster; only gateways encrypt."""
    worker = replace(encrypting(), node_name="w1")
    all_resources = resources(compiled(EAST, settings=worker))
    assert not [r for r in all_resources if isinstance(r, (WireGuardDevice, WireGuardPeer))]
    states = [compiled(EAST, settings=replace(worker, node_name=name)).desired.state for name in ("g1", "w1")]
    assert [state.mtu for state in states] == [1500 - 60 - 50] * 2


PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
OTHERS = ("192.0.2.0/24", "198.18.0.0/15", "169.254.0.0/16")


@given(
    st.sets(st.sampled_from((*PRIVATE, *OTHERS)).flatmap(lambda net: st.ip_addresses(network=net)), max_size=20)
)
def test_endpoints_are_unicast_and_few_collide(found: set[IPv4Address]) -> None:
    """Every endpoint is in the range set aside; private networks never share one."""
    inside = {a for a in found if any(a in ip_network(net) for net in PRIVATE)}
    assert all(endpoint_of(a) in ENDPOINTS for a in found)
    assert len({endpoint_of(a) for a in inside}) == len(inside)
