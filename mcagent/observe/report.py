"""The agent's report on its state, as frozen values. The agent fills it in; pages and metrics show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcagent.api.status import BackendStatus, PassStatus
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import Bridge, Resource, TunnelPort
from mcagent.model.plan import Desired


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of the loop after its last pass."""

    desired: Desired | None = None
    converged: bool = False  # the dataplane equals the desired state
    waiting_for: tuple[str, ...] = ()  # kinds not yet listed
    error: str = ""  # why the last pass computed no desired state
    passes: int = 0
    drift: int = 0  # corrections since the start
    backends: tuple[BackendStatus, ...] = ()
    last_pass: PassStatus | None = None
    last_change: PassStatus | None = None

    @property
    def resources(self) -> Iterator[Resource]:
        """All resources of the desired state."""
        for fragment in self.desired.fragments.values() if self.desired is not None else ():
            yield from fragment.resources

    @property
    def datapath(self) -> DatapathType | None:
        """The datapath of the bridge; None before the first pass."""
        return next((resource.datapath for resource in self.resources if isinstance(resource, Bridge)), None)

    @property
    def tunnels(self) -> list[TunnelPort]:
        """The tunnels of the desired state, by name."""
        tunnels = [resource for resource in self.resources if isinstance(resource, TunnelPort)]
        return sorted(tunnels, key=lambda port: port.name)
