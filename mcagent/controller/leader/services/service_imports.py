"""The two ResourceImports of a Service, from the result of the merge. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import as_annotations, ready_annotation
from mcagent.controller.contract.conditions import FALSE, TRUE, condition
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.services import (
    grouped_subsets,
    import_spec,
    import_target,
)
from mcagent.controller.leader.services.merge import Merged, MergeResult
from mcagent.controller.machinery.reconciler import Ref, View, Wanted
from mcagent.model.api.kubernetes import Subsets
from mcagent.model.api.multicluster import (
    ApiClusterStatus,
    ImportedServiceImport,
    ResourceImport,
    ResourceImportSpec,
    ResourceImportStatus,
)
from mcagent.model.api.patches import metadata_patch, patch
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
        exported = import_spec(merged.definition, merged.definition.families)  # each member adds its IPs
        spec = patch(
            ResourceImportSpec,
            namespace=own["namespace"],
            name=own["name"],
            kind=names.SERVICE_IMPORT,
            service_import=patch(ImportedServiceImport, spec=exported),
        )
        notes = as_annotations(merged.definition.labels, merged.definition.annotations)
        notes[TRAFFIC_ANNOTATION] = merged.definition.traffic or None
        status = _status(view, service, merged.services, now)
        body = patch(ResourceImport, metadata=metadata_patch(annotations=notes), spec=spec, status=status)
        yield Wanted(ref=service, body=body)
    if merged.subsets is not None:
        spec = patch(
            ResourceImportSpec,
            namespace=own["namespace"],
            name=own["name"],
            kind=ExportKind.ENDPOINTS,
            endpoints=patch(Subsets, subsets=grouped_subsets(merged.subsets, merged.hostnames)),
        )
        exporters = sorted(cluster for cluster, result in merged.endpoints.items() if result.merged)
        notes = {
            names.EXPORTERS_ANNOTATION: ",".join(exporters),
            names.SUBSET_CLUSTERS_ANNOTATION: ",".join(cluster for cluster, _ in sorted(merged.subsets)),
            READY_ANNOTATION: ready_annotation(merged.ready),
        }
        status = _status(view, backends, merged.endpoints, now)
        body = patch(ResourceImport, metadata=metadata_patch(annotations=notes), spec=spec, status=status)
        yield Wanted(ref=backends, body=body)
    elif _is_of_service(view, backends, own):
        yield backends
    if merged.definition is None and _is_of_service(view, service, own):
        yield service


def _is_of_service(view: View, ref: Ref, own: Mapping[str, str]) -> bool:
    """Tell whether a ResourceImport exists and is of this Service, not of another one with the same name."""
    resource_import = view.get(ref, ResourceImport)
    return (
        resource_import is not None
        and {"namespace": resource_import.spec.namespace, "name": resource_import.spec.name} == own
    )


def _status(view: View, ref: Ref, results: Mapping[str, MergeResult], now: float) -> ResourceImportStatus:
    present = view.get(ref, ResourceImport)
    before = (
        {status.cluster_id: status.conditions for status in present.status.cluster_statuses} if present else {}
    )
    statuses = tuple(
        ApiClusterStatus(
            cluster_id=cluster,
            conditions=(
                condition(
                    before.get(cluster, ()),
                    "Succeeded",
                    TRUE if result.merged else FALSE,
                    reason="" if result.merged else result.reason,
                    message=result.note,
                    now=now,
                ),
            ),
        )
        for cluster, result in sorted(results.items())
    )
    return patch(ResourceImportStatus, cluster_statuses=statuses)
