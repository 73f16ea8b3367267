"""Threads that cannot end unnoticed, loops in such threads, and the one place that catches every exception.

Owns the list of threads that broke, by which /healthz fails. Knows nothing of what threads do.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mcagent.model.backoff import Backoff
from mcagent.model.parsing.field import printable

log = logging.getLogger(__name__)

RESTART = Backoff(first=0.5, most=30.0, jitter=0.0)  # before a thread that broke is run again
STEADY = 60.0  # seconds that make up for what went wrong before
TOLERATED = 4  # breaks in a row for which health does not fail
_CAUSE = 300  # characters of an exception's text
_Result = TypeVar("_Result")

_lock = threading.Lock()
_broken: weakref.WeakSet[Supervised] = weakref.WeakSet()  # whose owner is gone is of no interest any more
_restarts: dict[str, int] = {}


def attempt(work: Callable[[], _Result]) -> tuple[_Result | None, Exception | None]:
    """Return the result of `work`, or the exception that it raised: here alone every exception is caught."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 (a bug, of which the rest must not die; the caller reports it)
        return None, error


class Supervised(threading.Thread):
    """A daemon thread whose end by an exception is logged, and reported by `dead`.

    With `until` it is run again after a while, until that event is set: for loops that keep what they know in
    their object, and can begin anew at any point.
    """

    def __init__(
        self,
        target: Callable[..., object],
        *,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        until: threading.Event | None = None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._call: Callable[[], object] | None = lambda: target(*args, **(kwargs or {}))
        self._until = until
        self.cause = ""  # of its end, or of its last break, also after it has recovered; "" without one
        self.breaks = 0  # in a row
        self._began = 0.0  # when it was run last; monotonic
        self._waits = False  # to be run again

    @property
    def interrupted(self) -> str:
        """The cause of its last break while it does not run because of it; else ""."""
        return self.cause if self._waits or not self.is_alive() else ""

    @property
    def hopeless(self) -> bool:
        """Tell whether it has ended by an exception, or breaks again and again and was not seen to recover."""
        if self._until is None or not self.cause:
            return bool(self.cause)
        return self.breaks > TOLERATED and (self._waits or time.monotonic() - self._began < RESTART.most)

    def run(self) -> None:
        """Do the work; again after a break, where that is right."""
        assert self._call is not None
        while True:
            self._began, self._waits = time.monotonic(), False
            _, error = attempt(self._call)
            if error is None:
                self.cause = ""
                break
            self._waits = True
            self._broke(error, lasted=time.monotonic() - self._began)
            if self._until is None or self._until.wait(RESTART.delay(self.breaks)):
                break
        self._call = None  # the owner may go

    def _broke(self, error: Exception, *, lasted: float) -> None:
        cause = f"{type(error).__name__}: {printable(str(error), _CAUSE)}"
        again = self._until is not None
        log.error("thread %s %s: %s", self.name, "broke" if again else "has died", cause, exc_info=error)
        with _lock:
            self.cause = cause
            self.breaks = 1 if lasted >= STEADY else self.breaks + 1
            _broken.add(self)
            if again:
                _restarts[self.name] = _restarts.get(self.name, 0) + 1


class BackgroundLoop:
    """Calls `step` again and again in a thread, from `start` to `stop`.

    `step` returns the seconds to the next call; `math.inf`: until `wake`. After an exception it is called again,
    with back-off. `delay`: seconds from `wake` to the call, so that changes in quick succession cause one call.
    `patience`: seconds for which `stop` waits for a call under way at most; None: until it ends.
    """

    def __init__(
        self, step: Callable[[], float], *, name: str, delay: float = 0.0, patience: float | None = None
    ) -> None:
        self._step, self._delay, self._patience = step, delay, patience
        self._woken, self._urgent, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._thread = Supervised(self._run, name=name, until=self._stopping)

    @property
    def alive(self) -> bool:
        """Tell whether the thread runs."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Tell whether `stop` was called."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start the thread. Returns at once."""
        self._thread.start()

    def wake(self, *, at_once: bool = False) -> None:
        """Let the next call come after `delay`; with `at_once` now."""
        if at_once:
            self._urgent.set()
        self._woken.set()

    def pause(self, seconds: float) -> None:
        """Wait within `step`; `stop` ends the wait, `wake` does not."""
        self._stopping.wait(seconds)

    def stop(self) -> None:
        """End the loop."""
        self._stopping.set()
        self.wake(at_once=True)
        if self._thread.is_alive():
            self._thread.join(self._patience)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._urgent.clear()
            self._woken.clear()
            wait = self._step()
            # `stop` sets this first, so its `wake` comes after the clearing above, or this is set already.
            if not self._stopping.is_set() and self._woken.wait(None if wait == math.inf else wait):
                self._urgent.wait(self._delay)


def dead() -> list[str]:
    """Return the threads of this process that ended by an exception, or break again and again, and why."""
    with _lock:
        broken = list(_broken)
    return sorted({f"{thread.name} ({thread.cause})" for thread in broken if thread.hopeless})


def restarts() -> Mapping[str, int]:
    """Return how often threads were run again, by name."""
    with _lock:
        return dict(_restarts)
