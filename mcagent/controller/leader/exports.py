"""Whose a ResourceExport is and of what, checked: other clusters write these, so nothing in them is trusted.

Pure: raw objects to frozen values. Raises only InputError, whatever the value. The reconcilers decide which
cluster may export what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.names import SERVICE_KINDS, ExportKind
from mcagent.controller.contract.ranges import block_of
from mcagent.controller.contract.raw import is_deleting, items_at, key_of, name_of, namespace_of, text_at
from mcagent.controller.machinery.reconciler import Index, Side
from mcagent.kube.source import RawObject
from mcagent.model.field import Field, printable
from mcagent.model.labels import label_hash
from mcagent.model.objects import Kind


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


def cluster_of(raw: RawObject) -> str:
    """Return the cluster ID that an export names, whatever it is."""
    return text_at(raw, "spec", "clusterID")


def label_of(raw: RawObject | None) -> str:
    """Return the label identity that an export is about, unchecked; "" when it has none."""
    return text_at(raw, "spec", "labelIdentity", "normalizedLabel")


def subject(raw: RawObject) -> Field:
    """Return an export as a Field, named for messages."""
    name = key_of(raw)
    return Field(f"{Kind.RESOURCE_EXPORT} {name}", raw)


def read_header(raw: RawObject) -> Header:
    """Return whose export it is and of what.

    Raises InputError when the names are none, or when the object's own name is not the one that follows from
    them: two exports could stand for one thing then, and nobody could say which.
    """
    field = subject(raw)
    spec = field.get("spec")
    kind = spec.get("kind").text()
    if kind not in ExportKind.__members__.values():
        raise spec.get("kind").error(f'not a kind that is merged: "{printable(kind)}"')
    cluster_id = _dns(spec.get("clusterID"), names.is_subdomain, "DNS-1123 subdomain")
    if kind in SERVICE_KINDS:
        namespace = _dns(spec.get("namespace"), names.is_label, "DNS-1123 label")
        name = _dns(spec.get("name"), names.is_label, "DNS-1123 label")
    else:
        namespace, name = spec.get("namespace").text(""), spec.get("name").text("")
    export = name_of(raw)
    derived = names.cluster_info(cluster_id)
    if kind == ExportKind.LABEL_IDENTITY:
        derived = names.label_export(cluster_id, label_hash(label_of(raw)))
    if kind in SERVICE_KINDS:
        named = names.service_export if kind == ExportKind.SERVICE else names.endpoints_export
        derived = named(cluster_id, namespace, name)
    if export != derived:
        raise field.get("metadata").get("name").error(f"must be {derived}, which follows from its spec")
    return Header(
        area=namespace_of(raw),
        export=export,
        kind=ExportKind(kind),
        cluster_id=cluster_id,
        namespace=namespace,
        name=name,
        created=field.get("metadata").get("creationTimestamp").timestamp(),
        deleting=is_deleting(raw),
    )


def _dns(field: Field, good: Callable[[str], bool], what: str) -> str:
    text = field.text()
    if not good(text):
        raise field.error(f'must be a {what}: "{printable(text)}"', "InvalidName")
    return text


# --- indexes over the exports, shared by the reconcilers -------------------------------------------------


def _by_cluster(obj: RawObject) -> Iterable[str]:
    return [by_cluster(namespace_of(obj), cluster_of(obj))]


def _by_import(obj: RawObject) -> Iterable[str]:
    if text_at(obj, "spec", "kind") not in SERVICE_KINDS:
        return []
    name = f"{text_at(obj, 'spec', 'namespace')}-{text_at(obj, 'spec', 'name')}"
    return [f"{namespace_of(obj)}/{name}"]


def _by_target(obj: RawObject) -> Iterable[str]:
    return [target_key(obj)] if text_at(obj, "spec", "kind") in SERVICE_KINDS else []


def _by_kind(obj: RawObject) -> Iterable[str]:
    return [by_kind(namespace_of(obj), cluster_of(obj), text_at(obj, "spec", "kind"))]


def _by_namespace(obj: RawObject) -> Iterable[str]:
    if text_at(obj, "spec", "kind") not in SERVICE_KINDS:
        return []
    return [f"{namespace_of(obj)}/{text_at(obj, 'spec', 'namespace')}"]


def _by_block(obj: RawObject) -> Iterable[str]:
    if text_at(obj, "spec", "kind") != ExportKind.ENDPOINTS:
        return []
    area = namespace_of(obj)
    return {
        f"{area}/{block_of(text_at(address, 'ip'))}"
        for subset in items_at(obj, "spec", "endpoints", "subsets")
        for address in items_at(subset, "addresses")
    }


def _cluster_infos(obj: RawObject) -> Iterable[str]:
    if text_at(obj, "spec", "kind") != ExportKind.CLUSTER_INFO:
        return []
    return [namespace_of(obj)]


def _by_label(obj: RawObject) -> Iterable[str]:
    if text_at(obj, "spec", "kind") != ExportKind.LABEL_IDENTITY:
        return []
    return [f"{namespace_of(obj)}/{label_hash(label_of(obj))}"]


def by_cluster(area: str, cluster_id: str) -> str:
    """Return the value under which BY_CLUSTER files a cluster's exports."""
    return f"{area}/{cluster_id}"


def target_key(raw: RawObject) -> str:
    """Return the Service that an export names, as "area/namespace/name"; "area//export" if it names none."""
    area = namespace_of(raw)
    namespace, name = text_at(raw, "spec", "namespace"), text_at(raw, "spec", "name")
    if names.is_label(namespace) and names.is_label(name):
        return f"{area}/{namespace}/{name}"
    return f"{area}//{name_of(raw)}"


def by_kind(area: str, cluster_id: str, kind: str) -> str:
    """Return the value under which BY_KIND files a cluster's exports of a kind."""
    return f"{area}/{cluster_id}/{kind}"


BY_CLUSTER = Index(
    name="exports-by-cluster", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=_by_cluster
)  # under by_cluster(area, cluster ID)
BY_IMPORT = Index(
    name="exports-by-import", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=_by_import
)  # Service and Endpoints exports, under "area/namespace-name": what their ResourceImports' names begin with
BY_TARGET = Index(
    name="exports-by-target", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=_by_target
)  # Service and Endpoints exports, under target_key(export)
BY_KIND = Index(
    name="exports-by-kind", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=_by_kind
)  # under by_kind(area, cluster ID, kind)
BY_NAMESPACE = Index(
    name="exports-by-namespace", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=_by_namespace
)  # Service and Endpoints exports, under "area/namespace" of the Service
BY_BLOCK = Index(
    name="exports-by-block", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=_by_block
)  # Endpoints exports, under "area/10.96": the first two numbers of their addresses
CLUSTER_INFOS = Index(
    name="exports-of-cluster-info", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=_cluster_infos
)  # ClusterInfo exports, under the area
BY_LABEL = Index(
    name="exports-by-label", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=_by_label
)  # LabelIdentity exports, under "area/hash" of the label, whatever their names
