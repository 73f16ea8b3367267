"""Which Pods live on which Node, for clusters whose Nodes have no Pod CIDR of their own.

There may be ten thousand Pods and one changes at a time: what one Pod says is worked out once, the rest are loops
over integers. Knows nothing of Nodes but their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import refuse_address
from mcagent.core.local_cluster.nodes import seniority
from mcagent.model.net import Network, host_network
from mcagent.model.objects import Meta, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPod:
    """A Pod and its usable addresses, as integers and as networks."""

    meta: Meta
    node_name: str
    hosts: tuple[tuple[int, Network], ...]


def check_pod(pod: Pod) -> CheckedPod:
    """Return what can be used of a Pod."""
    hosts = tuple((int(address), host_network(address)) for address in pod.ips if refuse_address(address) is None)
    return CheckedPod(meta=pod.meta, node_name=pod.node_name, hosts=hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHosts:
    """Pods that are known one by one: their networks by Node, in order of address, and all addresses, sorted."""

    by_node: Mapping[str, tuple[Network, ...]]
    hosts: tuple[int, ...]


NO_PODS = PodHosts(by_node={}, hosts=())


def pods_by_node(pods: Mapping[str, CheckedPod], nodes: frozenset[str], taken: frozenset[int]) -> PodHosts:
    """Return the Pods of these Nodes with an address that is not `taken`.

    Of several Pods with one address the newest has it: the others are about to go.
    """
    holders: dict[int, tuple[CheckedPod, Network]] = {}
    for pod in pods.values():
        if pod.node_name not in nodes:
            continue
        for host, network in pod.hosts:
            other = holders.get(host)
            if other is None or seniority(other[0].meta) < seniority(pod.meta):
                holders[host] = (pod, network)
    found: dict[str, list[Network]] = {}
    hosts = sorted(holders.keys() - taken)
    for host in hosts:
        pod, network = holders[host]
        found.setdefault(pod.node_name, []).append(network)
    return PodHosts(by_node={name: tuple(networks) for name, networks in found.items()}, hosts=tuple(hosts))
