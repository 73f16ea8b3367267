"""A naive judge of one request between clusters: it reads manifests of policies as their authors do.

Knows nothing of mcagent, but what the documents of Kubernetes, of Antrea and docs/policies.md say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

Manifest = Mapping[str, Any]
CLUSTER = "multicluster.kubernetes.io/cluster"
NAME = "kubernetes.io/metadata.name"
STRICTER_FIRST = ("Drop", "Reject", "Pass", "Allow")
STATIC_TIERS = {
    "emergency": 50, "securityops": 100, "networkops": 150, "platform": 200, "application": 250, "baseline": 253,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Request:
    """What opens a connection between a Pod of this cluster and somebody of another one.

    `pod`: namespace and name of ours. `labels`: of the sender's Namespace and Pod; None: not known.
    """

    direction: str  # ingress, egress
    pod: tuple[str, str]
    address: str  # of the other side
    cluster: str = ""
    labels: tuple[Mapping[str, str], Mapping[str, str]] | None = None
    protocol: str = "TCP"
    port: int = 0
    icmp: tuple[int, int] | None = None


def judged(objects: Sequence[Manifest], request: Request, *, closed: bool = True) -> tuple[str, set[str]]:
    """Return the verdict, and the rules ("name ingress[0]") that may have decided; "": isolation, or nothing."""
    for stage in ("tiers", "NetworkPolicy", "baseline"):
        if stage == "NetworkPolicy":
            verdict = _network_policies(objects, request, closed)
        else:
            verdict = _tiers(objects, request, closed, baseline=stage == "baseline")
        if verdict is not None and verdict[0] != "Pass":
            return verdict
    blind = any(_selects_labels(objects, policy, rule, request) for policy, _, rule in _rules(objects, request))
    return ("Drop" if blind and request.direction == "ingress" and request.labels is None else "Allow"), {""}


def _tiers(
    objects: Sequence[Manifest], request: Request, closed: bool, *, baseline: bool
) -> tuple[str, set[str]] | None:
    tiers = []
    for policy, index, rule in _rules(objects, request):
        tier = policy["spec"].get("tier", "application")
        if not _antrea(policy) or (tier == "baseline") is not baseline:
            continue
        broken = _broken(objects, policy, rule, request)
        if broken if closed and broken else not broken and _matches(objects, policy, rule, request):
            action = "Drop" if broken else rule["action"]
            order = (_tier(objects, tier) or 0, policy["spec"]["priority"], index, STRICTER_FIRST.index(action))
            tiers.append((order, action, f"{policy['metadata']['name']} {request.direction}[{index}]"))
    if not tiers:
        return None
    first = min(tiers)
    return first[1], {name for order, _, name in tiers if order == first[0]}


def _network_policies(objects: Sequence[Manifest], request: Request, closed: bool) -> tuple[str, set[str]] | None:
    plain = [p for p in objects if p["kind"] == "NetworkPolicy" and not _antrea(p)]
    mine = [p for p in plain if _applies(objects, p, {}, request)]
    isolating = [p for p in mine if request.direction.capitalize() in p["spec"]["policyTypes"]]
    allowing = {
        f"{policy['metadata']['name']} {request.direction}[{index}]"
        for policy, index, rule in _rules(isolating, request, objects)
        if (not closed if _broken(objects, policy, rule, request) else _matches(objects, policy, rule, request))
    }
    if allowing:
        return "Allow", allowing
    return ("Drop", {""}) if isolating else None


def _rules(
    policies: Sequence[Manifest], request: Request, objects: Sequence[Manifest] = ()
) -> Iterator[tuple[Manifest, int, Manifest]]:
    """Yield the rules for the Pod."""
    for policy in policies:
        if policy["kind"] in ("NetworkPolicy", "ClusterNetworkPolicy"):
            if not _antrea(policy) and request.direction.capitalize() not in policy["spec"]["policyTypes"]:
                continue
            for index, rule in enumerate(policy["spec"].get(request.direction, ())):
                if _applies(objects or policies, policy, rule, request):
                    yield policy, index, rule


def _antrea(policy: Manifest) -> bool:
    return bool(policy["apiVersion"].startswith("crd.antrea.io/"))


def _applies(objects: Sequence[Manifest], policy: Manifest, rule: Manifest, request: Request) -> bool:
    """Tell whether a rule is for the Pod."""
    pod, spec = _ours(objects, request), policy["spec"]
    whose = rule.get("appliedTo") or spec.get("appliedTo", ()) if _antrea(policy) else [spec]
    return any(
        _selected(policy, {k: v for k, v in applied_to.items() if k in ("podSelector", "namespaceSelector")}, *pod)
        for applied_to in whose
    )


def _ours(objects: Sequence[Manifest], request: Request) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the labels of our Pod's Namespace, and its own."""
    space, name = request.pod
    spaces = [o for o in objects if o["kind"] == "Namespace" and o["metadata"]["name"] == space]
    pods = [o for o in objects if o["kind"] == "Pod" and o["metadata"]["name"] == name]
    return {NAME: space, **spaces[0]["metadata"].get("labels", {})}, pods[0]["metadata"].get("labels", {})


def _selected(policy: Manifest, manifest: Manifest, space: Mapping[str, str], pod: Mapping[str, str]) -> bool:
    own = policy["metadata"].get("namespace")
    if "namespaceSelector" not in manifest and "namespaces" not in manifest and own and space[NAME] != own:
        return False
    return _holds(manifest.get("namespaceSelector", {}), space) and _holds(manifest.get("podSelector", {}), pod)


def _holds(selector: Manifest, labels: Mapping[str, str]) -> bool:
    tests: Mapping[str, Callable[[str, Sequence[str]], bool]] = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
    }
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        tests[expression["operator"]](expression["key"], expression.get("values", ()))
        for expression in selector.get("matchExpressions", ())
    )


def _matches(objects: Sequence[Manifest], policy: Manifest, rule: Manifest, request: Request) -> bool:
    return _is_peer(objects, policy, rule, request) and _is_port(objects, rule, request)


def _is_peer(objects: Sequence[Manifest], policy: Manifest, rule: Manifest, request: Request) -> bool:
    if request.direction == "egress" and "toServices" in rule:
        return any(_is_service(objects, policy, service, request) for service in rule["toServices"])
    peers = rule.get("from" if request.direction == "ingress" else "to", ())
    return not peers or any(_is_one(objects, policy, rule, peer, request) for peer in peers)


def _is_one(
    objects: Sequence[Manifest], policy: Manifest, rule: Manifest, peer: Manifest, request: Request
) -> bool:
    if "ipBlock" in peer:
        inside = [peer["ipBlock"]["cidr"]], peer["ipBlock"].get("except", ())
        hit, out = (any(ip_address(request.address) in ip_network(net) for net in nets) for nets in inside)
        return hit and not out
    if not _of_all_clusters(policy, peer):
        return False
    own, _ = _ours(objects, request)
    same = _same(peer)
    if any(key not in own for key in same):
        return False
    if request.labels is None:
        return rule.get("action") in ("Drop", "Reject")
    space, pod = request.labels
    if _names_clusters(peer):
        space = {**space, CLUSTER: request.cluster}
    return _selected(policy, peer, space, pod) and all(space.get(key) == own[key] for key in same)


def _same(peer: Manifest) -> Sequence[str]:
    """Return the labels that the two Namespaces have to agree in."""
    same_labels: Manifest = peer.get("namespaces", {})
    return [NAME] if same_labels.get("match") == "Self" else same_labels.get("sameLabels", [])


def _names_clusters(peer: Manifest) -> bool:
    spaces = peer.get("namespaceSelector", {})
    keys = [
        *spaces.get("matchLabels", {}),
        *(expression["key"] for expression in spaces.get("matchExpressions", ())),
    ]
    return CLUSTER in keys


def _of_all_clusters(policy: Manifest, peer: Manifest) -> bool:
    scope = policy["metadata"].get("annotations", {}).get("mcagent.io/scope") if not _antrea(policy) else None
    return "ipBlock" not in peer and ("ClusterSet" in (scope, peer.get("scope")) or _names_clusters(peer))


def _selects_labels(objects: Sequence[Manifest], policy: Manifest, rule: Manifest, request: Request) -> bool:
    """Tell whether a rule lets senders by label. About ports by names that the Pod has not, it is none for it."""
    ports = rule.get("ports", ())
    idle = ports and not rule.get("protocols") and not any(_has(objects, port, request) for port in ports)
    if idle or _broken(objects, policy, rule, request):
        return False
    own, _ = _ours(objects, request)
    return any(
        _of_all_clusters(policy, peer) and all(key in own for key in _same(peer)) for peer in rule.get("from", ())
    )


def _tier(objects: Sequence[Manifest], name: str) -> int | None:
    """Return a tier's priority, None if there is no such tier."""
    tiers = {o["metadata"]["name"]: int(o["spec"]["priority"]) for o in objects if o["kind"] == "Tier"}
    return (STATIC_TIERS | tiers).get(name)


def _broken(objects: Sequence[Manifest], policy: Manifest, rule: Manifest, request: Request) -> bool:
    """Tell whether a rule has what cannot be enforced."""
    egress = request.direction == "egress"
    if _antrea(policy) and _tier(objects, policy["spec"].get("tier", "application")) is None:
        return True
    peers = [*rule.get("from", ()), *rule.get("to", ())]
    return (
        any("fqdn" in peer or "group" in peer for peer in peers)
        or "unheardOf" in rule
        or (egress and any(_of_all_clusters(policy, peer) for peer in peers))
        or (egress and any(isinstance(port.get("port"), str) for port in rule.get("ports", ())))
    )


def _is_service(objects: Sequence[Manifest], policy: Manifest, manifest: Manifest, request: Request) -> bool:
    name = ("antrea-mc-" if manifest.get("scope") == "ClusterSet" else "") + manifest["name"]
    space = manifest.get("namespace") or policy["metadata"]["namespace"]
    return any(
        o["kind"] == "EndpointSlice"
        and (o["metadata"]["namespace"], o["metadata"]["labels"]["kubernetes.io/service-name"]) == (space, name)
        and any(request.address in endpoint["addresses"] for endpoint in o["endpoints"])
        and any((port["protocol"], port["port"]) == (request.protocol, request.port) for port in o["ports"])
        for o in objects
    )


def _is_port(objects: Sequence[Manifest], rule: Manifest, request: Request) -> bool:
    ports, protocols = rule.get("ports", ()), rule.get("protocols", ())
    if not ports and not protocols:
        return True
    if request.icmp is not None:
        icmp_texts = (protocol["icmp"] for protocol in protocols)
        return any(
            protocol.get("icmpType", request.icmp[0]) == request.icmp[0]
            and protocol.get("icmpCode", request.icmp[1]) == request.icmp[1]
            for protocol in icmp_texts
        )
    mine = (port for port in ports if port.get("protocol", "TCP") == request.protocol)
    return any(_is_number(objects, port, request) for port in mine)


def _is_number(objects: Sequence[Manifest], port: Manifest, request: Request) -> bool:
    low = port.get("port", 0)
    if isinstance(low, str):
        return (low, request.protocol, request.port) in _named(objects, request)
    return bool(low <= request.port <= port.get("endPort", low if "port" in port else 65535))


def _has(objects: Sequence[Manifest], port: Manifest, request: Request) -> bool:
    port_and_protocol = (port.get("port"), port.get("protocol", "TCP"))
    return not isinstance(port_and_protocol[0], str) or port_and_protocol in [
        named_port[:2] for named_port in _named(objects, request)
    ]


def _named(objects: Sequence[Manifest], request: Request) -> list[tuple[str, str, int]]:
    """Return the ports of our Pod that have names."""
    pod = next(o for o in objects if o["kind"] == "Pod" and o["metadata"]["name"] == request.pod[1])
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    return [(port["name"], port["protocol"], port["containerPort"]) for port in ports]
