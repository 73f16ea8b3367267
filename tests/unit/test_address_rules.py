"""Which addresses and networks may be used, which of several is selected, and which reserved network overlaps."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from mcagent.core.addresses.ownership import AddressClaim, losing_claims
from mcagent.core.addresses.rules import (
    ReservedRanges,
    merge_networks,
    outermost_networks,
    prefix_range,
    refuse_address,
    routable_networks,
)
from mcagent.core.addresses.underlay import (
    ENDPOINTS,
    endpoint_of,
    family,
    preferred_address,
    source_of,
    tunnel_address,
    usable_tunnel_addresses,
)
from tests.worlds.core_inputs import addresses, networks


@pytest.mark.parametrize(
    ("text", "reason", "why"),
    [
        ("0.0.0.0", "NotUnicast", "it lies in 0.0.0.0/8 (this network)"),
        ("0.255.255.255", "NotUnicast", "it lies in 0.0.0.0/8 (this network)"),
        ("127.0.0.0", "NotUnicast", "it lies in 127.0.0.0/8 (loopback)"),
        ("127.255.255.255", "NotUnicast", "it lies in 127.0.0.0/8 (loopback)"),
        ("169.254.0.0", "NotUnicast", "it lies in 169.254.0.0/16 (link-local)"),
        ("169.254.255.255", "NotUnicast", "it lies in 169.254.0.0/16 (link-local)"),
        ("224.0.0.0", "NotUnicast", "it lies in 224.0.0.0/4 (multicast)"),
        ("239.255.255.255", "NotUnicast", "it lies in 224.0.0.0/4 (multicast)"),
        ("255.255.255.255", "NotUnicast", "it lies in 255.255.255.255/32 (broadcast)"),
        ("fd00::1", "IPv6NotSupported", "IPv6 is not supported yet"),
    ],
)
def test_an_address_that_no_pod_or_service_has(text: str, reason: str, why: str) -> None:
    """The refusal names the address and the special range, from its first to its last address."""
    refusal = refuse_address(ip_address(text))
    assert refusal is not None
    assert (refusal.reason, refusal.message) == (reason, f"{text} is not used: {why}")


@pytest.mark.parametrize(
    "text",
    ["1.0.0.0", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "223.255.255.255", "240.0.0.0"],
)
def test_addresses_beside_special_ranges(text: str) -> None:
    """The addresses just outside each special range are unicast."""
    assert refuse_address(ip_address(text)) is None


def test_outermost_networks_of_both_families() -> None:
    """IPv4 sorts before IPv6; of nested and equal networks one is left, and neighbours both are."""
    nested = networks(
        "fd00::/64", "10.1.0.0/16", "fd00::/32", "10.0.0.0/8", "10.0.0.0/8", "11.0.0.0/8", "10.255.0.0/16"
    )
    assert outermost_networks(nested) == networks("10.0.0.0/8", "11.0.0.0/8", "fd00::/32")
    assert outermost_networks(networks("0.0.0.0/0", "::/0")) == networks("0.0.0.0/0", "::/0")
    assert outermost_networks(()) == ()


def test_routable_networks_are_those_that_are_not_refused() -> None:
    """A refused network hides none inside it."""
    announced = networks("10.1.0.0/16", "8.0.0.0/7", "9.1.0.0/16", "fd00::/64", "127.0.0.0/8")
    assert routable_networks(announced) == networks("9.1.0.0/16", "10.1.0.0/16")


def test_merged_networks_have_the_same_addresses() -> None:
    """Two halves are one network."""
    assert merge_networks(networks("10.0.1.0/24", "10.0.0.0/24", "10.0.3.0/24")) == networks(
        "10.0.0.0/23", "10.0.3.0/24"
    )


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("10.9.0.0/16", ("10.0.0.0/8", "first")),  # inside
        ("10.0.0.0/8", ("10.0.0.0/8", "first")),
        ("8.0.0.0/6", ("10.0.0.0/8", "first")),  # around it
        ("10.255.255.255/32", ("10.0.0.0/8", "first")),
        ("11.0.0.0/32", None),
        ("9.255.255.255/32", None),
        ("192.0.2.0/24", ("192.0.2.7/32", "an address")),
        ("192.0.2.8/32", None),
        ("fd00:0:0:1::/64", ("fd00::/32", "IPv6")),
        ("fd01::/32", None),
        ("::/0", ("fd00::/32", "IPv6")),
    ],
)
def test_a_reserved_network_is_found(network: str, expected: tuple[str, str] | None) -> None:
    """The outermost one that overlaps, with the first description of it; families do not mix."""
    reserved = ReservedRanges(
        [
            (ip_network("10.7.0.0/16"), "inside"),
            (ip_network("10.0.0.0/8"), "first"),
            (ip_network("10.0.0.0/8"), "second"),
            (ip_network("10.0.0.0/16"), "inside, too"),
            (ip_network("192.0.2.7/32"), "an address"),
            (ip_network("fd00::/32"), "IPv6"),
        ]
    )
    overlapping = reserved.overlapping(ip_network(network))
    assert overlapping == (None if expected is None else (ip_network(expected[0]), expected[1]))
    assert ReservedRanges(()).overlapping(ip_network(network)) is None


@pytest.mark.parametrize(
    ("texts", "ipv4", "ipv6", "either", "tunnel"),
    [
        (("fd00::1", "192.0.2.1", "192.0.2.2"), "192.0.2.1", "fd00::1", "192.0.2.1", "192.0.2.1"),
        (("127.0.0.1", "fe80::1", "fd00::1", "fd00::2"), "127.0.0.1", "fe80::1", "127.0.0.1", "fd00::1"),
        (("fd00::1",), None, "fd00::1", "fd00::1", "fd00::1"),
        (("192.0.2.1",), "192.0.2.1", None, "192.0.2.1", "192.0.2.1"),
        ((), None, None, None, None),
    ],
)
def test_the_address_that_is_selected(
    texts: tuple[str, ...], ipv4: str | None, ipv6: str | None, either: str | None, tunnel: str | None
) -> None:
    """The first of the family asked for; without one IPv4 before IPv6; a tunnel ends at usable addresses only."""

    def text(address: object) -> str | None:
        return None if address is None else str(address)

    candidates = addresses(*texts)
    assert text(preferred_address(candidates, 4)) == ipv4
    assert text(preferred_address(candidates, 6)) == ipv6
    assert text(preferred_address(candidates)) == either
    assert text(tunnel_address(candidates)) == tunnel
    assert usable_tunnel_addresses(candidates) == tuple(
        a for a in candidates if str(a) not in ("127.0.0.1", "fe80::1")
    )


def test_addresses_that_stand_for_a_gateway() -> None:
    """An IPv4 gateway is its own source, and its endpoint has its low bits; every Node computes the same ones."""
    assert str(endpoint_of(ip_address("192.0.2.1"))) == "240.0.2.1"
    assert str(endpoint_of(ip_address("10.1.2.3"))) == "250.1.2.3"
    assert str(source_of(ip_address("192.0.2.1"))) == "192.0.2.1"
    six = ip_address("2001:db8::1")
    assert (str(endpoint_of(six)), str(source_of(six))) == ("240.201.181.184", "248.201.181.184")
    assert endpoint_of(six) in ENDPOINTS
    assert (family(six), family(ip_address("10.0.0.1"))) == ("IPv6", "IPv4")


def claim(owner: str, cidr: str, rank: str, *, gateway: bool = False) -> AddressClaim:
    """Return a claim; the lower rank wins."""
    return AddressClaim(owner=owner, range=prefix_range(ip_network(cidr)), gateway=gateway, rank=(rank,))


def test_losers_of_claims_in_nested_ranges() -> None:
    """A granted claim blocks others around it, inside it and equal to it, not those beside it."""
    inner = claim("a", "10.1.2.0/24", "1")
    around = claim("b", "10.0.0.0/8", "2")
    middle = claim("c", "10.1.0.0/16", "3")
    beside = claim("c", "10.2.0.0/16", "4")
    inside = claim("d", "10.1.2.3/32", "5", gateway=True)
    equal = claim("e", "10.1.2.0/24", "6")
    own = claim("a", "10.1.2.9/32", "7", gateway=True)
    six = claim("f", "fd00::/64", "8")
    everything = [six, own, equal, inside, beside, middle, around, inner]
    assert losing_claims(everything) == {around: inner, middle: inner, inside: inner, equal: inner}
    assert losing_claims(reversed(everything)) == losing_claims(everything)


def test_of_equal_ranks_the_owner_decides() -> None:
    """Then the range, and a CIDR before a gateway, so the result does not depend on the order."""
    first, second = claim("a", "10.1.0.0/16", "1"), claim("b", "10.1.0.0/16", "1")
    assert losing_claims([first, second]) == losing_claims([second, first]) == {second: first}
    third = claim("c", "10.0.0.0/8", "0")
    assert losing_claims([first, second, third]) == {first: third, second: third}
