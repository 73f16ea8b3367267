"""This cluster's ResourceExports: their common fields, and the quota, which namespaces share max-min fairly. Pure.

The leader writes the number of exports of a kind that it accepts to its copy of this cluster's ClusterInfo.
Below that, each key has a place. At the limit, an export of a namespace with less than its share replaces the
youngest export of a namespace with more. Exports without a place are not counted as demand: each of them makes
this decision itself, so the places become max-min fair one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import with_finalizer
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.machinery.reconciler import Index, Leader, Ref, Side, View, Wanted
from mcagent.controller.member.membership import own_cluster_info
from mcagent.controller.settings import MemberSettings
from mcagent.core.shares import max_min_shares
from mcagent.model import objects
from mcagent.model.api.base import NO_TEXTS
from mcagent.model.api.multicluster import (
    ApiGateway,
    ResourceExport,
    ResourceExportSpec,
    WireGuard,
)
from mcagent.model.api.patches import metadata_patch, patch
from mcagent.model.objects import Kind
from mcagent.model.parsing.parse import parse_object


def export_ref(leader: Leader, name: str) -> Ref:
    """Return the reference to a ResourceExport on the leader."""
    return Ref(side=Side.LEADER, kind=Kind.RESOURCE_EXPORT, namespace=leader.namespace, name=name)


def is_export_of(export: ResourceExport, leader: Leader, namespace: str, name: str, kind: ExportKind) -> bool:
    """Tell whether a ResourceExport is this cluster's export, of this kind, of a Service."""
    spec = export.spec
    return (spec.cluster_id, spec.namespace, spec.name, spec.kind) == (leader.cluster_id, namespace, name, kind)


def resource_export(
    ref: Ref,
    spec: ResourceExportSpec,
    present: ResourceExport | None,
    annotations: Mapping[str, str | None] = NO_TEXTS,
) -> Wanted:
    """Return a ResourceExport with the labels that the leader's webhook requires, and the finalizer.

    `present`: the object as it is; its other finalizers stay.
    """
    labels = {names.LABEL_SOURCE_KIND: spec.kind, names.LABEL_SOURCE_CLUSTER_ID: spec.cluster_id}
    if spec.kind != ExportKind.CLUSTER_INFO:
        labels |= {names.LABEL_SOURCE_NAMESPACE: spec.namespace, names.LABEL_SOURCE_NAME: spec.name}
    finalizers = with_finalizer(present.metadata.finalizers if present is not None else ())
    metadata = metadata_patch(labels=labels, annotations=annotations, finalizers=finalizers)
    return Wanted(ref=ref, body=patch(ResourceExport, metadata=metadata, spec=spec))


def read_gateway(gateway: ApiGateway) -> objects.Gateway:
    """Return the checked value of a Gateway. Raises InputError."""
    value = parse_object(gateway).value
    assert isinstance(value, objects.Gateway)
    return value


def published(info: objects.WireGuardInfo | None) -> WireGuard | None:
    """Return the published fields of a gateway's WireGuard device; None if it has none."""
    if info is None:
        return None
    return WireGuard(
        public_key=info.public_key,
        next_public_key=info.next_public_key,
        port=info.port or None,
        devices=info.devices if info.devices > 1 else None,
    )


def published_settings(settings: MemberSettings) -> dict[str, str | None]:
    """Return the annotations for settings that must be equal in all clusters; None: not published."""
    return {
        names.ENDPOINT_IP_TYPE_ANNOTATION: str(settings.endpoint_ip_type),
        names.TUNNEL_TYPE_ANNOTATION: settings.tunnel_type or None,
        names.TUNNEL_PORT_ANNOTATION: str(settings.tunnel_port) if settings.tunnel_port else None,
    }


def _by_cluster(export: ResourceExport) -> Iterable[str]:
    return [export.spec.cluster_id]


BY_CLUSTER = Index("exports-by-cluster", ResourceExport, Side.LEADER, _by_cluster)  # under the cluster ID


# --- quota ------------------------------------------------------------------------------------------------

TOO_MANY_EXPORTS = "TooManyExports"  # reason of a ServiceExport's conditions
_OVER_QUOTA = "may export"  # in the leader's refusal, until the replaced export is deleted
RETRY = 60.0  # seconds after which the decision on an export without a place is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The decision on an export."""

    refusal: str = ""  # why it has no place; "": it has one
    replaced: ResourceExport | None = None  # the export whose place it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The quota of one kind of export."""

    kind: ExportKind
    what: str  # the kind, in messages
    namespace_of: Callable[[ResourceExport], str]  # of this cluster

    def place(self, view: View, leader: Leader, name: str, namespace: str) -> Place:
        """Return the decision on the export `name`, of `namespace`."""
        limit = max_exports(view, leader)
        ref = export_ref(leader, name)
        is_new = view.get(ref, ResourceExport) is None
        value = f"{leader.cluster_id}/{self.kind}"
        if limit is None or view.count(OWN_BY_KIND, value) + is_new <= limit:
            return Place()
        staying = (export for export in view.indexed(OWN_BY_KIND, value) if not export.is_deleting)
        exports = sorted(staying, key=lambda export: export.age)
        demands = Counter(map(self.namespace_of, exports))
        demands[namespace] += is_new
        shares = max_min_shares(demands, limit)
        places: Counter[str] = Counter()  # by namespace, those of older exports
        without_place: ResourceExport | None = None
        rank = None
        for export in exports:
            owner = self.namespace_of(export)
            if export.name == name:
                rank = places[owner]
            if places[owner] >= shares[owner]:
                without_place = export
            places[owner] += 1
        if (places[namespace] if rank is None else rank) >= shares[namespace]:
            return Place(refusal=self._refusal(leader, limit, namespace, shares[namespace]))
        if not is_new or len(exports) < limit:
            return Place()
        failure = view.failure(ref)
        if failure and _OVER_QUOTA not in failure:
            return Place(refusal=f"it takes no other export's place, because the leader refused it: {failure}")
        return Place(replaced=without_place)

    def _refusal(self, leader: Leader, limit: int, namespace: str, share: int) -> str:
        return (
            f"cluster {leader.cluster_id} may export {limit} {self.what}, and namespace {namespace} has a share "
            f"of {share}, whose oldest stay: members.maxExports of the leader, or annotation "
            f"{names.MAX_EXPORTS_ANNOTATION} of the cluster's ServiceAccount there, can allow more"
        )


def max_exports(view: View, leader: Leader) -> int | None:
    """Return the number of exports of a kind that the leader accepts; None: unknown (Antrea's leader)."""
    copy = own_cluster_info(view, leader)
    text = (copy.annotation(names.MAX_EXPORTS_ANNOTATION) if copy is not None else None) or ""
    return int(text) if names.is_export_limit(text) else None


def _by_kind(export: ResourceExport) -> Iterable[str]:
    return [f"{export.spec.cluster_id}/{export.spec.kind}"]


# Under "cluster ID/kind".
OWN_BY_KIND = Index("own-exports-by-kind", ResourceExport, Side.LEADER, _by_kind)
