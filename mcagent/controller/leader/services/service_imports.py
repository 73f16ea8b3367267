"""The two ResourceImports of a Service, from the result of the merge. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import as_annotations, ready_annotation
from mcagent.controller.contract.conditions import FALSE, TRUE, condition
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.services import (
    CLUSTER_SET_IP,
    HEADLESS,
    ServiceSpec,
    grouped_subsets,
    import_target,
    service_fields,
    service_ports,
    session_affinity,
)
from mcagent.controller.leader.services.merge import Merged, MergeResult
from mcagent.controller.machinery.reconciler import Json, Ref, View, Wanted
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.traffic import READY_ANNOTATION, TRAFFIC_ANNOTATION


def key_of_import(resource_import: ResourceImport) -> list[str]:
    """Return "area/namespace/name" of a Service's ResourceImport; [] if kind or name are not those of one."""
    target = import_target(resource_import)
    return [f"{resource_import.namespace}/{target}"] if target else []


def service_imports(
    view: View, area: str, own: Mapping[str, str], merged: Merged, now: float
) -> Iterable[Wanted | Ref]:
    """Yield the steps for both ResourceImports; that of kind ServiceImport is created first and deleted last.

    `own`: "namespace" and "name" of the Service.
    """
    service = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.service_import(**own))
    backends = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.endpoints_import(**own))
    if merged.definition is not None:
        spec = {**own, "kind": names.SERVICE_IMPORT, "serviceImport": {"spec": _service(merged.definition)}}
        notes = as_annotations(merged.definition.labels, merged.definition.annotations)
        notes[TRAFFIC_ANNOTATION] = merged.definition.traffic or None
        body = {"metadata": {"annotations": notes}, "spec": spec}
        yield _import(view, service, body, merged.services, now)
    if merged.subsets is not None:
        spec = {
            **own,
            "kind": str(ExportKind.ENDPOINTS),
            "endpoints": {"subsets": grouped_subsets(merged.subsets, merged.hostnames)},
        }
        exporters = sorted(cluster for cluster, result in merged.endpoints.items() if result.merged)
        notes = {
            names.EXPORTERS_ANNOTATION: ",".join(exporters),
            names.SUBSET_CLUSTERS_ANNOTATION: ",".join(cluster for cluster, _ in sorted(merged.subsets)),
            READY_ANNOTATION: ready_annotation(merged.ready),
        }
        body = {"metadata": {"annotations": notes}, "spec": spec}
        yield _import(view, backends, body, merged.endpoints, now)
    elif _is_of_service(view, backends, own):
        yield backends
    if merged.definition is None and _is_of_service(view, service, own):
        yield service


def _service(spec: ServiceSpec) -> Json:
    """Return the spec of the members' ServiceImport, without IPs, which each member adds."""
    kind = HEADLESS if spec.headless else CLUSTER_SET_IP
    return {
        "type": kind,
        "ports": service_ports(spec),
        **session_affinity(spec.affinity_seconds),
        **service_fields(spec),
    }


def _is_of_service(view: View, ref: Ref, own: Mapping[str, str]) -> bool:
    """Tell whether a ResourceImport exists and is of this Service, not of another one with the same name."""
    resource_import = view.get(ref, ResourceImport)
    return (
        resource_import is not None
        and {"namespace": resource_import.spec.namespace, "name": resource_import.spec.name} == own
    )


def _import(view: View, ref: Ref, body: Json, results: Mapping[str, MergeResult], now: float) -> Wanted:
    present = view.get(ref, ResourceImport)
    before = (
        {status.cluster_id: status.conditions for status in present.status.cluster_statuses} if present else {}
    )
    statuses = [
        {
            "clusterID": cluster,
            "conditions": [
                condition(
                    before.get(cluster, ()),
                    "Succeeded",
                    TRUE if result.merged else FALSE,
                    reason="" if result.merged else result.reason,
                    message=result.note,
                    now=now,
                )
            ],
        }
        for cluster, result in sorted(results.items())
    ]
    return Wanted(ref=ref, body=body, status={"clusterStatuses": statuses})
