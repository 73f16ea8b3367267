"""Underlays of IPv6: which addresses are taken, what stands for them, what is made of both families at once."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.simulator import Packet, SimulatedSwitch
from mcagent.core.addresses.underlay import (
    ENDPOINTS,
    endpoint_of,
    preferred_address,
    refuse_underlay,
    source_of,
    tunnel_address,
)
from mcagent.core.compile import Compiled, compile_desired
from mcagent.core.fragments import kernel
from mcagent.model.config import Config, EncryptionFallback, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import FlowEntry, LinkAddress, NftChain, NftSet, Route, TunnelPort
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardImplementation, WireGuardPeer
from mcagent.model.net import Address, contains
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import ApiObject, ClusterInfoImport, WireGuardInfo
from mcagent.model.problem import Severity
from mcagent.trace.simulator import SimulatedNode
from tests.worlds.core_inputs import EAST6, HOME6, addresses, cluster, config, gateway, node, resources, snapshot
from tests.worlds.encrypted_clusters import key


def compiled(*objects: ApiObject, settings: Config | None = None, facts: Facts | None = None) -> Compiled:
    """Compile a Node, by default g1, of these objects."""
    return compile_desired(snapshot(*objects), facts or Facts(), settings or config("g1"))


def tunnels(result: Compiled) -> dict[str, set[str]]:
    """Return where the tunnels to each peer end."""
    ports_by_cluster: dict[str, set[str]] = {}
    for resource in resources(result):
        if isinstance(resource, TunnelPort):
            ports_by_cluster.setdefault(resource.peer, set()).add(str(resource.remote_ip))
    return ports_by_cluster


def mtus(result: Compiled) -> set[int]:
    """Return the MTUs of the routes to other clusters."""
    return {
        resource.mtu
        for resource in resources(result)
        if isinstance(resource, Route) and resource.device == "mc-gw0"
    }


def told(result: Compiled) -> list[tuple[str, str, str]]:
    """Return subject, path and reason of each problem."""
    return [(p.subject.split("/")[-1].split(" ")[-1], p.path, p.reason) for p in result.desired.problems]


@pytest.mark.parametrize(
    "text",
    [
        *("::", "::1", "::192.0.2.1", "::ffff:192.0.2.1", "100::1", "fe80::1", "fe80::1%eth0", "fd00::1%eth0"),
        *("febf::1", "ff02::1", "ff0e::1", "127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "255.255.255.255"),
    ],
)
def test_what_is_no_unicast_address_of_a_node_is_refused(text: str) -> None:
    """Unspecified, loopback, mapped, link-local, multicast, with a zone: no tunnel ends there."""
    refusal = refuse_underlay(ip_address(text))
    assert refusal is not None
    assert refusal.reason == "NotUnicast"


@pytest.mark.parametrize("text", ["2001:db8::1", "fd00::1", "2600:1f18::a", "192.0.2.1", "10.0.0.1"])
def test_ordinary_addresses_are_used(text: str) -> None:
    """Global and unique local unicast addresses of both families."""
    assert refuse_underlay(ip_address(text)) is None


def test_a_dual_stack_node_keeps_ipv4() -> None:
    """IPv4 wherever it stands in the list, IPv6 where nothing else can be used."""
    assert tunnel_address(addresses("fd00::1", "192.0.2.1")) == ip_address("192.0.2.1")
    assert tunnel_address(addresses("fe80::1", "169.254.0.1", "fd00::1")) == ip_address("fd00::1")
    assert preferred_address(addresses("fd00::1", "192.0.2.1"), 6) == ip_address("fd00::1")
    assert preferred_address(addresses("192.0.2.1"), 6) is None


@given(st.sets(st.ip_addresses(v=6), min_size=1, max_size=30))
def test_what_stands_for_ipv6_gateways_is_reserved_and_told_apart(found: set[IPv6Address]) -> None:
    """Endpoint and source of every gateway are unicast, in the reserved range, and never one another's."""
    endpoints, sources = {endpoint_of(address) for address in found}, {source_of(address) for address in found}
    assert not endpoints & sources
    assert all(address in ENDPOINTS and refuse_underlay(address) is None for address in endpoints | sources)
    assert min(len(sources), len(endpoints)) >= len(found) - 1  # 27 bits for thirty: two are next to impossible


def test_prefix_and_suffix_both_count() -> None:
    """Nodes that differ in their network only, or in their last bits only, have different endpoints."""
    assert len({endpoint_of(IPv6Address(f"2001:db8:{n}::11")) for n in range(1000)}) == 1000
    assert len({endpoint_of(IPv6Address(f"2001:db8::{n:x}")) for n in range(1000)}) == 1000


GENEVE_4, GENEVE_6 = 20 + 8 + 8 + 14, 40 + 8 + 8 + 14  # IP, UDP, Geneve or VXLAN, inner Ethernet
WIREGUARD_4, WIREGUARD_6 = 20 + 8 + 16 + 16, 40 + 8 + 16 + 16  # IP, UDP, header, tag


def gateway_on(within: int, between: int) -> LocalGateway:
    """Return a gateway with an internalIP and a gatewayIP of these versions of IP."""
    source = IPv4Address("192.168.1.11")
    own: dict[int, Address] = {4: source, 6: IPv6Address("fd00::11")}
    return LocalGateway(
        node="g1", gateway_ip=own[between], internal_ip=own[within], source=source, service_cidr=None
    )


@pytest.mark.parametrize("uplink", [1500, 1400, 9000])
@pytest.mark.parametrize(
    ("within", "between", "encrypts", "taken_off"),
    [
        (4, 4, False, GENEVE_4),
        (6, 6, False, GENEVE_6),
        (4, 6, False, GENEVE_6),  # IPv4 between Nodes, IPv6 between clusters: the larger header counts
        (6, 4, False, GENEVE_6),
        (4, 4, True, WIREGUARD_4 + GENEVE_4),
        (6, 6, True, WIREGUARD_6 + GENEVE_4),  # the tunnel inside is IPv4
        (4, 6, True, WIREGUARD_6 + GENEVE_4),
        (6, 4, True, WIREGUARD_4 + GENEVE_4),  # 110, more than the 70 between Nodes
    ],
)
def test_the_sums_of_the_mtu(*, uplink: int, within: int, between: int, encrypts: bool, taken_off: int) -> None:
    """Routes leave room for the outer headers of the worst tunnel that a packet takes."""
    settings = config("g1", encryption=TrafficEncryption.WIREGUARD if encrypts else TrafficEncryption.NONE)
    gateways = (gateway_on(within, between),)
    assert kernel.packet_mtu(uplink, settings, gateways) == uplink - taken_off
    wireguard = {4: WIREGUARD_4, 6: WIREGUARD_6}[between]
    assert kernel.wireguard_mtu(uplink, settings, between) == uplink - wireguard


def test_a_configured_mtu_counts_and_a_tiny_uplink_does_not() -> None:
    """What is configured is taken as it is; below what every host takes nothing goes by itself."""
    gateways = (gateway_on(6, 6),)
    assert kernel.packet_mtu(1500, config("g1", mtu=1234), gateways) == 1234
    assert kernel.packet_mtu(600, config("g1"), gateways) == kernel.SMALLEST_MTU


def test_a_cluster_on_ipv6_has_tunnels_of_ipv6() -> None:
    """Gateway to Nodes and to the other cluster; what is inside stays IPv4, and nothing is a problem."""
    result = compiled(*HOME6, EAST6)
    assert tunnels(result) == {
        "w1": {"2001:db8:1::12"},
        "w2": {"2001:db8:1::13"},  # dual-stack, but the gateway's internalIP is IPv6
        "east": {"2001:db8:2::11", "2001:db8:2::12"},
    }
    assert told(result) == []
    assert mtus(result) == {1500 - GENEVE_6}
    assert not [
        resource for resource in resources(result) if isinstance(resource, FlowEntry) and "ipv6" in resource.match
    ]
    for worker in ("w1", "w2"):
        compilation = compiled(*HOME6, EAST6, settings=config(worker))
        assert tunnels(compilation) == {"g1": {"2001:db8:1::11"}}
        assert told(compilation) == []
        assert mtus(compilation) == {1500 - GENEVE_6}


def test_connections_that_are_translated_take_what_stands_for_the_gateway() -> None:
    """Both sides derive it: this gateway translates to its own, and routes lead back to the other's."""
    result = compiled(*HOME6, EAST6)
    own = source_of(ip_address("2001:db8:1::11"))
    flows = [resource for resource in resources(result) if isinstance(resource, FlowEntry)]
    assert any(f"nat(src={own}:" in resource.actions for resource in flows)
    for on in ("g1", "w1"):
        routed = {
            resource.destination
            for resource in resources(compiled(*HOME6, EAST6, settings=config(on)))
            if isinstance(resource, Route)
        }
        for text in ("2001:db8:2::11", "2001:db8:2::12"):
            assert ip_network(source_of(ip_address(text))) in routed
    spoofed = cluster("west", str(ip_network(own)), gateways=("2001:db8:3::1",))
    assert ("west-clusterinfo", "spec.serviceCIDR", "OverlapsLocal") in told(compiled(*HOME6, spoofed))


def switch_of(result: Compiled) -> SimulatedSwitch:
    """Return a switch with the flows of a Node."""
    node = SimulatedNode(config=config("n"), desired=result.desired, datapath=DatapathType.SYSTEM)
    return node.switch


def port_to(result: Compiled, peer: str) -> set[int]:
    """Return the ports of the tunnels to a peer."""
    return {
        resource.ofport
        for resource in resources(result)
        if isinstance(resource, TunnelPort) and resource.peer == peer
    }


def test_a_connection_and_its_reply_go_by_what_stands_for_the_nodes() -> None:
    """From a process of an IPv6-only worker to the other cluster, and back, walked through the flows."""
    worker, gateway = compiled(*HOME6, EAST6, settings=config("w1")), compiled(*HOME6, EAST6)
    own, source = source_of(ip_address("2001:db8:1::12")), source_of(ip_address("2001:db8:1::11"))
    packet = Packet(
        in_port=1, src=own, dst=ip_address("10.97.0.5"), src_port=4000, dst_port=80, eth_dst=kernel.GATEWAY_MAC
    )
    first = switch_of(worker).walk(packet)
    ((port, sent),) = first.outputs
    assert {port} == port_to(worker, "g1")
    (back,) = port_to(gateway, "w1")
    through = switch_of(gateway).walk(replace(sent, in_port=back))
    ((port, sent),) = through.outputs
    assert port in port_to(gateway, "east")
    assert (sent.src, sent.dst) == (source, packet.dst)
    answer = replace(sent.reply(in_port=port), eth_dst=kernel.GATEWAY_MAC, tcp_flags=0x12)
    ((port, sent),) = switch_of(gateway).walk(answer, through.connections).outputs
    assert port == back
    assert (sent.src, sent.dst) == (packet.dst, own)
    arriving = replace(sent, in_port=next(iter(port_to(worker, "g1"))))
    ((port, sent),) = switch_of(worker).walk(arriving, first.connections).outputs
    assert (port, sent.dst) == (1, own)


def test_own_processes_have_an_ipv4_address_or_what_stands_for_it() -> None:
    """Routes carry the Node's IPv4 address as their source; without one the host port has what stands for it."""
    mapped = source_of(ip_address("2001:db8:1::12"))
    for on, source in (("w2", ip_address("192.0.2.13")), ("w1", mapped)):
        facts = Facts(addresses=addresses("192.0.2.13", "2001:db8:1::12", "2001:db8:1::13"))
        result = compiled(*HOME6, EAST6, settings=config(on), facts=facts)
        all_resources = resources(result)
        (route,) = [
            resource
            for resource in all_resources
            if isinstance(resource, Route) and str(resource.destination) == "10.97.0.0/16"
        ]
        assert route.source == source
        link_addresses = {resource.address for resource in all_resources if isinstance(resource, LinkAddress)}
        assert link_addresses == {kernel.HOST_ADDRESS} | ({mapped} if on == "w1" else set())
        assert told(result) == []
    gateway = [resource for resource in resources(compiled(*HOME6, EAST6)) if isinstance(resource, FlowEntry)]
    assert any(
        f"nw_dst={mapped}" in resource.match for resource in gateway
    )  # what is for the Node is delivered to it


def test_gateways_of_different_families_are_told() -> None:
    """The problem names both addresses and what would be right; nothing is sent where no answer can come from."""
    east = replace(EAST6, gateway_ips=addresses("203.0.113.1"))
    result = compiled(*HOME6, east)
    assert "east" not in tunnels(result)
    assert told(result) == [
        ("east-clusterinfo", "spec.gatewayInfos", "NoGateway"),
        ("east-clusterinfo", "spec.gatewayInfos[0].gatewayIP", "MixedFamilies"),
    ]
    (mixed,) = [problem for problem in result.desired.problems if problem.reason == "MixedFamilies"]
    for part in ("203.0.113.1 (IPv4)", '"g1"', "2001:db8:1::11 is IPv6", "gateway-ip"):
        assert part in mixed.message
    compilation = compiled(*HOME6, replace(EAST6, gateway_ips=addresses("203.0.113.1", "2001:db8:2::11")))
    assert tunnels(compilation)["east"] == {"2001:db8:2::11"}
    assert [(problem.reason, problem.severity) for problem in compilation.desired.problems] == [
        ("MixedFamilies", Severity.WARNING)
    ]


def test_what_a_sibling_of_the_other_family_passes_on_is_taken() -> None:
    """A source that stands for a gateway which only the sibling reaches is still the remote cluster's."""
    sibling = (node("g2", "192.0.2.2"), gateway("g2", "192.0.2.2", "2001:db8:1::22"))
    home = (*HOME6, *sibling)
    result = compiled(*home, replace(EAST6, gateway_ips=addresses("203.0.113.1", "2001:db8:2::11")))
    assert tunnels(result)["g2"] == {"2001:db8:1::22"}
    sources = {
        resource.match
        for resource in resources(result)
        if isinstance(resource, FlowEntry) and "nw_src=203.0.113.1" in resource.match
    }
    assert sources


def test_nodes_without_a_common_family_are_told() -> None:
    """On the gateway and on the worker, each naming the other; the other Nodes keep their tunnels."""
    home = (*HOME6, node("w4", "192.0.2.14", "10.10.4.0/24"))
    on_gateway = compiled(*home)
    assert tunnels(on_gateway).keys() == {"w1", "w2"}
    assert told(on_gateway) == [("w4", "status.addresses", "MixedFamilies")]
    on_worker = compiled(*home, settings=config("w4"))
    assert tunnels(on_worker) == {}
    assert told(on_worker) == [("g1", "", "MixedFamilies")]
    assert "family" in on_worker.state.why
    for result, names in ((on_gateway, ("w4", "g1")), (on_worker, ("g1", "w4"))):
        (problem,) = result.desired.problems
        assert all(f'"{name}"' in f'{problem.message} "{problem.subject.split(" ")[-1]}"' for name in names)


def test_one_address_in_two_spellings_is_one() -> None:
    """IPv6 addresses are compared as numbers: a gateway of ours is ours however another cluster writes it."""
    east = replace(EAST6, gateway_ips=addresses("2001:0DB8:0001:0000::0011", "2001:db8:2::11"))
    result = compiled(*HOME6, east)
    assert tunnels(result)["east"] == {"2001:db8:2::11"}
    assert told(result) == [("east-clusterinfo", "spec.gatewayInfos[0].gatewayIP", "DuplicateAddress")]


def test_pods_and_services_stay_ipv4() -> None:
    """CIDRs of IPv6 are refused with a reason, whatever the underlay is; the rest of the cluster serves on."""
    result = compiled(
        *HOME6,
        cluster("east", "10.97.0.0/16", "fd10::/64", gateways=("2001:db8:2::11",)),
        settings=config("g1", enable_pod_to_pod=True),
    )
    assert told(result) == [("east-clusterinfo", "spec.podCIDRs[0]", "IPv6NotSupported")]
    assert tunnels(result)["east"] == {"2001:db8:2::11"}


FACTS = Facts(wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=key(1))


def encrypting(**values: object) -> Config:
    """Return the configuration of gateway g1 with encryption."""
    return config("g1", encryption=TrafficEncryption.WIREGUARD, **values)


def keyed(info: ClusterInfoImport, *numbers: int) -> ClusterInfoImport:
    """Return the object with a key for each gateway."""
    infos = [WireGuardInfo(public_key=key(number)) for number in numbers]
    return replace(info, wireguard=infos[0], gateway_wireguard=tuple(zip(info.gateway_ips, infos, strict=True)))


def test_encrypted_over_ipv6_the_tunnel_inside_is_ipv4() -> None:
    """WireGuard goes to the IPv6 gatewayIP, the tunnel to the IPv4 endpoint that stands for it."""
    result = compiled(*HOME6, keyed(EAST6, 11, 12), settings=encrypting(), facts=FACTS)
    all_resources = resources(result)
    assert result.desired.problems == ()
    (device,) = [resource for resource in all_resources if isinstance(resource, WireGuardDevice)]
    assert (device.mtu, device.addresses) == (1500 - WIREGUARD_6, (endpoint_of(ip_address("2001:db8:1::11")),))
    peers = {resource.public_key: resource for resource in all_resources if isinstance(resource, WireGuardPeer)}
    far = endpoint_of(ip_address("2001:db8:2::11"))
    assert peers[key(11)].endpoint == (ip_address("2001:db8:2::11"), 51821)
    assert peers[key(11)].allowed_ips == (ip_network(far),)
    assert str(far) in tunnels(result)["east"]
    assert mtus(result) == {1500 - WIREGUARD_6 - GENEVE_4}


def test_encrypted_over_ipv6_nothing_gets_past_the_device() -> None:
    """Tunnel packets to any gateway, in either family, leave by no other device; each family has its table."""
    all_resources = resources(compiled(*HOME6, keyed(EAST6, 11, 12), settings=encrypting(), facts=FACTS))
    rules = {
        resource.family: resource.rules
        for resource in all_resources
        if isinstance(resource, NftChain) and resource.name == "mct_clear"
    }
    assert rules == {
        "ip": ('oifname != "mc-wg0" ip daddr @mct_encrypted udp dport 6081 drop',),
        "ip6": ('oifname != "mc-wg0" ip6 daddr @mct_encrypted udp dport 6081 drop',),
    }
    closed = {
        resource.family: resource.elements
        for resource in all_resources
        if isinstance(resource, NftSet) and resource.name == "mct_encrypted"
    }
    assert closed["ip"] == (ENDPOINTS,)
    for text in ("2001:db8:2::11", "2001:db8:2::12"):
        assert any(contains(network, ip_address(text)) for network in closed["ip6"])


def test_in_the_clear_over_ipv6_only_where_it_is_allowed() -> None:
    """A gateway without a key is reached at its IPv6 address with `allowClear`, and not at all else."""
    for fallback, ends in ((EncryptionFallback.DENY, None), (EncryptionFallback.ALLOW_CLEAR, {"2001:db8:2::11"})):
        east = replace(EAST6, gateway_ips=addresses("2001:db8:2::11"))
        settings = encrypting(encryption_fallback=fallback)
        assert tunnels(compiled(*HOME6, east, settings=settings, facts=FACTS)).get("east") == ends
