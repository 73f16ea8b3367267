"""Admission of a member's ResourceExports by its limits: size, namespaces, number. Pure.

The leader's reconciler applies the same rules again (`services.offers`): these look-ups may be out of date, and
exports can be older than the limits.
"""

from __future__ import annotations

from mcagent.controller.admission.decision import AdmissionDecision, Lookup, Operation, ReviewRequest, denied
from mcagent.controller.contract.names import SERVICE_KINDS, ExportKind
from mcagent.controller.contract.services import MAX_PORTS
from mcagent.controller.leader.exports.bounds import (
    bounds_of_accounts,
    cluster_id_of,
    defaults_of,
    named_namespaces,
    over_quota,
    refuse_namespace,
    too_large,
)
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.parsing.field import printable


def refuse_size(request: ReviewRequest, export: ResourceExport, lookup: Lookup) -> AdmissionDecision | None:
    """Return the refusal of an export that is too large; checked before its content is read."""
    content = {key: value for key, value in request.object.items() if key != "status"}
    if isinstance(meta := content.get("metadata"), dict):
        content["metadata"] = {key: value for key, value in meta.items() if key != "managedFields"}
    why = too_large(content, export.spec.kind, lookup.limits.max_export_bytes)
    service = export.spec.service
    if not why and service is not None and len(service.service_spec.ports) > MAX_PORTS:
        why = f"spec.service.serviceSpec.ports has more than {MAX_PORTS} entries"
    return denied(f"the export is refused: {why}") if why else None


def refuse_bounds(
    request: ReviewRequest, export: ResourceExport, cluster: str, lookup: Lookup
) -> AdmissionDecision | None:
    """Return the refusal of an export that its member may not make."""
    kind, namespace = export.spec.kind, export.spec.namespace
    accounts = lookup.service_accounts(request.namespace)
    bounds = bounds_of_accounts((a for a in accounts if cluster_id_of(a) == cluster), defaults_of(lookup.limits))
    if kind in SERVICE_KINDS:
        named = frozenset(cluster_id_of(a) for a in accounts if namespace in named_namespaces(a))
        if why := refuse_namespace(cluster, namespace, bounds, named):
            return denied(why)
    if request.operation is not Operation.CREATE or kind == ExportKind.CLUSTER_INFO:
        return None
    if lookup.count_exports(request.namespace, cluster, kind) < bounds.max_exports:
        return None
    return denied(over_quota(cluster, bounds.max_exports, f'objects of kind "{printable(kind)}"'))
