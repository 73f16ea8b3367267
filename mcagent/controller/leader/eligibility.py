"""Which claims a cluster may have but for its rivals: by bounds, ranges, keys and networks of Nodes. Pure.

`refusals` needs the claims of one cluster only, so admission applies it, too. A claim that is refused here blocks
no other cluster. Knows no contests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import (
    CLAIMED,
    GRANTED,
    CidrClaim,
    claims_in,
    collide,
    colliding,
    in_network,
    place,
)
from mcagent.controller.leader.assigned_ranges import own_ranges, range_refusals
from mcagent.controller.leader.claims import ClaimsByCluster, ClusterClaims, granted_in
from mcagent.controller.leader.exports.bounds import Bounds, bounds_of, defaults_of
from mcagent.controller.settings import MemberLimits
from mcagent.model.net import Network, contains, host_network, parse_address, parse_network

PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")  # RFC 1918, RFC 6598
NODE_NETWORK = 24  # length of the prefix around a gateway that counts as a network of its cluster's Nodes


class Eligibility:
    """The claims that clusters may have by the objects of a view. `limits`: what members may claim."""

    def __init__(self, clusters: ClaimsByCluster, limits: MemberLimits, now: float) -> None:
        self._clusters, self._limits, self._now = clusters, limits, now
        self._view, self._area = clusters.view, clusters.area
        self._refused: dict[str, Mapping[str, str]] = {}
        self._bounds: dict[str, Bounds] = {}

    def refused(self, cluster: ClusterClaims) -> Mapping[str, str]:
        """Return the claims that a cluster may not have: the reasons, by their text."""
        if cluster.cluster_id not in self._refused:
            self._refused[cluster.cluster_id] = self._refuse(cluster)
        return self._refused[cluster.cluster_id]

    def _refuse(self, cluster: ClusterClaims) -> dict[str, str]:
        claims = [*cluster.granted, *cluster.requested]
        bounds, limits = self.bounds_of(cluster), self._limits
        if limits.export_cidrs or limits.pod_export_cidrs:
            own = own_ranges(self._view, self._area, cluster.cluster_id)
            refused = range_refusals(self._view, self._area, cluster.cluster_id, claims, cluster.granted)
            claims = [claim for claim in claims if claim.gateway or claim.text not in own]
        else:
            refused = {}
        refused |= refusals(claims, cluster.cluster_id, bounds, allowed_ranges(limits))
        owners = {key: self.owner_of_key(key).cluster_id for key in set(cluster.keys.values())}
        for claim in claims:
            owner = owners.get(cluster.keys.get(claim.text, ""), "") if claim.gateway else ""
            if owner and owner != cluster.cluster_id:
                refused.setdefault(
                    claim.text, f"{claim} is not granted: its WireGuard key is that of cluster {owner}"
                )
            for holder, gateway in self.neighbours(cluster, claim).items() if claim in cluster.requested else ():
                refused.setdefault(claim.text, _in_node_network(claim, cluster.cluster_id, holder, gateway))
        return refused

    def owner_of_key(self, key: str) -> ClusterClaims:
        """Return the owner of a WireGuard key that a cluster claims: the oldest grant, else the oldest export."""
        claim = CidrClaim(key, None)
        claimants = [c for c in rivals(self._clusters, claim) if claim in c.granted or claim in c.requested]
        return min(
            claimants or [ClusterClaims(cluster_id="", created="", granted={}, requested=())],
            key=lambda c: (claim not in c.granted, c.granted.get(claim, ""), c.created, c.cluster_id),
        )

    def neighbours(self, cluster: ClusterClaims, claim: CidrClaim) -> dict[str, CidrClaim]:
        """Return the gateways, by cluster ID, in whose networks of Nodes a small CIDR of another cluster lies.

        An administrator who names CIDRs of the member allows that. Gateways younger than the grant of the CIDR do
        not count. None does if the CIDR holds a gateway of its cluster that has proved itself: there Pods have
        addresses of a network of the cluster's own Nodes.
        """
        network = None if claim.gateway else in_network(claim, NODE_NETWORK)
        if network is None or self.bounds_of(cluster).cidrs is not None:
            return {}
        if any(
            gateway.gateway and collide(claim, gateway) and cluster.has_proved(gateway.text, self._now)
            for gateway in cluster.granted
        ):
            return {}
        since = cluster.granted.get(claim)
        records = self._view.indexed(GRANTED, place(self._area, network))
        exports = self._view.indexed(CLAIMED, place(self._area, network)) if since is None else ()
        # A ResourceImport has gateways, too, that were withdrawn a moment ago.
        times = {record.cluster_id: granted_in(record) for record in records}
        requested = {export.spec.cluster_id: dict.fromkeys(claims_in(export), "") for export in exports}
        return {
            cluster_id: gateway
            for cluster_id, granted in (*requested.items(), *times.items())
            for gateway, time in granted.items()
            if cluster_id != cluster.cluster_id and gateway.gateway
            if in_network(gateway, NODE_NETWORK) == network and (since is None or time < since)
        }

    def is_open(self, cluster: ClusterClaims, claim: CidrClaim) -> bool:
        """Tell whether a CIDR is granted, or can be, because no grant of another cluster is in its way."""
        return claim in cluster.granted or (
            claim.text not in self.refused(cluster)
            and not any(
                holder is not cluster and collide(claim, granted)
                for holder in rivals(self._clusters, claim)
                for granted in holder.granted
            )
        )

    def bounds_of(self, cluster: ClusterClaims) -> Bounds:
        """Return what an administrator allows a cluster."""
        if cluster.cluster_id not in self._bounds:
            bounds = bounds_of(self._view, self._area, cluster.cluster_id, defaults_of(self._limits))
            self._bounds[cluster.cluster_id] = bounds
        return self._bounds[cluster.cluster_id]


def rivals(clusters: ClaimsByCluster, *claims: CidrClaim) -> list[ClusterClaims]:
    """Return the clusters with a claim that equals one of these claims, or collides with it, by cluster ID."""
    exports = colliding(claims, clusters.area, lambda value: clusters.view.indexed(CLAIMED, value))
    imports = colliding(claims, clusters.area, lambda value: clusters.view.indexed(GRANTED, value))
    cluster_ids = {export.spec.cluster_id for export in exports} | {record.cluster_id for record in imports}
    return [clusters.of(cluster_id) for cluster_id in sorted(cluster_ids)]


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


def _in_node_network(claim: CidrClaim, cluster_id: str, holder: str, gateway: CidrClaim) -> str:
    network = parse_network(f"{gateway.text}/{NODE_NETWORK}")[0]
    return (
        f"{claim} is not granted: {network} holds {gateway} of cluster {holder}. A smaller CIDR in it needs "
        f"annotation {names.ALLOWED_CIDRS_ANNOTATION} of cluster {cluster_id}'s ServiceAccount on the leader, or "
        f"members.allowedCIDRs: a list that holds {claim.text}"
    )
