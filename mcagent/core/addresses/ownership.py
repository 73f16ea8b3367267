"""Whose an address is: which of many claims to ranges of addresses lose, and to which claim.

The one rule that the leader and every agent decide by: the lower rank stands, whoever comes later and shares an
address with it does not. Pure; knows nothing of objects, of where ranks come from, or of what becomes of a loser.

Ranges are those of CIDRs (a gateway's is a single address), so any two are nested or disjoint. All rests on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import PrefixRange


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressClaim:
    """What a cluster asks for: a CIDR, or the address of a gateway. Of two claims the lower rank wins."""

    owner: str  # cluster ID
    range: PrefixRange
    gateway: bool  # a tunnel endpoint; else a CIDR
    rank: tuple[str, ...]


def lost(claims: Iterable[AddressClaim]) -> Mapping[AddressClaim, AddressClaim]:
    """Return each claim that loses, with the claim that it loses to.

    In order of rank (then owner, range, kind) a claim is kept unless it shares an address with one that was kept
    for another owner; one's own never collide. The result does not depend on the order of `claims`. Costs a sort,
    and for claims in each other's way as many steps as ranges are nested, however many claims there are.
    """
    found: dict[AddressClaim, AddressClaim] = {}
    for overlapping in _overlapping(claims):
        if any(claim.owner != overlapping[0].owner for claim in overlapping):
            found |= _decide(overlapping)
    return found


def _overlapping(claims: Iterable[AddressClaim]) -> Iterator[list[AddressClaim]]:
    """Cut the claims where no range reaches over, and sort them so that a range comes before those inside it."""
    rows: list[AddressClaim] = []
    version, end = 0, -1
    for claim in sorted(claims, key=_outermost_first):
        if claim.range[0] != version or claim.range[1] > end:
            if rows:
                yield rows
            rows = []
            version, _, end = claim.range
        rows.append(claim)
    if rows:
        yield rows


def _outermost_first(claim: AddressClaim) -> tuple[int, int, int]:
    version, first, last = claim.range
    return (version, first, -last)


def _by_rank(row: tuple[AddressClaim, int]) -> tuple[tuple[str, ...], str, PrefixRange, bool]:
    claim = row[0]
    return (claim.rank, claim.owner, claim.range, claim.gateway)


def _decide(claims: list[AddressClaim]) -> dict[AddressClaim, AddressClaim]:
    """Return the losers among claims that lie in one range, outermost first."""
    places, parents = _tree(claims)
    kept: list[AddressClaim | None] = [None] * len(parents)  # the first to have just this range
    # What is kept in a range: the first claim, and the first of another owner. Two tell any third owner that it is
    # too late, and where two are, two are in every range around: so each is written once, whatever the depth.
    within: list[tuple[AddressClaim, ...]] = [()] * len(parents)
    found: dict[AddressClaim, AddressClaim] = {}
    for claim, place in sorted(zip(claims, places, strict=True), key=_by_rank):
        winner = next((one for one in within[place] if one.owner != claim.owner), None)
        above = place
        while winner is None and above >= 0:
            holder = kept[above]
            if holder is not None and holder.owner != claim.owner:
                winner = holder
            above = parents[above]
        if winner is not None:
            found[claim] = winner
            continue
        if kept[place] is None:
            kept[place] = claim
        around = place
        while around >= 0 and len(within[around]) < 2 and all(one.owner != claim.owner for one in within[around]):
            within[around] += (claim,)
            around = parents[around]
    return found


def _tree(claims: list[AddressClaim]) -> tuple[list[int], list[int]]:
    """Return for each claim the number of its range, and for each range that of the one around it (-1: none)."""
    places: list[int] = []
    parents: list[int] = []
    around: list[tuple[PrefixRange, int]] = []
    for claim in claims:
        while around and around[-1][0][2] < claim.range[1]:
            around.pop()
        if not around or around[-1][0] != claim.range:
            parents.append(around[-1][1] if around else -1)
            around.append((claim.range, len(parents) - 1))
        places.append(around[-1][1])
    return places, parents
