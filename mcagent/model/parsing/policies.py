"""NetworkPolicies and Antrea's policies, raw, to `mcagent.model.policies`.

What of a rule is not understood, or cannot be enforced between clusters, is its `fault` and a problem of the
object: it is never passed over. Which Pods a policy is for has to be understood, else the object counts as
unreadable. Peers of this cluster's Pods are left out: they are in no other cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from mcagent.model.api import policies as api
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind, Meta
from mcagent.model.parsing.field import Field, printable
from mcagent.model.parsing.labels import NAMESPACE_NAME
from mcagent.model.policies import (
    PROTOCOLS,
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
from mcagent.model.problem import Problem

SCOPE_ANNOTATION = "mcagent.io/scope"  # on a NetworkPolicy, "ClusterSet": its peers are Pods of all clusters
CLUSTER_SET = "ClusterSet"
IMPORTED = "antrea-mc-"  # how the name of an imported Service begins
DEFAULT_TIER, BASELINE = "application", "baseline"

MAX_EXCEPTIONS = 64  # of one ipBlock: each costs up to 128 flows

_ICMP = 1
_SIDES = {Direction.INGRESS: "from", Direction.EGRESS: "to"}
# Fields of Antrea's peers that choose among what this cluster alone has.
_LOCAL_PEERS = ("nodeSelector", "serviceAccount", "externalEntitySelector")


def _fault(field: Field, why: str) -> InputError:
    """Return the error of a rule that cannot be enforced."""
    return field.error(why, "NotEnforceable")


def parse_tier(meta: Meta, obj: api.ApiTier, problems: list[Problem]) -> Tier:  # noqa: ARG001
    """crd.antrea.io/v1beta1 Tier: its name and priority. Raises InputError."""
    return Tier(meta=meta, priority=Field(meta.subject, obj.spec.priority, "spec.priority").integer(0, 255))


def parse_network_policy(meta: Meta, obj: api.NetworkPolicy, problems: list[Problem]) -> Policy:
    """networking.k8s.io/v1 NetworkPolicy: every rule allows."""
    spec = Field(meta.subject, obj.spec, "spec")
    applied_to = (Selector(_in_namespace(meta), _requirements(spec.get("podSelector"))),)
    types = {item.text() for item in spec.get("policyTypes").each()}
    if not types:  # the API server fills it in; a hand-written manifest may not have it
        types = {"Ingress", *(["Egress"] if not spec.get("egress").absent else [])}
    scope = obj.annotation(SCOPE_ANNOTATION)
    rules: list[NetworkPolicyRule] = []
    for direction in Direction:
        if direction.capitalize() in types:
            for index, item in enumerate(spec.get(direction).each()):
                name = f"{direction}[{index}]"
                rule = NetworkPolicyRule(
                    name=name, direction=direction, verdict=Verdict.ALLOW, applied_to=applied_to
                )
                rules.append(_complete(rule, item, meta, problems, everywhere=scope == CLUSTER_SET))
    return Policy(
        meta=meta,
        rules=tuple(rules),
        applied_to=applied_to,
        isolates=frozenset(direction for direction in Direction if direction.capitalize() in types),
    )


def parse_antrea_policy(meta: Meta, obj: api.PolicyObject, problems: list[Problem]) -> Policy:
    """crd.antrea.io/v1beta1 ClusterNetworkPolicy and NetworkPolicy."""
    spec = Field(meta.subject, obj.spec, "spec")
    priority = spec.get("priority")
    value = priority.value
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    whole, tier = _applied_to(spec.get("appliedTo"), meta), spec.get("tier").text("").lower() or DEFAULT_TIER
    rules: list[NetworkPolicyRule] = []
    for direction in Direction:
        for index, item in enumerate(spec.get(direction).each()):
            called = printable(item.get("name").text(""))
            rule = NetworkPolicyRule(
                name=f"{direction}[{index}]" + (f" {called}" if called else ""),
                direction=direction,
                verdict=Verdict.DROP,
                applied_to=_applied_to(item.get("appliedTo"), meta) or whole,
                log_label=printable(item.get("logLabel").text("")) if item.get("enableLogging").flag() else None,
            )
            try:
                if number is None:
                    raise priority.error("must be a number")
                rule = replace(rule, verdict=_verdict(item.get("action")))
            except InputError as error:
                rules.append(_faulty(rule, error, meta, problems))
            else:
                rules.append(_complete(rule, item, meta, problems, tier=tier))
    return Policy(
        meta=meta,
        rules=tuple(rules),
        tier=tier,
        priority=number or 0.0,  # without a number, and in closed mode, it drops before all others
        applied_to=whole,
    )


def _verdict(field: Field) -> Verdict:
    text = field.text()
    if text == "Deny":  # in Antrea's guide of stretched policies
        return Verdict.DROP
    if text not in set(Verdict):
        raise field.error(f'must be one of {", ".join(Verdict)}, is "{printable(text)}"')
    return Verdict(text)


def _complete(
    rule: NetworkPolicyRule,
    item: Field,
    meta: Meta,
    problems: list[Problem],
    *,
    everywhere: bool = False,
    tier: str = "",
) -> NetworkPolicyRule:
    """Return the rule with its peers and ports, or with what is wrong of these."""
    side = _SIDES[rule.direction]
    try:
        if rule.verdict is Verdict.PASS and tier == BASELINE:
            raise _fault(item.get("action"), "Pass is not valid in the Baseline tier: no policy comes after it")
        if meta.kind is Kind.NETWORK_POLICY:
            _only(item, side, "ports")
            return _with_peers(
                replace(rule, ports=_ports(item.get("ports"), rule)), item.get(side), meta, everywhere
            )
        _only(
            item,
            side,
            "ports",
            "protocols",
            "toServices",
            "action",
            "name",
            "appliedTo",
            "enableLogging",
            "logLabel",
        )
        ports = (*_ports(item.get("ports"), rule), *_protocols(item.get("protocols")))
        if not item.get("toServices").absent:
            return replace(rule, services=tuple(_services(item.get("toServices"), meta)), ports=ports)
        return _with_peers(replace(rule, ports=ports), item.get(side), meta, everywhere)
    except InputError as error:
        return _faulty(rule, error, meta, problems)


def _faulty(rule: NetworkPolicyRule, error: InputError, meta: Meta, problems: list[Problem]) -> NetworkPolicyRule:
    """Return a rule that cannot be enforced, and add the problem."""
    closed, left_out = "all packets between clusters are dropped in its place", "it is left out"
    if meta.kind is Kind.NETWORK_POLICY:
        closed, left_out = "it allows nothing", "it allows everything"
    effect = f"the rule cannot be enforced: {closed} (policyFailureMode closed, the default), or {left_out} (open)"
    problem = Problem(error.subject, error.path, error.code, f"{error.reason}: {effect}")
    if problem not in problems:  # of the whole policy: once, not for each rule
        problems.append(problem)
    return replace(rule, fault=f"{error.path} {error.reason}")


def _only(field: Field, *names: str) -> None:
    """Refuse a mapping with other fields than these."""
    field.get("")
    for name in field.value if isinstance(field.value, Mapping) else ():
        if name not in names and not field.get(str(name)).absent:
            raise _fault(field.get(str(name)), "is not supported")


# --- peers ------------------------------------------------------------------------------------------------


def _with_peers(rule: NetworkPolicyRule, field: Field, meta: Meta, everywhere: bool) -> NetworkPolicyRule:
    items = list(field.each())
    if not items:
        return replace(rule, any_peer=True)
    return replace(rule, peers=tuple(peer for item in items for peer in _peer(item, meta, everywhere)))


def _peer(item: Field, meta: Meta, everywhere: bool) -> Iterator[Peer]:
    """Yield the peer, unless it is of this cluster alone."""
    _only(
        item, "podSelector", "namespaceSelector", "namespaces", "scope", "ipBlock", "fqdn", "group", *_LOCAL_PEERS
    )
    block = item.get("ipBlock")
    if not block.absent:
        _only(block, "cidr", "except")
        without = tuple(network.network()[0] for network in block.get("except").each())
        if len(without) > MAX_EXCEPTIONS:
            raise _fault(block.get("except"), f"has {len(without)} networks, at most {MAX_EXCEPTIONS} allowed")
        yield Peer(network=block.get("cidr").network()[0], without=without)
        return
    for name in ("fqdn", "group"):
        if not item.get(name).absent:
            raise _fault(item.get(name), "cannot be matched by address and label alone")
    selector = _pods(item, meta)
    if not (everywhere or selector.names_clusters or item.get("scope").text("") == CLUSTER_SET):
        return
    for name in _LOCAL_PEERS:
        if not item.get(name).absent:
            raise _fault(item.get(name), f"has no meaning in other clusters: not valid with scope {CLUSTER_SET}")
    if item.path.startswith("spec.egress"):
        raise _fault(item, "is Pods of other clusters by label, whose addresses are not known here")
    namespaces = item.get("namespaces")
    _only(namespaces, "match", "sameLabels")
    match = namespaces.get("match").text("")
    if match not in ("", "Self"):
        raise _fault(namespaces.get("match"), f'must be Self, is "{printable(match)}"')
    labels = tuple(key.text() for key in namespaces.get("sameLabels").each())
    yield Peer(pods=selector, same_namespace=match == "Self", same_labels=labels)


def _pods(item: Field, meta: Meta) -> Selector:
    """Return the Pods that a peer, or what a policy is applied to, is: by default of the policy's Namespace."""
    namespaces = item.get("namespaceSelector")
    inside = () if not (namespaces.absent and item.get("namespaces").absent) else _in_namespace(meta)
    return Selector((*inside, *_requirements(namespaces)), _requirements(item.get("podSelector")))


def _in_namespace(meta: Meta) -> tuple[Requirement, ...]:
    return (Requirement(NAMESPACE_NAME, Operator.IN, (meta.namespace,)),) if meta.namespace else ()


def _applied_to(field: Field, meta: Meta) -> tuple[Selector, ...]:
    """Return the Pods that a policy is for. Raises InputError where that is not told by labels.

    A policy of a Namespace is for no others: who may write it has no say there.
    """
    names = ("podSelector",) if meta.namespace else ("podSelector", "namespaceSelector")
    selectors = []
    for item in field.each():
        _known(item, names, f"select Pods by {' and '.join(names)} only", "NotEnforceable")
        selectors.append(_pods(item, meta))
    return tuple(selectors)


def _known(field: Field, names: tuple[str, ...], why: str, code: str = "InvalidValue") -> None:
    """Raise InputError for what is no mapping, or has other fields than these."""
    field.get("")
    for name in field.value if isinstance(field.value, Mapping) else ():
        if name not in names:
            raise field.get(str(name)).error(why, code)


def _requirements(field: Field) -> tuple[Requirement, ...]:
    """Return what a LabelSelector asks for; nothing, if it is empty or absent: it selects all."""
    _known(field, ("matchLabels", "matchExpressions"), "is not supported")
    labels = field.get("matchLabels")
    labels.get("")
    keys = labels.value if isinstance(labels.value, Mapping) else ()
    requirements = [Requirement(str(key), Operator.IN, (labels.get(key).text(),)) for key in keys]
    for item in field.get("matchExpressions").each():
        operator = item.get("operator").text()
        if operator not in set(Operator):
            raise item.get("operator").error(f'must be one of {", ".join(Operator)}, is "{printable(operator)}"')
        values = tuple(sorted(value.text() for value in item.get("values").each()))
        requirements.append(Requirement(item.get("key").text(), Operator(operator), values))
    return tuple(sorted(requirements, key=attrgetter("key", "operator", "values")))


def _services(field: Field, meta: Meta) -> Iterator[tuple[str, str]]:
    """Yield Namespace and name of Services here: of an exported one that which is imported."""
    for item in field.each():
        _only(item, "name", "namespace", "scope")
        name = item.get("name").name()
        imported = item.get("scope").text("") == CLUSTER_SET
        yield item.get("namespace").name("") or meta.namespace, f"{IMPORTED}{name}" if imported else name


# --- ports ------------------------------------------------------------------------------------------------


def _ports(field: Field, rule: NetworkPolicyRule) -> tuple[RulePort, ...]:
    ports = []
    for item in field.each():
        _only(item, "protocol", "port", "endPort")
        text = item.get("protocol").text("") or "TCP"
        if text not in PROTOCOLS:
            raise _fault(item.get("protocol"), f'must be TCP, UDP or SCTP, is "{printable(text)}"')
        ports.append(_numbered(RulePort(protocol=PROTOCOLS[text]), item, rule))
    return tuple(ports)


def _numbered(port: RulePort, item: Field, rule: NetworkPolicyRule) -> RulePort:
    """Return the port with its numbers or its name."""
    number, last = item.get("port"), item.get("endPort")
    if number.absent:
        return port
    if isinstance(number.value, str):
        if rule.direction is Direction.EGRESS:
            raise _fault(number, "names a port of another cluster's Pod, which is unknown here")
        return replace(port, name=number.value)
    low = number.port()
    high = low if last.absent else last.integer(low, 65535)
    return replace(port, low=low, high=high)


def _protocols(field: Field) -> Iterator[RulePort]:
    for item in field.each():
        _only(item, "icmp")
        icmp = item.get("icmp")
        _only(icmp, "icmpType", "icmpCode")
        type_, code = (
            None if number.absent else number.integer(0, 255)
            for number in (icmp.get("icmpType"), icmp.get("icmpCode"))
        )
        yield RulePort(protocol=_ICMP, icmp_type=type_, icmp_code=code)
