"""Which reconcilers are in use, and all of whose keys have to be looked at: asked by many threads, done by one.

A reconciler is in use once all that it reads was listed, and its keys were all asked for then; changes before that
need not be looked at, as that look sees them. Knows no cache, no queue and no reconciler, only names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping


class Resyncs:
    """Safe to use from many threads. `turn` and `done` are the supervisor's.

    An epoch counts the leaders that were connected to: what was in use for one is not for the next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: Mapping[str, int] = {}  # with the epoch since which
        self._asked: dict[str, bool] = {}  # urgently or not
        self._busy = False
        self._woken = threading.Event()

    def uses(self, name: str, epoch: int) -> bool:
        """Tell whether changes are to be routed to a reconciler."""
        return self._used.get(name) == epoch

    def ask(self, names: Iterable[str], *, urgent: bool) -> None:
        """Have all keys of reconcilers looked at. Of one that is not in use they will be when it is."""
        with self._lock:
            for name in names:
                self._asked[name] = self._asked.get(name, False) or urgent
        self._woken.set()

    def wake(self) -> None:
        """Have the supervisor take its turn now."""
        self._woken.set()

    def wait(self, seconds: float) -> None:
        """Return when there is something to do, or after so many seconds."""
        self._woken.wait(seconds)
        self._woken.clear()

    def turn(self, usable: Mapping[str, int]) -> Mapping[str, bool]:
        """Take what can be in use, with its epoch; return whose keys are to be asked for now, urgently or not.

        Changes are routed from here on, so whoever asks for the keys now misses none. `done` has to follow.
        """
        with self._lock:
            asked, self._asked, self._busy = self._asked, {}, True
            found = {
                name: asked.get(name, False) or self._used.get(name) != epoch
                for name, epoch in usable.items()
                if name in asked or self._used.get(name) != epoch
            }
            self._used = dict(usable)
        return found

    def done(self) -> None:
        """Take that the keys were asked for."""
        with self._lock:
            self._busy = False

    def idle(self) -> bool:
        """Tell whether nothing was asked for that is not done."""
        with self._lock:
            return not self._asked and not self._busy
