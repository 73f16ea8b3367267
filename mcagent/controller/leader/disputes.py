"""The contest for the address of one gateway, and who wins it. Pure: values only; knows no objects and no clock.

A dispute has all claims that collide with the gateway: equal ones, CIDRs around it, and gateways whose derived
tunnel address is the same. `winner` decides it from these values alone, so the answer is the same from whichever
cluster's export the ledger builds the dispute.

Who answers at an address has it. A quorum decides that: the leader's own cluster, if it has a tunnel there, else
the majority of the members with tunnels to the claimants. A member without an answer counts against; reports of
claimants do not count. Tunnels lead only to an address that has an owner, so without one reports decide nothing. A
quorum is a proof, which is kept for `PROOF_LIFE` after its end. Against a proved owner the word of a single member
does not count, however recent it is.

Where tunnels are encrypted, a gateway answers only with the key that was granted with the address: a claimant can
prove itself only as the owner. So an owner that does not answer within `TRIAL` after another cluster claims its
address loses it, once: the new owner records its rivals (`settled`), and who has had the address by a trial has no
other one (`has_tried`). So the owner changes at most once while claims and reports stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

TRIAL = 60.0  # seconds in which a gateway proves itself once its address is claimed by another cluster
PROOF_LIFE = 24 * 3600.0  # seconds: longer than most outages and maintenance of a gateway
MAX_TRIED = 64  # gateways of a cluster whose trials are recorded although others have them
ANY_CLUSTER = "*"  # in `settled`: all clusters


class Quorum(IntEnum):
    """How many members report that a cluster answers at an address."""

    NONE = 0  # too few
    HALF = 1  # no proof, but the address is not lost by a trial
    SINGLE = 2  # the only member that can tell
    MAJORITY = 3  # several, or the leader's own cluster


class ClaimStanding(IntEnum):
    """The standing of a claimant: the first value wins, whatever the ages of the claims."""

    CONFIRMED = 0  # Quorum.MAJORITY
    PROVED = 1  # granted; it has, or has had within `PROOF_LIFE`, a quorum
    REPORTED = 2  # not granted; Quorum.SINGLE
    GRANTED = 3
    CHALLENGING = 4  # not granted, and can prove itself only once it is
    UNPROVED = 5  # granted, and without a proof at the end of its trial
    REQUESTED = 6
    LOST = 7  # granted, and another owner has settled the contest, or it is a CIDR that yields


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A claim that collides with the gateway, and may be granted but for its rivals."""

    cluster_id: str
    claim: str  # as messages name it, "Pod CIDR 10.1.0.0/16"
    address: str = ""  # of its gateway; "": it is a CIDR around the gateway
    since: str = ""  # time of the grant; "": not granted. A CIDR that is not granted is no claimant
    created: str = ""  # creation time of the export
    proved: bool = False  # it has had a quorum within PROOF_LIFE
    challenged_at: float | None = None  # seconds; when the trial of the owner began
    encrypts: bool = False
    has_tried: bool = False
    settled: frozenset[str] = frozenset()  # clusters that have lost the address to it
    yields_to: frozenset[str] = frozenset()  # of a CIDR: clusters in whose Node networks it lies

    def has_settled_with(self, cluster_id: str) -> bool:
        """Tell whether a cluster has lost the address to this owner."""
        return bool(self.since) and not self.settled.isdisjoint((cluster_id, ANY_CLUSTER))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReport:
    """What one member reports of the claimants' addresses."""

    reporter: str  # cluster ID
    tunnels: frozenset[str]  # claimants to whose clusters it has tunnels
    answers: frozenset[str] = frozenset()  # claimants whose clusters answer at their addresses
    encrypts: bool = False
    is_leader: bool = False  # it is the leader's own cluster


@dataclass(frozen=True)
class Dispute:
    """The claimants of the address of one gateway, what others report, and the time in seconds."""

    claimants: tuple[Claimant, ...]
    reports: tuple[AnswerReport, ...] = ()
    now: float = 0.0

    @cached_property
    def _voters(self) -> tuple[AnswerReport, ...]:
        cluster_ids = {claimant.cluster_id for claimant in self.claimants}
        return tuple(report for report in self.reports if report.reporter not in cluster_ids)

    @cached_property
    def _owners(self) -> tuple[Claimant, ...]:
        return tuple(claimant for claimant in self.claimants if claimant.since and claimant.address)

    @cached_property
    def _is_provable(self) -> bool:
        """Whether a member that encrypts has tunnels to an owner: it would have reported its answer."""
        cluster_ids = {owner.cluster_id for owner in self._owners}
        return any(report.encrypts and not report.tunnels.isdisjoint(cluster_ids) for report in self._voters)

    def quorum(self, claimant: Claimant) -> Quorum:
        """Return how many members report that a claimant answers at its address."""
        if not any(owner.address == claimant.address for owner in self._owners):
            return Quorum.NONE
        rivals = {other.cluster_id for other in self.claimants if other.address == claimant.address}
        voters = [report for report in self._voters if not report.tunnels.isdisjoint(rivals)]
        leaders = [report for report in voters if report.is_leader]
        votes = [claimant.cluster_id in report.answers for report in leaders or voters]
        if 2 * sum(votes) > len(votes):
            return Quorum.MAJORITY if leaders or sum(votes) > 1 else Quorum.SINGLE
        confirming = sum(claimant.cluster_id in report.answers for report in voters)
        return Quorum.HALF if 0 < len(voters) <= 2 * confirming else Quorum.NONE

    @property
    def seconds_left(self) -> float:
        """Seconds until a trial ends, or `TRIAL`: then it is decided again, because proofs end, too."""
        trials = [owner.challenged_at or self.now for owner in self._owners if self.is_on_trial(owner)]
        return min((max(1.0, began + TRIAL - self.now) for began in trials), default=TRIAL)

    def is_on_trial(self, owner: Claimant) -> bool:
        """Tell whether the owner of a gateway loses its address to another cluster unless it proves itself."""
        return (
            bool(owner.address and owner.since)
            and not owner.proved
            and self.quorum(owner) is Quorum.NONE
            and any(self._challenges(other) for other in self.claimants if other.cluster_id != owner.cluster_id)
        )

    def _challenges(self, claimant: Claimant) -> bool:
        return (
            bool(claimant.address)
            and not claimant.since
            and claimant.encrypts
            and not claimant.has_tried
            and not any(owner.has_settled_with(claimant.cluster_id) for owner in self._owners)
            and self._is_provable
        )

    def standing(self, claimant: Claimant) -> ClaimStanding:
        """Return the standing of a claimant."""
        quorum = self.quorum(claimant)
        if quorum is Quorum.MAJORITY:
            return ClaimStanding.CONFIRMED
        if not claimant.since:
            if quorum is Quorum.SINGLE:
                return ClaimStanding.REPORTED
            return ClaimStanding.CHALLENGING if self._challenges(claimant) else ClaimStanding.REQUESTED
        if quorum is Quorum.SINGLE:
            return ClaimStanding.PROVED
        rivals = [other for other in self.claimants if other.cluster_id != claimant.cluster_id]
        yields = any(rival.address and rival.cluster_id in claimant.yields_to for rival in rivals)
        if yields or any(rival.has_settled_with(claimant.cluster_id) for rival in rivals):
            return ClaimStanding.LOST
        if claimant.proved:
            return ClaimStanding.PROVED
        began = claimant.challenged_at
        trial_is_over = began is not None and self.now - began >= TRIAL
        return ClaimStanding.UNPROVED if trial_is_over and self.is_on_trial(claimant) else ClaimStanding.GRANTED


def winner(dispute: Dispute) -> Claimant | None:
    """Return the claimant that has, or gets, the address; None if there is none."""

    def rank(claimant: Claimant) -> tuple[object, ...]:
        age = (not claimant.since, claimant.since, claimant.created, claimant.cluster_id, claimant.address)
        return (dispute.standing(claimant), -dispute.quorum(claimant), *age)

    return min(dispute.claimants, key=rank, default=None)


def reason(dispute: Dispute, loser: Claimant | None, owner: Claimant) -> str:
    """Return why a claim loses to the winner. `loser`: None for a CIDR that is not granted."""
    claimed = "it" if loser is not None and loser.address == owner.address else owner.claim
    if dispute.standing(owner) in (ClaimStanding.CONFIRMED, ClaimStanding.PROVED, ClaimStanding.REPORTED):
        return f"members report that the gateway of cluster {owner.cluster_id} answers at {owner.address}"
    if loser is not None and dispute.standing(loser) is ClaimStanding.UNPROVED:
        return f"no member reports an answer of this gateway, and cluster {owner.cluster_id} asks for {claimed}"
    if loser is not None and owner.has_settled_with(loser.cluster_id):
        return (
            f"cluster {owner.cluster_id} has had {claimed} since {owner.since}, because the owner before did not "
            "prove itself, and keeps it unless members report that another cluster answers there"
        )
    if owner.since:
        return f"cluster {owner.cluster_id} has had {claimed} since {owner.since}"
    is_younger = loser is not None and loser.created > owner.created
    return f"cluster {owner.cluster_id} asks for {claimed} too" + (
        ", and its export is older" if is_younger else ""
    )
