"""The rules of one policy for the Pods of this Node: their order, Pods and peers.

Also decides what replaces a rule that cannot be enforced. Must not know flows or numbers of identities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice

from mcagent.core.policies.label_matching import OwnPod
from mcagent.model.config import PolicyFailureMode
from mcagent.model.net import Address, Network
from mcagent.model.parsing import labels
from mcagent.model.parsing.policies import BASELINE
from mcagent.model.policies import (
    Direction,
    NetworkPolicyRule,
    Operator,
    Peer,
    Policy,
    Requirement,
    RulePort,
    Selector,
    Tier,
    Verdict,
)
from mcagent.model.problem import Problem, Severity

# The static tiers of Antrea (its antrea-network-policy.md, "Static tiers"). Tier objects override them.
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
    """A rule for some Pods of this Node. `order`: lower first; all NetworkPolicies have the same.

    `policy`: the subject of the policy object; `name` and `index`: the rule in it. `key` is unique on the Node.
    """

    key: str
    policy: str
    name: str
    tier: str  # "" for a NetworkPolicy
    order: Order
    direction: Direction
    verdict: Verdict
    pods: tuple[Address, ...]
    index: int = 0
    any_peer: bool = False
    selectors: tuple[Selector, ...] = ()
    networks: tuple[Network, ...] = ()
    services: tuple[tuple[str, str], ...] = ()
    ports: tuple[RulePort, ...] = ()
    log_label: str | None = None


def tier_priorities(tiers: Mapping[str, Tier]) -> dict[str, int]:
    """Return the priority of each tier by its name in lower case; lower priorities are evaluated first."""
    return TIERS | {tier.meta.name.lower(): tier.priority for tier in tiers.values()}


def effect_of_fault(policy: Policy, mode: PolicyFailureMode) -> str:
    """Return what applies in place of rules of a policy that cannot be enforced."""
    closed = mode is PolicyFailureMode.CLOSED
    if policy.tier:
        effect = "all packets between clusters are dropped in its place" if closed else "it is left out"
    else:
        effect = "it allows nothing" if closed else "it allows everything"
    return f"{effect} (policyFailureMode: {mode})"


def tier_problems(policy: Policy, tiers: Mapping[str, int], mode: PolicyFailureMode) -> tuple[Problem, ...]:
    """Report a policy whose tier does not exist."""
    if not policy.tier or policy.tier in tiers:
        return ()
    message = f'there is no Tier "{policy.tier}": {effect_of_fault(policy, mode)}'
    return (policy.meta.problem("spec.tier", "NotEnforceable", message),)


def partly_enforced(
    policy_and_rules: tuple[Policy, tuple[LocalRule, ...]],
    own_endpoints: Mapping[tuple[str, str], Collection[object]],
    cni: str,
) -> tuple[Problem, ...]:
    """Report rules about Services with endpoints in this cluster, if the CNI `cni` forwards to them ("": none)."""
    if not cni:
        return ()
    policy, own_rules = policy_and_rules
    texts: dict[str, str] = {}
    for rule in own_rules:
        for namespace, name in rule.services:
            if endpoints := own_endpoints.get((namespace, name)):
                texts[f"spec.{rule.name.partition(' ')[0]}.toServices"] = (
                    f"{len(endpoints)} endpoints of Service {namespace}/{name} are in this cluster: {cni} "
                    "forwards connections to them past the Node's netfilter, and the rule does not apply to them"
                )
    return tuple(
        policy.meta.problem(path, "PartlyEnforced", text, Severity.WARNING) for path, text in texts.items()
    )


def local_rules(
    policy: Policy, selected: Selected, tiers: Mapping[str, int], mode: PolicyFailureMode, limit: int
) -> tuple[LocalRule, ...]:
    """Return a policy's rules for Pods of this Node, one for each group of Pods with equal peers and ports.

    They are without the networks of peers, which are expanded for policies within their limits only (`limits`). A
    policy with more rules than `limit` is above it: its further rules are left out.
    """
    local: list[LocalRule] = []
    positions = {direction: count() for direction in Direction}
    for index, rule in enumerate(policy.rules):
        position = next(positions[rule.direction])
        pods = [pod_and_labels for selector in rule.applied_to for pod_and_labels in selected.get(selector, ())]
        if not pods:
            continue
        not_enforceable = bool(rule.fault) or bool(policy.tier and policy.tier not in tiers)
        if not_enforceable:
            substitute = _substitute(rule, policy, mode)
            if substitute is None:
                continue
            rule = substitute  # noqa: PLW2901
        order = (tiers.get(policy.tier, 0), policy.priority, position, list(Verdict).index(rule.verdict))
        template = LocalRule(
            key=f"{policy.meta.subject} {rule.direction} {position}",
            policy=policy.meta.subject,
            name=rule.name,
            tier=policy.tier,
            order=order if policy.tier else (0, 0, 0, 0),
            direction=rule.direction,
            verdict=rule.verdict,
            pods=(),
            index=index,
            any_peer=rule.any_peer,
            services=rule.services,
            ports=rule.ports,
            log_label=rule.log_label,
        )
        local += islice(_for_pods(template, rule, dict.fromkeys(pods)), limit + 1 - len(local))
    return tuple(local)


def isolated(policy: Policy, selected: Selected, direction: Direction) -> tuple[Address, ...]:
    """Return the addresses of the Pods that a NetworkPolicy isolates in a direction."""
    if direction not in policy.isolates:
        return ()
    pods = (pod for selector in policy.applied_to for _, pod in selected.get(selector, ()))
    return tuple(dict.fromkeys(address for pod in pods for address in pod.addresses))


def _substitute(rule: NetworkPolicyRule, policy: Policy, mode: PolicyFailureMode) -> NetworkPolicyRule | None:
    """Return the rule that replaces one that cannot be enforced; None to leave it out.

    A rule of a NetworkPolicy allows traffic. To leave it out fails closed, since its Pods are isolated.
    """
    if (mode is PolicyFailureMode.CLOSED) is not bool(policy.tier):
        return None
    verdict = Verdict.DROP if policy.tier else Verdict.ALLOW
    return replace(rule, verdict=verdict, any_peer=True, peers=(), services=(), ports=())


def _for_pods(
    template: LocalRule, rule: NetworkPolicyRule, pods: Mapping[tuple[str, OwnPod], None]
) -> Iterator[LocalRule]:
    """Yield the rule once for each group of Pods with the same peers and the same numbers of named ports."""
    groups: dict[tuple[tuple[Selector, ...], tuple[RulePort, ...] | None], list[OwnPod]] = {}
    for label_text, pod in pods:
        selectors = tuple(
            peer_selector for peer in rule.peers if (peer_selector := _selector(peer, label_text)) is not None
        )
        groups.setdefault((selectors, _numbered(rule.ports, pod)), []).append(pod)
    varies = any(peer.same_namespace or peer.same_labels for peer in rule.peers) or any(p.name for p in rule.ports)
    for (selectors, ports), group_pods in groups.items():
        if ports is not None:
            addresses = sorted({address for pod in group_pods for address in pod.addresses}, key=str)
            key = f"{template.key} {selectors} {ports}" if varies else template.key
            yield replace(template, key=key, pods=tuple(addresses), selectors=selectors, ports=ports)


def _selector(peer: Peer, label_text: str) -> Selector | None:
    """Return the label selector of a peer, as it applies to a Pod with these labels; None if it selects no Pod."""
    if peer.pods is None:
        return None
    own_labels = labels.split(label_text).namespace
    equal_keys = (*((labels.NAMESPACE_NAME,) if peer.same_namespace else ()), *peer.same_labels)
    if not all(key in own_labels for key in equal_keys):
        return None
    additional = (Requirement(key, Operator.IN, (own_labels[key],)) for key in equal_keys)
    return replace(peer.pods, namespace=(*peer.pods.namespace, *additional))


def _numbered(ports: tuple[RulePort, ...], pod: OwnPod) -> tuple[RulePort, ...] | None:
    """Replace named ports by the numbers that a Pod gives them; None if the Pod has none of the ports."""
    numbered: list[RulePort] = []
    for port in ports:
        if not port.name:
            numbered.append(port)
        for name, protocol, number in pod.ports:
            if (name, protocol) == (port.name, port.protocol):
                numbered.append(RulePort(protocol=protocol, low=number, high=number))
    return tuple(numbered) if numbered or not ports else None
