"""Applies a plan: stage by stage, and side by side where stages do not need each other.

Every backend is used by one thread at a time, and what one refuses stops no other. Decides no order
(`mcagent.core.plan.diff`) and remembers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mcagent.core.plan.path_down import Lane, needs_flows, takes_into_use, turns
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.errors import BackendError
from mcagent.model.plan import Op, Plan, Stage, Step
from mcagent.model.resources import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A backend that did not do all that it was asked."""

    errors: tuple[BackendError, ...]
    unreachable: bool

    @property
    def gone(self) -> bool:
        """Whether what the backend held is lost (see BackendError)."""
        return any(error.gone for error in self.errors)

    @property
    def retryable(self) -> bool:
        """Whether trying the same again may help."""
        return any(error.retryable for error in self.errors)


class Phases:
    """Adds up the time spent in each named phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._name = ""
        self._since = 0.0

    def enter(self, name: str) -> None:
        """End the phase before, begin this one."""
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now

    def end(self) -> dict[str, float]:
        """End the last phase; return seconds by name."""
        self.enter("")
        return self.seconds


def apply_plan(
    backends: Mapping[Backend, DataplaneBackend],
    plan: Plan,
    left_alone: frozenset[Backend],
    failures: dict[Backend, Failure],
    phases: Phases,
) -> tuple[Step, ...]:
    """Apply the stages of a plan; return the steps that were done, and put into `failures` who refused what.

    The time of a turn is that of its first lane: what goes on beside it costs none of its own.
    """
    done: list[Step] = []
    for first, *others in turns(plan):
        with ThreadPoolExecutor(max_workers=len(others) or 1, thread_name_prefix="apply") as pool:
            # No two lanes have a backend in common, so that each writes its own failures.
            beside = [pool.submit(_lane, backends, lane, left_alone, failures, None) for lane in others]
            done.extend(_lane(backends, first, left_alone, failures, phases))
            for lane in beside:
                done.extend(lane.result())
    return tuple(done)


def _lane(
    backends: Mapping[Backend, DataplaneBackend],
    lane: Lane,
    left_alone: frozenset[Backend],
    failures: dict[Backend, Failure],
    phases: Phases | None,
) -> list[Step]:
    """Apply stages one after the other; what is no refusal of a backend comes through."""
    done: list[Step] = []
    for stage in lane:
        if not _may_go(stage, left_alone, failures):
            continue
        if phases is not None:
            phases.enter(f"apply_{stage.backend}")
        before = failures.get(stage.backend)
        try:
            result = backends[stage.backend].apply(stage.steps)
        except BackendError as error:
            failures[stage.backend] = _joined(before, (error,), unreachable=True)
            continue
        done.extend(result.done)
        if result.failed:
            errors = tuple(error for _, error in result.failed)
            failures[stage.backend] = _joined(before, errors, unreachable=False)
    return done


def _may_go(stage: Stage, left_alone: frozenset[Backend], failures: dict[Backend, Failure]) -> bool:
    failure = failures.get(stage.backend)
    if stage.backend in left_alone or (failure is not None and failure.unreachable):
        return False
    flows = failures.get(Backend.OPENFLOW)
    unsure = Backend.OPENFLOW in left_alone or (flows is not None and flows.unreachable)
    if unsure and all(takes_into_use(step) for step in stage.steps):
        return False  # who learns what was done sees that it was not
    if (needs_flows(stage) or _removes_tunnels(stage)) and (Backend.OPENFLOW in left_alone or flows is not None):
        reason = "held back until the flows that may use it are changed"
        held = tuple(error_for(step, reason) for step in stage.steps)
        failures[stage.backend] = _joined(failure, held, unreachable=False)
        return False
    return True


def _removes_tunnels(stage: Stage) -> bool:
    return stage.backend is Backend.OVSDB and all(step.op is Op.DELETE for step in stage.steps)


def error_for(step: Step, reason: str) -> BackendError:
    """Return the error that says why a step was not tried."""
    return BackendError(step.backend, str(step.op), " ".join(map(str, step.key)), reason)


def _joined(before: Failure | None, errors: tuple[BackendError, ...], *, unreachable: bool) -> Failure:
    return Failure(errors=(*(before.errors if before else ()), *errors), unreachable=unreachable)
