"""The contests for gateways in which the claims of one cluster take part, from the objects of a view. Pure.

It reads claims and reports, and lets `disputes` decide. One `Contests` serves one decision of the ledger, and
builds each dispute once. It also owns what the leader records of a cluster's gateways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CidrClaim, collide, gateway_claim
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.leader.assigned_ranges import leader_set
from mcagent.controller.leader.claims import ClaimsByCluster, ClusterClaims, publishes_key
from mcagent.controller.leader.disputes import MAX_TRIED, AnswerReport, Claimant, Dispute, Quorum, reason, winner
from mcagent.controller.leader.eligibility import Eligibility, rivals
from mcagent.controller.leader.exports.header import announce_ref
from mcagent.controller.leader.proofs import CONFIRMING, REPORTERS, LinkReport, link_report
from mcagent.controller.machinery.reconciler import Ref
from mcagent.model.api.multicluster import MemberClusterAnnounce, ResourceExport
from mcagent.model.objects import Kind


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a claim is lost."""

    why: str
    is_final: bool  # the winner has been granted its claim


@dataclass(frozen=True, slots=True)
class GatewayRecords:
    """What the leader records of a cluster's gateways, by their addresses; `ClusterClaims` has the same fields."""

    proved: Mapping[str, str]
    challenged: Mapping[str, str]
    settled: Mapping[str, frozenset[str]]


class Contests:
    """The contests in which the claims of one cluster take part."""

    def __init__(self, clusters: ClaimsByCluster, eligibility: Eligibility, now: float) -> None:
        self._clusters, self._eligibility, self._now = clusters, eligibility, now
        self._view, self._area = clusters.view, clusters.area
        self._disputes: dict[tuple[str, str], Dispute] = {}

    @property
    def again(self) -> float | None:
        """Seconds after which a contest may have another winner; None: only after a change."""
        contested = [dispute for dispute in self._disputes.values() if len(dispute.claimants) > 1]
        return min((dispute.seconds_left for dispute in contested), default=None)

    def loss(self, own: ClusterClaims, claim: CidrClaim) -> Loss | None:
        """Return why a cluster loses a key, a gateway, or a CIDR to a gateway inside it; None if it does not."""
        if claim.range is None:
            owner = self._eligibility.owner_of_key(claim.text)
            return None if owner is own else loss_to(owner, claim, claim)
        if claim.gateway:
            return self._loss_of(own, claim, own, claim)
        inside = (
            (rival, gateway)
            for rival in rivals(self._clusters, claim)
            for gateway in (*rival.granted, *rival.requested)
            if rival is not own and gateway.gateway and collide(claim, gateway)
        )
        losses = (self._loss_of(own, claim, rival, gateway) for rival, gateway in inside)
        return next((loss for loss in losses if loss is not None), None)

    def _loss_of(
        self, own: ClusterClaims, claim: CidrClaim, cluster: ClusterClaims, gateway: CidrClaim
    ) -> Loss | None:
        """Return why a claim loses the dispute for a gateway that a cluster claims; None if it does not."""
        if gateway.text in self._eligibility.refused(cluster):
            return None
        dispute = self.dispute(cluster, gateway)
        first = winner(dispute)
        if first is None:
            return None
        if first.cluster_id == own.cluster_id:
            if claim.gateway or claim in own.granted or not first.address:
                return None
            return Loss(f"cluster {cluster.cluster_id} asks for {gateway} in it", True)  # the contest is open
        winning_gateway = gateway_claim(first.address)
        if not claim.gateway and (winning_gateway is None or not collide(claim, winning_gateway)):
            return None  # the gateway loses, or the winner lies elsewhere
        loser = next(
            (c for c in dispute.claimants if (c.cluster_id, c.claim) == (own.cluster_id, str(claim))), None
        )
        return Loss(reason(dispute, loser, first), bool(first.since))

    def dispute(self, own: ClusterClaims, claim: CidrClaim) -> Dispute:
        """Return the dispute for the address of a gateway that a cluster claims."""
        key = (own.cluster_id, claim.text)
        if key not in self._disputes:
            other_clusters = [cluster for cluster in rivals(self._clusters, claim) if cluster is not own]
            cluster_ids = {own.cluster_id, *(rival.cluster_id for rival in other_clusters)}
            claimants = [
                self._claimant(rival, other)
                for rival in other_clusters
                for other in (*rival.granted, *rival.requested)
                if self._takes_part(own, claim, rival, other, cluster_ids)
            ]
            claimants.append(self._claimant(own, claim))
            reports = tuple(self._reports(claimants, cluster_ids))
            self._disputes[key] = Dispute(tuple(claimants), reports, self._now)
        return self._disputes[key]

    def records(
        self, own: ClusterClaims, gateways: Sequence[CidrClaim], fresh: str, *, contested: bool
    ) -> GatewayRecords:
        """Return what is recorded of a cluster to which these gateways are granted. `fresh`: the present time.

        A cluster that takes an address from an owner settles the contest with all that claim it then. That ends
        when members report that its gateway answers. It does not end when a claim is withdrawn: otherwise each new
        claim to the address would have another trial.
        """
        proved: dict[str, str] = {}
        challenged: dict[str, str] = {}
        settled = dict(own.settled)
        reporters = self._view.count(REPORTERS, f"{self._area}/{own.cluster_id}")
        for claim in gateways:
            if not contested and self._is_recorded(own, claim.text, reporters):
                proved |= {claim.text: ""} if claim.text in own.proved else {}
                continue
            dispute = self.dispute(own, claim)
            claimant = dispute.claimants[-1]
            if dispute.quorum(claimant) >= Quorum.SINGLE:
                proved[claim.text] = ""
                settled.pop(claim.text, None)
            elif claimant.proved:
                proved[claim.text] = own.proved[claim.text] or fresh
            elif dispute.is_on_trial(claimant):
                challenged[claim.text] = own.challenged.get(claim.text) or fresh
            if not (claimant.since or claim.text in proved) and any(c.since for c in dispute.claimants):
                cluster_ids = {c.cluster_id for c in dispute.claimants} - {own.cluster_id}
                settled[claim.text] = settled.get(claim.text, frozenset()) | cluster_ids
        texts = {claim.text for claim in gateways}
        texts_to_record = sorted(settled, key=lambda text: text not in texts)[: len(texts) + MAX_TRIED]
        return GatewayRecords(proved, challenged, {text: settled[text] for text in texts_to_record})

    def _is_recorded(self, own: ClusterClaims, address: str, reporters: int) -> bool:
        """Tell whether the records of a gateway that no other cluster claims are right, by numbers of reports."""
        if address not in own.proved:
            return not reporters
        confirming = self._view.count(CONFIRMING, f"{self._area}/{own.cluster_id}/{address}")
        is_voter = self._leader != own.cluster_id and self._leaders_report.has_tunnels(own.cluster_id, address)
        is_confirmed = 2 * confirming > reporters
        if is_voter:
            is_confirmed = self._leaders_report.names(own.cluster_id, address)
        return is_confirmed and not own.proved[address] and address not in own.settled

    def _takes_part(
        self, own: ClusterClaims, claim: CidrClaim, rival: ClusterClaims, other: CidrClaim, cluster_ids: Set[str]
    ) -> bool:
        """Tell whether a claim of a rival takes part in the dispute for a gateway. `cluster_ids`: all who may."""
        if not _collide(own, claim, rival, other) or other.text in self._eligibility.refused(rival):
            return False
        if other in rival.granted or not other.gateway:
            return other in rival.granted
        if other == claim and own.encrypts == rival.encrypts:
            return True  # what is in its way is in that of the claim, too
        return not any(
            _collide(rival, other, holder, granted)
            for holder in rivals(self._clusters, other)
            if holder.cluster_id not in cluster_ids
            for granted in holder.granted
        )

    def _claimant(self, cluster: ClusterClaims, claim: CidrClaim) -> Claimant:
        address, since = claim.text if claim.gateway else "", cluster.granted.get(claim, "")
        return Claimant(
            cluster_id=cluster.cluster_id,
            claim=str(claim),
            address=address,
            since=since,
            created=cluster.created,
            proved=bool(since) and cluster.has_proved(address, self._now),
            challenged_at=time_of(cluster.challenged.get(address)) if since else None,
            encrypts=cluster.encrypts,
            has_tried=address in cluster.settled or len(cluster.settled) >= MAX_TRIED,
            settled=cluster.settled.get(address, frozenset()),
            yields_to=frozenset(self._eligibility.neighbours(cluster, claim)),
        )

    def _reports(self, claimants: Sequence[Claimant], cluster_ids: Set[str]) -> Iterator[AnswerReport]:
        """Yield what members report that claim nothing that collides."""
        gateways = [claimant for claimant in claimants if claimant.address]
        announces = {
            announce.cluster_id: announce
            for cluster_id in {claimant.cluster_id for claimant in gateways}
            for announce in self._view.indexed(REPORTERS, f"{self._area}/{cluster_id}")
            if announce.cluster_id not in cluster_ids
        }
        for cluster_id, announce in announces.items():
            report = link_report(announce)
            yield AnswerReport(
                reporter=cluster_id,
                tunnels=frozenset(c.cluster_id for c in gateways if report.has_tunnels(c.cluster_id, c.address)),
                answers=frozenset(c.cluster_id for c in gateways if report.names(c.cluster_id, c.address)),
                encrypts=len(gateways) > 1 and self._encrypts(cluster_id),
                is_leader=cluster_id == self._leader,
            )

    @cached_property
    def _leader(self) -> str:
        """The ID of the leader's own cluster; "" if it is not known."""
        cluster_set = leader_set(self._view, self._area)
        return "" if cluster_set is None else cluster_set.spec.cluster_id or cluster_set.leader_id

    @cached_property
    def _leaders_report(self) -> LinkReport:
        return link_report(self._view.get(announce_ref(self._area, self._leader), MemberClusterAnnounce))

    def _encrypts(self, cluster_id: str) -> bool:
        ref = Ref(kind=Kind.RESOURCE_EXPORT, namespace=self._area, name=names.cluster_info(cluster_id))
        export = self._view.get(ref, ResourceExport)
        return export is not None and publishes_key(export)


def loss_to(owner: ClusterClaims, owned: CidrClaim, lost: CidrClaim) -> Loss:
    """Return the loss of a claim to an older one."""
    claimed = "it" if lost.text == owned.text else str(owned)
    if owned in owner.granted:
        return Loss(f"cluster {owner.cluster_id} has had {claimed} since {owner.granted[owned]}", True)
    return Loss(f"cluster {owner.cluster_id} asks for {claimed} too, and its export is older", False)


def _collide(cluster: ClusterClaims, claim: CidrClaim, other: ClusterClaims, claimed: CidrClaim) -> bool:
    """Tell whether claims of two clusters collide. IPv4 gateways have derived tunnel addresses only with keys."""
    if claim.gateway and claimed.gateway and claim.text != claimed.text and claim.range and claim.range[0] == 4:
        return cluster.encrypts and other.encrypts and collide(claim, claimed)
    return collide(claim, claimed)
