"""What each other cluster claims, CIDRs and gateways with ranks, and what is used where two want the same.

`mcagent.core.addresses.ownership` has the rule: whoever has claimed it for longer, so nobody can take what another
has. Each refusal is a Problem. Knows nothing of what a cluster may claim at all. All of it is IPv4: what tunnels
carry is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import lt

from mcagent.core.addresses.ownership import AddressClaim, losing_claims
from mcagent.core.addresses.rules import prefix_range
from mcagent.model.config import Config
from mcagent.model.net import Address, Network
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ClusterInfoImport, Meta
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

    @property
    def meta(self) -> Meta:
        """The object that says it."""
        return self.info.meta


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


A_POD = "a Pod of this cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteClusters:
    """The clusters that are used, by cluster ID, each with what is accepted of it."""

    checked: Mapping[str, CheckedCluster]
    accepted: Mapping[str, AcceptedCluster]
    problems: tuple[Problem, ...]


def settle(checked: Mapping[str, CheckedCluster], pods: Sequence[int], config: Config) -> RemoteClusters:
    """Return which clusters are used and how. `pods`: IPv4 addresses of single Pods of this cluster, sorted.

    A cluster gets what it may have alone, less what holds a Pod of this cluster, less what is another cluster's.
    """
    problems: list[Problem] = []
    clusters = _one_per_id(checked.values(), config, problems)
    for one in clusters.values():
        problems.extend(one.problems)
    if _uncontested(clusters.values(), pods):
        accepted = {cluster_id: one.alone for cluster_id, one in clusters.items()}
    else:
        accepted = _contested(clusters, pods, problems)
    return RemoteClusters(checked=clusters, accepted=accepted, problems=tuple(problems))


def _one_per_id(
    checked: Iterable[CheckedCluster], config: Config, problems: list[Problem]
) -> dict[str, CheckedCluster]:
    """Return the oldest of each cluster ID, and never this cluster itself; by ID, sorted."""
    candidates = [one for one in checked if _is_other(one.info, config)]
    found: dict[str, CheckedCluster] = {}
    for one in candidates:
        holder = found.setdefault(one.info.cluster_id, one)
        if one.order < holder.order:
            found[one.info.cluster_id] = one
    for one in candidates if len(found) < len(candidates) else ():
        holder = found[one.info.cluster_id]
        if holder is not one:
            message = (
                f'clusterID "{one.info.cluster_id}" is taken by the older {holder.info.meta.subject}: not used'
            )
            problems.append(one.info.meta.problem("spec.clusterID", "DuplicateClusterID", message))
    return {cluster_id: found[cluster_id] for cluster_id in sorted(found)}


def _is_other(info: ClusterInfoImport, config: Config) -> bool:
    return info.cluster_id != config.cluster_id and config.namespace in ("", info.meta.namespace)


def _uncontested(clusters: Iterable[CheckedCluster], pods: Sequence[int]) -> bool:
    """Tell whether no address is claimed by two clusters, and none is a Pod's.

    Ranges are disjoint when, with first and last addresses sorted apart from each other, each range has ended
    before the next begins. That costs two sorts of integers, and most passes need no more.
    """
    clusters = tuple(clusters)
    firsts = sorted(chain.from_iterable(one.firsts for one in clusters))
    lasts = sorted(chain.from_iterable(one.lasts for one in clusters))
    if not all(map(lt, lasts, islice(firsts, 1, None))):
        return False
    return not pods or not any(_holds(first, last, pods) for first, last in zip(firsts, lasts, strict=True))


def _holds(first: int, last: int, pods: Sequence[int]) -> bool:
    """Tell whether a range holds one of these addresses (sorted)."""
    place = bisect_left(pods, first)
    return place < len(pods) and pods[place] <= last


def _contested(
    clusters: Mapping[str, CheckedCluster], pods: Sequence[int], problems: list[Problem]
) -> dict[str, AcceptedCluster]:
    """Return what each cluster gets."""
    beaten: dict[AddressClaim, str] = {}
    standing: list[AddressClaim] = []
    for one in clusters.values():
        for claim in one.claims:
            if _holds(claim.asked.range[1], claim.asked.range[2], pods):
                beaten[claim.asked] = A_POD
            else:
                standing.append(claim.asked)
    winners = losing_claims(standing)
    owners = {winner.owner for winner in winners.values()}
    names = {claim.asked: _name(claim) for owner in owners for claim in clusters[owner].claims}
    beaten |= {loser: names[winner] for loser, winner in winners.items()}
    losers = {claim.owner for claim in beaten}
    found: dict[str, AcceptedCluster] = {}
    for cluster_id, one in clusters.items():
        found[cluster_id] = one.without(beaten) if cluster_id in losers else one.alone
        if cluster_id in losers:
            problems.extend(_refusal(one, c, beaten[c.asked]) for c in one.claims if c.asked in beaten)
    return found


def _name(claim: CidrClaim) -> str:
    what = f"{claim.network}" if claim.gateway is None else f"the gateway {claim.gateway}"
    return f'{what} of cluster "{claim.asked.owner}", which claimed it first'


def _refusal(cluster: CheckedCluster, claim: CidrClaim, who: str) -> Problem:
    """Return the problem of a claim that is lost to somebody."""
    if claim.gateway is None:
        message = f"{claim.network} is not used: it overlaps {who}"
        reason = "OverlapsLocal" if who == A_POD else "OverlapsRemote"
    else:
        message = f"{claim.gateway} is not used: it overlaps {who}"
        reason = "DuplicateAddress"
    return cluster.info.meta.problem(claim.path, reason, message)
