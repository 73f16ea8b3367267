"""Indexes that several reconcilers of a member use. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import block_of
from mcagent.controller.contract.services import import_target
from mcagent.controller.machinery.reconciler import Index, Side
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiNode, ApiService
from mcagent.model.api.multicluster import ResourceImport

API_SERVER = "default/kubernetes"  # the Service whose endpoints are this cluster's API servers


def service_of(endpoint_slice: ApiEndpointSlice) -> str:
    """Return the Service name in the label of an EndpointSlice; "" if it has none."""
    return endpoint_slice.labels.get(names.SERVICE_NAME_LABEL, "")


def _by_service(obj: ApiEndpointSlice) -> Iterable[str]:
    service = service_of(obj)
    return [f"{obj.namespace}/{service}"] if service else []


def _by_target(obj: ResourceImport) -> Iterable[str]:
    target = import_target(obj)
    return [target] if target else []


def _by_namespace(obj: ResourceImport) -> Iterable[str]:
    target = import_target(obj)
    return [target.partition("/")[0]] if target else []


def _by_block(obj: ResourceImport) -> Iterable[str]:
    if obj.spec.kind != ExportKind.ENDPOINTS:
        return []
    subsets = obj.spec.endpoints.subsets
    return {block_of(address.ip) for subset in subsets for address in subset.addresses}


def _cluster_infos(obj: ResourceImport) -> Iterable[str]:
    return [ExportKind.CLUSTER_INFO] if obj.spec.kind == ExportKind.CLUSTER_INFO else []


def _by_address(obj: ApiNode) -> Iterable[str]:
    return {item.address for item in obj.status.addresses} - {""}


def _imported(obj: ApiService) -> Iterable[str]:
    imported = obj.annotation(names.IMPORTED_SERVICE_ANNOTATION) == "true"
    return [IMPORTED] if imported and obj.name.startswith(names.IMPORTED_PREFIX) else []


IMPORTED = "imported"
# Imported Services, all under IMPORTED.
IMPORTED_SERVICES = Index("imported-services", ApiService, Side.LOCAL, _imported)
# Under "namespace/name" of the Service.
SLICES_BY_SERVICE = Index("slices-by-service", ApiEndpointSlice, Side.LOCAL, _by_service)
NODES_BY_ADDRESS = Index("nodes-by-address", ApiNode, Side.LOCAL, _by_address)
# Under "namespace/name" of the Service.
IMPORTS_BY_TARGET = Index("imports-by-target", ResourceImport, Side.LEADER, _by_target)
# Those of Services, under the Service's namespace.
IMPORTS_BY_NAMESPACE = Index("imports-by-namespace", ResourceImport, Side.LEADER, _by_namespace)
# Those of endpoints, under the first two numbers of their addresses.
IMPORTS_BY_BLOCK = Index("imports-by-block", ResourceImport, Side.LEADER, _by_block)
# All under "ClusterInfo".
CLUSTER_INFOS = Index("imports-of-cluster-info", ResourceImport, Side.LEADER, _cluster_infos)


def addresses_of(obj: ApiObject | None) -> frozenset[str]:
    """Return the addresses of a Node, or of an EndpointSlice of this cluster's API servers; of others none."""
    match obj:
        case ApiNode():
            return frozenset(item.address for item in obj.status.addresses) - {""}
        case ApiEndpointSlice() if API_SERVER in SLICES_BY_SERVICE.values(obj):
            return frozenset(text for endpoint in obj.endpoints for text in endpoint.addresses) - {""}
    return frozenset()
