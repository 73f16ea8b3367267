"""Fragments of policies: flows of label identities, of rules by level, and of Pods with policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from flows import pipeline
from flows.pipeline.steps.identity import ANY_CLUSTER
from mcagent.core.engine import IncrementalEngine
from mcagent.core.fragments import own_endpoints
from mcagent.core.fragments.build import Resources, entries, fragment
from mcagent.core.policies import pipeline_input
from mcagent.core.policies.identities import (
    claimed_identities,
    identity_by_labels,
    pod_identities,
    unclaimed_identities,
)
from mcagent.core.policies.rules import LocalRule
from mcagent.core.policies.selection import Isolated, Isolating, SelectedRules, isolating_policies, select_rules
from mcagent.model.config import Config
from mcagent.model.net import Address
from mcagent.model.node_state import AcceptedCluster, PolicyRuleName
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Fragment
from mcagent.model.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """The resources of policies on this Node. `names`: of rules, by number."""

    fragments: tuple[Fragment, ...] = ()
    names: Mapping[int, PolicyRuleName] = field(default_factory=dict)
    isolating: Isolating = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def enforcement(
    engine: IncrementalEngine,
    snapshot: Snapshot,
    env: pipeline.Env,
    config: Config,
    cluster_ids: Mapping[str, int],
    *,
    accepted: Mapping[str, AcceptedCluster] = MappingProxyType({}),
    cni: str = "",
    labels_withheld: bool = False,
) -> Enforcement:
    """Return all policies' fragments and rule names, and what is not enforced. `cni`: see `not_seen_by_kernel`.

    `labels_withheld`: packets of this Node's Pods have the unknown identity.
    """
    call, call_each = engine.call, engine.each
    selected = select_rules(engine, snapshot, config, cni=cni)
    ids = call(pipeline_input.rule_ids, selected.rules)
    flows = call_each(_rule_flows, pipeline_rules(engine, selected, ids, cluster_ids, accepted), env.prefixes)
    parts = {level: (_owner(level), flows[level]) for level in flows}
    return Enforcement(
        fragments=(
            _identities(engine, snapshot, env, None if labels_withheld else config.node_name),
            *call_each(fragment, parts).values(),
            call(_pods_fragment, call(pod_policies, selected.isolated, selected.rules), env.prefixes),
            call(own_endpoints.fragment, selected.rules, selected.own_endpoints, cni, config),
        ),
        names=call(_names, selected.rules, ids),
        isolating=call(isolating_policies, selected.isolated),
        problems=selected.problems,
    )


def pipeline_rules(
    engine: IncrementalEngine,
    selected: SelectedRules,
    ids: Mapping[str, int],
    cluster_ids: Mapping[str, int],
    accepted: Mapping[str, AcceptedCluster] = MappingProxyType({}),
) -> Mapping[pipeline_input.Level, tuple[pipeline.PolicyRule, ...]]:
    """Return the rules of each level with the numbers of rules, clusters and identities."""
    levels = engine.call(pipeline_input.by_level, selected.rules)
    inputs = {
        level: pipeline_input.level_input(local_rules, level, ids, selected.identities, selected.unknown)
        for level, local_rules in levels.items()
    }
    exporters = pipeline_input.clusters_of_unknown(selected.unknown)
    cidrs = {name: accepted[name].cidrs for name in exporters if name in accepted}
    return engine.each(pipeline_input.to_pipeline_rules, inputs, selected.services, cluster_ids, cidrs)


def pod_policies(
    isolated: Mapping[str, Isolated], rules: Mapping[str, tuple[LocalRule, ...]]
) -> pipeline.PodPolicies:
    """Return the Pods whose requests are dropped if no rule matches them."""
    return pipeline.PodPolicies(
        isolated_ingress=pipeline_input.merge_addresses(pods.ingress for pods in isolated.values()),
        isolated_egress=pipeline_input.merge_addresses(pods.egress for pods in isolated.values()),
        unknown_dropped=pipeline_input.unknown_dropped(rules),
    )


def claimed_flows(
    engine: IncrementalEngine, snapshot: Snapshot, cluster_ids: Mapping[str, int]
) -> Mapping[str, Resources]:
    """Return the flows by which a gateway accepts each cluster's own label identities from it."""
    claimed = engine.call(claimed_identities, snapshot.label_identities)
    return engine.each(_identity_claims, {name: (id_, claimed.get(name, ())) for name, id_ in cluster_ids.items()})


def _identities(engine: IncrementalEngine, snapshot: Snapshot, env: pipeline.Env, node: str | None) -> Fragment:
    """Return the marks of packets of a Node's Pods (None: no marks), and the identities of any cluster."""
    call, call_each = engine.call, engine.each
    numbers_by_labels = call(identity_by_labels, snapshot.label_identities)
    pods: Mapping[Address, int] = {}
    if node is not None:
        pods = call(pod_identities, snapshot.pods, snapshot.namespaces, numbers_by_labels, node)
    marks = call_each(_pod_identity_flows, {address: (address, pods[address]) for address in pods}, env)
    unclaimed = call(unclaimed_identities, snapshot.label_identities) if env.gateway else ()
    of_any_cluster = call(_identity_claims, (ANY_CLUSTER, unclaimed))
    return call(fragment, ("identities", *(*marks.values(), of_any_cluster)))


def _pod_identity_flows(value: tuple[Address, int], env: pipeline.Env) -> Resources:
    return entries(pipeline.pod_identity(env, *value))


def _identity_claims(value: tuple[int, tuple[int, ...]]) -> Resources:
    return entries(pipeline.claimed_identities(*value))


def _rule_flows(rules: tuple[pipeline.PolicyRule, ...], prefixes: tuple[pipeline.VirtualPrefix, ...]) -> Resources:
    return entries(pipeline.rules(rules, prefixes))


def _pods_fragment(pods: pipeline.PodPolicies, prefixes: tuple[pipeline.VirtualPrefix, ...]) -> Fragment:
    return Fragment(owner="policy/pods", resources=entries(pipeline.pod_policies(pods, prefixes)))


def _names(rules: Mapping[str, tuple[LocalRule, ...]], ids: Mapping[str, int]) -> dict[int, PolicyRuleName]:
    return {
        ids[rule.key]: PolicyRuleName(
            policy=rule.policy.replace(" ", "/", 1),
            rule=rule.name,
            direction=str(rule.direction),
            verdict=rule.verdict.lower(),
            log_label=rule.log_label,
        )
        for policy_rules in rules.values()
        for rule in policy_rules
    }


def _owner(level: pipeline_input.Level) -> str:
    direction, stage, number = level
    return f"policy/{direction.value}/{stage.value}/{number}"
