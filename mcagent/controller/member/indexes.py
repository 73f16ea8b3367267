"""Indexes that reconcilers of a member share. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.names import SERVICE_IMPORT, ExportKind
from mcagent.controller.contract.raw import annotation, items_at, name_of, namespace_of, text_at
from mcagent.controller.machinery.reconciler import Index, Side
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind


def import_target(raw: RawObject | None) -> str:
    """Return "namespace/name" of the Service that a ResourceImport is about.

    "" when it is about none, when the names are none, or when its own name is not the one that follows from them:
    names are concatenated, and two objects must not stand for one Service.
    """
    kind, namespace, name = (text_at(raw, "spec", field) for field in ("kind", "namespace", "name"))
    named = {SERVICE_IMPORT: names.service_import, ExportKind.ENDPOINTS: names.endpoints_import}.get(kind)
    if named is None or not names.is_label(namespace) or not names.is_label(name):
        return ""
    return f"{namespace}/{name}" if name_of(raw) == named(namespace, name) else ""


def _by_service(obj: RawObject) -> Iterable[str]:
    found = text_at(obj, "metadata", "labels", names.SERVICE_NAME_LABEL)
    return [f"{namespace_of(obj)}/{found}"] if found else []


def _by_target(obj: RawObject) -> Iterable[str]:
    found = import_target(obj)
    return [found] if found else []


def _by_namespace(obj: RawObject) -> Iterable[str]:
    found = import_target(obj)
    return [found.partition("/")[0]] if found else []


def _by_block(obj: RawObject) -> Iterable[str]:
    if text_at(obj, "spec", "kind") != ExportKind.ENDPOINTS:
        return []
    return {
        ".".join(text_at(address, "ip").split(".")[:2])
        for subset in items_at(obj, "spec", "endpoints", "subsets")
        for address in items_at(subset, "addresses")
    }


def _cluster_infos(obj: RawObject) -> Iterable[str]:
    return [ExportKind.CLUSTER_INFO] if text_at(obj, "spec", "kind") == ExportKind.CLUSTER_INFO else []


def _by_address(obj: RawObject) -> Iterable[str]:
    return {text_at(item, "address") for item in items_at(obj, "status", "addresses")} - {""}


def _imported(obj: RawObject) -> Iterable[str]:
    imported = annotation(obj, names.IMPORTED_SERVICE_ANNOTATION) == "true"
    return [IMPORTED] if imported and name_of(obj).startswith(names.IMPORTED_PREFIX) else []


IMPORTED = "imported"
IMPORTED_SERVICES = Index(
    name="imported-services", kind=Kind.SERVICE, side=Side.LOCAL, values=_imported
)  # Services that were made for imports, all under IMPORTED
SLICES_BY_SERVICE = Index(
    name="slices-by-service", kind=Kind.ENDPOINT_SLICE, side=Side.LOCAL, values=_by_service
)  # under "namespace/name" of the Service
NODES_BY_ADDRESS = Index(name="nodes-by-address", kind=Kind.NODE, side=Side.LOCAL, values=_by_address)
IMPORTS_BY_TARGET = Index(
    name="imports-by-target", kind=Kind.RESOURCE_IMPORT, side=Side.LEADER, values=_by_target
)  # under "namespace/name" of the Service
IMPORTS_BY_NAMESPACE = Index(
    name="imports-by-namespace", kind=Kind.RESOURCE_IMPORT, side=Side.LEADER, values=_by_namespace
)  # those of Services, under the Service's namespace
IMPORTS_BY_BLOCK = Index(
    name="imports-by-block", kind=Kind.RESOURCE_IMPORT, side=Side.LEADER, values=_by_block
)  # those of endpoints, under the first two numbers of their addresses
CLUSTER_INFOS = Index(
    name="imports-of-cluster-info", kind=Kind.RESOURCE_IMPORT, side=Side.LEADER, values=_cluster_infos
)  # all under "ClusterInfo"
