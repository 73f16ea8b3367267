"""The reconciler of ResourceExports of kinds that this leader does not merge.

A key is "area/export". It writes that such an export is refused, and takes its finalizer off when it is deleted:
else the export would look accepted, and stay for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import is_deleting, key_of, namespace_of, text_at
from mcagent.controller.leader.export_status import failed, released
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.field import printable
from mcagent.model.objects import Kind


class OtherExports:
    """Answers exports that nothing else answers."""

    name = "other-exports"
    needs_leader = False
    reads = Access(local={Kind.RESOURCE_EXPORT})
    writes = Access(local={Kind.RESOURCE_EXPORT})
    indexes = ()

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:  # noqa: ARG002
        """Return the export that changed, if it is of another kind."""
        return _key(change.new) if change.new and self._mine(change.new) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all exports of other kinds."""
        for raw in view.list(Kind.RESOURCE_EXPORT, namespace=self._settings.namespace or None):
            yield from _key(raw)

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return what is written about the export."""
        area, name = key.split("/", 1)
        raw = view.get(Ref(kind=Kind.RESOURCE_EXPORT, namespace=area, name=name))
        if raw is None or not _key(raw):
            return DesiredObjects()
        if is_deleting(raw):
            return DesiredObjects(steps=[step for step in (released(raw),) if step])
        kind = printable(text_at(raw, "spec", "kind"))
        return DesiredObjects(steps=[failed(raw, f'this leader does not merge exports of kind "{kind}"', now)])

    def _mine(self, raw: RawObject) -> bool:
        return self._settings.namespace in ("", namespace_of(raw))


_ANSWERED = frozenset({*ExportKind, names.POLICY, names.KUBERNETES_POLICY})  # by other reconcilers


def _key(raw: RawObject) -> list[str]:
    if text_at(raw, "spec", "kind") in _ANSWERED:
        return []
    return [key_of(raw)]
