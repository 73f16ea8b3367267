"""Single rules of policies: for which Pods and peers they are, and with which numbers they reach the pipeline."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flows.pipeline.registers import IDENTITY_UNKNOWN
from flows.pipeline.steps.identity import ANY_CLUSTER
from mcagent.core.policies.identities import UNCLAIMED
from mcagent.core.policies.label_matching import OwnPod
from mcagent.core.policies.pipeline_input import (
    LevelInput,
    backends,
    by_level,
    endpoint_exporters,
    level_input,
    merge_addresses,
    to_pipeline_rules,
    unknown_dropped,
)
from mcagent.core.policies.rules import LocalRule, local_rules
from mcagent.model.config import PolicyFailureMode
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels
from mcagent.model.policies import (
    Direction,
    NetworkPolicyRule,
    Operator,
    Peer,
    Policy,
    Requirement,
    RulePort,
    Selector,
    Verdict,
)
from tests.worlds.core_inputs import endpoint, imported_slice, meta

APPLIED = Selector(pod=(Requirement("app", Operator.IN, ("web",)),))
FRONT = Selector(pod=(Requirement("app", Operator.IN, ("front",)),))
POD = OwnPod(name="a", namespace="shop", addresses=(ip_address("10.10.1.5"),), ports=(("http", 6, 8080),))
SIX = OwnPod(name="b", namespace="shop", addresses=(ip_address("fd00::5"), ip_address("10.10.1.6")), ports=())
TEXT = labels.normalised("shop", {"kubernetes.io/metadata.name": "shop"}, {"app": "web"})
PORT = RulePort(protocol=6, low=80, high=80)


def local(policy_rule: NetworkPolicyRule, mode: PolicyFailureMode, tier: str = "") -> tuple[LocalRule, ...]:
    """Return what becomes of a policy's only rule on a Node with two Pods."""
    kind = Kind.ANTREA_NETWORK_POLICY if tier else Kind.NETWORK_POLICY
    policy = Policy(meta=meta(kind, "p", "2026-01-01", "shop"), rules=(policy_rule,), tier=tier, priority=5)
    selected = {APPLIED: ((TEXT, POD), (TEXT, SIX))}
    return local_rules(policy, selected, {"application": 250}, mode, 100)


def rule_of(**changed: object) -> NetworkPolicyRule:
    """Return a rule that allows packets of some Pods to a port."""
    fields = {"peers": (Peer(pods=FRONT, same_namespace=True),), "ports": (PORT,), "log_label": "x", **changed}
    return NetworkPolicyRule(
        name="ingress[0]",
        direction=Direction.INGRESS,
        verdict=Verdict.ALLOW,
        applied_to=(APPLIED,),
        **fields,  # type: ignore[arg-type]
    )


def test_a_rule_on_a_node() -> None:
    """Its peers are those of its Pods' Namespace, its Pods have addresses of both versions."""
    (rule,) = local(rule_of(), PolicyFailureMode.CLOSED)
    shop = Requirement(labels.NAMESPACE_NAME, Operator.IN, ("shop",))
    assert rule.selectors == (replace(FRONT, namespace=(shop,)),)
    assert rule.pods == (ip_address("10.10.1.5"), ip_address("10.10.1.6"), ip_address("fd00::5"))
    assert (rule.ports, rule.log_label, rule.any_peer, rule.verdict) == ((PORT,), "x", False, Verdict.ALLOW)
    assert rule.key != "NetworkPolicy shop/p Ingress 0"  # it depends on the Namespace


def test_a_named_port_is_one_of_each_pod() -> None:
    """A Pod without it is not concerned."""
    (rule,) = local(rule_of(ports=(RulePort(protocol=6, name="http"),)), PolicyFailureMode.CLOSED)
    assert rule.pods == POD.addresses
    assert rule.ports == (RulePort(protocol=6, low=8080, high=8080),)


@pytest.mark.parametrize(
    ("tier", "mode", "verdict"),
    [
        ("application", PolicyFailureMode.CLOSED, Verdict.DROP),
        ("", PolicyFailureMode.OPEN, Verdict.ALLOW),
        ("application", PolicyFailureMode.OPEN, None),
        ("", PolicyFailureMode.CLOSED, None),
    ],
)
def test_a_rule_that_cannot_be_enforced(tier: str, mode: PolicyFailureMode, verdict: Verdict | None) -> None:
    """What replaces it is for all peers, Services and ports, whatever could be read of them."""
    rules = local(rule_of(fault="odd", services=(("shop", "db"),)), mode, tier)
    assert [rule.verdict for rule in rules] == ([] if verdict is None else [verdict])
    for rule in rules:
        assert (rule.any_peer, rule.selectors, rule.services, rule.ports) == (True, (), (), ())
        assert len(rule.pods) == 3
        assert rule.key.endswith(" 0")


def test_numbers_of_peers() -> None:
    """By clusters, or of any cluster where the number is the same in all; a cluster without a number is none."""
    (rule,) = local(rule_of(), PolicyFailureMode.CLOSED)
    (selector,) = rule.selectors
    identities = {selector: frozenset({("east", 5), ("gone", 6), (UNCLAIMED, 7), ("west", 7)})}
    (level,) = by_level({"p": (rule,)})
    value = level_input((rule,), level, {rule.key: 9}, {**identities, FRONT: frozenset()}, {"other": {}})
    assert (value.identities, value.unknown) == (identities, {})
    (pipeline_rule,) = to_pipeline_rules(value, {}, {"east": 1, "west": 2}, {})
    assert pipeline_rule.id == 9
    assert pipeline_rule.peers.identities == tuple(sorted([(ANY_CLUSTER, 7), (1, 5)]))
    assert (pipeline_rule.peers.any_peer, pipeline_rule.peers.clusters, pipeline_rule.peers.services) == (
        False,
        (),
        (),
    )
    (port,) = pipeline_rule.ports
    assert (port.protocol, port.low, port.high) == (6, 80, 80)
    strict = replace(value, rules=(replace(rule, verdict=Verdict.DROP),))
    (pipeline_rule,) = to_pipeline_rules(strict, {}, {"east": 1, "west": 2}, {})
    assert (ANY_CLUSTER, IDENTITY_UNKNOWN) in pipeline_rule.peers.identities


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("verdict", [Verdict.ALLOW, Verdict.DROP, Verdict.REJECT])
def test_peers_whose_number_is_not_known(direction: Direction, verdict: Verdict) -> None:
    """Rules that drop or reject are about the whole cluster then: ingress by its number, egress by its CIDRs."""
    (rule,) = local(rule_of(), PolicyFailureMode.CLOSED)
    rule = replace(rule, direction=direction, verdict=verdict)
    (level,) = by_level({"p": (rule,)})
    value = LevelInput(
        level=level,
        rules=(rule,),
        ids=(1,),
        identities={rule.selectors[0]: frozenset({("east", 5), ("west", 6)})},
        unknown={rule.policy: {("east", 5): ("east",)}},
    )
    cidrs = {"east": (ip_network("10.97.0.0/16"),), "west": (ip_network("10.98.0.0/16"),)}
    (pipeline_rule,) = to_pipeline_rules(value, {}, {"east": 1, "west": 2}, cidrs)
    strict = verdict is not Verdict.ALLOW
    assert ((2, 6) in pipeline_rule.peers.identities, (1, 5) in pipeline_rule.peers.identities) == (True, False)
    assert pipeline_rule.peers.clusters == ((1,) if strict and direction is Direction.INGRESS else ())
    assert pipeline_rule.peers.networks == (cidrs["east"] if strict and direction is Direction.EGRESS else ())
    assert pipeline_rule.peers.any_peer is False
    unclaimed = replace(value, unknown={rule.policy: {("east", 5): (UNCLAIMED,)}})
    (pipeline_rule,) = to_pipeline_rules(unclaimed, {}, {"east": 1, "west": 2}, cidrs)
    assert pipeline_rule.peers.any_peer is strict  # of which cluster it is, is not known


def test_pods_to_which_packets_of_an_unknown_identity_are_dropped() -> None:
    """Those with a rule for ingress by label; sorted, once, of both IP versions."""
    (rule,) = local(rule_of(), PolicyFailureMode.CLOSED)
    (any_peer,) = local(rule_of(peers=(), any_peer=True), PolicyFailureMode.CLOSED)
    assert unknown_dropped({"a": (any_peer,), "b": (replace(rule, direction=Direction.EGRESS),)}) == ()
    assert unknown_dropped({"a": (any_peer,), "b": (rule, rule)}) == rule.pods
    assert merge_addresses([(ip_address("fd00::1"),), (ip_address("10.0.0.9"), ip_address("fd00::1"))]) == (
        ip_address("10.0.0.9"),
        ip_address("fd00::1"),
    )


def test_endpoints_of_the_services_of_rules() -> None:
    """Each with its protocol and port, and the clusters that export it; of other Services none."""
    slices = {
        "shop/web-east": imported_slice("web-east", "web", "east", [endpoint("10.97.0.2"), endpoint("10.97.0.1")]),
        "shop/web-west": imported_slice("web-west", "web", "west", [endpoint("10.97.0.1")]),
        "shop/own": imported_slice("own", "web", "", [endpoint("10.10.0.1")]),
        "shop/db": imported_slice("db", "db", "east", [endpoint("10.97.0.9")]),
    }
    web = (slices["shop/own"].meta.namespace, slices["shop/own"].service_name)
    services = frozenset({web, (web[0], "none")})
    first, second, own = ((ip_address(text), 6, 80) for text in ("10.97.0.1", "10.97.0.2", "10.10.0.1"))
    assert backends(slices, services) == {web: (own, first, second)}
    assert endpoint_exporters(slices, services) == {
        first: {"east", "west"},
        second: {"east"},
        own: {UNCLAIMED},
    }
