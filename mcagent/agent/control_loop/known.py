"""What each backend is known to hold, from one pass to the next: a frozen value and functions of it.

Reads and applies nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from mcagent.core.plan.contention import Place
from mcagent.core.plan.diff import diff, diff_desired, takes_into_use
from mcagent.model.plan import Desired, Plan, Step
from mcagent.model.resources import Backend, Resource, ResourceKey

Content = Mapping[ResourceKey, Resource]
Seen = Mapping[Backend, Content]  # what backends that were read hold, where it is not what was expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """`now` is what backends hold for sure, `last` what they held when that was last sure.

    `unused` are tunnels that wait for their flows (`mcagent.core.plan.diff`).
    """

    now: Mapping[Backend, Desired] = field(default_factory=dict)
    last: Mapping[Backend, Desired] = field(default_factory=dict)
    unused: frozenset[ResourceKey] = frozenset()


def content(desired: Desired, backend: Backend) -> dict[ResourceKey, Resource]:
    """Return the part of the desired state that one backend holds."""
    return {
        resource.key: resource
        for fragment in desired.fragments.values()
        for resource in fragment.resources
        if resource.backend is backend
    }


def without(known: Known, backends: Collection[Backend]) -> Known:
    """Return what is known when these backends may have changed."""
    now = {name: desired for name, desired in known.now.items() if name not in backends}
    return Known(now=now, last=known.last, unused=known.unused)


def read_again(known: Known, found: Seen) -> tuple[Known, Seen]:
    """Return what is known after backends were read, and what those hold that is not what they last held."""
    same = {
        name: last
        for name, there in found.items()
        if (last := known.last.get(name)) is not None and there == content(last, name)
    }
    seen = {name: there for name, there in found.items() if name not in same}
    return Known(now={**known.now, **same}, last=known.last, unused=known.unused), seen


def plan_for(known: Known, seen: Seen, desired: Desired, backends: Collection[Backend]) -> Plan:
    """Return the steps to the desired state; a backend that is neither known nor seen has none."""
    befores = list({id(before): before for before in known.now.values()}.values())
    if len(known.now) == len(backends) and len(befores) == 1:
        return diff_desired(befores[0], desired)
    if not seen and all(before is desired for before in befores):
        return Plan()  # a retry of what cannot be reached: the others hold what they should
    return diff(
        {name: seen[name] if name in seen else content(known.now.get(name, desired), name) for name in backends},
        desired,
    )


def drift_in(known: Known, seen: Seen, plan: Plan) -> tuple[set[Place], Mapping[Backend, int]]:
    """Return the steps that put back what somebody else changed, and how much those backends held.

    They lead to what a backend held when it was last right, so the input did not ask for them.
    """
    lasts = {name: content(known.last[name], name) for name in seen.keys() & known.last.keys()}
    places = {
        (step.backend, step.key)
        for step in plan.steps
        if step.backend in lasts and lasts[step.backend].get(step.key) == step.new
    }
    places -= {(Backend.OVSDB, key) for key in known.unused}
    return places, {name: len(last) for name, last in lasts.items()}


def after_apply(
    known: Known, desired: Desired, plan: Plan, done: Iterable[Step], *, right: Iterable[Backend]
) -> Known:
    """Return what is known after a plan: the backends that are `right` hold the desired state."""
    used = {step.key for step in done if takes_into_use(step)}
    unused = frozenset(step.key for step in plan.steps if takes_into_use(step)) - used
    now = {name: desired for name in right if not (name is Backend.OVSDB and unused)}
    return Known(now=now, last={**known.last, **now}, unused=unused)
