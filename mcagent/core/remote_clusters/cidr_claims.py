"""What one cluster claims, and what it gets, as values: CIDRs and gateways with their ranks.

Knows nothing of what may be refused, or of other clusters. All of it is IPv4: what tunnels carry is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable
from dataclasses import dataclass

from mcagent.core.addresses.ownership import AddressClaim
from mcagent.core.addresses.rules import prefix_range
from mcagent.model.net import Address, Network
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.parsing.granted import REFUSED, to_microseconds
from mcagent.model.problem import Problem

_NEVER = "~"  # sorts after every time


@dataclass(frozen=True, slots=True, kw_only=True)
class CidrClaim:
    """One CIDR that a cluster asks for, or the address of a gateway."""

    asked: AddressClaim
    network: Network  # of a gateway: its source in what tunnels carry
    path: str
    pod: bool = False
    gateway: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCluster:
    """One ClusterInfoImport looked at alone: what it may have if nobody has claimed it before."""

    info: ClusterInfoImport
    order: tuple[str, str, str, str]
    claims: tuple[CidrClaim, ...]  # CIDRs sorted, then gateways in the API's order
    firsts: tuple[int, ...]  # of all addresses that it asks for: where ranges begin, sorted and disjoint
    lasts: tuple[int, ...]  # and where they end
    problems: tuple[Problem, ...]
    alone: AcceptedCluster  # what it gets if nobody else wants any of it

    def without(self, beaten: Container[AddressClaim]) -> AcceptedCluster:
        """Return what it gets if these claims are lost."""
        kept = [claim for claim in self.claims if claim.asked not in beaten]
        pods_lost = any(claim.pod and claim.asked in beaten for claim in self.claims)
        return accepted(self.info.cluster_id, kept, snat=self.alone.snat or pods_lost)


def accepted(cluster_id: str, claims: Iterable[CidrClaim], *, snat: bool) -> AcceptedCluster:
    """Return the cluster as it is used, if it gets these (CIDRs sorted)."""
    cidrs: list[CidrClaim] = []
    gateways: list[CidrClaim] = []
    for claim in claims:  # CIDRs are sorted: those inside another come after it
        if claim.gateway is not None:
            gateways.append(claim)
        elif not cidrs or claim.asked.range[2] > cidrs[-1].asked.range[2]:
            cidrs.append(claim)
    addresses = tuple(claim.gateway for claim in gateways if claim.gateway is not None)
    firsts = [claim.asked.range[1] for claim in cidrs]
    return AcceptedCluster(
        cluster_id=cluster_id,
        cidrs=tuple(claim.network for claim in cidrs),
        gateways=addresses,
        sources=tuple(claim.network.network_address for claim in gateways),
        snat=snat,
        direct=tuple(a for a in addresses if a.version == 4 and _lies_in(int(a), firsts, cidrs)),
    )


def _lies_in(address: int, firsts: list[int], cidrs: list[CidrClaim]) -> bool:
    """Tell whether an address lies in one of these CIDRs (sorted, disjoint; `firsts`: where each begins)."""
    place = bisect_right(firsts, address) - 1
    return place >= 0 and cidrs[place].asked.range[2] >= address


def footprint_of(claims: Iterable[CidrClaim]) -> tuple[tuple[int, int], ...]:
    """Return all addresses that are asked for: first and last of ranges, sorted and disjoint."""
    found: list[tuple[int, int]] = []
    for first, last in sorted((claim.asked.range[1:] for claim in claims), key=lambda r: (r[0], -r[1])):
        if not found or last > found[-1][1]:
            found.append((first, last))
    return tuple(found)


def rank_of(info: ClusterInfoImport, claim: str) -> tuple[str, ...]:
    """Return the rank of one claim (CIDR, gateway or key as text): since when the cluster has it, as all know.

    That is when the leader granted it; where it says nothing (Antrea's does not), the age of the object. What the
    leader refused, and is there all the same, comes after all others.
    """
    created = to_microseconds(info.meta.created)
    since = info.granted.get(claim, created)
    if since == REFUSED and claim in info.granted:
        since = _NEVER
    return (since, created, info.cluster_id, info.meta.name, info.meta.namespace)


def asked(info: ClusterInfoImport, network: Network, *, gateway: str = "") -> AddressClaim:
    """Return the claim of a CIDR, or of the source of a gateway (its address as text)."""
    rank = rank_of(info, gateway or str(network))
    return AddressClaim(owner=info.cluster_id, range=prefix_range(network), gateway=bool(gateway), rank=rank)
