"""Policies as rules: what they decide is what a naive reader of the manifests decides."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, ip_address
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.pipeline import PolicyVerdict
from flows.pipeline.registers import HOST_OFPORT
from flows.simulator import Packet, SimulatedSwitch
from flows.simulator.packet import SYN
from flows.text import mac_text
from mcagent.api.trace import TraceOutcome
from mcagent.cli.common import policy_view
from mcagent.core.engine import IncrementalEngine
from mcagent.core.fragments.policies import enforcement, pipeline_rules, pod_policies
from mcagent.core.policies import pipeline_input
from mcagent.core.policies.selection import SelectedRules, select_rules
from mcagent.core.snapshot import ATTRIBUTE, Relist, apply_changes
from mcagent.model.config import PolicyFailureMode
from mcagent.model.kinds import kind_of
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.parsing import labels
from mcagent.model.policies import Direction, Verdict
from mcagent.model.problem import Severity
from mcagent.trace.probe import Probe
from mcagent.trace.simulator import simulate
from mcagent.trace.whatif.assumptions import facts_unseen
from tests.properties import costly
from tests.worlds import policy_oracle
from tests.worlds.contradictions import contradictions
from tests.worlds.core_inputs import cluster, gateway, node, snapshot
from tests.worlds.policies import Policies
from tests.worlds.policy_manifests import NODE, PODS, SENDERS, SPACES, Manifest, manifest, request, world
from tests.worlds.policy_reading import CLUSTER_IDS, ENV, config, read
from tests.worlds.policy_switch import EXITS, flows_of

PROTOCOLS = {"TCP": 6, "UDP": 17, "ICMP": 1}

TOPOLOGY = (
    *(node(NODE, "192.0.2.1", "10.1.0.0/24"), gateway(NODE, "192.0.2.1")),
    cluster("east", "10.97.0.0/16", "10.2.0.0/16", gateways=("203.0.113.1",)),
    cluster("west", "10.98.0.0/16", "10.3.0.0/16", gateways=("203.0.113.2",)),
)


def as_seen(asked: policy_oracle.Request) -> policy_view.Request:
    """Return a request as the Node of our Pod sees it."""
    known = {labels.normalised(space, SPACES[space], own): number for space, own, number, _ in SENDERS}
    identity = labels.UNKNOWN
    if asked.labels is not None:
        space, own = asked.labels
        identity = known[labels.normalised(space[labels.NAMESPACE_NAME], space, own)]
    return policy_view.Request(
        direction=Direction(asked.direction),
        pod=ip_address(f"10.1.0.{1 + list(PODS).index(asked.pod)}"),
        peer=ip_address(asked.address),
        cluster=asked.cluster,
        identity=identity,
        protocol=PROTOCOLS[asked.protocol],
        port=asked.port,
        icmp=asked.icmp,
    )


def packet(asked: policy_oracle.Request) -> Packet:
    """Return the packet of a request, as `tests.worlds.policy_switch` takes it."""
    seen = as_seen(asked)
    outwards = seen.direction is Direction.EGRESS
    assert isinstance(seen.pod, IPv4Address)
    assert isinstance(seen.peer, IPv4Address)
    return Packet(
        in_port=1 if outwards else 10 + CLUSTER_IDS[asked.cluster],
        src=seen.pod if outwards else seen.peer,
        dst=seen.peer if outwards else seen.pod,
        proto=seen.protocol,
        src_port=4000,
        dst_port=asked.port,
        tcp_flags=SYN,
        icmp_type=asked.icmp[0] if asked.icmp else 0,
        icmp_code=asked.icmp[1] if asked.icmp else 0,
        tun_id=seen.identity,
        eth_src=mac_text(0x0200 << 32 | seen.identity),  # what can be sent by hand has no tunnel
    )


@costly
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(PolicyFailureMode))
def test_rules_decide_as_the_manifests_say(seed: int, mode: PolicyFailureMode) -> None:
    """Whatever policies there are: the verdict is the same, and the rule that decides is one that may."""
    random = Random(seed)
    objects = world(random)
    known = policy_view.in_force(read(objects), config(mode))
    for _ in range(30):
        asked = request(random)
        verdict, named = policy_oracle.judged(objects, asked, closed=mode is PolicyFailureMode.CLOSED)
        found = policy_view.decide(known, as_seen(asked))
        rule = f"{found.policy.rpartition('/')[2].rpartition(' ')[2]} {found.rule}".strip()
        assert (found.verdict.value, rule in named) == (verdict, True), (asked, found, named)


@costly
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(PolicyFailureMode))
def test_flows_decide_as_the_manifests_say(seed: int, mode: PolicyFailureMode) -> None:
    """The flows that follow from the policies do with packets what the manifests say."""
    random = Random(seed)
    objects = world(random)
    engine = IncrementalEngine()
    with engine.one_pass():
        selected = select_rules(engine, read(objects), config(mode))
        levels = pipeline_rules(engine, selected, pipeline_input.rule_ids(selected.rules), CLUSTER_IDS)
    rules = tuple(rule for level in levels.values() for rule in level)
    flows = flows_of(Policies(rules=rules, pods=pod_policies(selected.isolated, selected.rules)))
    assert not list(contradictions(flows))
    switch = SimulatedSwitch.of(flows)
    for _ in range(20):
        asked = request(random)
        verdict, _ = policy_oracle.judged(objects, asked, closed=mode is PolicyFailureMode.CLOSED)
        walk = switch.walk(packet(asked))
        assert not walk.problems, walk
        decided = EXITS[walk.outputs[0][0]] if walk.outputs else PolicyVerdict.DROP
        assert decided.value == verdict.lower(), (asked, rules)


@costly
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(PolicyFailureMode))
def test_policy_explain_says_what_all_flows_of_a_node_do(seed: int, mode: PolicyFailureMode) -> None:
    """A gateway with tunnels to both clusters: verdict, rule and isolating policies are those of its trace."""
    random = Random(seed)
    objects = snapshot(*TOPOLOGY)
    policies = read(world(random))
    attributes = {name: getattr(policies, name) for name in ATTRIBUTE.values() if getattr(policies, name)}
    objects = replace(objects, **attributes)
    settings = replace(config(mode), enable_pod_to_pod=True, stretched_network_policy=True)
    simulated = simulate(objects, facts_unseen(settings), settings)
    ports = {port.peer: port.ofport for port in simulated.tunnels.values()}
    in_force = policy_view.in_force(objects, settings)
    for _ in range(30):
        generated = request(random)
        generated = replace(generated, cluster="west" if generated.address == "10.3.0.1" else "east")
        policy_request = as_seen(generated)
        exporters = next((clusters for *_, number, clusters in SENDERS if number == policy_request.identity), ())
        if exporters is not None and generated.cluster not in exporters:
            policy_request = replace(policy_request, identity=labels.UNKNOWN)
        if generated.icmp is not None:
            policy_request = replace(policy_request, icmp=(8, 0))
        ingress = policy_request.direction is Direction.INGRESS
        ends = (policy_request.peer, policy_request.pod) if ingress else (policy_request.pod, policy_request.peer)
        probe = Probe(
            in_port=ports[generated.cluster] if ingress else HOST_OFPORT,
            source=IPv4Address(str(ends[0])),
            destination=IPv4Address(str(ends[1])),
            protocol=generated.protocol.lower(),
            source_port=4000,
            port=generated.port,
            identity=policy_request.identity if ingress else 0,
        )
        trace, decision = simulated.trace(probe), policy_view.decide(in_force, policy_request)
        rules = [rule for rule in trace.policies if rule.verdict != "pass"]
        named = [(rule.policy.replace("/", " ", 1), rule.rule) for rule in rules]
        assert named == ([(decision.policy, decision.rule)] if decision.policy else []), (generated, trace)
        if trace.isolated_by:
            assert f"isolated by {', '.join(trace.isolated_by)}, " in decision.why
        reached = TraceOutcome.HOST if ingress else TraceOutcome.TUNNEL
        outcome = {Verdict.DROP: TraceOutcome.DROPPED, Verdict.REJECT: TraceOutcome.REJECTED}
        assert trace.outcome == outcome.get(decision.verdict, reached), (generated, trace)


@costly
@given(seed=st.integers(0, 2**32))
def test_changes_one_after_the_other_give_what_a_pass_from_scratch_gives(seed: int) -> None:
    """Whatever comes, changes and goes: fragments, names and problems are those of an agent that starts now."""
    random = Random(seed)
    several = [world(random) for _ in range(3)]
    engine, snapshot, settings = IncrementalEngine(), Snapshot(), config(PolicyFailureMode.CLOSED)
    for _ in range(12):
        some = random.choice(several)
        kinds = random.sample(list(ATTRIBUTE), random.randint(1, 4))
        changes = [Relist(kind=kind, items=some_of(random, some, kind)) for kind in kinds]
        snapshot = apply_changes(snapshot, changes)
        with engine.one_pass():
            incremental = enforcement(engine, snapshot, ENV, settings, CLUSTER_IDS)
        afresh = IncrementalEngine()
        with afresh.one_pass():
            assert incremental == enforcement(afresh, snapshot, ENV, settings, CLUSTER_IDS)


@pytest.mark.parametrize("action", ["Drop", "Allow"])
def test_a_rule_names_clusters_where_the_leader_does_not_say_which_have_the_labels(action: str) -> None:
    """Antrea's leader does not: the rule applies to that cluster's Pods with the labels, and to no other's."""
    clusters = {"namespaceSelector": {"matchLabels": {policy_oracle.CLUSTER: "east"}}}
    rules = [{"action": action, "from": [clusters]}, {"action": "Reject", "from": [{"scope": "ClusterSet"}]}]
    spec = {"priority": 1, "appliedTo": [{"namespaceSelector": {}}], "ingress": rules}
    objects = [*world(Random(0), policies=0)]
    objects.append(manifest("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", "of-east", spec=spec))
    in_force = policy_view.in_force(read(objects), config(PolicyFailureMode.CLOSED))
    space, own, _, exporters = SENDERS[3]
    assert exporters is None
    for name, verdict in (("east", action), ("west", "Reject")):
        client_request = policy_oracle.Request(
            direction="ingress",
            pod=next(iter(PODS)),
            address="10.2.1.1",
            cluster=name,
            labels=({labels.NAMESPACE_NAME: space, **SPACES[space]}, own),
            port=80,
        )
        assert policy_view.decide(in_force, as_seen(client_request)).verdict == verdict


@pytest.mark.parametrize(
    ("mode", "verdicts"), [(PolicyFailureMode.CLOSED, [PolicyVerdict.DROP]), (PolicyFailureMode.OPEN, [])]
)
def test_a_policy_of_a_tier_that_does_not_exist(mode: PolicyFailureMode, verdicts: list[PolicyVerdict]) -> None:
    """Its rule that allows one network is replaced by one that drops all, or by none; the Tier makes it valid."""
    spec = {
        "priority": 1,
        "tier": "Quarantine",
        "appliedTo": [{"podSelector": {}}],
        "ingress": [{"action": "Allow", "from": [{"ipBlock": {"cidr": "10.2.0.0/16"}}]}],
    }
    policy = manifest("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", "strict", spec=spec)
    pod = manifest(
        "v1",
        "Pod",
        "db-0",
        "shop",
        labels={"app": "db"},
        spec={"nodeName": NODE, "containers": []},
        status={"phase": "Running", "podIPs": [{"ip": "10.1.0.1"}]},
    )
    objects = [manifest("v1", "Namespace", "shop", labels={}), pod, policy]

    def enforced(*more: Manifest) -> SelectedRules:
        engine = IncrementalEngine()
        with engine.one_pass():
            return select_rules(engine, read([*objects, *more]), config(mode))

    without_tier = enforced()
    (problem,) = without_tier.problems
    assert (problem.subject, problem.path) == ("ClusterNetworkPolicy strict", "spec.tier")
    assert (problem.reason, problem.severity) == ("NotEnforceable", Severity.ERROR)
    effect = {
        PolicyFailureMode.CLOSED: "all packets between clusters are dropped in its place",
        PolicyFailureMode.OPEN: "it is left out",
    }[mode]
    assert problem.message == f'there is no Tier "quarantine": {effect} (policyFailureMode: {mode})'
    rules = [rule for rules_of_policy in without_tier.rules.values() for rule in rules_of_policy]
    assert [rule.verdict.upper() for rule in rules] == [verdict.value.upper() for verdict in verdicts]
    assert all(rule.any_peer and rule.networks == () for rule in rules)

    tier = manifest("crd.antrea.io/v1beta1", "Tier", "quarantine", spec={"priority": 40})
    with_tier = enforced(tier)
    assert with_tier.problems == ()
    (rule,) = (rule for rules_of_policy in with_tier.rules.values() for rule in rules_of_policy)
    assert (rule.verdict.upper(), rule.any_peer) == (PolicyVerdict.ALLOW.value.upper(), False)
    assert [str(network) for network in rule.networks] == ["10.2.0.0/16"]


@pytest.mark.parametrize(
    ("protocol", "ports"), [("UDP", [(17, 53, 53)]), ("TCP", [(6, 5300, 5300)]), ("SCTP", None)]
)
def test_a_named_port_is_one_of_its_protocol(protocol: str, ports: list[tuple[int, int, int]] | None) -> None:
    """A Pod may give one name to a port of TCP and one of UDP; without a port of the protocol there is no rule."""
    containers = [
        {
            "name": "dns",
            "ports": [
                {"name": "dns", "protocol": "TCP", "containerPort": 5300},
                {"name": "dns", "protocol": "UDP", "containerPort": 53},
                {"name": "metrics", "protocol": "UDP", "containerPort": 9153},
            ],
        }
    ]
    pod = manifest(
        "v1",
        "Pod",
        "dns-0",
        "shop",
        labels={"app": "dns"},
        spec={"nodeName": NODE, "containers": containers},
        status={"phase": "Running", "podIPs": [{"ip": "10.1.0.1"}]},
    )
    spec = {
        "podSelector": {},
        "ingress": [
            {"from": [{"ipBlock": {"cidr": "10.2.0.0/16"}}], "ports": [{"protocol": protocol, "port": "dns"}]}
        ],
    }
    policy = manifest("networking.k8s.io/v1", "NetworkPolicy", "dns", "shop", spec=spec)
    engine = IncrementalEngine()
    with engine.one_pass():
        selected = select_rules(
            engine,
            read([manifest("v1", "Namespace", "shop", labels={}), pod, policy]),
            config(PolicyFailureMode.CLOSED),
        )
    rules = [rule for rules_of_policy in selected.rules.values() for rule in rules_of_policy]
    decided = [[(port.protocol, port.low, port.high) for port in rule.ports] for rule in rules]
    assert decided == ([] if ports is None else [ports])


def some_of(random: Random, objects: list[Manifest], kind: Kind) -> list[Manifest]:
    """Return most objects of a kind."""
    return [one for one in objects if kind_of(one) is kind and random.random() < 0.8]
