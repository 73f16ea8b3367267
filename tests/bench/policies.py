"""What policies cost: 1,000 label identities and 200 ClusterNetworkPolicies on a gateway with 100 Pods.

Prints flows, seconds cold and after one change, and how long Open vSwitch takes for them; run it as root with
`python -m tests.bench.policies`. It judges nothing.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from mcagent.core.compile import Compiled, Compiler
from mcagent.core.plan.diff import diff, diff_desired
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import FlowEntry
from mcagent.model.objects import ApiObject, Kind, Snapshot
from mcagent.model.plan import Plan, Step
from tests.worlds.core_inputs import HOME, cluster, config, label_identity, namespace, pod, policy, snapshot

IDENTITIES, POLICIES, PODS = 1000, 200, 100
TEAMS = 100  # so each selects ten identities
BRIDGE = "br-mc"


def identity(number: int) -> ApiObject:
    """Return one of so many, of a team's ten applications."""
    text = f"ns:kubernetes.io/metadata.name=shop&pod:app=a{number // TEAMS},team=t{number % TEAMS}"
    return label_identity(text, 1000 + number, "c1")


def rule(number: int, ports: int = 443, *, first: bool = False) -> ApiObject:
    """Return a policy for a fiftieth of the Pods: one team may, everybody else on a port may not."""
    peer = {"scope": "ClusterSet", "podSelector": {"matchLabels": {"team": f"t{number % TEAMS}"}}}
    port = {"protocol": "TCP", "port": ports}
    spec: dict[str, object] = {
        "priority": 0.5 if first else number + 1,
        "tier": "application",
        "appliedTo": [{"podSelector": {"matchLabels": {"group": f"g{number % 50}"}}}],
        "ingress": [{"action": "Allow", "from": [peer], "ports": [port]}, {"action": "Drop", "ports": [port]}],
    }
    return policy(Kind.CLUSTER_NETWORK_POLICY, f"first-{number}" if first else f"p{number:03}", spec)


def world() -> Snapshot:
    """Return all objects."""
    pods = (pod(f"p{n}", "g1", f"10.244.0.{n + 1}", labels=f"group=g{n % 50}") for n in range(PODS))
    other_objects = (namespace("mc"), cluster("c1", "10.100.0.0/16", "10.101.0.0/16", gateways=("20.0.0.1",)))
    identities = (identity(number) for number in range(IDENTITIES))
    return snapshot(*HOME, *other_objects, *pods, *identities, *(rule(number) for number in range(POLICIES)))


class Timed:
    """A compiler whose calls are timed, each with the diff to the one before."""

    def __init__(self) -> None:
        self._compiler, self._config = (
            Compiler(),
            config("g1", stretched_network_policy=True, enable_pod_to_pod=True),
        )
        self.last: Compiled | None = None

    def __call__(self, source: Snapshot) -> tuple[Plan, float]:
        """Return the plan, and CPU seconds of compile and diff."""
        start = time.thread_time()
        compiled = self._compiler.compile(source, Facts(), self._config)
        plan = diff_desired(self.last.desired, compiled.desired) if self.last else diff({}, compiled.desired)
        self.last = compiled
        return plan, time.thread_time() - start


def changes(source: Snapshot) -> dict[str, Callable[[int], Snapshot]]:
    """Return what may change, each by a number."""

    def with_one(attribute: str, obj: ApiObject) -> Snapshot:
        objects: dict[str, Any] = {attribute: {**getattr(source, attribute), obj.meta.key: obj}}
        return replace(source, **objects)

    return {
        "a policy's port": lambda n: with_one("cluster_network_policies", rule(n, 444)),
        "a policy before all": lambda n: with_one("cluster_network_policies", rule(n, first=True)),
        "an identity more": lambda n: with_one("label_identities", identity(IDENTITIES + n)),
        "a Pod's label": lambda n: with_one("pods", pod(f"p{n}", "g1", f"10.244.0.{n + 1}", labels="group=g0")),
    }


def main() -> None:
    """Measure and print."""
    source = world()
    cold = []
    for _ in range(3):
        gc.collect()
        compile_ = Timed()
        plan, seconds = compile_(source)
        cold.append(seconds)
    assert compile_.last is not None
    flows = [step.new for step in plan.steps if isinstance(step.new, FlowEntry)]
    tables = Counter(flow.table for flow in flows)
    print(f"{IDENTITIES} identities, {POLICIES} policies of 2 rules, {PODS} Pods: {len(flows)} flows")
    print(f"  of tables {dict(sorted(tables.items()))}")
    print(f"  cold                 {statistics.median(cold) * 1000:8.1f} ms (compile and diff)")
    steps: dict[str, list[Step]] = {}
    for change_name, change in changes(source).items():
        took = []
        for number in range(9):
            plan, seconds = compile_(change(number))
            took.append(seconds)
            steps[change_name] = list(plan.steps)
            compile_(source)
        count = sum(isinstance(step.new or step.old, FlowEntry) for step in steps[change_name])
        print(f"  {change_name:<20} {statistics.median(took) * 1000:8.1f} ms, {count} flows change")
    with tempfile.TemporaryDirectory(prefix="mcb-") as directory:
        on_the_wire(Path(directory), flows, steps)


def on_the_wire(directory: Path, flows: list[FlowEntry], steps: dict[str, list[Step]]) -> None:
    """Print how long the bundles take in a real Open vSwitch."""
    name = "mcb-policies"
    netns.create(name)
    try:
        ovs = OvsInstance.start(name, directory)
        ovs.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail-mode=secure")
        ovs.vsctl("set", "bridge", BRIDGE, "protocols=OpenFlow15")
        backend = OpenFlowBackend(ovs.mgmt(BRIDGE))
        own_flows = [flow for flow in flows if "group:" not in flow.actions and "meter:" not in flow.actions]
        timed("all flows", backend, [Step(new=flow) for flow in own_flows])
        for step_name, all_steps in steps.items():
            mine = [step for step in all_steps if isinstance(step.new or step.old, FlowEntry)]
            timed(step_name, backend, mine)
            timed("  and back", backend, [Step(old=step.new, new=step.old) for step in mine])
        ovs.stop()
    finally:
        netns.delete(name)


def timed(title: str, backend: OpenFlowBackend, steps: list[Step]) -> None:
    """Apply steps, all of which have to succeed, and print how long it took."""
    start = time.perf_counter()
    result = backend.apply(steps)
    took = time.perf_counter() - start
    assert not result.failed, str(result.failed[0][1])
    print(f"  {title:<20} {took * 1000:8.1f} ms in Open vSwitch ({len(steps)} flows)")


if __name__ == "__main__":
    main()
