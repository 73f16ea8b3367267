"""Waiting in tests for what nobody announces, and how long something may take."""

from __future__ import annotations

from collections.abc import Callable

from devtools.waiting import slowness, wait_until


def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    """Return when the condition holds. Raises LabError when it has not after so many seconds."""
    wait_until(condition, "the condition to hold", timeout=timeout, interval=0.01)


def allowed(seconds: float) -> float:
    """Return how long something may take now that takes at most so many seconds on an idle machine."""
    return seconds * slowness()
