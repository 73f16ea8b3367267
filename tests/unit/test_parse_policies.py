"""Policies as values: rules, peers and ports of all kinds, and the exact reasons why a rule is not enforced."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from mcagent.model.errors import InputError
from mcagent.model.objects import Kind, Meta
from mcagent.model.parsing.labels import NAMESPACE_NAME
from mcagent.model.parsing.parse import parse_object
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
from mcagent.model.problem import Problem
from tests.worlds.policy_manifests import Manifest, manifest

ANY = "ClusterSet"
SELF: Manifest = {"podSelector": {}, "scope": ANY}
IN_SHOP = Requirement(NAMESPACE_NAME, Operator.IN, ("shop",))
OF_SHOP = Selector((IN_SHOP,))
EAST = Requirement("multicluster.kubernetes.io/cluster", Operator.IN, ("east",))
CLOSED = (
    "the rule cannot be enforced: all packets between clusters are dropped in its place "
    "(policyFailureMode closed, the default), or it is left out (open)"
)
CLOSED_KUBERNETES = (
    "the rule cannot be enforced: it allows nothing (policyFailureMode closed, the default), or it allows "
    "everything (open)"
)


def antrea(spec: Manifest, namespace: str = "") -> Manifest:
    """Return a policy of Antrea: a ClusterNetworkPolicy, or a NetworkPolicy of a Namespace."""
    kind = "NetworkPolicy" if namespace else "ClusterNetworkPolicy"
    whole = {"priority": 1, "appliedTo": [{"podSelector": {}}]} | spec
    return manifest("crd.antrea.io/v1beta1", kind, "it", namespace, spec=whole)


def kubernetes(spec: Manifest, **notes: str) -> Manifest:
    """Return a NetworkPolicy of Kubernetes."""
    annotations = {f"mcagent.io/{name}": text for name, text in notes.items()}
    spec = {"podSelector": {}} | spec
    return manifest("networking.k8s.io/v1", "NetworkPolicy", "it", "shop", notes=annotations, spec=spec)


def policy_of(raw: Manifest) -> Policy:
    """Return the policy of a manifest without problems."""
    parsed = parse_object(raw)
    assert isinstance(parsed.value, Policy)
    assert parsed.problems == ()
    return parsed.value


def rule_of(raw: Manifest) -> NetworkPolicyRule:
    """Return the only rule of a manifest without problems."""
    (rule,) = policy_of(raw).rules
    return rule


def ingress(**fields: Any) -> Manifest:
    """Return the section with one ingress rule."""
    return {"ingress": [{"action": "Allow", **fields}]}


def egress(**fields: Any) -> Manifest:
    """Return the section with one egress rule."""
    return {"egress": [{"action": "Allow", **fields}]}


def test_a_policy_of_antrea() -> None:
    """All fields become values; the action, the name and the Pods of each rule are its own."""
    raw = antrea(
        {
            "priority": 5.5,
            "tier": "SecurityOps",
            "appliedTo": [{"podSelector": {"matchLabels": {"app": "db"}}}],
            "ingress": [
                {"action": "Drop", "name": "first\n", "enableLogging": True, "logLabel": "log\n"},
                {"action": "Reject", "appliedTo": [{"podSelector": {}}], "logLabel": "unused"},
            ],
            "egress": [{"action": "Pass", "enableLogging": True}, {"action": "Deny"}],
        }
    )
    of_db = (Selector((), (Requirement("app", Operator.IN, ("db",)),)),)
    first = NetworkPolicyRule(
        name="ingress[0] first\\n",
        direction=Direction.INGRESS,
        verdict=Verdict.DROP,
        applied_to=of_db,
        any_peer=True,
        log_label="log\\n",
    )
    assert policy_of(raw) == Policy(
        meta=Meta(kind=Kind.CLUSTER_NETWORK_POLICY, name="it"),
        tier="securityops",
        priority=5.5,
        applied_to=of_db,
        rules=(
            first,
            replace(first, name="ingress[1]", verdict=Verdict.REJECT, applied_to=(Selector(),), log_label=None),
            replace(first, name="egress[0]", direction=Direction.EGRESS, verdict=Verdict.PASS, log_label=""),
            replace(first, name="egress[1]", direction=Direction.EGRESS, verdict=Verdict.DROP, log_label=None),
        ),
    )


def test_defaults_of_a_policy_of_antrea() -> None:
    """The tier is that of applications; a policy may have no rules, and may be for no Pods."""
    assert policy_of(antrea({"appliedTo": None, "priority": 0})) == Policy(
        meta=Meta(kind=Kind.CLUSTER_NETWORK_POLICY, name="it"), tier="application", rules=()
    )


def test_a_policy_of_kubernetes() -> None:
    """Each rule allows, and is for the Pods of the Namespace that the policy selects."""
    raw = kubernetes(
        {
            "podSelector": {"matchLabels": {"app": "db"}},
            "policyTypes": ["Egress", "Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, {}],
            "egress": [{"ports": [{"port": 80}]}],
        }
    )
    applied_to = (Selector((IN_SHOP,), (Requirement("app", Operator.IN, ("db",)),)),)
    rule = NetworkPolicyRule(
        name="ingress[0]",
        direction=Direction.INGRESS,
        verdict=Verdict.ALLOW,
        applied_to=applied_to,
        peers=(Peer(network=ip_network("10.0.0.0/8")),),
    )
    assert policy_of(raw) == Policy(
        meta=Meta(kind=Kind.NETWORK_POLICY, name="it", namespace="shop"),
        applied_to=applied_to,
        isolates=frozenset(Direction),
        rules=(
            rule,
            replace(rule, name="ingress[1]", peers=(), any_peer=True),
            replace(
                rule,
                name="egress[0]",
                direction=Direction.EGRESS,
                peers=(),
                any_peer=True,
                ports=(RulePort(protocol=6, low=80, high=80),),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("spec", "isolates", "rules"),
    [
        ({}, {"ingress"}, []),
        ({"egress": []}, {"ingress", "egress"}, []),
        ({"ingress": [{}], "egress": [{}]}, {"ingress", "egress"}, ["ingress[0]", "egress[0]"]),
        ({"policyTypes": ["Ingress"], "ingress": [{}], "egress": [{}]}, {"ingress"}, ["ingress[0]"]),
        ({"policyTypes": ["Egress"], "ingress": [{}], "egress": [{}]}, {"egress"}, ["egress[0]"]),
    ],
)
def test_directions_of_a_policy_of_kubernetes(spec: Manifest, isolates: set[str], rules: list[str]) -> None:
    """`policyTypes` decides; without it ingress counts, and egress if the field is present."""
    policy = policy_of(kubernetes(spec))
    assert policy.isolates == isolates
    assert [rule.name for rule in policy.rules] == rules


# --- selectors and peers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "requirements"),
    [
        ({}, ()),
        ({"matchLabels": {}, "matchExpressions": []}, ()),
        (
            {"matchLabels": {"b": "2", "a": "1"}},
            (Requirement("a", Operator.IN, ("1",)), Requirement("b", Operator.IN, ("2",))),
        ),
        (
            {
                "matchLabels": {"b": "2"},
                "matchExpressions": [
                    {"key": "b", "operator": "NotIn", "values": ["z", "y"]},
                    {"key": "b", "operator": "In", "values": ["3", "2"]},
                    {"key": "a", "operator": "Exists"},
                    {"key": "a", "operator": "DoesNotExist", "values": []},
                ],
            },
            (
                Requirement("a", Operator.DOES_NOT_EXIST),
                Requirement("a", Operator.EXISTS),
                Requirement("b", Operator.IN, ("2",)),
                Requirement("b", Operator.IN, ("2", "3")),
                Requirement("b", Operator.NOT_IN, ("y", "z")),
            ),
        ),
    ],
)
def test_requirements_of_a_selector(selector: Manifest, requirements: tuple[Requirement, ...]) -> None:
    """They and their values are sorted, so that equal selectors are equal values."""
    assert policy_of(antrea({"appliedTo": [{"podSelector": selector}]})).applied_to == (
        Selector((), requirements),
    )
    assert policy_of(antrea({"appliedTo": [{"namespaceSelector": selector}]})).applied_to == (
        Selector(requirements),
    )


@pytest.mark.parametrize(
    ("selector", "path", "reason"),
    [
        ({"matchWords": {}}, "matchWords", "is not supported"),
        ({"matchLabels": []}, "matchLabels", "must be a mapping, is a list"),
        ({"matchLabels": {"a": 7}}, "matchLabels.a", "must be a string, is a number"),
        ([], "", "must be a mapping, is a list"),
        ({"matchExpressions": {}}, "matchExpressions", "must be a list, is a mapping"),
        ({"matchExpressions": [{"key": "a"}]}, "matchExpressions[0].operator", "is missing"),
        ({"matchExpressions": [{"operator": "Exists"}]}, "matchExpressions[0].key", "is missing"),
        (
            {"matchExpressions": [{"key": "a", "operator": "Is\n"}]},
            "matchExpressions[0].operator",
            'must be one of In, NotIn, Exists, DoesNotExist, is "Is\\n"',
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": [7]}]},
            "matchExpressions[0].values[0]",
            "must be a string, is a number",
        ),
    ],
)
def test_invalid_selectors(selector: object, path: str, reason: str) -> None:
    """A policy whose Pods cannot be selected is refused, since no rule of it can be enforced."""
    with pytest.raises(InputError) as info:
        parse_object(antrea({"appliedTo": [{"podSelector": selector}]}))
    assert info.value.path == f"spec.appliedTo[0].podSelector.{path}".rstrip(".")
    assert info.value.reason == reason


@pytest.mark.parametrize(
    ("raw", "path", "reason"),
    [
        (
            antrea({"appliedTo": [{"serviceAccount": {}}]}),
            "serviceAccount",
            "select Pods by podSelector and namespaceSelector only",
        ),
        (
            antrea({"appliedTo": [{"namespaceSelector": {}}]}, "shop"),
            "namespaceSelector",
            "select Pods by podSelector only",
        ),
    ],
)
def test_pods_that_a_policy_cannot_select(raw: Manifest, path: str, reason: str) -> None:
    """A policy of a Namespace selects Pods of that Namespace only."""
    with pytest.raises(InputError) as info:
        parse_object(raw)
    error = info.value
    assert (error.path, error.reason, error.code) == (f"spec.appliedTo[0].{path}", reason, "NotEnforceable")


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ({"podSelector": {}}, ()),
        ({"podSelector": {}, "serviceAccount": {"name": "a"}}, ()),
        ({"podSelector": {}, "scope": "Cluster"}, ()),
        (SELF, (Peer(pods=OF_SHOP),)),
        ({"namespaceSelector": {}, "scope": ANY}, (Peer(pods=Selector()),)),
        (
            {"namespaceSelector": {"matchLabels": {EAST.key: "east"}}},
            (Peer(pods=Selector((EAST,))),),
        ),
        (
            {**SELF, "namespaces": {"match": "Self"}},
            (Peer(pods=Selector(), same_namespace=True),),
        ),
        (
            {**SELF, "namespaces": {"sameLabels": ["team", "stage"]}},
            (Peer(pods=Selector(), same_labels=("team", "stage")),),
        ),
        ({"ipBlock": {"cidr": "10.1.2.3/8"}}, (Peer(network=ip_network("10.0.0.0/8")),)),
        (
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.3.4/16"]}},
            (
                Peer(
                    network=ip_network("10.0.0.0/8"),
                    without=(ip_network("10.1.0.0/16"), ip_network("10.2.0.0/16")),
                ),
            ),
        ),
        (
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": [f"10.1.0.{number}/32" for number in range(64)]}},
            (
                Peer(
                    network=ip_network("10.0.0.0/8"),
                    without=tuple(ip_network(f"10.1.0.{number}/32") for number in range(64)),
                ),
            ),
        ),
    ],
)
def test_peers_of_a_rule(peer: Manifest, expected: tuple[Peer, ...]) -> None:
    """Peers of all clusters and addresses count; those of this cluster alone match no packet between clusters."""
    rule = rule_of(antrea(ingress(**{"from": [peer]}), "shop"))
    assert (rule.peers, rule.any_peer) == (expected, False)
    rule_with_two_peers = rule_of(antrea(ingress(**{"from": [peer, SELF]}), "shop"))
    assert rule_with_two_peers.peers == (*expected, Peer(pods=OF_SHOP))


def test_peers_of_a_policy_of_kubernetes() -> None:
    """With the annotation, its peers are Pods of all clusters; without it or with another value, of none."""
    spec: Manifest = {"ingress": [{"from": [{"podSelector": {}}]}]}
    assert rule_of(kubernetes(spec, scope=ANY)).peers == (Peer(pods=OF_SHOP),)
    assert rule_of(kubernetes(spec, scope="Cluster")).peers == ()
    assert rule_of(kubernetes(spec)).peers == ()
    assert rule_of(kubernetes({"ingress": [{"from": []}]})).any_peer


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ({"name": "web", "namespace": "other"}, ("other", "web")),
        ({"name": "web"}, ("shop", "web")),
        ({"name": "web", "scope": ANY}, ("shop", "antrea-mc-web")),
        ({"name": "web", "namespace": "other", "scope": ANY}, ("other", "antrea-mc-web")),
        ({"name": "web", "scope": "Cluster"}, ("shop", "web")),
    ],
)
def test_services_of_a_rule(service: Manifest, expected: tuple[str, str]) -> None:
    """A Service of the ClusterSet is the imported one; the Namespace is by default that of the policy."""
    rule = rule_of(antrea(egress(toServices=[service], ports=[{"port": 80}]), "shop"))
    assert rule.services == (expected,)
    assert rule.ports == (RulePort(protocol=6, low=80, high=80),)
    assert (rule.any_peer, rule.peers, rule.name) == (False, (), "egress[0]")


# --- ports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ()),
        ({"ports": [{}]}, (RulePort(protocol=6),)),
        ({"ports": [{"protocol": "UDP"}]}, (RulePort(protocol=17),)),
        ({"ports": [{"protocol": "SCTP", "port": 1}]}, (RulePort(protocol=132, low=1, high=1),)),
        ({"ports": [{"port": 80, "endPort": 90}]}, (RulePort(protocol=6, low=80, high=90),)),
        ({"ports": [{"port": 80, "endPort": 80}]}, (RulePort(protocol=6, low=80, high=80),)),
        ({"ports": [{"port": 80, "endPort": 65535}]}, (RulePort(protocol=6, low=80, high=65535),)),
        ({"ports": [{"port": "http", "protocol": "UDP"}]}, (RulePort(protocol=17, name="http"),)),
        ({"protocols": [{"icmp": {}}]}, (RulePort(protocol=1),)),
        ({"protocols": [{}]}, (RulePort(protocol=1),)),
        (
            {"protocols": [{"icmp": {"icmpType": 0, "icmpCode": 255}}]},
            (RulePort(protocol=1, icmp_type=0, icmp_code=255),),
        ),
        (
            {"protocols": [{"icmp": {"icmpType": 255, "icmpCode": 0}}]},
            (RulePort(protocol=1, icmp_type=255, icmp_code=0),),
        ),
        (
            {"ports": [{"port": 80}], "protocols": [{"icmp": {"icmpType": 8}}]},
            (RulePort(protocol=6, low=80, high=80), RulePort(protocol=1, icmp_type=8)),
        ),
    ],
)
def test_ports_of_a_rule(fields: Manifest, expected: tuple[RulePort, ...]) -> None:
    """Ports, ranges, names and ICMP become values; without ports a rule is for all packets."""
    assert rule_of(antrea(ingress(**fields))).ports == expected


# --- rules that cannot be enforced ------------------------------------------------------------------------

NOT_LABEL = "cannot be matched by address and label alone"
LOCAL = "has no meaning in other clusters: not valid with scope ClusterSet"


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        ({"sourcePorts": []}, "sourcePorts", "is not supported"),
        ({"to": [SELF]}, "to", "is not supported"),
        ({"from": [{"fqdn": "a.b"}]}, "from[0].fqdn", NOT_LABEL),
        ({"from": [{"group": "a"}]}, "from[0].group", NOT_LABEL),
        ({"from": [{**SELF, "nodeSelector": {}}]}, "from[0].nodeSelector", LOCAL),
        ({"from": [{**SELF, "serviceAccount": {}}]}, "from[0].serviceAccount", LOCAL),
        ({"from": [{**SELF, "externalEntitySelector": {}}]}, "from[0].externalEntitySelector", LOCAL),
        ({"from": [{**SELF, "color": 1}]}, "from[0].color", "is not supported"),
        (
            {"from": [{**SELF, "namespaces": {"match": "x\n"}}]},
            "from[0].namespaces.match",
            'must be Self, is "x\\n"',
        ),
        ({"from": [{**SELF, "namespaces": {"color": 1}}]}, "from[0].namespaces.color", "is not supported"),
        (
            {"from": [{**SELF, "namespaces": {"sameLabels": [7]}}]},
            "from[0].namespaces.sameLabels[0]",
            "must be a string, is a number",
        ),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "color": 1}}]}, "from[0].ipBlock.color", "is not supported"),
        ({"from": [{"ipBlock": {"except": []}}]}, "from[0].ipBlock.cidr", "is missing"),
        (
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}]},
            "from[0].ipBlock.except[0]",
            'not a CIDR: "x"',
        ),
        (
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/32"] * 65}}]},
            "from[0].ipBlock.except",
            "has 65 networks, at most 64 allowed",
        ),
        ({"ports": [{"protocol": "x\n"}]}, "ports[0].protocol", 'must be TCP, UDP or SCTP, is "x\\n"'),
        ({"ports": [{"port": 80, "color": 1}]}, "ports[0].color", "is not supported"),
        ({"ports": [{"port": 0}]}, "ports[0].port", "not a port: must be from 1 to 65535"),
        ({"ports": [{"port": 80, "endPort": 79}]}, "ports[0].endPort", "must be from 80 to 65535, is 79"),
        ({"ports": [{"port": 80, "endPort": 65536}]}, "ports[0].endPort", "must be from 80 to 65535, is 65536"),
        ({"protocols": [{"igmp": {}}]}, "protocols[0].igmp", "is not supported"),
        ({"protocols": [{"icmp": {"color": 1}}]}, "protocols[0].icmp.color", "is not supported"),
        (
            {"protocols": [{"icmp": {"icmpType": 256}}]},
            "protocols[0].icmp.icmpType",
            "must be from 0 to 255, is 256",
        ),
        (
            {"protocols": [{"icmp": {"icmpCode": -1}}]},
            "protocols[0].icmp.icmpCode",
            "must be from 0 to 255, is -1",
        ),
        ({"toServices": [{"name": "web", "color": 1}]}, "toServices[0].color", "is not supported"),
        ({"toServices": [{}]}, "toServices[0].name", "is missing"),
        (
            {"toServices": [{"name": "web", "namespace": "/"}]},
            "toServices[0].namespace",
            'not a name (RFC 1123 subdomain): "/"',
        ),
        ({"action": None}, "action", "is missing"),
        ({"action": "x\n"}, "action", 'must be one of Drop, Reject, Pass, Allow, is "x\\n"'),
    ],
)
def test_reasons_of_rules_of_antrea(fields: Manifest, path: str, reason: str) -> None:
    """The problem names the field and why it cannot be enforced, and what happens to the packets."""
    check_fault(antrea(ingress(**fields), "shop"), f"spec.ingress[0].{path}", reason, CLOSED)


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        ({"from": [SELF]}, "from", "is not supported"),
        (
            {"to": [SELF]},
            "to[0]",
            "is Pods of other clusters by label, whose addresses are not known here",
        ),
        (
            {"ports": [{"port": "http"}]},
            "ports[0].port",
            "names a port of another cluster's Pod, which is unknown here",
        ),
    ],
)
def test_reasons_of_egress_rules(fields: Manifest, path: str, reason: str) -> None:
    """Pods of other clusters are known by label and address of their packets only."""
    check_fault(antrea(egress(**fields)), f"spec.egress[0].{path}", reason, CLOSED)


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        ({"action": "Allow"}, "action", "is not supported"),
        ({"to": [SELF]}, "to", "is not supported"),
        ({"ports": [{"port": 80, "color": 1}]}, "ports[0].color", "is not supported"),
    ],
)
def test_reasons_of_rules_of_kubernetes(fields: Manifest, path: str, reason: str) -> None:
    """A rule of a NetworkPolicy allows, so one that cannot be enforced allows nothing."""
    check_fault(kubernetes({"ingress": [fields]}), f"spec.ingress[0].{path}", reason, CLOSED_KUBERNETES)


def check_fault(raw: Manifest, path: str, reason: str, effect: str) -> None:
    """Check that the only rule has this fault, and the policy this problem."""
    parsed = parse_object(raw)
    assert isinstance(parsed.value, Policy)
    (rule,) = parsed.value.rules
    assert rule.fault == f"{path} {reason}"
    assert (rule.peers, rule.any_peer, rule.services) == ((), False, ())
    assert rule.applied_to == parsed.value.applied_to != ()
    (problem,) = parsed.problems
    assert (problem.subject, problem.path) == (parsed.meta.subject, path)
    assert problem.message == f"{reason}: {effect}"


def test_pass_in_the_baseline_tier() -> None:
    """No policy follows that tier; in any other one, Pass is valid."""
    reason = "Pass is not valid in the Baseline tier: no policy comes after it"
    raw = antrea({"tier": "Baseline", "ingress": [{"action": "Pass"}]})
    check_fault(raw, "spec.ingress[0].action", reason, CLOSED)
    assert rule_of(antrea({"tier": "other", "ingress": [{"action": "Pass"}]})).verdict is Verdict.PASS
    assert rule_of(antrea({"tier": "Baseline", "ingress": [{"action": "Drop"}]})).verdict is Verdict.DROP


@pytest.mark.parametrize("priority", [None, "1", True, [1]])
def test_a_policy_without_a_priority(priority: object) -> None:
    """The problem is reported once for all rules; each of them drops, before all other policies."""
    spec: Manifest = {"priority": priority, "ingress": [{"action": "Allow"}, {"action": "Allow"}]}
    parsed = parse_object(antrea(spec))
    assert isinstance(parsed.value, Policy)
    assert parsed.value.priority == 0.0
    fault = "spec.priority must be a number"
    assert [(rule.verdict, rule.fault) for rule in parsed.value.rules] == [(Verdict.DROP, fault)] * 2
    assert parsed.problems == (
        Problem(
            "ClusterNetworkPolicy it",
            "spec.priority",
            "InvalidValue",
            f"must be a number: {CLOSED}",
        ),
    )


def test_null_in_a_rule_is_absent() -> None:
    """Unknown fields with null do not count, as in the API."""
    nulls = {"sourcePorts": None, "ports": None, "from": None, "toServices": None, "protocols": None}
    rule = rule_of(antrea(ingress(**nulls)))
    assert (rule.any_peer, rule.ports, rule.fault) == (True, (), "")


def test_a_rule_that_is_no_mapping() -> None:
    """A rule of another type refuses the policy or the rule; nothing else is raised."""
    with pytest.raises(InputError) as info:
        parse_object(antrea({"ingress": ["x"]}))
    assert (info.value.path, info.value.reason) == ("spec.ingress[0]", "must be a mapping, is a string")
    check_fault(
        kubernetes({"ingress": ["x"]}), "spec.ingress[0]", "must be a mapping, is a string", CLOSED_KUBERNETES
    )
