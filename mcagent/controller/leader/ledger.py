"""The ledger: the only decision on which cluster owns a CIDR, a gateway address or a WireGuard key. Pure.

ResourceImports of kind ClusterInfo hold the granted claims, and their annotation the time of each grant; members
can only read them. A granted claim precedes a requested one. Of two granted claims (granted by two workers or
two leaders at the same time) the older grant stands; of two requested ones, that of the older export. So the
first claim stands, in whatever order clusters are reconciled. A claim is ignored if it is withdrawn, its cluster
is not a member, or its export is being deleted. A claim that can never be granted blocks no other cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import (
    CLAIMED,
    GRANTED,
    CidrClaim,
    asked_for,
    claims_in,
    claims_of,
    colliding,
    filed_under,
)
from mcagent.controller.leader.exports.bounds import Bounds, bounds_of, defaults_of
from mcagent.controller.leader.exports.header import is_member, read_header
from mcagent.controller.leader.exports.payloads import read_cluster_info
from mcagent.controller.machinery.reconciler import Ref, View
from mcagent.controller.settings import MemberLimits
from mcagent.core.addresses.ownership import AddressClaim, losing_claims
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ResourceExport, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.net import Network, contains, parse_network
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, REFUSED, at, read_granted, to_microseconds

PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")  # RFC 1918, RFC 6598
_Rank = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsDecision:
    """The decision on the claims of a cluster, by the text of each claim."""

    times: Mapping[str, str]  # the time of the grant, or REFUSED
    refused: Mapping[str, str]  # a message for each refused claim
    waits: bool  # a claim lost to one that is not granted yet: decide again


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClaims:
    """The current claims of one cluster."""

    cluster_id: str
    created: str  # the export's creation time
    granted: Mapping[CidrClaim, str]  # with the time of the grant
    requested: Sequence[CidrClaim]  # and not granted

    def rank(self, claim: CidrClaim) -> _Rank:
        """Return the sort key of a claim: the lowest stands."""
        time = self.granted.get(claim)
        return ("0" if time is not None else "1", time or "", self.created, self.cluster_id)


class Ledger:
    """Decides on claims by the objects of a view. `limits` has the CIDRs that members may claim."""

    def __init__(self, limits: MemberLimits) -> None:
        self._defaults = defaults_of(limits)
        self._allowed = allowed_ranges(limits)

    def decide(self, view: View, export: ResourceExport, now: float) -> ClaimsDecision:
        """Return the decision on the claims of a member's valid ClusterInfo export."""
        area = export.namespace
        own = _claims_of_member(view, area, export.spec.cluster_id, export)
        claims = [*own.granted, *own.requested]
        refused = self.refusals(view, area, own.cluster_id, claims)
        allowed = [claim for claim in claims if claim.text not in refused]
        winners = self._winners(own, allowed, self._rivals(_ClaimsByCluster(view, area), own, allowed))
        for claim, (winner, other) in winners.items():
            since = other.granted.get(winner)
            winner_text = str(winner) if winner.text != claim.text else "it"
            why = f"cluster {other.cluster_id} has had {winner_text} since {since}" if since else (
                f"cluster {other.cluster_id} asks for {winner_text} too, and its export is older"
            )  # fmt: skip
            refused[claim.text] = f"{claim} is not granted: {why}"
        fresh = to_microseconds(at(datetime.fromtimestamp(now, UTC)))
        times = {c.text: REFUSED if c.text in refused else own.granted.get(c) or fresh for c in claims}
        waits = any(winner not in other.granted for winner, other in winners.values())
        return ClaimsDecision(times=times, refused=refused, waits=waits)

    def refusals(self, view: View, area: str, cluster_id: str, claims: Sequence[CidrClaim]) -> dict[str, str]:
        """Return the claims that a cluster may not have: the reasons, by their text (`refusals`)."""
        return refusals(claims, cluster_id, bounds_of(view, area, cluster_id, self._defaults), self._allowed)

    def _rivals(
        self, clusters: _ClaimsByCluster, own: ClusterClaims, claims: Sequence[CidrClaim]
    ) -> list[ClusterClaims]:
        """Return the other clusters whose claims collide with `claims`, with only those claims."""
        values = {value for claim in claims for value in asked_for(claim)}
        rivals = []
        for cluster_id in _clusters(clusters.view, clusters.area, claims) - {own.cluster_id}:
            other = clusters.of(cluster_id)
            collisions = [c for c in (*other.granted, *other.requested) if not values.isdisjoint(filed_under(c))]
            rivals.append(
                ClusterClaims(
                    cluster_id=cluster_id,
                    created=other.created,
                    granted={c: other.granted[c] for c in collisions if c in other.granted},
                    requested=self._open(clusters, cluster_id, [c for c in collisions if c not in other.granted]),
                )
            )
        return rivals

    def _open(self, clusters: _ClaimsByCluster, cluster_id: str, claims: Sequence[CidrClaim]) -> list[CidrClaim]:
        """Return the claims that can be granted to a cluster: allowed, and without a colliding granted claim."""
        view, area = clusters.view, clusters.area
        refused = self.refusals(view, area, cluster_id, claims) if claims else {}
        open_claims = []
        for claim in claims:
            holders = colliding([claim], area, lambda value: view.indexed(GRANTED, value))
            ids = {holder.cluster_id for holder in holders} - {cluster_id}
            values = set(asked_for(claim))
            if claim.text not in refused and all(values.isdisjoint(clusters.granted_values(i)) for i in ids):
                open_claims.append(claim)
        return open_claims

    def _winners(
        self, own: ClusterClaims, claims: Sequence[CidrClaim], rivals: Sequence[ClusterClaims]
    ) -> dict[CidrClaim, tuple[CidrClaim, ClusterClaims]]:
        """Return the winning claim and its cluster for each of one's own `claims` that loses."""
        by_address: dict[AddressClaim, list[tuple[CidrClaim, ClusterClaims]]] = {}
        by_key: dict[str, tuple[_Rank, CidrClaim, ClusterClaims]] = {}
        for cluster in (own, *rivals):
            for claim in claims if cluster is own else (*cluster.granted, *cluster.requested):
                rank = cluster.rank(claim)
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


class _ClaimsByCluster:
    """The claims of the clusters of one decision, each cluster read once."""

    def __init__(self, view: View, area: str) -> None:
        self.view, self.area = view, area
        self._claims: dict[str, ClusterClaims] = {}
        self._granted_values: dict[str, frozenset[str]] = {}

    def of(self, cluster_id: str) -> ClusterClaims:
        """Return the claims of a cluster."""
        if cluster_id not in self._claims:
            self._claims[cluster_id] = claims_of_cluster(self.view, self.area, cluster_id)
        return self._claims[cluster_id]

    def granted_values(self, cluster_id: str) -> frozenset[str]:
        """Return the index values (`filed_under`) of the granted claims of a cluster."""
        if cluster_id not in self._granted_values:
            granted = self.of(cluster_id).granted
            self._granted_values[cluster_id] = frozenset(v for claim in granted for v in filed_under(claim))
        return self._granted_values[cluster_id]


def allowed_ranges(limits: MemberLimits) -> tuple[Network, ...]:
    """Return the networks in which the CIDRs of all members must lie."""
    return tuple(parse_network(text)[0] for text in limits.cluster_cidrs or PRIVATE)


def refusals(
    claims: Iterable[CidrClaim], cluster_id: str, bounds: Bounds, allowed: Iterable[Network]
) -> dict[str, str]:
    """Return the claims that a cluster may not have, independently of other clusters: the reasons, by their text.

    Only CIDRs are limited: a gateway has the address of its machine.
    """
    reasons: dict[str, str] = {}
    for claim in claims:
        if claim.range is None or claim.gateway:
            continue
        network = parse_network(claim.text)[0]
        why = ""
        if not any(contains(outer, network) for outer in allowed):
            why = (
                "it does not lie in a range that clusters may have: allowedClusterCIDRs of the leader's "
                "configuration, by default private networks"
            )
        elif bounds.problem:
            why = bounds.problem
        elif not bounds.allows_network(network):
            why = (
                f"neither annotation {names.ALLOWED_CIDRS_ANNOTATION} of cluster {cluster_id}'s ServiceAccount on "
                "the leader holds it, nor members.allowedCIDRs"
            )
        if why:
            reasons[claim.text] = f"{claim} is not granted: {why}"
    return reasons


def claims_of_cluster(view: View, area: str, cluster_id: str) -> ClusterClaims:
    """Return the claims of a cluster; none if it is not a member, or its export is missing or being deleted."""
    ref = Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=names.cluster_info(cluster_id))
    export = view.get(ref, ResourceExport)
    if export is None or export.is_deleting or not is_member(view, area, cluster_id):
        return ClusterClaims(cluster_id=cluster_id, created="", granted={}, requested=())
    return _claims_of_member(view, area, cluster_id, export)


def _claims_of_member(view: View, area: str, cluster_id: str, export: ResourceExport) -> ClusterClaims:
    """Return the claims of a member. An invalid export keeps the granted claims of its last valid one."""
    ref = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.cluster_info(cluster_id))
    granted = granted_in(view.get(ref, ResourceImport))
    claims = read_claims(export)
    if claims is not None:
        granted = {claim: granted[claim] for claim in claims if claim in granted}
    return ClusterClaims(
        cluster_id=cluster_id,
        created=export.metadata.creation_timestamp,
        granted=granted,
        requested=[claim for claim in claims or () if claim not in granted],
    )


def granted_in(obj: ApiObject | None) -> dict[CidrClaim, str]:
    """Return the claims that a ResourceImport grants, with the time of each grant.

    Without the annotation, which early versions did not write, the time is that of its creation.
    """
    if obj is None:
        return {}
    created = to_microseconds(obj.metadata.creation_timestamp)
    try:
        times = read_granted(obj.annotation(CLAIMS_ANNOTATION) or "{}")
    except ValueError:
        times = {}
    return {claim: times.get(claim.text) or created for claim in claims_in(obj)}


def read_claims(export: ResourceExport) -> tuple[CidrClaim, ...] | None:
    """Return the claims of an export; None if it is invalid."""
    try:
        read_header(export)
        return claims_of(read_cluster_info(export))
    except InputError:
        return None


def touched(view: View, area: str, changed: Iterable[CidrClaim]) -> list[str]:
    """Return the names of the exports whose claims collide with these claims."""
    return [export.name for export in colliding(changed, area, lambda value: view.indexed(CLAIMED, value))]


def _clusters(view: View, area: str, claims: Sequence[CidrClaim]) -> set[str]:
    """Return the clusters with requested or granted claims that collide with these claims."""
    exports = colliding(claims, area, lambda value: view.indexed(CLAIMED, value))
    imports = colliding(claims, area, lambda value: view.indexed(GRANTED, value))
    return {export.spec.cluster_id for export in exports} | {record.cluster_id for record in imports}
