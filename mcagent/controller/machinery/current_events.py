"""The Events that there should be now, by reconciler and key: what `desired` returned last. Knows no recorder."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from mcagent.controller.machinery.workqueue import Entry
from mcagent.model.event import Event


class CurrentEvents:
    """Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, dict[str, frozenset[Event]]] = {}
        self._dirty = False

    def remember(self, entry: Entry, events: frozenset[Event]) -> None:
        """Replace the Events of a key."""
        name, key = entry
        with self._lock:
            events_by_key = self._events.setdefault(name, {})
            if events == events_by_key.get(key, frozenset()):
                return
            if events:
                events_by_key[key] = events
            else:
                del events_by_key[key]
            self._dirty = True

    def forget(self, reconcilers: Iterable[str]) -> None:
        """Forget the Events of reconcilers that are not called any more."""
        with self._lock:
            forgotten = [self._events.pop(name, {}) for name in reconcilers]
            self._dirty = self._dirty or any(forgotten)

    def of(self, reconciler: str) -> Mapping[str, frozenset[Event]]:
        """Return the Events of a reconciler, by key."""
        with self._lock:
            return dict(self._events.get(reconciler, {}))

    def take(self) -> frozenset[Event] | None:
        """Return all Events, if they changed since the last call."""
        with self._lock:
            dirty, self._dirty = self._dirty, False
            values = (events for by_key in self._events.values() for events in by_key.values())
            return frozenset[Event]().union(*values) if dirty else None
