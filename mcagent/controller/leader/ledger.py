"""The ledger: the only decision on which cluster owns a CIDR, a gateway address or a WireGuard key. Pure.

ResourceImports of kind ClusterInfo hold the granted claims, and their annotation the time of each grant; members
can only read them. A granted claim precedes a requested one. Of two granted claims (granted by two workers or
two leaders at the same time) the older grant stands; of two requested ones, that of the older export. So the
first claim stands, in whatever order clusters are reconciled. A claim is ignored if it is withdrawn, its cluster
is not a member, or its export is being deleted. A claim that can never be granted blocks no other cluster.

What collides with a gateway is one contest (`contests`), and who answers there wins it. A cluster that loses a
claim keeps it until the winner has it, so that it has an owner meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mcagent.controller.contract.cidr_claims import CLAIMED, CidrClaim, asked_for, colliding, filed_under
from mcagent.controller.leader.claims import ClaimsByCluster, ClusterClaims, claims_of_member
from mcagent.controller.leader.contests import Contests, GatewayRecords, Loss, loss_to
from mcagent.controller.leader.eligibility import Eligibility, rivals
from mcagent.controller.machinery.reconciler import View
from mcagent.controller.settings import MemberLimits
from mcagent.core.addresses.ownership import AddressClaim, losing_claims
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.parsing.granted import REFUSED, at, to_microseconds

_SOON = 1.0  # seconds until a claim is decided again that another cluster is about to get


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsDecision:
    """The decision on the claims of a cluster, by the text of each claim."""

    times: Mapping[str, str]  # the time of the grant, or REFUSED
    refused: Mapping[str, str]  # a message for each refused claim
    records: GatewayRecords
    again: float | None  # seconds after which the decision may be another one; None: only after a change


class Ledger:
    """Decides on claims by the objects of a view. `limits` has the CIDRs that members may claim."""

    def __init__(self, limits: MemberLimits) -> None:
        self._limits = limits

    def decide(self, view: View, export: ResourceExport, now: float) -> ClaimsDecision:
        """Return the decision on the claims of a member's valid ClusterInfo export."""
        own = claims_of_member(view, export.namespace, export.spec.cluster_id, export)
        clusters = ClaimsByCluster(view, export.namespace, own)
        eligibility = Eligibility(clusters, self._limits, now)
        contests = Contests(clusters, eligibility, now)
        claims = [*own.granted, *own.requested]
        refused = dict(eligibility.refused(own))
        allowed = [claim for claim in claims if claim.text not in refused]
        other_clusters = [cluster for cluster in rivals(clusters, *allowed) if cluster is not own]
        losses = (
            {c: loss for c in allowed if (loss := contests.loss(own, c)) is not None} if other_clusters else {}
        )
        losses |= _lost_cidrs(
            eligibility, own, [claim for claim in allowed if claim not in losses], other_clusters
        )
        for claim, loss in losses.items():
            if claim not in own.granted or loss.is_final:
                refused[claim.text] = f"{claim} is not granted: {loss.why}"
        fresh = to_microseconds(at(datetime.fromtimestamp(now, UTC)))
        gateways = [claim for claim in claims if claim.gateway and claim.text not in refused]
        return ClaimsDecision(
            times={c.text: REFUSED if c.text in refused else own.granted.get(c) or fresh for c in claims},
            refused=refused,
            records=contests.records(own, gateways, fresh, contested=bool(other_clusters)),
            again=contests.again if all(loss.is_final for loss in losses.values()) else _SOON,
        )


def _lost_cidrs(
    eligibility: Eligibility,
    own: ClusterClaims,
    claims: Sequence[CidrClaim],
    other_clusters: Sequence[ClusterClaims],
) -> dict[CidrClaim, Loss]:
    """Return the losses of a cluster's CIDRs to those of other clusters: older grants, else older exports."""
    cidrs = [claim for claim in claims if claim.range is not None and not claim.gateway]
    values = {value for claim in cidrs for value in asked_for(claim)}
    rows = [(own, claim) for claim in cidrs]
    for cluster in other_clusters:
        collisions = [c for c in (*cluster.granted, *cluster.requested) if not values.isdisjoint(filed_under(c))]
        rows += [(cluster, c) for c in collisions if not c.gateway and eligibility.is_open(cluster, c)]
    by_address = {_address_claim(cluster, claim): (cluster, claim) for cluster, claim in rows}
    return {
        by_address[loser][1]: loss_to(*by_address[first], by_address[loser][1])
        for loser, first in losing_claims(by_address).items()
        if loser.owner == own.cluster_id
    }


def _address_claim(cluster: ClusterClaims, claim: CidrClaim) -> AddressClaim:
    assert claim.range is not None
    rank = (str(int(claim not in cluster.granted)), cluster.granted.get(claim, ""), cluster.created)
    return AddressClaim(owner=cluster.cluster_id, range=claim.range, gateway=False, rank=rank)


def touched(view: View, area: str, changed: Iterable[CidrClaim]) -> list[str]:
    """Return the names of the exports whose claims collide with these claims."""
    return [export.name for export in colliding(changed, area, lambda value: view.indexed(CLAIMED, value))]
