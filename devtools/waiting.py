"""Waiting for a condition with a deadline: what the lab and the tests use instead of sleeping.

A deadline is meant for an idle machine. Before a wait fails, the machine's present speed is measured, and the
deadline is extended by as much as the machine is slower.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Callable

from devtools.errors import LabError

COMPUTING = 0.018
"""Seconds that `_computing` takes on an idle machine (3 GHz)."""
STARTING = 0.015
"""Seconds that `_starting` takes there."""
SLOWEST = 8.0
"""No deadline is extended by a larger factor: a caller must learn of a real fault at some time."""


def wait_until(
    condition: Callable[[], object], what: str, *, timeout: float = 10.0, interval: float = 0.02
) -> None:
    """Return as soon as `condition()` is true.

    Raises LabError naming `what` after `timeout` seconds on an idle machine, or accordingly later on a busy one.
    """
    start = time.monotonic()
    limit = timeout
    measured = False
    while not condition():
        if time.monotonic() - start > limit:
            if measured:
                raise LabError(f"waited {limit:g} s in vain: {what}")
            limit, measured = timeout * slowness(), True
        time.sleep(interval)


def slowness() -> float:
    """Return how many times slower than an idle machine this one works now, 1.0 to SLOWEST.

    Measures computing and starting processes, for about 30 ms on an idle machine.
    """
    return min(SLOWEST, max(1.0, _seconds(_computing) / COMPUTING, _seconds(_starting) / STARTING))


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _computing() -> None:
    digest = b""
    for _ in range(20_000):
        digest = hashlib.sha256(digest).digest()


def _starting() -> None:
    for _ in range(10):
        subprocess.run(["/bin/true"], check=True)
