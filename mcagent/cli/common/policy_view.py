"""What policies make of a request between clusters, from the objects alone: which rules there are, which decides.

Asks no agent and sends no packet. Knows nothing of flows: rules are those of `mcagent.core.policies`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mcagent.core.engine import IncrementalEngine
from mcagent.core.policies import pipeline_input
from mcagent.core.policies.identities import UNCLAIMED
from mcagent.core.policies.rules import LocalRule
from mcagent.core.policies.selection import Isolating, isolating_policies, select_rules
from mcagent.model.config import Config
from mcagent.model.net import Address
from mcagent.model.objects import Snapshot
from mcagent.model.parsing import labels
from mcagent.model.parsing.policies import BASELINE
from mcagent.model.policies import PROTOCOLS, Direction, Operator, Requirement, RulePort, Selector, Verdict
from mcagent.model.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The policies of a Node. `rules`: the first that fits decides. `isolating`: policies by a Pod's address."""

    rules: tuple[LocalRule, ...]
    isolating: Isolating
    unknown_dropped: frozenset[Address]
    identities: pipeline_input.Identities
    unknown: Mapping[str, pipeline_input.UnknownPeers]
    services: pipeline_input.Backends
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The first packet of a connection, as the Node of our Pod sees it. `peer`: None where no address is known.

    `identity`: of the sender, labels.UNKNOWN without one. `port`: None is none that a rule names.
    """

    direction: Direction
    pod: Address
    peer: Address | None = None
    cluster: str = ""
    identity: int = labels.UNKNOWN
    protocol: int = 6
    port: int | None = None
    icmp: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of a request. `policy` and `rule` are "" where no rule decides; `why` says what does."""

    verdict: Verdict
    policy: str = ""
    rule: str = ""
    tier: str = ""
    why: str


def in_force(snapshot: Snapshot, config: Config) -> InForce:
    """Return what a Node enforces."""
    engine = IncrementalEngine()
    with engine.one_pass():
        selection = select_rules(engine, snapshot, config)
    rules = (rule for policy_rules in selection.rules.values() for rule in policy_rules)
    return InForce(
        rules=tuple(sorted(rules, key=lambda rule: (_stage(rule), rule.order, rule.key))),
        isolating=isolating_policies(selection.isolated),
        unknown_dropped=frozenset(pipeline_input.unknown_dropped(selection.rules)),
        identities=selection.identities,
        unknown=selection.unknown,
        services=selection.services,
        problems=selection.problems,
    )


def decide(known: InForce, request: Request) -> Decision:
    """Return what becomes of a request, and by which rule."""
    passed = False
    for rule in (*known.rules, None):
        stage = 2 if rule is None else _stage(rule)
        isolating = known.isolating.get((request.direction, request.pod), ())
        if stage == 2 and isolating:  # no NetworkPolicy has allowed it
            return Decision(
                verdict=Verdict.DROP, why=f"isolated by {', '.join(isolating)}, which allow no such connection"
            )
        if rule is None or (passed and stage == 0) or not _fits(known, rule, request):
            continue
        if rule.verdict is Verdict.PASS:
            passed = True
            continue
        origin = {"policy": rule.policy, "rule": rule.name, "tier": rule.tier}
        return Decision(verdict=rule.verdict, why=f"{rule.policy} {rule.name} says {rule.verdict}", **origin)
    to_us = request.direction is Direction.INGRESS
    if to_us and request.pod in known.unknown_dropped and request.identity == labels.UNKNOWN:
        why = "rules select the Pod's senders by label, and this sender's label identity is not known"
        return Decision(verdict=Verdict.DROP, why=why)
    return Decision(verdict=Verdict.ALLOW, why="no rule matches, and no NetworkPolicy isolates the Pod")


def decide_within(known: InForce, request: Request) -> Decision | None:
    """Return what becomes of a Pod's request to an endpoint in its cluster; None: no rule names the Service."""
    end = (request.peer, request.protocol, request.port)
    for rule in known.rules:
        names_it = any(end in known.services.get(service, ()) for service in rule.services)
        if rule.direction is Direction.EGRESS and request.pod in rule.pods and names_it:
            allows = rule.verdict in (Verdict.ALLOW, Verdict.PASS)
            return Decision(
                verdict=Verdict.ALLOW if allows else Verdict.DROP,
                why=f"{rule.policy} {rule.name} says {rule.verdict}; for this endpoint of the same cluster the "
                "Node's netfilter enforces it, unless the CNI forwards past it (PartlyEnforced in mcagent status)",
                policy=rule.policy,
                rule=rule.name,
                tier=rule.tier,
            )
    return None


def _stage(rule: LocalRule) -> int:
    if not rule.tier:
        return 1
    return 2 if rule.tier == BASELINE else 0


def _fits(known: InForce, rule: LocalRule, request: Request) -> bool:
    if rule.direction is not request.direction or request.pod not in rule.pods:
        return False
    if rule.ports and not any(_is_port(port, request) for port in rule.ports):
        return False
    return rule.any_peer or any(_peers(known, rule, request))


def _peers(known: InForce, rule: LocalRule, request: Request) -> Iterator[bool]:
    """Yield whether the other side is of each of those that a rule is about."""
    for network in rule.networks:
        yield request.peer is not None and request.peer in network
    unknown = known.unknown.get(rule.policy, {})
    strict = rule.verdict in (Verdict.DROP, Verdict.REJECT)
    for service in rule.services:
        endpoints = frozenset(known.services.get(service, ()))
        yield (request.peer, request.protocol, request.port) in endpoints - unknown.keys()
        if strict:
            yield any({UNCLAIMED, request.cluster}.intersection(unknown[e]) for e in endpoints & unknown.keys())
    for selector in rule.selectors:
        identities = known.identities.get(selector, frozenset())
        senders = {(cluster, request.identity) for cluster in (UNCLAIMED, request.cluster)}
        yield bool(senders & (identities - unknown.keys()))
        if strict:
            yield request.identity == labels.UNKNOWN
            yield any(
                {UNCLAIMED, request.cluster}.intersection(unknown[pair]) for pair in identities & unknown.keys()
            )


def _is_port(port: RulePort, request: Request) -> bool:
    if port.protocol != request.protocol:
        return False
    if request.icmp is not None:
        return port.icmp_type in (None, request.icmp[0]) and port.icmp_code in (None, request.icmp[1])
    if request.port is None:
        return (port.low, port.high) == (0, 65535)
    return port.low <= request.port <= port.high


# --- for people -------------------------------------------------------------------------------------------


def selector_text(selector: Selector) -> str:
    """Return the Pods that a selector selects, as kubectl's -l has it."""
    parts = [("Pods", selector.pod), ("Namespaces", selector.namespace)]
    return " of ".join(f"{kind} {','.join(map(_required, of)) or '(all)'}" for kind, of in parts)


def _required(one: Requirement) -> str:
    values = f"({','.join(sorted(one.values))})"
    match one.operator:
        case Operator.EXISTS:
            return one.key
        case Operator.DOES_NOT_EXIST:
            return f"!{one.key}"
        case Operator.IN if len(one.values) == 1:
            return f"{one.key}={values[1:-1]}"
    return f"{one.key} {'in' if one.operator is Operator.IN else 'notin'} {values}"


def port_text(port: RulePort) -> str:
    """Return ports as `80/TCP`, `80-90/TCP`, `UDP`, `ICMP type 8`."""
    if port.protocol not in PROTOCOLS.values():
        icmp = (("type", port.icmp_type), ("code", port.icmp_code))
        return " ".join(["ICMP", *(f"{field} {number}" for field, number in icmp if number is not None)])
    name = next(protocol for protocol, number in PROTOCOLS.items() if number == port.protocol)
    if (port.low, port.high) == (0, 65535):
        return name
    return f"{port.low}/{name}" if port.low == port.high else f"{port.low}-{port.high}/{name}"
