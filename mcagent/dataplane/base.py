"""The one interface of every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, Resource, ResourceKey


class DataplaneBackend(Protocol):
    """One facility of the Node: the only code that reads and writes it.

    `observe` returns everything of ours that exists now, as the values `apply` was given. `apply` makes the
    steps of one stage so, in order; it reports per step what failed instead of raising for it, and never
    touches what is not ours. Both raise `BackendError` only when the facility itself cannot be reached.
    Calls come from one thread at a time.
    """

    name: Backend

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return all resources of ours by key. Raises BackendError when the facility cannot be reached."""
        ...

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Apply the steps and report on each. Raises BackendError when the facility cannot be reached."""
        ...

    def close(self) -> None:
        """Let go of sockets and files; what was programmed stays."""
        ...
