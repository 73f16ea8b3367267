"""The netlink backend against the kernel, in a namespace of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, ip_address, ip_network

import pytest

from devtools.nodes import netns
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.model.dataplane.resources import Link, LinkAddress, Neighbour, Resource, Route, RouteType, Rule
from mcagent.model.errors import BackendError
from mcagent.model.plan import Step
from tests.contract.inside import Inside, adds, as_mapping, make
from tests.contract.suite import BackendContract, Case

pytestmark = pytest.mark.contract

DEVICE = "mc-gw0"
NODE = ip_address("192.0.2.10")
NEXT_HOP = ip_address("169.254.77.2")
TABLE, REPLY, PROTOCOL = 28003, 28004, 111
BIT = 1 << 12


@pytest.fixture
def node(fresh_namespace: str) -> str:
    """Give a namespace with an uplink that holds the Node's address, and a device in the host port's place."""
    netns.ip(fresh_namespace, "link", "add", "uplink", "type", "veth", "peer", "name", "underlay")
    netns.ip(fresh_namespace, "link", "add", DEVICE, "type", "veth", "peer", "name", "bridge")
    for device in ("uplink", "underlay", "bridge"):
        netns.ip(fresh_namespace, "link", "set", device, "up")
    netns.ip(fresh_namespace, "address", "add", f"{NODE}/24", "dev", "uplink")
    return fresh_namespace


@pytest.fixture
def backend(node: str) -> Iterator[Inside]:
    """Give a backend that owns DEVICE, tables and protocol in `node`."""
    backend = Inside(node, NetlinkBackend(route_tables=(TABLE, REPLY), route_protocol=PROTOCOL, devices=(DEVICE,)))
    yield backend
    backend.close()


def remote(cidr: str, **more: object) -> Route:
    """Return a route as core compiles it for a CIDR of a remote cluster."""
    values: dict[str, object] = {"device": DEVICE, "via": NEXT_HOP, "source": NODE, **more}
    return Route(table=TABLE, destination=ip_network(cidr), **values)  # type: ignore[arg-type]


def device_part() -> list[Resource]:
    """Return what routes stand on: the device, its address and the next hop."""
    return [
        Link(name=DEVICE, mtu=1450),
        LinkAddress(device=DEVICE, address=ip_address("169.254.77.1"), prefixlen=32),
        Neighbour(device=DEVICE, address=NEXT_HOP, mac="aa:bb:cc:dd:ee:f0"),
    ]


def everything() -> list[Resource]:
    """Return one of everything that core compiles for netlink."""
    return [
        *device_part(),
        remote("10.20.0.0/16"),
        remote("10.21.7.7/32"),
        Route(table=TABLE, destination=ip_network("10.20.0.9/32"), type=RouteType.THROW),
        Route(table=TABLE, destination=ip_network("240.0.2.1/32"), type=RouteType.UNREACHABLE),
        Route(table=REPLY, destination=ip_network("0.0.0.0/0"), device=DEVICE, via=NEXT_HOP),
        Rule(priority=300, table=TABLE),
        Rule(priority=301, table=REPLY, fwmark=BIT, fwmask=BIT),
        spread(1, 32768, 65534),
    ]


def spread(number: int, first: int, last: int, **fields: object) -> Rule:
    """Return a rule of those that spread encapsulated packets over WireGuard devices by their source port."""
    values: dict[str, object] = {
        "destination": ip_network("240.0.0.0/4"),
        "protocol": socket.IPPROTO_UDP,
        "source_ports": (first, last),
        **fields,
    }
    return Rule(priority=299, table=TABLE + number, **values)  # type: ignore[arg-type]


def foreign_view(node: str) -> list[str]:
    """Return what others have in a namespace, as ip(8) shows it."""
    return [
        netns.ip(node, "route", "show", "table", "main"),
        netns.ip(node, "route", "show", "table", "77"),
        netns.ip(node, "route", "show", "table", str(TABLE), "proto", "static"),
        netns.ip(node, "rule", "show", "priority", "250"),
        netns.ip(node, "rule", "show", "priority", "251"),
        netns.ip(node, "neigh", "show", "dev", "uplink"),
        netns.ip(node, "-o", "address", "show", "dev", "uplink"),
        netns.ip(node, "-o", "link", "show", "uplink"),
    ]


def add_foreign(node: str) -> None:
    """Put something of somebody else's beside everything of ours."""
    # Not in the batch: ip -batch of 6.1 takes a name for the number that came before it.
    netns.ip(node, "route", "add", "10.31.0.0/16", "via", "192.0.2.1", "table", "77", "proto", str(PROTOCOL))
    netns.ip_batch(
        node,
        [
            "route add 10.20.0.0/16 via 192.0.2.1 proto static",
            f"route add 10.32.0.0/16 via 192.0.2.1 table {TABLE} proto static",
            "rule add priority 250 table 77",
            "rule add priority 251 fwmark 0x4000/0x4000 table 78 protocol static",
            "neigh add 192.0.2.77 lladdr 02:00:00:00:00:77 dev uplink nud permanent",
        ],
    )


class TestNetlink(BackendContract):
    """The contract that all backends keep."""

    @pytest.fixture
    def case(self, backend: Inside, node: str) -> Case:
        link, address, neighbour, *other_resources = everything()
        return Case(
            backend=backend,
            base=(link, address, neighbour),
            pool=(
                *other_resources,
                remote("10.20.0.0/16", source=None),
                remote("10.20.0.0/16", mtu=1300),
                Route(table=TABLE, destination=ip_network("10.21.7.7/32"), type=RouteType.THROW),
                Rule(priority=301, table=REPLY, fwmark=4, fwmask=12),
                spread(0, 7, 7),
                spread(1, 16384, 32767),
                spread(1, 16384, 32767, destination=None, protocol=socket.IPPROTO_TCP),
                spread(1, 1, 9, family=6, destination=ip_network("fd00:20::/32")),
                Neighbour(device=DEVICE, address=ip_address("169.254.77.3"), mac="aa:bb:cc:dd:ee:f1"),
            ),
            refused=remote("10.30.0.0/16", source=ip_address("203.0.113.1")),
            add_foreign=lambda: add_foreign(node),
            foreign=lambda: foreign_view(node),
            break_facility=lambda: None,
        )

    def test_a_facility_that_is_away_is_told_as_such(self, case: Case) -> None:
        """The kernel does not go away, a socket may: that is told once, and the next call has a new one."""
        make(case.backend, case.base)
        assert isinstance(case.backend, Inside)
        netlink = case.backend.backend
        assert isinstance(netlink, NetlinkBackend)
        calls: list[Callable[[], object]] = [
            case.backend.observe,
            lambda: case.backend.apply(adds(*case.whole)),
        ]
        for call in calls:
            assert netlink._socket is not None
            netlink._socket.close()
            with pytest.raises(BackendError, match="netlink"):
                call()
            assert case.backend.observe() == as_mapping(case.base)


def test_the_kernel_uses_the_routes_as_meant(backend: Inside, node: str) -> None:
    """A packet to a remote CIDR takes our device; one to a thrown tunnel endpoint or elsewhere does not."""
    netns.ip(node, "route", "add", "default", "via", "192.0.2.1")
    make(backend, everything())
    assert "dev mc-gw0" in netns.ip(node, "route", "get", "10.20.3.4")
    assert f"src {NODE}" in netns.ip(node, "route", "get", "10.20.3.4")
    assert "dev uplink" in netns.ip(node, "route", "get", "10.20.0.9")
    assert "dev uplink" in netns.ip(node, "route", "get", "10.99.0.1")
    assert "dev mc-gw0" in netns.ip(node, "route", "get", "10.99.0.1", "mark", str(BIT))


def test_the_kernel_spreads_packets_by_their_source_port(backend: Inside, node: str) -> None:
    """Those of a range take the table of their rule; others the table of all."""
    endpoint = ip_network("240.168.2.11/32")
    via = ip_address("169.254.77.9")
    spread_route = Route(table=REPLY, destination=endpoint, device=DEVICE, via=via)
    make(backend, [*device_part(), remote(str(endpoint)), Rule(priority=300, table=TABLE), spread_route])
    for first, last in ((16384, 32767), (32768, 65534)):
        make(backend, [*backend_resources(backend), spread(1, first, last)])
        for port, gateway in ((1, NEXT_HOP), (first - 1, NEXT_HOP), (first, via), (last, via), (65535, NEXT_HOP)):
            words = ("ipproto", "udp", "sport", str(port), "dport", "6081")
            assert f"via {gateway} " in netns.ip(node, "route", "get", "240.168.2.11", *words)
        assert f"via {NEXT_HOP} " in netns.ip(node, "route", "get", "240.168.2.11")


def backend_resources(backend: Inside) -> list[Resource]:
    """Return what is there, without rules that spread packets."""
    return [
        resource
        for resource in backend.observe().values()
        if not isinstance(resource, Rule) or resource.priority != 299
    ]


def test_the_end_of_the_ports_is_refused(backend: Inside) -> None:
    """Linux takes no range that ends at 65535 (include/net/fib_rules.h, fib_rule_port_range_valid)."""
    result = backend.apply(adds(spread(1, 32768, 65535)))
    assert "sport" in str(result.failed[0][1])


def test_ipv6_resources_come_back_equal(backend: Inside, node: str) -> None:
    """No part of the backend takes IPv4 for granted."""
    netns.ip(node, "-6", "address", "add", "2001:db8::10/64", "dev", "uplink", "nodad")
    resources: list[Resource] = [
        Link(name=DEVICE, mtu=1450),
        LinkAddress(device=DEVICE, address=ip_address("fd00:77::1"), prefixlen=128),
        Neighbour(device=DEVICE, address=ip_address("fd00:77::2"), mac="aa:bb:cc:dd:ee:f0"),
        Route(
            table=TABLE,
            destination=ip_network("fd00:20::/32"),
            device=DEVICE,
            via=ip_address("fd00:77::2"),
            source=ip_address("2001:db8::10"),
        ),
        Route(table=TABLE, destination=ip_network("fd00:20::9/128"), type=RouteType.THROW),
        Route(table=REPLY, destination=ip_network("::/0"), device=DEVICE, via=ip_address("fd00:77::2")),
        Rule(priority=300, table=TABLE, family=6),
        spread(1, 1, 32767, family=6, destination=ip_network("fd00:20::/32")),
    ]
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)
    moved = [*resources[:3], Route(table=TABLE, destination=ip_network("fd00:20::/32"), type=RouteType.THROW)]
    make(backend, moved)
    assert backend.observe() == as_mapping(moved)


def test_changes_are_made_in_place(backend: Inside) -> None:
    """A changed MTU, MAC, next hop, route type or rule mark is replaced and nothing of the old stays."""
    make(backend, everything())
    changed: list[Resource] = [
        Link(name=DEVICE, mtu=1390, rp_filter=0, forwarding=False),
        LinkAddress(device=DEVICE, address=ip_address("169.254.77.1"), prefixlen=32),
        Neighbour(device=DEVICE, address=NEXT_HOP, mac="aa:bb:cc:dd:ee:ff"),
        remote("10.20.0.0/16", via=IPv4Address("169.254.77.3")),
        remote("10.20.0.9/32"),
        Route(table=TABLE, destination=ip_network("10.21.7.7/32"), type=RouteType.THROW),
        Rule(priority=300, table=TABLE, fwmark=2, fwmask=2),
        Rule(priority=302, table=REPLY, fwmark=BIT, fwmask=BIT),
        spread(1, 32768, 49151),
    ]
    make(backend, changed)
    assert backend.observe() == as_mapping(changed)


def test_one_bad_step_does_not_stop_the_rest_and_names_its_object(backend: Inside) -> None:
    """An unusable source address fails its own route only, in the kernel's words."""
    bad = remote("10.30.0.0/16", source=ip_address("203.0.113.1"))
    nowhere = remote("10.33.0.0/16", device="nosuchdev0")
    good = [remote("10.20.0.0/16"), remote("10.40.0.0/16")]
    make(backend, device_part())
    result = backend.apply(adds(good[0], bad, nowhere, good[1]))
    assert [step.new for step in result.done] == good
    assert [step.new for step, _ in result.failed] == [bad, nowhere]
    first, second = (str(error) for _, error in result.failed)
    assert "add route 10.30.0.0/16 via" in first
    assert "table 28003" in first
    assert "Invalid" in first
    assert "nosuchdev0" in second
    assert "No such device" in second
    assert backend.observe() == as_mapping([*device_part(), *good])


def test_a_missing_device_is_told_per_step(backend: Inside, node: str) -> None:
    """Without the host port the link, its address and its neighbour fail by name; the rules still go in."""
    netns.ip(node, "link", "delete", DEVICE)
    result = backend.apply(adds(*everything()))
    failed = " ".join(str(error) for _, error in result.failed)
    for text in ("link mc-gw0", "address 169.254.77.1/32 dev mc-gw0", "neighbour 169.254.77.2 "):
        assert text in failed
    assert {step.new for step in result.done} >= {Rule(priority=300, table=TABLE)}
    assert set(backend.observe()) == {step.key for step in result.done}


def test_a_step_outside_of_what_is_ours_is_refused(backend: Inside, node: str) -> None:
    """A mistake above the backend reaches no foreign device or table."""
    result = backend.apply(
        adds(
            Link(name="uplink", mtu=1300),
            Route(table=254, destination=ip_network("10.0.0.0/8"), type=RouteType.THROW),
        )
    )
    assert result.done == ()
    assert all(not error.retryable for _, error in result.failed)
    assert "mtu 1500" in netns.ip(node, "link", "show", "uplink")


def test_a_link_that_went_down_shows_with_all_that_it_lost(backend: Inside, node: str) -> None:
    """The kernel drops the routes of a downed link silently: observe tells, and one repair brings all back."""
    resources = everything()
    make(backend, resources)
    netns.ip(node, "link", "set", DEVICE, "down")
    observed = backend.observe()
    assert observed[("0link", DEVICE)] == Link(name=DEVICE, mtu=1450, up=False)
    assert remote("10.20.0.0/16").key not in observed
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)


def test_a_device_made_anew_is_configured_again(backend: Inside, node: str) -> None:
    """A device that OVSDB made again under the same name is not taken for the configured one."""
    resources = everything()
    make(backend, resources)
    netns.ip(node, "link", "delete", DEVICE)
    netns.ip(node, "link", "add", DEVICE, "type", "veth", "peer", "name", "bridge")
    assert ("0link", DEVICE) not in backend.observe()
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)


@pytest.mark.parametrize(
    "spoil",
    [
        f"route add 10.20.0.0/16 via {NEXT_HOP} dev {DEVICE} onlink table {TABLE} proto {PROTOCOL} metric 5",
        f"route add 10.77.0.0/16 via {NEXT_HOP} dev {DEVICE} onlink table {TABLE} proto {PROTOCOL} metric 5",
        f"route replace 10.20.0.0/16 via {NEXT_HOP} dev {DEVICE} onlink table {TABLE} proto {PROTOCOL} mtu 900",
        f"route replace 10.20.0.0/16 via 192.0.2.1 table {TABLE} proto {PROTOCOL}",
        f"route replace blackhole 10.20.0.0/16 table {TABLE} proto {PROTOCOL}",
        f"route replace blackhole 10.20.0.0/16 table {TABLE} proto static",
        f"route add throw 10.78.0.0/16 table {TABLE} proto {PROTOCOL}",
        f"rule add priority 300 from 10.9.0.0/16 table {TABLE} protocol {PROTOCOL}",
        f"rule add priority 299 iif uplink table {TABLE} protocol {PROTOCOL}",
        f"rule del priority 301 table {REPLY}",
        f"rule del priority 299 table {REPLY}",
        f"rule add priority 299 to 240.0.0.0/4 ipproto udp sport 5-9 table {REPLY} protocol {PROTOCOL}",
        f"rule add priority 299 to 240.0.0.0/4 ipproto udp dport 5-9 table {REPLY} protocol {PROTOCOL}",
        f"rule add priority 299 to 240.0.0.0/4 ipproto tcp sport 32768-65534 table {REPLY} protocol {PROTOCOL}",
        f"rule add priority 299 to 240.1.0.0/16 table {REPLY} protocol {PROTOCOL}",
        f"neigh replace {NEXT_HOP} lladdr 02:00:00:00:00:01 dev {DEVICE} nud permanent",
        f"neigh add 169.254.77.9 lladdr 02:00:00:00:00:01 dev {DEVICE} nud permanent",
        f"address add 10.200.0.1/24 dev {DEVICE}",
        f"link set {DEVICE} mtu 1300",
    ],
)
def test_what_somebody_changes_shows_as_a_difference_and_is_repaired(
    backend: Inside, node: str, spoil: str
) -> None:
    """Altered, added and removed objects under our mark are noticed; one repair leaves the world as asked."""
    resources = everything()
    make(backend, resources)
    before = netns.ip(node, "route", "show", "table", str(TABLE)), netns.ip(node, "rule", "show")
    netns.ip(node, *spoil.split())
    assert backend.observe() != as_mapping(resources)
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)
    assert (netns.ip(node, "route", "show", "table", str(TABLE)), netns.ip(node, "rule", "show")) == before


def test_a_device_that_was_added_to_a_bridge_is_removed_from_it(backend: Inside, node: str) -> None:
    """As by systemd-networkd with a `.network` file for all devices: packets would go to that bridge."""
    make(backend, device_part())
    netns.ip(node, "link", "add", "br-other", "type", "bridge")
    netns.ip(node, "link", "set", DEVICE, "master", "br-other")
    assert backend.observe() != as_mapping(device_part())
    make(backend, device_part())
    assert "master" not in netns.ip(node, "link", "show", DEVICE)
    assert backend.observe() == as_mapping(device_part())


def test_per_device_switches_are_set_on_our_device_only(backend: Inside, node: str) -> None:
    """rp_filter and forwarding of the host port change; those of other devices do not."""

    def switches(device: str) -> tuple[str, ...]:
        base = f"/proc/sys/net/ipv4/conf/{device}"
        paths = [f"{base}/rp_filter", f"{base}/forwarding"]
        return tuple(netns.execute(node, ["cat", *paths]).stdout.split())

    before = {device: switches(device) for device in ("all", "default", "uplink")}
    make(backend, [Link(name=DEVICE, mtu=1450, rp_filter=2, forwarding=True)])
    assert switches(DEVICE) == ("2", "1")
    assert {device: switches(device) for device in before} == before


@pytest.mark.timing
def test_ten_thousand_routes_cost_about_what_the_kernel_needs(backend: Inside, node: str) -> None:
    """Bulk changes are sent in bulk: 10,000 routes in less than ten times what ip -batch takes, and all there."""
    make(backend, device_part())
    routes = [remote(f"10.{n // 256}.{n % 256}.0/24") for n in range(10_000)]
    lines = [
        f"route add {route.destination} via {NEXT_HOP} dev {DEVICE} onlink src {NODE} table 900"
        for route in routes
    ]
    start = time.perf_counter()
    netns.ip_batch(node, lines)
    reference = time.perf_counter() - start
    start = time.perf_counter()
    result = backend.apply(adds(*routes))
    took = time.perf_counter() - start
    assert result.failed == ()
    assert backend.observe() == as_mapping([*device_part(), *routes])
    assert took < 10 * reference
    gone = [Step(old=route) for route in routes]
    assert backend.apply(gone).failed == ()
    assert backend.observe() == as_mapping(device_part())


def test_an_unreachable_route_stays_when_the_device_of_the_other_goes(node: str) -> None:
    """Of two routes to one destination the kernel takes the device's away with it; then the last one counts."""
    netns.ip(node, "link", "add", "wg", "type", "veth", "peer", "name", "gw")
    netns.ip(node, "link", "set", "wg", "up")
    netns.ip(node, "route", "add", "default", "via", "192.0.2.1", "dev", "uplink")
    endpoint = ip_network("240.0.2.1/32")
    last = Route(table=TABLE, destination=endpoint, type=RouteType.UNREACHABLE)
    way = Route(table=TABLE, destination=endpoint, device="wg", source=NODE)
    backend = Inside(
        node,
        NetlinkBackend(
            route_tables=(TABLE, REPLY), route_protocol=PROTOCOL, devices=(DEVICE,), route_devices=("wg",)
        ),
    )
    try:
        make(backend, [last, way, Rule(priority=300, table=TABLE)])
        assert backend.observe().keys() >= {last.key, way.key}
        assert "dev wg" in netns.ip(node, "route", "get", "240.0.2.1")
        netns.ip(node, "link", "delete", "wg")
        assert way.key not in backend.observe()
        assert last.key in backend.observe()
        done = netns.execute(node, ["ip", "route", "get", "240.0.2.1"], check=False)
        assert "unreachable" in (done.stdout + done.stderr).lower() or done.returncode == 2
        # Taking the device's route away, though it is gone already, takes nothing else.
        result = backend.apply([Step(old=way)])
        assert result.failed == ()
        assert last.key in backend.observe()
        backend.apply([Step(old=last)])
        assert last.key not in backend.observe()
    finally:
        backend.close()
