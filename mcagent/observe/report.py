"""What the agent reports about itself, as frozen values. Filled in by the agent, shown by pages and metrics.

All times that people see are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mcagent.model.plan import Desired
from mcagent.model.resources import Resource, TunnelPort


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendReport:
    """One facility of the Node. `synced`: it is known to hold the desired state."""

    name: str
    synced: bool = False
    failures: int = 0  # in a row
    retry_at: float | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """One pass of the loop. `changes` counts "backend kind op"; `steps` is for people, cut to a length."""

    at: float
    trigger: str
    result: str  # unchanged, changed, failed, waiting
    phases: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    drift: str = ""  # what somebody else had changed and was put back
    contended: tuple[str, ...] = ()  # what is left alone for a while, because it is changed again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The loop as it stands after its last pass."""

    desired: Desired | None = None
    converged: bool = False  # the dataplane equals the desired state
    waiting_for: tuple[str, ...] = ()  # kinds not yet listed
    error: str = ""  # why nothing could be computed at all
    passes: int = 0
    drift: int = 0  # corrections since the start
    backends: tuple[BackendReport, ...] = ()
    last_pass: PassReport | None = None
    last_change: PassReport | None = None

    @property
    def resources(self) -> Iterator[Resource]:
        """All resources that there should be."""
        for fragment in self.desired.fragments.values() if self.desired is not None else ():
            yield from fragment.resources

    @property
    def tunnels(self) -> list[TunnelPort]:
        """The tunnels that there should be, by name."""
        found = [resource for resource in self.resources if isinstance(resource, TunnelPort)]
        return sorted(found, key=lambda port: port.name)
