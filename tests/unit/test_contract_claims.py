"""Claims of ClusterInfos: which there are, which collide, how they are found, and the owners of addresses."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract.cidr_claims import (
    CLAIMED,
    GRANTED,
    IMPORTED,
    CidrClaim,
    asked_for,
    cidr_claim,
    claims_in,
    claims_of,
    collide,
    colliding,
    filed_under,
    gateway_claim,
    pairs,
    place,
    without,
)
from mcagent.controller.contract.ranges import (
    Networks,
    address_of,
    block_of,
    blocks_of,
    networks_of,
    range_of,
)
from mcagent.model.api.base import as_json
from mcagent.model.api.multicluster import ApiClusterInfoImport, ClusterInfo, ResourceExport, ResourceImport
from mcagent.model.api.patches import whole
from mcagent.model.parsing.decode import read_as, read_part

KEYS = tuple(letter * 43 + "=" for letter in "ABCD")


def info(**fields: Any) -> ClusterInfo:
    """Return a ClusterInfo."""
    return read_part(ClusterInfo, fields)


def described(*claims: CidrClaim) -> list[tuple[str, bool]]:
    """Return text and kind of claims."""
    return [(str(claim), claim.gateway) for claim in claims]


FULL = info(
    clusterID="east",
    serviceCIDR="10.96.0.9/16",
    podCIDRs=["10.20.0.0/16", "10.20.0.0/16", "10.10.0.0/16", "x"],
    wireGuard={"publicKey": KEYS[0], "nextPublicKey": KEYS[1], "port": 1},
    gatewayInfos=[
        {"gatewayIP": "192.0.2.1"},
        {"gatewayIP": "2001:db8::1", "wireGuard": {"publicKey": KEYS[2], "nextPublicKey": "short"}},
        {"gatewayIP": "fe80::1"},
    ],
)


def test_claims_of_a_cluster() -> None:
    """CIDRs, gateways and keys are claimed once each, in order; what cannot be used claims nothing."""
    assert described(*claims_of(FULL)) == [
        ("Service CIDR 10.96.0.0/16", False),
        ("Pod CIDR 10.20.0.0/16", False),
        ("Pod CIDR 10.10.0.0/16", False),
        (f"WireGuard key {KEYS[0]}", False),
        (f"WireGuard key {KEYS[1]}", False),
        ("gateway 192.0.2.1", True),
        ("gateway 2001:db8::1", True),
        (f"WireGuard key {KEYS[2]}", False),
    ]
    assert claims_of(None) == claims_of(info()) == ()
    info_with_equal_cidrs = info(serviceCIDR="10.96.0.0/16", podCIDRs=["10.96.0.0/16"])
    assert described(*claims_of(info_with_equal_cidrs)) == [("Service CIDR 10.96.0.0/16", False)]


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"podCIDRs": [f"10.{n // 256}.{n % 256}.0/24" for n in range(1024)]}, 1024),
        ({"podCIDRs": [f"10.{n // 256}.{n % 256}.0/24" for n in range(1025)]}, 0),
        ({"gatewayInfos": [{"gatewayIP": f"192.0.2.{n + 1}"} for n in range(64)]}, 64),
        ({"gatewayInfos": [{"gatewayIP": f"192.0.2.{n + 1}"} for n in range(65)]}, 0),
        ({"serviceCIDR": "10.96.0.0/" + "0" * 53 + "16"}, 0),
        ({"serviceCIDR": "1" * 100}, 0),
        ({"wireGuard": {"publicKey": "A" * 43}}, 0),
        ({"wireGuard": {"publicKey": "A" * 45}}, 0),
    ],
)
def test_limits_of_claims(fields: dict[str, Any], number: int) -> None:
    """A ClusterInfo with too many entries claims nothing."""
    assert len(claims_of(info(**fields))) == number


@pytest.mark.parametrize(
    "text", ["", "x", "10.0.0.0", "10.0.0.0/7", "127.0.0.0/8", "224.0.0.0/8", "fd00::/64", "10.0.0.0/33"]
)
def test_cidrs_that_cannot_be_claimed(text: str) -> None:
    """What cannot be routed between clusters is no claim."""
    assert cidr_claim(text, "Pod CIDR") is None


@pytest.mark.parametrize("text", ["", "x", "127.0.0.1", "224.0.0.1", "fe80::1", "2001:db8::1%eth0", "::1"])
def test_gateways_that_cannot_be_claimed(text: str) -> None:
    """No tunnel can end there."""
    assert gateway_claim(text) is None


def test_claims_of_objects() -> None:
    """Exports and imports of kind ClusterInfo have claims, and no other objects."""
    export = {"spec": {"kind": "ClusterInfo", "clusterInfo": {"serviceCIDR": "10.96.0.0/16"}}}
    imported = {"spec": {"kind": "ClusterInfo", "clusterinfo": {"serviceCIDR": "10.96.0.0/16"}}}
    expected = [("Service CIDR 10.96.0.0/16", False)]
    assert described(*claims_in(read_as(ResourceExport, export))) == expected
    assert described(*claims_in(read_as(ResourceImport, imported))) == expected
    export["spec"]["kind"] = "Service"
    assert claims_in(read_as(ResourceExport, export)) == ()
    assert (
        claims_in(read_as(ApiClusterInfoImport, {"spec": {"serviceCIDR": "10.96.0.0/16"}}))
        == claims_in(None)
        == ()
    )


def test_a_cluster_info_without_refused_claims() -> None:
    """Each refused claim is left out, and gateways whose key is refused, which would seem not to encrypt."""
    assert without(FULL, set()) == info(
        clusterID="east",
        serviceCIDR="10.96.0.9/16",
        podCIDRs=["10.20.0.0/16", "10.20.0.0/16", "10.10.0.0/16", "x"],
        wireGuard={"publicKey": KEYS[0], "nextPublicKey": KEYS[1], "port": 1},
        gatewayInfos=[
            {"gatewayIP": "192.0.2.1"},
            {"gatewayIP": "2001:db8::1", "wireGuard": {"publicKey": KEYS[2], "nextPublicKey": "short"}},
            {"gatewayIP": "fe80::1"},
        ],
    )
    rest = without(FULL, {"10.96.0.9/16", "10.20.0.0/16", "192.0.2.1", KEYS[1], KEYS[2]})
    assert rest == info(
        clusterID="east",
        podCIDRs=["10.10.0.0/16", "x"],
        wireGuard={"publicKey": KEYS[0], "port": 1},
        gatewayInfos=[{"gatewayIP": "fe80::1"}],
    )
    without_common_key = without(FULL, {KEYS[0]})
    assert without_common_key.wireguard is None
    assert [gateway.gateway_ip for gateway in without_common_key.gateway_infos] == ["2001:db8::1"]
    assert without_common_key.gateway_infos[0].wireguard == FULL.gateway_infos[1].wireguard
    plain = info(gatewayInfos=[{"gatewayIP": "192.0.2.1"}])
    assert without(plain, {"10.0.0.0/8"}) == plain


def test_the_json_of_a_cluster_info() -> None:
    """Fields without a value are None, so that a merge patch removes them."""
    assert as_json(whole(info(clusterID="east"))) == {
        "clusterID": "east",
        "serviceCIDR": None,
        "podCIDRs": None,
        "gatewayInfos": None,
        "wireGuard": None,
    }
    assert as_json(whole(info(clusterID="east", serviceCIDR="10.0.0.0/8", wireGuard={"publicKey": "k"}))) == {
        "clusterID": "east",
        "serviceCIDR": "10.0.0.0/8",
        "podCIDRs": None,
        "gatewayInfos": None,
        "wireGuard": {"publicKey": "k", "nextPublicKey": None, "port": None, "devices": None},
    }


# --- collisions -------------------------------------------------------------------------------------------


def claim(text: str) -> CidrClaim:
    """Return the claim to a CIDR, a gateway or a key."""
    if len(text) == 44:
        return claims_of(info(wireGuard={"publicKey": text}))[0]
    read = cidr_claim(text, "Pod CIDR") if "/" in text else gateway_claim(text)
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("10.0.0.0/16", "10.0.0.0/16", True),
        ("10.0.0.0/16", "10.0.7.0/24", True),
        ("10.0.0.0/8", "10.255.255.255/32", True),
        ("10.0.0.0/16", "10.1.0.0/16", False),
        ("10.0.0.0/32", "10.0.0.1/32", False),
        ("10.0.0.0/16", "10.0.0.1", True),
        ("10.0.0.0/16", "10.1.0.1", False),
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("10.0.2.1", "26.0.2.1", True),  # the same endpoint in 240.0.0.0/4
        ("2001:db8::1", "2001:db8::1", True),
        ("2001:db8::1", "2001:db8::2", False),
        ("2001:db8::1", "10.0.0.0/8", False),
        (KEYS[0], KEYS[0], True),
        (KEYS[0], KEYS[1], False),
        (KEYS[0], "10.0.0.0/16", False),
        (KEYS[0], "192.0.2.1", False),
    ],
)
def test_collisions(first: str, second: str, expected: bool) -> None:
    """Ranges that overlap, equal keys, and gateways whose tunnels would have one address collide; both ways."""
    a, b = claim(first), claim(second)
    assert collide(a, b) is expected
    assert collide(b, a) is expected


CIDRS = st.builds(
    lambda number, length: f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/{length}",
    st.integers(0, 0x3FF).map(lambda number: number << 14),
    st.integers(8, 32),
)
TEXTS = st.one_of(
    CIDRS,
    st.sampled_from(["10.0.0.1", "10.64.0.0", "26.0.0.1", "192.0.2.1", "2001:db8::1", "2001:db8::2", *KEYS[:2]]),
)


@given(TEXTS, TEXTS)
def test_collisions_are_found_by_index(first: str, second: str) -> None:
    """A claim is filed under a value that another one asks for if, and only if, both collide."""
    a, b = claim(first), claim(second)
    assert (not set(asked_for(a)).isdisjoint(filed_under(b))) == collide(a, b)


def test_index_values_of_claims() -> None:
    """Few values: itself and the prefixes around; all Nodes of a version compute the same."""
    assert list(filed_under(claim("10.0.0.0/10"))) == ["40/10", "in 10/8", "in 20/9"]
    assert list(asked_for(claim("10.0.0.0/10"))) == ["40/10", "10/8", "20/9", "in 40/10"]
    assert list(filed_under(claim("10.0.0.0/8"))) == ["10/8"]
    assert list(filed_under(claim(KEYS[0]))) == list(asked_for(claim(KEYS[0]))) == [KEYS[0]]
    gateway = list(filed_under(claim("2001:db8::1")))
    assert gateway[0] == f"{0x20010DB8 << 96 | 1:x}"
    assert [value.split(" ")[:2] for value in gateway[1:]] == [["point", "4"]] * 2
    assert list(asked_for(claim("2001:db8::1"))) == gateway


def test_objects_with_colliding_claims() -> None:
    """Each object is found once, in the order of names; areas are separate."""
    exports = [
        read_as(
            ResourceExport,
            {
                "metadata": {"name": name, "namespace": area},
                "spec": {"kind": "ClusterInfo", "clusterInfo": {"podCIDRs": cidrs}},
            },
        )
        for name, area, cidrs in (
            ("b", "mcs", ["10.1.0.0/16", "10.2.0.0/16"]),
            ("a", "mcs", ["10.1.7.0/24"]),
            ("c", "mcs", ["10.3.0.0/16"]),
            ("d", "other", ["10.1.0.0/16"]),
        )
    ]

    def indexed(value: str) -> list[ResourceExport]:
        return [export for export in exports if value in CLAIMED.values(export)]

    claims = [claim("10.1.7.0/24"), claim("10.2.0.0/16")]
    assert [export.name for export in colliding(claims, "mcs", indexed)] == ["a", "b"]
    assert [export.name for export in colliding(claims, "other", indexed)] == ["d"]
    assert colliding([], "mcs", indexed) == []
    assert place("mcs", "10/8") == "mcs 10/8"
    imported = {"kind": "ClusterInfo", "clusterinfo": {"podCIDRs": ["10.0.0.0/8"]}}
    granted = read_as(ResourceImport, {"metadata": {"namespace": "mcs"}, "spec": imported})
    assert list(GRANTED.values(granted)) == list(IMPORTED.values(granted)) == ["mcs 10/8"]


def test_pairs_of_overlapping_claims() -> None:
    """Pairs of different owners, in the order of addresses, the outer claim first, and at most so many."""
    owned = [
        ("east", claim("10.0.0.0/8")),
        ("west", claim("10.1.0.0/16")),
        ("north", claim("10.1.2.0/24")),
        ("north", claim("10.1.0.0/16")),
        ("west", claim("192.168.0.0/16")),
        ("east", claim("192.168.7.1")),
        ("east", claim(KEYS[0])),
        ("west", claim(KEYS[0])),
        ("west", claim("2001:db8::1")),
        ("east", claim("10.9.0.0/16")),
    ]
    expected = [
        ("east", "10.0.0.0/8", "north", "10.1.0.0/16"),
        ("east", "10.0.0.0/8", "west", "10.1.0.0/16"),
        ("north", "10.1.0.0/16", "west", "10.1.0.0/16"),
        ("east", "10.0.0.0/8", "north", "10.1.2.0/24"),
        ("west", "10.1.0.0/16", "north", "10.1.2.0/24"),
        ("west", "192.168.0.0/16", "east", "192.168.7.1"),
    ]
    for most in (100, 6, 5, 1):
        overlapping_pairs = [(a, x.text, b, y.text) for a, x, b, y in pairs(owned, most)]
        assert overlapping_pairs == expected[:most]
        assert [(a, x.text, b, y.text) for a, x, b, y in pairs(reversed(owned), most)] == overlapping_pairs


# --- owners of addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.0/30", (0x0A000000, 0x0A000003)),
        ("10.0.0.1/30", (0x0A000000, 0x0A000003)),
        ("10.0.0.1/32", (0x0A000001, 0x0A000001)),
        ("10.0.0.0", None),
        ("127.0.0.0/8", None),
        ("fd00::/64", None),
        ("0.0.0.0/0", None),
    ],
)
def test_ranges_of_cidrs(text: str, expected: tuple[int, int] | None) -> None:
    """The first and last address of a CIDR that can be routed."""
    assert range_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("10.0.0.1", 0x0A000001), ("127.0.0.1", None), ("fd00::1", None), ("x", None)]
)
def test_addresses_of_endpoints(text: str, expected: int | None) -> None:
    """IPv4 addresses that can be routed."""
    assert address_of(text) == expected


def test_blocks_of_addresses() -> None:
    """Each CIDR has the /16 blocks that it overlaps."""
    assert blocks_of(["10.96.0.0/15", "10.98.7.0/24", "x", "192.168.255.0/24"]) == {
        "10.96",
        "10.97",
        "10.98",
        "192.168",
    }
    assert blocks_of([]) == set()
    assert block_of("10.96.7.1") == "10.96"


def test_owners_of_addresses() -> None:
    """All owners of ranges with the address, sorted, each once; ranges may be nested and equal."""
    rows = [(0, 99, "z"), (10, 19, "b"), (10, 19, "a"), (12, 13, "b"), (50, 50, "c"), (200, 300, "d")]
    for ranges in (rows, rows[::-1]):
        networks = Networks(ranges)
        for address, owners in (
            (0, "z"),
            (9, "z"),
            (10, "abz"),
            (13, "abz"),
            (19, "abz"),
            (20, "z"),
            (50, "cz"),
            (51, "z"),
            (99, "z"),
            (100, ""),
            (199, ""),
            (200, "d"),
            (300, "d"),
            (301, ""),
        ):
            assert networks.owners(address) == list(owners)
    assert Networks([]).owners(7) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.sampled_from("abc"))))
def test_owners_are_those_of_a_search(ends: list[tuple[int, int, str]]) -> None:
    """The look-up gives what a comparison with each range gives."""
    ranges = [(min(first, last), max(first, last), owner) for first, last, owner in ends]
    networks = Networks(ranges)
    for address in range(32):
        assert networks.owners(address) == sorted({o for first, last, o in ranges if first <= address <= last})


def test_networks_of_one_owner() -> None:
    """Invalid CIDRs are ignored."""
    networks = networks_of(["10.0.0.0/24", "x", "10.0.0.0/16"], "east")
    for address, owner in product((0x0A000001, 0x0A00FFFF), ("east",)):
        assert networks.owners(address) == [owner]
    assert networks.owners(0x0A010000) == []
    assert networks_of(["10.0.0.0/24"]).owners(0x0A000000) == [""]
