"""What the engine counts, as plain numbers; `serving.metrics` shows them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcagent.controller.machinery.apply import Write
from mcagent.controller.machinery.reconciler import Side

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
RESULTS = ("unchanged", "changed", "conflict", "failed", "away", "not-leading", "bug")


@dataclass(slots=True)
class Durations:
    """A histogram. `counts` has one more than BUCKETS: what took longer than all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Return cumulative counts by upper bound, as Prometheus wants them."""
        buckets, so_far = [], 0
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], self.counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets


class Statistics:
    """Counts of reconciled keys, writes and requests. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: Counter[tuple[str, str]] = Counter()
        self._durations: dict[str, Durations] = {}
        self._writes: Counter[tuple[str, str, str, str]] = Counter()
        self._requests: Counter[tuple[str, str, str]] = Counter()

    def worked(self, reconciler: str, result: str, seconds: float) -> None:
        """Count a key that was reconciled."""
        with self._lock:
            self._results[reconciler, result] += 1
            durations = self._durations.setdefault(reconciler, Durations())
            durations.counts[bisect_left(BUCKETS, seconds)] += 1
            durations.total += seconds

    def bug(self, reconciler: str) -> None:
        """Count an exception of a reconciler."""
        with self._lock:
            self._results[reconciler, "bug"] += 1

    def wrote(self, reconciler: str, write: Write) -> None:
        """Count a write that the API server accepted."""
        with self._lock:
            self._writes[reconciler, write.ref.side, write.ref.kind, write.verb] += 1

    def requested(self, side: Side, verb: str, code: str) -> None:
        """Count a request to an API server."""
        with self._lock:
            self._requests[side, verb, code] += 1

    def results(self) -> Mapping[tuple[str, str], int]:
        """Return keys by reconciler and result."""
        with self._lock:
            return dict(self._results)

    def writes(self) -> Mapping[tuple[str, str, str, str], int]:
        """Return writes by reconciler, side, kind and verb."""
        with self._lock:
            return dict(self._writes)

    def requests(self) -> Mapping[tuple[str, str, str], int]:
        """Return requests by side, verb and code."""
        with self._lock:
            return dict(self._requests)

    def durations(self) -> Mapping[str, Durations]:
        """Return how long keys took, by reconciler."""
        with self._lock:
            return {name: Durations(list(d.counts), d.total) for name, d in self._durations.items()}
