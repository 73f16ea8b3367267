"""The label identities of Pods: the numbers by which policies of other clusters know them.

Decides which number each Pod of this Node has, and which numbers a cluster may use. Knows no flows.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.core.addresses.rules import refuse_address
from mcagent.core.local_cluster.nodes import seniority
from mcagent.model import labels
from mcagent.model.net import Address
from mcagent.model.objects import Kind, LabelIdentity, Namespace, Pod

IDENTITY_NEEDS = frozenset({Kind.POD, Kind.NAMESPACE, Kind.LABEL_IDENTITY})
EVERYBODY = ""  # in place of a cluster's ID: nobody says whose a number is


def numbers_of(known: Mapping[str, LabelIdentity]) -> dict[str, int]:
    """Return the number of each set of labels."""
    return {one.label: one.id for one in known.values()}


def pod_identities(
    pods: Mapping[str, Pod], namespaces: Mapping[str, Namespace], numbers: Mapping[str, int], node: str
) -> dict[Address, int]:
    """Return the number of each Pod of a Node by its addresses; of Pods without a number nothing is said.

    Of several Pods with one address the newest has it: the others are about to go.
    """
    found: dict[Address, int] = {}
    for pod in sorted(pods.values(), key=lambda pod: seniority(pod.meta)):
        namespace = namespaces.get(pod.meta.namespace)
        if pod.node_name == node:
            text = "" if namespace is None else labels.identity(namespace.labels, pod.labels)
            for address in pod.ips:
                found.pop(address, None)
                if text in numbers and refuse_address(address) is None:
                    found[address] = numbers[text]
    return found


def claimed_identities(known: Mapping[str, LabelIdentity]) -> dict[str, tuple[int, ...]]:
    """Return the numbers that each cluster may use, sorted."""
    found: dict[str, set[int]] = {}
    for one in known.values():
        for cluster in one.clusters or ():
            found.setdefault(cluster, set()).add(one.id)
    return {cluster: tuple(sorted(numbers)) for cluster, numbers in found.items()}


def unclaimed_identities(known: Mapping[str, LabelIdentity]) -> tuple[int, ...]:
    """Return the numbers that any cluster may use, sorted: nobody says whose they are."""
    return tuple(sorted({one.id for one in known.values() if one.clusters is None}))
