"""Rules as the pipeline knows them: with numbers of rules, clusters and label identities, by level.

Decides the order of rules, and who a selector's peers are at the moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows import pipeline
from flows.pipeline.identity import ANY_CLUSTER
from flows.pipeline.registers import IDENTITY_UNKNOWN
from mcagent.core.ids import assign_ids
from mcagent.core.policies.identities import EVERYBODY
from mcagent.core.policies.rules import LocalRule
from mcagent.model.net import Address
from mcagent.model.objects import EndpointSlice, IpProtocol
from mcagent.model.parsing.policies import BASELINE
from mcagent.model.policies import PROTOCOLS, Direction, Selector, Verdict

Identities = Mapping[Selector, frozenset[tuple[str, int]]]
Backends = Mapping[tuple[str, str], tuple[tuple[Address, int, int], ...]]
Level = tuple[pipeline.Direction, pipeline.Stage, int]

_STRICT = (Verdict.DROP, Verdict.REJECT)


def backends(slices: Mapping[str, EndpointSlice], wanted: frozenset[tuple[str, str]]) -> Backends:
    """Return address, IP protocol and port of the endpoints of Services, by Namespace and name."""
    found: dict[tuple[str, str], set[tuple[Address, int, int]]] = {}
    for one in slices.values():
        service = (one.meta.namespace, one.service_name)
        if service in wanted:
            found.setdefault(service, set()).update(
                (address, PROTOCOLS[port.protocol or IpProtocol.TCP], port.port)
                for endpoint in one.endpoints
                for address in endpoint.addresses
                for port in one.ports
                if port.port is not None
            )
    return {service: tuple(sorted(those, key=str)) for service, those in found.items()}


def services_of(rules: Mapping[str, tuple[LocalRule, ...]]) -> frozenset[tuple[str, str]]:
    """Return the Services that rules are about."""
    return frozenset(service for several in rules.values() for rule in several for service in rule.services)


def rule_ids(rules: Mapping[str, tuple[LocalRule, ...]]) -> dict[str, int]:
    """Return the number of each rule, the same after a restart."""
    return assign_ids(rule.key for several in rules.values() for rule in several)


def by_level(rules: Mapping[str, tuple[LocalRule, ...]]) -> dict[Level, tuple[LocalRule, ...]]:
    """Return the rules by direction, stage and level: the lower first, and all of one order together."""
    stages: dict[tuple[pipeline.Direction, pipeline.Stage], dict[tuple[float, ...], list[LocalRule]]] = {}
    for rule in (rule for policy in sorted(rules) for rule in rules[policy]):
        place = (pipeline.Direction(rule.direction), _stage(rule))
        stages.setdefault(place, {}).setdefault(rule.order, []).append(rule)
    return {
        (*place, level): tuple(those)
        for place, orders in stages.items()
        for level, (_, those) in enumerate(sorted(orders.items()))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelInput:
    """The input of the rules of one level, without what all levels share."""

    level: Level
    rules: tuple[LocalRule, ...]
    ids: tuple[int, ...]  # of the rules
    identities: Identities  # of the rules' selectors


def level_input(
    rules: tuple[LocalRule, ...], level: Level, ids: Mapping[str, int], identities: Identities
) -> LevelInput:
    """Return the input of `to_pipeline_rules` for one level, which no change of another level changes."""
    selectors = {selector for rule in rules for selector in rule.selectors}
    return LevelInput(
        level=level,
        rules=rules,
        ids=tuple(ids[rule.key] for rule in rules),
        identities={selector: identities[selector] for selector in selectors if selector in identities},
    )


def to_pipeline_rules(
    value: LevelInput, services: Backends, clusters: Mapping[str, int]
) -> tuple[pipeline.PolicyRule, ...]:
    """Return the rules of a level for the pipeline."""
    direction, stage, number = value.level
    return tuple(
        pipeline.PolicyRule(
            id=rule_id,
            direction=direction,
            stage=stage,
            level=number,
            verdict=pipeline.Verdict(rule.verdict.lower()),
            pods=rule.pods,
            peers=pipeline.PolicyPeers(
                anyone=rule.anyone,
                identities=_identities(rule, value.identities, clusters),
                networks=rule.networks,
                services=tuple(one for service in rule.services for one in services.get(service, ())),
            ),
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
    found = (
        address
        for several in rules.values()
        for rule in several
        if rule.selectors and rule.direction is Direction.INGRESS
        for address in rule.pods
    )
    return tuple(sorted(set(found), key=str))


def merge_addresses(groups: Iterable[tuple[Address, ...]]) -> tuple[Address, ...]:
    """Return all addresses, sorted."""
    return tuple(sorted({address for group in groups for address in group}, key=str))


def _stage(rule: LocalRule) -> pipeline.Stage:
    if not rule.tier:
        return pipeline.Stage.NETWORK_POLICY
    return pipeline.Stage.BASELINE if rule.tier == BASELINE else pipeline.Stage.TIERS


def _identities(rule: LocalRule, known: Identities, clusters: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """Return (cluster, identity) pairs of the rule's peers; for rules that drop, include the unknown identity."""
    pairs = {pair for selector in rule.selectors for pair in known.get(selector, ())}
    of_any_cluster = {number for cluster, number in pairs if cluster == EVERYBODY}
    numbers = {(ANY_CLUSTER, number) for number in of_any_cluster}
    numbers |= {(clusters[c], number) for c, number in pairs if c in clusters and number not in of_any_cluster}
    if rule.selectors and rule.verdict in _STRICT:
        numbers.add((ANY_CLUSTER, IDENTITY_UNKNOWN))
    return tuple(sorted(numbers))
