"""Waiting for a condition with a deadline: what the lab and the tests use instead of sleeping.

A deadline is meant for an idle machine. The machine's speed is measured while a wait lasts, and the deadline is
extended by as much as the machine was slower at worst.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Callable

from devtools.errors import FatalError, LabError

COMPUTING = 0.018
"""Seconds that `_computing` takes on an idle machine (3 GHz)."""
STARTING = 0.015
"""Seconds that `_starting` takes there."""
MEASURED_AFTER = 1.0
"""Seconds until the first measurement: what holds sooner costs none. Each next one comes when the wait has lasted
twice as long: a measurement costs 30 ms of processor time."""
SLOWEST = 8.0
"""No deadline is extended by a larger factor: a caller must learn of a real fault at some time."""


def wait_until(
    condition: Callable[[], object], what: str, *, timeout: float = 10.0, interval: float = 0.02
) -> None:
    """Return as soon as `condition()` is true; that it raises LabError means that it is not, yet.

    Raises LabError naming `what`, and the last error of the condition, after `timeout` seconds on an idle machine,
    or accordingly later on a busy one. A FatalError of the condition passes through at once.
    """
    start = measured = time.monotonic()
    factor = 1.0
    while True:
        problem = ""
        try:
            if condition():
                return
        except FatalError:
            raise
        except LabError as error:
            problem = f": {error}"
        now = time.monotonic()
        late = now - start > timeout * factor
        if late or now - measured > max(MEASURED_AFTER, measured - start):
            factor = max(factor, slowness())
            measured = time.monotonic()
        if late and measured - start > timeout * factor:
            raise LabError(f"waited {measured - start:.1f} s in vain: {what}{problem}")
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
