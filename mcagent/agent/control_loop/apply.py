"""Applies a plan stage by stage, and in parallel the stages that `mcagent.core.plan.diff.turns` allows.

Every backend is used by one thread at a time, and an error of one stops no other. Decides no order and keeps no
state.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mcagent.agent.pass_outcome import Failure
from mcagent.core.plan.contention import not_tried
from mcagent.core.plan.diff import Lane, turns
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.dataplane.backend import Backend
from mcagent.model.errors import BackendError
from mcagent.model.plan import Plan, Stage, StageKind, Step

# Flows may use the tunnels that these stages delete, and must exist before the tunnels of an empty bridge.
_ONLY_WITH_FLOWS = (StageKind.ROOM_FOR_TUNNELS, StageKind.FIRST_TUNNELS, StageKind.OLD_TUNNELS)


Failures = dict[Backend, Failure]  # of one pass


class Phases:
    """Measures the time spent in each named phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._name = ""
        self._since = 0.0

    def enter(self, name: str) -> None:
        """End the current phase and begin `name`."""
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now

    def end(self) -> dict[str, float]:
        """End the last phase; return seconds by name."""
        self.enter("")
        return self.seconds


@dataclass(frozen=True, slots=True)
class Applier:
    """Applies one plan. `failures` is completed with the backends that fail."""

    backends: Mapping[Backend, DataplaneBackend]
    left_alone: frozenset[Backend]
    failures: Failures
    phases: Phases

    def plan(self, plan: Plan) -> tuple[Step, ...]:
        """Apply the stages of a plan; return the steps that were done.

        Only the first lane of a turn enters phases: the others run at the same time.
        """
        done: list[Step] = []
        for first, *parallel in turns(plan):
            with ThreadPoolExecutor(max_workers=len(parallel) or 1, thread_name_prefix="apply") as pool:
                # No two lanes share a backend, so each lane writes only failures of its own.
                running = [pool.submit(self._lane, lane) for lane in parallel]
                done.extend(self._lane(first, timed=True))
                for lane in running:
                    done.extend(lane.result())
        return tuple(done)

    def _lane(self, lane: Lane, *, timed: bool = False) -> list[Step]:
        """Apply stages one after the other; only BackendErrors are caught."""
        done: list[Step] = []
        for stage in lane:
            if not self._may_go(stage):
                continue
            if timed:
                self.phases.enter(f"apply_{stage.backend}")
            try:
                result = self.backends[stage.backend].apply(stage.steps)
            except BackendError as error:
                self._fail(stage.backend, (error,), unreachable=True)
                continue
            done.extend(result.done)
            if result.failed:
                self._fail(stage.backend, (error for _, error in result.failed))
        return done

    def _may_go(self, stage: Stage) -> bool:
        failure, flows = self.failures.get(stage.backend), self.failures.get(Backend.OPENFLOW)
        if stage.backend in self.left_alone or (failure is not None and failure.unreachable):
            return False
        blocked = Backend.OPENFLOW in self.left_alone
        if stage.kind is StageKind.TUNNELS_IN_USE:
            return not blocked and (flows is None or not flows.unreachable)
        if stage.kind in _ONLY_WITH_FLOWS and (blocked or flows is not None):
            reason = "held back until the flows that may use it are changed"
            self._fail(stage.backend, (not_tried(step, reason) for step in stage.steps))
            return False
        return True

    def _fail(self, backend: Backend, errors: Iterable[BackendError], *, unreachable: bool = False) -> None:
        failure = self.failures.get(backend)
        earlier = failure.errors if failure is not None else ()
        # Several steps may share one error.
        self.failures[backend] = Failure(errors=tuple(dict.fromkeys((*earlier, *errors))), unreachable=unreachable)
