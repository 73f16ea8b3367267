"""What the doctor looks at, against the real thing: probes, the kernel's lookups, conntrack, Open vSwitch."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.nodes.underlay import ipv6_sysctls, set_sysctl
from mcagent.agent.config import Settings
from mcagent.api.status import Status
from mcagent.dataplane.conntrack import connections_to
from mcagent.doctor.checks.node import rp_filter
from mcagent.doctor.checks.node.forwarding import ForwardingSwitches, forwarding
from mcagent.doctor.checks.node.masquerade import connections, published_pods
from mcagent.doctor.checks.node.routes import RouteLookup, RouteLookups, lookups
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings import probe, underlay
from mcagent.doctor.readings.chains import chains, legacy_chains
from mcagent.doctor.readings.probe import ProbedPath
from mcagent.doctor.readings.switch import Switch, switch
from mcagent.model.config import Config
from mcagent.model.errors import BackendError
from tests.contract.inside import new_name

pytestmark = pytest.mark.contract

NEAR, FAR = ip_address("192.0.2.10"), ip_address("198.51.100.10")
NEAR6, FAR6 = ip_address("2001:db8:1::10"), ip_address("2001:db8:2::10")


@pytest.fixture
def network() -> Iterator[tuple[str, str, str]]:
    """Give a Node, a router and a peer behind it, with both families."""
    node, router, peer = (new_name() for _ in range(3))
    for name in (node, router, peer):
        netns.create(name)
        set_sysctl(name, ipv6_sysctls(on=True))
    try:
        netns.add_veth("eth0", node, "near", router)
        netns.add_veth("eth0", peer, "far", router)
        set_sysctl(router, {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"})
        for name, device, address in (
            (node, "eth0", f"{NEAR}/24"),
            (router, "near", "192.0.2.1/24"),
            (router, "far", "198.51.100.1/24"),
            (peer, "eth0", f"{FAR}/24"),
        ):
            netns.add_address(name, device, address)
        for name, device, address in (
            (node, "eth0", f"{NEAR6}/64"),
            (router, "near", "2001:db8:1::1/64"),
            (router, "far", "2001:db8:2::1/64"),
            (peer, "eth0", f"{FAR6}/64"),
        ):
            netns.ip(name, "address", "add", address, "dev", device, "nodad")
        for name, via, via6 in ((node, "192.0.2.1", "2001:db8:1::1"), (peer, "198.51.100.1", "2001:db8:2::1")):
            netns.ip(name, "route", "add", "default", "via", via)
            netns.ip(name, "-6", "route", "add", "default", "via", via6)
        yield node, router, peer
    finally:
        for name in (node, router, peer):
            netns.delete(name)


def nft(name: str, text: str) -> None:
    """Load rules in a namespace."""
    netns.execute(name, ["nft", "-f", "-"], stdin=text)


def probed(node: str, *targets: tuple[object, int]) -> tuple[ProbedPath, ...]:
    """Probe from a namespace."""
    return netns.call(node, lambda: probe.probe_paths(targets))  # type: ignore[arg-type]


@pytest.mark.parametrize("ping_groups", ["1 0", "0 2147483647"])
def test_what_passes_is_known_by_both_ways(network: tuple[str, str, str], ping_groups: str) -> None:
    """ICMP (by raw and ping sockets) and UDP answer for both families; what nobody has is not answered."""
    set_sysctl(network[0], {"net/ipv4/ping_group_range": ping_groups})
    for path in probed(network[0], (FAR, 1500), (FAR6, 1500)):
        assert (path.small, path.full, path.protocols) == (True, True, ("icmp", "udp")), path
    (nobody,) = probed(network[0], (ip_address("198.51.100.99"), 1500))
    assert not nobody.small


def test_a_router_tells_its_mtu(network: tuple[str, str, str]) -> None:
    """The largest size that passes is found, and the MTU that the router tells."""
    node, router, _ = network
    netns.ip(router, "link", "set", "far", "mtu", "1400")
    for path in probed(node, (FAR, 1500), (FAR6, 1500)):
        assert (path.small, path.full, path.passes, path.reported_mtu) == (True, False, 1400, 1400), path


def test_a_black_hole_is_found_without_a_word_of_it(network: tuple[str, str, str]) -> None:
    """Large packets vanish, and nobody says so."""
    node, router, _ = network
    nft(router, "table ip t { chain c { type filter hook forward priority 0; ip length > 1380 drop; }; }")
    (path,) = probed(node, (FAR, 1500))
    assert (path.small, path.full, path.passes, path.reported_mtu) == (True, False, 1380, 0)


def test_either_way_is_enough(network: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where echoes are filtered UDP tells, also in an unprivileged Pod; where UDP is filtered, echoes do."""
    node, router, _ = network
    nft(router, "table ip t { chain c { type filter hook forward priority 0; icmp type echo-request drop; }; }")
    (path,) = probed(node, (FAR, 1500))
    assert (path.full, path.protocols) == (True, ("udp",))
    nft(router, "delete table ip t")
    nft(router, "table ip t { chain c { type filter hook forward priority 0; udp dport 33434 drop; }; }")
    (path,) = probed(node, (FAR, 1500))
    assert (path.full, path.protocols) == (True, ("icmp",))


def test_the_uplink_leads_to_peers(network: tuple[str, str, str]) -> None:
    """It is the device of the route, for both families."""
    for peer in (FAR, FAR6):
        examined = node_with(peers={peer: False})
        uplink = netns.call(network[0], partial(underlay.underlay, examined))
        assert (uplink.uplink, uplink.uplink_mtu) == ("eth0", 1500), peer


def node_with(**readings: object) -> ExaminedNode:
    """Return a Node whose only peer is FAR, without Open vSwitch; `readings` are taken as read."""
    readings_by_name = {"switch": Switch(), "peers": {FAR: False}, **readings}
    readers = {"switch": switch, "peers": underlay.peers, "lookups": lookups}
    settings = Settings(core=Config(node_name="n"))
    return ExaminedNode(
        settings, Status(), readings={readers[name]: value for name, value in readings_by_name.items()}
    )


def test_a_foreign_rule_before_ours_shows_in_the_lookup(network: tuple[str, str, str]) -> None:
    """The kernel's own answer counts: our device while nothing comes before it, then the other one."""
    node = network[0]
    config = Config(node_name="n")
    netns.add_veth("mc-gw0", node, "mc-gw0-p", node)
    netns.ip(node, "link", "set", "mc-gw0", "mtu", "1450")
    table, protocol = str(config.route_table), str(config.route_protocol)
    netns.ip(node, "route", "add", "10.2.0.0/16", "dev", "mc-gw0", "table", table, "proto", protocol)
    netns.ip(node, "rule", "add", "priority", "300", "table", table, "protocol", protocol)
    seen = netns.call(node, lambda: underlay.underlay(node_with()))
    assert (seen.host_mtu, seen.wanted_mtu, seen.uplink, seen.uplink_mtu) == (1450, 1450, "eth0", 1500)
    reading = netns.call(node, lambda: lookups(node_with()))
    assert [(str(result.destination), result.device) for result in reading.lookups] == [("10.2.0.0/16", "mc-gw0")]
    assert reading.rule_exists
    assert netns.call(node, lambda: rp_filter.return_devices(node_with())) == ((FAR, "eth0"),)
    netns.ip(node, "route", "add", "10.0.0.0/8", "dev", "eth0", "table", "99")
    netns.ip(node, "rule", "add", "priority", "100", "fwmark", "0", "table", "99")
    reading = netns.call(node, lambda: lookups(node_with()))
    assert [(result.device, result.table) for result in reading.lookups] == [("eth0", 99)]


def test_a_masqueraded_connection_is_found(network: tuple[str, str, str]) -> None:
    """One whose source somebody translated is named, unless it is to a NodePort; others are only counted."""
    node = network[0]
    pod = new_name()
    netns.create(pod)
    try:
        netns.add_veth("eth0", pod, "pod", node)
        netns.add_address(pod, "eth0", "10.1.1.2/24")
        netns.add_address(node, "pod", "10.1.1.1/24")
        netns.ip(pod, "route", "add", "default", "via", "10.1.1.1")
        set_sysctl(node, {"net/ipv4/ip_forward": "1"})
        nft(
            node,
            "table ip cni { chain post { type nat hook postrouting priority 100; udp dport 7 masquerade; };\n"
            f"chain pre {{ type nat hook prerouting priority -100; udp dport 30000 dnat to {FAR}:7; }}; }}\n"
            "table ip mcagent { set mct_pods { typeof ip daddr; flags interval; elements = { 10.1.1.0/24 }; }; }",
        )

        def send(port: int, address: str = str(FAR)) -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.sendto(b"x", (address, port))

        def look() -> tuple[int, list[tuple[str, ...]]]:
            count, translated = connections_to([ip_network("198.51.100.0/24")], [ip_network("10.1.1.0/24")])
            return count, [tuple(map(str, connection)) for connection in translated]

        assert netns.call(node, look) == (0, [])
        netns.call(pod, lambda: send(9))
        assert netns.call(node, look) == (1, [])
        netns.call(pod, lambda: send(7))
        assert netns.call(node, look) == (2, [("10.1.1.2", str(FAR), str(NEAR))])
        far = RouteLookup(destination=ip_network("198.51.100.0/24"), address=FAR, device="mc-gw0", table=1)
        seen = node_with(lookups=RouteLookups(lookups=(far,)))
        assert [(str(chain), chain.priority) for chain in netns.call(node, lambda: chains(seen))] == [
            ("ip cni post", 100),
            ("ip cni pre", -100),
        ]
        assert list(map(str, netns.call(node, lambda: published_pods(seen)))) == ["10.1.1.0/24"]
        netns.call(pod, lambda: send(30000, "10.1.1.1"))
        assert netns.call(node, look)[0] == 3
        reading = netns.call(node, lambda: connections(seen))
        assert (reading.count, len(reading.translated)) == (2, 1)
    finally:
        netns.delete(pod)


def test_the_switch_of_each_device_decides_whether_it_forwards(fresh_namespace: str) -> None:
    """The host port's and those of devices to Pods count; net.ipv4.ip_forward alone does not."""
    for device, peer in (("mc-gw0", "bridge"), ("pod0", "pod"), ("eth0", "wire")):
        netns.add_veth(device, fresh_namespace, peer, fresh_namespace)
    netns.ip(fresh_namespace, "route", "add", "10.1.1.2/32", "dev", "pod0")
    seen = node_with()
    pods = (ip_network("10.1.1.0/24"),)

    def read() -> ForwardingSwitches:
        node = ExaminedNode(seen.settings, Status(), readings={published_pods: pods})
        return netns.call(fresh_namespace, lambda: forwarding(node))

    set_sysctl(fresh_namespace, {"net/ipv4/ip_forward": "0"})
    assert read() == ForwardingSwitches(globally=False, off=("mc-gw0", "pod0"))
    set_sysctl(fresh_namespace, {f"net/ipv4/conf/{device}/forwarding": "1" for device in ("mc-gw0", "pod0")})
    assert read() == ForwardingSwitches(globally=False)
    set_sysctl(fresh_namespace, {"net/ipv4/ip_forward": "1", "net/ipv4/conf/mc-gw0/forwarding": "0"})
    assert read() == ForwardingSwitches(off=("mc-gw0",))


def test_reverse_path_drops_are_counted(network: tuple[str, str, str]) -> None:
    """A packet whose source the way back to leads elsewhere moves the kernel's counter."""
    node, _, peer = network
    set_sysctl(node, {"net/ipv4/conf/all/rp_filter": "1", "net/ipv4/conf/eth0/rp_filter": "1"})
    before = netns.call(node, rp_filter.dropped_packets)
    netns.add_veth("other", node, "other-p", node)
    netns.ip(node, "route", "add", f"{FAR}/32", "dev", "other")

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"x", (str(NEAR), 9))

    netns.call(peer, send)
    assert netns.call(node, rp_filter.dropped_packets) == before + 1


@pytest.mark.parametrize(("program", "family"), [("iptables-legacy", "ip"), ("ip6tables-legacy", "ip6")])
def test_chains_of_iptables_legacy_are_read_or_not_examined(
    fresh_namespace: str, monkeypatch: pytest.MonkeyPatch, program: str, family: str
) -> None:
    """As in the image, which does not have the program: tables that are in use are an error then."""
    examined = node_with()
    netns.execute(fresh_namespace, [program, "-P", "FORWARD", "DROP"])
    dropping = [
        chain for chain in netns.call(fresh_namespace, lambda: legacy_chains(examined)) if chain.policy == "drop"
    ]
    assert [(chain.family, chain.hook) for chain in dropping] == [(family, "forward")]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BackendError, match=f"{program}-save: list tables filter: .*No such file"):
        netns.call(fresh_namespace, lambda: legacy_chains(examined))


def test_no_program_is_needed_where_iptables_legacy_is_not_used(
    fresh_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the kernel has the module is no use of it."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert netns.call(fresh_namespace, lambda: legacy_chains(node_with())) == ()


def test_an_open_vswitch_without_us_and_one_that_is_dead(ovs: OvsInstance, tmp_path: Path) -> None:
    """That our bridge is not there is no error; a database that is away is one."""
    core = Config(node_name="n")
    seen = switch(ExaminedNode(Settings(core=core, ovsdb=ovs.socket), Status()))
    assert (seen.error, seen.datapath, seen.tunnels) == ("", None, ())
    for value in ("true", "false"):
        ovs.vsctl("--no-wait", "set", "Open_vSwitch", ".", f"other_config:flow-restore-wait={value}")
        assert switch(ExaminedNode(Settings(core=core, ovsdb=ovs.socket), Status())).is_waiting is (
            value == "true"
        )
    away = ExaminedNode(Settings(core=core, ovsdb=f"unix:{tmp_path}/db.sock"), Status())
    assert "No such file" in switch(away).error
    with pytest.raises(BackendError, match="Open vSwitch does not answer"):
        away.read(underlay.underlay)  # without tunnels there is nothing to probe, and nothing is fine
