"""Admission of a ClusterInfo by the claims that other clusters have been granted. Pure.

An early answer: these look-ups may be out of date, so `leader.ledger` decides later, by the same rules. A request
is refused if it adds only claims that cannot be granted. A request with other changes passes, and the ledger
leaves out the claims that are not granted, because a conflict must never prevent that a cluster publishes a new
gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcagent.controller.admission.decision import AdmissionDecision, Lookup, Operation, ReviewRequest, denied
from mcagent.controller.contract.cidr_claims import (
    CidrClaim,
    asked_for,
    claims_in,
    claims_of,
    collide,
    filed_under,
    in_network,
    place,
    without,
)
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.leader.claims import granted_in
from mcagent.controller.leader.eligibility import NODE_NETWORK, allowed_ranges, refusals
from mcagent.controller.leader.exports.bounds import bounds_of_accounts, cluster_id_of, defaults_of
from mcagent.controller.leader.exports.payloads import read_cluster_info
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.errors import InputError

_SHOWN = 8  # claims that are named in a message


def refuse_claims(
    request: ReviewRequest, old: ResourceExport, new: ResourceExport, cluster: str, lookup: Lookup
) -> AdmissionDecision | None:
    """Return the refusal of a ClusterInfo with new claims to what its member may not have, or others have."""
    if new.spec.kind != ExportKind.CLUSTER_INFO:
        return None
    before = set(claims_in(old))
    new_claims = [claim for claim in claims_in(new) if claim not in before]
    if not new_claims:
        return None
    accounts = (a for a in lookup.service_accounts(request.namespace) if cluster_id_of(a) == cluster)
    bounds = bounds_of_accounts(accounts, defaults_of(lookup.limits))
    texts = {claim.text for claim in new_claims}
    reasons = refusals(claims_in(new), cluster, bounds, allowed_ranges(lookup.limits))
    refused = {text: reason for text, reason in reasons.items() if text in texts}
    unrefused = [claim for claim in new_claims if claim.text not in refused]
    conflicts = _conflicts(request.namespace, cluster, unrefused, lookup)
    refused |= conflicts
    if not refused or _brings_more(request, old, new, refused):
        return None
    return denied("; ".join(list(refused.values())[:_SHOWN]), code=409 if conflicts else 403)


def _brings_more(
    request: ReviewRequest, old: ResourceExport, new: ResourceExport, refused: Mapping[str, str]
) -> bool:
    """Tell whether a request changes anything but by what is refused; one that cannot be read does."""
    try:
        rightful = without(read_cluster_info(new), refused)
        if request.operation is Operation.CREATE:
            return bool(claims_of(rightful))
        return rightful != read_cluster_info(old)
    except InputError:
        return True


def _conflicts(area: str, cluster: str, claims: Sequence[CidrClaim], lookup: Lookup) -> dict[str, str]:
    """Return, by the text of a claim that another cluster has been granted, a sentence with that cluster.

    A gateway may be claimed although another gateway, or a small CIDR, collides with it: the ledger grants its
    address to the cluster that answers there.
    """
    values = {value for claim in claims for value in asked_for(claim)}
    conflicts: dict[str, str] = {}
    for grants in lookup.granted(area, [place(area, value) for value in sorted(values)]):
        holder = grants.cluster_id
        for granted, since in granted_in(grants).items() if holder != cluster else ():
            if values.isdisjoint(filed_under(granted)):
                continue
            is_contest = granted.gateway or in_network(granted, NODE_NETWORK) is not None
            for claim in claims:
                if claim.text not in conflicts and collide(claim, granted) and not (claim.gateway and is_contest):
                    conflicts[claim.text] = (
                        f"{claim} is not granted: cluster {holder} has had {granted} since {since}"
                    )
        if len(conflicts) == len(claims):
            break
    return conflicts
