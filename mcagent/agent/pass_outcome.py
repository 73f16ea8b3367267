"""Values that describe a finished pass: its steps, the backends that failed, and when these are tried again.

The control loop creates them; reports convert them to logs, metrics and pages. Imports neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcagent.model.dataplane.backend import Backend
from mcagent.model.errors import BackendError
from mcagent.model.objects import Kind
from mcagent.model.plan import Desired, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The errors of a backend in a pass. `unreachable`: it could not be used at all."""

    errors: tuple[BackendError, ...]
    unreachable: bool = False

    @property
    def gone(self) -> bool:
        """Whether the state of the backend is lost (see BackendError)."""
        return any(error.gone for error in self.errors)

    @property
    def retryable(self) -> bool:
        """Whether a retry without new input may help."""
        return any(error.retryable for error in self.errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A failing backend: tried again at `at`, and for new input from `on_change_at` (monotonic seconds)."""

    failures: int
    at: float
    on_change_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """`converged`: the whole dataplane is known to equal the desired state."""

    needs: frozenset[Kind] = frozenset()  # kinds to read from now on; empty: as before
    all_pods: bool = False  # where Pods are among them, those of all Nodes
    all_services: bool = False  # where Services are among them, also those that are not imported
    waiting_for: frozenset[Kind] = frozenset()
    desired: Desired | None = None
    done: tuple[Step, ...] = ()
    drift: tuple[Step, ...] = ()  # the part of `done` that reverted changes made outside of the agent
    failures: Mapping[Backend, Failure] = field(default_factory=dict)
    contended: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)  # resources left alone, and why
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of facts, compile, observe, diff, apply_…
    converged: bool = False


def kind_of(step: Step) -> str:
    """Return the kind of resource that a step changes: "FlowEntry", "Route", ..."""
    return type(step.resource).__name__
