"""The reconciler of cluster information: ResourceExports of kind ClusterInfo to ResourceImports of the same name.

A key is "area/export". It owns the ResourceImport of that name, and the export's status and finalizers. The copy
has known, valid fields only, and of CIDRs, gateways and keys those that `ledger` grants; the export's status says
which are not granted. An export that becomes unreadable leaves its last good copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CLAIMED, GRANTED, claims_in, complete, without
from mcagent.controller.contract.conditions import TRUE, condition
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import annotation, is_deleting, key_of, name_of, namespace_of, text_at
from mcagent.controller.leader.announces import announces, is_member, not_a_member
from mcagent.controller.leader.bounds import ACCOUNTS_BY_CLUSTER, said
from mcagent.controller.leader.export_status import export_ref, failed, reason_of, released, succeeded
from mcagent.controller.leader.exports import BY_CLUSTER, CLUSTER_INFOS, Header, read_header
from mcagent.controller.leader.ledger import Ledger, granted_in, touched
from mcagent.controller.leader.payloads import read_cluster_info
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
        raw = change.new or change.old or {}
        area = namespace_of(raw)
        if not self._settings.covers(area):
            return []
        if change.kind is Kind.MEMBER_CLUSTER_ANNOUNCE:
            if announces(change.old) == announces(change.new):
                return []
            return self._with_those_in_the_way(view, area, text_at(raw, "clusterID"))
        if change.kind is Kind.SERVICE_ACCOUNT:
            ids = _members(change.old) | _members(change.new) if said(change.old) != said(change.new) else ()
            return [f"{area}/{names.cluster_info(cluster_id)}" for cluster_id in ids]
        if ExportKind.CLUSTER_INFO not in (text_at(o or {}, "spec", "kind") for o in (change.old, change.new)):
            return []
        if change.kind is Kind.RESOURCE_IMPORT:
            if not _key_of_import(raw):
                return []
            times = set(granted_in(change.old).items()) ^ set(granted_in(change.new).items())
            changed = {claim for claim, _ in times}
        else:
            changed = set(claims_in(change.old)) ^ set(claims_in(change.new))
            if is_deleting(change.old) != is_deleting(change.new):
                changed |= set(claims_in(change.new))
        found = (name_of(raw), *touched(view, area, changed))
        return dict.fromkeys(f"{area}/{name}" for name in found)

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all ClusterInfo exports, and imports of such."""
        area = self._settings.namespace or None
        found = {
            key_of(raw): None
            for raw in view.list(Kind.RESOURCE_EXPORT, namespace=area)
            if text_at(raw, "spec", "kind") == ExportKind.CLUSTER_INFO
        }
        for raw in view.list(Kind.RESOURCE_IMPORT, namespace=area):
            found |= dict.fromkeys(_key_of_import(raw))
        return found

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the copy, and what is written about the export."""
        area, name = key.split("/", 1)
        raw = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name))
        if raw is not None and text_at(raw, "spec", "kind") != ExportKind.CLUSTER_INFO:
            raw = None
        target = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=name)
        gone: list[Wanted | Ref] = [target] if _key_of_import(view.get(target) or {}) else []
        if raw is None:
            return DesiredObjects(steps=gone)
        if is_deleting(raw):
            return DesiredObjects(steps=[*gone, *filter(None, (released(raw),))])
        try:
            header = read_header(raw)
            if not is_member(view, area, header.cluster_id):
                return DesiredObjects(steps=[*gone, failed(raw, not_a_member(header.cluster_id), now)])
            info = read_cluster_info(raw)
        except InputError as error:
            why = reason_of(error)
            return DesiredObjects(
                steps=[failed(raw, why, now)],
                events=[Event(subject=str(export_ref(raw)), reason="NotMerged", message=why)],
            )
        decision = self._ledger.decide(view, raw, now)
        note = _shown(list(decision.refused.values()))
        events = [Event(subject=str(export_ref(raw)), reason="ClaimRefused", message=note)] if note else []
        copy = _copy(view, target, header, without(info, decision.refused), now)
        annotations = {**_settings(raw), CLAIMS_ANNOTATION: granted_text(decision.times)}
        copy = replace(copy, body={**copy.body, "metadata": {"annotations": annotations}})
        return DesiredObjects(
            steps=[copy, succeeded(raw, now, note)], events=events, again=_AGAIN if decision.waits else None
        )

    def _with_those_in_the_way(self, view: View, area: str, cluster_id: str) -> Iterable[str]:
        """Return a cluster's key, and those of whoever asks for what it asks for."""
        name = names.cluster_info(cluster_id)
        export = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name))
        return dict.fromkeys(f"{area}/{found}" for found in (name, *touched(view, area, claims_in(export))))


def _key_of_import(raw: RawObject) -> list[str]:
    name = name_of(raw)
    ours = text_at(raw, "spec", "kind") == ExportKind.CLUSTER_INFO and name.endswith(names.cluster_info(""))
    return [f"{namespace_of(raw)}/{name}"] if ours else []


def _members(account: RawObject | None) -> set[str]:
    """Return the cluster that a ServiceAccount stands for."""
    return {found} if (found := annotation(account, names.CLUSTER_ID_ANNOTATION)) else set()


def _shown(notes: Sequence[str]) -> str:
    more = [f"and {len(notes) - _SHOWN} more"] if len(notes) > _SHOWN else []
    return "; ".join([*notes[:_SHOWN], *more])


_SHOWN = 8  # refused claims that are named in a message
_AGAIN = 1.0  # seconds after which a claim is decided anew that somebody else is about to get


def _settings(raw: RawObject) -> RawObject:
    """Return what a cluster says of its settings, for other clusters to compare, and of its agents.

    Antrea's say nothing.
    """
    said = (*names.SETTING_ANNOTATIONS, AGENTS_ANNOTATION)
    found = {key: text_at(raw, "metadata", "annotations", key) for key in said}
    return {key: text if names.is_label(text.lower()) else None for key, text in found.items()}


def _copy(view: View, target: Ref, header: Header, info: RawObject, now: float) -> Wanted:
    """Return the ResourceImport."""
    spec = {
        "name": header.name or None,
        "namespace": header.namespace or None,
        "kind": str(ExportKind.CLUSTER_INFO),
        "clusterinfo": complete(info),
    }
    status = (view.get(target) or {}).get("status")
    statuses = status.get("clusterStatuses") if isinstance(status, dict) else None
    first = statuses[0] if isinstance(statuses, list) and statuses and isinstance(statuses[0], dict) else {}
    made = condition(first.get("conditions"), "Succeeded", TRUE, now=now)
    return Wanted(
        ref=target,
        body={"spec": spec},
        status={"clusterStatuses": [{"clusterID": header.cluster_id, "conditions": [made]}]},
    )
