"""A backend that keeps its world in a dict: for tests of the loop, and for trying a plan without a Node.

Behaves as the real ones do, faults included: resources that are refused, and a facility that is away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import Resource, ResourceKey
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Op, Step


class FakeBackend:
    """A facility in memory. `operations` counts what was done, by kind of step; `observations` the looks."""

    def __init__(self, name: Backend) -> None:
        self.name = name
        self.world: dict[ResourceKey, Resource] = {}
        self.operations: Counter[Op] = Counter()
        self.observations = 0
        self.applied: list[Step] = []
        self.closed = False
        self._refused: dict[ResourceKey, str] = {}
        self._refuse_all: str | None = None
        self._unreachable: str | None = None
        self._gone = False
        self._on_change: Callable[[], None] = lambda: None

    def refuse(self, key: ResourceKey, reason: str = "refused") -> None:
        """From now on, steps on that resource fail."""
        self._refused[key] = reason

    def refuse_all(self, reason: str = "refused") -> None:
        """From now on, every step fails."""
        self._refuse_all = reason

    def unreachable(self, reason: str = "connection refused", *, gone: bool = False) -> None:
        """From now on, neither `observe` nor `apply` works; says so to who watches. `gone`: see BackendError."""
        self._unreachable, self._gone = reason, gone
        self._on_change()

    def heal(self) -> None:
        """End all faults; says so to who watches."""
        self._refused.clear()
        self._refuse_all = self._unreachable = None
        self._on_change()

    def disturb(self, key: ResourceKey, resource: Resource | None) -> None:
        """Change the world as another program would: add a resource, or remove it (None)."""
        if resource is None:
            self.world.pop(key, None)
        else:
            self.world[key] = resource
        self._on_change()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` when the world or the connection changed without `apply`."""
        self._on_change = on_change

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return the world. Raises BackendError while unreachable."""
        self._check()
        self.observations += 1
        return dict(self.world)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Apply the steps that are not refused. Raises BackendError while unreachable."""
        self._check()
        done: list[Step] = []
        failed: list[tuple[Step, BackendError]] = []
        for step in steps:
            reason = self._refuse_all or self._refused.get(step.key)
            if reason is not None:
                failed.append((step, BackendError(str(self.name), str(step.op), str(step.key), reason)))
                continue
            if step.new is None:
                self.world.pop(step.key, None)
            else:
                self.world[step.key] = step.new
            self.operations[step.op] += 1
            self.applied.append(step)
            done.append(step)
        return ApplyResult(done=tuple(done), failed=tuple(failed))

    def close(self) -> None:
        """Note that it was let go of."""
        self.closed = True

    def _check(self) -> None:
        if self._unreachable is not None:
            raise BackendError(str(self.name), "reach", "the fake", self._unreachable, gone=self._gone)
