"""Helpers of the contract tests: a backend at work in a namespace, and steps made from resources."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence

from devtools.nodes import netns
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.dataplane.resources import Resource, ResourceKey
from mcagent.model.plan import ApplyResult, Step

_NUMBERS = itertools.count(1)


def new_name() -> str:
    """Return a name for a network namespace of this process (`devtools/leftovers.py`)."""
    return f"mct{os.getpid()}-{next(_NUMBERS)}"


class Inside:
    """A backend, each of whose calls is made in a network namespace, as the agent is on its Node."""

    def __init__(self, namespace: str, backend: DataplaneBackend) -> None:
        self.namespace = namespace
        self.backend = backend
        self.name = backend.name

    def observe(self) -> Mapping[ResourceKey, Resource]:
        return netns.call(self.namespace, self.backend.observe)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        return netns.call(self.namespace, lambda: self.backend.apply(steps))

    def close(self) -> None:
        self.backend.close()


def steps_to(actual: Mapping[ResourceKey, Resource], resources: Sequence[Resource]) -> list[Step]:
    """Return the steps that make `wanted` of `actual`: what core.diff says for one backend, without its order."""
    steps = []
    by_key: dict[ResourceKey, Resource] = {resource.key: resource for resource in resources}
    for key, new in by_key.items():
        old = actual.get(key)
        if old != new:
            steps.append(Step(old=old, new=new))
    for key, old in actual.items():
        if key not in by_key:
            steps.append(Step(old=old))
    return steps


def adds(*resources: Resource) -> list[Step]:
    """Return a step that adds each resource."""
    return steps_to({}, resources)


def make(backend: DataplaneBackend, resources: Sequence[Resource]) -> ApplyResult:
    """Observe, and apply what is missing, different or too much; every step has to succeed."""
    result = backend.apply(steps_to(backend.observe(), resources))
    assert not result.failed, [str(error) for _, error in result.failed]
    return result


def as_mapping(resources: Sequence[Resource]) -> dict[ResourceKey, Resource]:
    """Return resources by key, as `observe` does."""
    return {resource.key: resource for resource in resources}
