"""Random manifests of Pods, policies of all kinds and what they refer to; and requests between clusters."""

from __future__ import annotations

from random import Random
from typing import Any

from mcagent.model.parsing.labels import label_hash, normalised
from tests.worlds.policy_oracle import CLUSTER, NAME, Request

Manifest = dict[str, Any]
NODE = "node-1"
SPACES: dict[str, dict[str, str]] = {"shop": {"team": "a"}, "web": {"team": "b", "tier": "x"}, "bare": {}}
LABELS: tuple[dict[str, str], ...] = ({"app": "db"}, {"app": "web"}, {"app": "web", "rev": "2"}, {})
PODS = {
    (space, f"{space}-{number}"): labels
    for space in ("shop", "web")
    for number, labels in enumerate((LABELS[0], LABELS[2]))
}
CLUSTERS = ("east", "west")
ADDRESSES = ("10.2.1.1", "10.2.1.9", "10.2.2.2", "10.3.0.1")
PORTS = (80, 81, 443)
# Labels of senders, their number, and the clusters that have such Pods; None: nobody says.
SENDERS: tuple[tuple[str, dict[str, str], int, tuple[str, ...] | None], ...] = (
    ("shop", LABELS[0], 7, ("east",)),
    ("shop", LABELS[1], 8, ("east", "west")),
    ("web", LABELS[2], 9, ("west",)),
    ("bare", LABELS[3], 10, None),
)


def world(random: Random, *, policies: int | None = None) -> list[Manifest]:
    """Return Namespaces, Pods, LabelIdentities, an imported Service, tiers, and random policies."""
    manifests = [manifest("v1", "Namespace", name, labels=labels) for name, labels in SPACES.items()]
    for number, ((space, name), labels) in enumerate(PODS.items(), 1):
        ports = [{"name": "http", "protocol": "TCP", "containerPort": 80 + number % 2}]
        spec = {"nodeName": NODE, "containers": [{"name": "c", "ports": ports if number < 4 else []}]}
        status = {"phase": "Running", "podIPs": [{"ip": f"10.1.0.{number}"}]}
        manifests.append(manifest("v1", "Pod", name, space, labels=labels, spec=spec, status=status))
    for space, labels, number, clusters in SENDERS:
        text = normalised(space, SPACES[space], labels)
        annotations = {} if clusters is None else {"mcagent.io/exporters": ",".join(clusters)}
        identity = manifest(
            "multicluster.crd.antrea.io/v1alpha1", "LabelIdentity", label_hash(text), notes=annotations
        )
        manifests.append(identity | {"spec": {"label": text, "id": number}})
    manifests += [cluster_info(name, number) for number, name in enumerate(CLUSTERS, 1)]
    for name, addresses in (("antrea-mc-cart", ADDRESSES[:2]), ("cart", ADDRESSES[2:])):
        ports = [{"name": "p", "protocol": "TCP", "port": 80}, {"name": "q", "protocol": "UDP", "port": 81}]
        ends = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
        of = {"kubernetes.io/service-name": name}
        identity = manifest("discovery.k8s.io/v1", "EndpointSlice", f"{name}-1", "shop", labels=of)
        manifests.append(identity | {"addressType": "IPv4", "endpoints": ends, "ports": ports})
    manifests.append(
        manifest("crd.antrea.io/v1beta1", "Tier", "mine", spec={"priority": random.choice((10, 250))})
    )
    count = random.randint(1, 7) if policies is None else policies
    return manifests + [policy(random, f"policy-{number}") for number in range(count)]


def manifest(
    version: str,
    kind: str,
    name: str,
    space: str = "",
    *,
    labels: dict[str, str] | None = None,
    notes: dict[str, str] | None = None,
    **fields: object,
) -> Manifest:
    """Return a manifest; `notes` are annotations."""
    meta: Manifest = {"name": name, "uid": name, "labels": labels or {}, "annotations": notes or {}}
    if space:
        meta["namespace"] = space
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def cluster_info(name: str, number: int) -> Manifest:
    """Return the ClusterInfoImport of the cluster whose Pods have addresses of 10.2.0.0/16, or 10.3.0.0/16."""
    spec = {
        "clusterID": name,
        "serviceCIDR": f"10.{96 + number}.0.0/16",
        "podCIDRs": [f"10.{1 + number}.0.0/16"],
        "gatewayInfos": [{"gatewayIP": f"203.0.113.{number}"}],
    }
    return manifest(
        "multicluster.crd.antrea.io/v1alpha1", "ClusterInfoImport", f"{name}-clusterinfo", "mc", spec=spec
    )


def policy(random: Random, name: str) -> Manifest:
    """Return a policy of any kind."""
    if random.random() < 0.4:
        types = random.choice((["Ingress"], ["Egress"], ["Ingress", "Egress"]))
        spec: Manifest = {"podSelector": selector(random), "policyTypes": types}
        for way in ("ingress", "egress"):
            spec[way] = [rule(random, way, antrea=False) for _ in range(random.randint(0, 2))]
        notes = {"mcagent.io/scope": "ClusterSet"} if random.random() < 0.3 else {}
        space = random.choice(("shop", "web"))
        return manifest("networking.k8s.io/v1", "NetworkPolicy", name, space, notes=notes, spec=spec)
    space = random.choice(("", "shop", "web"))
    tiers = ("emergency", "application", "application", "baseline", "mine", "lost")
    tier = random.choices(tiers, (2, 3, 3, 3, 2, 0.3))[0]
    spec = {"priority": random.choice((1, 5, 5.5)), "tier": tier, "appliedTo": _applied_to(random, space)}
    for way in ("ingress", "egress"):
        rules = [rule(random, way, antrea=True) for _ in range(random.randint(0, 2))]
        for own_rule in rules:
            if own_rule["action"] == "Pass" and tier == "baseline":  # the API server of Antrea refuses it
                own_rule["action"] = "Drop"
            if random.random() < 0.1:
                own_rule["appliedTo"] = _applied_to(random, space)
        spec[way] = rules
    kind = "NetworkPolicy" if space else "ClusterNetworkPolicy"
    return manifest("crd.antrea.io/v1beta1", kind, name, space, spec=spec)


def _applied_to(random: Random, space: str) -> list[Manifest]:
    selectors: list[Manifest] = [{"podSelector": selector(random)}]
    if not space and random.random() < 0.5:
        selectors.append({"namespaceSelector": selector(random, of_space=True)})
    return selectors


def selector(random: Random, *, of_space: bool = False, clusters: bool = False) -> Manifest:
    """Return a label selector; `clusters`: it names the label that says of which cluster a Namespace is."""
    pairs = {"team": "ab", NAME: ("shop", "web")} if of_space else {"app": ("db", "web"), "rev": "23"}
    key = random.choice(list(pairs))
    selector: Manifest = {}
    match random.randint(0, 3):
        case 0:
            selector = {"matchLabels": {key: random.choice(pairs[key])}}
        case 1:
            operator = random.choice(("In", "NotIn"))
            values = [random.choice(pairs[key])]
            selector = {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
        case 2:
            selector = {"matchExpressions": [{"key": key, "operator": random.choice(("Exists", "DoesNotExist"))}]}
    if clusters:
        how, those = random.choice((("In", ["east"]), ("NotIn", ["west"]), ("In", ["east", "west"])))
        more = {"key": CLUSTER, "operator": how, "values": those}
        selector["matchExpressions"] = [*selector.get("matchExpressions", ()), more]
    return selector


def rule(random: Random, way: str, *, antrea: bool) -> Manifest:
    """Return a rule; some have what cannot be enforced."""
    rule: Manifest = {}
    if antrea:
        rule["action"] = random.choice(("Allow", "Drop", "Reject", "Pass"))
    if antrea and way == "egress" and random.random() < 0.5:
        scope = random.choice(({}, {"scope": "ClusterSet"}))
        rule["toServices"] = [{"name": "cart", "namespace": "shop", **scope}]
        return rule
    if random.random() < 0.8:
        rule["from" if way == "ingress" else "to"] = [
            peer(random, way, antrea=antrea) for _ in range(random.randint(1, 2))
        ]
    if random.random() < 0.5:
        rule["ports"] = [_port(random, way) for _ in range(random.randint(1, 2))]
    if antrea and random.random() < 0.2:
        icmp = random.choice(({}, {"icmpType": 8}, {"icmpType": 8, "icmpCode": 0}, {"icmpType": 3}))
        rule["protocols"] = [{"icmp": icmp}]
    if random.random() < 0.04:
        rule["unheardOf"] = 1
    return rule


def _port(random: Random, way: str) -> Manifest:
    protocol = random.choice(({}, {"protocol": "TCP"}, {"protocol": "UDP"}))
    number = random.choice(({}, {"port": 80}, {"port": 80, "endPort": 100}, {"port": "http"}))
    return {**protocol, **({"port": 81} if way == "egress" and number.get("port") == "http" else number)}


def peer(random: Random, way: str, *, antrea: bool) -> Manifest:
    """Return a peer: addresses, this cluster's Pods, all clusters', or a name of the internet."""
    chance = random.random()
    if chance < 0.35:
        inside = random.choice(("10.2.0.0/16", "10.2.1.0/24", "0.0.0.0/0"))
        without = {} if inside == "10.2.1.0/24" or random.random() < 0.5 else {"except": ["10.2.1.8/29"]}
        return {"ipBlock": {"cidr": inside} | (without if not antrea else {})}
    if antrea and chance < 0.38:
        return {"fqdn": "example.com"}
    peer: Manifest = {"podSelector": selector(random)}
    if random.random() < 0.6:
        clusters = random.random() < (0.1 if way == "egress" else 0.4)
        peer["namespaceSelector"] = selector(random, of_space=True, clusters=clusters)
    if antrea and way == "ingress" and random.random() < 0.8:
        peer["scope"] = "ClusterSet"
        if random.random() < 0.3:
            peer.pop("namespaceSelector", None)
            peer["namespaces"] = random.choice(({"match": "Self"}, {"sameLabels": ["team"]}))
    return peer


def request(random: Random) -> Request:
    """Return a request between a Pod here and another cluster."""
    space, labels, _, clusters = random.choice(SENDERS)
    is_known = random.random() < 0.8
    icmp = random.random() < 0.15
    return Request(
        direction=random.choice(("ingress", "egress")),
        pod=random.choice(list(PODS)),
        address=random.choice(ADDRESSES),
        cluster=random.choice(clusters or CLUSTERS),
        labels=({NAME: space, **SPACES[space]}, labels) if is_known else None,
        protocol="ICMP" if icmp else random.choice(("TCP", "TCP", "UDP")),
        port=0 if icmp else random.choice(PORTS),
        icmp=random.choice(((8, 0), (3, 1))) if icmp else None,
    )
