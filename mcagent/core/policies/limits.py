"""Limits on the flows of policies: of one policy, and of the policies of one Namespace, on this Node.

Counts before anything is expanded, and decides what replaces the rules of a policy above a limit. So no user of a
Namespace delays the policies of others. ClusterNetworkPolicies, which administrators write, have no Namespace.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from flows.pipeline.steps.policy import ranges
from mcagent.core.policies.networks import remaining, remaining_count
from mcagent.core.policies.rules import LocalRule, effect_of_fault
from mcagent.core.shares import max_min_shares
from mcagent.model.config import PolicyFailureMode
from mcagent.model.net import Network
from mcagent.model.policies import Direction, Policy, Verdict
from mcagent.model.problem import Problem

LocalRules = tuple[LocalRule, ...]
# Rules of all policies on a Node: each is a clause of 16 bytes in a flow that all may share, and a message of
# OpenFlow has 65,535 bytes.
MAX_RULES = 4000


def network_counts(policy: Policy) -> tuple[int, ...]:
    """Return the number of networks in the peers of each rule, exceptions taken out."""
    return tuple(
        sum(remaining_count(peer.network, peer.without) for peer in rule.peers if peer.network is not None)
        for rule in policy.rules
    )


def rule_networks(policy: Policy) -> tuple[tuple[Network, ...], ...]:
    """Return the networks in the peers of each rule, exceptions taken out."""
    return tuple(
        tuple(
            network
            for peer in rule.peers
            if peer.network is not None
            for network in remaining(peer.network, peer.without)
        )
        for rule in policy.rules
    )


def with_networks(value: tuple[tuple[tuple[Network, ...], ...], LocalRules]) -> LocalRules:
    """Return the rules of a policy with the networks of their peers. The first value: those of each rule."""
    networks, rules = value
    return tuple(rule if rule.any_peer else replace(rule, networks=networks[rule.index]) for rule in rules)


class Needs(NamedTuple):
    """What a policy needs on this Node: flows, as if its rules shared none, and rules.

    Without the flows of label identities and of endpoints, whose number other clusters decide (`peer_shares`).
    """

    flows: int
    rules: int


def needs_of(value: tuple[tuple[int, ...], LocalRules]) -> Needs:
    """Return what a policy needs. The first value: the number of networks of each rule."""
    counts, rules = value
    return Needs(sum(_flows(rule, counts[rule.index]) for rule in rules), len(rules))


def _flows(rule: LocalRule, networks: int) -> int:
    if rule.any_peer and not rule.ports:
        return len(rule.pods)
    peers = 0 if rule.any_peer else networks
    ports = sum(1 for port in rule.ports for _ in ranges(port.low, port.high))
    return 1 + len(rule.pods) + peers + ports


def refusals(
    policies: Mapping[str, Policy],
    needs: Mapping[str, Needs],
    per_policy: int,
    per_namespace: int,
    mode: PolicyFailureMode,
) -> dict[str, Problem]:
    """Return the policies that are not enforced, by subject. In a Namespace the oldest policies come first.

    Policies without a Namespace, which administrators write, come first; Namespaces share the rest of MAX_RULES.
    """
    refused: dict[str, Problem] = {}
    demands: Counter[str] = Counter()
    for subject, need in needs.items():
        if need.flows <= per_policy:
            demands[policies[subject].meta.namespace] += need.rules
    of_cluster = min(demands.pop("", 0), MAX_RULES)
    shares = {**max_min_shares(demands, MAX_RULES - of_cluster), "": of_cluster}
    flows: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    for subject in sorted(needs, key=lambda subject: (policies[subject].meta.created, subject)):
        meta, need = policies[subject].meta, needs[subject]
        namespace = meta.namespace
        if need.flows > per_policy:
            text = f"needs {need.flows} flows on this Node, at most {per_policy} are allowed (maxPolicyFlows)"
        elif namespace and flows[namespace] + need.flows > per_namespace:
            text = (
                f"needs {need.flows} flows on this Node, and older policies of Namespace {namespace} need "
                f"{flows[namespace]}: at most {per_namespace} are allowed (maxNamespacePolicyFlows)"
            )
        elif rules[namespace] + need.rules > shares[namespace]:
            text = (
                f"has {need.rules} rules for Pods of this Node, and older policies of "
                f"{'its Namespace' if namespace else 'the cluster'} have {rules[namespace]}: its share of "
                f"{MAX_RULES} is {shares[namespace]}"
            )
        else:
            flows[namespace] += need.flows
            rules[namespace] += need.rules
            continue
        effect = effect_of_fault(policies[subject], mode)
        refused[subject] = meta.problem("spec", "NotEnforceable", f"{text}: {effect}")
    return refused


def substitutes(
    refused: Mapping[str, LocalRules], policies: Mapping[str, Policy], mode: PolicyFailureMode
) -> dict[str, LocalRules]:
    """Return the rules that replace those of refused policies, by the subject of a policy.

    `policyFailureMode` decides as for one rule: one rule without peers and ports for each Namespace, tier and
    direction, however many policies are refused. A NetworkPolicy that fails closed has none: it isolates.
    """
    groups: defaultdict[tuple[str, str, Direction], list[LocalRule]] = defaultdict(list)
    for subject, rules in refused.items():
        for rule in rules:
            if (mode is PolicyFailureMode.CLOSED) is bool(rule.tier):
                owner = policies[subject].meta.namespace or subject
                groups[owner, rule.tier, rule.direction].append(rule)
    substitutes_by_policy: defaultdict[str, list[LocalRule]] = defaultdict(list)
    for (owner, tier, direction), replaced_rules in sorted(groups.items()):
        first = min(replaced_rules, key=lambda rule: (rule.order, rule.key))
        verdict = Verdict.DROP if tier else Verdict.ALLOW
        substitute = replace(
            first,
            key=f"{owner} {tier} {direction} above the limit of flows",
            order=(*first.order[:3], list(Verdict).index(verdict)) if tier else first.order,
            verdict=verdict,
            pods=tuple(sorted({pod for rule in replaced_rules for pod in rule.pods}, key=str)),
            any_peer=True,
            selectors=(),
            services=(),
            ports=(),
        )
        substitutes_by_policy[first.policy].append(substitute)
    return {policy: tuple(rules) for policy, rules in substitutes_by_policy.items()}
