"""The reconciler of cluster information: ResourceExports of kind ClusterInfo to ResourceImports of the same name.

A key is "area/export". It owns the ResourceImport of that name, the export's status and finalizers. A copy is made
of known, valid fields only; an export that turned unreadable leaves its last good copy where it is. Overlapping
CIDRs are told to the younger cluster and copied all the same: each member's agents decide what they can route.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from mcagent.controller import names
from mcagent.controller.conditions import TRUE, condition
from mcagent.controller.leader.exports import (
    BY_CLUSTER,
    CLUSTER_INFOS,
    ExportKind,
    Header,
    cluster_of,
    read_header,
)
from mcagent.controller.leader.members import announces, is_member, not_a_member
from mcagent.controller.leader.overlaps import overlapping, ranges
from mcagent.controller.leader.payloads import ClusterInfo, read_cluster_info
from mcagent.controller.leader.status import export_ref, failed, reason_of, released, succeeded
from mcagent.controller.raw import is_deleting, text_at
from mcagent.controller.reconciler import Change, Index, Outcome, Ref, Side, Told, View, Wanted
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind


class ClusterInfoCopy:
    """Copies what clusters publish of their networks."""

    name = "cluster-info-copy"
    needs_leader = False
    kinds: Mapping[Side, frozenset[Kind]] = {
        Side.LOCAL: frozenset({Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT, Kind.MEMBER_CLUSTER_ANNOUNCE})
    }
    indexes: Sequence[Index] = (CLUSTER_INFOS, BY_CLUSTER)

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings

    def keys(self, change: Change, view: View) -> Iterable[str]:
        """Return the exports that a change touches: itself, and those whose CIDRs overlap its old or new ones."""
        raw = change.new or change.old or {}
        area = text_at(raw, "metadata", "namespace")
        if not self._settings.covers(area):
            return []
        if change.kind is Kind.MEMBER_CLUSTER_ANNOUNCE:
            if announces(change.old) == announces(change.new):
                return []
            return [f"{area}/{names.cluster_info(text_at(raw, 'clusterID'))}"]
        if change.kind is Kind.RESOURCE_IMPORT:
            return _key_of_import(raw)
        if ExportKind.CLUSTER_INFO not in (text_at(o or {}, "spec", "kind") for o in (change.old, change.new)):
            return []
        own = f"{area}/{text_at(raw, 'metadata', 'name')}"
        old, new = ranges(change.old), ranges(change.new)
        if old == new and is_deleting(change.old) == is_deleting(change.new):
            return [own]
        others = [
            f"{area}/{text_at(other, 'metadata', 'name')}"
            for other in view.indexed(CLUSTER_INFOS.name, area)
            if overlapping(chain(old, new), ranges(other))
        ]
        return dict.fromkeys([own, *others])

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all ClusterInfo exports, and imports of such."""
        area = self._settings.namespace or None
        found = {
            f"{text_at(raw, 'metadata', 'namespace')}/{text_at(raw, 'metadata', 'name')}": None
            for raw in view.list(Kind.RESOURCE_EXPORT, namespace=area)
            if text_at(raw, "spec", "kind") == ExportKind.CLUSTER_INFO
        }
        for raw in view.list(Kind.RESOURCE_IMPORT, namespace=area):
            found |= dict.fromkeys(_key_of_import(raw))
        return found

    def desired(self, key: str, view: View, now: float) -> Outcome:
        """Return the copy, and what is written about the export."""
        area, name = key.split("/", 1)
        raw = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name))
        if raw is not None and text_at(raw, "spec", "kind") != ExportKind.CLUSTER_INFO:
            raw = None
        target = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=name)
        gone: list[Wanted | Ref] = [target] if _key_of_import(view.get(target) or {}) else []
        if raw is None:
            return Outcome(steps=gone)
        if is_deleting(raw):
            return Outcome(steps=[*gone, *filter(None, (released(raw),))])
        try:
            header = read_header(raw)
            if not is_member(view, area, header.cluster_id):
                return Outcome(steps=[*gone, failed(raw, not_a_member(header.cluster_id), now)])
            info = read_cluster_info(raw)
        except InputError as error:
            why = reason_of(error)
            return Outcome(
                steps=[failed(raw, why, now)], told=[Told(ref=export_ref(raw), reason="NotMerged", message=why)]
            )
        note = "; ".join(_overlaps(view, area, header, raw))
        told = [Told(ref=export_ref(raw), reason="OverlappingCIDRs", message=note)] if note else []
        copy = _copy(view, target, header, info, now)
        copy = replace(copy, body={**copy.body, "metadata": {"annotations": _settings(raw)}})
        return Outcome(steps=[copy, succeeded(raw, now, note)], told=told)


def _key_of_import(raw: RawObject) -> list[str]:
    name = text_at(raw, "metadata", "name")
    ours = text_at(raw, "spec", "kind") == ExportKind.CLUSTER_INFO and name.endswith(names.cluster_info(""))
    return [f"{text_at(raw, 'metadata', 'namespace')}/{name}"] if ours else []


def _overlaps(view: View, area: str, header: Header, raw: RawObject) -> Iterable[str]:
    """Yield which CIDRs overlap those of an older cluster."""
    own = ranges(raw)
    for other in view.indexed(CLUSTER_INFOS.name, area):
        older = (text_at(other, "metadata", "creationTimestamp"), cluster_of(other))
        created = text_at(raw, "metadata", "creationTimestamp")
        if is_deleting(other) or older >= (created, header.cluster_id):
            continue
        for mine, theirs in overlapping(own, ranges(other)):
            yield f"{mine} overlaps {theirs} of cluster {cluster_of(other)}, which was first"


_FIELDS = ("serviceCIDR", "podCIDRs", "gatewayInfos", "wireGuard")
_KEY_FIELDS = ("publicKey", "nextPublicKey", "port")


def _settings(raw: RawObject) -> RawObject:
    """Return what a cluster says of its settings, for other clusters to compare; Antrea's say nothing."""
    found = {key: text_at(raw, "metadata", "annotations", key) for key in names.SETTING_ANNOTATIONS}
    return {key: text if names.is_label(text.lower()) else None for key, text in found.items()}


def _copy(view: View, target: Ref, header: Header, info: ClusterInfo, now: float) -> Wanted:
    """Return the ResourceImport. Fields that the cluster publishes no longer are named, so that they go."""
    info_spec: RawObject = {**dict.fromkeys(_FIELDS), **info.spec}
    if "wireGuard" in info.spec:
        info_spec["wireGuard"] = {**dict.fromkeys(_KEY_FIELDS), **info.spec["wireGuard"]}
    spec = {
        "name": header.name or None,
        "namespace": header.namespace or None,
        "kind": str(ExportKind.CLUSTER_INFO),
        "clusterinfo": info_spec,
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
