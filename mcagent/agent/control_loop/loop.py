"""The control loop of the agent: the only thread that changes the dataplane.

Other threads call `changed` (there is new input), `suspect` (a backend's state may have changed) or `stop`. Owns
the thread, the clock and back-off; `reconciler` does a pass, `schedule` says when it is due. A pass that raises an
exception is logged, changes nothing more, and is tried again with back-off.
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
from mcagent.agent.control_loop.reconciler import NodeReconciler
from mcagent.agent.control_loop.schedule import LoopTiming, Queue
from mcagent.agent.control_loop.startup import SetKinds, Startup
from mcagent.agent.pass_outcome import PassOutcome
from mcagent.agent.reports.reporter import Reporter
from mcagent.model.config import Config
from mcagent.model.dataplane.backend import Backend
from mcagent.model.errors import McagentError
from mcagent.model.objects import Snapshot
from mcagent.observe.report import Report
from mcagent.supervised import attempt

log = logging.getLogger(__name__)

IDLE_TURN = 2.0  # seconds: longest time between two turns, which the watchdog checks
STALLED = 60.0  # seconds without a turn after which the loop counts as dead


class Loop:
    """Runs passes until stopped: those of `startup` until one has a desired state, then those of `reconciler`.

    `take` returns the snapshot of all input so far; the source calls `changed` when there is more. `set_kinds`
    sets the kinds that a Node of this role needs; no kinds: as before. `on_turn` is called once per turn. All
    three are called from the loop's thread.
    """

    def __init__(
        self,
        *,
        take: Callable[[], Snapshot],
        set_kinds: SetKinds,
        reconciler: NodeReconciler,
        startup: Startup,
        reporter: Reporter,
        timing: LoopTiming,
        on_turn: Callable[[Report], None] = lambda _: None,
    ) -> None:
        self._take, self._set_kinds = take, set_kinds
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
        """Start a pass: there is new input. `trigger` is for the log."""
        with self._condition:
            self._queue = replace(self._queue, changes=self._queue.changes + 1)
            self._wake(trigger)

    def liveness_changed(self) -> None:
        """Start a pass: BFD or a request to drain changed."""
        self.changed("liveness")

    def suspect(self, backend: Backend) -> None:
        """Read a backend again soon: another program may have changed its state, or it can be reached again."""
        with self._condition:
            if backend not in self._queue.suspects:  # else a read is due already
                self._queue = self._queue.suspect((backend,), time.monotonic() + self._timing.suspect_delay)
                self._wake(f"{backend} event")

    def restarted(self, *backends: Backend) -> None:
        """Read these backends at once: their state was lost, or can be restored now."""
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
        """End `run` after the current pass. The dataplane stays as it is."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def _wake(self, trigger: str) -> None:
        self._triggers.add(trigger)
        self._condition.notify()

    # --- read by other threads ---------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether there is input that no finished pass includes."""
        with self._condition:
            return bool(self._busy or self._queue.changes)

    @property
    def alive(self) -> bool:
        """Whether the last turn is less than STALLED seconds ago."""
        return time.monotonic() - self._turned_at < STALLED

    @property
    def report(self) -> Report:
        """The state after the last pass."""
        return self._reporter.report

    # --- the thread --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run passes until `stop`. An exception outside of a pass propagates: the process must be restarted."""
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
        """Do the pass that is due, and report it."""
        with self._condition:
            now = time.monotonic()
            queue, triggers = self._queue, self._triggers
            todo = schedule.plan_pass(queue, now)
            self._queue, self._triggers = queue.take(todo, now, self._timing), set()
            self._busy = queue.changes > 0
            config, self._new_config = self._new_config, None
        if todo.resync and not triggers:
            triggers = {"resync"}
        elif not triggers and queue.wake_at <= now:
            triggers = {"timer"}
        if config is not None:
            self._reconciler.config = config
            self._reconciler.forget()
        result, caught = attempt(partial(self._pass, todo))
        error = ""
        if caught is not None:  # a bug must not take the dataplane down
            expected = isinstance(caught, McagentError)
            error = str(caught) if expected else f"{type(caught).__name__}: {caught}"
            log.error("nothing is changed: %s", error, exc_info=None if expected else caught)
            self._reconciler.forget()
        outcome = result or PassOutcome()
        self._update_queue(todo, outcome, gathered=queue.changes, broken=caught is not None)
        trigger = ", ".join(sorted(triggers)) or "retry"
        self._reporter.passed(outcome, trigger=trigger, error=error, retries=self._queue.retries)
        with self._condition:
            self._busy = False

    def _pass(self, todo: schedule.Pass) -> PassOutcome:
        outcome = self._reconcile(self._take(), observe=todo.observe, blocked=todo.blocked)
        self._set_kinds(outcome.needs, all_pods=outcome.all_pods, all_services=outcome.all_services)
        if outcome.desired is not None:
            self._reconcile = self._reconciler.reconcile  # start-up is over
        return outcome

    def _update_queue(self, todo: schedule.Pass, outcome: PassOutcome, *, gathered: int, broken: bool) -> None:
        """Update the queue after a pass: pace, and back-off of backends that failed."""
        now = time.monotonic()
        earlier = self._queue.retries  # written by this thread only
        retries = {
            backend: schedule.after_change(retry) if gathered else retry
            for backend, retry in earlier.items()
            if backend in todo.blocked
        }
        for backend, failure in outcome.failures.items():
            retries[backend] = schedule.next_retry(
                earlier.get(backend),
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
                resync_at = max(resync_at, now + self._timing.resync)  # the source calls `changed`
            self._queue = replace(
                self._queue,
                retries=retries,
                resync_at=resync_at,
                # A pass without a desired state did not evaluate time-outs.
                wake_at=math.inf if broken or outcome.desired is None else self._reconciler.wake,
                pace=schedule.next_pace(self._queue.pace, changes=gathered, now=now, timing=self._timing),
            )
