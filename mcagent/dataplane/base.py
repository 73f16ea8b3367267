"""The interface of all backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import Resource, ResourceKey
from mcagent.model.plan import ApplyResult, Step


class DataplaneBackend(Protocol):
    """A part of the Node's dataplane: the only code that reads and writes it.

    `observe` returns the agent's resources that exist now, as the values that `apply` was given. `apply` carries
    out the steps of one stage in order; it reports the errors of steps, and never changes resources of other
    programs. Both raise `BackendError` only when the backend cannot be reached. Calls come from one thread at a
    time.
    """

    name: Backend

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Read the agent's resources by key. Raises BackendError when the backend cannot be reached."""

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Carry out steps; report each result. Raises BackendError when the backend cannot be reached."""

    def close(self) -> None:
        """Close sockets and files; resources stay."""
