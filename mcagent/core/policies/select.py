"""Which Pods of this Node, and which label identities, selectors select.

A selector is tried on each set of labels once, not on each Pod: `matching` is a cell for one set of labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcagent.core.local_cluster.nodes import seniority
from mcagent.core.policies.identities import EVERYBODY
from mcagent.model import labels
from mcagent.model.net import Address
from mcagent.model.objects import LabelIdentity, Namespace, Pod
from mcagent.model.policies import CLUSTER_LABEL, Selector

Matched = tuple[tuple[Selector, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPod:
    """A Pod of this Node, as far as policies choose by it."""

    name: str
    namespace: str
    addresses: tuple[Address, ...]
    ports: tuple[tuple[str, int, int], ...]  # name, IP protocol, number


def own_pods(
    pods: Mapping[str, Pod], namespaces: Mapping[str, Namespace], node: str
) -> dict[str, tuple[OwnPod, ...]]:
    """Return the Pods of a Node by the text of their labels.

    Of several Pods with one address the newest has it: the others are about to go.
    """
    holders: dict[Address, Pod] = {}
    for pod in sorted(pods.values(), key=lambda pod: seniority(pod.meta)):
        if pod.node_name == node:
            holders.update(dict.fromkeys(pod.ips, pod))
    found: dict[str, list[OwnPod]] = {}
    for pod in dict.fromkeys(holders.values()):
        namespace = namespaces.get(pod.meta.namespace)
        part = namespace.labels if namespace else labels.namespace_part(pod.meta.namespace, {})
        own = OwnPod(
            name=pod.meta.name,
            namespace=pod.meta.namespace,
            addresses=tuple(address for address in pod.ips if holders[address] is pod),
            ports=pod.ports,
        )
        found.setdefault(labels.identity(part, pod.labels), []).append(own)
    return {text: tuple(found[text]) for text in sorted(found)}


def matching(value: tuple[str, frozenset[str] | None], selectors: frozenset[Selector]) -> Matched:
    """Return the selectors that select a set of labels, and as Pods of which clusters: EVERYBODY, whichever it is.

    `value`: the labels as text, and the clusters that have such Pods; None: nobody says which.
    """
    text, clusters = value
    known = labels.split(text)
    found: list[tuple[Selector, tuple[str, ...]]] = []
    for selector in selectors:
        if not selector.names_clusters:
            if selector.selects(known.namespace, known.pod):
                found.append((selector, (EVERYBODY,)))
            continue
        of = [
            one for one in clusters or () if selector.selects({**known.namespace, CLUSTER_LABEL: one}, known.pod)
        ]
        if of:
            found.append((selector, tuple(sorted(of))))
    return tuple(found)


def pods_selected(
    pods: Mapping[str, tuple[OwnPod, ...]], matched: Mapping[str, Matched]
) -> dict[Selector, tuple[tuple[str, OwnPod], ...]]:
    """Return the Pods that each selector selects, with the text of their labels."""
    found: dict[Selector, list[tuple[str, OwnPod]]] = {}
    for text, own in pods.items():
        for selector, _ in matched[text]:
            found.setdefault(selector, []).extend((text, pod) for pod in own)
    return {selector: tuple(those) for selector, those in found.items()}


def identities_selected(
    known: Mapping[str, LabelIdentity], matched: Mapping[str, Matched]
) -> dict[Selector, frozenset[tuple[str, int]]]:
    """Return cluster and number of the label identities that each selector selects."""
    found: dict[Selector, set[tuple[str, int]]] = {}
    for key, identity in known.items():
        for selector, clusters in matched[key]:
            found.setdefault(selector, set()).update((cluster, identity.id) for cluster in clusters)
    return {selector: frozenset(those) for selector, those in found.items()}


def labels_and_clusters(known: Mapping[str, LabelIdentity]) -> dict[str, tuple[str, frozenset[str] | None]]:
    """Return what `matching` looks at of label identities."""
    return {key: (one.label, one.clusters) for key, one in known.items()}


def every(selectors: Iterable[Iterable[Selector]]) -> frozenset[Selector]:
    """Return all selectors."""
    return frozenset(one for several in selectors for one in several)
