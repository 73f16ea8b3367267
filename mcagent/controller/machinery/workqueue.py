"""The work queue: keys for several workers, each key once, never worked on by two at a time, none starved.

`Lanes` decides and is pure: it is given the time. `WorkQueue` adds a lock and waiting. An entry is a lane (a
reconciler's name) and a key. Lanes take turns, so a lane with 25,000 keys does not hold up another with one; and
none has all workers, so that keys which take long (a Service of 250 clusters is 250 writes) do not, either. In a
lane, keys of changes go before keys of a resync, except in every eighth turn.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mcagent.model.backoff import Backoff

Entry = tuple[str, str]  # lane, key
KEYS = Backoff(first=0.05, most=60.0)  # before a key that failed is tried again
_BACKGROUND_TURN = 8


@dataclass(slots=True)
class _Lane:
    urgent: OrderedDict[str, None] = field(default_factory=OrderedDict)
    background: OrderedDict[str, None] = field(default_factory=OrderedDict)
    turns: int = 0

    def pop(self) -> str | None:
        self.turns += 1
        first, second = self.urgent, self.background
        if self.turns % _BACKGROUND_TURN == 0:
            first, second = second, first
        for queue in (first, second):
            if queue:
                return queue.popitem(last=False)[0]
        return None


class Lanes:
    """What is to be done now, what later, what is under way. Times are those of any one clock, in seconds.

    `most`: entries of one lane that may be under way at a time; None: any number.
    """

    def __init__(
        self, backoff: Backoff = KEYS, chance: Callable[[], float] = random.random, *, most: int | None = None
    ) -> None:
        self._backoff, self._chance, self._most = backoff, chance, most
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()  # the front has the next turn
        self._working: dict[Entry, bool | None] = {}  # None: once is enough; else again, urgently or not
        self._due: dict[Entry, tuple[float, bool]] = {}
        self._heap: list[tuple[float, Entry]] = []  # may hold times that `_due` no longer does
        self._failures: dict[Entry, int] = {}

    def add(self, entry: Entry, *, urgent: bool = True) -> None:
        """Ask for an entry now. One that is under way is done once more afterwards."""
        self._due.pop(entry, None)
        if entry in self._working:
            self._working[entry] = bool(self._working[entry]) or urgent
            return
        lane = self._lanes.setdefault(entry[0], _Lane())
        key = entry[1]
        if urgent:
            lane.background.pop(key, None)
            lane.urgent[key] = None
        elif key not in lane.urgent:
            lane.background[key] = None

    def add_at(self, entry: Entry, when: float, *, urgent: bool = True) -> None:
        """Ask for an entry at a time; the earliest time asked for counts."""
        due = self._due.get(entry)
        if due is not None and due[0] <= when:
            return
        self._due[entry] = (when, urgent)
        heapq.heappush(self._heap, (when, entry))
        if len(self._heap) > 64 + 4 * len(self._due):
            self._heap = [(at, waiting) for waiting, (at, _) in self._due.items()]
            heapq.heapify(self._heap)

    def take(self, now: float) -> Entry | None:
        """Return an entry to work on, or None. The caller then calls `done`."""
        while self._heap and self._heap[0][0] <= now:
            when, entry = heapq.heappop(self._heap)
            due = self._due.get(entry)
            if due is not None and due[0] == when:
                del self._due[entry]
                self.add(entry, urgent=due[1])
        for name in list(self._lanes):
            lane = self._lanes[name]
            if self._most is not None and sum(working[0] == name for working in self._working) >= self._most:
                continue
            self._lanes.move_to_end(name)
            if (key := lane.pop()) is not None:
                self._working[name, key] = None
                return name, key
        return None

    def next_due(self) -> float | None:
        """Return when an entry becomes due that is not yet; None: never. It may be too early, never too late."""
        return self._heap[0][0] if self._heap else None

    def done(self, entry: Entry, now: float, *, failed: bool = False) -> float | None:
        """End the work on an entry. Returns how long a failed one waits, in seconds."""
        again = self._working.pop(entry)
        wait = None
        if failed:
            self._failures[entry] = self._failures.get(entry, 0) + 1
            wait = self._backoff.delay(self._failures[entry], self._chance())
            self.add_at(entry, now + wait)
        else:
            self._failures.pop(entry, None)
        if again is not None:
            # A change that came meanwhile is news; but not such that failing could become a tight loop.
            if failed:
                self.add_at(entry, now + self._backoff.first)
            else:
                self.add(entry, urgent=again)
        return wait

    def clear(self) -> None:
        """Forget what is asked for; what is under way stays."""
        for lane in self._lanes.values():
            lane.urgent.clear()
            lane.background.clear()
        self._due.clear()
        self._heap.clear()
        self._failures.clear()
        self._working = dict.fromkeys(self._working)

    def depths(self) -> Mapping[str, int]:
        """Return how many entries of each lane wait for a worker."""
        return {name: len(lane.urgent) + len(lane.background) for name, lane in self._lanes.items()}

    def waiting(self) -> int:
        """Return how many entries wait for their time."""
        return len(self._due)

    def under_way(self) -> int:
        """Return how many entries are being worked on."""
        return len(self._working)


class WorkQueue:
    """`Lanes` for threads, `most` of them in one lane. Safe to use from many.

    A change wakes only as many threads as can have something to do by it: all of them may take any entry.
    """

    def __init__(
        self, backoff: Backoff = KEYS, *, most: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lanes, self._clock = Lanes(backoff, most=most), clock
        self._changed = threading.Condition()
        self._closed = False

    def add(self, entries: Iterable[Entry], *, urgent: bool = True) -> None:
        """Ask for entries now."""
        with self._changed:
            added = list(entries)
            for entry in added:
                self._lanes.add(entry, urgent=urgent)
            self._changed.notify(len(added))

    def add_after(self, entry: Entry, seconds: float, *, urgent: bool = True) -> None:
        """Ask for an entry in so many seconds."""
        with self._changed:
            self._lanes.add_at(entry, self._clock() + seconds, urgent=urgent)
            self._changed.notify()

    def take(self) -> Entry | None:
        """Return an entry to work on; wait for one. None: the queue was closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                if (entry := self._lanes.take(now)) is not None:
                    return entry
                due = self._lanes.next_due()
                self._changed.wait(None if due is None else max(0.0, due - now) + 0.001)
        return None

    def done(self, entry: Entry, *, failed: bool = False) -> float | None:
        """End the work on an entry. Returns how long a failed one waits, in seconds."""
        with self._changed:
            wait = self._lanes.done(entry, self._clock(), failed=failed)
            self._changed.notify()  # for an entry that is asked for again: the caller takes one itself
            return wait

    def clear(self) -> None:
        """Forget what is asked for."""
        with self._changed:
            self._lanes.clear()

    def close(self) -> None:
        """Let every `take` return None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def depths(self) -> Mapping[str, int]:
        """Return how many entries of each lane wait for a worker."""
        with self._changed:
            return self._lanes.depths()

    def counts(self) -> tuple[int, int]:
        """Return how many entries wait for their time, and how many are being worked on."""
        with self._changed:
            return self._lanes.waiting(), self._lanes.under_way()

    def idle(self) -> bool:
        """Tell whether nothing is to be done now and nothing under way."""
        with self._changed:
            now, due = self._clock(), self._lanes.next_due()
            ready = any(self._lanes.depths().values()) or (due is not None and due <= now)
            return not ready and not self._lanes.under_way()
