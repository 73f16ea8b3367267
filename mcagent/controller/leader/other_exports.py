"""The reconciler of ResourceExports of kinds that this leader does not merge.

A key is "area/export". It writes to the status that the export is refused, and removes its finalizer when it is
deleted. Without that, the export would seem accepted, and could not be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.leader.exports.status import failed, released
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable


class OtherExports:
    """Refuses exports of kinds that no other reconciler reads."""

    name = "other-exports"
    needs_leader = False
    reads = Access(local={Kind.RESOURCE_EXPORT})
    writes = Access(local={Kind.RESOURCE_EXPORT})
    indexes = ()

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return the export that changed, if it is of another kind."""
        _, new = change.of(ResourceExport)
        return _key(new) if new is not None else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all exports of other kinds."""
        return [key for export in view.list(ResourceExport) for key in _key(export)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the status of the export, or the removal of its finalizer."""
        area, name = key.split("/", 1)
        export = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name), ResourceExport)
        if export is None or not _key(export):
            return DesiredObjects()
        if export.is_deleting:
            return DesiredObjects(steps=released(export))
        why = f'this leader does not merge exports of kind "{printable(export.spec.kind)}"'
        return DesiredObjects(steps=[failed(export, why, now)])


_ANSWERED = frozenset({*ExportKind, names.POLICY, names.KUBERNETES_POLICY})  # by other reconcilers


def _key(export: ResourceExport) -> list[str]:
    return [] if export.spec.kind in _ANSWERED else [export.key]
