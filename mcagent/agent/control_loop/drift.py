"""What somebody else changed: which steps put it back, and what is left alone for a while because it is a fight.

Remembers the contended of one loop. Applies nothing; who contended is judged by `mcagent.core.plan.contention`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from mcagent.agent.control_loop.apply import error_for
from mcagent.core.plan.contention import Contention
from mcagent.model.plan import Desired, Plan
from mcagent.model.resources import Backend, Resource, ResourceKey

FEW = 3  # things of one facility that another writer may fight for at a time, or a twentieth of all

Content = Mapping[ResourceKey, Resource]
Place = tuple[Backend, ResourceKey]


def content(desired: Desired, backend: Backend) -> dict[ResourceKey, Resource]:
    """Return the part of the desired state that one backend holds."""
    return {
        resource.key: resource
        for fragment in desired.fragments.values()
        for resource in fragment.resources
        if resource.backend is backend
    }


def drifted(plan: Plan, lasts: Mapping[Backend, Content]) -> set[Place]:
    """Return the steps that put back what somebody else changed: the input did not ask for them.

    `lasts` is what facilities that were read again held when they were last right.
    """
    return {
        (step.backend, step.key)
        for step in plan.steps
        if step.backend in lasts and lasts[step.backend].get(step.key) == step.new
    }


class Drift:
    """The contended under way. `peace`: when the next thing is put back that is left alone now; may be inf."""

    def __init__(self) -> None:
        self._fights = Contention()
        self.peace = math.inf

    def leave_alone(
        self, plan: Plan, drift: set[Place], lasts: Mapping[Backend, Content], now: float
    ) -> tuple[Plan, dict[Backend, tuple[str, ...]]]:
        """Return the plan without what somebody else changes again and again, and what is told of that."""
        counts = Counter(name for name, _ in drift)
        # Where much is gone at once a facility, or a device, was restarted: that is nobody's fight with us.
        few = {name for name, count in counts.items() if count <= max(FEW, len(lasts[name]) // 20)}
        self._fights, alone = self._fights.judge(sorted((one for one in drift if one[0] in few), key=repr), now)
        self.peace = min((fight.until for fight in alone.values()), default=math.inf)
        if not alone:
            return plan, {}
        told: dict[Backend, tuple[str, ...]] = {}
        stages = []
        for stage in plan.stages:
            kept = tuple(step for step in stage.steps if (step.backend, step.key) not in alone)
            for step in stage.steps:
                fight = alone.get((step.backend, step.key))
                if fight is not None:
                    reason = (
                        f"somebody else changes it again and again: put back {fight.count} times, "
                        f"now left alone for {fight.until - fight.at:g} s"
                    )
                    told[step.backend] = (*told.get(step.backend, ()), str(error_for(step, reason)))
            if kept:
                stages.append(replace(stage, steps=kept))
        return Plan(stages=tuple(stages)), told
