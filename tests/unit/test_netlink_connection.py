"""rtnetlink messages: what is packed is what is read, and odd input does no harm."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mcagent.dataplane.netlink import connection
from mcagent.dataplane.netlink.routes import next_hops, parse_route, put_route
from mcagent.model.dataplane.resources import Route
from mcagent.model.net import Address, Network

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
    asked = Route(table=table, destination=destination, device="x", via=gateway, source=gateway)
    route = parse_route(put_route(asked, 111, oif).payload)
    assert route is not None
    assert (route.table, route.protocol, route.destination, route.oif) == (table, 111, destination, oif)
    assert (route.gateway, route.source, route.onlink, route.plain) == (gateway, gateway, True, True)
    assert list(next_hops(route)) == [gateway]


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
