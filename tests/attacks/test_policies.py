"""Attacks on policies of other tenants by policies that cost too much: flows, time, the clauses of a flow."""

from __future__ import annotations

import time
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from itertools import islice
from random import Random
from typing import Any

import pytest

from flows.pipeline import PolicyVerdict
from flows.simulator import Packet, SimulatedSwitch
from flows.simulator.packet import SYN
from flows.text import mac_text
from mcagent.cli.common import policy_view
from mcagent.core.engine import IncrementalEngine
from mcagent.core.fragments.policies import Enforcement, enforcement, pipeline_rules, pod_policies
from mcagent.core.policies import pipeline_input
from mcagent.core.policies.limits import MAX_RULES
from mcagent.core.policies.selection import select_rules
from mcagent.model.config import PolicyFailureMode
from mcagent.model.dataplane.resources import FlowEntry
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.policies import Direction
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.policies import (
    FROM_WEB,
    FROM_WEB_ANTREA,
    MESSAGE,
    PODS,
    antrea_policy,
    identities,
    pod,
    policy,
    snapshot,
)
from tests.worlds.policies import Policies
from tests.worlds.policy_manifests import Manifest, manifest
from tests.worlds.policy_reading import CLUSTER_IDS, ENV, config
from tests.worlds.policy_switch import EXITS, flows_of

SENDER = "10.2.0.9"  # a Pod of another cluster
CLAUSE = 16  # bytes of a conjunction action


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


def enforced(*objects: Manifest) -> Enforcement:
    """Return what a Node enforces of the policies among these objects."""
    engine = IncrementalEngine()
    with engine.one_pass():
        return enforcement(engine, snapshot(*objects), ENV, config(PolicyFailureMode.CLOSED), CLUSTER_IDS)


def flows_in(result: Enforcement) -> list[FlowEntry]:
    """Return the flows of a Node's policies."""
    resources = (resource for fragment in result.fragments for resource in fragment.resources)
    return [resource for resource in resources if isinstance(resource, FlowEntry)]


def switch_of(*objects: Manifest, mode: PolicyFailureMode = PolicyFailureMode.CLOSED) -> SimulatedSwitch:
    """Return the tables of policies of a Node."""
    engine = IncrementalEngine()
    with engine.one_pass():
        selected = select_rules(engine, snapshot(*objects), config(mode))
        levels = pipeline_rules(engine, selected, pipeline_input.rule_ids(selected.rules), CLUSTER_IDS)
    rules = tuple(rule for level in levels.values() for rule in level)
    return SimulatedSwitch.of(
        flows_of(Policies(rules=rules, pods=pod_policies(selected.isolated, selected.rules)))
    )


def verdict(switch: SimulatedSwitch, tenant: str, cluster: str = "west", identity: int = 0) -> PolicyVerdict:
    """Return what becomes of a connection of another cluster to the Pod of a tenant."""
    walk = switch.walk(
        Packet(
            in_port=10 + CLUSTER_IDS[cluster],
            src=IPv4Address(SENDER),
            dst=IPv4Address(PODS[tenant]),
            proto=6,
            src_port=4000,
            dst_port=80,
            tcp_flags=SYN,
            tun_id=identity,
            eth_src=mac_text(0x0200 << 32 | identity),  # `policy_switch` reads the identity there
        )
    )
    return EXITS[walk.outputs[0][0]] if walk.outputs else PolicyVerdict.DROP


def verdicts(*policies: Manifest, mode: PolicyFailureMode = PolicyFailureMode.CLOSED) -> dict[str, PolicyVerdict]:
    """Return what becomes of a connection of another cluster to the Pod of each tenant."""
    switch = switch_of(*policies, mode=mode)
    return {tenant: verdict(switch, tenant) for tenant in PODS}


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


MANY = range(100, 11_100)  # label identities of `west`; those of `east` have higher numbers, so they come last
FEW = range(20_000, 20_010)


@attack(
    Group.POLICIES,
    Attacker.MEMBER,
    wants="have policies of another cluster refused, by label identities that their selectors match",
    stopped_by="identities are no cost of a policy: clusters share what it leaves, and what is beyond is unknown",
)
@pytest.mark.parametrize("count", [1_000, 2_000, 11_000])
@pytest.mark.parametrize(("make", "peer", "more"), [(policy, FROM_WEB, 2), (antrea_policy, FROM_WEB_ANTREA, 3)])
def test_label_identities_of_a_member_and_policies_of_a_namespace(
    make: Any, peer: Manifest, more: int, count: int
) -> None:
    """25 policies remain in force, with all identities of another cluster and a share of the attacker's."""
    exported = [*identities("west", MANY[:count]), *identities("east", FEW)]
    policies = [make(f"p{number:02}", "victim", [peer]) for number in range(25)]
    result = enforced(*exported, *policies)
    assert {problem.reason for problem in result.problems} == {"IdentitiesUnknown"}
    unknown = count - (20_000 - 25 * more - 25 * len(FEW)) // 25
    assert f"maxNamespacePolicyFlows) have room for: unknown are {unknown} of west. " in result.problems[0].message
    assert len(result.problems) == len(policies)
    assert len({name.policy for name in result.names.values()}) == len(policies)
    switch = switch_of(*exported, *policies)
    assert {verdict(switch, "victim", "east", number) for number in FEW} == {PolicyVerdict.ALLOW}
    assert verdict(switch, "victim", "west", MANY[0]) is PolicyVerdict.ALLOW
    assert verdict(switch, "victim", "west", MANY[count - 1]) is PolicyVerdict.DROP


@attack(
    Group.POLICIES,
    Attacker.MEMBER,
    wants="have a policy of ten rules refused, by as many label identities as it may export by default",
    stopped_by="identities are no cost of a policy, and these are within the share of one cluster",
)
def test_ten_rules_about_a_thousand_label_identities_are_within_the_limits() -> None:
    """As many as a member may export by default are not unknown to one policy."""
    exported, rules = identities("west", MANY[:1_000]), [{"from": [FROM_WEB]}] * 10
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": rules}
    assert not enforced(
        *exported, manifest("networking.k8s.io/v1", "NetworkPolicy", "p", "victim", spec=spec)
    ).problems


@attack(
    Group.POLICIES,
    Attacker.MEMBER,
    wants="get Pods past a rule that drops them by label, by more label identities than it may match",
    stopped_by="a rule that drops applies to all Pods of a cluster with too many identities, in both modes",
)
@pytest.mark.parametrize("mode", PolicyFailureMode)
def test_rules_that_drop_apply_to_unknown_label_identities(mode: PolicyFailureMode) -> None:
    """A cluster with too many identities is dropped as a whole; the others are dropped by their labels."""
    exported = [*identities("west", MANY), *identities("east", FEW)]
    rules = [{"action": "Drop", "from": [FROM_WEB_ANTREA]}]
    spec = {"priority": 5, "appliedTo": [{"podSelector": {}}], "ingress": rules * 2}
    objects = [*exported, manifest("crd.antrea.io/v1beta1", "NetworkPolicy", "p", "victim", spec=spec)]
    switch, in_force = switch_of(*objects, mode=mode), policy_view.in_force(snapshot(*objects), config(mode))
    others = FEW[-1] + 1
    for cluster in ("west", "east"):
        for number in (MANY[0], MANY[-1], FEW[0], others):
            asked = policy_view.Request(
                direction=Direction.INGRESS, pod=IPv4Address(PODS["victim"]), cluster=cluster, identity=number
            )
            explained = policy_view.decide(in_force, asked).verdict
            assert explained.lower() == verdict(switch, "victim", cluster, number).value, (cluster, number)
    assert {verdict(switch, "victim", "west", number) for number in (*MANY, others)} == {PolicyVerdict.DROP}
    assert {verdict(switch, "victim", "east", number) for number in FEW} == {PolicyVerdict.DROP}
    assert verdict(switch, "victim", "east", others) is PolicyVerdict.ALLOW


def imported(cluster: str, numbers: Iterable[int], ports: int) -> Manifest:
    """Return an EndpointSlice of the imported Service shop/web: addresses of a cluster, with ports."""
    labels = {"kubernetes.io/service-name": "antrea-mc-web", "multicluster.kubernetes.io/source-cluster": cluster}
    item = manifest("discovery.k8s.io/v1", "EndpointSlice", f"web-{cluster}", "shop")
    item["metadata"]["labels"] = labels
    base = int(CIDRS[cluster].network_address)
    return {
        **item,
        "addressType": "IPv4",
        "endpoints": [{"addresses": [str(IPv4Address(base + n))], "conditions": {"ready": True}} for n in numbers],
        "ports": [{"name": f"p{n}", "protocol": "TCP", "port": 1 + n} for n in range(ports)],
    }


CIDRS = {"west": IPv4Network("10.2.0.0/16"), "east": IPv4Network("10.3.0.0/16")}
ACCEPTED = {
    name: AcceptedCluster(cluster_id=name, cidrs=(cidr,), gateways=(), snat=False) for name, cidr in CIDRS.items()
}


def cluster_info(cluster: str) -> Manifest:
    """Return the ClusterInfoImport of a cluster."""
    item = manifest("multicluster.crd.antrea.io/v1alpha1", "ClusterInfoImport", cluster, "mc")
    gateways = [{"gatewayIP": "203.0.113.1"}]
    return {**item, "spec": {"clusterID": cluster, "serviceCIDR": str(CIDRS[cluster]), "gatewayInfos": gateways}}


LAST = 1_000  # the last of the attacker's addresses; an EndpointSlice has at most 1,000


@attack(
    Group.POLICIES,
    Attacker.MEMBER,
    wants="have a rule of an administrator about a Service refused, or get past it, by very many endpoints",
    stopped_by="clusters share what the policy leaves; a rule that drops applies to all of one with too many",
)
@pytest.mark.parametrize("mode", PolicyFailureMode)
@pytest.mark.parametrize("action", ["Drop", "Allow"])
def test_endpoints_of_a_member_and_rules_about_a_service(action: str, mode: PolicyFailureMode) -> None:
    """12,000 endpoints of a member: the rule is in force for all of the other cluster's, and within the limit."""
    to = {"name": "web", "namespace": "shop", "scope": "ClusterSet"}
    spec = {
        "priority": 5,
        "appliedTo": [{"namespaceSelector": {}}],
        "egress": [{"action": action, "toServices": [to]}],
    }
    rule = manifest("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", "c", spec=spec)
    objects = [imported("west", range(1, LAST + 1), 12), imported("east", (1, 2, 3), 1), rule]
    engine = IncrementalEngine()
    with engine.one_pass():
        selected = select_rules(engine, snapshot(*objects), config(mode))
        ids = pipeline_input.rule_ids(selected.rules)
        levels = pipeline_rules(engine, selected, ids, CLUSTER_IDS, ACCEPTED)
    ((pipeline_rule,),) = levels.values()
    assert {problem.reason for problem in selected.problems} == {"IdentitiesUnknown"}
    assert "of west. " in selected.problems[0].message
    assert pipeline_rule.verdict.value == action.lower()
    peers = pipeline_rule.peers
    assert {(IPv4Address(f"10.3.0.{n}"), 6, 1) for n in (1, 2, 3)} <= set(peers.services)
    assert 9_000 < len(peers.services) < 10_000
    assert peers.networks == ((CIDRS["west"],) if action == "Drop" else ())
    assert not peers.any_peer
    in_force = policy_view.in_force(snapshot(*objects, *map(cluster_info, CIDRS)), config(mode))
    asked = {
        (address, cluster): policy_view.Request(
            direction=Direction.EGRESS,
            pod=IPv4Address(PODS["victim"]),
            peer=CIDRS[cluster].network_address + address,
            cluster=cluster,
            port=1,
        )
        for address, cluster in ((1, "west"), (LAST, "west"), (3, "east"), (9, "east"))
    }
    names_rule = {key: bool(policy_view.decide(in_force, request).policy) for key, request in asked.items()}
    assert names_rule == {
        (1, "west"): True,
        (LAST, "west"): action == "Drop",
        (3, "east"): True,
        (9, "east"): False,
    }


@attack(
    Group.POLICIES,
    Attacker.USER,
    wants="have policies of administrators refused, by the rules of many Namespaces",
    stopped_by="policies without a Namespace come first; Namespaces share the rules that these leave",
)
@pytest.mark.parametrize("namespaces", [20, 30, 40])
def test_rules_of_many_namespaces_and_policies_of_the_cluster(namespaces: int) -> None:
    """20 ClusterNetworkPolicies of 200 rules are in force beside Namespaces of 300 rules each."""
    blocks = [{"ipBlock": {"cidr": "10.2.0.0/16"}}]
    tenants = [f"tenant-{number:02}" for number in range(namespaces)]
    objects = [
        part
        for number, tenant in enumerate(tenants)
        for part in (
            manifest("v1", "Namespace", tenant),
            pod("p", tenant, f"10.1.2.{number + 1}"),
            *(policy(f"p{place:03}", tenant, blocks) for place in range(300)),
        )
    ]
    spec = {
        "priority": 5,
        "appliedTo": [{"namespaceSelector": {}}],
        "ingress": [{"action": "Drop", "from": blocks}] * 200,
    }
    of_cluster = [
        manifest("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", f"c{number:02}", spec=spec)
        for number in range(20)
    ]
    result = enforced(*objects, *of_cluster)
    in_force = {name.policy for name in result.names.values()}
    assert {f"ClusterNetworkPolicy/c{number:02}" for number in range(20)} <= in_force
    assert all(problem.subject.startswith("NetworkPolicy tenant-") for problem in result.problems)
