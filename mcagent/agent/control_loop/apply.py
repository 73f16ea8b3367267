"""Applies a plan: stage by stage, side by side where `mcagent.core.plan.diff.turns` says so; and a pass's outcome.

Every backend is used by one thread at a time, and what one refuses stops no other. Decides no order and remembers
nothing. The outcome is a value for the loop, for logs, metrics and pages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mcagent.core.plan.contention import not_tried
from mcagent.core.plan.diff import Lane, turns
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.errors import BackendError
from mcagent.model.objects import Kind
from mcagent.model.plan import Desired, Plan, Stage, StageKind, Step
from mcagent.model.resources import Backend

# Flows may use the tunnels that these stages remove, and must be there before tunnels of an empty bridge are.
_ONLY_WITH_FLOWS = (StageKind.ROOM_FOR_TUNNELS, StageKind.FIRST_TUNNELS, StageKind.OLD_TUNNELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A backend that did not do all that it was asked."""

    errors: tuple[BackendError, ...]
    unreachable: bool = False

    @property
    def gone(self) -> bool:
        """Whether what the backend held is lost (see BackendError)."""
        return any(error.gone for error in self.errors)

    @property
    def retryable(self) -> bool:
        """Whether trying the same again may help."""
        return any(error.retryable for error in self.errors)


Failures = dict[Backend, Failure]  # of one pass


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


@dataclass(frozen=True, slots=True)
class Applying:
    """A plan that is being applied. `failures` is filled in: who refused what."""

    backends: Mapping[Backend, DataplaneBackend]
    left_alone: frozenset[Backend]
    failures: Failures
    phases: Phases

    def plan(self, plan: Plan) -> tuple[Step, ...]:
        """Apply the stages of a plan; return the steps that were done.

        The time of a turn is that of its first lane: what goes on beside it costs none of its own.
        """
        done: list[Step] = []
        for first, *others in turns(plan):
            with ThreadPoolExecutor(max_workers=len(others) or 1, thread_name_prefix="apply") as pool:
                # No two lanes have a backend in common, so that each writes its own failures.
                beside = [pool.submit(self._lane, lane) for lane in others]
                done.extend(self._lane(first, timed=True))
                for lane in beside:
                    done.extend(lane.result())
        return tuple(done)

    def _lane(self, lane: Lane, *, timed: bool = False) -> list[Step]:
        """Apply stages one after the other; what is no refusal of a backend comes through."""
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
        before = self.failures.get(backend)
        known = before.errors if before is not None else ()
        # One error may be that of many steps.
        self.failures[backend] = Failure(errors=tuple(dict.fromkeys((*known, *errors))), unreachable=unreachable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`converged`: the whole dataplane is known to equal the desired state."""

    needs: frozenset[Kind] = frozenset()  # kinds to read from now on; empty: as before
    all_pods: bool = False  # where Pods are among them, those of all Nodes
    all_services: bool = False  # where Services are among them, also those that are not imported
    waiting_for: frozenset[Kind] = frozenset()
    desired: Desired | None = None
    done: tuple[Step, ...] = ()
    drift: tuple[Step, ...] = ()  # the part of `done` that put back what somebody else had changed
    failures: Mapping[Backend, Failure] = field(default_factory=dict)
    contended: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)  # what is left alone, and why
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of facts, compile, observe, diff, apply_…
    converged: bool = False


def kind_of(step: Step) -> str:
    """Return the kind of resource that a step changes: "FlowEntry", "Route", ..."""
    return type(step.resource).__name__
