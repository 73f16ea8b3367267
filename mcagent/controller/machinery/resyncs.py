"""Resyncs: which reconcilers are active, and of which all keys have to go into the work queue.

Many threads request a resync; the engine's supervisor does it. A reconciler becomes active once all that it reads
is listed, and all its keys are enqueued then. Changes before that need not be: those keys see them. Knows no
cache, no queue and no reconciler, only names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping


class Resyncs:
    """Safe to use from many threads. Only the supervisor calls `wait`, `take` and `done`.

    An epoch counts the leaders that were connected to: what was active for one is not for the next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: Mapping[str, int] = {}  # with the epoch since which
        self._requested: dict[str, bool] = {}  # urgently or not
        self._busy = False
        self._woken = threading.Event()

    def is_active(self, name: str, epoch: int) -> bool:
        """Tell whether changes go to a reconciler."""
        return self._active.get(name) == epoch

    def request(self, names: Iterable[str], *, urgent: bool) -> None:
        """Have all keys of reconcilers enqueued; of one that is not active when it becomes so."""
        with self._lock:
            for name in names:
                self._requested[name] = self._requested.get(name, False) or urgent
        self._woken.set()

    def wake(self) -> None:
        """End the supervisor's `wait`."""
        self._woken.set()

    def wait(self, seconds: float) -> None:
        """Return when there is something to do, or after so many seconds."""
        self._woken.wait(seconds)
        self._woken.clear()

    def take(self, usable: Mapping[str, int]) -> Mapping[str, bool]:
        """Make reconcilers active, each with its epoch; return whose keys to enqueue now, urgently or not.

        Changes go to them from here on, so a caller that enqueues the keys now misses none. `done` has to follow.
        """
        with self._lock:
            requested, self._requested, self._busy = self._requested, {}, True
            to_enqueue = {
                name: requested.get(name, False) or self._active.get(name) != epoch
                for name, epoch in usable.items()
                if name in requested or self._active.get(name) != epoch
            }
            self._active = dict(usable)
        return to_enqueue

    def done(self) -> None:
        """End a `take`: the keys are enqueued."""
        with self._lock:
            self._busy = False

    def idle(self) -> bool:
        """Tell whether no request is open."""
        with self._lock:
            return not self._requested and not self._busy
