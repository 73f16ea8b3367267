"""Waiting for a condition with a deadline: what the lab and the tests use instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable

from devtools.errors import LabError


def wait_until(
    condition: Callable[[], object], what: str, *, timeout: float = 10.0, interval: float = 0.02
) -> None:
    """Return as soon as `condition()` is true. Raises LabError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout:g} s in vain: {what}")
        time.sleep(interval)
