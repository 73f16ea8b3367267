"""A time limit for what pytest does about a test, by the timer that pytest-timeout uses for the test itself."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

EVIDENCE_SECONDS = 60.0
"""How long the evidence of one failure may take to collect."""
AFTERWARDS = 120.0
"""Seconds that a test with a time-out has at least for what follows."""


class _LateError(BaseException):
    """The limit is over. No code under the limit catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Run the body for at most `seconds`, with the time-out of the test stopped meanwhile. Main thread only.

    The time-out of pytest-timeout covers a test from its set-up to its end. If it fires in a hook, pytest ends
    with an internal error, and all remaining tests are lost.
    """
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, 0)

    def late(number: int, frame: FrameType | None) -> None:
        raise _LateError

    handler = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    except _LateError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if callable(handler):
            signal.setitimer(signal.ITIMER_REAL, max(remaining, AFTERWARDS))
