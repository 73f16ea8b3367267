"""The policy rules of one Node: the rules for its Pods, and the peers that these rules name.

A change of a Pod does not repeat any match of a selector with a set of labels. A new or removed label identity is
matched with all selectors, and only rules with a matching selector are computed again. Must not know flows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from mcagent.core.engine import IncrementalEngine
from mcagent.core.policies import label_matching, limits, peer_shares, pipeline_input, rules
from mcagent.core.policies.identities import IDENTITY_NEEDS
from mcagent.model.config import Config
from mcagent.model.net import Address
from mcagent.model.node_state import NodeRole
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.policies import Direction, Policy, Selector
from mcagent.model.problem import Problem, in_order

POLICY_NEEDS = frozenset({Kind.NETWORK_POLICY, Kind.ANTREA_NETWORK_POLICY, Kind.CLUSTER_NETWORK_POLICY, Kind.TIER})

Isolating = Mapping[tuple[Direction, Address], tuple[str, ...]]


class Isolated(NamedTuple):
    """The addresses of the Pods that a policy isolates, by direction."""

    ingress: tuple[Address, ...]
    egress: tuple[Address, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRules:
    """The rules for a Node's Pods. `rules` and `isolated` are by the subject of the policy."""

    rules: Mapping[str, tuple[rules.LocalRule, ...]]
    isolated: Mapping[str, Isolated]
    identities: pipeline_input.Identities
    unknown: Mapping[str, pipeline_input.UnknownPeers]  # by the subject of the policy
    services: pipeline_input.Backends
    own_endpoints: pipeline_input.Backends  # those of `services` that are in this cluster
    problems: tuple[Problem, ...]


def policy_needs(snapshot: Snapshot, config: Config, role: NodeRole) -> frozenset[Kind]:
    """Return the kinds that policies depend on; EndpointSlices of all Services only if a rule names Services."""
    if not (config.stretched_network_policy and role is not NodeRole.NONE):
        return frozenset()
    policies = chain(snapshot.antrea_network_policies.values(), snapshot.cluster_network_policies.values())
    names_services = any(rule.services for policy in policies for rule in policy.rules)
    return IDENTITY_NEEDS | POLICY_NEEDS | (frozenset({Kind.ENDPOINT_SLICE}) if names_services else frozenset())


def select_rules(engine: IncrementalEngine, snapshot: Snapshot, config: Config, *, cni: str = "") -> SelectedRules:
    """Select the rules for the Pods of Node `config.node_name` and resolve the peers that they name.

    `cni`: the CNI that forwards packets within the cluster past the Node's netfilter.
    """
    call, call_each = engine.call, engine.each
    kinds = (snapshot.network_policies, snapshot.antrea_network_policies, snapshot.cluster_network_policies)
    policies = call(_by_subject, *kinds)
    own_pods = call(label_matching.own_pods, snapshot.pods, snapshot.namespaces, config.node_name)
    pod_selectors = call(_union, call_each(_pod_selectors, policies))
    own_id = config.cluster_id
    own_cluster = frozenset({own_id})
    pod_matches = call_each(
        label_matching.matching, {labels: (labels, own_cluster) for labels in own_pods}, pod_selectors
    )
    selected_pods = call(label_matching.pods_selected, own_pods, pod_matches)
    tiers = call(rules.tier_priorities, snapshot.tiers)
    mode, limit = config.policy_failure_mode, config.max_policy_flows
    namespace_limit = config.max_namespace_policy_flows
    local_rules = call_each(rules.local_rules, policies, selected_pods, tiers, mode, limit)

    peer_selectors = call(_union, call_each(_peer_selectors, local_rules))
    clusters = call(label_matching.cluster_ids, snapshot.cluster_infos)
    labels_and_clusters = call(label_matching.labels_and_clusters, snapshot.label_identities, clusters)
    peer_matches = call_each(label_matching.matching, labels_and_clusters, peer_selectors)
    identities = call(label_matching.identities_selected, snapshot.label_identities, peer_matches)
    services = call(pipeline_input.services_of, local_rules)
    slices = snapshot.endpoint_slices if services else {}
    backends = call(pipeline_input.backends, slices, services)
    endpoint_exporters = call(pipeline_input.endpoint_exporters, slices, services)

    with_rules = {subject: policies[subject] for subject, own_rules in local_rules.items() if own_rules}
    counts = call_each(limits.network_counts, with_rules)
    needs = call_each(limits.needs_of, engine.join(counts, local_rules))
    refused = call(limits.refusals, with_rules, needs, limit, namespace_limit, mode)
    enforced = {subject: policy for subject, policy in with_rules.items() if subject not in refused}
    networks = call_each(limits.rule_networks, enforced)
    enforced_rules = {subject: local_rules[subject] for subject in enforced}
    own_flows = {subject: needs[subject].flows for subject in enforced}
    demands = call(peer_shares.demands, enforced_rules, enforced, own_flows, limit, namespace_limit)
    exporters = call(peer_shares.exporters, snapshot.label_identities)
    unknown = call(
        peer_shares.by_policy,
        call_each(peer_shares.unknown_peers, demands, identities, exporters, backends, endpoint_exporters),
        enforced_rules,
        enforced,
    )
    local_endpoints = call(pipeline_input.own_endpoints, slices, services, own_id)
    partly = call_each(rules.partly_enforced, engine.join(with_rules, local_rules), local_endpoints, cni)
    return SelectedRules(
        rules={
            **call_each(limits.with_networks, engine.join(networks, local_rules)),
            **call(limits.substitutes, {subject: local_rules[subject] for subject in refused}, with_rules, mode),
        },
        isolated=call_each(_isolated, policies, selected_pods),
        identities=identities,
        unknown=unknown,
        services=backends,
        own_endpoints=local_endpoints,
        problems=call(
            in_order,
            tuple(refused.values()),
            call(
                peer_shares.problems,
                *(unknown, enforced_rules, enforced, identities, backends),
                limits=(limit, namespace_limit),
            ),
            *call_each(rules.tier_problems, policies, tiers, mode).values(),
            *partly.values(),
        ),
    )


def isolating_policies(isolated: Mapping[str, Isolated]) -> Isolating:
    """Return the subjects of the policies that isolate a Pod, by (direction, address of the Pod)."""
    policies: dict[tuple[Direction, Address], list[str]] = {}
    for policy, by_direction in sorted(isolated.items()):
        for direction, addresses in zip(Direction, by_direction, strict=True):
            for address in addresses:
                policies.setdefault((direction, address), []).append(policy)
    return {key: tuple(names) for key, names in policies.items()}


def _by_subject(*kinds: Mapping[str, Policy]) -> dict[str, Policy]:
    return {policy.meta.subject: policy for policies in kinds for policy in policies.values()}


def _pod_selectors(policy: Policy) -> frozenset[Selector]:
    return frozenset((*policy.applied_to, *chain.from_iterable(rule.applied_to for rule in policy.rules)))


def _peer_selectors(local_rules: tuple[rules.LocalRule, ...]) -> frozenset[Selector]:
    return frozenset(chain.from_iterable(rule.selectors for rule in local_rules))


def _union(selectors: Mapping[str, frozenset[Selector]]) -> frozenset[Selector]:
    return frozenset(chain.from_iterable(selectors.values()))


def _isolated(policy: Policy, selected: rules.Selected) -> Isolated:
    return Isolated(*(rules.isolated(policy, selected, direction) for direction in Direction))
