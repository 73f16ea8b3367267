"""The reconciler of cluster information: ResourceExports of kind ClusterInfo to ResourceImports of the same name.

A key is "area/export". It owns the ResourceImport of that name, and the export's status and finalizers. The copy
has known, valid fields only, and of CIDRs, gateways and keys those that `ledger` grants; the export's status says
which are not granted. An export that becomes unreadable leaves its last good copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CLAIMED, GRANTED, claims_in, complete, without
from mcagent.controller.contract.conditions import TRUE, condition
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.leader.exports.announces import announces, is_member, not_a_member
from mcagent.controller.leader.exports.bounds import ACCOUNTS_BY_CLUSTER, bounds_of, defaults_of, said, stands_for
from mcagent.controller.leader.exports.header import BY_CLUSTER, CLUSTER_INFOS, Header, read_header
from mcagent.controller.leader.exports.payloads import read_cluster_info
from mcagent.controller.leader.exports.status import export_ref, failed, reason_of, released, succeeded
from mcagent.controller.leader.ledger import Ledger, granted_in, touched
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Json,
    ObjectChange,
    Ref,
    View,
    Wanted,
)
from mcagent.controller.settings import LeaderSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import ClusterInfo, MemberClusterAnnounce, ResourceExport, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import AGENTS_ANNOTATION
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, granted_text


class ClusterInfoCopy:
    """Copies what clusters publish of their networks."""

    name = "cluster-info-copy"
    needs_leader = False
    reads = Access(
        local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.SERVICE_ACCOUNT}
    )
    writes = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT})
    indexes = (CLUSTER_INFOS, BY_CLUSTER, CLAIMED, GRANTED, ACCOUNTS_BY_CLUSTER)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings, self._ledger = settings, Ledger(settings.limits)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the exports that a change touches: itself, and those in the way of its old or new claims."""
        old, new, area = change.old, change.new, change.object.namespace
        if not self._settings.covers(area):
            return []
        match change.object:
            case MemberClusterAnnounce(cluster_id=cluster_id):
                if announces(old) == announces(new):
                    return []
                return self._with_those_in_the_way(view, area, cluster_id)
            case ServiceAccount():
                accounts = change.of(ServiceAccount) if said(old) != said(new) else ()
                ids = {stands_for(account) for account in accounts if account is not None} - {""}
                return [f"{area}/{names.cluster_info(cluster_id)}" for cluster_id in ids]
            case ResourceImport() as resource_import:
                if not _key_of_import(resource_import):
                    return []
                times = set(granted_in(old).items()) ^ set(granted_in(new).items())
                changed = {claim for claim, _ in times}
            case _:
                if not any(map(_is_cluster_info, (old, new))):
                    return []
                changed = set(claims_in(old)) ^ set(claims_in(new))
                if old is None or new is None or old.is_deleting != new.is_deleting:
                    changed |= set(claims_in(new))
        return dict.fromkeys(f"{area}/{name}" for name in (change.object.name, *touched(view, area, changed)))

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all ClusterInfo exports, and imports of such."""
        area = self._settings.namespace or None
        exports = view.list(ResourceExport, namespace=area)
        keys = {export.key: None for export in exports if _is_cluster_info(export)}
        for resource_import in view.list(ResourceImport, namespace=area):
            keys |= dict.fromkeys(_key_of_import(resource_import))
        return keys

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the copy, and what is written about the export."""
        area, name = key.split("/", 1)
        export = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name), ResourceExport)
        target = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=name)
        present = view.get(target, ResourceImport)
        gone: list[Wanted | Ref] = [target] if present is not None and _key_of_import(present) else []
        if export is None or not _is_cluster_info(export):
            return DesiredObjects(steps=gone)
        if export.is_deleting:
            return DesiredObjects(steps=[*gone, *released(export)])
        try:
            header = read_header(export)
            if not is_member(view, area, header.cluster_id):
                return DesiredObjects(steps=[*gone, failed(export, not_a_member(header.cluster_id), now)])
            info = read_cluster_info(export)
        except InputError as error:
            why = reason_of(error)
            return DesiredObjects(
                steps=[failed(export, why, now)],
                events=[Event(subject=str(export_ref(export)), reason="NotMerged", message=why)],
            )
        decision = self._ledger.decide(view, export, now)
        note = _shown(list(decision.refused.values()))
        events = [Event(subject=str(export_ref(export)), reason="ClaimRefused", message=note)] if note else []
        most = bounds_of(view, area, header.cluster_id, defaults_of(self._settings.limits)).max_exports
        annotations = {
            **_settings(export),
            CLAIMS_ANNOTATION: granted_text(decision.times),
            names.MAX_EXPORTS_ANNOTATION: str(most),  # for the member, whose namespaces share it
        }
        spec = _spec(header, without(info, decision.refused))
        copy = Wanted(
            ref=target,
            body={"metadata": {"annotations": annotations}, "spec": spec},
            status=_status(present, header.cluster_id, now),
        )
        return DesiredObjects(
            steps=[copy, succeeded(export, now, note)], events=events, again=_AGAIN if decision.waits else None
        )

    def _with_those_in_the_way(self, view: View, area: str, cluster_id: str) -> Iterable[str]:
        """Return a cluster's key, and those of whoever asks for what it asks for."""
        name = names.cluster_info(cluster_id)
        export = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name), ResourceExport)
        return dict.fromkeys(f"{area}/{found}" for found in (name, *touched(view, area, claims_in(export))))


def _is_cluster_info(export: ApiObject | None) -> bool:
    return isinstance(export, ResourceExport) and export.spec.kind == ExportKind.CLUSTER_INFO


def _key_of_import(resource_import: ResourceImport) -> list[str]:
    is_cluster_info = resource_import.spec.kind == ExportKind.CLUSTER_INFO
    named = resource_import.name.endswith(names.cluster_info(""))
    return [resource_import.key] if is_cluster_info and named else []


def _shown(notes: Sequence[str]) -> str:
    more = [f"and {len(notes) - _SHOWN} more"] if len(notes) > _SHOWN else []
    return "; ".join([*notes[:_SHOWN], *more])


_SHOWN = 8  # refused claims that are named in a message
_AGAIN = 1.0  # seconds after which a claim is decided anew that somebody else is about to get


def _settings(export: ResourceExport) -> dict[str, str | None]:
    """Return what a cluster says of its settings, for other clusters to compare, and of its agents.

    Antrea's say nothing.
    """
    keys = (*names.SETTING_ANNOTATIONS, AGENTS_ANNOTATION)
    texts = {key: export.annotation(key) or "" for key in keys}
    return {key: text if names.is_label(text.lower()) else None for key, text in texts.items()}


def _spec(header: Header, info: ClusterInfo) -> Json:
    """Return the spec of the ResourceImport."""
    return {
        "name": header.name or None,
        "namespace": header.namespace or None,
        "kind": str(ExportKind.CLUSTER_INFO),
        "clusterinfo": complete(info),
    }


def _status(present: ResourceImport | None, cluster_id: str, now: float) -> Json:
    """Return the status of the ResourceImport, which is `present` as it was; None: it is new."""
    statuses = present.status.cluster_statuses if present is not None else ()
    succeeded_condition = condition(statuses[0].conditions if statuses else (), "Succeeded", TRUE, now=now)
    return {"clusterStatuses": [{"clusterID": cluster_id, "conditions": [succeeded_condition]}]}
