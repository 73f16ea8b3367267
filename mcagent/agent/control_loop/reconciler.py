"""One pass: compile, observe what is not known, compare, apply.

`Reconciler` is used by one thread and is the only caller of the backends' `observe` and `apply` after start-up
(`startup`). It decides no times (`schedule`) and knows no API, thread or socket.

What keeps a dataplane from being taken away by mistake:
- nothing is done before every kind that the role needs has been listed completely once; from then on desired is
  complete: additions and deletions go together;
- a pass that cannot be computed (an input that breaks `compile`, facts that cannot be read) changes nothing;
- tunnels are deleted only in a pass whose flow changes went in, because until then flows may use them;
- peers are asked to send nothing by a tunnel before the flows are there (`mcagent.core.plan.diff`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from mcagent.agent.control_loop import known
from mcagent.agent.control_loop.apply import Applying, Failure, Failures, Outcome, Phases
from mcagent.agent.control_loop.known import Content, Known, Seen
from mcagent.agent.failover import Failover
from mcagent.core.compile import Compiled, Compiler
from mcagent.core.plan.contention import Contention, contended_drift, leave_alone
from mcagent.core.plan.diff import diff, flows_first
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.config import Config
from mcagent.model.errors import BackendError
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired, Op, Plan, Step
from mcagent.model.resources import Backend, FlowEntry, TunnelPort

FACTS_FROM = frozenset({Backend.OVSDB, Backend.NETLINK, Backend.WIREGUARD})  # facts are read again with these

Compile = Callable[[Snapshot, Facts, Config], Compiled]
Meanwhile = Callable[[Facts], contextlib.AbstractContextManager[object]]


class Reconciler:
    """Makes the Node's dataplane equal to what a snapshot says. One thread."""

    def __init__(
        self,
        *,
        backends: Mapping[Backend, DataplaneBackend],
        read_facts: Callable[[Address | None], Facts],
        config: Config,
        compiler: Compile | None = None,
        live: Failover | None = None,
        state_lost: Callable[[NodeState], None] = lambda _: None,
    ) -> None:
        """`state_lost` is called when flows are there again after Open vSwitch lost its conntrack with them."""
        self._backends = backends
        self._read_facts = read_facts
        self._state_lost = state_lost
        self._compile = compiler or Compiler().compile
        self._live = live
        self.config = config
        self._facts: Facts | None = None
        self._facts_for: Address | None = None
        self._desired: Desired | None = None
        self._known = Known()
        self._contention = Contention()

    @property
    def wake(self) -> float:
        """When the next pass is due though nothing is reported, in seconds of the monotonic clock; may be inf."""
        return min(self._contention.wake, self._live.wake if self._live is not None else math.inf)

    def forget(self) -> None:
        """Trust nothing that is remembered: the next pass reads everything."""
        self._known = replace(self._known, sure=frozenset())
        self._facts = self._desired = None

    def reconcile(
        self,
        snapshot: Snapshot,
        *,
        observe: frozenset[Backend],
        blocked: frozenset[Backend],
        meanwhile: Meanwhile = contextlib.nullcontext,
    ) -> Outcome:
        """Do one pass. `observe` names backends to read again; `blocked` those to leave alone.

        `meanwhile` is entered while the desired state is computed. Raises nothing that a backend raises; what
        `compile` raises comes through, with nothing changed.
        """
        phases = Phases()
        failures: Failures = {}
        self._known = replace(self._known, sure=self._known.sure - observe)
        phases.enter("facts")
        stale = frozenset(self._backends) - self._known.sure - blocked
        known_facts = self._refresh_facts(snapshot, stale, failures)
        if known_facts is None:
            return Outcome(failures=failures, phases=phases.end())
        snapshot, facts = self._with_live(snapshot, known_facts)
        phases.enter("compile")
        with meanwhile(facts):
            compiled = self._compile(snapshot, facts, self.config)
        desired = self._desired = compiled.desired
        found = Outcome(
            needs=compiled.needs,
            all_pods=desired.state.all_pods,
            all_services=desired.state.all_services,
            failures=failures,
        )
        if missing := compiled.missing(snapshot):
            return replace(found, waiting_for=missing, phases=phases.end())
        phases.enter("observe")
        self._known, seen = known.read_again(self._known, self._observe(stale - failures.keys(), failures))
        phases.enter("diff")
        plan = known.plan_for(self._known, seen, desired, self._backends.keys())
        drift, held = known.drift_in(self._known, seen, plan)
        self._contention = self._contention.update(contended_drift(drift, held), time.monotonic())
        plan, left = leave_alone(plan, self._contention)
        blank = _blank(seen, failures)
        ports = known.held(self._known, seen, Backend.OVSDB, otherwise=Desired(fragments={})) if blank else {}
        plan = flows_first(plan, ports.values(), blank=blank)
        left_alone = blocked | failures.keys()
        done = Applying(self._backends, left_alone, failures, phases).plan(plan)
        right = self._backends.keys() - (left_alone | left.keys() | failures.keys())
        self._known = known.after_apply(self._known, desired, plan, done, right=right)
        self._keep_numbers(done)
        # The kernel's conntrack outlives ovs-vswitchd; that of the userspace datapath is part of its process.
        flows = failures.get(Backend.OPENFLOW)
        back = blank and (flows is None or not flows.unreachable)
        if back and Backend.OPENFLOW not in blocked and facts.datapath is DatapathType.NETDEV:
            self._state_lost(desired.state)
        return replace(
            found,
            desired=desired,
            done=done,
            drift=tuple(step for step in done if (step.backend, step.key) in drift),
            contended=left,
            phases=phases.end(),
            converged=self._known.sure == self._backends.keys(),
        )

    def preview(self, snapshot: Snapshot) -> tuple[Desired, Plan]:
        """Return what would be and what a pass would do now, and do nothing. Raises BackendError."""
        _, facts = self._with_live(snapshot, self._read_facts(own_address(snapshot, self.config.node_name)))
        desired = self._compile(snapshot, facts, self.config).desired
        seen = {name: backend.observe() for name, backend in self._backends.items()}
        return desired, flows_first(diff(seen, desired), seen[Backend.OVSDB].values(), blank=_blank(seen, {}))

    def _with_live(self, snapshot: Snapshot, facts: Facts) -> tuple[Snapshot, Facts]:
        if self._live is None:
            return snapshot, facts
        snapshot = self._live.linger(snapshot, self.config)
        return snapshot, self._live.facts(facts, snapshot, self.config, self._desired)

    def _refresh_facts(self, snapshot: Snapshot, stale: frozenset[Backend], failures: Failures) -> Facts | None:
        """Return the facts, read again where they may have changed; where that fails, the last ones if any."""
        address = own_address(snapshot, self.config.node_name)
        if self._facts is not None and address == self._facts_for and not stale & FACTS_FROM:
            return self._facts
        try:
            self._facts = self._read_facts(address)
        except BackendError as error:
            name = Backend(error.backend) if error.backend in set(Backend) else Backend.NETLINK
            failures[name] = Failure(errors=(error,), unreachable=True)
            return self._facts
        self._facts_for = address
        return self._facts

    def _observe(self, names: frozenset[Backend], failures: Failures) -> Seen:
        found: dict[Backend, Content] = {}
        for name in sorted(names):
            try:
                found[name] = self._backends[name].observe()
            except BackendError as error:
                failures[name] = Failure(errors=(error,), unreachable=True)
        return found

    def _keep_numbers(self, done: Iterable[Step]) -> None:
        """Remember port numbers that were given: a port keeps its number (`Facts.ofports`)."""
        ports = {
            resource.name: resource.ofport
            for step in done
            if isinstance(resource := step.new, TunnelPort) and step.op is not Op.DELETE
        }
        if ports and self._facts is not None:
            self._facts = replace(self._facts, ofports={**self._facts.ofports, **ports})


def own_address(snapshot: Snapshot, node_name: str) -> Address | None:
    """Return the address by which the API knows this Node: the device that has it is the uplink."""
    node = snapshot.nodes.get(node_name)
    return node.internal_ips[0] if node is not None and node.internal_ips else None


def _blank(seen: Seen, failures: Mapping[Backend, Failure]) -> bool:
    """Whether the bridge has no flow now."""
    if Backend.OPENFLOW in seen:
        return not any(isinstance(resource, FlowEntry) for resource in seen[Backend.OPENFLOW].values())
    return Backend.OPENFLOW in failures and failures[Backend.OPENFLOW].gone
