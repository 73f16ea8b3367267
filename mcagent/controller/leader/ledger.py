"""The ledger: which claims of a cluster are granted, the one decision on whose an address or a key is. Pure.

The ResourceImports of kind ClusterInfo hold what has been granted, and an annotation of theirs says since when;
members can only read them. A granted claim ranks before one that is only asked for. Of two granted claims (two
workers, or two leaders, did not see each other's) the older grant stands; of two asked for, that of the older
export. So the first claim stands and stays, in whatever order clusters are reconciled. A claim does not count
if it is withdrawn, its cluster is no member, or its export is being deleted. One that can never be granted
blocks nobody.
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
from mcagent.controller.leader.exports.announces import is_member
from mcagent.controller.leader.exports.bounds import Bounds, bounds_of, defaults_of
from mcagent.controller.leader.exports.header import read_header
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
    """What becomes of a cluster's claims, by their text."""

    times: Mapping[str, str]  # since when each is granted; REFUSED: it is not
    refused: Mapping[str, str]  # why each of those is not, in plain words
    waits: bool  # one is refused only until it is clear who gets it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClaims:
    """The claims of one cluster as they are now."""

    cluster_id: str
    created: str  # the export's creation time
    granted: Mapping[CidrClaim, str]
    asked: Sequence[CidrClaim]  # and not granted

    def rank(self, claim: CidrClaim) -> _Rank:
        """Return what sorts claims: the lowest stands."""
        time = self.granted.get(claim)
        return ("0" if time is not None else "1", time or "", self.created, self.cluster_id)


class Ledger:
    """Decides by what a view holds. `limits` say which CIDRs any member may claim."""

    def __init__(self, limits: MemberLimits) -> None:
        self._defaults = defaults_of(limits)
        self._allowed = allowed_ranges(limits)

    def decide(self, view: View, export: ResourceExport, now: float) -> ClaimsDecision:
        """Return what becomes of the claims of a member's ClusterInfo export, which can be read."""
        area = export.namespace
        own = _claims_of_member(view, area, export.spec.cluster_id, export)
        claims = [*own.granted, *own.asked]
        refused = self.refusals(view, area, own.cluster_id, claims)
        wanted = [claim for claim in claims if claim.text not in refused]
        winners = self._winners(own, wanted, self._others(_KnownClaims(view, area), own, wanted))
        for claim, (winner, other) in winners.items():
            since = other.granted.get(winner)
            theirs = str(winner) if winner.text != claim.text else "it"
            has = f"cluster {other.cluster_id} has had {theirs} since {since}" if since else (
                f"cluster {other.cluster_id} asks for {theirs} too, and its export is older"
            )  # fmt: skip
            refused[claim.text] = f"{claim} is not granted: {has}"
        fresh = to_microseconds(at(datetime.fromtimestamp(now, UTC)))
        times = {c.text: REFUSED if c.text in refused else own.granted.get(c) or fresh for c in claims}
        waits = any(winner not in other.granted for winner, other in winners.values())
        return ClaimsDecision(times=times, refused=refused, waits=waits)

    def refusals(self, view: View, area: str, cluster_id: str, claims: Sequence[CidrClaim]) -> dict[str, str]:
        """Return which claims a cluster may not have, whoever else wants them, and why, by their text."""
        return refusals(claims, cluster_id, bounds_of(view, area, cluster_id, self._defaults), self._allowed)

    def _others(self, known: _KnownClaims, own: ClusterClaims, claims: Sequence[CidrClaim]) -> list[ClusterClaims]:
        """Return the other clusters in the way of claims, with just those of their claims that are."""
        asked = {value for claim in claims for value in asked_for(claim)}
        found = []
        for cluster_id in _clusters(known.view, known.area, claims) - {own.cluster_id}:
            one = known.of(cluster_id)
            touching = [c for c in (*one.granted, *one.asked) if not asked.isdisjoint(filed_under(c))]
            found.append(
                ClusterClaims(
                    cluster_id=cluster_id,
                    created=one.created,
                    granted={c: one.granted[c] for c in touching if c in one.granted},
                    asked=self._open(known, cluster_id, [c for c in touching if c not in one.granted]),
                )
            )
        return found

    def _open(self, known: _KnownClaims, cluster_id: str, claims: Sequence[CidrClaim]) -> list[CidrClaim]:
        """Return those of a cluster's claims that may be granted: it may have them, and nobody has any of it."""
        view, area = known.view, known.area
        refused = self.refusals(view, area, cluster_id, claims) if claims else {}
        found = []
        for claim in claims:
            holders = colliding([claim], area, lambda value: view.indexed(GRANTED, value))
            ids = {holder.cluster_id for holder in holders} - {cluster_id}
            asked = set(asked_for(claim))
            if claim.text not in refused and all(asked.isdisjoint(known.held(i)) for i in ids):
                found.append(claim)
        return found

    def _winners(
        self, own: ClusterClaims, wanted: Sequence[CidrClaim], others: Sequence[ClusterClaims]
    ) -> dict[CidrClaim, tuple[CidrClaim, ClusterClaims]]:
        """Return which of one's own claims are lost, and to whose."""
        meant: dict[AddressClaim, list[tuple[CidrClaim, ClusterClaims]]] = {}
        keys: dict[str, tuple[_Rank, CidrClaim, ClusterClaims]] = {}
        for one in (own, *others):
            for claim in wanted if one is own else (*one.granted, *one.asked):
                if claim.range is None:
                    entry = (one.rank(claim), claim, one)
                    keys[claim.text] = min(keys.get(claim.text, entry), entry, key=lambda found: found[0])
                    continue
                for row in (claim.range, *claim.points):
                    asked = AddressClaim(
                        owner=one.cluster_id, range=row, gateway=claim.gateway, rank=one.rank(claim)
                    )
                    meant.setdefault(asked, []).append((claim, one))
        found = {c: keys[c.text][1:] for c in wanted if c.range is None and keys[c.text][2] is not own}
        for loser, winner in losing_claims(meant).items():
            for claim, one in meant[loser]:
                if one is own:
                    found.setdefault(claim, meant[winner][0])
        return found


class _KnownClaims:
    """The claims of the clusters that one decision is about, each cluster read once."""

    def __init__(self, view: View, area: str) -> None:
        self.view, self.area = view, area
        self._claims: dict[str, ClusterClaims] = {}
        self._held: dict[str, frozenset[str]] = {}

    def of(self, cluster_id: str) -> ClusterClaims:
        """Return the claims of a cluster."""
        if cluster_id not in self._claims:
            self._claims[cluster_id] = claims_of_cluster(self.view, self.area, cluster_id)
        return self._claims[cluster_id]

    def held(self, cluster_id: str) -> frozenset[str]:
        """Return what the granted claims of a cluster are filed under."""
        if cluster_id not in self._held:
            granted = self.of(cluster_id).granted
            self._held[cluster_id] = frozenset(value for claim in granted for value in filed_under(claim))
        return self._held[cluster_id]


def allowed_ranges(limits: MemberLimits) -> tuple[Network, ...]:
    """Return where the CIDRs of all members have to lie."""
    return tuple(parse_network(text)[0] for text in limits.cluster_cidrs or PRIVATE)


def refusals(
    claims: Iterable[CidrClaim], cluster_id: str, bounds: Bounds, allowed: Iterable[Network]
) -> dict[str, str]:
    """Return which claims a cluster may not have, whoever else wants them, and why, by their text.

    Bound are CIDRs: gateways have the addresses of machines, wherever these are.
    """
    found: dict[str, str] = {}
    for claim in claims:
        if claim.range is None or claim.gateway:
            continue
        network = parse_network(claim.text)[0]
        why = ""
        if not any(contains(one, network) for one in allowed):
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
            found[claim.text] = f"{claim} is not granted: {why}"
    return found


def claims_of_cluster(view: View, area: str, cluster_id: str) -> ClusterClaims:
    """Return the claims of a cluster; none of one that is no member, or has no export that stays."""
    ref = Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=names.cluster_info(cluster_id))
    export = view.get(ref, ResourceExport)
    if export is None or export.is_deleting or not is_member(view, area, cluster_id):
        return ClusterClaims(cluster_id=cluster_id, created="", granted={}, asked=())
    return _claims_of_member(view, area, cluster_id, export)


def _claims_of_member(view: View, area: str, cluster_id: str, export: ResourceExport) -> ClusterClaims:
    """Return the claims of a member. An export that cannot be read asks for what it has: its last good copy."""
    ref = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.cluster_info(cluster_id))
    granted = granted_in(view.get(ref, ResourceImport))
    asked = read_claims(export)
    if asked is not None:
        granted = {claim: granted[claim] for claim in asked if claim in granted}
    return ClusterClaims(
        cluster_id=cluster_id,
        created=export.metadata.creation_timestamp,
        granted=granted,
        asked=[claim for claim in asked or () if claim not in granted],
    )


def granted_in(obj: ApiObject | None) -> dict[CidrClaim, str]:
    """Return what a ResourceImport grants, with the time since when.

    One without the annotation was made before there was any: all in it was granted when it was made.
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
    """Return what an export asks for; None when it cannot be read."""
    try:
        read_header(export)
        return claims_of(read_cluster_info(export))
    except InputError:
        return None


def touched(view: View, area: str, changed: Iterable[CidrClaim]) -> list[str]:
    """Return the names of the exports that ask for what collides with these claims."""
    found = colliding(changed, area, lambda value: view.indexed(CLAIMED, value))
    return [export.name for export in found]


def _clusters(view: View, area: str, claims: Sequence[CidrClaim]) -> set[str]:
    """Return the clusters that ask for, or were granted, what collides with claims."""
    exports = colliding(claims, area, lambda value: view.indexed(CLAIMED, value))
    imports = colliding(claims, area, lambda value: view.indexed(GRANTED, value))
    return {export.spec.cluster_id for export in exports} | ({record.cluster_id for record in imports} - {""})
