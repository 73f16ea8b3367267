"""The claims of a cluster: requested, granted and since when, and what is recorded of its gateways. Pure.

Grants are read from the leader's own ResourceImports, never from what a member writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CidrClaim, claims_in, claims_of
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.leader.disputes import ANY_CLUSTER, PROOF_LIFE
from mcagent.controller.leader.exports.header import is_member, read_header
from mcagent.controller.leader.exports.payloads import read_cluster_info
from mcagent.controller.machinery.reconciler import Ref, View
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ClusterInfo, ResourceExport, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.document import decode
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, read_granted, to_microseconds

_MAX_SETTLED = 32  # clusters that are recorded for one gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClaims:
    """The current claims of one cluster."""

    cluster_id: str
    created: str  # the export's creation time
    granted: Mapping[CidrClaim, str]  # with the time of the grant
    requested: Sequence[CidrClaim]  # and not granted
    # By the address of a granted gateway: since when no quorum confirms it ("": one does), or it is on trial.
    proved: Mapping[str, str] = field(default_factory=dict)
    challenged: Mapping[str, str] = field(default_factory=dict)
    # By the address of a gateway, granted or not: the clusters that lost it to this one, or ANY_CLUSTER.
    settled: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # WireGuard keys that gateways use now, by their addresses
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def encrypts(self) -> bool:
        """Whether its gateways have WireGuard keys."""
        return bool(self.keys)

    def has_proved(self, address: str, now: float) -> bool:
        """Tell whether members report, or have reported within `PROOF_LIFE`, that a granted gateway answers."""
        ended = self.proved.get(address)
        return ended is not None and now - (time_of(ended) or now) < PROOF_LIFE


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
        proved=times_in(record, names.PROVED_ANNOTATION),
        challenged=times_in(record, names.CHALLENGED_ANNOTATION),
        settled=settled_in(record),
        keys=keys_of(export.spec.cluster_info),
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


def keys_of(info: ClusterInfo | None) -> dict[str, str]:
    """Return the current WireGuard keys of gateways, by their addresses; those without a key are left out."""
    if info is None:
        return {}
    keys = {gateway.gateway_ip: gateway.wireguard or info.wireguard for gateway in info.gateway_infos}
    return {address: key.public_key for address, key in keys.items() if key is not None and key.public_key}


def times_in(record: ResourceImport | None, annotation: str) -> dict[str, str]:
    """Return the times in an annotation by the address of a gateway: "192.0.2.1=2026-11-29T12:00:00Z,192.0.2.2".

    Early versions wrote no times. An entry without one, or with an invalid one, has "".
    """
    text = record.annotation(annotation) if record is not None else None
    rows = (entry.partition("=") for entry in (text or "").split(","))
    return {address: time if time_of(time) is not None else "" for address, _, time in rows if address}


def times_text(times: Mapping[str, str]) -> str | None:
    """Return the value of such an annotation; None (no annotation) if there are no entries."""
    return ",".join(f"{address}={time}" if time else address for address, time in sorted(times.items())) or None


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
