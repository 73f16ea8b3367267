"""Check `pod-routing`: Pods that gateways do not find, as they are outside of their Nodes' Pod CIDRs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcagent.api.doctor import CheckFinding
from mcagent.core.causes import CAUSES
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.checks.cluster.agents import nodes
from mcagent.doctor.examined import ExaminedCluster
from mcagent.model.api.kubernetes import ApiPod
from mcagent.model.config import PodRouting
from mcagent.model.net import Address, Network, address_or_none, contains, network_or_none

_CAUSE = CAUSES["PodsOutsideCIDRs"]
CHECK = DoctorCheck(
    name="pod-routing",
    order=258,
    summary="Pods that gateways do not find, as they are outside of their Nodes' Pod CIDRs",
    causes={
        "PodsOutsideCIDRs": failed(_CAUSE.why, _CAUSE.do),  # a problem of the input as well
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPod:
    """A Pod with an address of its own."""

    name: str  # with its namespace
    node: str
    address: Address


def placed_pods(cluster: ExaminedCluster) -> tuple[PlacedPod, ...]:
    """Return the Pods with IPv4 addresses of their own. Raises SourceError."""
    return tuple(placed for pod in cluster.objects(ApiPod) for placed in places_of(pod))


def places_of(pod: ApiPod) -> Iterator[PlacedPod]:
    """Yield the IPv4 addresses of one Pod; none in the host network, and none of a Pod that ended."""
    if pod.spec.host_network or pod.status.is_finished:
        return
    for entry in pod.status.pod_ips:
        address = address_or_none(entry.ip)
        if address is not None and address.version == 4:
            yield PlacedPod(name=pod.key, node=pod.spec.node_name, address=address)


def cidrs_by_node(cluster: ExaminedCluster) -> dict[str, tuple[Network, ...]]:
    """Return the Pod CIDRs of the Nodes whose Pods are located by them. Raises SourceError."""
    routing = cluster.config.pod_routing
    if routing is PodRouting.PER_POD:
        return {}
    cidrs = {node.name: tuple(_networks(node.spec.pod_cidrs)) for node in cluster.read(nodes)}
    return {name: networks for name, networks in cidrs.items() if networks or routing is PodRouting.NODE_CIDR}


def _networks(cidrs: tuple[str, ...]) -> Iterator[Network]:
    for network in map(network_or_none, cidrs):
        if network is not None and network.version == 4:
            yield network


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Compare the address of each Pod with the Pod CIDRs of its Node."""
    cidrs = cidrs_by_node(cluster)
    if not cidrs:
        yield CHECK.passed("gateways find Pods by their objects")
        return
    pods = [pod for pod in cluster.read(placed_pods) if pod.node in cidrs]
    outside = [pod for pod in pods if not any(contains(cidr, pod.address) for cidr in cidrs[pod.node])]
    if outside:
        first = min(outside, key=lambda pod: pod.name)
        share = f"{len(outside)} of {len(pods)} Pods, on {len({pod.node for pod in outside})} Nodes"
        of_node = ", ".join(map(str, cidrs[first.node])) or "no Pod CIDR"
        text = f"{share}: {first.name} has {first.address}, Node {first.node} has {of_node}"
        yield CHECK.finding("PodsOutsideCIDRs", text)
    else:
        yield CHECK.passed(f"{len(pods)} Pods are in the Pod CIDRs of their Nodes")
