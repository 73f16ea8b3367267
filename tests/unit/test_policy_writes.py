"""Replicated policies are written exactly as they are wanted, whatever is there: in imports and in members."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.apiserver.storage.merge import merge_patch
from mcagent.controller.contract.policies import CARRIED, as_stored
from mcagent.controller.machinery.apply import RAW, Verb, plan
from mcagent.controller.machinery.reconciler import Json, Ref, Wanted
from mcagent.model.api.patches import patch
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES
from tests.worlds.antrea_policies import IMPORT, OURS, antrea, imported, policy, spec_of
from tests.worlds.kubernetes_policies import ADMIN, joined
from tests.worlds.kubernetes_policies import imported as kubernetes_import
from tests.worlds.kubernetes_policies import spec_of as kubernetes_spec
from tests.worlds.leader_world import AREA, Leader
from tests.worlds.member_world import north_of

POLICIES = (Kind.CLUSTER_NETWORK_POLICY, *CARRIED)


def subset(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Return mappings with any of these fields: each may be absent, and none need be there."""
    return st.fixed_dictionaries({}, optional=fields)


# Source of the fields: networking.k8s.io/v1, policy.networking.k8s.io/v1alpha1, crd.antrea.io/v1beta1.
TEXTS = st.sampled_from(["", "a", "b"])
LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), TEXTS, max_size=2)
EXPRESSIONS = st.lists(
    subset(key=TEXTS, operator=st.sampled_from(["In", "Exists"]), values=st.lists(TEXTS, max_size=2)), max_size=2
)
SELECTORS = subset(matchLabels=LABELS, matchExpressions=EXPRESSIONS)
PODS = subset(namespaceSelector=SELECTORS, podSelector=SELECTORS)
PEERS = subset(
    namespaces=st.one_of(SELECTORS, subset(match=st.just("Self"), sameLabels=st.lists(TEXTS, max_size=1))),
    pods=PODS,
    podSelector=SELECTORS,
    namespaceSelector=SELECTORS,
    ipBlock=subset(cidr=st.just("10.0.0.0/8"), **{"except": st.lists(TEXTS, max_size=1)}),
    serviceAccount=subset(name=TEXTS, namespace=TEXTS),
    scope=st.just("ClusterSet"),
)
PORTS = subset(
    port=st.sampled_from([0, 1, 80, "http"]),
    endPort=st.just(90),
    protocol=st.sampled_from(["TCP", "UDP"]),
    portNumber=subset(port=st.just(80), protocol=st.just("TCP")),
)
RULES = subset(
    name=TEXTS,
    action=st.sampled_from(["Allow", "Drop"]),
    enableLogging=st.booleans(),
    ports=st.lists(PORTS, max_size=2),
    appliedTo=st.lists(PEERS, max_size=1),
    toServices=st.lists(subset(name=TEXTS, namespace=TEXTS), max_size=1),
    to=st.lists(PEERS, max_size=2),
    **{"from": st.lists(PEERS, max_size=2)},
)
SPECS = subset(
    tier=TEXTS,
    priority=st.sampled_from([0, 1, 5.5]),
    podSelector=SELECTORS,
    subject=PEERS,
    policyTypes=st.lists(st.sampled_from(["Ingress", "Egress"]), max_size=2),
    appliedTo=st.lists(PEERS, max_size=2),
    ingress=st.lists(RULES, max_size=2),
    egress=st.lists(RULES, max_size=2),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return all places inside a value, as mapping or list with a key or index."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Json, Json]:
    """Return two policies, of which the second is the first with small changes, or another one."""
    before = draw(SPECS)
    if draw(st.booleans()):
        return before, draw(SPECS)
    after = copy.deepcopy(before)
    for _ in range(draw(st.integers(1, 2))):
        if not (all_places := places(after)):
            break
        parent, key = draw(st.sampled_from(all_places))
        match draw(st.sampled_from(["remove", "empty", "label", "rename"])):
            case "remove":
                del parent[key]
            case "empty":
                parent[key] = draw(st.sampled_from([{}, [], ""]))
            case "label" if isinstance(parent[key], dict):
                parent[key]["added"] = ""
            case "rename" if isinstance(parent, dict):
                parent[draw(st.sampled_from(["namespaces", "pods", "podSelector"]))] = parent.pop(key)
    return (before, after) if draw(st.booleans()) else (after, before)


def holding(kind: Kind, policy_spec: Json) -> Json:
    """Return the content of an object with a policy."""
    value: Any = copy.deepcopy(policy_spec)
    for name in reversed(RAW[kind]):
        value = {name: value}
    if kind is Kind.RESOURCE_IMPORT:
        value["spec"] |= {"kind": "AntreaClusterNetworkPolicy", "name": "strict"}
    return dict(value)


def written(kind: Kind, before: Json, desired: Json) -> Any:
    """Write a policy over another until nothing is left to do, and return the policy that is there then."""
    ref = Ref(kind=kind, namespace="ns" if KINDS[kind].namespaced else "", name="x")
    step = Wanted(ref=ref, body=patch(TYPES[kind], **holding(kind, desired)))
    present = {**holding(kind, before), "metadata": {"name": "x", "uid": "u", "resourceVersion": "1"}}
    for _ in range(3):
        write = plan(step, present)
        if write is None:
            break
        assert write.verb is Verb.PATCH
        present = merge_patch(present, write.body)
    assert plan(step, present) is None
    policy_spec: Any = present
    for name in RAW[kind]:
        policy_spec = policy_spec[name]
    return policy_spec


@given(kind=st.sampled_from((Kind.RESOURCE_IMPORT, *POLICIES)), pair=pairs())
def test_after_a_write_the_policy_is_the_desired_one(kind: Kind, pair: tuple[Json, Json]) -> None:
    """Whatever is there: labels with empty values, empty selectors and lists, and numbers are as wanted."""
    before, desired = pair
    assert written(kind, before, desired) == desired


@given(pair=pairs())
def test_a_network_policy_as_stored_is_written_once(pair: tuple[Json, Json]) -> None:
    """What Kubernetes' API server stores of a NetworkPolicy stays as it is: it is no difference."""
    before, desired = (as_stored(Kind.NETWORK_POLICY, spec) for spec in pair)
    assert as_stored(Kind.NETWORK_POLICY, desired) == desired
    assert written(Kind.NETWORK_POLICY, dict(before), dict(desired)) == desired


def test_fields_that_a_policy_no_longer_has() -> None:
    """They are removed from the present object, at any depth, and others of the object stay."""
    before = {"subject": {"namespaces": {"matchLabels": {"a": "1", "b": ""}}}, "priority": 1, "ingress": []}
    desired = {"subject": {"namespaces": {"matchLabels": {"a": "1"}}}, "ingress": [{}]}
    assert written(Kind.ADMIN_NETWORK_POLICY, before, desired) == desired


SELECTED: Json = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
PAIRS = [
    (SELECTED, {"namespaceSelector": {"matchLabels": {"team": "a", "restricted": ""}}}),
    (SELECTED, {"namespaceSelector": {}}),
    (SELECTED, {"podSelector": {}}),
    ({"namespaceSelector": {}}, {"podSelector": {}}),
    ({"namespaceSelector": {}}, {"namespaceSelector": {}, "podSelector": {}}),
    ({"podSelector": {"matchLabels": {"app": ""}}}, {"podSelector": {}}),
]
BOTH_WAYS = [*PAIRS, *((after, before) for before, after in PAIRS)]


@pytest.mark.parametrize(("before", "after"), BOTH_WAYS)
def test_each_change_of_a_selector_reaches_the_members(before: Json, after: Json) -> None:
    """From the leader's export over its import to the policy; a widening by hand in a member is undone."""
    old, new = (
        {
            "tier": "securityops",
            "priority": 1,
            "appliedTo": [peer],
            "ingress": [{"action": "Drop", "from": [peer]}],
        }
        for peer in (before, after)
    )
    world = Leader("east")
    world.put(policy(payload=old))
    world.api.put(policy(payload=new))
    world.controller.run()
    assert world.imported(IMPORT)["clusternetworkpolicy"] == new

    view, controller = antrea("securityops")
    for payload in (old, new):
        north_of(view).put(imported(payload))
        controller.run()
        assert spec_of(view) == payload
    view.local.change(Kind.CLUSTER_NETWORK_POLICY, "", OURS, {"spec": {"appliedTo": [before]}})
    controller.run()
    assert spec_of(view) == new


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"namespaces": {}}, {"pods": {}}),
        ({"namespaces": {}}, {"pods": {"namespaceSelector": {}, "podSelector": {}}}),
        ({"pods": {"namespaceSelector": {}, "podSelector": {}}}, {"namespaces": {}}),
        ({"pods": {}}, {"namespaces": {}}),
    ],
)
def test_the_subject_of_a_policy_changes_between_empty_selectors(before: Json, after: Json) -> None:
    """An empty selector is written, and the other one is removed."""
    view, controller = joined()
    for subject in (before, after):
        spec = {"priority": 5, "subject": subject}
        north_of(view).put(kubernetes_import({**ADMIN, "spec": spec}))
        controller.run()
        assert kubernetes_spec(view, Kind.ADMIN_NETWORK_POLICY) == spec


def test_a_policy_is_written_as_a_whole_once() -> None:
    """A policy that is as wanted is not written again."""
    world = Leader("east")
    world.put(policy(payload={"tier": "", "appliedTo": [{"podSelector": {}}], "ingress": []}))
    version = (world.api.get(Kind.RESOURCE_IMPORT, AREA, IMPORT) or {})["metadata"]["resourceVersion"]
    world.settle()
    assert (world.api.get(Kind.RESOURCE_IMPORT, AREA, IMPORT) or {})["metadata"]["resourceVersion"] == version
