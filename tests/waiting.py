"""Waiting in tests for what nobody announces."""

from __future__ import annotations

from collections.abc import Callable

from devtools.waiting import wait_until


def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    """Return when the condition holds. Raises LabError when it has not after so many seconds."""
    wait_until(condition, "the condition to hold", timeout=timeout, interval=0.01)
