"""Limits the reviews in progress, in bytes of their bodies, and divides what there is among the clients.

Owns the counts. Knows no request and no connection.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

# A body of 1.5 MiB takes up to 40 MiB of memory and 0.7 s of a processor.
MOST_WORK = 16 * 1024 * 1024
# The cost of a small review: its thread and its look-ups. MOST_WORK is that of as many as the server has slots.
LEAST_WORK = 128 * 1024


class WorkLimit:
    """Admits reviews. A client may have as much work in progress as it leaves to the others.

    So one client has half of `most` at most, nine have a tenth each, and a tenth is left for the next one.
    """

    def __init__(self, most: int = MOST_WORK) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._in_progress: Counter[str] = Counter()

    @contextmanager
    def work(self, source: str, length: int) -> Iterator[bool]:
        """Count a review of `length` bytes until the end of the block. Yields False if it is not admitted."""
        cost = max(length, LEAST_WORK)
        with self._lock:
            total = self._in_progress.total() + cost
            admitted = self._in_progress[source] + cost <= self._most - total
            if admitted:
                self._in_progress[source] += cost
        try:
            yield admitted
        finally:
            if admitted:
                with self._lock:
                    self._in_progress[source] -= cost
                    self._in_progress += Counter()  # drops sources without work
