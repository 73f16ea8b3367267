"""Start-up: the passes before the dataplane was first set up, and what is done meanwhile.

1. While objects are not listed yet: peers are asked to send nothing to a Node that has no flows, and what a
   gateway needs is listed as soon as this Node's Gateway is known.
2. While the first desired state is computed: the bridge is made, which is there whatever the objects say.
3. The first pass that comes to a desired state ends start-up; `Reconciler` alone goes on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from mcagent.agent.control_loop.apply import Outcome
from mcagent.agent.control_loop.reconciler import Meanwhile, Reconciler
from mcagent.core.compile import compile_desired
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED, SERVICE_NEEDS
from mcagent.core.plan.diff import diff, flows_first
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.errors import BackendError
from mcagent.model.facts import Facts
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Plan, Step
from mcagent.model.resources import Backend

log = logging.getLogger(__name__)


class Want(Protocol):
    """Asks for the kinds that this Node needs.

    Of Pods only its own unless `all_pods`, of Services only those that are imported unless `all_services`.
    """

    def __call__(self, kinds: frozenset[Kind], *, all_pods: bool, all_services: bool) -> None:
        """Ask."""


class Startup:
    """Does passes in place of the reconciler until one comes to a desired state. One thread."""

    def __init__(
        self,
        reconciler: Reconciler,
        *,
        backends: Mapping[Backend, DataplaneBackend],
        flows_there: Callable[[], bool],
        want: Want,
    ) -> None:
        """`flows_there` tells whether the bridge has flows; it may raise BackendError."""
        self._reconciler, self._backends = reconciler, backends
        self._flows_there, self._want = flows_there, want
        self._looked_for_flows = False
        self._bridge_made = False
        self._done: tuple[Step, ...] = ()  # to make the bridge

    def reconcile(
        self, snapshot: Snapshot, *, observe: frozenset[Backend], blocked: frozenset[Backend]
    ) -> Outcome:
        """Do one pass; arguments are those of `Reconciler.reconcile`."""
        gateway = any(one.meta.name == self._reconciler.config.node_name for one in snapshot.gateways.values())
        needs = ALWAYS_NEEDED | (SERVICE_NEEDS if gateway else frozenset())
        if missing := ALWAYS_NEEDED - snapshot.synced:
            if not self._looked_for_flows or Backend.OPENFLOW in observe:
                self._looked_for_flows = self._look_for_flows()
            return Outcome(needs=needs, all_services=gateway, waiting_for=missing)
        meanwhile: Meanwhile = contextlib.nullcontext
        if not self._bridge_made and Backend.OVSDB not in blocked:
            meanwhile = self._bridge_meanwhile
            if gateway:
                self._want(needs, all_pods=False, all_services=True)  # to be listed while the first pass computes
        found = self._reconciler.reconcile(snapshot, observe=observe, blocked=blocked, meanwhile=meanwhile)
        return found if found.desired is None else replace(found, done=(*self._done, *found.done))

    def _look_for_flows(self) -> bool:
        """Ask peers to send nothing if there are no flows; return whether that is known.

        An error is none here: the first whole pass reports it.
        """
        try:
            plan = flows_first(Plan(), self._backends[Backend.OVSDB].observe().values(), blank=True)
            if plan.stages and not self._flows_there():
                self._backends[Backend.OVSDB].apply(plan.stages[0].steps)
        except BackendError as error:
            log.debug("%s", error)
            return False
        return True

    @contextlib.contextmanager
    def _bridge_meanwhile(self, facts: Facts) -> Iterator[None]:
        """Make the bridge, if there is none, in a thread of its own: Open vSwitch takes 0.1 s for it."""
        self._bridge_made = True
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="bridge") as pool:
            made = pool.submit(self._make_bridge, facts)
            yield
        self._done = made.result()

    def _make_bridge(self, facts: Facts) -> tuple[Step, ...]:
        """Return the steps that were done. An error is none here: the pass itself will meet it."""
        config, backend = self._reconciler.config, self._backends[Backend.OVSDB]
        with contextlib.suppress(BackendError):
            if config.host_port not in facts.ofports and not backend.observe():
                bare = compile_desired(Snapshot(), facts, config).desired
                return backend.apply([step for step in diff({}, bare).steps if step.backend is Backend.OVSDB]).done
        return ()
