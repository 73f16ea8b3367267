"""What is known of the objects that reconcilers write: their content, outcomes, dropped fields, repeated writes.

Objects of watched kinds are in the cache. Others, such as a heartbeat, are read when they are needed, and used for
a minute. Knows no client and no reconciler.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcagent.controller.machinery.apply import DroppedValue, Path, Verb, Write
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Json, Ref, Side
from mcagent.model.api.base import ApiObject
from mcagent.model.backoff import Backoff

FRESH = 60.0  # seconds for which the answer to a read is used
DROPPED_FOR = 3600.0  # seconds until a dropped value is sent again: the CRDs may be newer then
FREE = 3  # equal writes in a row without a wait
WAITS = Backoff(first=1.0, most=300.0, jitter=0.0)  # between equal writes after those
FORGET_REPEATS = 600.0  # seconds
_TIME = re.compile('"lastTransitionTime": "[^"]*"')  # of a condition: that of the write
# What we create and delete in turn, no other client reverts.
_OPPOSITES = {Verb.CREATE: Verb.DELETE, Verb.DELETE: Verb.CREATE}


@dataclass(slots=True)
class _Dropped:
    uid: object
    epoch: int
    since: float
    values: dict[Path, DroppedValue]


@dataclass(slots=True)
class _Repeat:
    digest: int
    count: int
    last: float


class WrittenObjects:
    """Safe to use from many threads. `now` is the monotonic time.

    An epoch counts leaders: nothing that one leader answered is true of the next.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache, self._lock = cache, threading.Lock()
        self._read: dict[Ref, tuple[int, float, ApiObject]] = {}  # epoch and time of the read
        self._failures: dict[Ref, str] = {}
        # The epoch whose leader accepted the last write; only of objects that a reconciler has asked about.
        self._accepted: dict[Ref, int | None] = {}
        self._dropped: dict[Ref, _Dropped] = {}
        self._repeats: dict[tuple[Ref, Verb], _Repeat] = {}

    # --- content ------------------------------------------------------------------------------------------

    def present(self, ref: Ref, epoch: int, read: Callable[[Ref], ApiObject | None]) -> ApiObject | None:
        """Return an object, None if there is none. `read` asks the API server, and may raise.

        The object may be outdated: a write names the version that it was made from, so it is refused then.
        """
        if ref.kind in self._cache.kinds(ref.side):
            return self._cache.get(ref, ApiObject)
        now = time.monotonic()
        with self._lock:
            entry = self._read.get(ref)
        if entry is not None and entry[0] == epoch and now < entry[1] + FRESH:
            return entry[2]
        obj = read(ref)
        with self._lock:
            self._read.pop(ref, None)
            if obj is not None:
                self._read[ref] = (epoch, now, obj)
        return obj

    def store(self, ref: Ref, obj: ApiObject | None, previous: ApiObject | None, epoch: int) -> None:
        """Store what a write left (None: no object); `previous` is what the write was made from."""
        if ref.kind in self._cache.kinds(ref.side):
            self._cache.wrote(ref, obj, previous)
            return
        with self._lock:
            entry = self._read.pop(ref, None)
            if entry is not None and obj is not None:
                self._read[ref] = (epoch, entry[1], obj)

    def forget(self, ref: Ref) -> None:
        """Read an object again next time, if its kind is not watched."""
        with self._lock:
            self._read.pop(ref, None)

    # --- outcomes -----------------------------------------------------------------------------------------

    def failed(self, ref: Ref, why: str) -> bool:
        """Remember that a write was refused. Returns whether the reason is a new one."""
        with self._lock:
            is_new = self._failures.get(ref) != why
            self._failures[ref] = why
            self._set_accepted(ref, None)
            return is_new

    def succeeded(self, ref: Ref, epoch: int | None) -> bool:
        """Forget a refusal: the object is as it should be; `epoch` None: it is deleted.

        Returns whether there was one.
        """
        with self._lock:
            self._set_accepted(ref, epoch)
            return self._failures.pop(ref, None) is not None

    def forget_failure(self, ref: Ref) -> None:
        """Forget a refusal of a write that is no longer needed. The object is not accepted by that."""
        with self._lock:
            self._failures.pop(ref, None)

    def forget_failures(self, side: Side) -> None:
        """Forget all refusals of a side: it is another API server now, or none."""
        with self._lock:
            self._failures = {ref: why for ref, why in self._failures.items() if ref.side is not side}

    def forget_accepted(self) -> None:
        """Require another write of each object before it counts as accepted: the leader was away."""
        with self._lock:
            self._accepted = dict.fromkeys(self._accepted)

    def _set_accepted(self, ref: Ref, epoch: int | None) -> None:
        if ref in self._accepted:
            self._accepted[ref] = epoch

    def failure(self, ref: Ref) -> str:
        """Return why the last write of an object was refused; "" if it was not."""
        with self._lock:
            return self._failures.get(ref, "")

    def failures(self) -> dict[Ref, str]:
        """Return the objects whose last write was refused, with the reasons."""
        with self._lock:
            return dict(self._failures)

    def accepted(self, ref: Ref, epoch: int) -> bool:
        """Tell whether this leader accepted an object's last write since the first call, or none was needed."""
        with self._lock:
            return self._accepted.setdefault(ref, None) == epoch

    # --- fields that an API server drops ------------------------------------------------------------------

    def dropped(self, ref: Ref, present: Json | None, epoch: int, now: float) -> Mapping[Path, DroppedValue]:
        """Return the values that the API server drops from an object, which has the same uid since."""
        with self._lock:
            record = self._dropped.get(ref)
            if record is None:
                return {}
            if record.uid != _uid(present) or record.epoch != epoch or now > record.since + DROPPED_FOR:
                del self._dropped[ref]
                return {}
            return dict(record.values)

    def add_dropped(
        self, ref: Ref, values: Mapping[Path, DroppedValue], answer: Json, epoch: int, now: float
    ) -> set[str]:
        """Remember the values that a write's answer lacks. Returns the fields that were not known before."""
        with self._lock:
            record = self._dropped.get(ref)
            if record is None or record.uid != _uid(answer) or record.epoch != epoch:
                record = self._dropped[ref] = _Dropped(_uid(answer), epoch, now, {})
            before = {field for value in record.values.values() for field in value.fields}
            record.values |= values
            return {field for value in values.values() for field in value.fields} - before

    def dropped_fields(self, side: Side) -> list[str]:
        """Return "Kind field" of all that a side's API server drops, sorted."""
        with self._lock:
            fields = {
                f"{ref.kind} {field}"
                for ref, record in self._dropped.items()
                if ref.side is side
                for value in record.values.values()
                for field in value.fields
            }
        return sorted(fields)

    # --- repeated writes: another client reverts them, or the server does not store them -------------------

    def wait(self, write: Write, now: float) -> float:
        """Return for how many seconds a write must not be made yet; 0 or less: it may be."""
        with self._lock:
            repeat = self._repeats.get((write.ref, write.verb))
        if repeat is None or repeat.digest != _digest(write) or repeat.count < FREE:
            return 0.0
        return repeat.last + WAITS.delay(repeat.count - FREE + 1) - now

    def count(self, write: Write, now: float) -> bool:
        """Count a write. Returns whether it is the first that counts as a repeated one."""
        digest, opposite = _digest(write), _OPPOSITES.get(write.verb)
        with self._lock:
            repeat = self._repeats.get((write.ref, write.verb))
            count = repeat.count + 1 if repeat is not None and repeat.digest == digest else 1
            self._repeats[write.ref, write.verb] = _Repeat(digest, count, now)
            if opposite is not None:
                self._repeats.pop((write.ref, opposite), None)
        return count == FREE

    def repeated(self) -> dict[Ref, int]:
        """Return the objects with repeated writes, with the number of equal writes in a row."""
        with self._lock:
            repeats = sorted(self._repeats.items(), key=lambda item: item[1].count)
            return {ref: repeat.count for (ref, _), repeat in repeats if repeat.count >= FREE}

    def prune(self, now: float) -> None:
        """Forget what is outdated."""
        with self._lock:
            self._read = {ref: entry for ref, entry in self._read.items() if now < entry[1] + FRESH}
            self._dropped = {ref: r for ref, r in self._dropped.items() if now <= r.since + DROPPED_FOR}
            self._repeats = {key: r for key, r in self._repeats.items() if now - r.last <= FORGET_REPEATS}


def _uid(obj: Json | None) -> object:
    return obj["metadata"].get("uid") if obj is not None else None


def _digest(write: Write) -> int:
    """Return a hash of what makes two writes equal: all but the version they start from and condition times."""
    body = {key: value for key, value in write.body.items() if key != "preconditions"}
    meta = body.get("metadata")
    if isinstance(meta, dict):
        body["metadata"] = {key: value for key, value in meta.items() if key != "resourceVersion"}
    return hash((write.uid, _TIME.sub("", json.dumps(body, sort_keys=True))))
