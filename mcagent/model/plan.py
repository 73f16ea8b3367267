"""Desired, Actual and Plan: what should be, what is, and the steps from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mcagent.model.errors import BackendError
from mcagent.model.node_state import NodeState
from mcagent.model.problem import Problem
from mcagent.model.resources import Backend, Resource, ResourceKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The resources that follow from one cause ("base", "cluster/east", "service/default/web:80", ...).

    Fragments are the grain of reuse: `compile` hands back the very same object while its inputs are equal, so that
    `diff` can pass over it without a look inside.
    """

    owner: str
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The whole dataplane of one Node. No two fragments hold a resource of the same backend and key."""

    fragments: Mapping[str, Fragment]
    problems: tuple[Problem, ...] = ()
    state: NodeState = field(default_factory=NodeState)  # what it was decided with, for people and probes


# What is: resources by (backend, key). A backend reports only what is ours.
Actual = Mapping[Backend, Mapping[ResourceKey, Resource]]


class Op(StrEnum):
    """What a step does to a resource."""

    ADD = "add"
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change to one resource. `old` is None for ADD, `new` is None for DELETE."""

    op: Op
    backend: Backend
    key: ResourceKey
    old: Resource | None
    new: Resource | None
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Steps of one backend that may be applied together, in the order given."""

    backend: Backend
    title: str  # "create tunnels", "program flows", ... for people
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ordered stages. An empty plan means that the world is right: nothing is done."""

    stages: tuple[Stage, ...] = ()

    def __len__(self) -> int:
        return sum(len(stage.steps) for stage in self.stages)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(step for stage in self.stages for step in stage.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """What became of a stage: steps done, and steps that failed with their error."""

    done: tuple[Step, ...] = ()
    failed: tuple[tuple[Step, BackendError], ...] = ()
