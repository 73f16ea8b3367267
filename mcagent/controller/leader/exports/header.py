"""Whose a ResourceExport is and of what, checked: other clusters write these, so nothing in them is trusted.

Pure. Raises only InputError, whatever the value. The reconcilers decide which
cluster may export what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.names import SERVICE_KINDS, ExportKind
from mcagent.controller.contract.ranges import block_of
from mcagent.controller.machinery.reconciler import Index, Side
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.errors import InputError
from mcagent.model.parsing.field import Field, printable
from mcagent.model.parsing.labels import label_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Whose export it is and of what. `order` sorts exports of one thing: who came first defines it."""

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
        """Return the sort key: creation time, then cluster ID."""
        return (self.created, self.cluster_id)

    @property
    def target(self) -> str:
        """Return "namespace/name" of what is exported."""
        return f"{self.namespace}/{self.name}"


def label_of(export: ResourceExport) -> str:
    """Return the label identity that an export is about, unchecked; "" when it has none."""
    return export.spec.label_identity.normalized_label


def derived_name(export: ResourceExport) -> str:
    """Return the name that an export of a kind that is merged must have."""
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
    """Return whose export it is and of what.

    Raises InputError when the names are none, or when the object's own name is not the one that follows from
    them: two exports could stand for one thing then, and nobody could say which.
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


def _check_name(export: ResourceExport, path: str, text: str, good: Callable[[str], bool], what: str) -> None:
    if not text:
        raise _error(export, path, "is missing", "Missing")
    if not good(text):
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
    """Return the value under which BY_CLUSTER files a cluster's exports."""
    return f"{area}/{cluster_id}"


def target_key(export: ResourceExport) -> str:
    """Return the Service that an export names, as "area/namespace/name"; "area//export" if it names none."""
    namespace, name = export.spec.namespace, export.spec.name
    if names.is_label(namespace) and names.is_label(name):
        return f"{export.namespace}/{namespace}/{name}"
    return f"{export.namespace}//{export.name}"


def by_kind(area: str, cluster_id: str, kind: str) -> str:
    """Return the value under which BY_KIND files a cluster's exports of a kind."""
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
