"""The agent's report on its state, as frozen values. The agent fills it in; pages and metrics show it.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mcagent.model.plan import Desired
from mcagent.model.resources import Resource, TunnelPort


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendReport:
    """A backend. `synced`: it is known to equal the desired state."""

    name: str
    synced: bool = False
    failures: int = 0  # in a row
    retry_at: float | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """A pass of the loop. `changes` counts by "backend kind op"; `steps` is a truncated list of texts."""

    at: float
    trigger: str
    result: str  # unchanged, changed, failed, waiting
    phases: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    drift: str = ""  # changes made outside of the agent that the pass reverted
    contended: tuple[str, ...] = ()  # resources left alone, because another program keeps changing them


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of the loop after its last pass."""

    desired: Desired | None = None
    converged: bool = False  # the dataplane equals the desired state
    waiting_for: tuple[str, ...] = ()  # kinds not yet listed
    error: str = ""  # why the last pass computed no desired state
    passes: int = 0
    drift: int = 0  # corrections since the start
    backends: tuple[BackendReport, ...] = ()
    last_pass: PassReport | None = None
    last_change: PassReport | None = None

    @property
    def resources(self) -> Iterator[Resource]:
        """All resources of the desired state."""
        for fragment in self.desired.fragments.values() if self.desired is not None else ():
            yield from fragment.resources

    @property
    def tunnels(self) -> list[TunnelPort]:
        """The tunnels of the desired state, by name."""
        tunnels = [resource for resource in self.resources if isinstance(resource, TunnelPort)]
        return sorted(tunnels, key=lambda port: port.name)
