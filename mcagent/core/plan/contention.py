"""Contention with another writer of the same resource: the pauses between corrections.

The first corrections of a resource are made at once. After that, another writer contends for it, and the pauses
grow. Pure; times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mcagent.model.backoff import Backoff
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import ResourceKey
from mcagent.model.errors import BackendError
from mcagent.model.plan import Plan, Step

AT_ONCE = 5  # corrections of a resource without a pause ...
WITHIN = 10.0  # ... each at most so many seconds after the previous one: another writer reacts soon
PAUSE_MAX = 60.0
PAUSES = Backoff(first=2.0, most=PAUSE_MAX, jitter=0.0)
MOST = 1000  # resources stored
FEW = 3  # resources of one backend that another writer may change at a time, or a twentieth of all

ResourceId = tuple[Backend, ResourceKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The corrections of one resource: `count`, the last one at `at`, the next one not before `until`."""

    count: int
    at: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The recent corrections, and the resources that are paused now."""

    by_key: Mapping[Hashable, Correction] = field(default_factory=dict)
    paused: Mapping[Hashable, Correction] = field(default_factory=dict)

    @property
    def wake(self) -> float:
        """The end of the first pause; inf if no resource is paused."""
        return min((correction.until for correction in self.paused.values()), default=math.inf)

    def update(self, changed: Iterable[Hashable], now: float) -> Contention:
        """Return the next state. `changed`: resources that another writer changed; unless paused, correct them."""
        corrections = {key: last for key, last in self.by_key.items() if now <= last.until + WITHIN}
        paused: dict[Hashable, Correction] = {}
        for key in changed:
            previous = corrections.get(key)
            if previous is not None and now < previous.until:
                paused[key] = previous
                continue
            count = previous.count + 1 if previous is not None else 1
            pause = PAUSES.delay(count - AT_ONCE + 1) if count >= AT_ONCE else 0.0
            corrections[key] = Correction(count=count, at=now, until=now + pause)
        newest = sorted(corrections, key=lambda key: corrections[key].at)[-MOST:]
        return Contention(by_key={key: corrections[key] for key in newest}, paused=paused)


def contended_drift(drift: Iterable[ResourceId], held: Mapping[Backend, int]) -> list[ResourceId]:
    """Return the drift that another writer may have caused. `held`: resource counts by backend before the drift.

    If many resources change at once, a daemon or device was restarted, and there is no other writer.
    """
    drift = sorted(drift, key=repr)
    counts = Counter(backend for backend, _ in drift)
    return [resource for resource in drift if counts[resource[0]] <= max(FEW, held[resource[0]] // 20)]


def leave_alone(plan: Plan, contention: Contention) -> tuple[Plan, Mapping[Backend, tuple[str, ...]]]:
    """Return the plan without the steps of paused resources, and the reasons by backend."""
    if not contention.paused:
        return plan, {}
    reasons: dict[Backend, tuple[str, ...]] = {}
    stages = []
    for stage in plan.stages:
        remaining = []
        for step in stage.steps:
            correction = contention.paused.get((step.backend, step.key))
            if correction is None:
                remaining.append(step)
            else:
                reasons[step.backend] = (*reasons.get(step.backend, ()), str(not_tried(step, _reason(correction))))
        if remaining:
            stages.append(replace(stage, steps=tuple(remaining)))
    return Plan(stages=tuple(stages)), reasons


def not_tried(step: Step, reason: str) -> BackendError:
    """Build the error of a step that was not tried."""
    return BackendError(step.backend, str(step.op), " ".join(map(str, step.key)), reason)


def _reason(correction: Correction) -> str:
    return (
        f"another program changes it again and again: reverted {correction.count} times, "
        f"now left alone for {correction.until - correction.at:g} s"
    )
