"""Which Pods live on which Node, for clusters whose Nodes have no Pod CIDR of their own.

There may be ten thousand Pods and one changes at a time: what one Pod says is worked out once, the rest are loops
over integers. Knows nothing of Nodes but their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import refuse_address
from mcagent.model.net import Network, host_network
from mcagent.model.objects import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """A Pod and its usable addresses, as integers and as networks."""

    pod: Pod
    hosts: tuple[tuple[int, Network], ...]


Places = Mapping[str, PodPlace]


def places_of(pods: Mapping[str, Pod], known: Places) -> Places:
    """Return the places of all Pods; those of Pods that did not change are taken from `known`."""
    found: dict[str, PodPlace] = {}
    for key, pod in pods.items():
        place = known.get(key)
        if place is None or place.pod is not pod:
            place = PodPlace(
                pod=pod, hosts=tuple((int(a), host_network(a)) for a in pod.ips if refuse_address(a) is None)
            )
        found[key] = place
    return found


def pods_by_node(
    places: Places, nodes: set[str], taken: set[int]
) -> tuple[dict[str, tuple[Network, ...]], frozenset[int]]:
    """Return the Pods' networks per Node, in order of address, and all their addresses; none that are `taken`.

    Of several Pods with one address the newest has it: the others are about to go.
    """
    holders: dict[int, tuple[PodPlace, Network]] = {}
    for place in places.values():
        if place.pod.node_name not in nodes:
            continue
        for host, network in place.hosts:
            other = holders.get(host)
            if other is None or _seniority(other[0]) < _seniority(place):
                holders[host] = (place, network)
    found: dict[str, list[Network]] = {}
    hosts = frozenset(holders.keys() - taken)
    for host in sorted(hosts):
        place, network = holders[host]
        found.setdefault(place.pod.node_name, []).append(network)
    return {name: tuple(networks) for name, networks in found.items()}, hosts


def _seniority(place: PodPlace) -> tuple[str, str, str]:
    meta = place.pod.meta
    return (meta.created, meta.name, meta.namespace)
