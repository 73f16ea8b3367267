"""The reconciler of the ClusterSet's label identities here: ResourceImports of that kind to LabelIdentities.

A key is the name of both, the hash of the labels. It owns the LabelIdentity. ResourceImports are not trusted:
the labels must have that hash, and of two with one number only the older is imported. Antrea's controller does
not notice a changed number, so the object is deleted and created again. With `enableStretchedNetworkPolicy`
false there are none.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
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
from mcagent.controller.member.membership import (
    concerns_membership,
    import_ref,
    is_for,
    is_managed,
    joined_leader,
    managed_labels,
)
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.multicluster import ApiLabelIdentity, LabelIdentitySpec, ResourceImport
from mcagent.model.api.patches import metadata_patch, patch
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels


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
        """Return the changed identity, and those with its old or new number."""
        match change.object:
            case ApiLabelIdentity(name=name):
                return [name]
            case ResourceImport(name=name):
                identities = [o for o in change.of(ResourceImport) if o is not None and _is_ours(o)]
                numbers = {number for o in identities for number in _by_number(o)}
                rivals = (o.name for number in numbers for o in view.indexed(IMPORTS_BY_NUMBER, number))
                return dict.fromkeys((name, *rivals)) if identities else []
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all identities that are or were imported."""
        imports = view.indexed(IMPORTS_OF_LABELS, ExportKind.LABEL_IDENTITY)
        return dict.fromkeys(obj.name for obj in (*imports, *view.list(ApiLabelIdentity)))

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the LabelIdentity, or its deletion."""
        leader = joined_leader(view)
        if leader is None:
            return DesiredObjects()  # leaving cleans up
        ref = Ref(kind=Kind.LABEL_IDENTITY, name=key)
        present = view.get(ref, ApiLabelIdentity)
        resource_import = view.get(import_ref(leader, key), ResourceImport)
        if resource_import is None or not self._counts(resource_import, leader, view):
            return DesiredObjects(steps=[ref] if is_managed(present) else [])
        label, number = resource_import.spec.label_identity.label, _number(resource_import)
        if present is not None and present.spec.id != number:
            return DesiredObjects(steps=[ref])  # created again once it is gone
        if present is not None and present.is_deleting:
            return DesiredObjects()
        exporters = {names.EXPORTERS_ANNOTATION: resource_import.annotation(names.EXPORTERS_ANNOTATION)}
        metadata = metadata_patch(labels=managed_labels(), annotations=exporters)
        spec = patch(LabelIdentitySpec, label=label, id=number)
        return DesiredObjects(steps=[Wanted(ref=ref, body=patch(ApiLabelIdentity, metadata=metadata, spec=spec))])

    def _counts(self, resource_import: ResourceImport, leader: Leader, view: View) -> bool:
        """Tell whether a ResourceImport is valid, for this cluster, and the oldest with its number."""
        label = resource_import.spec.label_identity.label
        is_complete = (
            self._on
            and is_for(resource_import, leader)
            and _is_ours(resource_import)
            and _number(resource_import) is not None
        )
        has_hash = labels.label_hash(label) == resource_import.name and labels.parsed(label) is not None
        return is_complete and has_hash and not _is_younger(view, resource_import)


def _is_younger(view: View, resource_import: ResourceImport) -> bool:
    """Tell whether an older ResourceImport has the same number."""
    numbers = _by_number(resource_import)
    return any(o.age < resource_import.age for number in numbers for o in view.indexed(IMPORTS_BY_NUMBER, number))


def _is_ours(resource_import: ResourceImport) -> bool:
    return resource_import.spec.kind == ExportKind.LABEL_IDENTITY


def _number(resource_import: ResourceImport) -> int | None:
    number = resource_import.spec.label_identity.id
    return number if number is not None and labels.FIRST <= number <= labels.LAST else None


def _by_number(resource_import: ResourceImport) -> Iterable[str]:
    number = _number(resource_import) if _is_ours(resource_import) else None
    return [] if number is None else [str(number)]


def _of_labels(resource_import: ResourceImport) -> Iterable[str]:
    return [ExportKind.LABEL_IDENTITY] if _is_ours(resource_import) else []


# ResourceImports of labels, under the number.
IMPORTS_BY_NUMBER = Index("imports-by-number", ResourceImport, Side.LEADER, _by_number)
# All under "LabelIdentity".
IMPORTS_OF_LABELS = Index("imports-of-labels", ResourceImport, Side.LEADER, _of_labels)
