"""What each backend is known to hold, from one pass to the next: a frozen value and functions of it.

Reads and applies nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mcagent.core.plan.contention import ResourceId
from mcagent.core.plan.diff import diff, diff_desired, takes_into_use
from mcagent.model.plan import Desired, Plan, Step
from mcagent.model.resources import Backend, Resource, ResourceKey

Content = Mapping[ResourceKey, Resource]
Seen = Mapping[Backend, Content]  # what backends that were read hold, where it is not what was expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """`last` is what backends held when that was last sure; of those in `sure` it still is.

    `unused` are tunnels that wait for their flows (`mcagent.core.plan.diff`).
    """

    last: Mapping[Backend, Desired] = field(default_factory=dict)
    sure: frozenset[Backend] = frozenset()
    unused: frozenset[ResourceKey] = frozenset()


def content(desired: Desired, backend: Backend) -> dict[ResourceKey, Resource]:
    """Return the part of the desired state that one backend holds."""
    return {
        resource.key: resource
        for fragment in desired.fragments.values()
        for resource in fragment.resources
        if resource.backend is backend
    }


def held(known: Known, seen: Seen, backend: Backend, otherwise: Desired) -> Content:
    """Return what a backend holds now; where nobody knows, its part of `otherwise`."""
    if backend in seen:
        return seen[backend]
    return content(known.last[backend] if backend in known.sure else otherwise, backend)


def read_again(known: Known, found: Seen) -> tuple[Known, Seen]:
    """Return what is known after backends were read, and what those hold that is not what they last held."""
    same = {
        name for name, there in found.items() if name in known.last and there == content(known.last[name], name)
    }
    seen = {name: there for name, there in found.items() if name not in same}
    return replace(known, sure=known.sure | same), seen


def plan_for(known: Known, seen: Seen, desired: Desired, backends: Collection[Backend]) -> Plan:
    """Return the steps to the desired state; a backend that is neither known nor seen has none."""
    befores = {id(known.last[name]): known.last[name] for name in known.sure}
    if len(known.sure) == len(backends) and len(befores) == 1:
        (before,) = befores.values()
        return diff_desired(before, desired)
    if not seen and befores.keys() <= {id(desired)}:
        return Plan()  # a retry of what cannot be reached: the others hold what they should
    return diff({name: held(known, seen, name, otherwise=desired) for name in backends}, desired)


def drift_in(known: Known, seen: Seen, plan: Plan) -> tuple[set[ResourceId], Mapping[Backend, int]]:
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
    sure = frozenset(right) - ({Backend.OVSDB} if unused else set())
    return Known(last={**known.last, **dict.fromkeys(sure, desired)}, sure=sure, unused=unused)
