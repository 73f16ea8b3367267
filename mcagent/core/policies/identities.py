"""Label identities: the numbers that stand for sets of Pod and Namespace labels between clusters.

Decides the identity of each Pod of this Node, and the identities that a remote cluster may use. Must not know
flows.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.core.addresses.rules import refuse_address
from mcagent.core.local_cluster.nodes import seniority
from mcagent.model.net import Address
from mcagent.model.objects import Kind, LabelIdentity, Namespace, Pod
from mcagent.model.parsing import labels

IDENTITY_NEEDS = frozenset({Kind.POD, Kind.NAMESPACE, Kind.LABEL_IDENTITY})
UNCLAIMED = ""  # in place of a cluster ID: the identity has no list of clusters, so any cluster may use it


def identity_by_labels(label_identities: Mapping[str, LabelIdentity]) -> dict[str, int]:
    """Return the number of each set of labels, by the text of the labels."""
    return {identity.label: identity.id for identity in label_identities.values()}


def pod_identities(
    pods: Mapping[str, Pod], namespaces: Mapping[str, Namespace], numbers: Mapping[str, int], node: str
) -> dict[Address, int]:
    """Return the identity of each address of the Node's Pods, without Pods whose labels have no identity.

    Of several Pods with one address the newest counts: the others are being deleted.
    """
    identities: dict[Address, int] = {}
    for pod in sorted(pods.values(), key=lambda pod: seniority(pod.meta)):
        namespace = namespaces.get(pod.meta.namespace)
        if pod.node_name == node:
            label_text = "" if namespace is None else labels.identity(namespace.labels, pod.labels)
            for address in pod.ips:
                identities.pop(address, None)
                if label_text in numbers and refuse_address(address) is None:
                    identities[address] = numbers[label_text]
    return identities


def claimed_identities(label_identities: Mapping[str, LabelIdentity]) -> dict[str, tuple[int, ...]]:
    """Return the identities that each cluster may use, by cluster ID; sorted."""
    identities_by_cluster: dict[str, set[int]] = {}
    for identity in label_identities.values():
        for cluster in identity.clusters or ():
            identities_by_cluster.setdefault(cluster, set()).add(identity.id)
    return {cluster: tuple(sorted(numbers)) for cluster, numbers in identities_by_cluster.items()}


def unclaimed_identities(label_identities: Mapping[str, LabelIdentity]) -> tuple[int, ...]:
    """Return the identities that any cluster may use, sorted: those without a list of clusters."""
    return tuple(sorted({identity.id for identity in label_identities.values() if identity.clusters is None}))
