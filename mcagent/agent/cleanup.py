"""Removes the agent's resources from a Node: those that backends find by their tags. Needs no API server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcagent.agent.backends import make_backends
from mcagent.agent.config import Settings
from mcagent.agent.lock import node_lock
from mcagent.core.plan.diff import diff
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.dataplane.backend import Backend
from mcagent.model.errors import BackendError
from mcagent.model.plan import Desired, Step

# Routes are removed first, so that no packet is sent to the bridge. Other Nodes may still use its tunnels, so the
# rules of nft, which drop unencrypted packets of tunnels, are removed after the bridge.
ORDER = (Backend.NETLINK, Backend.OPENFLOW, Backend.OVSDB, Backend.NFT, Backend.WIREGUARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupResult:
    """`done`: steps that were carried out, or would be in a dry run. `errors`: of steps that failed."""

    done: tuple[Step, ...]
    errors: tuple[BackendError, ...]


def clean_up(settings: Settings, *, dry_run: bool) -> CleanupResult:
    """Remove all resources of the agent. Raises BusyError while an agent runs on this Node."""
    with contextlib.ExitStack() as resources:
        if not dry_run:
            resources.enter_context(node_lock(Path(settings.run_dir)))
        backends = make_backends(settings)
        resources.callback(backends.close)
        return remove_all(backends.by_name, dry_run=dry_run)


def remove_all(backends: Mapping[Backend, DataplaneBackend], *, dry_run: bool) -> CleanupResult:
    """Delete the resources that each backend observes; a backend that fails does not stop the others."""
    done: list[Step] = []
    errors: list[BackendError] = []
    for name in ORDER:
        try:
            plan = diff({name: backends[name].observe()}, Desired(fragments={}))
            for stage in plan.stages:
                if dry_run:
                    done.extend(stage.steps)
                    continue
                result = backends[name].apply(stage.steps)
                done.extend(result.done)
                errors.extend(error for _, error in result.failed)
        except BackendError as error:
            errors.append(error)
    return CleanupResult(done=tuple(done), errors=tuple(errors))
