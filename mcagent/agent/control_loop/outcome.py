"""What a pass found and did, as a value: for the loop, for logs, metrics and pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from mcagent.agent.control_loop.apply import Failure
from mcagent.model.node_state import Role
from mcagent.model.objects import Kind
from mcagent.model.plan import Desired, Op, Plan, Step
from mcagent.model.resources import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`converged`: the whole dataplane is known to equal the desired state."""

    needs: frozenset[Kind] = frozenset()  # kinds to read from now on; empty: as before
    role: Role = Role.NONE
    waiting_for: frozenset[Kind] = frozenset()
    desired: Desired | None = None
    plan: Plan = field(default_factory=Plan)
    done: tuple[Step, ...] = ()
    drift: tuple[Step, ...] = ()  # the part of `done` that put back what somebody else had changed
    failures: Mapping[Backend, Failure] = field(default_factory=dict)
    contended: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)  # what is left alone, and why
    observed: frozenset[Backend] = frozenset()  # read again in this pass, or tried to
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of facts, compile, observe, diff, apply_…
    converged: bool = False

    @property
    def counts(self) -> Counter[tuple[Backend, str, Op]]:
        """Changes made, by backend, kind of resource and operation."""
        return Counter((step.backend, kind_of(step), step.op) for step in self.done)


def kind_of(step: Step) -> str:
    """Return the kind of resource that a step changes: "FlowEntry", "Route", ..."""
    return type(step.new if step.new is not None else step.old).__name__
