"""Policies of this cluster, and hostile label identities of others."""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.model.objects import Snapshot
from mcagent.model.parsing.labels import label_hash, normalised
from mcagent.model.policies import CLUSTER_LABEL
from tests.worlds.policy_manifests import NODE, Manifest, manifest
from tests.worlds.policy_reading import read

PODS = {"attacker": "10.1.0.1", "victim": "10.1.0.2"}
MESSAGE = 65535  # bytes of an OpenFlow message, whose length is a field of 16 bits
WEB = {"app": "web"}


def identities(cluster: str, numbers: Iterable[int]) -> list[Manifest]:
    """Return label identities of Pods with the label app=web, which a cluster exports."""
    objects = []
    for number in numbers:
        text = normalised("shop", {}, {**WEB, "n": str(number)})
        notes = {"mcagent.io/exporters": cluster}
        kind = manifest("multicluster.crd.antrea.io/v1alpha1", "LabelIdentity", label_hash(text), notes=notes)
        objects.append(kind | {"spec": {"label": text, "id": number}})
    return objects


def policy(name: str, namespace: str, peers: Iterable[Manifest]) -> Manifest:
    """Return a NetworkPolicy that lets these peers reach all Pods of a Namespace."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [*peers]}]}
    return manifest("networking.k8s.io/v1", "NetworkPolicy", name, namespace, spec=spec)


def antrea_policy(name: str, namespace: str, peers: Iterable[Manifest]) -> Manifest:
    """Return a NetworkPolicy of Antrea that lets these peers reach all Pods of a Namespace, and no others."""
    rules = [{"action": "Allow", "from": [*peers]}, {"action": "Drop"}]
    spec = {"priority": 5, "appliedTo": [{"podSelector": {}}], "ingress": rules}
    return manifest("crd.antrea.io/v1beta1", "NetworkPolicy", name, namespace, spec=spec)


def pod(name: str, namespace: str, address: str, *containers: Manifest) -> Manifest:
    """Return a Pod on the Node."""
    spec = {"nodeName": NODE, "containers": [*containers]}
    status = {"phase": "Running", "podIPs": [{"ip": address}]}
    return manifest("v1", "Pod", name, namespace, spec=spec, status=status)


def snapshot(*objects: Manifest) -> Snapshot:
    """Return a cluster with a Pod of each tenant on the Node, and objects."""
    namespaces = [manifest("v1", "Namespace", tenant) for tenant in PODS]
    pods = [pod("p", tenant, address) for tenant, address in PODS.items()]
    return read([*namespaces, *pods, *objects])


FROM_WEB = {
    "namespaceSelector": {"matchExpressions": [{"key": CLUSTER_LABEL, "operator": "Exists"}]},
    "podSelector": {"matchLabels": WEB},
}

FROM_WEB_ANTREA = {"scope": "ClusterSet", "namespaceSelector": {}, "podSelector": {"matchLabels": WEB}}
