"""Label selectors: the Pods of this Node, and the label identities, that each selector selects.

A selector is matched once with each set of labels, not with each Pod. Must not know rules or flows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.local_cluster.nodes import seniority
from mcagent.core.policies.identities import UNCLAIMED
from mcagent.model.net import Address
from mcagent.model.objects import ClusterInfoImport, LabelIdentity, Namespace, Pod
from mcagent.model.parsing import labels
from mcagent.model.policies import CLUSTER_LABEL, Selector

Matched = tuple[tuple[Selector, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPod:
    """The properties of a Pod of this Node that policies depend on, except its labels."""

    name: str
    namespace: str
    addresses: tuple[Address, ...]
    ports: tuple[tuple[str, int, int], ...]  # name, IP protocol, number


def own_pods(
    pods: Mapping[str, Pod], namespaces: Mapping[str, Namespace], node: str
) -> dict[str, tuple[OwnPod, ...]]:
    """Group the Pods of a Node by the text of their labels; sorted.

    Of several Pods with one address only the newest has it: the others are being deleted.
    """
    holders: dict[Address, Pod] = {}
    for pod in sorted(pods.values(), key=lambda pod: seniority(pod.meta)):
        if pod.node_name == node:
            holders.update(dict.fromkeys(pod.ips, pod))
    pods_by_labels: dict[str, list[OwnPod]] = {}
    for pod in dict.fromkeys(holders.values()):
        namespace = namespaces.get(pod.meta.namespace)
        namespace_labels = namespace.labels if namespace else labels.namespace_part(pod.meta.namespace, {})
        own_pod = OwnPod(
            name=pod.meta.name,
            namespace=pod.meta.namespace,
            addresses=tuple(address for address in pod.ips if holders[address] is pod),
            ports=pod.ports,
        )
        pods_by_labels.setdefault(labels.identity(namespace_labels, pod.labels), []).append(own_pod)
    return {label_text: tuple(pods_by_labels[label_text]) for label_text in sorted(pods_by_labels)}


def matching(value: tuple[str, frozenset[str]], selectors: frozenset[Selector]) -> Matched:
    """Return the selectors that select a set of labels, each with the clusters for which it does.

    `value`: the labels as text, and the clusters that may have such Pods. For selectors that do not mention
    clusters the result is (UNCLAIMED,).
    """
    label_text, clusters = value
    split_labels = labels.split(label_text)
    matches: list[tuple[Selector, tuple[str, ...]]] = []
    for selector in selectors:
        if not selector.names_clusters:
            if selector.selects(split_labels.namespace, split_labels.pod):
                matches.append((selector, (UNCLAIMED,)))
            continue
        matching_clusters = [
            cluster
            for cluster in clusters
            if selector.selects({**split_labels.namespace, CLUSTER_LABEL: cluster}, split_labels.pod)
        ]
        if matching_clusters:
            matches.append((selector, tuple(sorted(matching_clusters))))
    return tuple(matches)


def pods_selected(
    pods: Mapping[str, tuple[OwnPod, ...]], matched: Mapping[str, Matched]
) -> dict[Selector, tuple[tuple[str, OwnPod], ...]]:
    """Return the Pods that each selector selects, as (text of the labels, Pod)."""
    pods_by_selector: dict[Selector, list[tuple[str, OwnPod]]] = {}
    for label_text, same_labels in pods.items():
        for selector, _ in matched[label_text]:
            pods_by_selector.setdefault(selector, []).extend((label_text, pod) for pod in same_labels)
    return {selector: tuple(selected_pods) for selector, selected_pods in pods_by_selector.items()}


def identities_selected(
    label_identities: Mapping[str, LabelIdentity], matched: Mapping[str, Matched]
) -> dict[Selector, frozenset[tuple[str, int]]]:
    """Return the label identities that each selector selects, as (cluster ID or UNCLAIMED, number)."""
    identities_by_selector: dict[Selector, set[tuple[str, int]]] = {}
    for key, identity in label_identities.items():
        for selector, clusters in matched[key]:
            identities_by_selector.setdefault(selector, set()).update(
                (cluster, identity.id) for cluster in clusters
            )
    return {selector: frozenset(identities) for selector, identities in identities_by_selector.items()}


def cluster_ids(cluster_infos: Mapping[str, ClusterInfoImport]) -> frozenset[str]:
    """Return the IDs of the other clusters."""
    return frozenset(info.cluster_id for info in cluster_infos.values())


def labels_and_clusters(
    label_identities: Mapping[str, LabelIdentity], clusters: frozenset[str]
) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the labels and clusters of each label identity: the input of `matching`.

    Antrea's leader does not say which clusters have such Pods: each of `clusters` may.
    """
    return {
        key: (identity.label, clusters if identity.clusters is None else identity.clusters)
        for key, identity in label_identities.items()
    }
