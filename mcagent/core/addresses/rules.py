"""Which addresses and networks may be used at all, and which of them somebody has already.

Pure sets of prefixes: knows nothing of clusters, Nodes or objects. CIDRs are nested or disjoint, which is
all that the algorithms rest on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from mcagent.model.net import Address, Network, network_key

SHORTEST_PREFIX = 8
# RFC 1918, RFC 6598: what other clusters may have where nobody said otherwise. All else is the Internet's.
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
class Refusal:
    """Why something is not used: the word for `Problem.reason` and the sentence for people."""

    reason: str
    message: str


def refuse_network(network: Network) -> Refusal | None:
    """Return why a CIDR cannot be routed to, None when it can."""
    if not isinstance(network, IPv4Network):
        return Refusal(reason="IPv6NotSupported", message=f"{network} is not used: IPv6 is not supported yet")
    if network.prefixlen < SHORTEST_PREFIX:
        return Refusal(
            reason="PrefixTooShort",
            message=f"{network} is not used: a prefix shorter than /{SHORTEST_PREFIX} covers too much",
        )
    for special, name in _SPECIAL:
        if network.overlaps(special):
            return Refusal(reason="NotUnicast", message=f"{network} is not used: it overlaps {special} ({name})")
    return None


def refuse_address(address: Address) -> Refusal | None:
    """Return why an address cannot be a Pod's or a Service's, None when it can (tunnels: `refuse_underlay`)."""
    if not isinstance(address, IPv4Address):
        return Refusal(reason="IPv6NotSupported", message=f"{address} is not used: IPv6 is not supported yet")
    value = int(address)
    for first, last, special, name in _SPECIAL_RANGES:
        if first <= value <= last:
            return Refusal(reason="NotUnicast", message=f"{address} is not used: it lies in {special} ({name})")
    return None


def usable(networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the networks that can be routed to, sorted, without those that lie inside another."""
    return outermost(n for n in networks if refuse_network(n) is None)


def outermost(networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the networks sorted, without those equal to or inside another."""
    kept: list[Network] = []
    last: PrefixRange | None = None
    for network in sorted(networks, key=network_key):
        found = prefix_range(network)
        if last is None or found[:1] != last[:1] or found[2] > last[2]:
            kept.append(network)
            last = found
    return tuple(kept)


def merged(networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the fewest disjoint networks, sorted, that hold just these addresses. All of one family."""
    return tuple(collapse_addresses(networks))  # type: ignore[type-var]


PrefixRange = tuple[int, int, int]  # IP version, first and last address as integers


def prefix_range(network: Network) -> PrefixRange:
    """Return a network as integers: comparing these is some twenty times cheaper than comparing networks."""
    first = int(network.network_address)
    return (network.version, first, first + (1 << (network.max_prefixlen - network.prefixlen)) - 1)


class Taken:
    """Ranges somebody has, each with who: answers "who of them overlaps this?" by binary search.

    Built once from any mix of nested and disjoint networks; of nested ones the outermost stands for all.
    """

    __slots__ = ("_firsts", "_rows")

    def __init__(self, rows: Iterable[tuple[Network, str]]) -> None:
        kept: list[tuple[PrefixRange, Network, str]] = []
        # equal networks: the one named first stands
        for row in sorted(((prefix_range(n), n, who) for n, who in rows), key=lambda r: (r[0][:2], -r[0][2])):
            if not kept or row[0][:1] != kept[-1][0][:1] or row[0][2] > kept[-1][0][2]:
                kept.append(row)
        self._rows = kept
        self._firsts = [row[0][:2] for row in kept]

    def overlapping(self, network: Network) -> tuple[Network, str] | None:
        """Return one network that shares an address with this one, and who has it."""
        version, first, last = prefix_range(network)
        index = bisect_right(self._firsts, (version, last)) - 1
        if index < 0:
            return None
        (found_version, _, found_last), found, who = self._rows[index]
        return (found, who) if found_version == version and found_last >= first else None
