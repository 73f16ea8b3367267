"""The peers that the policies of an owner match: clusters share what the owner's own flows leave.

An owner is a Namespace, or a policy without one. Other clusters enlarge the numbers of label identities and of
endpoints of Services, so no policy is refused for them: each cluster that exports some has a fair share (max-min),
and those beyond it count as unknown. Must not know flows or numbers of clusters.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from mcagent.core.policies.identities import UNCLAIMED
from mcagent.core.policies.pipeline_input import Backends, Endpoint, Identities, IdentityPair, UnknownPeers
from mcagent.core.policies.rules import LocalRule
from mcagent.model.objects import LabelIdentity
from mcagent.model.policies import Policy, Selector
from mcagent.model.problem import Problem, Severity

MOST_NAMED = 8  # clusters in a message

Exporters = Mapping[int, frozenset[str]]  # by number of an identity
EndpointExporters = Mapping[Endpoint, frozenset[str]]
ServiceName = tuple[str, str]  # Namespace, name


class Demand(NamedTuple):
    """How often an owner's rules name each selector and each Service, and how many flows these peers may have."""

    selectors: tuple[tuple[Selector, int], ...]
    limit: int
    services: tuple[tuple[ServiceName, int], ...] = ()


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
    """Return the demand of each owner. `own_flows`: those of each policy without identities and endpoints."""
    selectors: defaultdict[str, Counter[Selector]] = defaultdict(Counter)
    services: defaultdict[str, Counter[ServiceName]] = defaultdict(Counter)
    flows: Counter[str] = Counter()
    for subject, policy_rules in rules.items():
        owner = owner_of(policies[subject])
        flows[owner] += own_flows[subject]
        selectors[owner].update(selector for rule in policy_rules for selector in rule.selectors)
        services[owner].update(service for rule in policy_rules for service in set(rule.services))
    limits = {
        owner_of(policy): per_namespace if policy.meta.namespace else per_policy for policy in policies.values()
    }
    return {
        owner: Demand(tuple(counts.items()), max(0, limits[owner] - flows[owner]), tuple(services[owner].items()))
        for owner, counts in selectors.items()
        if counts or services[owner]
    }


def unknown_peers(
    demand: Demand,
    identities: Identities,
    exported_by: Exporters,
    endpoints: Backends = MappingProxyType({}),
    endpoint_exporters: EndpointExporters = MappingProxyType({}),
) -> UnknownPeers:
    """Return the peers beyond the shares of their exporters; {} if all are within the limit.

    Clusters take turns, the one with the fewest flows so far next, each with its next peer that no other has
    taken: endpoints in order of their addresses, then identities in order of their numbers.
    """
    flows: Counter[IdentityPair | Endpoint] = Counter()
    clusters: dict[IdentityPair | Endpoint, Collection[str]] = {}
    for service, count in demand.services:
        for endpoint in endpoints.get(service, ()):
            flows[endpoint] += count
            clusters[endpoint] = endpoint_exporters[endpoint]
    of_identities: Counter[IdentityPair] = Counter()
    for selector, count in demand.selectors:
        for pair in identities.get(selector, ()):
            of_identities[pair] += count
    for pair in sorted(of_identities, key=lambda pair: (pair[1], pair[0])):
        flows[pair] = of_identities[pair]
        clusters[pair] = _exporters(pair, exported_by)
    if flows.total() <= demand.limit:
        return {}
    queues: defaultdict[str, list[IdentityPair | Endpoint]] = defaultdict(list)
    for peer in flows:
        for cluster in clusters[peer]:
            queues[cluster].append(peer)
    unknown = dict(clusters)
    remaining = demand.limit
    turns = {cluster: iter(peers) for cluster, peers in queues.items()}
    waiting = [(0, cluster) for cluster in sorted(turns)]
    while waiting:
        cluster_flows, cluster = heapq.heappop(waiting)
        following = next((peer for peer in turns[cluster] if peer in unknown), None)
        if following is not None and flows[following] <= remaining:
            del unknown[following]
            remaining -= flows[following]
            heapq.heappush(waiting, (cluster_flows + flows[following], cluster))
    return unknown


def by_policy(
    unknown: Mapping[str, UnknownPeers],
    rules: Mapping[str, tuple[LocalRule, ...]],
    policies: Mapping[str, Policy],
) -> dict[str, UnknownPeers]:
    """Return the unknown peers of the policies that have some, by the subject of the policy."""
    return {subject: peers for subject in rules if (peers := unknown.get(owner_of(policies[subject])))}


def problems(
    unknown: Mapping[str, UnknownPeers],
    rules: Mapping[str, tuple[LocalRule, ...]],
    policies: Mapping[str, Policy],
    identities: Identities,
    endpoints: Backends,
    *,
    limits: tuple[int, int],
) -> tuple[Problem, ...]:
    """Report the policies that match unknown peers. `limits`: of a policy, of a Namespace."""
    reported: list[Problem] = []
    for subject, peers in unknown.items():
        meta = policies[subject].meta
        matched: set[IdentityPair | Endpoint] = set()
        for rule in rules[subject]:
            matched.update(pair for selector in rule.selectors for pair in identities.get(selector, ()))
            matched.update(endpoint for service in rule.services for endpoint in endpoints.get(service, ()))
        counts = Counter(cluster for peer in matched if peer in peers for cluster in peers[peer])
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
            f"more label identities and endpoints match the rules of {whose} than {limits[bool(meta.namespace)]} "
            f"flows on this Node ({key}) have room for: unknown are {', '.join(named)}. Rules do not allow "
            "unknown ones, and a rule that drops or rejects applies to all Pods of these clusters"
        )
        reported.append(meta.problem("spec", "IdentitiesUnknown", text, Severity.WARNING))
    return tuple(reported)


def _exporters(pair: IdentityPair, exported_by: Exporters) -> Collection[str]:
    cluster, number = pair
    return exported_by.get(number, frozenset()) if cluster == UNCLAIMED else frozenset({cluster})
