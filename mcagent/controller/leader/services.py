"""The reconciler of exported Services: ResourceExports of kind Service and Endpoints to two ResourceImports each.

A key is "area/namespace/name" of one Service in one Common Area, or "area//export" for an export that names no
Service. It owns the two ResourceImports, the status of all exports of that Service, and their finalizers. Names
of ResourceImports are concatenated, so two Services can want the same one: the older export has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller import names
from mcagent.controller.conditions import FALSE, TRUE, condition
from mcagent.controller.leader.exports import (
    BY_CLUSTER,
    BY_IMPORT,
    SERVICE_KINDS,
    ExportKind,
    Header,
    by_cluster,
    cluster_of,
    read_header,
)
from mcagent.controller.leader.members import announces, is_member, not_a_member
from mcagent.controller.leader.merge import Merged, Offer, Verdict, merge
from mcagent.controller.leader.payloads import Backends, published, read_backends, read_definition
from mcagent.controller.leader.status import export_ref, failed, reason_of, released, succeeded
from mcagent.controller.raw import is_deleting, text_at
from mcagent.controller.reconciler import Change, Index, Outcome, Ref, Side, Told, View, Wanted
from mcagent.controller.service_payload import ServiceSpec
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.net import Network
from mcagent.model.objects import Kind

SERVICE_IMPORT = "ServiceImport"  # spec.kind of the ResourceImport of a Service
_IMPORT_KINDS = frozenset({SERVICE_IMPORT, str(ExportKind.ENDPOINTS)})


class ServiceMerge:
    """Merges what clusters export of one Service."""

    name = "service-merge"
    needs_leader = False
    kinds: Mapping[Side, frozenset[Kind]] = {
        Side.LOCAL: frozenset({Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT, Kind.MEMBER_CLUSTER_ANNOUNCE})
    }
    indexes: Sequence[Index] = (BY_IMPORT, BY_CLUSTER)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings

    def keys(self, change: Change, view: View) -> Iterable[str]:
        """Return the Services that a change touches."""
        found: dict[str, None] = {}
        for raw in filter(None, (change.old, change.new)):
            area = text_at(raw, "metadata", "namespace")
            if not self._settings.covers(area):
                continue
            if change.kind is Kind.RESOURCE_IMPORT:
                found |= dict.fromkeys(_key_of_import(raw))
                if published(change.old) != published(change.new):
                    found |= dict.fromkeys(
                        _keys_of_cluster(view, area, text_at(raw, "spec", "clusterinfo", "clusterID"))
                    )
            elif change.kind is Kind.MEMBER_CLUSTER_ANNOUNCE:
                if announces(change.old) != announces(change.new):
                    found |= dict.fromkeys(_keys_of_cluster(view, area, text_at(raw, "clusterID")))
            elif text_at(raw, "spec", "kind") in SERVICE_KINDS:
                found |= dict.fromkeys(map(_key, [raw, *view.indexed(BY_IMPORT.name, _import_value(raw))]))
        return found

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all Services that are exported or imported."""
        area = self._settings.namespace or None
        found = {
            _key(raw): None
            for raw in view.list(Kind.RESOURCE_EXPORT, namespace=area)
            if text_at(raw, "spec", "kind") in SERVICE_KINDS
        }
        for raw in view.list(Kind.RESOURCE_IMPORT, namespace=area):
            found |= dict.fromkeys(_key_of_import(raw))
        return found

    def desired(self, key: str, view: View, now: float) -> Outcome:
        """Return the ResourceImports of a Service, and what is written about its exports."""
        area, namespace, name = key.split("/", 2)
        if not namespace:
            return _nameless(view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name)), now)
        exports = [_read(raw) for raw in view.indexed(BY_IMPORT.name, f"{area}/{namespace}-{name}")]
        mine = [export for export in exports if export.key == key]
        holder = _holder(view, area, exports)
        if holder is not None and holder.target != f"{namespace}/{name}":
            taken = names.service_import(namespace, name)
            merged = _refuse_all(mine, f"the ResourceImport's name, {taken}, stands for {_whose(holder)}")
        else:
            merged = merge(_offers(view, area, mine))
        steps: list[Wanted | Ref] = [*_imports(view, area, {"namespace": namespace, "name": name}, merged, now)]
        told: list[Told] = []
        for export in mine:
            raw = export.raw
            if is_deleting(raw):
                continue
            verdict = _verdict(export, merged)
            steps.append(succeeded(raw, now, verdict.note) if verdict.taken else failed(raw, verdict.note, now))
            if verdict.note:
                told.append(Told(ref=export_ref(raw), reason="NotMerged", message=verdict.note))
        steps += filter(None, (released(export.raw) for export in mine if is_deleting(export.raw)))
        return Outcome(steps=steps, told=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Export:
    """An export, read once. `header` is why it cannot be read, if it cannot."""

    raw: RawObject
    key: str
    header: Header | str


def _read(raw: RawObject) -> _Export:
    try:
        header: Header | str = read_header(raw)
    except InputError as error:
        header = reason_of(error)
    return _Export(raw=raw, key=_key(raw), header=header)


def _whose(header: Header) -> str:
    return f"Service {header.target}, which cluster {header.cluster_id} exported first"


def _nameless(raw: RawObject | None, now: float) -> Outcome:
    """Return what is written about an export that names no Service."""
    if raw is None:
        return Outcome()
    if is_deleting(raw):
        return Outcome(steps=[step for step in (released(raw),) if step])
    header = _read(raw).header
    if isinstance(header, str):
        return Outcome(steps=[failed(raw, header, now)])
    return Outcome()  # it has come to name one since, and has another key


# --- which key an object belongs to -----------------------------------------------------------------------


def _import_value(raw: RawObject) -> str:
    (value,) = BY_IMPORT.values(raw)
    return value


def _key(raw: RawObject) -> str:
    area = text_at(raw, "metadata", "namespace")
    namespace, name = text_at(raw, "spec", "namespace"), text_at(raw, "spec", "name")
    if names.is_label(namespace) and names.is_label(name):
        return f"{area}/{namespace}/{name}"
    return f"{area}//{text_at(raw, 'metadata', 'name')}"


def _key_of_import(raw: RawObject) -> list[str]:
    """Return the key of a ResourceImport that is ours: of our kinds, and named as we name them."""
    kind, namespace, name = (text_at(raw, "spec", field) for field in ("kind", "namespace", "name"))
    named = names.service_import if kind == SERVICE_IMPORT else names.endpoints_import
    if kind not in _IMPORT_KINDS or text_at(raw, "metadata", "name") != named(namespace, name):
        return []
    good = names.is_label(namespace) and names.is_label(name)
    return [f"{text_at(raw, 'metadata', 'namespace')}/{namespace}/{name}"] if good else []


def _keys_of_cluster(view: View, area: str, cluster_id: str) -> list[str]:
    exports = view.indexed(BY_CLUSTER.name, by_cluster(area, cluster_id))
    return [_key(raw) for raw in exports if text_at(raw, "spec", "kind") in SERVICE_KINDS]


# --- the offers ---------------------------------------------------------------------------------------------


def _holder(view: View, area: str, exports: Iterable[_Export]) -> Header | None:
    """Return the Service export that the ResourceImport's name stands for: the oldest one that counts."""
    headers = [export.header for export in exports if isinstance(export.header, Header)]
    services = [
        header
        for header in headers
        if header.kind is ExportKind.SERVICE and not header.deleting and is_member(view, area, header.cluster_id)
    ]
    return min(services, key=lambda header: (header.order, header.target), default=None)


def _offers(view: View, area: str, exports: Iterable[_Export]) -> list[Offer]:
    """Return what each member offers. An export whose own names are wrong makes none: see `_verdict`."""
    headers: dict[str, Header] = {}
    definitions: dict[str, ServiceSpec | str] = {}
    endpoints: dict[str, RawObject] = {}
    for export in exports:
        header, raw = export.header, export.raw
        if isinstance(header, str):
            continue
        cluster = header.cluster_id
        if header.deleting or not is_member(view, area, cluster):
            continue
        if header.kind is ExportKind.ENDPOINTS:
            endpoints[cluster] = raw
            headers.setdefault(cluster, header)
            continue
        headers[cluster] = header
        try:
            definitions[cluster] = read_definition(raw)
        except InputError as error:
            definitions[cluster] = reason_of(error)
    offers = []
    for cluster, header in headers.items():
        backends: Backends | str | None = None
        if cluster in endpoints:
            try:
                backends = read_backends(endpoints[cluster], _networks(view, area, cluster))
            except InputError as error:
                backends = reason_of(error)
        definition = definitions.get(cluster, f"cluster {cluster} does not export the Service itself")
        offers.append(Offer(header=header, definition=definition, backends=backends))
    return offers


def _networks(view: View, area: str, cluster_id: str) -> tuple[Network, ...] | None:
    """Return the CIDRs that a cluster publishes, by what members import of it; None when it publishes none."""
    return published(view.get(Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.cluster_info(cluster_id))))


def _refuse_all(exports: Iterable[_Export], why: str) -> Merged:
    refused = {cluster_of(export.raw): Verdict(taken=False, note=why) for export in exports}
    return Merged(services=refused, endpoints=refused)


def _verdict(export: _Export, merged: Merged) -> Verdict:
    header = export.header
    if isinstance(header, str):
        return Verdict(taken=False, note=header)
    verdicts = merged.services if header.kind is ExportKind.SERVICE else merged.endpoints
    found = verdicts.get(header.cluster_id)
    return found or Verdict(taken=False, note=not_a_member(header.cluster_id))


# --- the ResourceImports ----------------------------------------------------------------------------------


def _imports(view: View, area: str, own: Mapping[str, str], merged: Merged, now: float) -> Iterable[Wanted | Ref]:
    """Yield the two ResourceImports as they should be: first the Service, and when it goes, last."""
    service = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.service_import(**own))
    backends = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.endpoints_import(**own))
    if merged.definition is not None:
        spec = {**own, "kind": SERVICE_IMPORT, "serviceImport": {"spec": _service_spec(merged.definition)}}
        yield _import(view, service, spec, merged.services, now)
    if merged.subsets is not None:
        spec = {**own, "kind": str(ExportKind.ENDPOINTS), "endpoints": {"subsets": merged.subsets}}
        yield _import(view, backends, spec, merged.endpoints, now)
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


def _import(view: View, ref: Ref, spec: RawObject, verdicts: Mapping[str, Verdict], now: float) -> Wanted:
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
                    reason="" if verdict.taken else "ConvergeFailure",
                    message=verdict.note,
                    now=now,
                )
            ],
        }
        for cluster, verdict in sorted(verdicts.items())
    ]
    return Wanted(ref=ref, body={"spec": spec}, status={"clusterStatuses": statuses})
