"""Start-up: the passes before the first desired state, and the steps that they take early.

1. While objects are not listed yet: ask peers to send nothing to a Node that has no flows, and list the kinds that
   a gateway needs as soon as this Node's Gateway object is listed.
2. While the first desired state is computed: create the bridge, which every desired state contains.
3. The first pass with a desired state ends start-up; `NodeReconciler` does the passes after it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from mcagent.agent.control_loop.reconciler import Meanwhile, NodeReconciler
from mcagent.agent.pass_outcome import PassOutcome
from mcagent.core.compile import compile_desired
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED, SERVICE_NEEDS
from mcagent.core.plan.diff import diff, flows_first
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import Facts
from mcagent.model.errors import BackendError
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Plan, Step

log = logging.getLogger(__name__)


class SetKinds(Protocol):
    """Sets the kinds to read: only this Node's Pods unless `all_pods`, imported Services unless `all_services`."""

    def __call__(self, kinds: frozenset[Kind], *, all_pods: bool, all_services: bool) -> None:
        """Read `kinds` from now on; no kinds: as before."""


class Startup:
    """Does passes in place of the reconciler until one has a desired state. Used by one thread."""

    def __init__(
        self,
        reconciler: NodeReconciler,
        *,
        backends: Mapping[Backend, DataplaneBackend],
        has_flows: Callable[[], bool],
        set_kinds: SetKinds,
    ) -> None:
        """`has_flows` returns whether the bridge has flows; it may raise BackendError."""
        self._reconciler, self._backends = reconciler, backends
        self._has_flows, self._set_kinds = has_flows, set_kinds
        self._flows_checked = False
        self._bridge_created = False
        self._done: tuple[Step, ...] = ()  # that created the bridge

    def reconcile(
        self, snapshot: Snapshot, *, observe: frozenset[Backend], blocked: frozenset[Backend]
    ) -> PassOutcome:
        """Do one pass; arguments are those of `NodeReconciler.reconcile`."""
        gateway_nodes = {gateway.meta.name for gateway in snapshot.gateways.values()}
        is_gateway = self._reconciler.config.node_name in gateway_nodes
        needs = ALWAYS_NEEDED | (SERVICE_NEEDS if is_gateway else frozenset())
        if missing := ALWAYS_NEEDED - snapshot.synced:
            if not self._flows_checked or Backend.OPENFLOW in observe:
                self._flows_checked = self._hold_peers_if_blank()
            return PassOutcome(needs=needs, all_services=is_gateway, waiting_for=missing)
        meanwhile: Meanwhile = contextlib.nullcontext
        if not self._bridge_created and Backend.OVSDB not in blocked:
            meanwhile = self._bridge_meanwhile
            if is_gateway:
                self._set_kinds(needs, all_pods=False, all_services=True)  # listed while the first pass computes
        outcome = self._reconciler.reconcile(snapshot, observe=observe, blocked=blocked, meanwhile=meanwhile)
        return outcome if outcome.desired is None else replace(outcome, done=(*self._done, *outcome.done))

    def _hold_peers_if_blank(self) -> bool:
        """Ask peers to send nothing if the bridge has no flows; return False where that could not be read.

        Errors are only logged: the first complete pass reports them.
        """
        try:
            plan = flows_first(Plan(), self._backends[Backend.OVSDB].observe().values(), blank=True)
            if plan.stages and not self._has_flows():
                self._backends[Backend.OVSDB].apply(plan.stages[0].steps)
        except BackendError as error:
            log.debug("%s", error)
            return False
        return True

    @contextlib.contextmanager
    def _bridge_meanwhile(self, facts: Facts) -> Iterator[None]:
        """Create the bridge, if there is none, in another thread: Open vSwitch takes 0.1 s for it."""
        self._bridge_created = True
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="bridge") as pool:
            creation = pool.submit(self._create_bridge, facts)
            yield
        self._done = creation.result()

    def _create_bridge(self, facts: Facts) -> tuple[Step, ...]:
        """Return the steps that were done. Errors are ignored: the pass itself reports them."""
        config, backend = self._reconciler.config, self._backends[Backend.OVSDB]
        with contextlib.suppress(BackendError):
            if config.host_port not in facts.ofports and not backend.observe():
                bare = compile_desired(Snapshot(), facts, config).desired
                return backend.apply([step for step in diff({}, bare).steps if step.backend is Backend.OVSDB]).done
        return ()
