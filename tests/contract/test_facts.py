"""The facts against the kernel, in a namespace of its own."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from devtools.nodes import netns
from mcagent.dataplane import main_routes
from mcagent.dataplane.facts import kernel_datapath_exists, observe_facts
from mcagent.dataplane.netlink.routes import RawRoute, parse_route
from mcagent.model.config import Config, DatapathChoice
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.net import Address

pytestmark = pytest.mark.contract

CONFIG = Config(node_name="a1", datapath=DatapathChoice.NETDEV)
NODE = ip_address("192.0.2.10")


@pytest.fixture
def node(fresh_namespace: str) -> str:
    """Give a namespace like a Node with two uplinks, a CNI bridge, and devices of ours."""
    for device in ("uplink", "second", "cni0", "mc-gw0", "br-mc", "kube-ipvs0"):
        netns.add_veth(device, fresh_namespace, f"{device}-p", fresh_namespace)
    for device, address in (
        ("lo", "198.51.100.1/32"),
        ("uplink", "192.0.2.10/24"),
        ("uplink", "169.254.9.9/16"),
        ("second", "10.8.0.5/22"),
        ("cni0", "10.244.1.1/24"),
        ("mc-gw0", "169.254.77.1/32"),
        ("mc-gw0", "10.66.0.1/16"),
        ("br-mc", "10.67.0.1/16"),
        ("kube-ipvs0", "10.96.0.1/32"),
    ):
        netns.add_address(fresh_namespace, device, address)
    netns.ip(fresh_namespace, "address", "add", "2001:db8::10/64", "dev", "uplink", "nodad")
    netns.ip_batch(
        fresh_namespace,
        [
            "link set uplink mtu 1480",
            "link set second mtu 9000",
            "route add default via 10.8.0.1 dev second",
            "route add 10.77.0.0/16 via 192.0.2.1",
            "route add 10.78.0.0/16 dev second scope link",
            "route add 10.79.0.0/16 dev second table 99 proto kernel scope link",
            "route add 10.80.0.1/32 via 192.0.2.1",
            "route add 10.81.0.0/16 nexthop via 192.0.2.1 nexthop via 10.8.0.1",
            "route add 10.82.0.0/16 nexthop via 192.0.2.1 nexthop via 169.254.77.2 dev mc-gw0 onlink",
            "route add 10.83.0.0/16 dev mc-gw0",
            "route add blackhole 10.84.0.0/16",
            "route add 10.244.1.7/32 dev cni0 scope link",
            "route add 10.244.1.8/32 dev cni0 scope host",
            "route add 10.245.0.0/16 dev cni0",
            "route add 2001:db8:1::/64 via 2001:db8::1 dev uplink",
        ],
    )
    return fresh_namespace


def facts(node: str, hint: Address | None, config: Config = CONFIG) -> Facts:
    """Return the facts of a namespace."""
    return netns.call(node, lambda: observe_facts(config, hint, {"mc-gw0": 1}))


def test_addresses_and_networks_are_the_nodes_own(node: str) -> None:
    """Loopback, link-local and what is on devices of ours or of kube-proxy is left out; both families count."""
    found = facts(node, NODE)
    assert found.addresses == tuple(
        ip_address(text) for text in ("10.8.0.5", "10.244.1.1", "192.0.2.10", "198.51.100.1", "2001:db8::10")
    )
    assert found.connected == tuple(
        ip_network(text) for text in ("10.8.0.0/22", "10.244.1.0/24", "192.0.2.0/24", "2001:db8::/64")
    )
    assert found.ofports == {"mc-gw0": 1}


def test_further_wireguard_devices_are_ours_by_their_mark(node: str) -> None:
    """Another program may have a device of that name: its addresses are the Node's."""
    for number, alias in ((1, "mcagent"), (2, "")):
        netns.add_veth(f"mc-wg{number}", node, f"wg{number}-p", node)
        netns.ip(node, "link", "set", f"mc-wg{number}", "alias", alias)
        netns.add_address(node, f"mc-wg{number}", f"10.90.{number}.1/24")
    added = set(facts(node, NODE).addresses) & {ip_address("10.90.1.1"), ip_address("10.90.2.1")}
    assert added == {ip_address("10.90.2.1")}


def test_networks_that_the_node_routes_by_itself(node: str) -> None:
    """Routes of its main table besides default and connected ones; not into the agent's devices, not to Pods."""
    assert facts(node, NODE).routed == tuple(
        ip_network(text)
        for text in ("10.77.0.0/16", "10.78.0.0/16", "10.80.0.1/32", "10.81.0.0/16", "10.245.0.0/16")
    )


def test_only_changed_routes_are_parsed_again(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Node may have thousands of routes, and reads them after any change of a route, address or device."""
    parsed: list[bytes] = []

    def counted(body: bytes) -> RawRoute:
        parsed.append(body)
        return parse_route(body)

    monkeypatch.setattr(main_routes, "parse_route", counted)
    table, counts = main_routes.MainTable(), []
    many = [f"route add 10.{100 + n // 250}.{n % 250}.0/24 via 192.0.2.1" for n in range(1000)]
    for commands in (many, ["route add 10.99.0.0/24 via 192.0.2.1"], ["route del 10.99.0.0/24"], ["link show"]):
        netns.ip_batch(node, commands)
        parsed.clear()
        observed = netns.call(node, lambda: observe_facts(CONFIG, NODE, {}, table=table))
        counts.append(len(parsed))
        assert observed == netns.call(node, lambda: observe_facts(CONFIG, NODE, {})), (
            "as without an earlier reading"
        )
    assert counts[0] > 1000
    assert counts[1:] == [1, 0, 0]


def test_devices_behind_which_there_may_be_several_pods(node: str) -> None:
    """Those of a kind that leads to Pods, with the networks routed there; not the uplink, not single addresses."""
    second = [(ip_network(text), "second") for text in ("10.8.0.0/22", "10.78.0.0/16")]
    assert facts(node, NODE).ipvs
    bridge = [(ip_network(text), "cni0") for text in ("10.244.1.0/24", "10.245.0.0/16")]
    assert facts(node, NODE).shared_devices == (*second, *bridge)


def test_a_single_route_per_pod_shares_no_device(fresh_namespace: str) -> None:
    """So do Calico and the AWS VPC CNI: only the uplink, and it is none."""
    netns.add_veth("uplink", fresh_namespace, "pod", fresh_namespace)
    netns.add_address(fresh_namespace, "uplink", "192.0.2.10/24")
    netns.ip(fresh_namespace, "route", "add", "192.0.2.77/32", "dev", "pod", "scope", "link")
    netns.ip(fresh_namespace, "address", "add", "169.254.1.1", "peer", "192.0.2.78", "dev", "pod")
    observed = facts(fresh_namespace, NODE)
    assert (observed.shared_devices, observed.routed, observed.ipvs) == ((), (), False)


def test_a_bridge_with_the_uplink_may_lead_to_pods(fresh_namespace: str) -> None:
    """A CNI may put Pods on the Nodes' layer 2."""
    netns.ip(fresh_namespace, "link", "add", "br0", "type", "bridge")
    netns.ip(fresh_namespace, "link", "set", "br0", "up")
    netns.add_address(fresh_namespace, "br0", "192.0.2.10/24")
    assert facts(fresh_namespace, NODE).shared_devices == ((ip_network("192.0.2.0/24"), "br0"),)


@pytest.mark.parametrize(
    ("hint", "mtu"),
    [
        ("192.0.2.10", 1480),
        ("2001:db8::10", 1480),
        ("10.8.0.5", 9000),
        (None, 9000),  # by the default route
        ("203.0.113.9", 9000),  # an address that the Node does not hold itself
        ("10.66.0.1", 9000),  # ours
    ],
)
def test_the_uplink_is_the_device_with_the_nodes_address(node: str, hint: str | None, mtu: int) -> None:
    """The MTU is that of the device that holds the Node's InternalIP, else of the default route's."""
    assert facts(node, ip_address(hint) if hint else None).uplink_mtu == mtu


def test_a_node_without_any_route_still_has_facts(fresh_namespace: str) -> None:
    """Nothing to go by means Ethernet's MTU, not an error."""
    assert facts(fresh_namespace, None) == Facts(
        datapath=DatapathType.NETDEV, uplink_mtu=1500, ofports={"mc-gw0": 1}
    )


def test_equal_worlds_give_equal_facts(node: str) -> None:
    """Two observations compare equal, so that nothing is compiled again without need."""
    assert facts(node, NODE) == facts(node, NODE)


def test_the_datapath_is_the_kernels_where_it_has_one(node: str) -> None:
    """`auto` asks the kernel; the other choices are taken as they are."""
    auto = facts(node, NODE, replace(CONFIG, datapath=DatapathChoice.AUTO)).datapath
    kernel_module = "ovs_datapath" in netns.execute(node, ["genl", "ctrl", "list"], check=False).stdout
    assert (auto is DatapathType.SYSTEM) == kernel_datapath_exists() == kernel_module
    assert facts(node, NODE, replace(CONFIG, datapath=DatapathChoice.SYSTEM)).datapath is DatapathType.SYSTEM
