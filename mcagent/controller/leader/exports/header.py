"""The checked header of a ResourceExport, the membership of its cluster, and the indexes over exports. Pure.

Other clusters write ResourceExports, so no field is trusted; only InputError is raised, whatever the value. A
cluster is a member of a Common Area if it has announced itself and is not leaving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.names import SERVICE_KINDS, ExportKind
from mcagent.controller.contract.ranges import block_of
from mcagent.controller.machinery.reconciler import Index, ObjectChange, Ref, Side, View
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import MemberClusterAnnounce, ResourceExport
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import Field, printable
from mcagent.model.parsing.labels import label_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The cluster that exports, and what it exports."""

    area: str  # the Common Area: the namespace on the leader
    export: str  # the object's own name
    kind: ExportKind
    cluster_id: str
    namespace: str  # of the exported Service
    name: str
    created: str  # RFC 3339 in UTC to the second: such texts sort by time
    deleting: bool

    @property
    def order(self) -> tuple[str, str]:
        """Return the sort key of the exports of one Service, of which the first defines it: time, cluster ID."""
        return (self.created, self.cluster_id)

    @property
    def target(self) -> str:
        """Return "namespace/name" of what is exported."""
        return f"{self.namespace}/{self.name}"


def label_of(export: ResourceExport) -> str:
    """Return the label identity of an export, unchecked; "" if it has none."""
    return export.spec.label_identity.normalized_label


def derived_name(export: ResourceExport) -> str:
    """Return the name that follows from the spec of an export of an ExportKind."""
    spec = export.spec
    match spec.kind:
        case ExportKind.SERVICE:
            return names.service_export(spec.cluster_id, spec.namespace, spec.name)
        case ExportKind.ENDPOINTS:
            return names.endpoints_export(spec.cluster_id, spec.namespace, spec.name)
        case ExportKind.CLUSTER_INFO:
            return names.cluster_info(spec.cluster_id)
    return names.label_export(spec.cluster_id, label_hash(label_of(export)))


def read_header(export: ResourceExport) -> Header:
    """Return the header of an export.

    Raises InputError if a name is invalid, or if the object's name does not follow from its spec: two exports of
    a cluster could name one Service then.
    """
    export.check("metadata")
    for name in ("kind", "clusterID", "namespace", "name", "labelIdentity"):
        export.check(f"spec.{name}")
    spec = export.spec
    if spec.kind not in ExportKind.__members__.values():
        raise _error(export, "spec.kind", f'not a kind that is merged: "{printable(spec.kind)}"')
    _check_name(export, "spec.clusterID", spec.cluster_id, names.is_subdomain, "DNS-1123 subdomain")
    if spec.kind in SERVICE_KINDS:
        _check_name(export, "spec.namespace", spec.namespace, names.is_label, "DNS-1123 label")
        _check_name(export, "spec.name", spec.name, names.is_label, "DNS-1123 label")
    if export.name != (derived := derived_name(export)):
        raise _error(export, "metadata.name", f"must be {derived}, which follows from its spec")
    created = Field(export.subject, export.metadata.creation_timestamp or None, "metadata.creationTimestamp")
    return Header(
        area=export.namespace,
        export=export.name,
        kind=ExportKind(spec.kind),
        cluster_id=spec.cluster_id,
        namespace=spec.namespace,
        name=spec.name,
        created=created.timestamp(),
        deleting=export.is_deleting,
    )


def _error(export: ResourceExport, path: str, reason: str, code: str = "InvalidValue") -> InputError:
    return InputError(export.subject, path, reason, code=code)


def _check_name(export: ResourceExport, path: str, text: str, is_valid: Callable[[str], bool], what: str) -> None:
    if not text:
        raise _error(export, path, "is missing", "Missing")
    if not is_valid(text):
        raise _error(export, path, f'must be a {what}: "{printable(text)}"', "InvalidName")


# --- indexes over the exports, shared by the reconcilers -------------------------------------------------


def _by_cluster(export: ResourceExport) -> Iterable[str]:
    return [by_cluster(export.namespace, export.spec.cluster_id)]


def _by_import(export: ResourceExport) -> Iterable[str]:
    spec = export.spec
    return [f"{export.namespace}/{spec.namespace}-{spec.name}"] if spec.kind in SERVICE_KINDS else []


def _by_target(export: ResourceExport) -> Iterable[str]:
    return [target_key(export)] if export.spec.kind in SERVICE_KINDS else []


def _by_kind(export: ResourceExport) -> Iterable[str]:
    return [by_kind(export.namespace, export.spec.cluster_id, export.spec.kind)]


def _by_namespace(export: ResourceExport) -> Iterable[str]:
    return [f"{export.namespace}/{export.spec.namespace}"] if export.spec.kind in SERVICE_KINDS else []


def _by_block(export: ResourceExport) -> Iterable[str]:
    endpoints = export.spec.endpoints
    if endpoints is None or export.spec.kind != ExportKind.ENDPOINTS:
        return []
    return {f"{export.namespace}/{block_of(a.ip)}" for subset in endpoints.subsets for a in subset.addresses}


def _cluster_infos(export: ResourceExport) -> Iterable[str]:
    return [export.namespace] if export.spec.kind == ExportKind.CLUSTER_INFO else []


def _by_label(export: ResourceExport) -> Iterable[str]:
    if export.spec.kind != ExportKind.LABEL_IDENTITY:
        return []
    return [f"{export.namespace}/{label_hash(label_of(export))}"]


def by_cluster(area: str, cluster_id: str) -> str:
    """Return the value of BY_CLUSTER for a cluster."""
    return f"{area}/{cluster_id}"


def target_key(export: ResourceExport) -> str:
    """Return "area/namespace/name" of the Service in an export's spec; "area//export" if it has no valid one."""
    namespace, name = export.spec.namespace, export.spec.name
    if names.is_label(namespace) and names.is_label(name):
        return f"{export.namespace}/{namespace}/{name}"
    return f"{export.namespace}//{export.name}"


def by_kind(area: str, cluster_id: str, kind: str) -> str:
    """Return the value of BY_KIND for a cluster and a kind."""
    return f"{area}/{cluster_id}/{kind}"


# Under by_cluster(area, cluster ID).
BY_CLUSTER = Index("exports-by-cluster", ResourceExport, Side.LOCAL, _by_cluster)
# Service and Endpoints exports, under "area/namespace-name": what their ResourceImports' names begin with.
BY_IMPORT = Index("exports-by-import", ResourceExport, Side.LOCAL, _by_import)
# Service and Endpoints exports, under target_key(export).
BY_TARGET = Index("exports-by-target", ResourceExport, Side.LOCAL, _by_target)
BY_KIND = Index("exports-by-kind", ResourceExport, Side.LOCAL, _by_kind)  # under by_kind(area, cluster ID, kind)
# Service and Endpoints exports, under "area/namespace" of the Service.
BY_NAMESPACE = Index("exports-by-namespace", ResourceExport, Side.LOCAL, _by_namespace)
# Endpoints exports, under "area/10.96": the first two numbers of their addresses.
BY_BLOCK = Index("exports-by-block", ResourceExport, Side.LOCAL, _by_block)
# ClusterInfo exports, under the area.
CLUSTER_INFOS = Index("exports-of-cluster-info", ResourceExport, Side.LOCAL, _cluster_infos)
# LabelIdentity exports, under "area/hash" of the label, whatever their names.
BY_LABEL = Index("exports-by-label", ResourceExport, Side.LOCAL, _by_label)


# --- membership -----------------------------------------------------------------------------------------------


def announce_ref(area: str, cluster_id: str) -> Ref:
    """Return the name of a member's MemberClusterAnnounce."""
    return Ref(kind=Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=area, name=names.announce(cluster_id))


def is_member(view: View, area: str, cluster_id: str) -> bool:
    """Tell whether a cluster is a member, so that the leader merges its exports."""
    announce = view.get(announce_ref(area, cluster_id), MemberClusterAnnounce)
    return announce is not None and announces(announce) and announce.cluster_id == cluster_id


def not_a_member(cluster_id: str) -> str:
    """Return the message for exports of a cluster that is not a member."""
    return f"cluster {cluster_id} has not announced itself to this leader, or is leaving"


def announces(obj: ApiObject | None) -> bool:
    """Tell whether a MemberClusterAnnounce announces a member; False if it is being deleted, or None."""
    if not isinstance(obj, MemberClusterAnnounce):
        return False
    return not obj.is_deleting and obj.name == names.announce(obj.cluster_id)


def changed_members(change: ObjectChange) -> set[str]:
    """Return the IDs of clusters that join or leave by a change of a MemberClusterAnnounce."""
    if announces(change.old) == announces(change.new):
        return set()
    return {announce.cluster_id for announce in change.of(MemberClusterAnnounce) if announce is not None}


def heartbeat(announce: MemberClusterAnnounce) -> str:
    """Return the text that changes with each heartbeat: the member's time, before the first its creation time.

    It is compared only with its earlier values, because the member's clock may be wrong.
    """
    return announce.annotation(names.HEARTBEAT_ANNOTATION) or announce.metadata.creation_timestamp
