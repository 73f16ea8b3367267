"""rtnetlink messages: what is packed is what is read, and odd input does no harm."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.dataplane.netlink import connection
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.netlink.links import read_addresses
from mcagent.dataplane.netlink.routes import (
    LAST_METRIC,
    RTN_THROW,
    RTN_UNICAST,
    RTN_UNREACHABLE,
    RTN_UNSPEC,
    add_rule,
    delete_route,
    delete_rule,
    next_hops,
    parse_route,
    parse_rule,
    put_route,
    read_all_rules,
    read_routes,
)
from mcagent.model.dataplane.resources import Route, RouteType, Rule
from mcagent.model.errors import BackendError
from mcagent.model.net import Address, Network
from mcagent.model.plan import Step

LOCAL_TABLE = 255  # has a route for each address, also for that of the loopback device
NUMBERS = st.integers(1, 2**32 - 1)
DESTINATIONS = st.builds(
    lambda address, length: (
        ip_network((int(address), length), strict=False)
        if address.version == 4
        else ip_network((address.packed, length * 4), strict=False)
    ),
    st.ip_addresses(),
    st.integers(0, 32),
)


@given(destination=DESTINATIONS, table=NUMBERS, oif=NUMBERS, host=st.integers(1, 2**32 - 1))
def test_a_route_is_read_as_it_was_packed(destination: Network, table: int, oif: int, host: int) -> None:
    """Both families, any prefix length, tables below and above 256."""
    gateway: Address = ip_address(host) if destination.version == 4 else ip_address(host << 96)
    requested_route = Route(
        table=table, destination=destination, device="x", via=gateway, source=gateway, mtu=host % 65536
    )
    route = parse_route(put_route(requested_route, 111, oif).payload)
    assert route is not None
    assert (route.table, route.protocol, route.destination, route.oif) == (table, 111, destination, oif)
    assert (route.gateway, route.source, route.onlink, route.plain) == (gateway, gateway, True, True)
    assert route.mtu == requested_route.mtu
    assert list(next_hops(route)) == [gateway]


@pytest.mark.parametrize(
    ("route_type", "number", "metric"),
    [
        (RouteType.UNICAST, RTN_UNICAST, 0),
        (RouteType.THROW, RTN_THROW, 0),
        (RouteType.UNREACHABLE, RTN_UNREACHABLE, LAST_METRIC),
    ],
)
@pytest.mark.parametrize("intact", [True, False])
def test_a_route_that_others_changed_is_deleted_whatever_its_type(
    route_type: RouteType, number: int, metric: int, intact: bool
) -> None:
    """A request to delete names the type of an intact route only: the kernel refuses one of another type."""
    destination = ip_network("10.2.0.0/16")
    route = Route(table=28003, destination=destination, device="", type=route_type, intact=intact)
    deleted = parse_route(delete_route(route, 111).payload)
    assert deleted.type == (number if intact else RTN_UNSPEC)
    assert (deleted.table, deleted.protocol, deleted.destination) == (28003, 111, destination)
    assert deleted.metric == metric
    assert parse_route(put_route(route, 111, 0).payload).type == number


@pytest.mark.parametrize("destination", ["240.0.0.0/4", "fd00:20::/32"])
def test_a_rule_that_others_changed_is_deleted_by_priority_and_table(destination: str) -> None:
    """Without its selectors; an intact rule is deleted with all that it consists of."""
    network = ip_network(destination)
    rule = Rule(
        family=network.version,
        priority=300,
        table=28004,
        fwmark=0x1000,
        fwmask=0x1000,
        destination=network,
        protocol=socket.IPPROTO_UDP,
        source_ports=(16384, 32767),
    )
    assert parse_rule(add_rule(rule, 111).payload) == parse_rule(delete_rule(rule, 111).payload) == (111, rule)
    changed = replace(rule, intact=False)
    bare = Rule(family=network.version, priority=300, table=28004)
    assert parse_rule(delete_rule(changed, 111).payload) == (111, bare)


def test_a_rule_on_an_address_inside_a_network_is_read_as_foreign() -> None:
    """The kernel takes a destination with host bits, which is no network."""
    rule = Rule(priority=300, table=28004, destination=ip_network("240.0.0.0/4"))
    inside = ip_address("240.0.0.1").packed
    payload = add_rule(rule, 111).payload.replace(ip_address("240.0.0.0").packed, inside)
    assert parse_rule(payload) == (111, replace(rule, intact=False))


@given(st.dictionaries(st.integers(1, 0x3FFF), st.binary(max_size=40), max_size=6))
def test_attributes_are_read_as_they_were_packed(values: dict[int, bytes]) -> None:
    """Padding is neither read nor missed."""
    packed = b"".join(connection.attribute(kind, data) for kind, data in values.items())
    assert len(packed) % 4 == 0
    assert connection.attributes(packed) == values


@given(st.binary(max_size=200))
def test_no_message_ends_in_a_loop_or_an_error(data: bytes) -> None:
    """A cut or senseless length ends the reading."""
    for _, _, _, payload in connection.messages(data):
        connection.attributes(payload)


def test_a_rule_of_the_agents_protocol_is_removed_from_any_table() -> None:
    """As one to an earlier `routeTable`; a new rule is only for a table of the present configuration."""
    backend = NetlinkBackend(route_tables=(28003,), route_protocol=111, devices=())
    former = Rule(priority=300, table=28010)
    assert backend._requests(Step(old=former), {}) == [delete_rule(former, 111)]
    with pytest.raises(BackendError, match="table 28010 is not ours"):
        backend._requests(Step(new=former), {})


WITHOUT_HANDLERS = 5  # AF_APPLETALK: for rtnetlink as AF_INET6 on a kernel that was booted with ipv6.disable=1


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> Iterator[connection.NetlinkSocket]:
    """Give a socket of this kernel, to which the second family is as unfamiliar as a disabled IPv6."""
    monkeypatch.setattr(connection, "FAMILIES", (connection.AF_INET, WITHOUT_HANDLERS))
    with contextlib.closing(connection.NetlinkSocket()) as netlink:
        yield netlink


def test_a_kernel_without_ipv6_has_no_policy_rules_of_it(without_ipv6: connection.NetlinkSocket) -> None:
    """It refuses to list them (EAFNOSUPPORT); those of IPv4 are listed all the same."""
    rules = [rule for _, rule, _ in read_all_rules(without_ipv6)]
    assert {rule.family for rule in rules} == {4}


def test_a_kernel_without_ipv6_lists_nothing_twice(without_ipv6: connection.NetlinkSocket) -> None:
    """It answers with all families that it has; a route that is listed twice would be deleted as a stray one."""
    routes = [(route.destination, route.oif, route.metric) for route in read_routes(without_ipv6, LOCAL_TABLE)]
    addresses = list(read_addresses(without_ipv6))
    assert (len(routes), len(addresses)) == (len(set(routes)), len(set(addresses)))
    assert routes
    assert addresses
