"""Removes from a Node what is ours: what the backends find by tags, and nothing else. Needs no API server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcagent.agent.config import Settings
from mcagent.agent.lock import node_lock
from mcagent.agent.wiring import make_facilities
from mcagent.core.plan.diff import diff
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.errors import BackendError
from mcagent.model.plan import Desired, Step
from mcagent.model.resources import Backend

# Routes go first, so that the Node's packets take their ordinary way; the bridge goes when nothing uses it.
ORDER = (Backend.NETLINK, Backend.NFT, Backend.OPENFLOW, Backend.OVSDB, Backend.WIREGUARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was removed (or would be), and what could not be."""

    done: tuple[Step, ...]
    errors: tuple[BackendError, ...]


def clean_up(settings: Settings, *, dry_run: bool) -> Cleaned:
    """Remove everything of ours. Raises BusyError while an agent holds the Node."""
    with contextlib.ExitStack() as opened:
        if not dry_run:
            opened.enter_context(node_lock(Path(settings.run_dir)))
        facilities = make_facilities(settings)
        opened.callback(facilities.close)
        return remove_all(facilities.by_name, dry_run=dry_run)


def remove_all(backends: Mapping[Backend, DataplaneBackend], *, dry_run: bool) -> Cleaned:
    """Remove what each backend finds; a backend that fails does not stop the others."""
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
    return Cleaned(done=tuple(done), errors=tuple(errors))
