"""Rules for addresses and networks: which ones may be used at all, and which overlap reserved ranges.

Pure functions of prefixes; must not know clusters, Nodes or API objects. The algorithms depend on the fact that
two CIDRs are either nested or disjoint.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from mcagent.model.net import Address, Network, contains, network_key

SHORTEST_PREFIX = 8
# RFC 1918, RFC 6598: the default of allowedRemoteCIDRs. All other addresses belong to the Internet.
PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")))
# Never unicast between Nodes (RFC 6890, RFC 1112): an overlap is enough to refuse.
_SPECIAL = (
    (IPv4Network("0.0.0.0/8"), "this network"),
    (IPv4Network("127.0.0.0/8"), "loopback"),
    (IPv4Network("169.254.0.0/16"), "link-local"),
    (IPv4Network("224.0.0.0/4"), "multicast"),
    (IPv4Network("255.255.255.255/32"), "broadcast"),
)
_SPECIAL_RANGES = tuple((int(n.network_address), int(n.broadcast_address), n, name) for n, name in _SPECIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRefusal:
    """The cause of a refusal: the word for `Problem.reason` and a sentence for people."""

    reason: str
    message: str


def is_aggregate(network: Network) -> bool:
    """Tell whether a network has all addresses of a private range.

    A route to such a network says as little as the default route about which of its networks exist, and an entry
    of allowedRemoteCIDRs as little about which of them an administrator has in mind.
    """
    return any(contains(network, private) for private in PRIVATE)


def refuse_network(network: Network) -> AddressRefusal | None:
    """Check whether packets can be routed to a CIDR; None if they can."""
    if not isinstance(network, IPv4Network):
        return AddressRefusal(
            reason="IPv6NotSupported", message=f"{network} is not used: IPv6 is not supported yet"
        )
    if network.prefixlen < SHORTEST_PREFIX:
        return AddressRefusal(
            reason="PrefixTooShort",
            message=f"{network} is not used: a prefix shorter than /{SHORTEST_PREFIX} covers too much",
        )
    for special, name in _SPECIAL:
        if network.overlaps(special):
            return AddressRefusal(
                reason="NotUnicast", message=f"{network} is not used: it overlaps {special} ({name})"
            )
    return None


def refuse_address(address: Address) -> AddressRefusal | None:
    """Check the address of a Pod or Service; None if it is valid. For tunnel endpoints see `refuse_underlay`."""
    if not isinstance(address, IPv4Address):
        return AddressRefusal(
            reason="IPv6NotSupported", message=f"{address} is not used: IPv6 is not supported yet"
        )
    value = int(address)
    for first, last, special, name in _SPECIAL_RANGES:
        if first <= value <= last:
            return AddressRefusal(
                reason="NotUnicast", message=f"{address} is not used: it lies in {special} ({name})"
            )
    return None


def routable_networks(networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the networks that `refuse_network` accepts, sorted, without those that lie inside another."""
    return outermost_networks(n for n in networks if refuse_network(n) is None)


def outermost_networks(networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the networks sorted, without those equal to or inside another."""
    outermost: list[Network] = []
    last: PrefixRange | None = None
    for network in sorted(networks, key=network_key):
        current = prefix_range(network)
        if last is None or current[:1] != last[:1] or current[2] > last[2]:
            outermost.append(network)
            last = current
    return tuple(outermost)


def merge_networks(networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the minimal set of disjoint networks, sorted, with the same addresses. All are of one family."""
    return tuple(collapse_addresses(networks))  # type: ignore[type-var]


def parts_outside(network: Network, excluded: Iterable[Network]) -> tuple[Network, ...]:
    """Return the largest prefixes of `network` that share no address with `excluded`, sorted.

    A single address takes at most 32 - prefix length parts; none are left if a network in `excluded` covers it.
    """
    parts: list[Network] = [network]
    for outside in excluded:
        remaining: list[Network] = []
        for part in parts:
            if not part.overlaps(outside):
                remaining.append(part)
            elif outside.prefixlen > part.prefixlen:
                remaining.extend(part.address_exclude(outside))  # type: ignore[arg-type]
        parts = remaining
    return tuple(sorted(parts, key=network_key))


PrefixRange = tuple[int, int, int]  # IP version, first and last address as integers


def prefix_range(network: Network) -> PrefixRange:
    """Convert a network to integers, which compare about twenty times faster than network objects."""
    first = int(network.network_address)
    return (network.version, first, first + (1 << (network.max_prefixlen - network.prefixlen)) - 1)


class ReservedRanges:
    """Networks in use, each with its description; finds one that overlaps a network by binary search.

    The networks may be nested or disjoint. Of nested networks only the outermost is stored; of equal ones the
    first.
    """

    __slots__ = ("_firsts", "_rows")

    def __init__(self, reserved: Iterable[tuple[Network, str]]) -> None:
        outermost: list[tuple[PrefixRange, Network, str]] = []
        rows = ((prefix_range(network), network, description) for network, description in reserved)
        for row in sorted(rows, key=lambda row: (row[0][:2], -row[0][2])):
            if not outermost or row[0][:1] != outermost[-1][0][:1] or row[0][2] > outermost[-1][0][2]:
                outermost.append(row)
        self._rows = outermost
        self._firsts = [row[0][:2] for row in outermost]

    def overlapping(self, network: Network) -> tuple[Network, str] | None:
        """Return one reserved network that shares an address with `network`, and its description."""
        version, first, last = prefix_range(network)
        index = bisect_right(self._firsts, (version, last)) - 1
        if index < 0:
            return None
        (reserved_version, _, reserved_last), reserved, description = self._rows[index]
        return (reserved, description) if reserved_version == version and reserved_last >= first else None

    def inside(self, network: Network) -> tuple[tuple[Network, str], ...]:
        """Return the reserved networks that lie in `network` and are smaller, sorted, with their descriptions."""
        version, first, last = prefix_range(network)
        begin, end = bisect_left(self._firsts, (version, first)), bisect_right(self._firsts, (version, last))
        rows = self._rows[begin:end]
        return tuple((reserved, text) for _, reserved, text in rows if reserved.prefixlen > network.prefixlen)
