"""Which addresses imported endpoints may have: those that others announce, none of this cluster's own. Pure.

An Endpoints object that names this cluster's API server, a Node or another Service would turn every Pod that uses
the imported Service against it; and a loopback or link-local address means another machine on each Node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from mcagent.controller.member.import_content import CLUSTER_INFO
from mcagent.controller.raw import text_at, texts_at
from mcagent.core.claims import refuse_address, refuse_network
from mcagent.kube.source import RawObject
from mcagent.model.net import parse_address, parse_network

Range = tuple[int, int, str]  # first and last address, and whose it is
Announced = tuple[tuple[str, tuple[str, ...]], ...]  # cluster ID and CIDRs, of all other clusters


def cidrs_of(raw: RawObject | None) -> tuple[str, ...]:
    """Return the CIDRs in a ResourceImport of kind ClusterInfo as they are written; none for anything else."""
    if raw is None or text_at(raw, "spec", "kind") != CLUSTER_INFO:
        return ()
    service = text_at(raw, "spec", "clusterinfo", "serviceCIDR")
    return tuple(t for t in (service, *texts_at(raw, "spec", "clusterinfo", "podCIDRs")) if t)


def cluster_of(raw: RawObject) -> str:
    """Return the cluster ID in a ResourceImport of kind ClusterInfo."""
    return text_at(raw, "spec", "clusterinfo", "clusterID")


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


class Networks:
    """The CIDRs of all clusters, for many addresses to be looked up in."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = sorted(ranges)
        self._firsts = [first for first, _, _ in self._ranges]
        self._reach: list[int] = []  # the greatest last address up to here
        reach = -1
        for _, last, _ in self._ranges:
            reach = max(reach, last)
            self._reach.append(reach)

    def owners(self, address: int) -> list[str]:
        """Return whose CIDRs hold an address."""
        found = []
        place = bisect_right(self._firsts, address) - 1
        while place >= 0 and self._reach[place] >= address:
            _, last, owner = self._ranges[place]
            if last >= address:
                found.append(owner)
            place -= 1
        return sorted(set(found))


def networks(announced: Announced, own: Iterable[str], allowed: Iterable[str] = ()) -> tuple[Networks, Networks]:
    """Return this cluster's networks, and the others'.

    What `allowed` holds belongs to "", no cluster in particular.
    """
    mine = [(*bounds, "") for text in own if (bounds := range_of(text)) is not None]
    others = [(*b, cluster) for cluster, cidrs in announced for text in cidrs if (b := range_of(text)) is not None]
    others += [(*bounds, "") for text in allowed if (bounds := range_of(text)) is not None]
    return Networks(mine), Networks(others)
