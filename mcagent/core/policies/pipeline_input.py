"""The input of the policy pipeline: rules by level, with the numbers of rules, clusters and label identities.

Decides the order of rules and resolves the peers of a rule to numbers. Builds no flows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from flows import pipeline
from flows.pipeline.registers import IDENTITY_UNKNOWN
from flows.pipeline.steps.identity import ANY_CLUSTER
from mcagent.core.ids import assign_ids
from mcagent.core.policies.identities import UNCLAIMED
from mcagent.core.policies.rules import LocalRule
from mcagent.model.net import Address, Network
from mcagent.model.objects import EndpointSlice, IpProtocol
from mcagent.model.parsing.policies import BASELINE
from mcagent.model.policies import PROTOCOLS, Direction, Selector, Verdict

IdentityPair = tuple[str, int]  # cluster ID or UNCLAIMED, number
Identities = Mapping[Selector, frozenset[IdentityPair]]
Endpoint = tuple[Address, int, int]  # address, IP protocol, port
Backends = Mapping[tuple[str, str], tuple[Endpoint, ...]]
# Identities and endpoints that rules do not match (`peer_shares`), with the clusters that may use them.
UnknownPeers = Mapping[IdentityPair | Endpoint, Collection[str]]
Level = tuple[pipeline.PolicyDirection, pipeline.PolicyStage, int]

_STRICT = (Verdict.DROP, Verdict.REJECT)


def backends(slices: Mapping[str, EndpointSlice], services: frozenset[tuple[str, str]]) -> Backends:
    """Return the endpoints of `services`, by (Namespace, name); sorted."""
    endpoints_by_service: dict[tuple[str, str], set[Endpoint]] = {}
    for endpoint_slice in slices.values():
        service = (endpoint_slice.meta.namespace, endpoint_slice.service_name)
        if service in services:
            endpoints_by_service.setdefault(service, set()).update(_endpoints(endpoint_slice))
    return {service: tuple(sorted(endpoints, key=str)) for service, endpoints in endpoints_by_service.items()}


def endpoint_exporters(
    slices: Mapping[str, EndpointSlice], services: frozenset[tuple[str, str]]
) -> dict[Endpoint, frozenset[str]]:
    """Return the clusters that export each endpoint of `services`: UNCLAIMED for one without an exporter."""
    clusters: dict[Endpoint, frozenset[str]] = {}
    for endpoint_slice in slices.values():
        if (endpoint_slice.meta.namespace, endpoint_slice.service_name) in services:
            exporter = frozenset({endpoint_slice.source_cluster or UNCLAIMED})
            for endpoint in _endpoints(endpoint_slice):
                clusters[endpoint] = clusters.get(endpoint, frozenset()) | exporter
    return clusters


def _endpoints(endpoint_slice: EndpointSlice) -> Iterator[Endpoint]:
    return (
        (address, PROTOCOLS[port.protocol or IpProtocol.TCP], port.port)
        for endpoint in endpoint_slice.endpoints
        for address in endpoint.addresses
        for port in endpoint_slice.ports
        if port.port is not None
    )


def own_endpoints(
    slices: Mapping[str, EndpointSlice], services: frozenset[tuple[str, str]], cluster_id: str
) -> Backends:
    """Return the endpoints in this cluster of those imported `services` that have some. They pass no gateway."""
    own = {key: item for key, item in slices.items() if cluster_id and item.source_cluster == cluster_id}
    return {service: endpoints for service, endpoints in backends(own, services).items() if endpoints}


def services_of(rules: Mapping[str, tuple[LocalRule, ...]]) -> frozenset[tuple[str, str]]:
    """Return (Namespace, name) of all Services that rules name as peers."""
    return frozenset(
        service for policy_rules in rules.values() for rule in policy_rules for service in rule.services
    )


def rule_ids(rules: Mapping[str, tuple[LocalRule, ...]]) -> dict[str, int]:
    """Return the number of each rule by its key. It depends on the keys only, so a restart does not change it."""
    return assign_ids(rule.key for policy_rules in rules.values() for rule in policy_rules)


def by_level(rules: Mapping[str, tuple[LocalRule, ...]]) -> dict[Level, tuple[LocalRule, ...]]:
    """Group rules by direction, stage and level. Rules of equal order share a level; lower levels come first."""
    stages: dict[
        tuple[pipeline.PolicyDirection, pipeline.PolicyStage], dict[tuple[float, ...], list[LocalRule]]
    ] = {}
    for rule in (rule for policy in sorted(rules) for rule in rules[policy]):
        stage = (pipeline.PolicyDirection(rule.direction), stage_of(rule))
        stages.setdefault(stage, {}).setdefault(rule.order, []).append(rule)
    return {
        (*stage, level): tuple(level_rules)
        for stage, orders in stages.items()
        for level, (_, level_rules) in enumerate(sorted(orders.items()))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelInput:
    """The input of one level, without the values that all levels share."""

    level: Level
    rules: tuple[LocalRule, ...]
    ids: tuple[int, ...]  # of the rules
    identities: Identities  # of the rules' selectors
    unknown: Mapping[str, UnknownPeers]  # of the rules' policies


def level_input(
    rules: tuple[LocalRule, ...],
    level: Level,
    ids: Mapping[str, int],
    identities: Identities,
    unknown: Mapping[str, UnknownPeers],
) -> LevelInput:
    """Return the input of `to_pipeline_rules` for one level; it does not depend on the rules of other levels."""
    selectors = {selector for rule in rules for selector in rule.selectors}
    return LevelInput(
        level=level,
        rules=rules,
        ids=tuple(ids[rule.key] for rule in rules),
        identities={selector: identities[selector] for selector in selectors if selector in identities},
        unknown={rule.policy: unknown[rule.policy] for rule in rules if rule.policy in unknown},
    )


def to_pipeline_rules(
    value: LevelInput,
    services: Backends,
    clusters: Mapping[str, int],
    cidrs: Mapping[str, tuple[Network, ...]],
) -> tuple[pipeline.PolicyRule, ...]:
    """Convert the rules of a level. `clusters`: numbers by cluster ID; `cidrs`: of exporters of unknown peers."""
    direction, stage, number = value.level
    return tuple(
        pipeline.PolicyRule(
            id=rule_id,
            direction=direction,
            stage=stage,
            level=number,
            verdict=pipeline.PolicyVerdict(rule.verdict.lower()),
            pods=rule.pods,
            peers=_peers(rule, value, services, clusters, cidrs),
            ports=tuple(
                pipeline.PolicyPort(
                    protocol=port.protocol,
                    low=port.low,
                    high=port.high,
                    icmp_type=port.icmp_type,
                    icmp_code=port.icmp_code,
                )
                for port in rule.ports
            ),
        )
        for rule, rule_id in zip(value.rules, value.ids, strict=True)
    )


def unknown_dropped(rules: Mapping[str, tuple[LocalRule, ...]]) -> tuple[Address, ...]:
    """Return the Pods whose rules match label identities; packets of unknown identity to them are dropped."""
    return merge_addresses(
        rule.pods
        for policy_rules in rules.values()
        for rule in policy_rules
        if rule.selectors and rule.direction is Direction.INGRESS
    )


def merge_addresses(groups: Iterable[tuple[Address, ...]]) -> tuple[Address, ...]:
    """Return the union of the addresses, sorted."""
    return tuple(sorted({address for group in groups for address in group}, key=str))


def stage_of(rule: LocalRule) -> pipeline.PolicyStage:
    """Return the stage in which a rule is evaluated."""
    if not rule.tier:
        return pipeline.PolicyStage.NETWORK_POLICY
    return pipeline.PolicyStage.BASELINE if rule.tier == BASELINE else pipeline.PolicyStage.TIERS


def clusters_of_unknown(unknown: Mapping[str, UnknownPeers]) -> frozenset[str]:
    """Return the clusters that export peers which policies do not match."""
    return frozenset(cluster for peers in unknown.values() for names in peers.values() for cluster in names)


def _peers(
    rule: LocalRule,
    value: LevelInput,
    services: Backends,
    clusters: Mapping[str, int],
    cidrs: Mapping[str, tuple[Network, ...]],
) -> pipeline.PolicyPeers:
    """Return the peers of a rule. One that drops or rejects has all of the clusters of unknown peers."""
    pairs = {pair for selector in rule.selectors for pair in value.identities.get(selector, ())}
    endpoints = {endpoint for service in rule.services for endpoint in services.get(service, ())}
    unknown = value.unknown.get(rule.policy, {})
    strict_about = {cluster for peer in (pairs | endpoints) & unknown.keys() for cluster in unknown[peer]}
    if rule.verdict not in _STRICT:
        strict_about = set()
    of_egress = sorted(strict_about) if rule.direction is Direction.EGRESS else ()
    return pipeline.PolicyPeers(
        any_peer=rule.any_peer or UNCLAIMED in strict_about,
        identities=_identities(rule, pairs - unknown.keys(), clusters),
        clusters=tuple(sorted(clusters[c] for c in strict_about if c in clusters)) if not of_egress else (),
        networks=(*rule.networks, *(cidr for cluster in of_egress for cidr in cidrs.get(cluster, ()))),
        services=tuple(sorted(endpoints - unknown.keys(), key=str)),
    )


def _identities(
    rule: LocalRule, pairs: Collection[IdentityPair], clusters: Mapping[str, int]
) -> tuple[tuple[int, int], ...]:
    """Return (cluster, identity) of the rule's peers; for rules that drop or reject, add the unknown identity."""
    of_any_cluster = {number for cluster, number in pairs if cluster == UNCLAIMED}
    numbers = {(ANY_CLUSTER, number) for number in of_any_cluster}
    numbers |= {(clusters[c], number) for c, number in pairs if c in clusters and number not in of_any_cluster}
    if rule.selectors and rule.verdict in _STRICT:
        numbers.add((ANY_CLUSTER, IDENTITY_UNKNOWN))
    return tuple(sorted(numbers))
