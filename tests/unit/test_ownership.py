"""Whose an address is: the rule, against a naive one, and in bounded time for the worst that anybody asks for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.addresses.ownership import AddressClaim, losing_claims
from mcagent.core.addresses.rules import prefix_range


def claim(owner: str, network: str, rank: str, *, gateway: bool = False) -> AddressClaim:
    """Return a claim of an owner."""
    return AddressClaim(owner=owner, range=prefix_range(ip_network(network)), gateway=gateway, rank=(rank,))


def share(a: AddressClaim, b: AddressClaim) -> bool:
    """Tell whether two claims have an address in common."""
    return a.range[0] == b.range[0] and a.range[1] <= b.range[2] and b.range[1] <= a.range[2]


def naively_lost(claims: list[AddressClaim]) -> set[AddressClaim]:
    """Return the losers: the rule as one says it, at quadratic cost."""
    claims_kept: list[AddressClaim] = []
    for claim in sorted(set(claims), key=lambda c: (c.rank, c.owner, c.range, c.gateway)):
        if not any(other.owner != claim.owner and share(claim, other) for other in claims_kept):
            claims_kept.append(claim)
    return set(claims) - set(claims_kept)


@st.composite
def crowded(draw: st.DrawFn) -> AddressClaim:
    """Draw a claim in a space so small that most are in somebody's way, of either version."""
    version = draw(st.sampled_from((4, 6)))
    length = draw(st.integers(0, 4))
    size = 1 << (4 - length)
    first = draw(st.integers(0, (1 << length) - 1)) * size
    rank = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=2))
    return AddressClaim(
        owner=draw(st.sampled_from(("east", "north", "west"))),
        range=(version, first, first + size - 1),
        gateway=size == 1 and draw(st.booleans()),
        rank=tuple(rank),
    )


@given(st.lists(crowded(), max_size=24), st.randoms(use_true_random=False))
def test_the_rule(claims: list[AddressClaim], shuffler: random.Random) -> None:
    """Those lose that come after a kept one of another owner, each to such a one, however they are shuffled."""
    winners = losing_claims(claims)
    assert winners.keys() == naively_lost(claims)
    for loser, winner in winners.items():
        assert share(loser, winner)
        assert loser.owner != winner.owner
        assert winner not in winners
        assert (winner.rank, winner.owner) < (loser.rank, loser.owner)
    shuffler.shuffle(claims)
    assert losing_claims(claims) == winners


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("10.0.0.0/8", False), ("10.1.0.0/16", False)),
        (("10.1.0.0/16", False), ("10.0.0.0/8", False)),
        (("10.1.0.0/16", False), ("10.1.0.7/32", True)),
        (("10.1.0.7/32", True), ("10.1.0.0/16", False)),
        (("10.1.0.7/32", True), ("10.1.0.7/32", True)),
    ],
)
def test_a_claim_of_any_kind_is_in_the_way_of_any_other(first: tuple[str, bool], second: tuple[str, bool]) -> None:
    """CIDR against CIDR, CIDR against gateway and gateway against gateway: the lower rank stands."""
    winner = claim("east", first[0], "1", gateway=first[1])
    loser = claim("west", second[0], "2", gateway=second[1])
    assert losing_claims([loser, winner]) == {loser: winner}


def test_what_is_ones_own_may_overlap() -> None:
    """A cluster's CIDR may hold its gateways, and another CIDR of its own."""
    claims = [claim("east", n, str(i), gateway=n.endswith("/32")) for i, n in enumerate(OWN)]
    assert losing_claims(claims) == {}


OWN = ("10.1.0.7/32", "10.0.0.0/8", "10.1.0.0/16", "10.1.0.7/32")


def test_a_loser_is_in_nobodys_way() -> None:
    """What has lost a claim does not keep others from it."""
    east, north, west = (
        claim("east", "10.1.0.0/16", "1"),
        claim("north", "10.0.0.0/8", "2"),
        claim("west", "10.2.0.0/16", "3"),
    )
    assert losing_claims([west, north, east]) == {north: east}


def nested(number: int) -> list[AddressClaim]:
    """Every CIDR around one address again and again, from many clusters: the youngest are the widest."""
    claims = []
    for i in range(number):
        length = 8 + i % 25
        first = 10 << 24 & ~((1 << (32 - length)) - 1)
        range_ = (4, first, first + (1 << (32 - length)) - 1)
        claims.append(
            AddressClaim(owner=f"c{i % 997}", range=range_, gateway=False, rank=(f"{100 - length:03}", f"{i:07}"))
        )
    return claims


def below_one(number: int) -> list[AddressClaim]:
    """Single addresses of two clusters in turn, then the networks that hold them all, of every length."""
    claims = [
        AddressClaim(
            owner=f"c{i % 2}", range=(4, (10 << 24) + i, (10 << 24) + i), gateway=True, rank=("1", f"{i:07}")
        )
        for i in range(number // 2)
    ]
    claims += [
        AddressClaim(owner=f"d{i}", range=(4, 10 << 24, (10 << 24) + (1 << 24) - 1), gateway=False, rank=("2",))
        for i in range(number // 2)
    ]
    return claims


def deep6(number: int) -> list[AddressClaim]:
    """A wide old IPv6 prefix, a chain of 119 in it that come too late, and many addresses at its end."""
    base = 0xFD << 120
    claims = [
        AddressClaim(
            owner="chain" if n > 8 else "old",
            range=(6, base, base + (1 << (128 - n)) - 1),
            gateway=False,
            rank=("9" if n > 8 else "1",),
        )
        for n in range(8, 128)
    ]
    claims += [
        AddressClaim(owner=f"c{i}", range=(6, base, base), gateway=True, rank=("5",)) for i in range(number)
    ]
    return claims


@pytest.mark.parametrize("attack", [nested, below_one, deep6])
def test_no_set_of_claims_takes_long(attack: Callable[[int], list[AddressClaim]]) -> None:
    """20,000 claims that are all in each other's way are decided in less than a second."""
    claims = attack(20_000)
    before = time.process_time()
    losers = losing_claims(claims)
    spent = time.process_time() - before
    assert len(losers) > 8_000
    assert spent < 4, f"{spent:.1f} s"  # a quadratic rule takes many minutes
