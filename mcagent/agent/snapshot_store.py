"""Where sources deliver: gathers changes from their threads, and turns them into the next snapshot when asked.

Of several changes to one object only the last is kept, so a burst costs no more memory than the objects have.
Knows nothing of what a snapshot is used for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mcagent.core.snapshot import ATTRIBUTE, Change, Delete, Relist, Upsert, apply_changes
from mcagent.kube.source import WatchEvent
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.problem import Problem
from mcagent.supervised import attempt

log = logging.getLogger(__name__)


class SnapshotStore:
    """A `mcagent.kube.source.Sink`. Its methods may be called from any thread, `take` from one only."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        # By kind: changes by object since the last list, after that list. None: the kind is to be forgotten.
        self._lists: dict[Kind, Relist | None] = {}
        self._changes: dict[Kind, dict[str, Change]] = {}
        self._snapshot = Snapshot()
        self._taken = self._snapshot
        self.source_problems: Callable[[], tuple[Problem, ...]] = tuple  # what the source itself cannot use

    def replace(self, kind: Kind, objects: Sequence[dict[str, Any]]) -> None:
        """Take all objects of a kind."""
        with self._lock:
            self._lists[kind] = Relist(kind=kind, items=objects)
            self._changes.pop(kind, None)
        self._on_change()

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take one change."""
        change: Change
        if event.type == "DELETED":
            change = Delete(kind=kind, key=event.key)
        else:
            change = Upsert(kind=kind, raw=event.object)
        with self._lock:
            self._changes.setdefault(kind, {})[event.key] = change
        self._on_change()

    def forget(self, kind: Kind) -> None:
        """Take that a kind is read no longer."""
        with self._lock:
            self._lists[kind] = None
            self._changes.pop(kind, None)
        self._on_change()

    def take(self) -> Snapshot:
        """Return the snapshot with everything that came until now."""
        with self._lock:
            lists, self._lists = self._lists, {}
            changes, self._changes = self._changes, {}
        gone = [kind for kind, relist in lists.items() if relist is None]
        snapshot = _without(self._snapshot, gone) if gone else self._snapshot
        todo: list[Change] = [relist for relist in lists.values() if relist is not None]
        todo.extend(change for kind in changes.values() for change in kind.values())
        snapshot = _applied(snapshot, todo) if todo else snapshot
        problems = tuple(sorted({*snapshot.problems, *self.source_problems()}))
        if snapshot is not self._snapshot or problems != self._taken.problems:
            self._taken = snapshot if problems == snapshot.problems else replace(snapshot, problems=problems)
        self._snapshot = snapshot
        return self._taken


def _applied(snapshot: Snapshot, changes: list[Change]) -> Snapshot:
    """Return the snapshot after the changes. An object that breaks the parser costs only itself."""
    found, error = attempt(lambda: apply_changes(snapshot, changes))
    if found is not None:
        return found
    log.error("a change breaks the snapshot, which is a bug: each object is tried alone", exc_info=error)
    usable: list[Change] = []
    for change in changes:
        if isinstance(change, Relist):
            usable.append(
                replace(change, items=[raw for raw in change.items if _breaks_nothing(change.kind, raw)])
            )
        elif isinstance(change, Delete) or _breaks_nothing(change.kind, change.raw):
            usable.append(change)
    return apply_changes(snapshot, usable)


def _breaks_nothing(kind: Kind, raw: object) -> bool:
    return attempt(lambda: apply_changes(Snapshot(), [Upsert(kind=kind, raw=raw)]))[1] is None


def _without(snapshot: Snapshot, kinds: Sequence[Kind]) -> Snapshot:
    prefixes = tuple(f"{kind} " for kind in kinds)
    emptied: dict[str, Any] = {ATTRIBUTE[kind]: {} for kind in kinds}
    return replace(
        snapshot,
        synced=snapshot.synced - frozenset(kinds),
        problems=tuple(p for p in snapshot.problems if not p.subject.startswith(prefixes)),
        **emptied,
    )
