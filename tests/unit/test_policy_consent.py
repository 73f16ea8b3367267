"""Consent of a member's administrator to replicated policies: what each value of the keys lets through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcagent.config.reader import ConfigError
from mcagent.controller.config import ControllerRole, ControllerSettings, load
from mcagent.controller.contract import names
from mcagent.controller.contract.policies import CARRIED, Carried
from mcagent.controller.member import member_reconcilers
from mcagent.controller.member.policies.consent import CLUSTER_KINDS, refusal
from mcagent.controller.settings import ReplicatedPolicies
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.antrea_policies import IMPORT as ANTREA_IMPORT
from tests.worlds.kubernetes_policies import (
    ADMIN,
    IMPORT,
    NETWORK_POLICY,
    SPEC,
    imported,
    report,
    spec_of,
    started,
)
from tests.worlds.member_world import AREA, HOME, leader, member, north_of, settings

NONE, REMOVE, ISOLATE, ALLOW = ReplicatedPolicies
IN_TILL: dict[str, Any] = {"replicated_network_policies": ISOLATE, "replicated_namespaces": ("till",)}


def accepted(kind: Kind, spec: Any, place: str = "", **keys: Any) -> str:
    """Return why a policy is not accepted, "" if it is."""
    return refusal(Carried(kind=kind, namespace=place, name="p", spec=spec), settings(**keys), leader())


@pytest.mark.parametrize(
    ("namespaces", "namespace", "is_accepted"),
    [
        ((), "shop", False),
        (("shop",), "shop", True),
        (("shop",), "shop2", False),
        (("*",), "shop", True),
        (("*",), "kube-system", False),
        (("*",), "kube-flannel", False),
        (("*",), "mcagent-home", False),  # of the controller
        (("*",), "clusterset", False),
        (("*",), AREA, False),  # of a leader in the same cluster
        (("*", "kube-system"), "kube-system", True),
        (("mcagent-home",), "mcagent-home", True),
    ],
)
def test_namespaces_of_the_system_must_be_named(
    namespaces: tuple[str, ...], namespace: str, is_accepted: bool
) -> None:
    """An asterisk is for the namespaces of users."""
    keys: dict[str, Any] = {"namespace": "clusterset", "home": "mcagent-home"}
    keys |= {"replicated_network_policies": ISOLATE, "replicated_namespaces": namespaces}
    why = accepted(Kind.NETWORK_POLICY, SPEC, namespace, **keys)
    lacking = f"the cluster's administrator does not accept it: replicatedPolicies.namespaces lacks {namespace}"
    assert why == ("" if is_accepted else lacking)


@pytest.mark.parametrize("value", [NONE, REMOVE])
def test_without_consent_nothing_is_accepted(value: ReplicatedPolicies) -> None:
    """The reason names the key; consent to one of the two says nothing about the other."""
    keys = {"replicated_network_policies": value, "replicated_namespaces": ("*",)}
    why = accepted(Kind.NETWORK_POLICY, SPEC, "shop", **keys, replicated_cluster_policies=ALLOW)
    assert f"replicatedPolicies.networkPolicies is {value}, not isolate or allow" in why
    for kind in CLUSTER_KINDS:
        why = accepted(kind, ADMIN["spec"], **IN_TILL, replicated_cluster_policies=value)
        assert f"replicatedPolicies.clusterPolicies is {value}, not isolate or allow" in why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": None}, ""),
        ({"ingress": [{}]}, "spec.ingress[0] allows"),
        ({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}, "spec.egress[0] allows"),
        ({"ingress": [{"from": [{"podSelector": {"a": "b"}}]}]}, "spec.ingress[0] allows"),
        (
            {"ingress": [{"action": "Drop"}]},
            "spec.ingress[0] has the action Drop",
        ),  # the API server drops the field
        ({"ingress": [{"action": "Deny"}]}, "spec.ingress[0] has the action Deny"),
        ({"ingress": {"from": []}}, "spec.ingress is not a list"),
        ({"Ingress": [{}]}, "spec.Ingress is not a known field"),
    ],
)
def test_a_network_policy_isolates_if_it_has_no_rules(changes: RawObject, why: str) -> None:
    """NetworkPolicies are a union: each rule may open a Pod that another policy isolates."""
    spec = {**SPEC, **changes}
    reason = accepted(Kind.NETWORK_POLICY, spec, "till", **IN_TILL)
    assert why in reason
    assert bool(reason) is bool(why)
    assert accepted(Kind.NETWORK_POLICY, spec, "till", **{**IN_TILL, "replicated_network_policies": ALLOW}) == ""


@pytest.mark.parametrize("kind", CLUSTER_KINDS)
def test_a_cluster_policy_isolates_if_all_its_rules_deny(kind: Kind) -> None:
    """Allow and Pass override later rules; an action that is none is not known to deny."""
    denying = {"Drop", "Reject"} if kind is Kind.CLUSTER_NETWORK_POLICY else {"Deny"}
    for action in ("Drop", "Reject", "Deny", "Allow", "Pass", "Accept", "drop", "", None, ["Drop"]):
        for direction in ("ingress", "egress"):
            spec = {"priority": 1, direction: [{"action": min(denying)}, {"action": action}]}
            why = accepted(kind, spec, replicated_cluster_policies=ISOLATE)
            is_denying = isinstance(action, str) and action in denying
            assert (why == "") is is_denying, (kind, action)
            assert is_denying or f"spec.{direction}[1] " in why
            assert accepted(kind, spec, replicated_cluster_policies=ALLOW) == ""
    unclear: list[RawObject] = [{"priority": 1, "rules": []}, {"ingress": [7]}, {"egress": "Drop"}]
    for spec in unclear:
        assert "may open what is closed" in accepted(kind, spec, replicated_cluster_policies=ISOLATE)


def test_rights_follow_from_consent() -> None:
    """Without consent the controller reads and writes no policy, so it needs no rights on them."""
    policies = {Kind.NETWORK_POLICY, Kind.TIER, *CLUSTER_KINDS, *CARRIED}
    cases: list[tuple[ReplicatedPolicies, ReplicatedPolicies, set[Kind]]] = [
        (NONE, NONE, set()),
        (REMOVE, NONE, {Kind.NETWORK_POLICY}),
        (NONE, REMOVE, {*CLUSTER_KINDS, Kind.TIER}),
        (ISOLATE, ALLOW, policies),
    ]
    for network, cluster, kinds in cases:
        config = settings(replicated_network_policies=network, replicated_cluster_policies=cluster)
        reconcilers = member_reconcilers(config)
        assert {kind for r in reconcilers for kind in r.reads.local} & policies == kinds
        assert {kind for r in reconcilers for kind in r.writes.local} & policies == kinds - {Kind.TIER}


def test_lack_of_consent_is_reported_and_nothing_is_written() -> None:
    """The leader learns which key of this cluster would accept the policy, for both forms of policies."""
    view = member()
    view.local.put({"kind": "Namespace", "metadata": {"name": "till"}})
    view.local.put({"kind": "Tier", "metadata": {"name": "application"}, "spec": {"priority": 250}})
    controller = started(view)
    north_of(view).put(imported())
    spec = {"kind": names.POLICY, "name": "strict", "clusternetworkpolicy": {"tier": "application"}}
    north_of(view).put(
        {"kind": "ResourceImport", "metadata": {"name": ANTREA_IMPORT, "namespace": AREA}, "spec": spec}
    )
    controller.run()
    assert [obj for kind in (Kind.NETWORK_POLICY, *CLUSTER_KINDS) for obj in view.local.list(kind)] == []
    reported = report(view, controller)
    assert "replicatedPolicies.networkPolicies is none" in reported[IMPORT]
    assert "replicatedPolicies.clusterPolicies is none" in reported["strict"]


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    "withdrawn",
    [
        {**IN_TILL, "replicated_network_policies": REMOVE},
        {**IN_TILL, "replicated_namespaces": ()},
        {**IN_TILL, "replicated_namespaces": ("other",)},
    ],
)
def test_withdrawn_consent_removes_the_policy(withdrawn: dict[str, Any], broken: bool) -> None:
    """The policy goes also if the leader's ResourceImport has become invalid; its last policy stays otherwise."""
    view = member()
    view.local.put({"kind": "Namespace", "metadata": {"name": "till"}})
    view.local.put({**NETWORK_POLICY, "metadata": {"name": "own", "namespace": "till"}})
    north_of(view).put(imported())
    started(view, **IN_TILL).run()
    assert spec_of(view) == SPEC
    if broken:
        north_of(view).put(imported({"kind": "Role"}))
    controller = started(view, **withdrawn)
    controller.run()
    assert [o["metadata"]["name"] for o in view.local.list(Kind.NETWORK_POLICY)] == ["own"]
    assert IMPORT in report(view, controller)


def test_a_policy_that_may_open_replaces_no_policy_that_isolates() -> None:
    """The last accepted policy stays and the new one is reported, until the export is deleted."""
    view = member()
    view.local.put({"kind": "Namespace", "metadata": {"name": "till"}})
    north_of(view).put(imported())
    controller = started(view, **IN_TILL)
    controller.run()
    for namespace, spec, why in (
        ("till", {**SPEC, "ingress": [{}]}, "it may open what is closed: spec.ingress[0] allows"),
        ("kube-system", SPEC, "replicatedPolicies.namespaces lacks kube-system"),
    ):
        meta = {"name": "deny", "namespace": namespace}
        north_of(view).put(imported({**NETWORK_POLICY, "metadata": meta, "spec": spec}))
        controller.run()
        assert [o["spec"] for o in view.local.list(Kind.NETWORK_POLICY)] == [SPEC]
        assert why in report(view, controller)[IMPORT]
    north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, IMPORT)
    controller.run()
    assert view.local.list(Kind.NETWORK_POLICY) == []


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (
            "{namespaces: [shop]}",
            "replicatedPolicies.namespaces: needs replicatedPolicies.networkPolicies: isolate",
        ),
        (
            "{networkPolicies: isolate, namespaces: [Shop]}",
            'replicatedPolicies.namespaces[0]: not a namespace, or "*"',
        ),
        ("{clusterPolicies: true}", "replicatedPolicies.clusterPolicies: must be none, remove, isolate or allow"),
        ('{networkPolicies: Isolate, namespaces: ["*", shop], clusterPolicies: allow}', ""),
    ],
)
def test_the_keys_are_checked_together(content: str, wrong: str, tmp_path: Path) -> None:
    """A list of namespaces without consent would be a consent that does nothing."""
    file = tmp_path / "controller.yaml"
    file.write_text(f"replicatedPolicies: {content}\n")
    if wrong:
        with pytest.raises(ConfigError) as caught:
            load(ControllerRole.MEMBER, file, {}, {})
        assert wrong in str(caught.value)
        return
    loaded = load(ControllerRole.MEMBER, file, {}, {}).member
    assert loaded.replicated_network_policies is ISOLATE
    assert loaded.replicated_namespaces == ("*", "shop")
    assert loaded.replicated_cluster_policies is ALLOW


def test_the_controllers_own_namespace_is_known() -> None:
    """Reconcilers get it beside the ClusterSet's, which may be another."""
    config = ControllerSettings(member=settings(namespace="clusterset")).resolved(HOME).member
    assert (config.home, config.namespace) == (HOME, "clusterset")
