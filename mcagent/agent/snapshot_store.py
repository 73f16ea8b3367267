"""Gathers changes of objects from the source's threads until the control loop takes the next snapshot.

Of several changes to one object only the last is kept, so a burst costs no more memory than the objects have.
Knows nothing of what objects are used for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from mcagent.core.snapshot import Change, Delete, Forget, Relist, Upsert, apply_changes
from mcagent.kube.source import EventType, WatchEvent
from mcagent.model.api.base import ApiObject
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.problem import Problem


class SnapshotStore:
    """A `mcagent.kube.source.Sink`. Its methods may be called from any thread, `take` from one only."""

    def __init__(self, on_change: Callable[[], None], own_node: str = "") -> None:
        """`own_node`: see `apply_changes`."""
        self._on_change = on_change
        self._own_node = own_node
        self._lock = threading.Lock()
        # By kind: under "" the last list, or Forget; then the last change of each object since.
        self._changes: dict[Kind, dict[str, Change]] = {}
        self._read = Snapshot()
        self.snapshot = self._read  # the last that was taken: with problems of the source
        self.selected: frozenset[Kind] = frozenset()  # kinds that are read by labels
        self.source_problems: Callable[[], tuple[Problem, ...]] = tuple  # objects that the source cannot use

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Replace all objects of a kind."""
        self._replace_kind(Relist(kind=kind, items=objects))

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Add or replace one object, or delete it."""
        deleted = event.type is EventType.DELETED
        change = Delete(kind=kind, key=event.key) if deleted else Upsert(kind=kind, raw=event.object)
        with self._lock:
            self._changes.setdefault(kind, {})[event.key] = change
        self._on_change()

    def forget(self, kind: Kind) -> None:
        """Drop the objects of a kind that is no longer read."""
        self._replace_kind(Forget(kind=kind))

    def _replace_kind(self, change: Relist | Forget) -> None:
        with self._lock:
            self._changes[change.kind] = {"": change}
        self._on_change()

    def take(self) -> Snapshot:
        """Return the snapshot with every change received so far; the same object while nothing changed."""
        with self._lock:
            changes, self._changes = self._changes, {}
        before = self._read
        in_order = (change for kind in changes.values() for change in kind.values())
        self._read = apply_changes(before, in_order, self._own_node)
        problems = tuple(sorted({*self._read.problems, *self.source_problems()}))
        added = (problems, self.selected)
        if self._read is not before or added != (self.snapshot.problems, self.snapshot.selected):
            self.snapshot = replace(self._read, problems=problems, selected=self.selected)
        return self.snapshot
