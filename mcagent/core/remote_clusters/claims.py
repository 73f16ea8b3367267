"""The claims of one remote cluster: CIDRs and gateway addresses, with ranks, and what the cluster gets for them.

Values between `check`, which builds them from one ClusterInfoImport, and `resolve`, which decides between
clusters. Must not know the rules of either. All addresses are IPv4, since tunnels carry IPv4 only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable
from dataclasses import dataclass

from mcagent.core.addresses.ownership import AddressClaim
from mcagent.core.addresses.rules import prefix_range
from mcagent.model.net import Address, Network, host_network, network_key
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ClusterInfoImport, Meta
from mcagent.model.parsing.granted import REFUSED, to_microseconds
from mcagent.model.problem import Problem

_NEVER = "~"  # sorts after every time


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteClaim:
    """A claim of a remote cluster to a CIDR, or to the address of a gateway."""

    claim: AddressClaim
    network: Network  # for a gateway: its SNAT address
    published: Network  # the CIDR that `network` is, or is a part of; for a gateway: `network`
    path: str  # of the field that publishes it
    pod: bool = False  # it is a Pod CIDR
    gateway: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCluster:
    """A ClusterInfoImport that was checked alone; conflicts with other clusters are not resolved."""

    info: ClusterInfoImport
    order: tuple[str, str, str, str]  # sorts the oldest object first
    claims: tuple[RemoteClaim, ...]  # CIDRs sorted, then gateways in the API's order
    firsts: tuple[int, ...]  # first addresses of the claimed ranges, sorted; the ranges are disjoint
    lasts: tuple[int, ...]  # last addresses of the same ranges
    problems: tuple[Problem, ...]
    uncontested: AcceptedCluster  # what is accepted if no other cluster claims any of it

    def without(self, lost: Container[AddressClaim]) -> AcceptedCluster:
        """Return what is accepted if these claims are lost."""
        remaining = [remote for remote in self.claims if remote.claim not in lost]
        lost_pods = {remote.published for remote in self.claims if remote.pod and remote.claim in lost}
        refused = sorted({*self.uncontested.refused_pods, *lost_pods}, key=network_key)
        return accepted_cluster(
            self.info.cluster_id,
            remaining,
            snat=self.uncontested.snat or bool(lost_pods),
            refused_pods=refused,
            mtu=self.info.mtu,
        )

    @property
    def meta(self) -> Meta:
        """The metadata of the ClusterInfoImport."""
        return self.info.meta


def published_cidrs(info: ClusterInfoImport) -> tuple[Network, ...]:
    """Return the CIDRs of a cluster as they are published."""
    return info.pod_cidrs if info.service_cidr is None else (info.service_cidr, *info.pod_cidrs)


def accepted_cluster(
    cluster_id: str,
    claims: Iterable[RemoteClaim],
    *,
    snat: bool,
    refused_pods: Iterable[Network] = (),
    mtu: int = 0,
) -> AcceptedCluster:
    """Build the accepted cluster from granted claims, of which the CIDRs are sorted."""
    cidrs: list[RemoteClaim] = []
    gateways: list[RemoteClaim] = []
    for remote in claims:  # an outer CIDR precedes those inside it
        if remote.gateway is not None:
            gateways.append(remote)
        elif not cidrs or remote.claim.range[2] > cidrs[-1].claim.range[2]:
            cidrs.append(remote)
    addresses = tuple(remote.gateway for remote in gateways if remote.gateway is not None)
    firsts = [remote.claim.range[1] for remote in cidrs]
    return AcceptedCluster(
        cluster_id=cluster_id,
        cidrs=tuple(remote.network for remote in cidrs),
        gateways=addresses,
        sources=tuple(remote.network.network_address for remote in gateways),
        snat=snat,
        direct=tuple(a for a in addresses if a.version == 4 and _lies_in(int(a), firsts, cidrs)),
        refused_pods=tuple(refused_pods),
        mtu=mtu,
    )


def _lies_in(address: int, firsts: list[int], cidrs: list[RemoteClaim]) -> bool:
    """Tell whether an address lies in a CIDR (sorted, disjoint; `firsts`: their first addresses)."""
    index = bisect_right(firsts, address) - 1
    return index >= 0 and cidrs[index].claim.range[2] >= address


def claimed_ranges(claims: Iterable[RemoteClaim]) -> tuple[tuple[int, int], ...]:
    """Return the claimed addresses as (first, last) of ranges, sorted and disjoint."""
    ranges: list[tuple[int, int]] = []
    for first, last in sorted((remote.claim.range[1:] for remote in claims), key=lambda r: (r[0], -r[1])):
        if not ranges or last > ranges[-1][1]:
            ranges.append((first, last))
    return tuple(ranges)


def claim_rank(info: ClusterInfoImport, claim: str) -> tuple[str, ...]:
    """Return the rank of a claim, given as the text of a CIDR, gateway address or key. All Nodes compute the same.

    The rank begins with the time when the leader granted the claim, or, where the leader records none (Antrea's
    does not), with the creation time of the object. A claim that the leader refused ranks after all others.
    """
    created = to_microseconds(info.meta.created)
    since = info.granted.get(claim, created)
    if since == REFUSED and claim in info.granted:
        since = _NEVER
    return (since, created, info.cluster_id, info.meta.name, info.meta.namespace)


def cidr_claim(info: ClusterInfoImport, part: Network, published: Network, path: str, *, pod: bool) -> RemoteClaim:
    """Return the claim to a part of a published CIDR; its rank is that of the whole CIDR."""
    claim = AddressClaim(
        owner=info.cluster_id, range=prefix_range(part), gateway=False, rank=claim_rank(info, str(published))
    )
    return RemoteClaim(claim=claim, network=part, published=published, path=path, pod=pod)


def gateway_claim(info: ClusterInfoImport, gateway: Address, source: Address, path: str) -> RemoteClaim:
    """Return the claim to the address `source` of connections that a gateway translates."""
    network = host_network(source)
    claim = AddressClaim(
        owner=info.cluster_id, range=prefix_range(network), gateway=True, rank=claim_rank(info, str(gateway))
    )
    return RemoteClaim(claim=claim, network=network, published=network, path=path, gateway=gateway)
