"""The ledger: the only decision on which cluster owns a CIDR, a gateway address or a WireGuard key. Pure.

ResourceImports of kind ClusterInfo hold the granted claims, and their annotation the time of each grant; members
can only read them. A granted claim precedes a requested one. Of two granted claims (granted by two workers or
two leaders at the same time) the older grant stands; of two requested ones, that of the older export. So the
first claim stands, in whatever order clusters are reconciled. A claim is ignored if it is withdrawn, its cluster
is not a member, or its export is being deleted. A claim that can never be granted blocks no other cluster.
`ranking` says which of two claims precedes: gateways must prove themselves. A gateway that loses its address keeps
it until the other cluster has it, so that it has an owner meanwhile; the cluster that takes it records its rivals.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CLAIMED, GRANTED, CidrClaim, asked_for, colliding, filed_under
from mcagent.controller.leader.assigned_ranges import own_ranges, range_refusals
from mcagent.controller.leader.claims import ClaimsByCluster, ClusterClaims, claims_of_member
from mcagent.controller.leader.exports.bounds import Bounds, bounds_of, defaults_of
from mcagent.controller.leader.ranking import TRIAL, Rank, Ranking
from mcagent.controller.machinery.reconciler import View
from mcagent.controller.settings import MemberLimits
from mcagent.core.addresses.ownership import AddressClaim, losing_claims
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.net import Network, contains, host_network, parse_address, parse_network
from mcagent.model.parsing.granted import REFUSED, at, to_microseconds

PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")  # RFC 1918, RFC 6598
_SOON = 1.0  # seconds until a claim is decided again that another cluster is about to get


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsDecision:
    """The decision on the claims of a cluster, by the text of each claim."""

    times: Mapping[str, str]  # the time of the grant, or REFUSED
    refused: Mapping[str, str]  # a message for each refused claim
    proved: frozenset[str]  # granted gateways at which members have reported the answers of the cluster
    settled: Mapping[str, frozenset[str]]  # the clusters that lost a contest for a granted gateway, by its address
    again: float | None  # seconds after which the decision may be another one; None: only after a change


class Ledger:
    """Decides on claims by the objects of a view. `limits` has the CIDRs that members may claim."""

    def __init__(self, limits: MemberLimits) -> None:
        self._defaults = defaults_of(limits)
        self._allowed = allowed_ranges(limits)
        self._assigns_ranges = bool(limits.export_cidrs or limits.pod_export_cidrs)

    def decide(self, view: View, export: ResourceExport, now: float) -> ClaimsDecision:
        """Return the decision on the claims of a member's valid ClusterInfo export."""
        area = export.namespace
        own = claims_of_member(view, area, export.spec.cluster_id, export)
        claims = [*own.granted, *own.requested]
        refused = self.refusals(view, area, own.cluster_id, claims, own.granted)
        allowed = [claim for claim in claims if claim.text not in refused]
        clusters = ClaimsByCluster(view, area, own)
        ranking = Ranking(clusters, now)
        rivals = self._rivals(clusters, ranking, own, allowed)
        winners = self._winners(ranking, own, allowed, rivals)
        for claim, (winner, other) in winners.items():
            if claim not in own.granted or winner in other.granted:
                refused[claim.text] = f"{claim} is not granted: {ranking.reason(own, claim, other, winner)}"
        fresh = to_microseconds(at(datetime.fromtimestamp(now, UTC)))
        times = {c.text: REFUSED if c.text in refused else own.granted.get(c) or fresh for c in claims}
        gateways = [claim for claim in claims if claim.gateway and claim.text not in refused]
        proved = {c.text for c in gateways if c.text in own.proved or ranking.is_confirmed(own, c)}
        settled = {c.text: ranking.settled(own, c) for c in gateways if c.text not in proved}
        again = None
        if any(winner not in other.granted for winner, other in winners.values()):
            again = _SOON
        elif any(claim.gateway for rival in rivals for claim in (*rival.granted, *rival.requested)):
            again = TRIAL  # a gateway that has not proved itself by then loses its address
        return ClaimsDecision(
            times=times,
            refused=refused,
            proved=frozenset(proved),
            settled={text: ids for text, ids in settled.items() if ids},
            again=again,
        )

    def refusals(
        self,
        view: View,
        area: str,
        cluster_id: str,
        claims: Sequence[CidrClaim],
        granted: Container[CidrClaim] = (),
    ) -> dict[str, str]:
        """Return the claims that a cluster may not have: the reasons, by their text."""
        bounds = bounds_of(view, area, cluster_id, self._defaults)
        if not self._assigns_ranges:
            return refusals(claims, cluster_id, bounds, self._allowed)
        own = own_ranges(view, area, cluster_id)
        limited = [claim for claim in claims if claim.gateway or claim.text not in own]
        refused = refusals(limited, cluster_id, bounds, self._allowed)
        return range_refusals(view, area, cluster_id, claims, granted) | refused

    def _rivals(
        self, clusters: ClaimsByCluster, ranking: Ranking, own: ClusterClaims, claims: Sequence[CidrClaim]
    ) -> list[ClusterClaims]:
        """Return the other clusters whose claims collide with `claims`, with only those claims."""
        values = {value for claim in claims for value in asked_for(claim)}
        rivals = []
        for cluster_id in _clusters(clusters.view, clusters.area, claims) - {own.cluster_id}:
            other = clusters.of(cluster_id)
            collisions = [c for c in (*other.granted, *other.requested) if not values.isdisjoint(filed_under(c))]
            granted = {claim: since for claim, since in other.granted.items() if claim in collisions}
            requested = [claim for claim in collisions if claim not in other.granted]
            open_claims = self._open(clusters, ranking, other, requested)
            rivals.append(replace(other, granted=granted, requested=open_claims))
        return rivals

    def _open(
        self, clusters: ClaimsByCluster, ranking: Ranking, cluster: ClusterClaims, claims: Sequence[CidrClaim]
    ) -> list[CidrClaim]:
        """Return the claims that can be granted to a cluster: allowed, and before all holders in rank."""
        view, area = clusters.view, clusters.area
        everything = [*cluster.granted, *cluster.requested]
        refused = self.refusals(view, area, cluster.cluster_id, everything, cluster.granted) if claims else {}
        open_claims = []
        for claim in claims:
            holders = colliding([claim], area, lambda value: view.indexed(GRANTED, value))
            ids = {holder.cluster_id for holder in holders} - {cluster.cluster_id}
            values = set(asked_for(claim))
            if claim.text not in refused and all(
                values.isdisjoint(filed_under(granted)) or ranking.outranks(cluster, claim, holder, granted)
                for holder in map(clusters.of, ids)
                for granted in holder.granted
            ):
                open_claims.append(claim)
        return open_claims

    def _winners(
        self, ranking: Ranking, own: ClusterClaims, claims: Sequence[CidrClaim], rivals: Sequence[ClusterClaims]
    ) -> dict[CidrClaim, tuple[CidrClaim, ClusterClaims]]:
        """Return the winning claim and its cluster for each of one's own `claims` that loses."""
        by_address: dict[AddressClaim, list[tuple[CidrClaim, ClusterClaims]]] = {}
        by_key: dict[str, tuple[Rank, CidrClaim, ClusterClaims]] = {}
        clusters = (own, *rivals)
        for cluster in clusters:
            for claim in claims if cluster is own else (*cluster.granted, *cluster.requested):
                rank = ranking.rank(cluster, claim)
                if claim.range is None:
                    entry = (rank, claim, cluster)
                    by_key[claim.text] = min(by_key.get(claim.text, entry), entry, key=lambda item: item[0])
                    continue
                for row in (claim.range, *claim.points):
                    address = AddressClaim(owner=cluster.cluster_id, range=row, gateway=claim.gateway, rank=rank)
                    by_address.setdefault(address, []).append((claim, cluster))
        winners = {c: by_key[c.text][1:] for c in claims if c.range is None and by_key[c.text][2] is not own}
        for loser, winner in losing_claims(by_address).items():
            for claim, cluster in by_address[loser]:
                if cluster is own:
                    winners.setdefault(claim, by_address[winner][0])
        return winners


def allowed_ranges(limits: MemberLimits) -> tuple[Network, ...]:
    """Return the networks in which the CIDRs of all members must lie."""
    return tuple(parse_network(text)[0] for text in limits.cluster_cidrs or PRIVATE)


def refusals(
    claims: Iterable[CidrClaim], cluster_id: str, bounds: Bounds, allowed: Iterable[Network]
) -> dict[str, str]:
    """Return the claims that a cluster may not have, independently of other clusters: the reasons, by their text.

    `claims`: all of the cluster, so that its gateways are counted.
    """
    account = f"cluster {cluster_id}'s ServiceAccount on the leader"
    gateways = 0
    reasons: dict[str, str] = {}
    for claim in claims:
        if claim.range is None:
            continue
        gateways += claim.gateway
        if claim.gateway:
            reason = _refuse_gateway(claim, gateways, account, bounds)
        else:
            reason = _refuse_cidr(claim, account, bounds, allowed)
        if reason:
            reasons[claim.text] = f"{claim} is not granted: {reason}"
    return reasons


def _refuse_gateway(claim: CidrClaim, number: int, account: str, bounds: Bounds) -> str:
    """Return why a member may not have an address as that of its gateway, the `number`th; "" if it may."""
    if bounds.problem:
        return bounds.problem
    if number > bounds.max_gateways:
        return f"a member may have {bounds.max_gateways} gateways (members.maxGateways of the leader)"
    if not bounds.allows_gateway(host_network(parse_address(claim.text))):
        annotation = names.ALLOWED_GATEWAYS_ANNOTATION
        return f"neither annotation {annotation} of {account} holds it, nor members.allowedGateways"
    return ""


def _refuse_cidr(claim: CidrClaim, account: str, bounds: Bounds, allowed: Iterable[Network]) -> str:
    """Return why a member may not have a CIDR; "" if it may."""
    network = parse_network(claim.text)[0]
    if not any(contains(range_, network) for range_ in allowed):
        return (
            "it does not lie in a range that clusters may have: allowedClusterCIDRs of the leader's "
            "configuration, by default private networks"
        )
    if bounds.problem:
        return bounds.problem
    if not bounds.allows_network(network):
        annotation = names.ALLOWED_CIDRS_ANNOTATION
        return f"neither annotation {annotation} of {account} holds it, nor members.allowedCIDRs"
    return ""


def touched(view: View, area: str, changed: Iterable[CidrClaim]) -> list[str]:
    """Return the names of the exports whose claims collide with these claims."""
    return [export.name for export in colliding(changed, area, lambda value: view.indexed(CLAIMED, value))]


def _clusters(view: View, area: str, claims: Sequence[CidrClaim]) -> set[str]:
    """Return the clusters with requested or granted claims that collide with these claims."""
    exports = colliding(claims, area, lambda value: view.indexed(CLAIMED, value))
    imports = colliding(claims, area, lambda value: view.indexed(GRANTED, value))
    return {export.spec.cluster_id for export in exports} | {record.cluster_id for record in imports}
