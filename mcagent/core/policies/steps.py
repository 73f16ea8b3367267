"""The walk from policies to rules and flows: which step follows from which.

A Pod that changes costs the policies once more, but no selector is tried on labels that were tried before; a label
identity that comes or goes is tried on all selectors, and only rules with such a one are made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flows import pipeline
from flows.pipeline.identity import ANY_CLUSTER
from mcagent.core.engine import Engine
from mcagent.core.fragments.build import Resources, fragment
from mcagent.core.fragments.policies import claimed_flows, identity_flows, pods_fragment, rule_flows
from mcagent.core.policies import numbers, rules, select
from mcagent.core.policies.identities import (
    IDENTITY_NEEDS,
    claimed_identities,
    numbers_of,
    pod_identities,
    unclaimed_identities,
)
from mcagent.model.config import Config
from mcagent.model.net import Address
from mcagent.model.node_state import PolicyRuleName, Role
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Fragment
from mcagent.model.policies import Direction, Policy, Selector
from mcagent.model.problem import Problem

POLICY_NEEDS = frozenset({Kind.NETWORK_POLICY, Kind.ANTREA_NETWORK_POLICY, Kind.CLUSTER_NETWORK_POLICY, Kind.TIER})

Both = tuple[tuple[Address, ...], tuple[Address, ...]]
Isolating = Mapping[tuple[Direction, Address], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What policies say of this Node's Pods. `rules` and `isolated` are by the policies' subjects."""

    rules: Mapping[str, tuple[rules.LocalRule, ...]]
    isolated: Mapping[str, Both]  # ingress, egress
    identities: numbers.Identities
    services: numbers.Backends
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """What policies want of this Node."""

    fragments: tuple[Fragment, ...] = ()
    names: Mapping[int, PolicyRuleName] = field(default_factory=dict)
    isolating: Isolating = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def needs(snapshot: Snapshot, config: Config, role: Role | None) -> frozenset[Kind]:
    """Return the kinds that policies follow from: Services' endpoints only if a policy is about any.

    None where the Node enforces no policies. Endpoints are needed of all Services then, whoever imported them.
    """
    if not (config.stretched_network_policy and role):
        return frozenset()
    known = (snapshot.antrea_network_policies, snapshot.cluster_network_policies)
    services = any(rule.services for kind in known for policy in kind.values() for rule in policy.rules)
    return IDENTITY_NEEDS | POLICY_NEEDS | (frozenset({Kind.ENDPOINT_SLICE}) if services else frozenset())


def claimed(engine: Engine, snapshot: Snapshot, clusters: Mapping[str, int]) -> Mapping[str, Resources]:
    """Return the flows by which a gateway believes each cluster its own numbers."""
    numbers = engine.cell("claimed identities", claimed_identities, snapshot.label_identities)
    known = {cluster: (number, numbers.get(cluster, ())) for cluster, number in clusters.items()}
    return engine.each("identities of clusters", claimed_flows, known)


def known(engine: Engine, snapshot: Snapshot, config: Config) -> Known:
    """Return the rules for this Node's Pods, and whom these are about."""
    cell, each = engine.cell, engine.each
    kinds = (snapshot.network_policies, snapshot.antrea_network_policies, snapshot.cluster_network_policies)
    policies = cell("policies", _together, *kinds)
    own = cell("Pods of this Node", select.own_pods, snapshot.pods, snapshot.namespaces, config.node_name)
    applied = cell("selectors of Pods", _united, each("whom policies are for", _applied_to, policies))
    here = frozenset({config.cluster_id})
    matched = each("selectors of labels", select.matching, {text: (text, here) for text in own}, applied)
    selected = cell("selected Pods", select.pods_selected, own, matched)
    tiers = cell("tiers", rules.tier_priorities, snapshot.tiers)
    found = each("rules of policies", rules.local_rules, policies, selected, tiers, config.policy_failure_mode)

    peers = cell("selectors of peers", _united, each("whom rules are about", _peers, found))
    labelled = cell("labels and clusters", select.labels_and_clusters, snapshot.label_identities)
    of_identities = each("selectors of identities", select.matching, labelled, peers)
    wanted = cell("Services of rules", numbers.services_of, found)
    lost = each("problems of tiers", rules.tier_problems, policies, tiers)
    return Known(
        rules=found,
        isolated=each("isolated Pods", _isolated, policies, selected),
        identities=cell(
            "selected identities", select.identities_selected, snapshot.label_identities, of_identities
        ),
        services=cell("backends", numbers.backends, snapshot.endpoint_slices if wanted else {}, wanted),
        problems=cell("problems of policies", _flat, lost),
    )


def numbered(
    engine: Engine, found: Known, ids: Mapping[str, int], clusters: Mapping[str, int]
) -> Mapping[numbers.Level, tuple[pipeline.PolicyRule, ...]]:
    """Return the rules of each level for the pipeline, by the numbers of rules and of clusters."""
    levels = engine.cell("levels", numbers.by_level, found.rules)
    values = {level: numbers.about(those, level, ids, found.identities) for level, those in levels.items()}
    return engine.each("numbered rules", numbers.numbered, values, found.services, clusters)


def _identities(engine: Engine, snapshot: Snapshot, env: pipeline.Env, node: str) -> Fragment:
    """Return what marks packets of this Node's Pods, and which numbers are believed of any cluster."""
    cell, each = engine.cell, engine.each
    numbers_ = cell("numbers of labels", numbers_of, snapshot.label_identities)
    pods = cell("identities of Pods", pod_identities, snapshot.pods, snapshot.namespaces, numbers_, node)
    flows = each("flows of Pods", identity_flows, {one: (one, pods[one]) for one in pods}, env)
    rest = cell("unclaimed identities", unclaimed_identities, snapshot.label_identities) if env.gateway else ()
    anybody = cell("identities of any cluster", claimed_flows, (ANY_CLUSTER, rest))
    return cell("identities", fragment, ("identities", *(*flows.values(), anybody)))


def enforced(
    engine: Engine, snapshot: Snapshot, env: pipeline.Env, config: Config, clusters: Mapping[str, int]
) -> Enforced:
    """Return the fragments of policies, what their rules are called, and what of them is not enforced."""
    cell, each = engine.cell, engine.each
    found = known(engine, snapshot, config)
    ids = cell("rule IDs", numbers.rule_ids, found.rules)
    flows = each("flows of rules", rule_flows, numbered(engine, found, ids, clusters))
    parts = {level: (_owner(level), flows[level]) for level in flows}
    pods = cell("Pods with policies", pod_policies, found.isolated, found.rules)
    return Enforced(
        fragments=(
            _identities(engine, snapshot, env, config.node_name),
            *each("fragments of rules", fragment, parts).values(),
            cell("fragment of Pods", pods_fragment, pods),
        ),
        names=cell("names of rules", _names, found.rules, ids),
        isolating=cell("who isolates Pods", isolating, found.isolated),
        problems=found.problems,
    )


def _together(*kinds: Mapping[str, Policy]) -> dict[str, Policy]:
    return {policy.meta.subject: policy for kind in kinds for policy in kind.values()}


def _applied_to(policy: Policy) -> frozenset[Selector]:
    return frozenset((*policy.applied_to, *(one for rule in policy.rules for one in rule.applied_to)))


def _peers(found: tuple[rules.LocalRule, ...]) -> frozenset[Selector]:
    return frozenset(selector for rule in found for selector in rule.selectors)


def _united(several: Mapping[str, frozenset[Selector]]) -> frozenset[Selector]:
    return frozenset(one for those in several.values() for one in those)


def _isolated(policy: Policy, selected: rules.Selected) -> Both:
    inward, outward = (rules.isolated(policy, selected, direction) for direction in Direction)
    return inward, outward


def pod_policies(
    isolated: Mapping[str, Both], found: Mapping[str, tuple[rules.LocalRule, ...]]
) -> pipeline.PodPolicies:
    """Return what becomes of requests that no rule is about."""
    return pipeline.PodPolicies(
        isolated_ingress=numbers.united(inward for inward, _ in isolated.values()),
        isolated_egress=numbers.united(outward for _, outward in isolated.values()),
        unknown_dropped=numbers.unknown_dropped(found),
    )


def isolating(found: Mapping[str, Both]) -> Isolating:
    """Return the policies that isolate Pods, by direction and the Pod's address."""
    policies: dict[tuple[Direction, Address], list[str]] = {}
    for policy, both in sorted(found.items()):
        for direction, addresses in zip(Direction, both, strict=True):
            for address in addresses:
                policies.setdefault((direction, address), []).append(policy)
    return {key: tuple(names) for key, names in policies.items()}


def _names(found: Mapping[str, tuple[rules.LocalRule, ...]], ids: Mapping[str, int]) -> dict[int, PolicyRuleName]:
    return {
        ids[rule.key]: PolicyRuleName(
            policy=rule.policy.replace(" ", "/", 1),
            rule=rule.name,
            direction=str(rule.direction),
            verdict=rule.verdict.lower(),
            log_label=rule.log_label,
        )
        for several in found.values()
        for rule in several
    }


def _owner(level: numbers.Level) -> str:
    direction, stage, number = level
    return f"policy/{direction.value}/{stage.value}/{number}"


def _flat(several: Mapping[str, tuple[Problem, ...]]) -> tuple[Problem, ...]:
    return tuple(sorted(problem for those in several.values() for problem in those))
