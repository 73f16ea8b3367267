"""Ranks the claims of clusters: which of two that collide stands. Pure.

The first claim stands, but the address of a gateway must prove itself: one at which members report the answers of
its cluster (`proofs`) is kept while it is claimed, and one that has never proved itself loses to one that has.
Where members encrypt, a gateway without the key that it claims cannot answer: if it has not proved itself within
`TRIAL` it loses to another cluster that asks for its address.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from mcagent.controller.contract.cidr_claims import CidrClaim
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.leader.claims import ClusterClaims, publishes_key
from mcagent.controller.leader.exports.header import CLUSTER_INFOS, announce_ref
from mcagent.controller.leader.proofs import is_confirmed, reported_answers
from mcagent.controller.machinery.reconciler import View
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


class Ranking:
    """Ranks the claims of clusters; the lowest rank stands."""

    def __init__(self, view: View, area: str, now: float) -> None:
        self._view, self._area, self._now = view, area, now

    def rank(self, cluster: ClusterClaims, claim: CidrClaim, rivals: Sequence[ClusterClaims]) -> Rank:
        """Return the rank of a claim among those of `rivals`."""
        standing = self._standing(cluster, claim, rivals)
        return (standing, cluster.granted.get(claim, ""), cluster.created, cluster.cluster_id)

    def outranks(
        self, cluster: ClusterClaims, claim: CidrClaim, holder: ClusterClaims, granted: CidrClaim
    ) -> bool:
        """Tell whether a claim that is not granted stands before one that is."""
        return self._standing(cluster, claim, [holder]) < self._standing(holder, granted, [cluster])

    def reason(
        self, loser: ClusterClaims, claim: CidrClaim, winner: ClusterClaims, winning_claim: CidrClaim
    ) -> str:
        """Return why a claim is lost."""
        claimed = str(winning_claim) if winning_claim.text != claim.text else "it"
        since = winner.granted.get(winning_claim)
        if self._standing(winner, winning_claim, [loser]) in (ClaimStanding.PROVED, ClaimStanding.CONFIRMED):
            return (
                f"members report that the gateway of cluster {winner.cluster_id} answers at {winning_claim.text}"
            )
        if self._standing(loser, claim, [winner]) is ClaimStanding.UNPROVED:
            return (
                f"no member reports an answer of this gateway, and cluster {winner.cluster_id} asks for {claimed}"
            )
        if since:
            return f"cluster {winner.cluster_id} has had {claimed} since {since}"
        return f"cluster {winner.cluster_id} asks for {claimed} too, and its export is older"

    def _standing(
        self, cluster: ClusterClaims, claim: CidrClaim, rivals: Sequence[ClusterClaims]
    ) -> ClaimStanding:
        since = cluster.granted.get(claim)
        ordinary = ClaimStanding.REQUESTED if since is None else ClaimStanding.GRANTED
        contenders = [rival.cluster_id for rival in rivals if claim in rival.granted or claim in rival.requested]
        if not claim.gateway or not contenders:
            return ordinary
        if since is not None and claim.text in cluster.proved:
            return ClaimStanding.PROVED
        if is_confirmed(self._view, self._area, claim.text, cluster.cluster_id, contenders):
            return ClaimStanding.CONFIRMED if since is None else ClaimStanding.PROVED
        if not self._provable([cluster.cluster_id, *contenders]):
            return ordinary
        if since is None:
            return ClaimStanding.CHALLENGING if cluster.encrypts else ordinary
        return ordinary if self._now - (time_of(since) or 0.0) < TRIAL else ClaimStanding.UNPROVED

    def _provable(self, contenders: Sequence[str]) -> bool:
        """Tell whether another member encrypts and reports answers: it would have reported this one's."""
        return any(
            info.spec.cluster_id not in contenders and publishes_key(info) and self._reports(info.spec.cluster_id)
            for info in self._view.indexed(CLUSTER_INFOS, self._area)
        )

    def _reports(self, cluster_id: str) -> bool:
        return bool(reported_answers(self._view.get(announce_ref(self._area, cluster_id), MemberClusterAnnounce)))
