"""The reconciler of exported Services: ResourceExports of kind Service and Endpoints to two ResourceImports each.

A key is "area/namespace/name" of one Service in one Common Area, or "area//export" for an export that names no
Service. It owns the two ResourceImports, the status of all exports of that Service, and their finalizers. Names
of ResourceImports are concatenated, so two Services can want the same one: that of a reserved namespace has it,
else the older export. Which exports take part is decided in `offers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.names import SERVICE_KINDS, ExportKind
from mcagent.controller.contract.ranges import blocks_of
from mcagent.controller.contract.raw import age, annotation, is_deleting, namespace_of, text_at
from mcagent.controller.leader.announces import announces
from mcagent.controller.leader.bounds import ACCOUNTS_BY_CLUSTER, ACCOUNTS_BY_NAMESPACE, named_namespaces, said
from mcagent.controller.leader.export_status import export_ref, failed, released, succeeded
from mcagent.controller.leader.exports import (
    BY_BLOCK,
    BY_CLUSTER,
    BY_IMPORT,
    BY_KIND,
    BY_NAMESPACE,
    BY_TARGET,
    Header,
    by_cluster,
    by_kind,
    cluster_of,
    target_key,
)
from mcagent.controller.leader.granted_networks import GRANTS
from mcagent.controller.leader.merge import Merged, MergeResult, merge
from mcagent.controller.leader.offers import Export, Offers
from mcagent.controller.leader.payloads import published
from mcagent.controller.leader.service_imports import key_of_import, service_imports
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    ObjectChange,
    Ref,
    View,
    Wanted,
)
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.event import Event
from mcagent.model.objects import Kind

_DASH = re.compile("-")


class ServiceMerge:
    """Merges what clusters export of one Service."""

    name = "service-merge"
    needs_leader = False
    reads = Access(
        local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.SERVICE_ACCOUNT}
    )
    writes = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT})
    indexes = (
        BY_IMPORT,
        BY_CLUSTER,
        BY_KIND,
        BY_NAMESPACE,
        BY_TARGET,
        BY_BLOCK,
        GRANTS,
        ACCOUNTS_BY_CLUSTER,
        ACCOUNTS_BY_NAMESPACE,
    )

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings
        self._offers = Offers(settings)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the Services that a change touches."""
        area = namespace_of(change.new or change.old)
        if not self._settings.covers(area):
            return []
        found: Iterable[RawObject]
        raws = [raw for raw in (change.old, change.new) if raw is not None]
        match change.kind:
            case Kind.RESOURCE_IMPORT:
                own = [key for raw in raws for key in key_of_import(raw)]
                return dict.fromkeys([*own, *_with_rivals(view, _of_networks(view, area, change))])
            case Kind.MEMBER_CLUSTER_ANNOUNCE:
                if announces(change.old) == announces(change.new):
                    return []
                found = (raw for one in raws for raw in _of_cluster(view, area, text_at(one, "clusterID")))
            case Kind.SERVICE_ACCOUNT:
                found = _of_account(view, area, change) if said(change.old) != said(change.new) else ()
            case _:
                exports = [raw for raw in raws if text_at(raw, "spec", "kind") in SERVICE_KINDS]
                found = [*exports, *self._at_the_limit(view, area, change)]
        return dict.fromkeys(_with_rivals(view, found))

    def _at_the_limit(self, view: View, area: str, change: ObjectChange) -> Sequence[RawObject]:
        """Return the exports about which a coming or going decides: the last that stays, the first that goes."""
        raw = change.new or change.old or {}
        same = change.old is not None and change.new is not None and is_deleting(change.old) == is_deleting(raw)
        if same or text_at(raw, "spec", "kind") != ExportKind.SERVICE:
            return ()
        value = by_kind(area, cluster_of(raw), ExportKind.SERVICE)
        limit = self._offers.max_exports(view, area, cluster_of(raw))
        if view.count(BY_KIND, value) < limit:
            return ()
        there = sorted((r for r in view.indexed(BY_KIND, value) if not is_deleting(r)), key=age)
        return there[max(0, limit - 1) : limit + 1]

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all Services that are exported or imported."""
        area = self._settings.namespace or None
        found = {
            target_key(raw): None
            for raw in view.list(Kind.RESOURCE_EXPORT, namespace=area)
            if text_at(raw, "spec", "kind") in SERVICE_KINDS
        }
        for raw in view.list(Kind.RESOURCE_IMPORT, namespace=area):
            found |= dict.fromkeys(key_of_import(raw))
        return found

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ResourceImports of a Service, and what is written about its exports."""
        area, namespace, name = key.split("/", 2)
        if not namespace:
            ref = Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name)
            return self._nameless(view.get(ref), view, now)
        found = view.indexed(BY_IMPORT, f"{area}/{namespace}-{name}")
        exports = [self._offers.read(view, raw, target_key(raw)) for raw in found]
        mine = [export for export in exports if export.key == key]
        holder = _holder(exports)
        if holder is not None and holder.target != f"{namespace}/{name}":
            taken = names.service_import(namespace, name)
            merged = _refuse_all(mine, f"the ResourceImport's name, {taken}, stands for {_whose(holder)}")
        else:
            offers = self._offers.offers(view, area, mine)
            refuse, traffic = self._settings.limits.refuse_conflicts, self._settings.imported_traffic
            merged = merge(offers, refuse_conflicts=refuse, traffic=traffic)
        steps: list[Wanted | Ref] = [
            *service_imports(view, area, {"namespace": namespace, "name": name}, merged, now)
        ]
        events: list[Event] = []
        for export in mine:
            raw = export.raw
            if is_deleting(raw):
                continue
            result = _result(export, merged)
            good = succeeded(raw, now, result.note, result.conflict)
            steps.append(good if result.taken else failed(raw, result.note, now, result.reason))
            if result.note:
                events.append(Event(subject=str(export_ref(raw)), reason="NotMerged", message=result.note))
            if conflict := result.conflict:
                events.append(
                    Event(subject=str(export_ref(raw)), reason=conflict.reason, message=conflict.message)
                )
        steps += filter(None, (released(export.raw) for export in mine if is_deleting(export.raw)))
        return DesiredObjects(steps=steps, events=events)

    def _nameless(self, raw: RawObject | None, view: View, now: float) -> DesiredObjects:
        """Return what is written about an export that names no Service."""
        if raw is None:
            return DesiredObjects()
        if is_deleting(raw):
            return DesiredObjects(steps=[step for step in (released(raw),) if step])
        export = self._offers.read(view, raw, target_key(raw))
        if export.header is None and export.refused is not None:
            return DesiredObjects(steps=[failed(raw, export.refused.note, now)])
        return DesiredObjects()  # it has come to name one since, and has another key


# --- which keys a change touches --------------------------------------------------------------------------


def _with_rivals(view: View, exports: Iterable[RawObject]) -> Iterable[str]:
    """Yield the keys of exports, and of Services that want the same ResourceImports: those of the same letters.

    A Service may have a thousand exporters, and each write about one comes by here, so none of them is looked at.
    """
    for raw in exports:
        own = target_key(raw)
        yield own
        area, namespace, name = own.split("/", 2)
        both = f"{namespace}-{name}"
        for place in (found.start() for found in _DASH.finditer(both)):
            key = f"{area}/{both[:place]}/{both[place + 1 :]}"
            if key != own and view.count(BY_TARGET, key):
                yield key


def _of_cluster(view: View, area: str, cluster_id: str) -> Iterable[RawObject]:
    exports = view.indexed(BY_CLUSTER, by_cluster(area, cluster_id))
    return [raw for raw in exports if text_at(raw, "spec", "kind") in SERVICE_KINDS]


def _of_networks(view: View, area: str, change: ObjectChange) -> Iterable[RawObject]:
    """Yield the exports whose endpoints may lie in other networks now."""
    old, new = (frozenset(map(str, published(raw) or ())) for raw in (change.old, change.new))
    if old == new:
        return
    for raw in filter(None, (change.old, change.new)):
        yield from _of_cluster(view, area, text_at(raw, "spec", "clusterinfo", "clusterID"))
    for block in blocks_of(old ^ new):
        yield from view.indexed(BY_BLOCK, f"{area}/{block}")


def _of_account(view: View, area: str, change: ObjectChange) -> Iterable[RawObject]:
    """Yield the exports that an administrator's change of a ServiceAccount is about."""
    named: set[str] = set()
    for raw in filter(None, (change.old, change.new)):
        if cluster_id := annotation(raw, names.CLUSTER_ID_ANNOTATION):
            yield from _of_cluster(view, area, cluster_id)
        named |= named_namespaces(raw)
    for namespace in named:
        yield from view.indexed(BY_NAMESPACE, f"{area}/{namespace}")


# --- who has the name, and what becomes of whose export -----------------------------------------------------


def _holder(exports: Iterable[Export]) -> Header | None:
    """Return the Service export that the ResourceImport's name stands for.

    That of a namespace that an administrator has named for somebody, else the oldest one: nobody takes the name of
    a reserved namespace's Service by being there first with dashes elsewhere.
    """
    services = [
        (not export.reserved, export.header.order, export.header.target, export.header)
        for export in exports
        if export.counts and export.header is not None and export.header.kind is ExportKind.SERVICE
    ]
    return min(services, key=lambda row: row[:3])[3] if services else None


def _whose(header: Header) -> str:
    return f"Service {header.target}, which cluster {header.cluster_id} exported first"


def _refuse_all(exports: Iterable[Export], why: str) -> Merged:
    refused = {cluster_of(export.raw): MergeResult(taken=False, note=why) for export in exports}
    return Merged(services=refused, endpoints=refused)


def _result(export: Export, merged: Merged) -> MergeResult:
    if export.refused is not None:
        return export.refused
    assert export.header is not None
    results = merged.services if export.header.kind is ExportKind.SERVICE else merged.endpoints
    return results[export.header.cluster_id]
