"""The claims of a cluster: requested, granted and since when, and the gateways that are proved or settled. Pure.

Grants are read from the leader's own ResourceImports, never from what a member writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CidrClaim, claims_in, claims_of
from mcagent.controller.leader.exports.header import is_member, read_header
from mcagent.controller.leader.exports.payloads import read_cluster_info
from mcagent.controller.machinery.reconciler import Ref, View
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ResourceExport, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.document import decode
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, read_granted, to_microseconds

ANY_CLUSTER = "*"  # in place of more than `_MAX_SETTLED` clusters
_MAX_SETTLED = 32  # clusters that are recorded for one gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClaims:
    """The current claims of one cluster."""

    cluster_id: str
    created: str  # the export's creation time
    granted: Mapping[CidrClaim, str]  # with the time of the grant
    requested: Sequence[CidrClaim]  # and not granted
    proved: frozenset[str] = frozenset()  # addresses of granted gateways
    encrypts: bool = False  # publishes a WireGuard key
    # By the address of a granted gateway: the clusters that lost a contest for it, or ANY_CLUSTER.
    settled: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def has_settled_with(self, cluster_id: str, address: str) -> bool:
        """Tell whether another cluster has lost a contest for the address of a gateway to this one."""
        return not self.settled.get(address, frozenset()).isdisjoint((cluster_id, ANY_CLUSTER))


def claims_of_cluster(view: View, area: str, cluster_id: str) -> ClusterClaims:
    """Return the claims of a cluster; none if it is not a member, or its export is missing or being deleted."""
    ref = Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=names.cluster_info(cluster_id))
    export = view.get(ref, ResourceExport)
    if export is None or export.is_deleting or not is_member(view, area, cluster_id):
        return ClusterClaims(cluster_id=cluster_id, created="", granted={}, requested=())
    return claims_of_member(view, area, cluster_id, export)


def claims_of_member(view: View, area: str, cluster_id: str, export: ResourceExport) -> ClusterClaims:
    """Return the claims of a member. An invalid export keeps the granted claims of its last valid one."""
    ref = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.cluster_info(cluster_id))
    record = view.get(ref, ResourceImport)
    granted = granted_in(record)
    claims = read_claims(export)
    if claims is not None:
        granted = {claim: granted[claim] for claim in claims if claim in granted}
    return ClusterClaims(
        cluster_id=cluster_id,
        created=export.metadata.creation_timestamp,
        granted=granted,
        requested=[claim for claim in claims or () if claim not in granted],
        proved=proved_in(record),
        encrypts=publishes_key(export),
        settled=settled_in(record),
    )


class ClaimsByCluster:
    """The claims of the clusters of one decision, each cluster read once; those of `own` have been read."""

    def __init__(self, view: View, area: str, *own: ClusterClaims) -> None:
        self.view, self.area = view, area
        self._claims = {claims.cluster_id: claims for claims in own}

    def of(self, cluster_id: str) -> ClusterClaims:
        """Return the claims of a cluster."""
        if cluster_id not in self._claims:
            self._claims[cluster_id] = claims_of_cluster(self.view, self.area, cluster_id)
        return self._claims[cluster_id]


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


def proved_in(record: ResourceImport | None) -> frozenset[str]:
    """Return the addresses of granted gateways at which members have reported the answers of the cluster."""
    text = record.annotation(names.PROVED_ANNOTATION) if record is not None else None
    return frozenset((text or "").split(",")) - {""}


def settled_in(record: ResourceImport | None) -> dict[str, frozenset[str]]:
    """Return the clusters that lost a contest for a gateway, by its address; invalid entries are left out."""
    text = record.annotation(names.SETTLED_ANNOTATION) if record is not None else None
    if not text:
        return {}
    try:
        settled = decode(text)
    except ValueError:
        return {}
    rows = settled.items() if isinstance(settled, dict) else ()
    return {address: frozenset(map(str, ids)) for address, ids in rows if isinstance(ids, list)}


def settled_text(settled: Mapping[str, Iterable[str]]) -> str | None:
    """Return the value of SETTLED_ANNOTATION: the same for equal clusters; None (no annotation) if none lost."""
    lists = {address: sorted(clusters) for address, clusters in settled.items()}
    shown = {address: ids if len(ids) <= _MAX_SETTLED else [ANY_CLUSTER] for address, ids in lists.items() if ids}
    return json.dumps(shown, sort_keys=True, separators=(",", ":")) if shown else None


def publishes_key(export: ResourceExport) -> bool:
    """Tell whether a cluster publishes a WireGuard key: its gateways encrypt."""
    info = export.spec.cluster_info
    if info is None:
        return False
    keys = [info.wireguard, *(gateway.wireguard for gateway in info.gateway_infos)]
    return any(key is not None and key.public_key for key in keys)
