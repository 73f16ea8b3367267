"""One pass: compile, look where that is needed, compare, apply. Remembers what each backend is known to hold.

`Reconciler` is used by one thread and is the only caller of the backends' `observe` and `apply`. It decides no
times (`schedule`) and knows no API, thread or socket.

What keeps a dataplane from being taken away by mistake:
- nothing is done before every kind that the role needs has been listed completely once, except that the bridge is
  made, which is there whatever the role; from then on desired is complete: additions and deletions go together;
- a pass that cannot be computed (an input that breaks `compile`, facts that cannot be read) changes nothing;
- tunnels are deleted only in a pass whose flow changes went in, because until then flows may use them;
- peers are asked to send nothing by a tunnel before the flows are there (`mcagent.core.plan.path_down`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from mcagent.agent.control_loop.apply import Failure, Phases, apply_plan
from mcagent.agent.control_loop.drift import Content, Drift, content, drifted
from mcagent.core.compile import Compiled, Compiler, compile_desired
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED
from mcagent.core.plan.diff import diff, diff_desired
from mcagent.core.plan.path_down import flows_first, takes_into_use
from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.config import Config
from mcagent.model.errors import BackendError
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address
from mcagent.model.node_state import NodeState
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired, Op, Plan, Step
from mcagent.model.resources import Backend, FlowEntry, Resource, ResourceKey, TunnelPort
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

FACTS_FROM = frozenset({Backend.OVSDB, Backend.NETLINK, Backend.WIREGUARD})  # facts are read again with these

Compile = Callable[[Snapshot, Facts, Config], Compiled]


class LiveFacts(Protocol):
    """What knows of BFD and drain (`mcagent.agent.failover.Failover`)."""

    @property
    def wake(self) -> float:
        """When to look again though nothing is told, in seconds of the monotonic clock; may be inf."""

    def linger(self, snapshot: Snapshot, config: Config) -> Snapshot:
        """Return the snapshot with gateways that the API has no more, until their peers have moved."""

    def facts(self, facts: Facts, snapshot: Snapshot, config: Config, desired: Desired | None) -> Facts:
        """Return the facts with what is live now; `desired` is the last pass's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a pass found and did. `converged`: the whole dataplane is known to equal the desired state."""

    needs: frozenset[Kind] = frozenset()
    waiting_for: frozenset[Kind] = frozenset()
    desired: Desired | None = None
    plan: Plan = field(default_factory=Plan)
    done: tuple[Step, ...] = ()
    drift: tuple[Step, ...] = ()  # the part of `done` that put back what somebody else had changed
    failures: Mapping[Backend, Failure] = field(default_factory=dict)
    contended: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)  # what is left alone for a while
    observed: frozenset[Backend] = frozenset()  # read again in this pass, or tried to
    phases: Mapping[str, float] = field(
        default_factory=dict
    )  # seconds: facts, compile, observe, diff, apply_BACKEND
    converged: bool = False

    @property
    def counts(self) -> Counter[tuple[Backend, str, Op]]:
        """Changes made, by backend, kind of resource and operation."""
        return Counter((step.backend, kind_of(step), step.op) for step in self.done)


def kind_of(step: Step) -> str:
    """Return the kind of resource that a step changes: "FlowEntry", "Route", ..."""
    return type(step.new if step.new is not None else step.old).__name__


class Reconciler:
    """Makes the Node's dataplane equal to what a snapshot says. One thread."""

    def __init__(
        self,
        *,
        backends: Mapping[Backend, DataplaneBackend],
        read_facts: Callable[[Address | None], Facts],
        config: Config,
        compiler: Compile | None = None,
        live: LiveFacts | None = None,
        flows_there: Callable[[], bool] | None = None,
        state_lost: Callable[[NodeState], None] = lambda _: None,
    ) -> None:
        """Make it. `flows_there` tells whether the bridge has flows for less than reading them costs.

        `state_lost` is called when flows are there again after Open vSwitch had lost its conntrack with them.
        """
        self._backends = backends
        self._flows_there = flows_there or self._reads_flows
        self._read_facts = read_facts
        self._state_lost = state_lost
        self._compile = compiler or Compiler().compile
        self._live = live
        self._drift = Drift()
        self.config = config
        self._facts: Facts | None = None
        self._facts_for: Address | None = None
        self._compiled: Compiled | None = None
        self._known: dict[Backend, Desired] = {}  # what a backend is known to hold now
        self._last: dict[Backend, Desired] = {}  # what it held when it was last right
        self._held_back: frozenset[ResourceKey] = frozenset()  # tunnels that are not used until flows are there
        self._early: tuple[Step, ...] = ()  # done before the first plan was made
        self._looked = False  # whether there are flows, before anything is known of what should be

    @property
    def wake(self) -> float:
        """When the next pass is due though nothing is told, in seconds of the monotonic clock; may be inf."""
        return min(self._drift.peace, self._live.wake if self._live is not None else math.inf)

    def forget(self) -> None:
        """Trust nothing that is remembered: the next pass reads everything."""
        self._known.clear()
        self._facts = None
        self._compiled = None

    def reconcile(
        self, snapshot: Snapshot, *, observe: frozenset[Backend], blocked: frozenset[Backend]
    ) -> Outcome:
        """Do one pass. `observe` names backends to read again; `blocked` those to leave alone.

        Raises nothing that a backend raises; what `compile` raises comes through, with nothing changed.
        """
        phases = Phases()
        failures: dict[Backend, Failure] = {}
        for backend in observe:
            self._known.pop(backend, None)
        if missing := ALWAYS_NEEDED - snapshot.synced:
            self._looked = (self._looked and Backend.OPENFLOW not in observe) or self._look_for_flows()
            return Outcome(needs=ALWAYS_NEEDED, waiting_for=missing)
        phases.enter("facts")
        stale = frozenset(self._backends) - self._known.keys() - blocked
        address = own_address(snapshot, self.config.node_name)
        if self._facts is None or address != self._facts_for or stale & FACTS_FROM:
            self._refresh_facts(address, failures)
        if self._facts is None:
            return Outcome(failures=failures, phases=phases.end())
        if self._live is not None:
            snapshot = self._live.linger(snapshot, self.config)
        facts = self._with_live(self._facts, snapshot)
        phases.enter("compile")
        first = self._compiled is None and Backend.OVSDB in stale - failures.keys()
        with self._bridge_meanwhile(facts) if first else contextlib.nullcontext():
            self._compiled = self._compile(snapshot, facts, self.config)
        desired, needs = self._compiled.desired, self._compiled.needs
        if missing := needs - snapshot.synced:
            return Outcome(needs=needs, waiting_for=missing, failures=failures, phases=phases.end())
        phases.enter("observe")
        read = stale - failures.keys()
        seen = self._observe(read, failures)
        phases.enter("diff")
        plan = self._plan(desired, seen)
        lasts = {name: content(self._last[name], name) for name in seen.keys() & self._last.keys()}
        drift = drifted(plan, lasts) - {(Backend.OVSDB, key) for key in self._held_back}
        plan, contended = self._drift.leave_alone(plan, drift, lasts, time.monotonic())
        blank = _blank(seen, failures)
        plan = flows_first(plan, self._tunnels(seen), blank=blank)
        left_alone = blocked | frozenset(failures)
        done = (*self._early, *apply_plan(self._backends, plan, left_alone, failures, phases))
        self._early = ()
        self._learn(plan, desired, left_alone | contended.keys(), failures, done)
        # The kernel's conntrack outlives ovs-vswitchd; that of the userspace datapath is part of its process.
        flows = failures.get(Backend.OPENFLOW)
        back = blank and (flows is None or not flows.unreachable)
        if back and Backend.OPENFLOW not in blocked and facts.datapath is DatapathType.NETDEV:
            self._state_lost(self._compiled.state)
        return Outcome(
            needs=needs,
            desired=desired,
            plan=plan,
            done=done,
            drift=tuple(step for step in done if (step.backend, step.key) in drift),
            failures=failures,
            contended=contended,
            observed=read,
            phases=phases.end(),
            converged=all(self._known.get(backend) is desired for backend in self._backends),
        )

    @contextlib.contextmanager
    def _bridge_meanwhile(self, facts: Facts) -> Iterator[None]:
        """Make the bridge, if there is none, beside what is done meanwhile: it is there whatever the objects say.

        Open vSwitch takes a tenth of a second for it. An error is none here: the pass itself will meet it.
        """
        backend = self._backends[Backend.OVSDB]

        def make() -> None:
            bare = compile_desired(Snapshot(), facts, self.config).desired
            with contextlib.suppress(BackendError):
                if not backend.observe():
                    steps = [step for step in diff({}, bare).steps if step.backend is Backend.OVSDB]
                    self._early = backend.apply(steps).done

        thread = Supervised(make, name="bridge")
        if self.config.host_port not in facts.ofports:
            thread.start()
        try:
            yield
        finally:
            if thread.ident is not None:
                thread.join()

    def preview(self, snapshot: Snapshot) -> tuple[Desired, Plan]:
        """Return what would be and what a pass would do now, and do nothing. Raises BackendError."""
        self._facts = self._read_facts(own_address(snapshot, self.config.node_name))
        facts = self._with_live(self._facts, snapshot)
        self._compiled = self._compile(snapshot, facts, self.config)
        desired = self._compiled.desired
        seen = {name: backend.observe() for name, backend in self._backends.items()}
        return desired, flows_first(diff(seen, desired), seen[Backend.OVSDB].values(), blank=_blank(seen, {}))

    def _with_live(self, facts: Facts, snapshot: Snapshot) -> Facts:
        if self._live is None:
            return facts
        desired = self._compiled.desired if self._compiled is not None else None
        return self._live.facts(facts, snapshot, self.config, desired)

    def _refresh_facts(self, address: Address | None, failures: dict[Backend, Failure]) -> None:
        """Read the facts; where that fails, go on with the last ones, if there are any."""
        try:
            facts = self._read_facts(address)
        except BackendError as error:
            name = Backend(error.backend) if error.backend in set(Backend) else Backend.NETLINK
            failures[name] = Failure(errors=(error,), unreachable=True)
        else:
            self._facts_for = address
            if facts != self._facts:  # keep the very same value while it is equal: compile compares by identity
                self._facts = facts

    def _observe(self, names: frozenset[Backend], failures: dict[Backend, Failure]) -> dict[Backend, Content]:
        """Read backends. One that holds just what it last held is known again, and is not in the answer."""
        seen: dict[Backend, Content] = {}
        for name in sorted(names):
            try:
                found = self._backends[name].observe()
            except BackendError as error:
                failures[name] = Failure(errors=(error,), unreachable=True)
                continue
            last = self._last.get(name)
            if last is not None and found == content(last, name):
                self._known[name] = last
            else:
                seen[name] = found
        return seen

    def _look_for_flows(self) -> bool:
        """Stop peers from sending to a Node that was just started, before the API is there; whether that is known.

        Neither is an error here: with whatever cannot be reached the first whole pass has to do.
        """
        try:
            plan = flows_first(Plan(), self._backends[Backend.OVSDB].observe().values(), blank=True)
            if plan.stages and not self._flows_there():
                self._backends[Backend.OVSDB].apply(plan.stages[0].steps)
        except BackendError as error:
            log.debug("%s", error)
            return False
        return True

    def _reads_flows(self) -> bool:
        return not _blank({Backend.OPENFLOW: self._backends[Backend.OPENFLOW].observe()}, {})

    def _tunnels(self, seen: Mapping[Backend, Content]) -> Iterable[Resource]:
        """Return what OVSDB holds, as far as that is known."""
        if Backend.OVSDB in seen:
            return seen[Backend.OVSDB].values()
        known = self._known.get(Backend.OVSDB)
        return content(known, Backend.OVSDB).values() if known is not None else ()

    def _plan(self, desired: Desired, seen: Mapping[Backend, Content]) -> Plan:
        """Return the steps; a backend that is neither known nor seen has none."""
        befores = list({id(known): known for known in self._known.values()}.values())
        if len(self._known) == len(self._backends) and len(befores) == 1:
            return diff_desired(befores[0], desired)
        if not seen and all(known is desired for known in befores):
            return Plan()  # a retry of what cannot be reached: the others hold what they should
        actual: dict[Backend, Content] = {}
        for name in self._backends:
            if name in seen:
                actual[name] = seen[name]
            else:
                actual[name] = content(self._known.get(name, desired), name)
        return diff(actual, desired)

    def _learn(
        self,
        plan: Plan,
        desired: Desired,
        left_alone: frozenset[Backend],
        failures: Mapping[Backend, Failure],
        done: tuple[Step, ...],
    ) -> None:
        """Remember which backends now hold the desired state, and which port numbers are taken."""
        used = {step.key for step in done if takes_into_use(step)}
        self._held_back = frozenset(step.key for step in plan.steps if takes_into_use(step)) - used
        for name in self._backends:
            if name in failures or name in left_alone or (name is Backend.OVSDB and self._held_back):
                self._known.pop(name, None)
            else:
                self._known[name] = self._last[name] = desired
        ports = {
            resource.name: resource.ofport
            for step in done
            if isinstance(resource := step.new, TunnelPort) and step.op is not Op.DELETE
        }
        if ports and self._facts is not None:
            # What has been given a number keeps it, whatever else comes (see `Facts.ofports`).
            self._facts = replace(self._facts, ofports={**self._facts.ofports, **ports})


def own_address(snapshot: Snapshot, node_name: str) -> Address | None:
    """Return the address by which the API knows this Node: the device that has it is the uplink."""
    node = snapshot.nodes.get(node_name)
    return node.internal_ips[0] if node is not None and node.internal_ips else None


def _blank(seen: Mapping[Backend, Content], failures: Mapping[Backend, Failure]) -> bool:
    """Whether the bridge has no flow now."""
    if Backend.OPENFLOW in seen:
        return not any(isinstance(resource, FlowEntry) for resource in seen[Backend.OPENFLOW].values())
    return Backend.OPENFLOW in failures and failures[Backend.OPENFLOW].gone
