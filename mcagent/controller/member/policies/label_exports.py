"""The reconciler of this cluster's label identities on the leader: one ResourceExport for each set of labels.

A key is a label identity's text, or "#" and the name of an export of ours that has none. However many Pods have
the same labels in a Namespace, there is one export; it goes with the last of them (the leader keeps the number for
a while). Pods of the host network and finished ones have no address of their own, so they count for nothing. With
`enableStretchedNetworkPolicy` false no Pods are read, and what was exported is taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import FALSE, find
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import is_deleting, name_of, namespace_of, text_at, value_at
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    Leader,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.exports import BY_CLUSTER, export_ref
from mcagent.controller.member.membership import concerns_membership, joined_leader
from mcagent.controller.settings import MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model import labels
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.field import Field
from mcagent.model.objects import Kind

_FINISHED = ("Succeeded", "Failed")


class LabelExports:
    """Publishes which labels the Pods of this cluster have."""

    name = "label-export"
    needs_leader = True
    writes = Access(leader={Kind.RESOURCE_EXPORT})

    def __init__(self, settings: MemberSettings) -> None:
        self._on = settings.stretched_network_policy
        pods = {Kind.POD, Kind.NAMESPACE} if self._on else set()
        self.reads = Access(local={Kind.CLUSTER_SET, *pods}, leader={Kind.RESOURCE_EXPORT})
        self.indexes = (BY_CLUSTER, *((PODS_BY_LABELS,) if self._on else ()))

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the identities that Pods came to or left, all of a Namespace whose labels changed."""
        match change.kind:
            case Kind.POD:
                before, after = _part(change.old), _part(change.new)
                space = _namespace(view, namespace_of(change.new or change.old))
                return [] if before == after else _identities([space], filter(_is_part, (before, after)))
            case Kind.NAMESPACE:
                spaces = dict.fromkeys(_namespace_part(o) for o in (change.old, change.new) if o is not None)
                if change.old is not None and change.new is not None and len(spaces) < 2:
                    return []
                name = name_of(change.new or change.old)
                parts = [_part(raw) for raw in view.list(Kind.POD, namespace=name)]
                return _identities(spaces, dict.fromkeys(filter(_is_part, parts)))
            case Kind.RESOURCE_EXPORT:
                leader = view.leader
                mine = (o for o in (change.old, change.new) if leader is not None and _is_own(o, leader))
                return dict.fromkeys(_key(o) for o in mine if o is not None)
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return the identities of all Pods, and all that are exported."""
        leader, found = view.leader, dict[str, None]()
        if leader is not None:
            exports = view.indexed(BY_CLUSTER, leader.cluster_id)
            found |= dict.fromkeys(_key(raw) for raw in exports if _is_own(raw, leader))
        if self._on:
            spaces = {name_of(raw): _namespace_part(raw) for raw in view.list(Kind.NAMESPACE)}
            pods = ((spaces.get(namespace_of(raw)), _part(raw)) for raw in view.list(Kind.POD))
            found |= {labels.identity(space, part): None for space, part in pods if space and part is not None}
        return found

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the export while a Pod has these labels."""
        leader = joined_leader(view)
        if leader is None:
            return DesiredObjects()
        if key.startswith("#"):
            return DesiredObjects(steps=[export_ref(leader, key[1:])])
        ref = export_ref(leader, names.label_export(leader.cluster_id, labels.label_hash(key)))
        there = view.get(ref)
        found = _of_pods(key, view) if self._on else None
        if found is None:
            return DesiredObjects(steps=[ref] if there is not None else [])
        try:
            labels.read_labels(Field("labels", key))
        except InputError as error:
            steps = [ref] if there is not None else []
            return DesiredObjects(steps=steps, events=[_not_exported(found, key, error.reason)])
        if is_deleting(there):
            return DesiredObjects()  # made anew once it is gone
        why = view.failure(ref)
        failure = find(value_at(there, "status", "conditions"), "Failure")
        if not why and failure.get("status") == FALSE:
            why = str(failure.get("message", ""))
        events = [_not_exported(found, key, why)] if why else []
        return DesiredObjects(steps=[_export(ref, leader, key)], events=events)


def _export(ref: Ref, leader: Leader, label: str) -> Wanted:
    """Return the ResourceExport as Antrea's members write it: without name, namespace and finalizer."""
    marks = {
        names.LABEL_SOURCE_KIND: str(ExportKind.LABEL_IDENTITY),
        names.LABEL_SOURCE_CLUSTER_ID: leader.cluster_id,
    }
    spec = {
        "clusterID": leader.cluster_id,
        "kind": str(ExportKind.LABEL_IDENTITY),
        "labelIdentity": {"normalizedLabel": label},
    }
    return Wanted(ref=ref, body={"metadata": {"labels": marks}, "spec": spec})


def _not_exported(namespace: str, label: str, why: str) -> Event:
    shown = label if len(label) <= _SHOWN else f"{label[:_SHOWN]}..."
    message = f"other clusters do not know Pods with these labels, {shown}: {why}"
    return Event(subject=f"{Kind.NAMESPACE} {namespace}", reason="LabelIdentityNotExported", message=message)


_SHOWN = 200  # characters of an identity in a message


def _of_pods(label: str, view: View) -> str | None:
    """Return the Namespace of the Pods that have an identity now; None: there are none."""
    space, _, part = label.removeprefix("ns:").partition("&pod:")
    prefix = f"{labels.NAMESPACE_NAME}="
    name = next((item.removeprefix(prefix) for item in space.split(",") if item.startswith(prefix)), "")
    if not name or space != _namespace(view, name):
        return None
    return name if view.count(PODS_BY_LABELS, f"{name}/{part}") else None


def _namespace(view: View, name: str) -> str:
    """Return the labels of a Namespace as text; "" while it is not known."""
    raw = view.get(Ref(kind=Kind.NAMESPACE, name=name))
    return "" if raw is None else _namespace_part(raw)


def _namespace_part(raw: RawObject) -> str:
    return labels.namespace_part(name_of(raw), {**_labels(raw), labels.NAMESPACE_NAME: name_of(raw)})


def _part(raw: RawObject | None) -> str | None:
    """Return a Pod's labels as text; None for one that has no address of its own, or is not there."""
    if raw is None or value_at(raw, "spec", "hostNetwork") is True:
        return None
    return None if text_at(raw, "status", "phase") in _FINISHED else labels.joined(_labels(raw))


def _is_part(part: str | None) -> bool:
    return part is not None


def _identities(spaces: Iterable[str], parts: Iterable[str | None]) -> list[str]:
    each = list(parts)
    return [labels.identity(space, part) for space in spaces for part in each if part is not None]


def _labels(raw: RawObject) -> Mapping[str, str]:
    found = value_at(raw, "metadata", "labels")
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def _is_own(raw: RawObject | None, leader: Leader) -> bool:
    spec = value_at(raw, "spec")
    kind, cluster = text_at(spec, "kind"), text_at(spec, "clusterID")
    return (kind, cluster) == (ExportKind.LABEL_IDENTITY, leader.cluster_id)


def _key(export: RawObject) -> str:
    """Return the identity that an export is about, or its name if that does not follow from one."""
    label, cluster = (
        text_at(export, "spec", "labelIdentity", "normalizedLabel"),
        text_at(export, "spec", "clusterID"),
    )
    good = name_of(export) == names.label_export(cluster, labels.label_hash(label)) and label.startswith("ns:")
    return label if good else f"#{name_of(export)}"


def _by_labels(obj: RawObject) -> Iterable[str]:
    part = _part(obj)
    return [] if part is None else [f"{namespace_of(obj)}/{part}"]


PODS_BY_LABELS = Index(
    name="pods-by-labels", kind=Kind.POD, side=Side.LOCAL, values=_by_labels
)  # Pods with an address of their own, under "namespace/labels"
