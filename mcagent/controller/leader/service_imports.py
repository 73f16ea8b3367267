"""The two ResourceImports of a merged Service, as they should be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import FALSE, TRUE, condition
from mcagent.controller.contract.raw import text_at
from mcagent.controller.contract.services import ServiceSpec
from mcagent.controller.leader.exports import ExportKind
from mcagent.controller.leader.merge import Merged, MergeResult
from mcagent.controller.machinery.reconciler import Ref, View, Wanted
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind

SERVICE_IMPORT = "ServiceImport"  # spec.kind of the ResourceImport of a Service
_IMPORT_KINDS = frozenset({SERVICE_IMPORT, str(ExportKind.ENDPOINTS)})


def key_of_import(raw: RawObject) -> list[str]:
    """Return the key of a ResourceImport that is ours: of our kinds, and named as we name them."""
    kind, namespace, name = (text_at(raw, "spec", field) for field in ("kind", "namespace", "name"))
    named = names.service_import if kind == SERVICE_IMPORT else names.endpoints_import
    if kind not in _IMPORT_KINDS or text_at(raw, "metadata", "name") != named(namespace, name):
        return []
    good = names.is_label(namespace) and names.is_label(name)
    return [f"{text_at(raw, 'metadata', 'namespace')}/{namespace}/{name}"] if good else []


def imports(view: View, area: str, own: Mapping[str, str], merged: Merged, now: float) -> Iterable[Wanted | Ref]:
    """Yield the two ResourceImports as they should be: first the Service, and when it goes, last."""
    service = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.service_import(**own))
    backends = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.endpoints_import(**own))
    if merged.definition is not None:
        spec = {**own, "kind": SERVICE_IMPORT, "serviceImport": {"spec": _service_spec(merged.definition)}}
        yield _import(view, service, {"spec": spec}, merged.services, now)
    if merged.subsets is not None:
        spec = {**own, "kind": str(ExportKind.ENDPOINTS), "endpoints": {"subsets": merged.subsets}}
        exporters = ",".join(sorted(cluster for cluster, verdict in merged.endpoints.items() if verdict.taken))
        meta = {"annotations": {names.EXPORTERS_ANNOTATION: exporters}}
        yield _import(view, backends, {"metadata": meta, "spec": spec}, merged.endpoints, now)
    elif _is_ours(view.get(backends), own):
        yield backends
    if merged.definition is None and _is_ours(view.get(service), own):
        yield service


def _is_ours(raw: RawObject | None, own: Mapping[str, str]) -> bool:
    """Tell whether a ResourceImport is there and stands for this Service, not for another of the same name."""
    return raw is not None and all(text_at(raw, "spec", field) == text for field, text in own.items())


def _service_spec(definition: ServiceSpec) -> RawObject:
    ports = [
        ({"name": p.name} if p.name else {})
        | {"port": p.port, "protocol": str(p.protocol)}
        | ({"appProtocol": p.app_protocol} if p.app_protocol else {})
        for p in definition.ports
    ]
    spec: RawObject = {
        "type": "ClusterSetIP",
        "ports": ports,
        "sessionAffinity": None,
        "sessionAffinityConfig": None,
    }
    if definition.affinity_seconds is not None:
        spec["sessionAffinity"] = "ClientIP"
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": definition.affinity_seconds}}
    return spec


def _import(view: View, ref: Ref, body: RawObject, verdicts: Mapping[str, MergeResult], now: float) -> Wanted:
    found = (view.get(ref) or {}).get("status")
    before: dict[str, object] = {}
    for item in found.get("clusterStatuses") or () if isinstance(found, dict) else ():
        if isinstance(item, dict):
            before[text_at(item, "clusterID")] = item.get("conditions")
    statuses = [
        {
            "clusterID": cluster,
            "conditions": [
                condition(
                    before.get(cluster),
                    "Succeeded",
                    TRUE if verdict.taken else FALSE,
                    reason="" if verdict.taken else verdict.reason,
                    message=verdict.note,
                    now=now,
                )
            ],
        }
        for cluster, verdict in sorted(verdicts.items())
    ]
    return Wanted(ref=ref, body=body, status={"clusterStatuses": statuses})
