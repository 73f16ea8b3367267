"""Conflicts between claims to address ranges: which claims lose, and to which claim.

The leader and every agent apply the same rule: of two overlapping claims of different owners, the one with the
lower rank is granted. Pure; must not know API objects, the source of ranks, or what happens to a losing claim.

Ranges are CIDRs (a gateway claims a single address), so two ranges are either nested or disjoint. The algorithm
depends on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import PrefixRange


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressClaim:
    """A cluster's claim to a CIDR or to the address of a gateway. Of two claims the lower rank wins."""

    owner: str  # cluster ID
    range: PrefixRange
    gateway: bool  # a tunnel endpoint; else a CIDR
    rank: tuple[str, ...]


def losing_claims(claims: Iterable[AddressClaim]) -> Mapping[AddressClaim, AddressClaim]:
    """Map each losing claim to the claim that it loses to.

    Claims are granted in order of rank (then owner, range, kind). A claim loses if it overlaps a granted claim of
    another owner; claims of one owner never conflict. The result does not depend on the order of `claims`. The
    cost is one sort, and for each claim that conflicts the nesting depth of its range, however many claims there
    are.
    """
    winners: dict[AddressClaim, AddressClaim] = {}
    for overlapping in _overlapping(claims):
        if any(claim.owner != overlapping[0].owner for claim in overlapping):
            winners |= _resolve(overlapping)
    return winners


def _overlapping(claims: Iterable[AddressClaim]) -> Iterator[list[AddressClaim]]:
    """Yield the claims within each outermost range, sorted so that a range precedes the ranges inside it."""
    group: list[AddressClaim] = []
    version, end = 0, -1
    for claim in sorted(claims, key=_outermost_first):
        if claim.range[0] != version or claim.range[1] > end:
            if group:
                yield group
            group = []
            version, _, end = claim.range
        group.append(claim)
    if group:
        yield group


def _outermost_first(claim: AddressClaim) -> tuple[int, int, int]:
    version, first, last = claim.range
    return (version, first, -last)


def _by_rank(claim_and_node: tuple[AddressClaim, int]) -> tuple[tuple[str, ...], str, PrefixRange, bool]:
    claim = claim_and_node[0]
    return (claim.rank, claim.owner, claim.range, claim.gateway)


def _resolve(claims: list[AddressClaim]) -> dict[AddressClaim, AddressClaim]:
    """Map losing claims to winners. `claims` lie in one range and are sorted outermost first."""
    nodes, parents = _range_tree(claims)
    # Per node of the tree of ranges: the first claim that was granted exactly this range.
    granted: list[AddressClaim | None] = [None] * len(parents)
    # Per node: the first claim granted in its range, and the first granted there to another owner. A third owner
    # always conflicts with one of the two. A node with two such claims has ancestors with two, so each entry is
    # written once, whatever the depth of the tree.
    granted_within: list[tuple[AddressClaim, ...]] = [()] * len(parents)
    winners: dict[AddressClaim, AddressClaim] = {}
    for claim, node in sorted(zip(claims, nodes, strict=True), key=_by_rank):
        winner = next((other for other in granted_within[node] if other.owner != claim.owner), None)
        ancestor = node
        while winner is None and ancestor >= 0:
            holder = granted[ancestor]
            if holder is not None and holder.owner != claim.owner:
                winner = holder
            ancestor = parents[ancestor]
        if winner is not None:
            winners[claim] = winner
            continue
        if granted[node] is None:
            granted[node] = claim
        ancestor = node
        while ancestor >= 0 and len(granted_within[ancestor]) < 2:
            if any(other.owner == claim.owner for other in granted_within[ancestor]):
                break
            granted_within[ancestor] += (claim,)
            ancestor = parents[ancestor]
    return winners


def _range_tree(claims: list[AddressClaim]) -> tuple[list[int], list[int]]:
    """Return the tree node (a number) of each claim's range, and the parent of each node (-1: the root)."""
    nodes: list[int] = []
    parents: list[int] = []
    enclosing: list[tuple[PrefixRange, int]] = []
    for claim in claims:
        while enclosing and enclosing[-1][0][2] < claim.range[1]:
            enclosing.pop()
        if not enclosing or enclosing[-1][0] != claim.range:
            parents.append(enclosing[-1][1] if enclosing else -1)
            enclosing.append((claim.range, len(parents) - 1))
        nodes.append(enclosing[-1][1])
    return nodes, parents
