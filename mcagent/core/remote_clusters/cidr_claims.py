"""What one cluster asks for, and what it gets, as values: claims to CIDRs and gateways, their rank, the verdict.

Knows nothing of what may be refused, or of other clusters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable
from dataclasses import dataclass

from mcagent.core.addresses.ownership import AddressClaim
from mcagent.core.addresses.rules import PrefixRange, prefix_range
from mcagent.model.granted import REFUSED, to_microseconds
from mcagent.model.net import Address, Network
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.problem import Problem

_NEVER = "~"  # sorts after every time
_END = 1 << 128  # after every address


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One CIDR that an object asks for, or the address of a gateway."""

    asked: AddressClaim
    network: Network  # of a gateway: its source in what tunnels carry, which is IPv4
    path: str
    pod: bool = False
    gateway: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One ClusterInfoImport looked at alone: what it may have if nobody has claimed it before."""

    info: ClusterInfoImport
    order: tuple[str, str, str, str]
    claims: tuple[Claim, ...]  # CIDRs sorted, then gateways in the API's order
    footprint: tuple[PrefixRange, ...]  # all addresses that it asks for: sorted and disjoint
    problems: tuple[Problem, ...]
    alone: AcceptedCluster  # the verdict if nobody else wants any of it

    def without(self, beaten: Container[AddressClaim]) -> AcceptedCluster:
        """Return the verdict if these claims are lost."""
        kept = [claim for claim in self.claims if claim.asked not in beaten]
        pods_lost = any(claim.pod and claim.asked in beaten for claim in self.claims)
        return verdict(self.info.cluster_id, kept, snat=self.alone.snat or pods_lost)


def verdict(cluster_id: str, claims: Iterable[Claim], *, snat: bool) -> AcceptedCluster:
    """Return the cluster as it is used, if it gets these (CIDRs sorted)."""
    cidrs: list[Claim] = []
    gateways: list[Address] = []
    for claim in claims:  # CIDRs are sorted: those inside another come after it
        if claim.gateway is not None:
            gateways.append(claim.gateway)
        elif not cidrs or not within(claim.asked.range, cidrs[-1].asked.range):
            cidrs.append(claim)
    ranges = [claim.asked.range for claim in cidrs]
    return AcceptedCluster(
        cluster_id=cluster_id,
        cidrs=tuple(claim.network for claim in cidrs),
        gateways=tuple(gateways),
        snat=snat,
        direct=tuple(address for address in gateways if _held(ranges, address)),
    )


def within(inner: PrefixRange, outer: PrefixRange) -> bool:
    """Tell whether one range lies in another."""
    return inner[0] == outer[0] and outer[1] <= inner[1] and inner[2] <= outer[2]


def _held(ranges: list[PrefixRange], address: Address) -> bool:
    """Tell whether an address is in one of these (sorted, disjoint)."""
    value = int(address)
    place = bisect_right(ranges, (address.version, value, _END)) - 1
    return place >= 0 and ranges[place][0] == address.version and ranges[place][2] >= value


def footprint_of(claims: Iterable[Claim]) -> tuple[PrefixRange, ...]:
    """Return all addresses that are asked for: sorted and disjoint."""
    found: list[PrefixRange] = []
    for one in sorted((claim.asked.range for claim in claims), key=lambda r: (r[0], r[1], -r[2])):
        if not found or not within(one, found[-1]):
            found.append(one)
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
