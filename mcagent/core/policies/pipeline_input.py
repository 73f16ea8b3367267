"""The input of the policy pipeline: rules by level, with the numbers of rules, clusters and label identities.

Decides the order of rules and resolves the peers of a rule to numbers. Builds no flows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from flows import pipeline
from flows.pipeline.registers import IDENTITY_UNKNOWN
from flows.pipeline.steps.identity import ANY_CLUSTER
from mcagent.core.ids import assign_ids
from mcagent.core.policies.identities import UNCLAIMED
from mcagent.core.policies.rules import LocalRule
from mcagent.model.net import Address
from mcagent.model.objects import EndpointSlice, IpProtocol
from mcagent.model.parsing.policies import BASELINE
from mcagent.model.policies import PROTOCOLS, Direction, Selector, Verdict

IdentityPair = tuple[str, int]  # cluster ID or UNCLAIMED, number
Identities = Mapping[Selector, frozenset[IdentityPair]]
# Identities that rules do not match (`identity_shares`), with the clusters that may use them.
UnknownIdentities = Mapping[IdentityPair, Collection[str]]
Backends = Mapping[tuple[str, str], tuple[tuple[Address, int, int], ...]]
Level = tuple[pipeline.PolicyDirection, pipeline.PolicyStage, int]

_STRICT = (Verdict.DROP, Verdict.REJECT)


def backends(slices: Mapping[str, EndpointSlice], services: frozenset[tuple[str, str]]) -> Backends:
    """Return (address, IP protocol, port) of the endpoints of `services`, by (Namespace, name); sorted."""
    endpoints_by_service: dict[tuple[str, str], set[tuple[Address, int, int]]] = {}
    for endpoint_slice in slices.values():
        service = (endpoint_slice.meta.namespace, endpoint_slice.service_name)
        if service in services:
            endpoints_by_service.setdefault(service, set()).update(
                (address, PROTOCOLS[port.protocol or IpProtocol.TCP], port.port)
                for endpoint in endpoint_slice.endpoints
                for address in endpoint.addresses
                for port in endpoint_slice.ports
                if port.port is not None
            )
    return {service: tuple(sorted(endpoints, key=str)) for service, endpoints in endpoints_by_service.items()}


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
        stage = (pipeline.PolicyDirection(rule.direction), _stage(rule))
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
    unknown: Mapping[str, UnknownIdentities]  # of the rules' policies


def level_input(
    rules: tuple[LocalRule, ...],
    level: Level,
    ids: Mapping[str, int],
    identities: Identities,
    unknown: Mapping[str, UnknownIdentities],
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
    value: LevelInput, services: Backends, clusters: Mapping[str, int]
) -> tuple[pipeline.PolicyRule, ...]:
    """Convert the rules of a level. `clusters`: numbers by cluster ID."""
    direction, stage, number = value.level
    return tuple(
        pipeline.PolicyRule(
            id=rule_id,
            direction=direction,
            stage=stage,
            level=number,
            verdict=pipeline.PolicyVerdict(rule.verdict.lower()),
            pods=rule.pods,
            peers=_peers(rule, value, services, clusters),
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


def _stage(rule: LocalRule) -> pipeline.PolicyStage:
    if not rule.tier:
        return pipeline.PolicyStage.NETWORK_POLICY
    return pipeline.PolicyStage.BASELINE if rule.tier == BASELINE else pipeline.PolicyStage.TIERS


def _peers(
    rule: LocalRule, value: LevelInput, services: Backends, clusters: Mapping[str, int]
) -> pipeline.PolicyPeers:
    """Return the peers of a rule. One that drops or rejects has all Pods of the clusters of unknown identities."""
    pairs = {pair for selector in rule.selectors for pair in value.identities.get(selector, ())}
    unknown = value.unknown.get(rule.policy, {})
    strict_about = {cluster for pair in pairs & unknown.keys() for cluster in unknown[pair]}
    if rule.verdict not in _STRICT:
        strict_about = set()
    return pipeline.PolicyPeers(
        any_peer=rule.any_peer or UNCLAIMED in strict_about,
        identities=_identities(rule, pairs - unknown.keys(), clusters),
        clusters=tuple(sorted(clusters[cluster] for cluster in strict_about if cluster in clusters)),
        networks=rule.networks,
        services=tuple(endpoint for service in rule.services for endpoint in services.get(service, ())),
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
