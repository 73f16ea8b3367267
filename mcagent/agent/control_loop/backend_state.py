"""The state of each backend as last verified, kept from one pass to the next: a frozen value and functions of it.

Does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mcagent.core.plan.contention import ResourceId
from mcagent.core.plan.diff import diff, diff_desired, takes_into_use
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import Resource, ResourceKey
from mcagent.model.plan import Desired, Plan, Step

Content = Mapping[ResourceKey, Resource]
Contents = Mapping[Backend, Content]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendState:
    """`last_verified`: the desired state that each backend last equalled. Those in `verified` still equal it.

    `unused`: tunnels that wait for their flows (`mcagent.core.plan.diff`).
    """

    last_verified: Mapping[Backend, Desired] = field(default_factory=dict)
    verified: frozenset[Backend] = frozenset()
    unused: frozenset[ResourceKey] = frozenset()


def content(desired: Desired, backend: Backend) -> dict[ResourceKey, Resource]:
    """Return the resources of one backend in the desired state."""
    return {
        resource.key: resource
        for fragment in desired.fragments.values()
        for resource in fragment.resources
        if resource.backend is backend
    }


def observed_or_desired(state: BackendState, changed: Contents, backend: Backend, desired: Desired) -> Content:
    """Return the resources of a backend: as observed or verified, else its part of `desired`."""
    if backend in changed:
        return changed[backend]
    return content(state.last_verified[backend] if backend in state.verified else desired, backend)


def after_observe(state: BackendState, observed: Contents) -> tuple[BackendState, Contents]:
    """Return the state after backends were read, and the contents of those that changed."""
    unchanged = {
        name
        for name, resources in observed.items()
        if name in state.last_verified and resources == content(state.last_verified[name], name)
    }
    changed = {name: resources for name, resources in observed.items() if name not in unchanged}
    return replace(state, verified=state.verified | unchanged), changed


def plan_for(state: BackendState, changed: Contents, desired: Desired, backends: Collection[Backend]) -> Plan:
    """Return the steps to the desired state; a backend that is neither verified nor in `changed` has none."""
    verified = {id(state.last_verified[name]): state.last_verified[name] for name in state.verified}
    if len(state.verified) == len(backends) and len(verified) == 1:
        (previous,) = verified.values()
        return diff_desired(previous, desired)
    if not changed and verified.keys() <= {id(desired)}:
        return Plan()  # a retry of an unreachable backend: the others equal the desired state
    return diff({name: observed_or_desired(state, changed, name, desired) for name in backends}, desired)


def drift_in(state: BackendState, changed: Contents, plan: Plan) -> tuple[set[ResourceId], Mapping[Backend, int]]:
    """Return the steps that revert changes made outside of the agent, and their backends' numbers of resources.

    These steps lead to the last verified state of a backend, so a change of the input did not cause them.
    """
    lasts = {
        name: content(state.last_verified[name], name) for name in changed.keys() & state.last_verified.keys()
    }
    places = {
        (step.backend, step.key)
        for step in plan.steps
        if step.backend in lasts and lasts[step.backend].get(step.key) == step.new
    }
    places -= {(Backend.OVSDB, key) for key in state.unused}
    return places, {name: len(last) for name, last in lasts.items()}


def after_apply(
    state: BackendState, desired: Desired, plan: Plan, done: Iterable[Step], *, complete: Iterable[Backend]
) -> BackendState:
    """Return the state after a plan: the `complete` backends equal the desired state."""
    taken_into_use = {step.key for step in done if takes_into_use(step)}
    unused = frozenset(step.key for step in plan.steps if takes_into_use(step)) - taken_into_use
    verified = frozenset(complete) - ({Backend.OVSDB} if unused else set())
    return BackendState(
        last_verified={**state.last_verified, **dict.fromkeys(verified, desired)}, verified=verified, unused=unused
    )
