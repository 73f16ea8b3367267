"""One pass: compile, observe the backends that are not verified, compare, apply.

`NodeReconciler` is used by one thread and is the only caller of the backends' `observe` and `apply` after start-up
(`startup`). It decides no times (`schedule`) and knows no API, thread or socket.

Safeguards against deleting a working dataplane:
- nothing is changed before every kind that the role needs has been listed completely once; from then on the
  desired state is complete, so additions and deletions are applied together;
- a pass that cannot be computed (`compile` raises an exception, facts cannot be read) changes nothing;
- tunnels are deleted only in a pass that applied its changes of flows, because until then flows may use them;
- peers are asked to send nothing by a tunnel until its flows exist (`mcagent.core.plan.diff`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from mcagent.agent.control_loop import backend_state
from mcagent.agent.control_loop.apply import Applier, Failures, Phases
from mcagent.agent.control_loop.backend_state import BackendState, Content, Contents
from mcagent.agent.failover import Failover
from mcagent.agent.flow_purge import changes_policies
from mcagent.agent.pass_outcome import Failure, PassOutcome
from mcagent.core.compile import Compiled, Compiler
from mcagent.core.plan.contention import Contention, contended_drift, leave_alone
from mcagent.core.plan.diff import diff, flows_first
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.config import Config
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import FlowEntry, Route, RouteType, TunnelPort
from mcagent.model.errors import BackendError
from mcagent.model.net import Address, Network
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired, Op, Plan, Step

FACTS_FROM = frozenset({Backend.OVSDB, Backend.NETLINK, Backend.WIREGUARD})  # backends that facts are read from

Compile = Callable[[Snapshot, Facts, Config], Compiled]
Meanwhile = Callable[[Facts], contextlib.AbstractContextManager[object]]


class NodeReconciler:
    """Makes the Node's dataplane equal to the desired state of a snapshot. Used by one thread."""

    def __init__(
        self,
        *,
        backends: Mapping[Backend, DataplaneBackend],
        read_facts: Callable[[Address | None], Facts],
        config: Config,
        compiler: Compile | None = None,
        failover: Failover | None = None,
        state_lost: Callable[[NodeState], None] = lambda _: None,
        policies_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`state_lost` is called when flows exist again after Open vSwitch lost them and its conntrack state.

        `policies_changed` is called when flows of policies have changed on the userspace datapath.
        """
        self._backends = backends
        self._read_facts = read_facts
        self._state_lost, self._policies_changed = state_lost, policies_changed
        self._compile = compiler or Compiler().compile
        self._failover = failover
        self.config = config
        self._facts: Facts | None = None
        self._facts_for: Address | None = None
        self._desired: Desired | None = None
        self._in_use: Mapping[str, tuple[Network, ...]] | None = None  # see `Facts.in_use`; None: not known yet
        self._state = BackendState()
        self._contention = Contention()

    @property
    def wake(self) -> float:
        """When a pass is due without new input, in seconds of the monotonic clock; inf: none."""
        return min(self._contention.wake, self._failover.wake if self._failover is not None else math.inf)

    def forget(self) -> None:
        """Discard facts and verified states: the next pass reads everything. Failover keeps the desired state."""
        self._state = replace(self._state, verified=frozenset())
        self._facts = None

    def reconcile(
        self,
        snapshot: Snapshot,
        *,
        observe: frozenset[Backend],
        blocked: frozenset[Backend],
        meanwhile: Meanwhile = contextlib.nullcontext,
    ) -> PassOutcome:
        """Do one pass. `observe`: backends to read again. `blocked`: backends not to use.

        `meanwhile` is entered while the desired state is computed. Catches BackendErrors; exceptions of `compile`
        propagate, and then nothing was changed.
        """
        phases = Phases()
        failures: Failures = {}
        self._state = replace(self._state, verified=self._state.verified - observe)
        phases.enter("facts")
        stale = frozenset(self._backends) - self._state.verified - blocked
        node_facts = self._refresh_facts(snapshot, stale, failures)
        if node_facts is None:
            return PassOutcome(failures=failures, phases=phases.end())
        snapshot, facts = self._with_failover(snapshot, node_facts)
        phases.enter("compile")
        with meanwhile(facts):
            compiled = self._compile(snapshot, facts, self.config)
        desired = self._desired = compiled.desired
        outcome = PassOutcome(
            needs=compiled.needs,
            all_pods=desired.state.all_pods,
            all_services=desired.state.all_services,
            failures=failures,
        )
        if missing := compiled.missing(snapshot):
            return replace(outcome, waiting_for=missing, phases=phases.end())
        if self._in_use is not None:
            self._in_use = {name: cluster.cidrs for name, cluster in desired.state.clusters.items()}
        phases.enter("observe")
        observed = self._observe(stale - failures.keys(), failures)
        self._state, changed = backend_state.after_observe(self._state, observed)
        phases.enter("diff")
        plan = backend_state.plan_for(self._state, changed, desired, self._backends.keys())
        drift, resource_counts = backend_state.drift_in(self._state, changed, plan)
        self._contention = self._contention.update(contended_drift(drift, resource_counts), time.monotonic())
        plan, contended_backends = leave_alone(plan, self._contention)
        blank = _blank(changed, failures)
        empty = Desired(fragments={})
        ports = backend_state.observed_or_desired(self._state, changed, Backend.OVSDB, empty) if blank else {}
        plan = flows_first(plan, ports.values(), blank=blank)
        left_alone = blocked | failures.keys()
        done = Applier(self._backends, left_alone, failures, phases).plan(plan)
        complete = self._backends.keys() - (left_alone | contended_backends.keys() | failures.keys())
        self._state = backend_state.after_apply(self._state, desired, plan, done, complete=complete)
        self._remember_ofports(done)
        # The kernel's conntrack survives ovs-vswitchd; the userspace datapath's is lost with the process.
        flow_failure = failures.get(Backend.OPENFLOW)
        flows_restored = blank and (flow_failure is None or not flow_failure.unreachable)
        if flows_restored and Backend.OPENFLOW not in blocked and facts.datapath is DatapathType.NETDEV:
            self._state_lost(desired.state)
        # Changes without an answer may have been made all the same.
        changed_flows = plan.steps if flow_failure is not None and flow_failure.unreachable else done
        if facts.datapath is DatapathType.NETDEV and changes_policies(changed_flows):
            self._policies_changed()
        return replace(
            outcome,
            desired=desired,
            done=done,
            drift=tuple(step for step in done if (step.backend, step.key) in drift),
            contended=contended_backends,
            phases=phases.end(),
            converged=self._state.verified == self._backends.keys(),
        )

    def preview(self, snapshot: Snapshot) -> tuple[Desired, Plan]:
        """Return the desired state, and the steps that a pass would do now. Raises BackendError."""
        facts = self._with_in_use(self._read_facts(own_address(snapshot, self.config.node_name)))
        _, facts = self._with_failover(snapshot, facts)
        desired = self._compile(snapshot, facts, self.config).desired
        observed = {name: backend.observe() for name, backend in self._backends.items()}
        plan = flows_first(diff(observed, desired), observed[Backend.OVSDB].values(), blank=_blank(observed, {}))
        return desired, plan

    def _with_in_use(self, facts: Facts) -> Facts:
        """Return the facts with the CIDRs of other clusters in use. Raises BackendError."""
        if self._in_use is None:  # of an earlier process
            self._in_use = routed_cidrs(self._backends[Backend.NETLINK])
        return facts if facts.in_use == self._in_use else replace(facts, in_use=self._in_use)

    def _with_failover(self, snapshot: Snapshot, facts: Facts) -> tuple[Snapshot, Facts]:
        if self._failover is None:
            return snapshot, facts
        snapshot = self._failover.linger(snapshot, self.config)
        return snapshot, self._failover.facts(facts, snapshot, self.config, self._desired)

    def _refresh_facts(self, snapshot: Snapshot, stale: frozenset[Backend], failures: Failures) -> Facts | None:
        """Read the facts again where they may have changed; on an error return the previous ones."""
        address = own_address(snapshot, self.config.node_name)
        try:
            if self._facts is None or address != self._facts_for or stale & FACTS_FROM:
                self._facts = self._read_facts(address)
            self._facts = self._with_in_use(self._facts)
        except BackendError as error:
            name = Backend(error.backend) if error.backend in set(Backend) else Backend.NETLINK
            failures[name] = Failure(errors=(error,), unreachable=True)
            return self._facts
        self._facts_for = address
        return self._facts

    def _observe(self, names: frozenset[Backend], failures: Failures) -> Contents:
        contents: dict[Backend, Content] = {}
        for name in sorted(names):
            try:
                contents[name] = self._backends[name].observe()
            except BackendError as error:
                failures[name] = Failure(errors=(error,), unreachable=True)
        return contents

    def _remember_ofports(self, done: Iterable[Step]) -> None:
        """Add OpenFlow port numbers that were assigned: a port keeps its number (`Facts.ofports`)."""
        ports = {
            resource.name: resource.ofport
            for step in done
            if isinstance(resource := step.new, TunnelPort) and step.op is not Op.DELETE
        }
        if ports and self._facts is not None:
            self._facts = replace(self._facts, ofports={**self._facts.ofports, **ports})


def routed_cidrs(netlink: DataplaneBackend) -> Mapping[str, tuple[Network, ...]]:
    """Return the destinations of the kernel's routes to other clusters (`Facts.in_use`). Raises BackendError."""
    routes = (resource for resource in netlink.observe().values() if isinstance(resource, Route))
    return {"": tuple(route.destination for route in routes if route.type is RouteType.UNICAST)}


def own_address(snapshot: Snapshot, node_name: str) -> Address | None:
    """Return the Node's first InternalIP in the API: the device that has it is the uplink."""
    node = snapshot.nodes.get(node_name)
    return node.internal_ips[0] if node is not None and node.internal_ips else None


def _blank(observed: Contents, failures: Mapping[Backend, Failure]) -> bool:
    """Whether the bridge has no flow, as far as it was observed."""
    if Backend.OPENFLOW in observed:
        return not any(isinstance(resource, FlowEntry) for resource in observed[Backend.OPENFLOW].values())
    return Backend.OPENFLOW in failures and failures[Backend.OPENFLOW].gone
