"""Policies that are read: what cannot be enforced is told by its field, and never passed over."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.fields import problem_of
from mcagent.model.parsing.labels import NAMESPACE_NAME
from mcagent.model.parsing.parse import parse_object
from mcagent.model.policies import Direction, Policy
from tests.worlds.policy_manifests import Manifest, manifest

SELF: Manifest = {"podSelector": {}, "scope": "ClusterSet"}


def antrea(spec: Manifest, space: str = "") -> Manifest:
    """Return a policy of Antrea's; in a Namespace if one is named."""
    whole = {"priority": 1, "appliedTo": [{"podSelector": {}}]} | spec
    kind = "NetworkPolicy" if space else "ClusterNetworkPolicy"
    return manifest("crd.antrea.io/v1beta1", kind, "it", space, spec=whole)


def plain(spec: Manifest) -> Manifest:
    """Return a NetworkPolicy."""
    return manifest("networking.k8s.io/v1", "NetworkPolicy", "it", "shop", spec={"podSelector": {}} | spec)


def drop(**fields: Any) -> Manifest:
    """Return an ingress section of one rule."""
    return {"ingress": [{"action": "Drop", **fields}]}


def outwards(**fields: Any) -> Manifest:
    """Return an egress section of one rule."""
    return {"egress": [{"action": "Drop", **fields}]}


IN, OUT = "spec.ingress[0]", "spec.egress[0]"


@pytest.mark.parametrize(
    ("raw", "path", "reason"),
    [
        (antrea(drop(unheardOf=1)), f"{IN}.unheardOf", "NotEnforceable"),
        (antrea(drop(l7Protocols=[{"http": {}}])), f"{IN}.l7Protocols", "NotEnforceable"),
        (antrea(drop(**{"from": [{"group": "all"}]})), f"{IN}.from[0].group", "NotEnforceable"),
        (antrea(drop(**{"from": [{"unheardOf": 1}]})), f"{IN}.from[0].unheardOf", "NotEnforceable"),
        (
            antrea(drop(**{"from": [{**SELF, "serviceAccount": {"name": "a"}}]})),
            f"{IN}.from[0].serviceAccount",
            "NotEnforceable",
        ),
        (
            antrea(drop(**{"from": [{**SELF, "namespaces": {"match": "Other"}}]})),
            f"{IN}.from[0].namespaces.match",
            "NotEnforceable",
        ),
        (
            antrea(drop(**{"from": [{**SELF, "namespaces": {"not": 1}}]})),
            f"{IN}.from[0].namespaces.not",
            "NotEnforceable",
        ),
        (
            antrea(drop(**{"from": [{"ipBlock": {"cidr": "10.0.0.0"}}]})),
            f"{IN}.from[0].ipBlock.cidr",
            "InvalidCIDR",
        ),
        (
            antrea(drop(**{"from": [{"ipBlock": {"cidr": "::/0", "of": 1}}]})),
            f"{IN}.from[0].ipBlock.of",
            "NotEnforceable",
        ),
        (
            antrea(drop(**{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.1/32"] * 65}}]})),
            f"{IN}.from[0].ipBlock.except",
            "NotEnforceable",
        ),
        (
            antrea(drop(**{"from": [{**SELF, "podSelector": {"matchWords": {}}}]})),
            f"{IN}.from[0].podSelector.matchWords",
            "InvalidValue",
        ),
        (
            antrea(drop(**{"from": [{**SELF, "podSelector": {"matchLabels": ["app"]}}]})),
            f"{IN}.from[0].podSelector.matchLabels",
            "InvalidValue",
        ),
        (antrea(drop(ports=[{"port": 80, "sourcePort": 1}])), f"{IN}.ports[0].sourcePort", "NotEnforceable"),
        (antrea(drop(ports=[{"port": 80, "endPort": 79}])), f"{IN}.ports[0].endPort", "InvalidValue"),
        (antrea(drop(protocols=[{"igmp": {}}])), f"{IN}.protocols[0].igmp", "NotEnforceable"),
        (antrea(outwards(to=[{"fqdn": "example.com"}])), f"{OUT}.to[0].fqdn", "NotEnforceable"),
        (antrea(outwards(to=[SELF])), f"{OUT}.to[0]", "NotEnforceable"),
        (antrea(outwards(ports=[{"port": "http"}])), f"{OUT}.ports[0].port", "NotEnforceable"),
        (antrea({"tier": "Baseline", "ingress": [{"action": "Pass"}]}), f"{IN}.action", "NotEnforceable"),
        (antrea({"ingress": [{"action": "Refuse"}]}), f"{IN}.action", "InvalidValue"),
        (antrea({"ingress": [{"name": "without an action"}]}), f"{IN}.action", "Missing"),
        (antrea({"priority": "high", "ingress": [{"action": "Allow"}]}), "spec.priority", "InvalidValue"),
        (antrea({"priority": None, "ingress": [{"action": "Allow"}]}), "spec.priority", "InvalidValue"),
        (plain({"ingress": [{"unheardOf": 1}]}), f"{IN}.unheardOf", "NotEnforceable"),
        (plain({"ingress": [{"ports": [{"protocol": "ESP"}]}]}), f"{IN}.ports[0].protocol", "NotEnforceable"),
    ],
)
def test_what_cannot_be_enforced_is_told_by_its_field(raw: Manifest, path: str, reason: str) -> None:
    """The rule has a fault, its Pods are known, and the problem names object, field and reason."""
    parsed = parse_object(raw)
    assert isinstance(parsed.value, Policy)
    (rule,) = parsed.value.rules
    assert rule.fault
    assert rule.applied_to
    (problem,) = parsed.problems
    assert (problem.subject, problem.path, problem.reason) == (parsed.meta.subject, path, reason)
    effect = "it allows nothing" if parsed.meta.kind is Kind.NETWORK_POLICY else "all packets between clusters"
    assert f": the rule cannot be enforced: {effect}" in problem.message


@pytest.mark.parametrize(
    ("raw", "path", "reason"),
    [
        (antrea({"appliedTo": [{"group": "all"}]}), "spec.appliedTo[0].group", "NotEnforceable"),
        (
            antrea({"appliedTo": [{"podSelector": {"matchWords": {}}}]}),
            "spec.appliedTo[0].podSelector.matchWords",
            "InvalidValue",
        ),
        (
            antrea({"appliedTo": [{"namespaceSelector": {}}]}, "shop"),
            "spec.appliedTo[0].namespaceSelector",
            "NotEnforceable",
        ),
        (antrea(drop(appliedTo=[{"nodeSelector": {}}])), f"{IN}.appliedTo[0].nodeSelector", "NotEnforceable"),
        (
            plain({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}),
            "operator",
            "InvalidValue",
        ),
    ],
)
def test_a_policy_whose_pods_are_not_known_is_not_taken(raw: Manifest, path: str, reason: str) -> None:
    """One of a Namespace has no say in others, either."""
    with pytest.raises(InputError) as raised:
        parse_object(raw)
    assert raised.value.path.endswith(path)
    assert problem_of(raised.value).reason == reason
    if reason == "NotEnforceable":
        assert "select Pods by podSelector" in raised.value.reason


def test_a_policy_of_a_namespace_is_for_its_pods() -> None:
    """Also one that says nothing of Namespaces; one of the cluster is for all."""
    for raw, spaces in (
        (antrea({}, "shop"), {"shop": True, "web": False}),
        (antrea({}), {"shop": True, "web": True}),
    ):
        policy = parse_object(raw).value
        assert isinstance(policy, Policy)
        (selector,) = policy.applied_to
        assert {name: selector.selects({NAMESPACE_NAME: name}, {}) for name in spaces} == spaces


def test_a_network_policy_isolates_as_its_types_say() -> None:
    """Without types: ingress, and egress if it has such rules."""
    for spec, ways in (
        ({}, {Direction.INGRESS}),
        ({"egress": [{}]}, {Direction.INGRESS, Direction.EGRESS}),
        ({"policyTypes": ["Egress"], "ingress": [{}]}, {Direction.EGRESS}),
    ):
        policy = parse_object(plain(spec)).value
        assert isinstance(policy, Policy)
        assert policy.isolates == ways
        assert {rule.direction for rule in policy.rules} <= ways


def test_both_kinds_of_network_policies_have_names_of_their_own() -> None:
    """Their subjects differ, so neither hides the other."""
    kinds = [parse_object(raw).value for raw in (plain({}), antrea({}, "shop"))]
    assert [kind.meta.kind for kind in kinds if kind] == [Kind.NETWORK_POLICY, Kind.ANTREA_NETWORK_POLICY]
