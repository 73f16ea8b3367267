"""Addresses and CIDRs of clusters as integers, and the owners of addresses. Pure.

Only IPv4 addresses that may be routed (`mcagent.core.addresses.rules`); others are ignored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from mcagent.core.addresses.rules import refuse_address, refuse_network
from mcagent.model.net import address_or_none, network_or_none

Range = tuple[int, int, str]  # first and last address, and the owner


@lru_cache(maxsize=65536)
def range_of(text: str) -> tuple[int, int] | None:
    """Return the first and last address of a CIDR; None if it is invalid or cannot be routed."""
    network = network_or_none(text)
    if not isinstance(network, IPv4Network) or refuse_network(network) is not None:
        return None
    first = int(network.network_address)
    return first, first + network.num_addresses - 1


def valid_range(cidr: str) -> tuple[int, int]:
    """Return the first and last address of a CIDR that is valid already."""
    bounds = range_of(cidr)
    assert bounds is not None
    return bounds


@lru_cache(maxsize=65536)
def address_of(text: str) -> int | None:
    """Return an IPv4 address that endpoints can have, as an integer; None for all others."""
    address = address_or_none(text)
    return int(address) if isinstance(address, IPv4Address) and refuse_address(address) is None else None


def blocks_of(cidrs: Iterable[str]) -> set[str]:
    """Return the /16 blocks ("10.96") that overlap CIDRs: the index values of endpoints."""
    ranges = (bounds for text in cidrs if (bounds := range_of(text)) is not None)
    return {f"{n >> 8}.{n & 255}" for first, last in ranges for n in range(first >> 16, (last >> 16) + 1)}


def block_of(address: str) -> str:
    """Return the /16 block of an address, "10.96"."""
    return ".".join(address.split(".", 2)[:2])


class Networks:
    """Ranges with their owners, for look-ups of many addresses."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = sorted(ranges)
        self._firsts = [first for first, _, _ in self._ranges]
        self._reach: list[int] = []  # the greatest last address up to here
        reach = -1
        for _, last, _ in self._ranges:
            reach = max(reach, last)
            self._reach.append(reach)

    def owners(self, address: int) -> list[str]:
        """Return the owners of the ranges with an address, sorted, each once."""
        owners = set()
        place = bisect_right(self._firsts, address) - 1
        while place >= 0 and self._reach[place] >= address:
            _, last, owner = self._ranges[place]
            if last >= address:
                owners.add(owner)
            place -= 1
        return sorted(owners)

    def overlapping(self, first: int, last: int) -> Iterator[str]:
        """Yield the owner of each range that shares an address with one from `first` to `last`."""
        place = bisect_right(self._firsts, last) - 1
        while place >= 0 and self._reach[place] >= first:
            if self._ranges[place][1] >= first:
                yield self._ranges[place][2]
            place -= 1


def networks_of(cidrs: Iterable[str], owner: str = "") -> Networks:
    """Return the networks of one owner; invalid CIDRs are ignored."""
    return Networks((*bounds, owner) for text in cidrs if (bounds := range_of(text)) is not None)
