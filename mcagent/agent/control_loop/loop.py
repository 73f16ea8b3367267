"""The loop of the agent: the only thread that changes the dataplane.

Everybody else calls `changed` (there is new input), `suspect` (somebody else may have touched a facility) or
`stop`. Owns the thread, the clock and back-off; what a pass does is `reconciler`, when it is due is `schedule`.
A pass that breaks is logged, changes nothing more, and is tried again with back-off.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mcagent.agent.control_loop import schedule
from mcagent.agent.control_loop.apply import Outcome
from mcagent.agent.control_loop.reconciler import Reconciler
from mcagent.agent.control_loop.schedule import Queue, Timing
from mcagent.agent.control_loop.startup import Startup, Want
from mcagent.agent.reports.reporter import Reporter
from mcagent.model.config import Config
from mcagent.model.errors import McagentError
from mcagent.model.objects import Snapshot
from mcagent.model.resources import Backend
from mcagent.observe.report import Report
from mcagent.supervised import attempt

log = logging.getLogger(__name__)

IDLE_TURN = 2.0  # seconds: even with nothing to do the loop turns this often, which is what the watchdog sees
STALLED = 60.0  # seconds without a turn after which the loop counts as dead


class Loop:
    """Runs passes until stopped: those of `startup` until the first that comes to a result.

    `take` returns the snapshot with everything taken in that came until now; whoever has more calls `changed`.
    `want` is told which kinds a Node of this role needs from now on; no kinds: as before. `on_turn` is called once
    per turn. All from the loop's thread.
    """

    def __init__(
        self,
        *,
        take: Callable[[], Snapshot],
        want: Want,
        reconciler: Reconciler,
        startup: Startup,
        reporter: Reporter,
        timing: Timing,
        on_turn: Callable[[Report], None] = lambda _: None,
    ) -> None:
        self._take, self._want = take, want
        self._reconciler = reconciler
        self._reconcile = startup.reconcile
        self._reporter = reporter
        self._timing = timing
        self._on_turn = on_turn
        self._condition = threading.Condition()
        self._queue = Queue(changes=1)
        self._triggers: set[str] = {"start"}
        self._new_config: Config | None = None
        self._stopping = False
        self._busy = False
        self._turned_at = time.monotonic()

    # --- called by other threads --------------------------------------------------------------------------

    def changed(self, trigger: str = "input") -> None:
        """There is new input."""
        with self._condition:
            self._queue = replace(self._queue, changes=self._queue.changes + 1)
            self._wake(trigger)

    def live_changed(self) -> None:
        """BFD, or whoever asks to drain, says something new."""
        self.changed("liveness")

    def suspect(self, backend: Backend) -> None:
        """Somebody else may have changed what this backend holds, or it came back."""
        with self._condition:
            if backend not in self._queue.suspects:  # else it will be read again anyway
                self._queue = self._queue.suspect((backend,), time.monotonic() + self._timing.suspect_delay)
                self._wake(f"{backend} event")

    def restarted(self, *backends: Backend) -> None:
        """What these backends hold was lost, or can be put back now: look at once."""
        with self._condition:
            self._queue = self._queue.suspect(backends, time.monotonic(), urgent=True)
            self._wake(f"{backends[0]} event")

    def reconfigure(self, config: Config) -> None:
        """Use another configuration from the next pass on."""
        with self._condition:
            self._new_config = config
            self._queue = replace(self._queue, changes=self._queue.changes + 1, resync_at=0.0)
            self._wake("configuration")

    def stop(self) -> None:
        """End `run` after the pass that may be under way. The dataplane stays as it is."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def _wake(self, trigger: str) -> None:
        self._triggers.add(trigger)
        self._condition.notify()

    # --- asked by other threads --------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether there is input that no finished pass has taken in yet."""
        with self._condition:
            return bool(self._busy or self._queue.changes)

    @property
    def alive(self) -> bool:
        """Whether the loop has turned within the last minute."""
        return time.monotonic() - self._turned_at < STALLED

    @property
    def report(self) -> Report:
        """The state after the last pass."""
        return self._reporter.report

    # --- the thread --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until `stop`. A bug outside of a pass ends it: the process is to be restarted."""
        while True:
            with self._condition:
                if self._stopping:
                    return
                self._turned_at = time.monotonic()
                wait = schedule.due(self._queue) - self._turned_at
                if wait > 0:
                    self._condition.wait(min(wait, IDLE_TURN))
                    if self._stopping:
                        return
            if wait <= 0:
                self.turn()
            self._on_turn(self._reporter.report)

    def turn(self) -> None:
        """Do the pass that is due now."""
        with self._condition:
            now = time.monotonic()
            before, triggers = self._queue, self._triggers
            todo = schedule.plan_pass(before, now)
            self._queue, self._triggers = before.take(todo, now, self._timing), set()
            self._busy = before.changes > 0
            config, self._new_config = self._new_config, None
        if todo.resync and not triggers:
            triggers = {"resync"}
        elif not triggers and before.wake_at <= now:
            triggers = {"timer"}
        if config is not None:
            self._reconciler.config = config
            self._reconciler.forget()
        found, caught = attempt(partial(self._pass, todo))
        error = ""
        if caught is not None:  # a bug must not take the dataplane down
            known = isinstance(caught, McagentError)
            error = str(caught) if known else f"{type(caught).__name__}: {caught}"
            log.error("nothing is changed: %s", error, exc_info=None if known else caught)
            self._reconciler.forget()
        outcome = found or Outcome()
        self._settle(todo, outcome, gathered=before.changes, broken=caught is not None)
        trigger = ", ".join(sorted(triggers)) or "retry"
        self._reporter.passed(outcome, trigger=trigger, error=error, retries=self._queue.retries)
        with self._condition:
            self._busy = False

    def _pass(self, todo: schedule.Pass) -> Outcome:
        outcome = self._reconcile(self._take(), observe=todo.observe, blocked=todo.blocked)
        self._want(outcome.needs, all_pods=outcome.all_pods, all_services=outcome.all_services)
        if outcome.desired is not None:
            self._reconcile = self._reconciler.reconcile  # start-up is over
        return outcome

    def _settle(self, todo: schedule.Pass, outcome: Outcome, *, gathered: int, broken: bool) -> None:
        """Take the outcome into the queue: pace, and back-off of what failed."""
        now = time.monotonic()
        before = self._queue.retries  # written by this thread only
        retries = {
            backend: schedule.after_change(retry) if gathered else retry
            for backend, retry in before.items()
            if backend in todo.blocked
        }
        for backend, failure in outcome.failures.items():
            retries[backend] = schedule.next_retry(
                before.get(backend),
                unreachable=failure.unreachable,
                retryable=failure.retryable,
                now=now,
                random=random.random(),  # noqa: S311 - jitter
                timing=self._timing,
            )
        with self._condition:
            resync_at = self._queue.resync_at
            if broken:
                resync_at = min(resync_at, now + self._timing.retry_max)
            if outcome.waiting_for:
                resync_at = max(resync_at, now + self._timing.resync)  # the source will wake the loop
            self._queue = replace(
                self._queue,
                retries=retries,
                resync_at=resync_at,
                # A pass that came to no result did not look at what is to end then.
                wake_at=math.inf if broken or outcome.desired is None else self._reconciler.wake,
                pace=schedule.next_pace(self._queue.pace, changes=gathered, now=now, timing=self._timing),
            )
