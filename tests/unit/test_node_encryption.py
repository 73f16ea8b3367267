"""Encryption between the Nodes of one cluster: which Nodes are encrypted to, and what never leaves unencrypted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.agent.config import load
from mcagent.api.status import EncryptionStatus
from mcagent.cli.wireguard import text
from mcagent.config.reader import ConfigError
from mcagent.core.addresses.underlay import endpoint_of
from mcagent.core.compile import Compiled, compile_desired
from mcagent.model.config import Config, NodeTrafficEncryption, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import NftChain, NftSet, Route, RouteType, TunnelPort
from mcagent.model.dataplane.wireguard import (
    WireGuardDevice,
    WireGuardImplementation,
    WireGuardPeer,
    WireGuardPeerStatus,
)
from mcagent.model.net import Address
from mcagent.model.objects import ApiObject, Node, WireGuardInfo
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION, node_key_text
from mcagent.model.parsing.parse import parse_object
from mcagent.model.problem import Severity
from mcagent.observe.wireguard import WireGuardReport, encryption_of
from tests.worlds.core_inputs import HOME, addresses, config, gateway, networks, node, resources, snapshot
from tests.worlds.encrypted_clusters import EAST, key

# The keys of g1, g2 and w1 of cluster "home".
KEYS = {"g1": key(1), "g2": key(2), "w1": key(3)}
PREFERRED, REQUIRED = NodeTrafficEncryption.PREFERRED, NodeTrafficEncryption.REQUIRED
GATEWAY_ADDRESSES = addresses("192.0.2.1", "192.0.2.2")


def settings(on: str, mode: NodeTrafficEncryption = REQUIRED, **values: object) -> Config:
    """Return the configuration of a Node that encrypts between Nodes."""
    return config(on, encryption=TrafficEncryption.WIREGUARD, node_encryption=mode, **values)


def keyed(keys: Mapping[str, str | WireGuardInfo] = KEYS, home: tuple[ApiObject, ...] = HOME) -> list[ApiObject]:
    """Return the objects of cluster "home" in which these Nodes publish these keys."""

    def info(name: str) -> WireGuardInfo | None:
        value = keys.get(name)
        return WireGuardInfo(public_key=value, port=51821) if isinstance(value, str) else value

    return [replace(obj, wireguard=info(obj.meta.name)) if isinstance(obj, Node) else obj for obj in home]


def facts(on: str, **values: object) -> Facts:
    """Return the facts of a Node with its key."""
    plain = Facts(wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=KEYS[on])
    return replace(plain, **values)  # type: ignore[arg-type]


def compiled(
    on: str,
    *objects: ApiObject,
    mode: NodeTrafficEncryption = REQUIRED,
    seen: Facts | None = None,
    **values: object,
) -> Compiled:
    """Compile a Node with these objects, by default all of "home" with their keys."""
    all_objects = objects or tuple(keyed())
    return compile_desired(snapshot(*all_objects), seen or facts(on), settings(on, mode, **values))


def tunnels(result: Compiled) -> dict[str, TunnelPort]:
    """Return the tunnels to Nodes by name of the Node."""
    return {r.peer: r for r in resources(result) if isinstance(r, TunnelPort) and r.peer_kind != "remote"}


def peers(result: Compiled) -> dict[str, WireGuardPeer]:
    """Return the WireGuard peers by key."""
    return {r.public_key: r for r in resources(result) if isinstance(r, WireGuardPeer)}


def closed(result: Compiled, address: Address) -> bool:
    """Tell whether unencrypted tunnel packets to and from an address are dropped."""
    sets = [r for r in resources(result) if isinstance(r, NftSet) and r.name == "mct_encrypted"]
    return any(
        address in network
        for nft_set in sets
        for network in nft_set.elements
        if network.version == address.version
    )


def reasons(result: Compiled) -> list[str]:
    """Return the reasons of all problems."""
    return [problem.reason for problem in result.desired.problems]


# --- who is encrypted to


def test_a_worker_has_a_device_and_a_peer_for_each_gateway() -> None:
    """Its tunnels end behind the device, at addresses that follow from those of the Nodes."""
    result = compiled("w1")
    (device,) = [r for r in resources(result) if isinstance(r, WireGuardDevice)]
    assert device.addresses == addresses("240.0.2.3")
    assert (device.public_key, device.listen_port, device.mtu) == (KEYS["w1"], 51821, 1440)
    assert set(peers(result)) == {KEYS["g1"], KEYS["g2"]}
    of_g1 = peers(result)[KEYS["g1"]]
    assert of_g1.endpoint == (ip_address("192.0.2.1"), 51821)
    assert of_g1.allowed_ips == networks("240.0.2.1/32")
    ends = {name: (str(t.remote_ip), str(t.local_ip)) for name, t in tunnels(result).items()}
    assert ends == {"g1": ("240.0.2.1", "240.0.2.3"), "g2": ("240.0.2.2", "240.0.2.3")}
    assert result.desired.problems == ()


def test_both_ends_of_each_tunnel_agree() -> None:
    """Every Node accepts from a peer the address at which its own tunnel to it ends."""
    of = {name: tunnels(compiled(name)) for name in KEYS}
    for name, far in of.items():
        for peer, tunnel in far.items():
            assert of[peer][name].remote_ip == tunnel.local_ip
            assert of[peer][name].local_ip == tunnel.remote_ip
    assert {name: set(far) for name, far in of.items()} == {
        "g1": {"g2", "w1"},
        "g2": {"g1", "w1"},
        "w1": {"g1", "g2"},
    }


def test_a_gateway_has_one_device_for_nodes_and_clusters() -> None:
    """Peers of other clusters stay as they are without encryption between Nodes."""
    remote = replace(EAST, gateway_wireguard=((ip_address("203.0.113.1"), WireGuardInfo(public_key=key(11))),))
    result = compiled("g1", *keyed(), remote)
    assert len([r for r in resources(result) if isinstance(r, WireGuardDevice)]) == 1
    assert set(peers(result)) == {KEYS["g2"], KEYS["w1"], key(11)}
    without = compile_desired(snapshot(*keyed(), remote), facts("g1"), settings("g1", NodeTrafficEncryption.NONE))
    assert peers(without)[key(11)] == peers(result)[key(11)]
    assert {str(t.remote_ip) for t in tunnels(without).values()} == {"192.0.2.2", "192.0.2.3"}


def test_an_internal_ip_of_its_own_has_an_endpoint_of_its_own() -> None:
    """A gateway's tunnels to Nodes end at its internalIP, those to clusters at its gatewayIP."""
    home = (*HOME[:3], gateway("g1", "198.18.0.1", internal="192.0.2.1"))
    on_gateway = compiled("g1", *keyed(home=home))
    (device,) = [r for r in resources(on_gateway) if isinstance(r, WireGuardDevice)]
    assert device.addresses == addresses("240.0.2.1", "246.18.0.1")
    assert str(tunnels(on_gateway)["w1"].local_ip) == "240.0.2.1"
    assert str(tunnels(compiled("w1", *keyed(home=home)))["g1"].remote_ip) == "240.0.2.1"


def test_an_ipv6_underlay_has_ipv4_endpoints() -> None:
    """WireGuard runs over IPv6, the tunnel inside over IPv4."""
    home = (node("g1", "2001:db8:1::11"), node("w1", "2001:db8:1::13"), gateway("g1", "2001:db8:1::11"))
    result = compiled("w1", *keyed(home=home))
    (tunnel,) = tunnels(result).values()
    assert tunnel.remote_ip == endpoint_of(ip_address("2001:db8:1::11"))
    assert tunnel.local_ip == endpoint_of(ip_address("2001:db8:1::13"))
    (device,) = [r for r in resources(result) if isinstance(r, WireGuardDevice)]
    assert (device.mtu, result.desired.state.mtu) == (1420, 1370)
    assert closed(result, ip_address("2001:db8:1::11"))


@pytest.mark.parametrize("on", KEYS)
@pytest.mark.parametrize("mode", [PREFERRED, REQUIRED])
def test_the_mtu_leaves_room_on_every_node(on: str, mode: NodeTrafficEncryption) -> None:
    """It is the same on all Nodes, with and without keys: a Node with a key may follow at any time."""
    for keys in ({}, KEYS):
        assert compiled(on, *keyed(keys), mode=mode).desired.state.mtu == 1500 - 60 - 50


# --- Nodes without a key


@pytest.mark.costly
@pytest.mark.parametrize("on", KEYS)
@given(st.sets(st.sampled_from(sorted(KEYS))), st.sampled_from([PREFERRED, REQUIRED]))
def test_no_packet_leaves_or_enters_unencrypted(on: str, with_key: set[str], mode: NodeTrafficEncryption) -> None:
    """Each tunnel to a Node with a key ends behind the device; others exist only while they are allowed."""
    result = compiled(on, *keyed({name: KEYS[name] for name in with_key}), mode=mode)
    underlay = {"g1": "192.0.2.1", "g2": "192.0.2.2", "w1": "192.0.2.3"}
    expected_peers = {"g1", "g2", *({"w1"} if on != "w1" else ())} - {on}
    for name in expected_peers:
        address, tunnel = ip_address(underlay[name]), tunnels(result).get(name)
        if name in with_key:
            assert tunnel is not None
            assert tunnel.remote_ip == endpoint_of(address)
            assert KEYS[name] in peers(result)
            host_routes = [
                r for r in resources(result) if isinstance(r, Route) and tunnel.remote_ip in r.destination
            ]
            assert {r.type for r in host_routes if r.destination.prefixlen == 32} == {
                RouteType.UNICAST,
                RouteType.UNREACHABLE,
            }
        elif mode is REQUIRED:
            assert tunnel is None
        else:
            assert tunnel is not None
            assert tunnel.remote_ip == address
        assert closed(result, address) is (name in with_key or mode is REQUIRED)
    assert set(tunnels(result)) <= expected_peers


def test_a_node_without_a_key_is_reported() -> None:
    """With `preferred` as a warning, since it is reached; with `required` as an error."""
    nodes = keyed({"g1": KEYS["g1"], "w1": KEYS["w1"]})
    for mode, severity in ((PREFERRED, Severity.WARNING), (REQUIRED, Severity.ERROR)):
        (problem,) = compiled("w1", *nodes, mode=mode).desired.problems
        assert (problem.subject, problem.reason, problem.severity) == ("Node g2", "NotEncrypted", severity)
        assert problem.path == "metadata.annotations.mcagent.io/wireguard"


@pytest.mark.parametrize("mode", [PREFERRED, REQUIRED])
@pytest.mark.parametrize(
    "missing", [{"wireguard": None}, {"wireguard_public_key": ""}, {"datapath": DatapathType.NETDEV}]
)
def test_a_node_that_cannot_encrypt(mode: NodeTrafficEncryption, missing: dict[str, object]) -> None:
    """It removes its key, so that others know; with `required` it exchanges no packets with them."""
    result = compiled("w1", mode=mode, seen=facts("w1", **missing))
    assert not [r for r in resources(result) if isinstance(r, WireGuardDevice | WireGuardPeer)]
    assert {str(t.remote_ip) for t in tunnels(result).values()} == (
        {"192.0.2.1", "192.0.2.2"} if mode is PREFERRED else set()
    )
    assert closed(result, ip_address("192.0.2.1")) is (mode is REQUIRED)
    assert reasons(result) == ["EncryptionUnavailable"]
    publication = result.state.encryption.node_publication
    assert publication is not None
    assert (publication.published, publication.desired) == (WireGuardInfo(public_key=KEYS["w1"], port=51821), None)


# --- conflicts


def test_a_key_or_endpoint_belongs_to_the_oldest_node() -> None:
    """A Node made from an image with a key file, and a Node whose address differs in the first four bits only."""
    home = (
        *HOME[:3],
        node("w2", "192.0.2.4", created="2026-01-02"),
        node("w3", "208.0.2.3", created="2026-01-02"),
        *HOME[3:],
    )
    result = compiled("g1", *keyed({**KEYS, "w2": KEYS["w1"], "w3": key(7)}, home))
    assert set(tunnels(result)) == {"g2", "w1"}
    assert reasons(result) == ["DuplicateKey", "DuplicateAddress"]
    twin_of_this_node = compiled("g1", *keyed({**KEYS, "w1": KEYS["g1"]}))
    assert set(tunnels(twin_of_this_node)) == {"g2"}


def test_an_endpoint_in_a_network_of_this_cluster_is_not_used() -> None:
    """240.0.0.0/4 may be in use as a Pod CIDR."""
    home = (*HOME[:2], node("w1", "192.0.2.3", "240.0.2.0/24"), *HOME[3:])
    assert set(tunnels(compiled("g2", *keyed(home=home)))) == set()


def test_another_cluster_has_neither_key_nor_endpoint_of_a_node() -> None:
    """However old its claim is: the Nodes of this cluster have theirs."""
    thief = replace(EAST, gateway_wireguard=((ip_address("203.0.113.1"), WireGuardInfo(public_key=KEYS["w1"])),))
    result = compiled("g1", *keyed(), thief)
    assert "DuplicateKey" in reasons(result)
    assert set(tunnels(result)) == {"g2", "w1"}
    assert peers(result)[KEYS["w1"]].endpoint[0] == ip_address("192.0.2.3")
    # 208.0.2.3 and 192.0.2.3 differ in their first four bits only.
    twin = replace(
        EAST,
        gateway_ips=addresses("208.0.2.3"),
        gateway_wireguard=((ip_address("208.0.2.3"), WireGuardInfo(public_key=key(11))),),
    )
    assert "DuplicateAddress" in reasons(compiled("g1", *keyed(), twin))


# --- the guard


def test_pods_reach_no_wireguard_port_of_a_node() -> None:
    """All addresses of Nodes of this cluster are closed; without this encryption only those of gateways."""
    for mode, expected in (
        (REQUIRED, {"192.0.2.1", "192.0.2.2", "192.0.2.3"}),
        (NodeTrafficEncryption.NONE, None),
    ):
        result = compiled("w1", mode=mode)
        (sockets,) = [r.sockets for r in resources(result) if isinstance(r, NftSet) and r.name == "mct_wireguard"]
        assert {str(address) for address, _ in sockets or ()} == (expected or {"192.0.2.1", "192.0.2.2"})


def test_unencrypted_packets_are_dropped_by_nft() -> None:
    """Both ways, and packets to this Node's endpoint by another device; the rule of the TTL stays."""
    chains = {r.name: r.rules for r in resources(compiled("w1")) if isinstance(r, NftChain)}
    assert chains["mct_clear"] == ('oifname != "mc-wg0" ip daddr @mct_encrypted udp dport 6081 drop',)
    assert chains["mct_clear_in"] == (
        'iifname != "mc-wg0" udp dport 6081 ip saddr @mct_encrypted counter drop',
        'iifname != "lo" iifname != "mc-wg0" ip daddr @mct_own_ends counter drop',
    )
    assert any("ttl 255" in rule for rule in chains["mct_link"])
    off = compile_desired(snapshot(*keyed()), facts("w1"), settings("w1", NodeTrafficEncryption.NONE))
    assert "mct_clear" not in {r.name for r in resources(off) if isinstance(r, NftChain)}


def test_without_a_role_there_is_nothing_to_encrypt() -> None:
    """No device, and no rules: the bare bridge has no tunnels."""
    result = compiled("w1", enable_gateway=False)
    assert not [r for r in resources(result) if isinstance(r, WireGuardDevice | WireGuardPeer | NftChain | NftSet)]


# --- publishing and reading


def test_the_key_is_published_in_the_node_object() -> None:
    """On workers and gateways; removed where encryption between Nodes is off or the Node takes no part."""
    bare = keyed({})
    for on, own_key in KEYS.items():
        publication = compiled(on, *bare).state.encryption.node_publication
        assert publication is not None
        assert publication.meta.subject == f"Node {on}"
        assert publication.desired == WireGuardInfo(public_key=own_key, port=51821)
    off = compiled("w1", mode=NodeTrafficEncryption.NONE).state.encryption.node_publication
    assert off is not None
    assert off.published is not None
    assert off.desired is None
    out = compiled("w1", enable_gateway=False).state.encryption.node_publication
    assert out is not None
    assert out.desired is None


@pytest.mark.parametrize(
    "info",
    [
        WireGuardInfo(public_key=key(5)),
        WireGuardInfo(public_key=key(5), next_public_key=key(6), port=4000),
    ],
)
def test_the_annotation_is_read_as_it_is_written(info: WireGuardInfo) -> None:
    """The same value for the same key."""
    parsed = parse_object(_node_object(node_key_text(info)))
    assert isinstance(parsed.value, Node)
    assert (parsed.value.wireguard, parsed.problems) == (info, ())


@pytest.mark.parametrize(
    "value",
    ["x", "[]", '{"publicKey": 5}', '{"publicKey": "abc"}', f'{{"publicKey": "{key(5)}", "port": 0}}', "1" * 2000],
)
def test_an_invalid_annotation_is_no_key(value: str) -> None:
    """It is reported with its path, and the Node is used otherwise."""
    parsed = parse_object(_node_object(value))
    assert isinstance(parsed.value, Node)
    assert parsed.value.wireguard is None
    (problem,) = parsed.problems
    assert problem.path.startswith("metadata.annotations.mcagent.io/wireguard")
    assert problem.subject == "Node w1"


def _node_object(value: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "w1", "annotations": {NODE_KEY_ANNOTATION: value}},
    }


def test_the_key_needs_encryption_between_clusters() -> None:
    """The message names the key that has to be set."""
    with pytest.raises(ConfigError, match=r"nodeTrafficEncryption.*needs trafficEncryptionMode: wireGuard"):
        load(None, {}, {"nodeName": "n1", "nodeTrafficEncryption": "required"})


# --- what is shown


def test_peers_of_this_cluster_are_shown() -> None:
    """With their state, in `show` and in the exit code; causes name the Node object."""
    result = compiled("w1", *keyed({"g1": KEYS["g1"], "w1": KEYS["w1"]}), mode=PREFERRED)
    never = WireGuardPeerStatus(public_key=KEYS["g1"], endpoint=(ip_address("192.0.2.1"), 51821))
    status: EncryptionStatus = encryption_of(result.state.encryption, WireGuardReport(peers=(never,), now=1.0))
    assert (status.node_mode, status.published) == ("preferred", True)
    assert [(peer.node, peer.cluster, peer.state) for peer in status.peers] == [
        ("g1", "", "never"),
        ("g2", "", "clear"),
    ]
    assert "nodeTrafficEncryption" in status.peers[1].text
    assert any("Node object (annotation mcagent.io/wireguard)" in cause for cause in status.peers[0].causes)
    shown = text(status)
    assert "Node g1" in shown
    assert "preferred" in shown
