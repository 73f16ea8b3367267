"""Attacks by the leader of a ClusterSet, or by an intruder there: policies that it plants in its members."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mcagent.controller.admin.manifests import Part, Site, objects
from mcagent.controller.contract import names
from mcagent.controller.member.policies.consent import CLUSTER_KINDS
from mcagent.controller.settings import ReplicatedPolicies
from mcagent.kube.source import RawObject
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.replicated_policies import POLICIES, cluster_wide, member_with_owner, planted
from tests.worlds.kubernetes_policies import report, started
from tests.worlds.member_world import AREA, north_of

by_leader = partial(attack, Group.POLICIES, Attacker.LEADER)

OPEN = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}
CLOSED = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
IN_SHOP: dict[str, Any] = {
    "replicated_network_policies": ReplicatedPolicies.ISOLATE,
    "replicated_namespaces": ("shop",),
}


def attacked(*planted: RawObject, **keys: Any) -> tuple[list[str], list[str]]:
    """Return the policies that a member has after these ResourceImports, and the reasons that it reports.

    `keys` are those of the member's configuration. Its owner isolates the Pods of a Namespace.
    """
    view = member_with_owner()
    controller = started(view, **keys)
    for number, spec in enumerate(planted):
        meta = {"name": f"p{number}-antreaclusternetworkpolicy", "namespace": AREA}
        north_of(view).put({"kind": "ResourceImport", "metadata": meta, "spec": {"name": f"p{number}"} | spec})
    controller.run()
    present = [
        "/".join(filter(None, (obj["metadata"].get("namespace"), obj["metadata"]["name"])))
        for kind in POLICIES
        for obj in view.local.list(kind)
    ]
    return present, [*report(view, controller).values()]


@by_leader(
    wants="open Pods that their owner has isolated, by a NetworkPolicy for all members",
    stopped_by="the member's controller: no policy of the leader is applied without `replicatedPolicies`",
)
def test_an_allow_all_without_consent() -> None:
    """The owner's policy is alone, and the leader learns which key would accept the other."""
    present, reasons = attacked(planted(OPEN))
    assert present == ["shop/own"]
    (reason,) = reasons
    assert "replicatedPolicies.networkPolicies is none" in reason


@by_leader(
    wants="open or close Pods of a namespace by the consent that a member gave for another namespace",
    stopped_by="the member's controller: consent is for the namespaces of `replicatedPolicies.namespaces`",
)
def test_another_namespace() -> None:
    """Only the namespace of the list gets the policy."""
    present, reasons = attacked(planted(CLOSED), planted(CLOSED, "till"), **IN_SHOP)
    assert present == ["shop/antrea-mc-planted", "shop/own"]
    (reason,) = reasons
    assert "replicatedPolicies.namespaces lacks till" in reason


@by_leader(
    wants="cut off DNS and the member's own controller, by a NetworkPolicy in kube-system",
    stopped_by='the member\'s controller: "*" is without namespaces of Kubernetes and of mcagent',
)
def test_a_deny_all_in_kube_system() -> None:
    """The member accepts policies in all namespaces; kube-system would have to be named."""
    consent = {**IN_SHOP, "replicated_namespaces": ("*",)}
    present, reasons = attacked(planted(CLOSED, "kube-system"), planted(CLOSED), **consent)
    assert present == ["shop/antrea-mc-planted", "shop/own"]
    (reason,) = reasons
    assert "replicatedPolicies.namespaces lacks kube-system" in reason


@by_leader(
    wants="open Pods by rules that allow, in a namespace where a member accepts policies that isolate",
    stopped_by="the member's controller: with `isolate` a NetworkPolicy has no rules, since they add up",
)
@pytest.mark.parametrize(
    "rules",
    [
        {"ingress": [{}]},
        {"egress": [{"to": [{"podSelector": {}}]}]},
        {"ingress": [{"action": "Drop"}]},
        {"ingress": [{"from": [{"ipBlock": {"cidr": "10.2.0.9/32"}}]}]},
    ],
)
def test_rules_that_allow_with_consent_to_isolate(rules: RawObject) -> None:
    """The policy that isolates is applied; its successor with a rule is not, and does not remove it either."""
    present, reasons = attacked(planted({**CLOSED, **rules}), **IN_SHOP)
    assert present == ["shop/own"]
    (reason,) = reasons
    assert "it may open what is closed" in reason
    assert "networkPolicies is isolate, not allow" in reason


@by_leader(
    wants="override all policies of a member by a rule with Allow or Pass in a tier above them",
    stopped_by="the member's controller: with `isolate` all rules of a policy for the whole cluster deny",
)
@pytest.mark.parametrize("action", ["Allow", "Pass", "Accept"])
@pytest.mark.parametrize("policy_kind", CLUSTER_KINDS)
def test_a_tier_above_the_owners(policy_kind: Kind, action: str) -> None:
    """Neither with consent to isolate, nor with consent to NetworkPolicies alone."""
    for keys in ({"replicated_cluster_policies": ReplicatedPolicies.ISOLATE}, IN_SHOP):
        present, reasons = attacked(cluster_wide(policy_kind, action), **keys)
        assert present == ["shop/own"]
        (reason,) = reasons
        assert "replicatedPolicies.clusterPolicies is" in reason


@by_leader(
    wants="keep a planted policy after the member's consent is withdrawn, by an import that cannot be read",
    stopped_by="the member's controller: what it applied is judged again, whatever the leader has",
)
def test_a_policy_whose_consent_is_withdrawn() -> None:
    """An import that becomes invalid keeps its last policy only while that is accepted."""
    view = member_with_owner()
    meta = {"name": "p-kubernetespolicy", "namespace": AREA}
    allow = {**IN_SHOP, "replicated_network_policies": ReplicatedPolicies.ALLOW}
    north_of(view).put({"kind": "ResourceImport", "metadata": meta, "spec": {"name": "p"} | planted(OPEN)})
    started(view, **allow).run()
    assert len(view.local.list(Kind.NETWORK_POLICY)) == 2
    broken = {"name": "p", "kind": names.KUBERNETES_POLICY, "raw": {"data": "?"}}
    north_of(view).put({"kind": "ResourceImport", "metadata": meta, "spec": broken})
    started(view, **IN_SHOP).run()
    assert [obj["metadata"]["name"] for obj in view.local.list(Kind.NETWORK_POLICY)] == ["own"]


@attack(
    Group.POLICIES,
    Attacker.NODE,
    wants="change policies of the whole cluster with the token of the member's controller, from its Node",
    stopped_by="RBAC: the controller has rights on policies only where `replicatedPolicies` accepts the leader's",
)
def test_the_controllers_rights_on_policies() -> None:
    """A member without consent has none, and a kind is granted by its own key."""
    groups = {KINDS[kind].group for kind in CLUSTER_KINDS}

    def granted(accepted: RawObject) -> set[str]:
        site = Site(config={Part.MEMBER: {"replicatedPolicies": accepted}})
        rules = [
            rule
            for obj in objects([Part.MEMBER], site)
            if obj["kind"] in ("Role", "ClusterRole")
            for rule in obj["rules"]
        ]
        return {
            name
            for rule in rules
            for name in rule["resources"]
            if name == "networkpolicies" or groups & set(rule["apiGroups"])
        }

    assert granted({}) == set()
    assert granted({"networkPolicies": "isolate"}) == {"networkpolicies"}
    assert "networkpolicies" not in granted({"clusterPolicies": "isolate"})
