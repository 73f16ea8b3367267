"""The consent of a member's administrator to policies of the leader: which are applied, which kinds read. Pure.

Without consent the kinds are neither read nor written, so the controller needs no rights on them. With
`isolate` a policy must not open what the owner of a Namespace has closed. NetworkPolicies are a union, so each
rule of one may open a Pod that another one isolates: such a policy has no rules. In the other kinds a rule that
denies never opens anything, and `Allow` and `Pass` override later rules. A policy with a field that is not known
here is refused, because its effect is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.controller.contract.policies import Carried
from mcagent.controller.machinery.reconciler import Leader
from mcagent.controller.settings import MemberSettings, ReplicatedPolicies
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable

ALL_NAMESPACES = "*"
SYSTEM_PREFIX = "kube-"  # of namespaces; Kubernetes reserves it for its own
CLUSTER_KINDS = (
    Kind.CLUSTER_NETWORK_POLICY,
    Kind.ADMIN_NETWORK_POLICY,
    Kind.BASELINE_ADMIN_NETWORK_POLICY,
    Kind.UPSTREAM_CLUSTER_NETWORK_POLICY,
)
_ANTREA_ACTIONS, _UPSTREAM_ACTIONS = frozenset({"Drop", "Reject"}), frozenset({"Deny"})
_DENYING: Mapping[Kind, frozenset[str]] = {  # the actions that open nothing
    Kind.NETWORK_POLICY: frozenset(),  # its rules have no actions
    Kind.CLUSTER_NETWORK_POLICY: _ANTREA_ACTIONS,
    Kind.ADMIN_NETWORK_POLICY: _UPSTREAM_ACTIONS,
    Kind.BASELINE_ADMIN_NETWORK_POLICY: _UPSTREAM_ACTIONS,
    Kind.UPSTREAM_CLUSTER_NETWORK_POLICY: _UPSTREAM_ACTIONS,
}
_RULES = ("ingress", "egress")
_SELECTING = frozenset({"podSelector", "policyTypes", "appliedTo", "subject", "tier", "priority"})
_ACCEPTING = frozenset({ReplicatedPolicies.ISOLATE, ReplicatedPolicies.ALLOW})


def written_kinds(settings: MemberSettings) -> tuple[Kind, ...]:
    """Return the kinds of policies that are applied or removed here."""
    namespaced = settings.replicated_network_policies is not ReplicatedPolicies.NONE
    cluster_wide = settings.replicated_cluster_policies is not ReplicatedPolicies.NONE
    return ((Kind.NETWORK_POLICY,) if namespaced else ()) + (CLUSTER_KINDS if cluster_wide else ())


def read_kinds(settings: MemberSettings) -> frozenset[Kind]:
    """Return the kinds of this cluster on which it depends whether a policy is applied."""
    kinds = written_kinds(settings)
    tiers = {Kind.TIER} if Kind.CLUSTER_NETWORK_POLICY in kinds else set()
    return frozenset({*kinds, *tiers, Kind.NAMESPACE})


def refusal(policy: Carried, settings: MemberSettings, leader: Leader) -> str:
    """Return why a policy is not accepted here, with the key that would accept it; "" if it is."""
    if policy.kind is Kind.NETWORK_POLICY:
        key, accepted = "replicatedPolicies.networkPolicies", settings.replicated_network_policies
    else:
        key, accepted = "replicatedPolicies.clusterPolicies", settings.replicated_cluster_policies
    if accepted not in _ACCEPTING:
        return f"the cluster's administrator does not accept it: {key} is {accepted}, not isolate or allow"
    if policy.kind is Kind.NETWORK_POLICY and not _is_named(policy.namespace, settings, leader):
        namespace = printable(policy.namespace)
        return f"the cluster's administrator does not accept it: replicatedPolicies.namespaces lacks {namespace}"
    opening = _opening(policy) if accepted is ReplicatedPolicies.ISOLATE else ""
    return f"it may open what is closed: {opening}, and {key} is isolate, not allow" if opening else ""


def _is_named(namespace: str, settings: MemberSettings, leader: Leader) -> bool:
    if namespace in settings.replicated_namespaces:
        return True
    own = {settings.home, settings.namespace, leader.namespace}
    return (
        ALL_NAMESPACES in settings.replicated_namespaces
        and namespace not in own
        and not namespace.startswith(SYSTEM_PREFIX)
    )


def _opening(policy: Carried) -> str:
    """Return the field by which a policy may open what is closed; "" if it only denies."""
    for name, value in policy.spec.items():
        if name not in _RULES:
            if name not in _SELECTING:
                return f"spec.{printable(name)} is not a known field"
            continue
        if not isinstance(value, list):
            if value is not None:
                return f"spec.{name} is not a list"
            continue
        for index, rule in enumerate(value):
            action = rule.get("action") if isinstance(rule, Mapping) else None
            if not isinstance(action, str) or action not in _DENYING[policy.kind]:
                text = f"has the action {printable(action)}" if isinstance(action, str) else "allows"
                return f"spec.{name}[{index}] {text}"
    return ""
