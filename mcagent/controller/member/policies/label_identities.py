"""The reconciler of the ClusterSet's label identities here: ResourceImports of that kind to LabelIdentities.

A key is the name that both have, the hash of the labels. It owns the LabelIdentity. Nothing in a ResourceImport is
trusted: its labels must have that hash, and of two with one number only the older is imported. A number is never
changed in place, for Antrea's controller does not notice that: the object is deleted and made anew. With
`enableStretchedNetworkPolicy` false there are none.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import age, annotation, is_deleting, name_of, text_at, value_at
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.membership import concerns_membership, is_for, joined_leader
from mcagent.controller.settings import MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model import labels
from mcagent.model.objects import Kind


class LabelImports:
    """Imports the numbers of label identities."""

    name = "label-import"
    needs_leader = True
    reads = Access(local={Kind.LABEL_IDENTITY, Kind.CLUSTER_SET}, leader={Kind.RESOURCE_IMPORT})
    writes = Access(local={Kind.LABEL_IDENTITY})

    def __init__(self, settings: MemberSettings) -> None:
        self._on = settings.stretched_network_policy
        self.indexes = (IMPORTS_BY_NUMBER, IMPORTS_OF_LABELS)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the identity, and those that have or had its number."""
        raw = change.new or change.old or {}
        match change.kind:
            case Kind.LABEL_IDENTITY:
                return [name_of(raw)]
            case Kind.RESOURCE_IMPORT:
                numbers = {number for o in (change.old, change.new) for number in _by_number(o)}
                rivals = (name_of(o) for number in numbers for o in view.indexed(IMPORTS_BY_NUMBER, number))
                return dict.fromkeys((name_of(raw), *rivals)) if _kinds(change) else []
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all identities that are or were imported."""
        imports = view.indexed(IMPORTS_OF_LABELS, ExportKind.LABEL_IDENTITY)
        return dict.fromkeys(name_of(raw) for raw in (*imports, *view.list(Kind.LABEL_IDENTITY)))

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the LabelIdentity."""
        leader = joined_leader(view)
        if leader is None:
            return DesiredObjects()  # leaving cleans up
        ref = Ref(kind=Kind.LABEL_IDENTITY, name=key)
        there = view.get(ref)
        raw = view.get(Ref(side=Side.LEADER, kind=Kind.RESOURCE_IMPORT, namespace=leader.namespace, name=key))
        label, number = text_at(raw, "spec", "labelIdentity", "label"), _number(raw)
        good = self._on and raw is not None and number is not None and is_for(raw, leader) and _is_ours(raw)
        if not good or labels.label_hash(label) != key or labels.parsed(label) is None or _is_younger(view, raw):
            ours = text_at(there, "metadata", "labels", names.MANAGED_BY_LABEL) == names.MANAGED_BY
            return DesiredObjects(steps=[ref] if ours else [])
        if there is not None and value_at(there, "spec", "id") != number:
            return DesiredObjects(steps=[ref])  # made anew once it is gone
        if is_deleting(there):
            return DesiredObjects()
        meta = {
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
            "annotations": {names.EXPORTERS_ANNOTATION: annotation(raw, names.EXPORTERS_ANNOTATION)},
        }
        spec = {"label": label, "id": number}
        return DesiredObjects(steps=[Wanted(ref=ref, body={"metadata": meta, "spec": spec})])


def _is_younger(view: View, raw: RawObject | None) -> bool:
    """Tell whether an older ResourceImport has the same number."""
    return any(age(o) < age(raw) for number in _by_number(raw) for o in view.indexed(IMPORTS_BY_NUMBER, number))


def _kinds(change: ObjectChange) -> bool:
    return any(map(_is_ours, (change.old, change.new)))


def _is_ours(raw: RawObject | None) -> bool:
    return text_at(raw, "spec", "kind") == ExportKind.LABEL_IDENTITY


def _number(raw: RawObject | None) -> int | None:
    found = value_at(raw, "spec", "labelIdentity", "id")
    return found if type(found) is int and labels.FIRST <= found <= labels.LAST else None


def _by_number(obj: RawObject | None) -> Iterable[str]:
    number = _number(obj) if _is_ours(obj) else None
    return [] if number is None else [str(number)]


def _of_labels(obj: RawObject) -> Iterable[str]:
    return [ExportKind.LABEL_IDENTITY] if _is_ours(obj) else []


IMPORTS_BY_NUMBER = Index(
    name="imports-by-number", kind=Kind.RESOURCE_IMPORT, side=Side.LEADER, values=_by_number
)  # ResourceImports of labels, under the number
IMPORTS_OF_LABELS = Index(
    name="imports-of-labels", kind=Kind.RESOURCE_IMPORT, side=Side.LEADER, values=_of_labels
)  # all under "LabelIdentity"
