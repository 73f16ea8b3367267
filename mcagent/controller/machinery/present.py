"""What is there, as far as is known: the cache's objects, and those of kinds that are not watched.

The latter are read when they are needed, and known for a minute, so that a heartbeat need not read first. Knows no
client and no reconciler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Ref
from mcagent.model.api.base import ApiObject

FRESH = 60.0  # seconds for which the answer to a read is used again
_MOST = 1000  # objects, before old ones are dropped


class PresentObjects:
    """Safe to use from many threads. A write names the version that it was made from: an old copy is found out.

    An epoch counts leaders: what is known of one says nothing of the next.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache, self._lock = cache, threading.Lock()
        self._known: dict[Ref, tuple[int, float, ApiObject]] = {}  # epoch and time of the read

    def get(self, ref: Ref, epoch: int, read: Callable[[Ref], ApiObject | None]) -> ApiObject | None:
        """Return an object, None if there is none. `read` asks the API server, and may raise."""
        if ref.kind in self._cache.kinds(ref.side):
            return self._cache.get(ref, ApiObject)
        now = time.monotonic()
        with self._lock:
            entry = self._known.get(ref)
        if entry is not None and entry[0] == epoch and now < entry[1] + FRESH:
            return entry[2]
        obj = read(ref)
        with self._lock:
            if len(self._known) > _MOST:
                self._known = {key: item for key, item in self._known.items() if now < item[1] + FRESH}
            self._known.pop(ref, None)
            if obj is not None:
                self._known[ref] = (epoch, now, obj)
        return obj

    def wrote(self, ref: Ref, obj: ApiObject | None, was: ApiObject | None, epoch: int) -> None:
        """Apply what a write left there (None: nothing); `was` is what it was made from."""
        if ref.kind in self._cache.kinds(ref.side):
            self._cache.wrote(ref, obj, was)
            return
        with self._lock:
            entry = self._known.pop(ref, None)
            if entry is not None and obj is not None:
                self._known[ref] = (epoch, entry[1], obj)

    def forget(self, ref: Ref) -> None:
        """Read it anew next time, if it is not watched."""
        with self._lock:
            self._known.pop(ref, None)
