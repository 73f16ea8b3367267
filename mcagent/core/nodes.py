"""The Nodes of this cluster: where each one's tunnels end, and which networks live on it.

Refuses what cannot be, each with a Problem. Knows nothing of roles, remote clusters or flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcagent.core.claims import refuse_address, refuse_network
from mcagent.model.config import Config, PodRouting
from mcagent.model.net import Address, Network, host_network, overlaps
from mcagent.model.objects import Meta, Node, Snapshot
from mcagent.model.problem import Problem


def seniority(meta: Meta) -> tuple[str, str, str]:
    """Return the order in which objects get what several want: the oldest first."""
    return (meta.created, meta.name, meta.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGateway:
    """A gateway of this cluster that is used."""

    node: str
    gateway_ip: Address  # where other clusters' gateways send to
    internal_ip: Address  # where this cluster's Nodes send to
    service_cidr: Network | None
    place: int = 0  # in the API's order, the oldest first
    reserve: str = ""  # why it takes no new connections while another is there; "" if it does


def is_per_pod(node: Node, config: Config) -> bool:
    """Tell whether this Node's Pods are known one by one: always, never, or where it has no usable Pod CIDR."""
    if config.pod_routing is PodRouting.AUTO:
        return not any(refuse_network(cidr) is None for cidr in node.pod_cidrs)
    return config.pod_routing is PodRouting.PER_POD


def own_addresses(node: Node, gateway: LocalGateway | None) -> tuple[Network, ...]:
    """Return the Node's own addresses as networks."""
    found = {host_network(a): None for a in node.internal_ips if refuse_address(a) is None}
    if gateway is not None:
        found[host_network(gateway.internal_ip)] = None
    return tuple(found)


def networks_of_nodes(
    snapshot: Snapshot,
    names: Iterable[str],
    *,
    per_pod: set[str],
    gateways: Mapping[str, LocalGateway],
    service_cidrs: tuple[Network, ...],
    problems: list[Problem],
) -> dict[str, tuple[Network, ...]]:
    """Return what lives on each Node beside single Pods: its addresses and Pod CIDRs. The older has equal ones."""
    nodes = {name: snapshot.nodes[name] for name in names}
    found: dict[str, list[Network]] = {name: [] for name in nodes}
    holders: dict[Network, str] = {}
    for name, node in sorted(nodes.items(), key=lambda item: seniority(item[1].meta)):
        for network in own_addresses(node, gateways.get(name)):
            # two Nodes with one address: told where tunnels are decided
            if network not in holders and network not in service_cidrs:
                holders[network] = name
                found[name].append(network)
        if name in per_pod:
            continue
        for index, network in enumerate(node.pod_cidrs):
            if refuse_network(network) is not None:
                continue
            overlapping = next((c for c in service_cidrs if overlaps(c, network)), None)
            if overlapping is not None:
                message = f"{network} overlaps this cluster's Service CIDR {overlapping}: not used"
                problems.append(problem_of(node.meta, f"spec.podCIDRs[{index}]", "OverlapsLocal", message))
                continue
            if network in holders:
                message = f'{network} belongs to Node "{holders[network]}" already: not used here'
                problems.append(problem_of(node.meta, f"spec.podCIDRs[{index}]", "DuplicatePodCIDR", message))
                continue
            holders[network] = name
            found[name].append(network)
    return {name: tuple(sorted(networks)) for name, networks in found.items()}


def tunnel_addresses(
    snapshot: Snapshot, gateways: tuple[LocalGateway, ...], problems: list[Problem]
) -> dict[str, Address]:
    """Return where each Node's tunnels end: a gateway's internalIP, else the first usable InternalIP."""
    found = {gateway.node: gateway.internal_ip for gateway in gateways}
    holders = {address: name for name, address in found.items()}
    for node in sorted(snapshot.nodes.values(), key=lambda n: seniority(n.meta)):
        name = node.meta.name
        if name in found:
            continue
        address = next((a for a in node.internal_ips if refuse_address(a) is None), None)
        if address is None:
            message = "no IPv4 InternalIP that can be used: there is no tunnel to this Node"
            problems.append(problem_of(node.meta, "status.addresses", "NoUsableAddress", message))
        elif address in holders:
            message = f'{address} is the address of Node "{holders[address]}" already: no tunnel to this one'
            problems.append(problem_of(node.meta, "status.addresses", "DuplicateAddress", message))
        else:
            found[name] = address
            holders[address] = name
    return found


def all_addresses(snapshot: Snapshot, gateways: tuple[LocalGateway, ...]) -> tuple[tuple[Address, str], ...]:
    """Return every address that a Node or Gateway of this cluster has, and whose it is."""
    found: dict[Address, str] = {}
    for gateway in gateways:
        found[gateway.gateway_ip] = found[gateway.internal_ip] = f'Gateway "{gateway.node}"'
    for _, node in sorted(snapshot.nodes.items()):
        for address in node.internal_ips:
            found.setdefault(address, f'Node "{node.meta.name}"')
    return tuple(sorted(found.items(), key=lambda item: (item[0].version, int(item[0]))))


def problem_of(meta: Meta, path: str, reason: str, message: str) -> Problem:
    """Return a problem of this object."""
    return Problem(subject=meta.subject, path=path, reason=reason, message=message)
