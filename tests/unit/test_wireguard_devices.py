"""Several WireGuard devices of a gateway: their number, rules, routes, peers and what people see of them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.cli.wireguard import text
from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.core.compile import Compiled, compile_desired
from mcagent.core.wireguard_devices import (
    EGRESS_MARK,
    LAST_PORT,
    device_count,
    device_routes,
    device_rules,
    general_device,
)
from mcagent.model.config import NodeTrafficEncryption
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import NftChain, NftSet, Route, Rule, TunnelPort, TunnelType
from mcagent.model.dataplane.wireguard import (
    MAX_DEVICES,
    WireGuardDevice,
    WireGuardImplementation,
    WireGuardPeer,
    WireGuardPeerStatus,
)
from mcagent.model.node_state import RemoteEnd
from mcagent.model.objects import Gateway, WireGuardInfo
from mcagent.observe.wireguard import WireGuardReport, encryption_of, summary_of
from tests.worlds.core_inputs import HOME, cluster, resources, snapshot
from tests.worlds.encrypted_clusters import EAST, EAST_GATEWAYS, FACTS, compiled, encrypting, key, keyed

NAMES = ("mc-wg0", "mc-wg1", "mc-wg2", "mc-wg3")
FOUR = replace(FACTS, processors=4)
NOW = 1_800_000_000.0


def info(number: int, devices: int) -> WireGuardInfo:
    """Return what the n-th gateway of the other cluster publishes."""
    return WireGuardInfo(public_key=key(number), devices=devices)


def east(*devices: int) -> Compiled:
    """Compile g1 with four processors, and a cluster whose gateways have so many devices; all have sessions."""
    infos = [info(number, count) for number, count in enumerate(devices, 11)]
    keys = [value.public_key for value in infos]
    ready = frozenset((name, value) for name in NAMES for value in keys)
    gateways = EAST_GATEWAYS[: len(devices)]
    return compiled(
        keyed(cluster("east", "10.97.0.0/16", gateways=gateways), *infos),
        facts=replace(FOUR, wireguard_ready=ready),
    )


def device_routes_of(result: Compiled) -> set[tuple[int, str]]:
    """Return table and device of each route to a tunnel endpoint."""
    routes = [r for r in resources(result) if isinstance(r, Route) and r.destination.network_address in ENDPOINTS]
    return {(route.table, route.device) for route in routes if route.device in NAMES}


@pytest.mark.parametrize(
    ("facts", "settings", "count"),
    [
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=1), {}, 1),
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=3), {}, 3),
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=64), {}, MAX_DEVICES),
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=64), {"wireguard_devices": 2}, 2),
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=1), {"wireguard_devices": 4}, 4),
        (Facts(wireguard=WireGuardImplementation.USERSPACE, processors=8), {"wireguard_devices": 4}, 1),
        (Facts(processors=8), {}, 1),
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=8), {"wireguard_port": 6079}, 2),
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=8), {"wireguard_port": 65535}, 1),
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=8), {"wireguard_port": 65533}, 3),
        (Facts(wireguard=WireGuardImplementation.KERNEL, processors=8), {"rule_priority": 1}, 1),
    ],
)
def test_the_number_of_devices(facts: Facts, settings: dict[str, int], count: int) -> None:
    """One for each processor, at most 4; limited by ports and rules; wireguard-go has one."""
    assert device_count(facts, encrypting(**settings)) == count


@given(count=st.integers(1, MAX_DEVICES), tunnel=st.sampled_from(TunnelType))
def test_rules_divide_the_source_ports(count: int, tunnel: TunnelType) -> None:
    """The ranges are disjoint, valid for the kernel, about equal, and the first device has the rest."""
    settings = encrypting(tunnel_type=tunnel)
    rules = list(device_rules(count, settings))
    assert [rule.table for rule in rules] == [settings.route_table + number for number in range(1, count)]
    assert {(rule.priority, rule.destination, rule.protocol) for rule in rules} <= {(299, ENDPOINTS, 17)}
    first, last = (1, LAST_PORT) if tunnel is TunnelType.GENEVE else (32768, 60999)
    numbers: list[int] = []
    for rule in rules:
        assert rule.source_ports is not None
        begin, end = rule.source_ports
        assert 0 < begin <= end <= LAST_PORT
        numbers += range(begin, end + 1)
    assert len(numbers) == len(set(numbers))
    used = range(first, last + 1)
    ranges = [range(rule.source_ports[0], rule.source_ports[1] + 1) for rule in rules if rule.source_ports]
    shares = [len([port for port in used if port in ports]) for ports in ranges]
    shares.append(len(used) - len(set(numbers) & set(used)))
    assert max(shares) - min(shares) <= count + 1


@given(own=st.integers(1, MAX_DEVICES), peer=st.integers(1, MAX_DEVICES), data=st.data())
def test_routes_lead_to_devices_with_a_session(own: int, peer: int, data: st.DataObject) -> None:
    """Each table has at most one route to a peer, by a device that is ready; the first device has none there."""
    devices = min(own, peer)
    ready = tuple(data.draw(st.lists(st.integers(0, devices - 1), unique=True)))
    end = RemoteEnd(gateway=ip_address("203.0.113.1"), address=ip_address("251.0.113.1"), devices=devices)
    routes = list(device_routes(end, ready, NAMES[:own], encrypting()))
    assert len({route.table for route in routes}) == len(routes)
    used = {NAMES.index(route.device) for route in routes} | {general_device(ready)}
    assert used <= {*ready, 0} & set(range(devices))
    if set(ready) == set(range(devices)):
        assert used == set(ready)  # every device that both have carries a part


def test_a_gateway_with_four_devices() -> None:
    """They differ in name and port; each has all peers at its own port, and rules lead to their tables."""
    result = east(4, 4)
    devices = [r for r in resources(result) if isinstance(r, WireGuardDevice)]
    assert [(d.name, d.listen_port) for d in devices] == [(name, 51821 + n) for n, name in enumerate(NAMES)]
    assert len({(d.public_key, d.addresses, d.mtu) for d in devices}) == 1
    assert all(d.loose_source_check for d in devices)
    peers = {(r.device, r.public_key): r for r in resources(result) if isinstance(r, WireGuardPeer)}
    assert peers.keys() == {(name, key(number)) for name in NAMES for number in (11, 12)}
    assert peers["mc-wg2", key(12)].endpoint == (ip_address("203.0.113.2"), 51823)
    assert peers["mc-wg2", key(12)].allowed_ips == (ip_network("251.0.113.2/32"),)
    assert device_routes_of(result) == {(28003 + number, name) for number, name in enumerate(NAMES)}
    assert len([r for r in resources(result) if isinstance(r, Rule)]) == 4
    ports = [r for r in resources(result) if isinstance(r, TunnelPort)]
    assert {port.egress_mark for port in ports if port.peer_kind == "remote"} == {EGRESS_MARK}
    assert {port.egress_mark for port in ports if port.peer_kind != "remote"} == {0}
    assert result.desired.problems == ()


def test_the_nft_rules_name_every_device() -> None:
    """Tunnel packets leave and arrive by any of the devices, and by nothing else."""
    chains = {r.name: r.rules for r in resources(east(4)) if isinstance(r, NftChain)}
    outside = " ".join(f'oifname != "{name}"' for name in NAMES)
    assert chains["mct_clear"] == (f"{outside} ip daddr @mct_encrypted udp dport 6081 drop",)
    assert chains["mct_untracked_in"] == (
        *(f'iifname "{name}" notrack' for name in NAMES),
        "udp dport 51821-51824 notrack",
    )
    for name in NAMES:
        assert f'iifname "{name}" accept' in chains["mct_tunnel_in"]
        assert f'oifname "{name}" counter drop' in chains["mct_to_wireguard"]
        assert all(f'iifname != "{name}"' in rule for rule in chains["mct_clear_in"])
    (guarded,) = [r for r in resources(east(4)) if isinstance(r, NftSet) and r.name == "mct_wireguard"]
    ports = {port for address, port in guarded.sockets or () if str(address) == "203.0.113.1"}
    assert ports == set(range(51821, 51825))


def test_the_smaller_number_counts() -> None:
    """A peer with two devices: no others are used towards it, and the four parts are divided among the two."""
    result = east(2)
    peers = {r.device for r in resources(result) if isinstance(r, WireGuardPeer)}
    assert peers == {"mc-wg0", "mc-wg1"}
    remote_ports = [r for r in resources(result) if isinstance(r, TunnelPort) and r.peer_kind == "remote"]
    assert {port.egress_mark for port in remote_ports} == {EGRESS_MARK}
    assert device_routes_of(result) == {(28003, "mc-wg0"), (28004, "mc-wg1"), (28006, "mc-wg1")}


def test_a_peer_of_an_older_version_or_of_antrea_has_one_device() -> None:
    """No mark, no further peer and no further route: its packets take the first device."""
    single = replace(
        cluster("east", "10.97.0.0/16", gateways=("203.0.113.1",)), wireguard=WireGuardInfo(public_key=key(5))
    )
    for result in (east(1), compiled(single, facts=FOUR)):
        assert {r.device for r in resources(result) if isinstance(r, WireGuardPeer)} == {"mc-wg0"}
        assert {r.egress_mark for r in resources(result) if isinstance(r, TunnelPort)} == {0}
        assert {table for table, _ in device_routes_of(result)} <= {28003}


@pytest.mark.parametrize(
    ("port", "devices", "port_number"), [(65535, 4, 1), (65533, 64, 3), (51821, 64, 4), (0, 64, 4)]
)
def test_a_peer_may_publish_any_number(port: int, devices: int, port_number: int) -> None:
    """No port beyond the last one reaches a WireGuard device or an nft set."""
    published = WireGuardInfo(public_key=key(11), port=port, devices=devices)
    result = compiled(keyed(cluster("east", "10.97.0.0/16", gateways=EAST_GATEWAYS[:1]), published), facts=FOUR)
    ports = [r.endpoint[1] for r in resources(result) if isinstance(r, WireGuardPeer)]
    assert ports == [(port or 51821) + number for number in range(port_number)]
    (guarded,) = [r for r in resources(result) if isinstance(r, NftSet) and r.name == "mct_wireguard"]
    assert [number for address, number in guarded.sockets or () if str(address) == "203.0.113.1"] == ports


def test_a_device_without_a_session_carries_nothing() -> None:
    """Its peers exist, so that they can shake hands; the packets of its part take the first device."""
    four = keyed(cluster("east", "10.97.0.0/16", gateways=EAST_GATEWAYS), info(11, 4), info(12, 4))
    sessions = frozenset({("mc-wg0", key(11)), ("mc-wg0", key(12)), ("mc-wg2", key(12))})
    result = compiled(four, facts=replace(FOUR, wireguard_ready=sessions))
    assert device_routes_of(result) == {(28003, "mc-wg0"), (28005, "mc-wg2")}
    assert len([r for r in resources(result) if isinstance(r, WireGuardPeer)]) == 8


def test_a_first_device_without_a_session_carries_nothing() -> None:
    """BFD may pass by another device, so nothing else notices; without any session it is the first one again."""
    four = keyed(cluster("east", "10.97.0.0/16", gateways=EAST_GATEWAYS[:1]), info(11, 4))
    sessions = frozenset({("mc-wg1", key(11)), ("mc-wg3", key(11))})
    result = compiled(four, facts=replace(FOUR, wireguard_ready=sessions))
    assert device_routes_of(result) == {(28003, "mc-wg1"), (28006, "mc-wg3")}
    assert device_routes_of(compiled(four, facts=FOUR)) == {(28003, "mc-wg0")}


def test_a_session_under_the_announced_key_counts() -> None:
    """While a peer changes its key, its devices carry on under either key."""
    changing = keyed(
        cluster("east", "10.97.0.0/16", gateways=EAST_GATEWAYS[:1]),
        WireGuardInfo(public_key=key(11), next_public_key=key(21), devices=2),
    )
    facts = replace(FOUR, wireguard_ready=frozenset({("mc-wg0", key(11)), ("mc-wg1", key(21))}))
    assert (28004, "mc-wg1") in device_routes_of(compiled(changing, facts=facts))


def test_one_device_changes_nothing() -> None:
    """With `wireGuard.devices: 1` there is no rule by ports, no mark, no loose check."""
    result = compiled(EAST, facts=FOUR, settings=encrypting(wireguard_devices=1))
    assert [r.source_ports for r in resources(result) if isinstance(r, Rule)] == [None]
    assert not any(r.loose_source_check for r in resources(result) if isinstance(r, WireGuardDevice))
    by_default = [r for r in resources(compiled(EAST)) if getattr(r, "name", "") != "mct_wireguard"]
    assert [r for r in resources(result) if getattr(r, "name", "") != "mct_wireguard"] == by_default


def test_tunnels_between_nodes_use_the_first_device() -> None:
    """A Node publishes one device to the other Nodes of its cluster, and has them as peers of that one."""
    settings = encrypting(node_encryption=NodeTrafficEncryption.PREFERRED)
    home = [replace(o, wireguard=None) if isinstance(o, Gateway) else o for o in HOME]
    result = compile_desired(snapshot(*home, EAST), FOUR, settings)
    state = summary_of(result.desired)
    assert state is not None
    assert state.node_publication is not None
    assert state.node_publication.desired == WireGuardInfo(public_key=FACTS.wireguard_public_key, port=51821)
    assert state.publication is not None
    assert state.publication.desired is not None
    assert state.publication.desired.devices == 4


def statuses(*sessions: float) -> tuple[WireGuardPeerStatus, ...]:
    """Return the statuses of gateway 203.0.113.1 on each device, by the last handshake there."""
    return tuple(
        WireGuardPeerStatus(
            public_key=key(11),
            endpoint=(ip_address("203.0.113.1"), 51821 + number),
            last_handshake=handshake,
            received=100,
            sent=10,
            device=NAMES[number],
            device_port=51821 + number,
        )
        for number, handshake in enumerate(sessions)
    )


def test_missing_sessions_are_reported_with_the_ports_to_open() -> None:
    """The peer is established, as the first device works; people see 2/4, the ports, and the sum of the bytes."""
    state = summary_of(east(4).desired)
    report = WireGuardReport(peers=statuses(NOW - 5, NOW - 50, 0.0, NOW - 500), now=NOW)
    encryption = encryption_of(state, report)
    (peer,) = encryption.peers
    assert (peer.state, peer.sessions, peer.devices) == ("established", 2, 4)
    assert (peer.received, peer.sent, peer.handshake_age) == (400, 40, 50)
    assert "UDP ports 51821 to 51824 of 203.0.113.1" in peer.causes[0]
    shown = text(encryption)
    assert "mc-wg0 and 3 more" in shown
    assert "2/4" in shown
    without_first = encryption_of(state, WireGuardReport(peers=statuses(NOW - 500, *[NOW - 5] * 3), now=NOW))
    assert (without_first.peers[0].state, without_first.peers[0].sessions) == ("established", 3)
    complete = encryption_of(state, WireGuardReport(peers=statuses(*[NOW - 5] * 4), now=NOW))
    assert complete.peers[0].causes == ()
