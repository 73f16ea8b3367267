"""Addresses and CIDRs of other clusters as integers, and in whose range an address lies. Pure.

Only IPv4, and only what may be routed to (`mcagent.core.addresses.rules`); everything else is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from mcagent.core.addresses.rules import refuse_address, refuse_network
from mcagent.model.net import parse_address, parse_network

Range = tuple[int, int, str]  # first and last address, and whose it is


@lru_cache(maxsize=65536)
def range_of(text: str) -> tuple[int, int] | None:
    """Return a CIDR as its first and last address; None when it is none that can be routed to."""
    try:
        network, _ = parse_network(text)
    except ValueError:
        return None
    if not isinstance(network, IPv4Network) or refuse_network(network) is not None:
        return None
    first = int(network.network_address)
    return first, first + network.num_addresses - 1


@lru_cache(maxsize=65536)
def address_of(text: str) -> int | None:
    """Return an IPv4 address that endpoints can have, as an integer; None for all others."""
    try:
        found = parse_address(text)
    except ValueError:
        return None
    return int(found) if isinstance(found, IPv4Address) and refuse_address(found) is None else None


def blocks_of(cidrs: Iterable[str]) -> set[str]:
    """Return the /16 blocks ("10.96") that CIDRs lie in or hold: what an index files endpoints under."""
    found: set[str] = set()
    for text in cidrs:
        if (bounds := range_of(text)) is not None:
            found |= {f"{n >> 8}.{n & 255}" for n in range(bounds[0] >> 16, (bounds[1] >> 16) + 1)}
    return found


def block_of(address: str) -> str:
    """Return the block that an address lies in, "10.96"."""
    return ".".join(address.split(".", 2)[:2])


class Networks:
    """Ranges and whose they are, for many addresses to be looked up in."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = sorted(ranges)
        self._firsts = [first for first, _, _ in self._ranges]
        self._reach: list[int] = []  # the greatest last address up to here
        reach = -1
        for _, last, _ in self._ranges:
            reach = max(reach, last)
            self._reach.append(reach)

    def owners(self, address: int) -> list[str]:
        """Return whose ranges hold an address."""
        found = []
        place = bisect_right(self._firsts, address) - 1
        while place >= 0 and self._reach[place] >= address:
            _, last, owner = self._ranges[place]
            if last >= address:
                found.append(owner)
            place -= 1
        return sorted(set(found))


def networks_of(cidrs: Iterable[str], owner: str = "") -> Networks:
    """Return CIDRs of one owner."""
    return Networks((*bounds, owner) for text in cidrs if (bounds := range_of(text)) is not None)
