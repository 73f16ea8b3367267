"""The label identities that the policies of an owner match: clusters share what the owner's own flows leave.

An owner is a Namespace, or a policy without one. Other clusters enlarge the number of identities, so no policy is
refused for it: each cluster that exports identities has a fair share (max-min), and those beyond it count as
unknown. Must not know flows or numbers of clusters.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from mcagent.core.policies.identities import UNCLAIMED
from mcagent.core.policies.pipeline_input import Identities, IdentityPair, UnknownIdentities
from mcagent.core.policies.rules import LocalRule
from mcagent.model.objects import LabelIdentity
from mcagent.model.policies import Policy, Selector
from mcagent.model.problem import Problem, Severity

MOST_NAMED = 8  # clusters in a message

Exporters = Mapping[int, frozenset[str]]


class Demand(NamedTuple):
    """How often the rules of an owner name each selector, and how many flows their identities may have."""

    selectors: tuple[tuple[Selector, int], ...]
    limit: int


def owner_of(policy: Policy) -> str:
    """Return the owner of a policy."""
    return policy.meta.namespace or policy.meta.subject


def exporters(label_identities: Mapping[str, LabelIdentity]) -> dict[int, frozenset[str]]:
    """Return the clusters that export each identity: UNCLAIMED for one that any cluster may use."""
    by_number: dict[int, frozenset[str]] = {}
    for identity in label_identities.values():
        clusters = frozenset({UNCLAIMED}) if identity.clusters is None else identity.clusters
        by_number[identity.id] = by_number.get(identity.id, frozenset()) | clusters
    return by_number


def demands(
    rules: Mapping[str, tuple[LocalRule, ...]],
    policies: Mapping[str, Policy],
    own_flows: Mapping[str, int],
    per_policy: int,
    per_namespace: int,
) -> dict[str, Demand]:
    """Return the demand of each owner. `own_flows`: those of each policy without identities."""
    selectors: defaultdict[str, Counter[Selector]] = defaultdict(Counter)
    flows: Counter[str] = Counter()
    for subject, policy_rules in rules.items():
        owner = owner_of(policies[subject])
        flows[owner] += own_flows[subject]
        selectors[owner].update(selector for rule in policy_rules for selector in rule.selectors)
    limits = {
        owner_of(policy): per_namespace if policy.meta.namespace else per_policy for policy in policies.values()
    }
    return {
        owner: Demand(tuple(counts.items()), max(0, limits[owner] - flows[owner]))
        for owner, counts in selectors.items()
        if counts
    }


def unknown_identities(demand: Demand, identities: Identities, exported_by: Exporters) -> UnknownIdentities:
    """Return the identities beyond the shares of their exporters; {} if all are within the limit.

    Clusters take turns, the one with the fewest flows so far next, each with its identity of the lowest number
    that no other has taken.
    """
    if sum(count * len(identities.get(selector, ())) for selector, count in demand.selectors) <= demand.limit:
        return {}
    flows: Counter[IdentityPair] = Counter()
    for selector, count in demand.selectors:
        for pair in identities.get(selector, ()):
            flows[pair] += count
    clusters = {pair: _exporters(pair, exported_by) for pair in flows}
    queues: defaultdict[str, list[IdentityPair]] = defaultdict(list)
    for pair in sorted(flows, key=lambda pair: (pair[1], pair[0])):
        for cluster in clusters[pair]:
            queues[cluster].append(pair)
    unknown = dict(clusters)
    remaining = demand.limit
    turns = {cluster: iter(pairs) for cluster, pairs in queues.items()}
    waiting = [(0, cluster) for cluster in sorted(turns)]
    while waiting:
        cluster_flows, cluster = heapq.heappop(waiting)
        following = next((pair for pair in turns[cluster] if pair in unknown), None)
        if following is not None and flows[following] <= remaining:
            del unknown[following]
            remaining -= flows[following]
            heapq.heappush(waiting, (cluster_flows + flows[following], cluster))
    return unknown


def by_policy(
    unknown: Mapping[str, UnknownIdentities],
    rules: Mapping[str, tuple[LocalRule, ...]],
    policies: Mapping[str, Policy],
) -> dict[str, UnknownIdentities]:
    """Return the unknown identities of the policies that have some, by the subject of the policy."""
    return {subject: pairs for subject in rules if (pairs := unknown.get(owner_of(policies[subject])))}


def problems(
    unknown: Mapping[str, UnknownIdentities],
    rules: Mapping[str, tuple[LocalRule, ...]],
    policies: Mapping[str, Policy],
    identities: Identities,
    limits: tuple[int, int],
) -> tuple[Problem, ...]:
    """Report the policies that match unknown identities. `limits`: of a policy, of a Namespace."""
    reported: list[Problem] = []
    for subject, pairs in unknown.items():
        meta = policies[subject].meta
        matched = {
            pair for rule in rules[subject] for selector in rule.selectors for pair in identities.get(selector, ())
        }
        counts = Counter(cluster for pair in matched if pair in pairs for cluster in pairs[pair])
        if not counts:
            continue
        named = [f"{count} of {cluster or 'any cluster'}" for cluster, count in counts.most_common(MOST_NAMED)]
        named += [f"some of {len(counts) - MOST_NAMED} other clusters"] if len(counts) > MOST_NAMED else []
        whose, key = (
            (f"the policies of Namespace {meta.namespace}", "maxNamespacePolicyFlows")
            if meta.namespace
            else ("the policy", "maxPolicyFlows")
        )
        text = (
            f"more label identities match the rules of {whose} than {limits[bool(meta.namespace)]} flows on this "
            f"Node ({key}) have room for: unknown are {', '.join(named)}. Rules do not allow Pods with an unknown "
            "identity, and a rule that drops or rejects applies to all Pods of these clusters"
        )
        reported.append(meta.problem("spec", "IdentitiesUnknown", text, Severity.WARNING))
    return tuple(reported)


def _exporters(pair: IdentityPair, exported_by: Exporters) -> Collection[str]:
    cluster, number = pair
    return exported_by.get(number, frozenset()) if cluster == UNCLAIMED else frozenset({cluster})
