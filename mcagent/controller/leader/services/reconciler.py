"""The reconciler of exported Services: ResourceExports of kind Service and Endpoints to two ResourceImports each.

A key is "area/namespace/name" of a Service in a Common Area, or "area//export" for an export without a valid
Service name. It owns both ResourceImports, and status and finalizers of all exports of that Service. Names of
ResourceImports are concatenated, so two Services can have the same one: it belongs to the Service of a reserved
namespace, else to that of the older export.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from mcagent.controller.contract import names
from mcagent.controller.contract.names import SERVICE_KINDS, ExportKind
from mcagent.controller.contract.ranges import blocks_of
from mcagent.controller.leader.exports.bounds import (
    ACCOUNTS_BY_CLUSTER,
    ACCOUNTS_BY_NAMESPACE,
    at_the_limit,
    changed_accounts,
    cluster_id_of,
    named_namespaces,
)
from mcagent.controller.leader.exports.header import (
    BY_BLOCK,
    BY_CLUSTER,
    BY_IMPORT,
    BY_KIND,
    BY_NAMESPACE,
    BY_TARGET,
    Header,
    by_cluster,
    changed_members,
    target_key,
)
from mcagent.controller.leader.exports.payloads import published
from mcagent.controller.leader.exports.status import failed, released, succeeded
from mcagent.controller.leader.services.import_reports import REPORTS, changed_reports, reports_of, with_reports
from mcagent.controller.leader.services.merge import Merged, MergeResult, merge
from mcagent.controller.leader.services.offers import GRANTS, Export, Offers
from mcagent.controller.leader.services.service_imports import key_of_import, service_imports
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.settings import LeaderSettings
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import MemberClusterAnnounce, ResourceExport, ResourceImport
from mcagent.model.event import Event
from mcagent.model.objects import Kind

_DASH = re.compile("-")


class ServiceMerge:
    """Merges the exports of a Service from all clusters."""

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
        REPORTS,
        ACCOUNTS_BY_CLUSTER,
        ACCOUNTS_BY_NAMESPACE,
    )

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings
        self._offers = Offers(settings)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the Services that a change touches."""
        area = change.object.namespace
        touched_exports: Iterable[ResourceExport]
        match change.object:
            case ResourceImport():
                own = [
                    key
                    for resource_import in change.of(ResourceImport)
                    if resource_import
                    for key in key_of_import(resource_import)
                ]
                return dict.fromkeys([*own, *_with_rivals(view, _of_networks(view, area, change))])
            case MemberClusterAnnounce():
                clusters = changed_members(change)
                touched_exports = (export for cluster in clusters for export in _of_cluster(view, area, cluster))
                return dict.fromkeys([*changed_reports(change, view), *_with_rivals(view, touched_exports)])
            case ServiceAccount():
                touched_exports = _of_accounts(view, area, changed_accounts(change))
            case _:
                exports = [e for e in change.of(ResourceExport) if e and e.spec.kind in SERVICE_KINDS]
                limit = partial(self._offers.max_exports, view, area)
                touched_exports = [*exports, *at_the_limit(view, change, ExportKind.SERVICE, limit)]
        return dict.fromkeys(_with_rivals(view, touched_exports))

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all Services that are exported or imported."""
        exports = view.list(ResourceExport)
        keys = {target_key(export): None for export in exports if export.spec.kind in SERVICE_KINDS}
        for resource_import in view.list(ResourceImport):
            keys |= dict.fromkeys(key_of_import(resource_import))
        return keys

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ResourceImports of a Service, and the status of its exports."""
        area, namespace, name = key.split("/", 2)
        if not namespace:
            return self._nameless(key, view, now)
        named_exports = view.indexed(BY_IMPORT, f"{area}/{namespace}-{name}")
        exports, offers = self._offers.read(view, area, key, named_exports)
        own_exports = [export for export in exports if export.key == key]
        holder = _holder(exports)
        if holder is not None and holder.target != f"{namespace}/{name}":
            import_name = names.service_import(namespace, name)
            why = f"the ResourceImport's name, {import_name}, stands for Service {holder.target}, "
            merged = _refuse_all(own_exports, f"{why}which cluster {holder.cluster_id} exported first")
        else:
            refuse, traffic = self._settings.limits.refuse_conflicts, self._settings.imported_traffic
            merged = merge(offers, refuse_conflicts=refuse, traffic=traffic)
        own = {"namespace": namespace, "name": name}
        steps: list[Wanted | Ref] = [*service_imports(view, area, own, merged, now)]
        events: list[Event] = []
        reports, waits = reports_of(view, key), list[float]()
        for export in own_exports:
            if export.object.is_deleting:
                continue
            result, subject = _result(export, merged), export.object.subject
            if result.merged:
                note, wait = result.note, None
                if export.object.spec.kind == ExportKind.ENDPOINTS:
                    note, wait = with_reports(view, export.object, note, reports)
                waits += [] if wait is None else [wait]
                steps.append(succeeded(export.object, now, note, result.conflict))
            else:
                steps.append(failed(export.object, result.note, now, result.reason))
            if result.note:
                events.append(Event(subject=subject, reason="NotMerged", message=result.note))
            if conflict := result.conflict:
                events.append(Event(subject=subject, reason=conflict.reason, message=conflict.message))
        steps += [step for export in own_exports if export.object.is_deleting for step in released(export.object)]
        return DesiredObjects(steps=steps, events=events, again=min(waits, default=None))

    def _nameless(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the status of an export without a valid Service name."""
        area, _, name = key.split("/", 2)
        resource_export = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name), ResourceExport)
        if resource_export is None:
            return DesiredObjects()
        if resource_export.is_deleting:
            return DesiredObjects(steps=released(resource_export))
        ((export,), _) = self._offers.read(view, area, key, [resource_export])
        if export.header is None and export.refused is not None:
            return DesiredObjects(steps=[failed(resource_export, export.refused.note, now)])
        return DesiredObjects()  # its spec has a valid name now, so it has another key


# --- which keys a change touches --------------------------------------------------------------------------


def _with_rivals(view: View, exports: Iterable[ResourceExport]) -> Iterable[str]:
    """Yield the keys of exports, and of Services whose ResourceImports have the same name.

    A Service may have a thousand exporters, and each write to one of them calls this, so it reads none of them.
    """
    for own in dict.fromkeys(map(target_key, exports)):
        yield own
        area, namespace, name = own.split("/", 2)
        full_name = f"{namespace}-{name}"
        for place in (dash.start() for dash in _DASH.finditer(full_name)):
            key = f"{area}/{full_name[:place]}/{full_name[place + 1 :]}"
            if key != own and view.count(BY_TARGET, key):
                yield key


def _of_cluster(view: View, area: str, cluster_id: str) -> Iterable[ResourceExport]:
    exports = view.indexed(BY_CLUSTER, by_cluster(area, cluster_id))
    return [export for export in exports if export.spec.kind in SERVICE_KINDS]


def _of_networks(view: View, area: str, change: ObjectChange) -> Iterable[ResourceExport]:
    """Yield the exports with endpoints in CIDRs whose owner changed."""
    old, new = (frozenset(map(str, published(info) or ())) for info in (change.old, change.new))
    if old == new:
        return
    for info in filter(None, change.of(ResourceImport)):
        yield from _of_cluster(view, area, info.cluster_id)
    for block in blocks_of(old ^ new):
        yield from view.indexed(BY_BLOCK, f"{area}/{block}")


def _of_accounts(view: View, area: str, accounts: Iterable[ServiceAccount]) -> Iterable[ResourceExport]:
    """Yield the exports of the clusters of accounts, and those of the namespaces that the accounts reserve."""
    named: set[str] = set()
    for account in accounts:
        if cluster_id := cluster_id_of(account):
            yield from _of_cluster(view, area, cluster_id)
        named |= named_namespaces(account)
    for namespace in named:
        yield from view.indexed(BY_NAMESPACE, f"{area}/{namespace}")


# --- names of ResourceImports, and results -----------------------------------------------------------------


def _holder(exports: Iterable[Export]) -> Header | None:
    """Return the header of the Service export to which the ResourceImport's name belongs; None if there is none.

    An export of a reserved namespace precedes older ones, so that no other Service can take its name.
    """
    services = [
        (not export.reserved, export.header.order, export.header.target, export.header)
        for export in exports
        if export.takes_part and export.header is not None and export.header.kind is ExportKind.SERVICE
    ]
    return min(services, key=lambda row: row[:3])[3] if services else None


def _refuse_all(exports: Iterable[Export], why: str) -> Merged:
    refused = {export.object.spec.cluster_id: MergeResult(merged=False, note=why) for export in exports}
    return Merged(services=refused, endpoints=refused)


def _result(export: Export, merged: Merged) -> MergeResult:
    if export.refused is not None:
        return export.refused
    assert export.header is not None
    results = merged.services if export.header.kind is ExportKind.SERVICE else merged.endpoints
    return results[export.header.cluster_id]
