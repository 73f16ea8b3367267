"""The reconciler of cluster information: ResourceExports of kind ClusterInfo to ResourceImports of the same name.

A key is "area/export". It owns the ResourceImport of that name, and the export's status and finalizers. The
ResourceImport has only known, valid fields, and only the CIDRs, gateways and keys that `ledger` grants; the
export's status names the others. If an export becomes invalid, its last valid ResourceImport stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CLAIMED, GRANTED, claims_in, gateway_claim, without
from mcagent.controller.contract.cluster_uid import CLUSTER_UID_ANNOTATION, uids
from mcagent.controller.contract.conditions import TRUE, condition
from mcagent.controller.contract.export_ranges import RANGE_ANNOTATION, as_text
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.pod_ranges import POD_RANGE_ANNOTATION
from mcagent.controller.leader.assigned_ranges import answer, changed_ranges, pod_answer
from mcagent.controller.leader.claims import granted_in, settled_text, times_text
from mcagent.controller.leader.exports.bounds import (
    ACCOUNTS_BY_CLUSTER,
    bounds_of,
    changed_accounts,
    cluster_id_of,
    defaults_of,
)
from mcagent.controller.leader.exports.header import (
    BY_CLUSTER,
    CLUSTER_INFOS,
    Header,
    announce_ref,
    changed_members,
    is_member,
    not_a_member,
    read_header,
)
from mcagent.controller.leader.exports.payloads import read_cluster_info
from mcagent.controller.leader.exports.status import failed, reason_of, released, succeeded
from mcagent.controller.leader.ledger import Ledger, touched
from mcagent.controller.leader.proofs import CONFIRMING, REPORTERS, link_report
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.settings import LeaderSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import (
    ApiClusterStatus,
    ClusterInfo,
    ClusterSet,
    MemberClusterAnnounce,
    ResourceExport,
    ResourceImport,
    ResourceImportSpec,
    ResourceImportStatus,
)
from mcagent.model.api.patches import ABSENT, metadata_patch, patch, whole
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import AGENTS_ANNOTATION, MTU_ANNOTATION
from mcagent.model.parsing.field import printable
from mcagent.model.parsing.granted import (
    CLAIMS_ANNOTATION,
    REFUSED_ANNOTATION,
    granted_text,
    read_refused,
    refused_text,
)


class ClusterInfoCopy:
    """Copies the ClusterInfos of all members."""

    name = "cluster-info-copy"
    needs_leader = False
    reads = Access(
        local={
            Kind.RESOURCE_EXPORT,
            Kind.RESOURCE_IMPORT,
            Kind.MEMBER_CLUSTER_ANNOUNCE,
            Kind.SERVICE_ACCOUNT,
            Kind.CLUSTER_SET,
        }
    )
    writes = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT})
    indexes = (CLUSTER_INFOS, BY_CLUSTER, CLAIMED, GRANTED, ACCOUNTS_BY_CLUSTER, REPORTERS, CONFIRMING)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings, self._ledger = settings, Ledger(settings.limits)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the exports that a change touches: its own, and those that collide with its old or new claims."""
        old, new, area = change.old, change.new, change.object.namespace
        match change.object:
            case MemberClusterAnnounce():
                members = changed_members(change)
                keys = [key for cluster_id in members for key in _colliding(view, area, cluster_id)]
                before, after = link_report(old), link_report(new)
                addresses, clusters = before.changed(after)
                gateways = [claim for address in addresses if (claim := gateway_claim(address)) is not None]
                exports = [*touched(view, area, gateways), *map(names.cluster_info, clusters)]
                return dict.fromkeys([*keys, *(f"{area}/{name}" for name in exports)])
            case ServiceAccount():
                ids = {*map(cluster_id_of, changed_accounts(change))} - {""}
                return [f"{area}/{names.cluster_info(cluster_id)}" for cluster_id in ids]
            case ClusterSet():
                return [f"{area}/{names.cluster_info(cluster)}" for cluster in changed_ranges(change)]
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
        keys = {export.key: None for export in view.list(ResourceExport) if _is_cluster_info(export)}
        for resource_import in view.list(ResourceImport):
            keys |= dict.fromkeys(_key_of_import(resource_import))
        return keys

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ResourceImport, and the status of the export."""
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
            _check_uid(export, view.get(announce_ref(area, header.cluster_id), MemberClusterAnnounce))
            info = read_cluster_info(export)
        except InputError as error:
            why = reason_of(error)
            return DesiredObjects(
                steps=[failed(export, why, now)],
                events=[Event(subject=export.subject, reason="NotMerged", message=why)],
            )
        decision = self._ledger.decide(view, export, now)
        note = _shown(list(decision.refused.values()))
        events = [Event(subject=export.subject, reason="ClaimRefused", message=note)] if note else []
        bounds = bounds_of(view, area, header.cluster_id, defaults_of(self._settings.limits))
        annotations = {
            **_settings(export),
            CLAIMS_ANNOTATION: granted_text(decision.times),
            REFUSED_ANNOTATION: refused_text(read_refused(export.annotation(REFUSED_ANNOTATION) or "")),
            names.PROVED_ANNOTATION: times_text(decision.records.proved),
            names.CHALLENGED_ANNOTATION: times_text(decision.records.challenged),
            names.SETTLED_ANNOTATION: settled_text(decision.records.settled),
            names.MAX_EXPORTS_ANNOTATION: str(bounds.max_exports),  # the member's namespaces share it
            RANGE_ANNOTATION: as_text(answer(view, area, header.cluster_id)),
            POD_RANGE_ANNOTATION: as_text(pod_answer(view, area, header.cluster_id)),
        }
        spec = _spec(header, without(info, decision.refused))
        metadata, status = metadata_patch(annotations=annotations), _status(present, header.cluster_id, now)
        copy = Wanted(ref=target, body=patch(ResourceImport, metadata=metadata, spec=spec, status=status))
        return DesiredObjects(steps=[copy, succeeded(export, now, note)], events=events, again=decision.again)


def _check_uid(export: ResourceExport, announce: MemberClusterAnnounce | None) -> None:
    """Raise InputError for the export of another cluster with the ID of a member."""
    holder, uid = uids(announce)[0], export.annotation(CLUSTER_UID_ANNOTATION)
    if uid and holder and uid != holder:
        path = f"metadata.annotations[{CLUSTER_UID_ANNOTATION}]"
        raise InputError(export.subject, path, f"is {printable(uid)}: the member has UID {holder}")


def _colliding(view: View, area: str, cluster_id: str) -> Iterable[str]:
    """Return the key of a cluster, and those of clusters whose claims collide with its claims."""
    name = names.cluster_info(cluster_id)
    export = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name), ResourceExport)
    return dict.fromkeys(f"{area}/{key}" for key in (name, *touched(view, area, claims_in(export))))


def _is_cluster_info(export: ApiObject | None) -> bool:
    return isinstance(export, ResourceExport) and export.spec.kind == ExportKind.CLUSTER_INFO


def _key_of_import(resource_import: ResourceImport) -> list[str]:
    is_cluster_info = resource_import.spec.kind == ExportKind.CLUSTER_INFO
    named = resource_import.name.endswith(names.cluster_info(""))
    return [resource_import.key] if is_cluster_info and named else []


def _shown(notes: Sequence[str]) -> str:
    hidden = [f"and {len(notes) - _SHOWN} more"] if len(notes) > _SHOWN else []
    return "; ".join([*notes[:_SHOWN], *hidden])


_SHOWN = 8  # refused claims that are named in a message


def _settings(export: ResourceExport) -> dict[str, str | None]:
    """Return the annotations about settings, which other clusters compare, and about agents; None: absent.

    Antrea's members write none.
    """
    keys = (*names.SETTING_ANNOTATIONS, AGENTS_ANNOTATION, MTU_ANNOTATION)
    texts = {key: export.annotation(key) or "" for key in keys}
    return {key: text if names.is_label(text.lower()) else None for key, text in texts.items()}


def _spec(header: Header, info: ClusterInfo) -> ResourceImportSpec:
    return patch(
        ResourceImportSpec,
        name=header.name or ABSENT,
        namespace=header.namespace or ABSENT,
        kind=ExportKind.CLUSTER_INFO,
        cluster_info=whole(info),
    )


def _status(present: ResourceImport | None, cluster_id: str, now: float) -> ResourceImportStatus:
    """Return the status of the ResourceImport; the condition keeps its time if `present` has it."""
    statuses = present.status.cluster_statuses if present is not None else ()
    succeeded_condition = condition(statuses[0].conditions if statuses else (), "Succeeded", TRUE, now=now)
    status = ApiClusterStatus(cluster_id=cluster_id, conditions=(succeeded_condition,))
    return patch(ResourceImportStatus, cluster_statuses=(status,))
