"""Ranks the claims of clusters: which of two that collide stands. Pure.

The first claim stands, but the address of a gateway must prove itself: one at which members report the answers of
its cluster (`proofs`) is kept while it is claimed, and one that has never proved itself loses to one that has.
Where members encrypt, a gateway without the key that it claims cannot answer: if it has not proved itself within
`TRIAL` it loses to another cluster that asks for its address.

The standing of a claim follows from all clusters that claim the address, so it is the same in the decisions of
all of them. An address has one trial: the cluster that takes it from another one records all its rivals of that
moment (`settled`). These get the address only by a proof, or if the owner withdraws its claim. So the owner
changes at most once while claims and reports stay the same, however many clusters claim the address; with a trial
for each of them it would change as often. The record loses a rival that withdraws its claim. Clusters that claim
the address later are not in it and may challenge the owner, so two members cannot lock out a third by a contest
between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mcagent.controller.contract.cidr_claims import (
    CLAIMED,
    GRANTED,
    CidrClaim,
    collide,
    colliding,
    place_of,
)
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.leader.claims import ANY_CLUSTER, ClaimsByCluster, ClusterClaims, publishes_key
from mcagent.controller.leader.exports.header import CLUSTER_INFOS, announce_ref
from mcagent.controller.leader.proofs import is_confirmed, reported_answers
from mcagent.model.api.multicluster import MemberClusterAnnounce

TRIAL = 60.0  # seconds in which a gateway proves itself, where members can tell
Rank = tuple[str, ...]


class ClaimStanding(StrEnum):
    """The standing of a claim: the first value precedes the second, whatever the ages of the claims.

    Other values than GRANTED and REQUESTED are of gateways whose address several clusters claim.
    """

    PROVED = "0"  # granted, and its cluster has answered there
    CONFIRMED = "1"  # not granted, but members report that its cluster answers there
    GRANTED = "2"
    CHALLENGING = "3"  # not granted, and can prove itself only once it is
    UNPROVED = "4"  # granted for `TRIAL` without a proof, where there should be one
    REQUESTED = "5"


@dataclass(frozen=True, slots=True)
class _Contest:
    """The clusters that claim the address of one gateway."""

    claimants: Mapping[str, ClusterClaims]  # by cluster ID
    holders: Sequence[ClusterClaims]  # to which it is granted
    obstructing: frozenset[str]  # IDs of clusters with the grant of another claim that collides
    provable: bool  # another member encrypts and reports answers: it would have reported one there


class Ranking:
    """Ranks the claims of clusters; the lowest rank stands."""

    def __init__(self, clusters: ClaimsByCluster, now: float) -> None:
        self._clusters, self._now = clusters, now
        self._view, self._area = clusters.view, clusters.area
        self._contests: dict[CidrClaim, _Contest] = {}

    def rank(self, cluster: ClusterClaims, claim: CidrClaim) -> Rank:
        """Return the rank of a claim."""
        standing = self._standing(cluster, claim)
        return (standing, cluster.granted.get(claim, ""), cluster.created, cluster.cluster_id)

    def outranks(
        self, cluster: ClusterClaims, claim: CidrClaim, holder: ClusterClaims, granted: CidrClaim
    ) -> bool:
        """Tell whether a claim that is not granted stands before one that is."""
        return self._standing(cluster, claim) < self._standing(holder, granted)

    def reason(
        self, loser: ClusterClaims, claim: CidrClaim, winner: ClusterClaims, winning_claim: CidrClaim
    ) -> str:
        """Return why a claim is lost."""
        claimed = str(winning_claim) if winning_claim.text != claim.text else "it"
        since = winner.granted.get(winning_claim)
        if self._standing(winner, winning_claim) in (ClaimStanding.PROVED, ClaimStanding.CONFIRMED):
            return (
                f"members report that the gateway of cluster {winner.cluster_id} answers at {winning_claim.text}"
            )
        if self._standing(loser, claim) is ClaimStanding.UNPROVED:
            return (
                f"no member reports an answer of this gateway, and cluster {winner.cluster_id} asks for {claimed}"
            )
        if since and winner.has_settled_with(loser.cluster_id, claim.text):
            return (
                f"cluster {winner.cluster_id} has had {claimed} since {since}, because the owner before did not "
                "prove itself, and keeps it unless members report that another cluster answers there"
            )
        if since:
            return f"cluster {winner.cluster_id} has had {claimed} since {since}"
        return f"cluster {winner.cluster_id} asks for {claimed} too, and its export is older"

    def is_confirmed(self, cluster: ClusterClaims, claim: CidrClaim) -> bool:
        """Tell whether members that do not claim a gateway's address report that a cluster answers there."""
        claimants = self._contest(claim).claimants
        return is_confirmed(self._view, self._area, claim.text, cluster.cluster_id, claimants)

    def settled(self, cluster: ClusterClaims, claim: CidrClaim) -> frozenset[str]:
        """Return the clusters that lose, or have lost, the contest for a gateway's address to a cluster.

        A cluster that takes the address from another one wins against all that claim it then.
        """
        contest = self._contest(claim)
        rivals = contest.claimants.keys() - {cluster.cluster_id}
        if claim not in cluster.granted:
            return frozenset(rivals if contest.holders else ())
        recorded = cluster.settled.get(claim.text, frozenset())
        return recorded & (rivals | {ANY_CLUSTER}) if rivals else frozenset()

    def _standing(self, cluster: ClusterClaims, claim: CidrClaim) -> ClaimStanding:
        since = cluster.granted.get(claim)
        ordinary = ClaimStanding.REQUESTED if since is None else ClaimStanding.GRANTED
        if not claim.gateway or not self._contest(claim).claimants.keys() - {cluster.cluster_id}:
            return ordinary
        if since is None:
            return self._standing_of_request(cluster, claim)
        if claim.text in cluster.proved or self.is_confirmed(cluster, claim):
            return ClaimStanding.PROVED
        trial_is_over = self._now - (time_of(since) or 0.0) >= TRIAL
        return ClaimStanding.UNPROVED if trial_is_over and self._has_challenger(cluster, claim) else ordinary

    def _standing_of_request(self, cluster: ClusterClaims, claim: CidrClaim) -> ClaimStanding:
        contest = self._contest(claim)
        if contest.obstructing - {cluster.cluster_id}:
            return ClaimStanding.REQUESTED
        if self.is_confirmed(cluster, claim):
            return ClaimStanding.CONFIRMED
        has_lost = any(holder.has_settled_with(cluster.cluster_id, claim.text) for holder in contest.holders)
        challenges = contest.provable and cluster.encrypts and not has_lost
        return ClaimStanding.CHALLENGING if challenges else ClaimStanding.REQUESTED

    def _has_challenger(self, holder: ClusterClaims, claim: CidrClaim) -> bool:
        """Tell whether another cluster may take a gateway's address, or has just taken it, without a proof."""
        contest = self._contest(claim)
        return contest.provable and any(
            rival.encrypts and not holder.has_settled_with(cluster_id, claim.text)
            for cluster_id, rival in contest.claimants.items()
            if cluster_id != holder.cluster_id
        )

    def _contest(self, claim: CidrClaim) -> _Contest:
        """Return the contest for the address of a gateway; it has no rivals where one cluster claims it."""
        if claim not in self._contests:
            place, view = place_of(self._area, claim), self._view
            ids = {export.spec.cluster_id for export in view.indexed(CLAIMED, place)}
            ids |= {record.cluster_id for record in view.indexed(GRANTED, place)}
            clusters = [self._clusters.of(cluster_id) for cluster_id in sorted(ids)]
            claimants = {c.cluster_id: c for c in clusters if claim in c.granted or claim in c.requested}
            holders = [cluster for cluster in claimants.values() if claim in cluster.granted]
            contested = len(claimants) > 1
            self._contests[claim] = _Contest(
                claimants=claimants,
                holders=holders,
                obstructing=self._obstructing(claim) if contested else frozenset(),
                provable=contested and self._is_provable(claimants),
            )
        return self._contests[claim]

    def _is_provable(self, claimants: Mapping[str, ClusterClaims]) -> bool:
        """Tell whether another member encrypts and reports answers: it would have reported one of a claimant."""
        return any(
            info.spec.cluster_id not in claimants and publishes_key(info) and self._reports(info.spec.cluster_id)
            for info in self._view.indexed(CLUSTER_INFOS, self._area)
        )

    def _reports(self, cluster_id: str) -> bool:
        return bool(reported_answers(self._view.get(announce_ref(self._area, cluster_id), MemberClusterAnnounce)))

    def _obstructing(self, claim: CidrClaim) -> frozenset[str]:
        """Return the clusters with the grant of another claim than this gateway that collides with it."""
        records = colliding([claim], self._area, lambda value: self._view.indexed(GRANTED, value))
        clusters = [self._clusters.of(record.cluster_id) for record in records]
        return frozenset(
            cluster.cluster_id
            for cluster in clusters
            if any(granted != claim and collide(claim, granted) for granted in cluster.granted)
        )
