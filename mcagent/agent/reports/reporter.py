"""Turns the outcome of each pass into log lines, metrics and the report that pages show. Decides nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from mcagent.agent.control_loop.apply import Failure
from mcagent.agent.control_loop.outcome import Outcome
from mcagent.agent.control_loop.schedule import Retry
from mcagent.core.plan.render import resource_text
from mcagent.model.plan import Step
from mcagent.model.resources import Backend
from mcagent.observe.report import BackendReport, PassReport, Report

log = logging.getLogger(__name__)

TOLD = 20  # steps, errors and problems named one by one; the rest is counted


class PassMetrics(Protocol):
    """The counters that a pass feeds."""

    def passed(self, result: str, phases: Mapping[str, float], at: float) -> None:
        """Count a pass."""

    def changed(self, backend: str, kind: str, op: str, count: int) -> None:
        """Count changes made."""

    def corrected(self, kind: str, count: int) -> None:
        """Count drift put right."""

    def failed(self, backend: str, unreachable: bool, count: int) -> None:
        """Count errors."""


class NoMetrics:
    """For runs that nobody scrapes."""

    def passed(self, result: str, phases: Mapping[str, float], at: float) -> None:
        """Pass over."""

    def changed(self, backend: str, kind: str, op: str, count: int) -> None:
        """Pass over."""

    def corrected(self, kind: str, count: int) -> None:
        """Pass over."""

    def failed(self, backend: str, unreachable: bool, count: int) -> None:
        """Pass over."""


class Reporter:
    """Keeps the report current. `passed` is called from the loop's thread; `report` may be read from any."""

    def __init__(self, backends: Iterable[Backend], metrics: PassMetrics | None = None) -> None:
        self._backends = tuple(backends)
        self._metrics: PassMetrics = metrics or NoMetrics()
        self._told: dict[Backend, tuple[str, ...]] = {}
        self._fights: dict[Backend, tuple[str, ...]] = {}
        self.report = Report(backends=tuple(BackendReport(name=name) for name in self._backends))

    def passed(self, outcome: Outcome, *, trigger: str, error: str, retries: Mapping[Backend, Retry]) -> None:
        """Take in a pass."""
        before = self.report
        now = time.time()
        result = _result(outcome, error)
        counts = outcome.counts
        last = PassReport(
            at=now,
            trigger=trigger,
            result=result,
            phases=outcome.phases,
            changes={f"{backend} {kind} {op}": count for (backend, kind, op), count in sorted(counts.items())},
            steps=_named(outcome.done),
            drift=_listing(outcome.drift),
            contended=tuple(text for found in outcome.contended.values() for text in found)[:TOLD],
            errors=(*((error,) if error else ()), *_errors(outcome.failures.values())),
        )
        self._metrics.passed(result, outcome.phases, now)
        for (backend, kind, op), count in counts.items():
            self._metrics.changed(backend, kind, op, count)
        self._log(outcome, last, retries)
        self.report = Report(
            desired=outcome.desired or before.desired,
            converged=outcome.converged,
            waiting_for=tuple(sorted(outcome.waiting_for)),
            error=error,
            passes=before.passes + 1,
            drift=before.drift + len(outcome.drift),
            backends=tuple(self._backend(name, outcome, retries, now) for name in self._backends),
            last_pass=last,
            last_change=last if outcome.done else before.last_change,
        )

    def _backend(
        self, name: Backend, outcome: Outcome, retries: Mapping[Backend, Retry], now: float
    ) -> BackendReport:
        retry = retries.get(name)
        contended = outcome.contended.get(name, ())
        if retry is None and contended:
            return BackendReport(name=name, errors=_cut(contended))
        if retry is None:
            return BackendReport(name=name, synced=outcome.desired is not None)
        failure = outcome.failures.get(name)
        at = now + retry.at - time.monotonic()
        return BackendReport(
            name=name,
            failures=retry.failures,
            retry_at=None if at == float("inf") else at,
            errors=_errors([failure]) if failure else self._told.get(name, ()),
        )

    def _log(self, outcome: Outcome, last: PassReport, retries: Mapping[Backend, Retry]) -> None:
        if outcome.waiting_for and tuple(sorted(outcome.waiting_for)) != self.report.waiting_for:
            log.info("waiting until these are listed: %s", ", ".join(sorted(outcome.waiting_for)))
        if outcome.drift:
            for kind, count in _count_kinds(outcome.drift).items():
                self._metrics.corrected(kind, count)
            log.warning("put back %d that somebody else had changed: %s", len(outcome.drift), last.drift)
        if outcome.done:
            counted = ", ".join(f"{count} {what}" for what, count in last.changes.items())
            log.info("changed (%s) in %.0f ms: %s", last.trigger, 1000 * sum(last.phases.values()), counted)
        if log.isEnabledFor(logging.DEBUG):
            spent = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in last.phases.items())
            log.debug("pass (%s): %s; ms: %s", last.trigger, last.result, spent)
        for step in outcome.done if log.isEnabledFor(logging.DEBUG) else ():
            log.debug("%s", step_text(step))
        for name in self._backends:
            failure = outcome.failures.get(name)
            contended = _cut(outcome.contended.get(name, ()))
            for text in contended if contended != self._fights.get(name, ()) else ():
                log.warning("%s", text)
            self._fights[name] = contended
            if failure is None and (name in retries or outcome.desired is None):
                continue  # not tried in this pass
            errors = _errors([failure]) if failure else ()
            if failure:
                self._metrics.failed(name, failure.unreachable, len(failure.errors))
            if errors and errors != self._told.get(name):
                for text in errors:
                    log.error("%s", text)
            if not errors and self._told.get(name):
                log.info("%s: works again", name)
            self._told[name] = errors
        if outcome.converged and not self.report.converged:
            log.info("the dataplane is as it should be")
        if outcome.desired is not None:
            self._log_problems(outcome)

    def _log_problems(self, outcome: Outcome) -> None:
        assert outcome.desired is not None
        before = set(self.report.desired.problems) if self.report.desired is not None else set()
        if outcome.desired.problems is (self.report.desired.problems if self.report.desired else None):
            return
        fresh = [problem for problem in outcome.desired.problems if problem not in before]
        for problem in fresh[:TOLD]:
            log.warning("%s (%s)", problem, problem.reason)
        if len(fresh) > TOLD:
            log.warning("and %d more problems: see /status", len(fresh) - TOLD)
        gone = len(before.difference(outcome.desired.problems))
        if gone:
            log.info("%d problems are gone", gone)


def _result(outcome: Outcome, error: str) -> str:
    if error or outcome.failures:
        return "failed"
    if outcome.waiting_for:
        return "waiting"
    return "changed" if outcome.done else "unchanged"


def step_text(step: Step) -> str:
    """Return "add flow ...", "replace route ...", "delete tunnel ..."."""
    shown = step.new if step.new is not None else step.old
    assert shown is not None
    return f"{step.op} {resource_text(shown)}"


def drift_text(step: Step) -> str:
    """Return what somebody had changed, and that it was put back."""
    if step.new is None:
        assert step.old is not None
        return f"removed what was added: {resource_text(step.old)}"
    if step.old is None:
        return f"put back what was gone: {resource_text(step.new)}"
    return f"put back {resource_text(step.new)} (it was changed to {resource_text(step.old)})"


def _cut(texts: tuple[str, ...]) -> tuple[str, ...]:
    return (*texts[:TOLD], *([f"and {len(texts) - TOLD} more"] if len(texts) > TOLD else []))


def _errors(failures: Iterable[Failure]) -> tuple[str, ...]:
    texts = [str(error) for failure in failures for error in failure.errors]
    return _cut(tuple(texts))


def _named(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(step_text(step) for step in steps[:TOLD])


def _listing(steps: tuple[Step, ...]) -> str:
    more = f" and {len(steps) - TOLD} more" if len(steps) > TOLD else ""
    return "; ".join(f"{step.backend}: {drift_text(step)}" for step in steps[:TOLD]) + more


def _count_kinds(steps: tuple[Step, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for step in steps:
        kind = type(step.new if step.new is not None else step.old).__name__
        counts[kind] = counts.get(kind, 0) + 1
    return counts
