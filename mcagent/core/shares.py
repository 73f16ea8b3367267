"""Max-min fair shares of a limited number. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def max_min_shares(demands: Mapping[K, int], total: int) -> dict[K, int]:
    """Divide `total` among claimants: each gets its demand, or no less than any other that gets less than its own.

    What does not divide evenly goes to the smaller demands first, then to the keys that sort first by their text.
    """
    shares: dict[K, int] = {}
    remainder = total
    ordered = sorted(demands, key=lambda key: (demands[key], str(key)))
    for place, key in enumerate(ordered):
        even = -(-remainder // (len(ordered) - place))  # rounded up
        shares[key] = min(demands[key], even)
        remainder -= shares[key]
    return shares
