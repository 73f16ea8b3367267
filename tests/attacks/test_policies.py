"""Attacks on policies of other tenants by policies that cost too much: flows, time, the clauses of a flow."""

from __future__ import annotations

import time
from collections.abc import Iterable
from ipaddress import IPv4Address
from itertools import islice
from random import Random
from typing import Any

import pytest

from flows.pipeline import PolicyVerdict
from flows.simulator import Packet, SimulatedSwitch
from flows.simulator.packet import SYN
from mcagent.core.engine import IncrementalEngine
from mcagent.core.fragments.policies import Enforcement, enforcement, pipeline_rules, pod_policies
from mcagent.core.policies import pipeline_input
from mcagent.core.policies.limits import MAX_RULES
from mcagent.core.policies.selection import select_rules
from mcagent.model.config import PolicyFailureMode
from mcagent.model.dataplane.resources import FlowEntry
from mcagent.model.objects import Snapshot
from tests.attacks.catalogue import Attacker, Group, attack
from tests.policies import Policies
from tests.policy_manifests import NODE, Manifest, manifest
from tests.policy_switch import EXITS, flows_of
from tests.unit.test_policy_rules import CLUSTER_IDS, ENV, config, read

SENDER = "10.2.0.9"  # a Pod of another cluster
PODS = {"attacker": "10.1.0.1", "victim": "10.1.0.2"}
MESSAGE = 65535  # bytes of an OpenFlow message, whose length is a field of 16 bits
CLAUSE = 16  # bytes of a conjunction action


def policy(name: str, namespace: str, peers: Iterable[Manifest]) -> Manifest:
    """Return a NetworkPolicy that lets these peers reach all Pods of a Namespace."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [*peers]}]}
    return manifest("networking.k8s.io/v1", "NetworkPolicy", name, namespace, spec=spec)


def antrea_policy(name: str, namespace: str, peers: Iterable[Manifest]) -> Manifest:
    """Return a NetworkPolicy of Antrea that lets these peers reach all Pods of a Namespace, and no others."""
    rules = [{"action": "Allow", "from": [*peers]}, {"action": "Drop"}]
    spec = {"priority": 5, "appliedTo": [{"podSelector": {}}], "ingress": rules}
    return manifest("crd.antrea.io/v1beta1", "NetworkPolicy", name, namespace, spec=spec)


def blocks(count: int, seed: int = 1) -> list[Manifest]:
    """Return ipBlocks of all addresses but 64 of each: about 1,600 networks remain of one."""
    random = Random(seed)

    def address() -> str:
        return (
            f"{random.randrange(20, 224)}.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(256)}"
        )

    return [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": [f"{address()}/32" for _ in range(64)]}} for _ in range(count)
    ]


def pod(name: str, namespace: str, address: str, *containers: Manifest) -> Manifest:
    """Return a Pod on the Node."""
    spec = {"nodeName": NODE, "containers": [*containers]}
    status = {"phase": "Running", "podIPs": [{"ip": address}]}
    return manifest("v1", "Pod", name, namespace, spec=spec, status=status)


def snapshot(*objects: Manifest) -> Snapshot:
    """Return a cluster with a Pod of each tenant on the Node, and objects."""
    namespaces = [manifest("v1", "Namespace", tenant) for tenant in PODS]
    pods = [pod("p", tenant, address) for tenant, address in PODS.items()]
    return read([*namespaces, *pods, *objects])


def enforced(*objects: Manifest) -> Enforcement:
    """Return what a Node enforces of the policies among these objects."""
    engine = IncrementalEngine()
    with engine.one_pass():
        return enforcement(engine, snapshot(*objects), ENV, config(PolicyFailureMode.CLOSED), CLUSTER_IDS)


def flows_in(result: Enforcement) -> list[FlowEntry]:
    """Return the flows of a Node's policies."""
    resources = (resource for fragment in result.fragments for resource in fragment.resources)
    return [resource for resource in resources if isinstance(resource, FlowEntry)]


def verdicts(*policies: Manifest, mode: PolicyFailureMode = PolicyFailureMode.CLOSED) -> dict[str, PolicyVerdict]:
    """Return what becomes of a connection of another cluster to the Pod of each tenant."""
    engine = IncrementalEngine()
    with engine.one_pass():
        selected = select_rules(engine, snapshot(*policies), config(mode))
        levels = pipeline_rules(engine, selected, pipeline_input.rule_ids(selected.rules), CLUSTER_IDS)
    rules = tuple(rule for level in levels.values() for rule in level)
    switch = SimulatedSwitch.of(
        flows_of(Policies(rules=rules, pods=pod_policies(selected.isolated, selected.rules)))
    )
    decided = {}
    for tenant, address in PODS.items():
        walk = switch.walk(
            Packet(
                in_port=12,
                src=IPv4Address(SENDER),
                dst=IPv4Address(address),
                proto=6,
                src_port=4000,
                dst_port=80,
                tcp_flags=SYN,
            )
        )
        decided[tenant] = EXITS[walk.outputs[0][0]] if walk.outputs else PolicyVerdict.DROP
    return decided


ALLOWS = policy("allow", "victim", [{"ipBlock": {"cidr": "10.2.0.0/16"}}])
DENIES = policy("deny", "victim", [{"ipBlock": {"cidr": "10.3.0.0/16"}}])


@attack(
    Group.POLICIES,
    Attacker.USER,
    wants="stall the agents by one NetworkPolicy of 79 KiB, 90,000 flows, so that others' are not enforced",
    stopped_by="a limit of the flows of one policy, counted before they are made",
)
@pytest.mark.parametrize("make", [policy, antrea_policy])
def test_a_policy_of_ninety_thousand_flows(make: Any) -> None:
    """It is refused with both numbers in little time; its Pods are closed, and the other tenant's policy holds."""
    large = make("large", "attacker", blocks(60))
    before = time.process_time()
    result = enforced(large, DENIES)
    assert time.process_time() - before < 5
    assert len(flows_in(result)) < 20
    (problem,) = result.problems
    assert problem.subject.endswith("NetworkPolicy attacker/large")
    assert problem.reason == "NotEnforceable"
    number = int(problem.message.split()[1])
    assert problem.message.startswith(f"needs {number} flows on this Node, at most 10000 are allowed")
    assert 90_000 < number < 100_000
    assert verdicts(large, DENIES) == {"attacker": PolicyVerdict.DROP, "victim": PolicyVerdict.DROP}
    assert verdicts(large, ALLOWS) == {"attacker": PolicyVerdict.DROP, "victim": PolicyVerdict.ALLOW}
    if make is policy:  # with `open` a rule of a NetworkPolicy counts as allowing everything
        opened = verdicts(large, DENIES, mode=PolicyFailureMode.OPEN)
        assert opened == {"attacker": PolicyVerdict.ALLOW, "victim": PolicyVerdict.DROP}


@attack(
    Group.POLICIES,
    Attacker.USER,
    wants="stall the agents by hundreds of policies, each below the limit of one",
    stopped_by="a limit of the flows of a Namespace, of whose policies the oldest are enforced",
)
@pytest.mark.parametrize("make", [policy, antrea_policy])
def test_hundreds_of_large_policies(make: Any) -> None:
    """So many are enforced as the limit allows; the others are refused unexpanded, and cost no flows."""
    large = [make(f"p{number:03}", "attacker", blocks(6, number)) for number in range(100)]
    before = time.process_time()
    result = enforced(*large, ALLOWS)
    assert time.process_time() - before < 40
    refused = [problem for problem in result.problems if problem.reason == "NotEnforceable"]
    assert [problem.subject.rpartition("/")[2] for problem in refused] == [f"p{n:03}" for n in range(2, 100)]
    assert "older policies of Namespace attacker need" in refused[0].message
    assert len(flows_in(result)) < 20_100
    assert "NetworkPolicy/victim/allow" in {name.policy for name in result.names.values()}


@attack(
    Group.POLICIES,
    Attacker.USER,
    wants="make a flow that others' rules share larger than an OpenFlow message, so that it is never programmed",
    stopped_by="a limit of the rules on a Node, which Namespaces share fairly",
)
def test_thousands_of_rules_in_a_flow_of_others() -> None:
    """Every flow fits into a message, the victim's rule is one of those enforced, and the rest is refused."""
    everyone = [{"ipBlock": {"cidr": "0.0.0.0/0"}}]
    many = [policy(f"p{number:04}", "attacker", everyone) for number in range(MAX_RULES + 500)]
    result = enforced(*many, policy("web", "victim", everyone))
    clauses = [flow.actions.count("conjunction(") for flow in flows_in(result)]
    assert MAX_RULES * CLAUSE // 2 < max(clauses) * CLAUSE < MESSAGE - 500
    assert {name.policy for name in result.names.values()} >= {"NetworkPolicy/victim/web"}
    assert len(result.problems) == 501
    assert all("its share of 4000 is 3999" in problem.message for problem in islice(result.problems, 5))


@attack(
    Group.POLICIES,
    Attacker.USER,
    wants="stall the agents by rules that differ for each Pod: named ports, labels of the Pod itself",
    stopped_by="a limit of the rules that are made of one policy",
)
def test_rules_that_differ_for_each_pod() -> None:
    """1,000 rules with a named port, of 110 numbers, would be 110,000: no more than the limit are made."""
    pods = []
    for number in range(110):
        ports = [{"name": "web", "protocol": "TCP", "containerPort": 1000 + number}]
        pods.append(pod(f"p{number}", "attacker", f"10.1.1.{number}", {"name": "c", "ports": ports}))
    rules = [
        {"from": [{"ipBlock": {"cidr": f"10.{n % 250}.0.0/16"}}], "ports": [{"port": "web"}]} for n in range(1000)
    ]
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": rules}
    large = manifest("networking.k8s.io/v1", "NetworkPolicy", "large", "attacker", spec=spec)
    before = time.process_time()
    result = enforced(*pods, large, ALLOWS)
    assert time.process_time() - before < 10
    assert [problem.subject for problem in result.problems] == ["NetworkPolicy attacker/large"]
    assert len(flows_in(result)) < 400
