"""From a policy to rules for this Node's Pods: where they stand in order, for which Pods, about whom.

Decides what becomes of what cannot be enforced. Knows no flows and no numbers of identities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from mcagent.core.policies.select import OwnPod
from mcagent.model import labels
from mcagent.model.config import PolicyFailureMode
from mcagent.model.net import Address, Network
from mcagent.model.parsing.policies import BASELINE
from mcagent.model.policies import (
    Direction,
    Operator,
    Peer,
    Policy,
    Port,
    Requirement,
    Rule,
    Selector,
    Tier,
    Verdict,
)
from mcagent.model.problem import Problem

# Those that Antrea makes (its documentation, antrea-network-policy.md, "Static tiers"); the API's say otherwise.
TIERS = {
    "emergency": 50,
    "securityops": 100,
    "networkops": 150,
    "platform": 200,
    "application": 250,
    BASELINE: 253,
}

Selected = Mapping[Selector, tuple[tuple[str, OwnPod], ...]]
Order = tuple[float, float, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRule:
    """A rule for some Pods of this Node. `order`: the lower first; NetworkPolicies have none among themselves.

    `policy`: the object, for people; `name`: the rule in it. `key` is nobody else's.
    """

    key: str
    policy: str
    name: str
    tier: str  # "" of a NetworkPolicy
    order: Order
    direction: Direction
    verdict: Verdict
    pods: tuple[Address, ...]
    anyone: bool = False
    selectors: tuple[Selector, ...] = ()
    networks: tuple[Network, ...] = ()
    services: tuple[tuple[str, str], ...] = ()
    ports: tuple[Port, ...] = ()
    log_label: str | None = None


def tier_priorities(tiers: Mapping[str, Tier]) -> dict[str, int]:
    """Return the priority of each tier by its name."""
    return TIERS | {tier.meta.name.lower(): tier.priority for tier in tiers.values()}


def tier_problems(policy: Policy, tiers: Mapping[str, int]) -> tuple[Problem, ...]:
    """Report of a tier that there is not."""
    if not policy.tier or policy.tier in tiers:
        return ()
    message = f'there is no Tier "{policy.tier}": the policy is not enforced'
    return (policy.meta.problem("spec.tier", "NotEnforceable", message),)


def local_rules(
    policy: Policy, selected: Selected, tiers: Mapping[str, int], mode: PolicyFailureMode
) -> tuple[LocalRule, ...]:
    """Return a policy's rules for Pods of this Node."""
    found: list[LocalRule] = []
    places = {direction: count() for direction in Direction}
    for rule in policy.rules:
        index = next(places[rule.direction])
        pods = [one for selector in rule.applied_to for one in selected.get(selector, ())]
        if not pods:
            continue
        fault = bool(rule.fault) or bool(policy.tier and policy.tier not in tiers)
        if fault:
            stand_in = _instead(rule, policy, mode)
            if stand_in is None:
                continue
            rule = stand_in  # noqa: PLW2901
        order = (tiers.get(policy.tier, 0), policy.priority, index, list(Verdict).index(rule.verdict))
        whole = LocalRule(
            key=f"{policy.meta.subject} {rule.direction} {index}",
            policy=policy.meta.subject,
            name=rule.name,
            tier=policy.tier,
            order=order if policy.tier else (0, 0, 0, 0),
            direction=rule.direction,
            verdict=rule.verdict,
            pods=(),
            anyone=rule.anyone,
            networks=tuple(net for peer in rule.peers for net in _networks(peer)),
            services=rule.services,
            ports=rule.ports,
            log_label=rule.log_label,
        )
        found += _for_pods(whole, rule, dict.fromkeys(pods))
    return tuple(found)


def isolated(policy: Policy, selected: Selected, direction: Direction) -> tuple[Address, ...]:
    """Return the Pods that a NetworkPolicy isolates."""
    if direction not in policy.isolates:
        return ()
    pods = (pod for selector in policy.applied_to for _, pod in selected.get(selector, ()))
    return tuple(dict.fromkeys(address for pod in pods for address in pod.addresses))


def _instead(rule: Rule, policy: Policy, mode: PolicyFailureMode) -> Rule | None:
    """Return what is enforced in place of a rule that cannot be; None: nothing.

    A NetworkPolicy's rule allows: to leave it out is closed, since its Pods are isolated.
    """
    if (mode is PolicyFailureMode.CLOSED) is not bool(policy.tier):
        return None
    verdict = Verdict.DROP if policy.tier else Verdict.ALLOW
    return replace(rule, verdict=verdict, anyone=True, peers=(), services=(), ports=())


def _for_pods(whole: LocalRule, rule: Rule, pods: Mapping[tuple[str, OwnPod], None]) -> Iterator[LocalRule]:
    """Yield the rule for Pods that it says the same for: the same peers, and the same numbers of named ports."""
    groups: dict[tuple[tuple[Selector, ...], tuple[Port, ...] | None], list[OwnPod]] = {}
    for text, pod in pods:
        selectors = tuple(found for peer in rule.peers if (found := _selector(peer, text)) is not None)
        groups.setdefault((selectors, _numbered(rule.ports, pod)), []).append(pod)
    varies = any(peer.same_namespace or peer.same_labels for peer in rule.peers) or any(p.name for p in rule.ports)
    for (selectors, ports), those in groups.items():
        if ports is not None:
            addresses = sorted({address for pod in those for address in pod.addresses}, key=str)
            key = f"{whole.key} {selectors} {ports}" if varies else whole.key
            yield replace(whole, key=key, pods=tuple(addresses), selectors=selectors, ports=ports)


def _selector(peer: Peer, text: str) -> Selector | None:
    """Return whom a peer selects by label, for a Pod with these labels; None: nobody."""
    if peer.pods is None:
        return None
    own = labels.split(text).namespace
    same = (*((labels.NAMESPACE_NAME,) if peer.same_namespace else ()), *peer.same_labels)
    if not all(key in own for key in same):
        return None
    more = (Requirement(key, Operator.IN, (own[key],)) for key in same)
    return replace(peer.pods, namespace=(*peer.pods.namespace, *more))


def _numbered(ports: tuple[Port, ...], pod: OwnPod) -> tuple[Port, ...] | None:
    """Return ports by number, as a Pod calls them; None if it has none of these."""
    found: list[Port] = []
    for port in ports:
        if not port.name:
            found.append(port)
        for name, protocol, number in pod.ports:
            if (name, protocol) == (port.name, port.protocol):
                found.append(Port(protocol=protocol, low=number, high=number))
    return tuple(found) if found or not ports else None


def _networks(peer: Peer) -> tuple[Network, ...]:
    """Return the addresses of a peer, without its exceptions."""
    rest = [] if peer.network is None else [peer.network]
    for exception in peer.without:
        rest = [part for network in rest for part in _less(network, exception)]
    return tuple(sorted(rest, key=str))


def _less(network: Network, exception: Network) -> Iterator[Network]:
    if network.version != exception.version or not network.overlaps(exception):
        yield network
    elif not network.subnet_of(exception):  # type: ignore[arg-type]
        yield from network.address_exclude(exception)  # type: ignore[arg-type]
