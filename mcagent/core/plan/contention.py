"""When somebody else changes the same resource again and again: how long to leave it before correcting it again.

The first few corrections are made at once. Then another writer contends for the resource, and the pauses grow.
Pure; times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mcagent.model.backoff import Backoff
from mcagent.model.errors import BackendError
from mcagent.model.plan import Plan, Step
from mcagent.model.resources import Backend, ResourceKey

AT_ONCE = 5  # corrections of a resource that are made without a pause ...
WITHIN = 10.0  # ... each within so many seconds of the one before: another writer answers soon
PAUSE_MAX = 60.0
PAUSES = Backoff(first=2.0, most=PAUSE_MAX, jitter=0.0)
MOST = 1000  # resources remembered
FEW = 3  # resources of one backend that others may contend for at a time, or a twentieth of all

Place = tuple[Backend, ResourceKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contended:
    """One resource that was corrected `count` times, last at `at`; it is left alone until `until`."""

    count: int
    at: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """All that was corrected lately, and what of it is left alone now."""

    by_key: Mapping[Hashable, Contended] = field(default_factory=dict)
    alone: Mapping[Hashable, Contended] = field(default_factory=dict)

    @property
    def wake(self) -> float:
        """When the next resource that is left alone now is corrected; may be inf."""
        return min((one.until for one in self.alone.values()), default=math.inf)

    def judge(self, changed: Iterable[Hashable], now: float) -> Contention:
        """Return the next state, given what somebody else changed. What is not left alone is corrected now."""
        known = {key: one for key, one in self.by_key.items() if now <= one.until + WITHIN}
        alone: dict[Hashable, Contended] = {}
        for key in changed:
            before = known.get(key)
            if before is not None and now < before.until:
                alone[key] = before
                continue
            count = before.count + 1 if before is not None else 1
            pause = PAUSES.delay(count - AT_ONCE + 1) if count >= AT_ONCE else 0.0
            known[key] = Contended(count=count, at=now, until=now + pause)
        newest = sorted(known, key=lambda key: known[key].at)[-MOST:]
        return Contention(by_key={key: known[key] for key in newest}, alone=alone)


def contended(drift: Iterable[Place], held: Mapping[Backend, int]) -> list[Place]:
    """Return the drift that another writer may be behind. `held`: how much each backend held before it.

    Where much is gone at once a facility, or a device, was restarted.
    """
    drift = sorted(drift, key=repr)
    counts = Counter(backend for backend, _ in drift)
    return [one for one in drift if counts[one[0]] <= max(FEW, held[one[0]] // 20)]


def leave_alone(plan: Plan, contention: Contention) -> tuple[Plan, Mapping[Backend, tuple[str, ...]]]:
    """Return the plan without the steps that are left alone, and by backend why each is."""
    if not contention.alone:
        return plan, {}
    reasons: dict[Backend, tuple[str, ...]] = {}
    stages = []
    for stage in plan.stages:
        kept = []
        for step in stage.steps:
            one = contention.alone.get((step.backend, step.key))
            if one is None:
                kept.append(step)
            else:
                reasons[step.backend] = (*reasons.get(step.backend, ()), str(not_tried(step, _reason(one))))
        if kept:
            stages.append(replace(stage, steps=tuple(kept)))
    return Plan(stages=tuple(stages)), reasons


def not_tried(step: Step, reason: str) -> BackendError:
    """Return the error that says why a step was not tried."""
    return BackendError(step.backend, str(step.op), " ".join(map(str, step.key)), reason)


def _reason(one: Contended) -> str:
    return (
        f"another program changes it again and again: reverted {one.count} times, "
        f"now left alone for {one.until - one.at:g} s"
    )
