"""The watch cache: per resource, what happened since the last compaction.

It must not know HTTP. Objects handed in are never changed afterwards, so they are shared, not copied.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice

from devtools.apiserver.errors import Json, expired

ObjectKey = tuple[str, str]  # namespace ("" when cluster-scoped), name


class Stored:
    """One version of one object, with its JSON text made once. `obj` must not be changed."""

    __slots__ = ("_texts", "obj", "rv")

    def __init__(self, obj: Json, rv: int) -> None:
        self.obj = obj
        self.rv = rv
        self._texts: dict[str, bytes] = {}

    @property
    def key(self) -> ObjectKey:
        """Return namespace and name."""
        meta = self.obj["metadata"]
        return (meta.get("namespace", ""), meta["name"])

    def text(self, api_version: str) -> bytes:
        """Return the object as JSON, as read through `api_version`."""
        text = self._texts.get(api_version)
        if text is None:
            text = json.dumps(self.obj | {"apiVersion": api_version}, separators=(",", ":")).encode()
            self._texts[api_version] = text
        return text


@dataclass(frozen=True, slots=True)
class Event:
    """One change. `old` is None for ADDED; for DELETED `new` is the last state with the deletion's version."""

    type: str
    rv: int
    new: Stored
    old: Stored | None


class History:
    """The events of one resource in order. The lock is the store's; `changed` wakes the watches."""

    def __init__(self, lock: threading.RLock, limit: int, compacted: int) -> None:
        self.changed = threading.Condition(lock)
        self._events: deque[Event] = deque()
        self._limit = limit
        self._first = 0  # position of the oldest event kept
        self._compacted = compacted  # versions before this are gone

    def append(self, event: Event) -> None:
        """Add an event, forget the oldest beyond the limit, wake the watches. Call with the lock held."""
        self._events.append(event)
        if len(self._events) > self._limit:
            self._compacted = self._events.popleft().rv
            self._first += 1
        self.changed.notify_all()

    def compact(self, rv: int) -> None:
        """Forget everything up to version `rv`. Call with the lock held."""
        while self._events and self._events[0].rv <= rv:
            self._events.popleft()
            self._first += 1
        self._compacted = max(self._compacted, rv)
        self.changed.notify_all()

    def position(self, rv: int) -> int:
        """Return the position after version `rv`. Raises ApiError 410 when history no longer reaches it."""
        if rv < self._compacted:
            raise expired(f"too old resource version: {rv} ({self._compacted})")
        newer = 0
        for event in reversed(self._events):
            if event.rv <= rv:
                break
            newer += 1
        return self._first + len(self._events) - newer

    def since(self, position: int, most: int = 500) -> list[Event]:
        """Return events from a position on. Raises ApiError 410 when they were compacted away."""
        start = position - self._first
        if start < 0:
            raise expired(f"too old resource version: compacted at {self._compacted}")
        if start == len(self._events):
            return []
        return list(islice(self._events, start, start + most))
