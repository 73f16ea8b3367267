"""Keeps workers from writing the same thing to the same object over and over.

That happens when somebody else changes it back each time, or when a server does not keep what is written. The
first repeats are for free; after them the waits double. Pure: it is given the time.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass

from mcagent.controller.machinery.apply import Write
from mcagent.controller.machinery.reconciler import Ref
from mcagent.model.backoff import Backoff

FREE = 3  # equal writes in a row that cost no wait
WAITS = Backoff(first=1.0, most=300.0, jitter=0.0)  # between equal writes after those
FORGET = 600.0  # seconds without such a write after which nothing is remembered


@dataclass(slots=True)
class _Repeat:
    print: int
    count: int
    last: float


class RepeatedWrites:
    """Remembers the last write of each object for some minutes. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._repeats: dict[Ref, _Repeat] = {}

    def wait(self, write: Write, now: float) -> float:
        """Return for how many seconds a write must not be made yet; 0 or less: it may be."""
        with self._lock:
            known = self._repeats.get(write.ref)
        if known is None or known.print != _print(write) or known.count < FREE:
            return 0.0
        return known.last + WAITS.delay(known.count - FREE + 1) - now

    def wrote(self, write: Write, now: float) -> bool:
        """Count a write. Returns whether it begins to look like contention."""
        fresh = _print(write)
        with self._lock:
            known = self._repeats.get(write.ref)
            count = known.count + 1 if known is not None and known.print == fresh else 1
            self._repeats[write.ref] = _Repeat(fresh, count, now)
        return count == FREE

    def prune(self, now: float) -> None:
        """Forget what is long past."""
        with self._lock:
            old = [ref for ref, repeat in self._repeats.items() if now - repeat.last > FORGET]
            for ref in old:
                del self._repeats[ref]

    def repeated(self) -> dict[Ref, int]:
        """Return the objects that are written the same way again and again, with how often in a row."""
        with self._lock:
            return {ref: repeat.count for ref, repeat in self._repeats.items() if repeat.count >= FREE}


def _print(write: Write) -> int:
    """Return what makes two writes equal: all but the version that they were made from."""
    body = {key: value for key, value in write.body.items() if key != "preconditions"}
    meta = body.get("metadata")
    if isinstance(meta, dict):
        body["metadata"] = {key: value for key, value in meta.items() if key != "resourceVersion"}
    return hash((write.verb, json.dumps(body, sort_keys=True)))
