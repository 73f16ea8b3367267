"""The Nodes of this cluster: where each one's tunnels end, and which networks live on it.

Refuses what cannot be, each with a Problem. Knows nothing of roles, remote clusters or flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import refuse_address, refuse_network
from mcagent.core.addresses.underlay import family, first_usable, source_of
from mcagent.model.config import Config, PodRouting
from mcagent.model.net import Address, Network, host_network, overlaps
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import Meta, Node, Snapshot
from mcagent.model.problem import Problem


def seniority(meta: Meta) -> tuple[str, str, str]:
    """Return the order in which objects get what several want: the oldest first."""
    return (meta.created, meta.name, meta.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """The IP version of the underlay: the one with the larger header where there are both."""

    within: int = 4  # of tunnels between Nodes of this cluster
    between: int = 4  # between gateways of different clusters, which have the family of ours

    @classmethod
    def of(cls, gateways: Iterable[LocalGateway]) -> Families:
        """Return what the gateways of this cluster lead to: the same on all its Nodes."""
        gateways = tuple(gateways)
        return cls(
            within=max((gateway.internal_ip.version for gateway in gateways), default=4),
            between=max((gateway.gateway_ip.version for gateway in gateways), default=4),
        )


def is_per_pod(node: Node, config: Config) -> bool:
    """Tell whether this Node's Pods are known one by one: always, never, or where it has no usable Pod CIDR."""
    if config.pod_routing is PodRouting.AUTO:
        return not any(refuse_network(cidr) is None for cidr in node.pod_cidrs)
    return config.pod_routing is PodRouting.PER_POD


def own_addresses(node: Node, gateway: LocalGateway | None) -> tuple[Network, ...]:
    """Return the Node's own addresses as networks: IPv4, as what tunnels carry, or what stands for IPv6."""
    found = {host_network(a): None for a in node.internal_ips if refuse_address(a) is None}
    if gateway is not None and refuse_address(gateway.internal_ip) is None:
        found[host_network(gateway.internal_ip)] = None
    mapped = own_mapped_address(node, gateway)
    return tuple(found) if mapped is None else (host_network(mapped),)


def own_mapped_address(node: Node, gateway: LocalGateway | None) -> Address | None:
    """Return the IPv4 address of a Node's own processes between clusters; None where it has one of its own."""
    given = (*((gateway.internal_ip,) if gateway is not None else ()), *node.internal_ips)
    if any(refuse_address(address) is None for address in given):
        return None
    address = first_usable(given)
    return source_of(address) if address is not None else None


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
    snapshot: Snapshot, gateways: tuple[LocalGateway, ...], own: str, problems: list[Problem]
) -> dict[str, Address]:
    """Return where each Node's tunnels end, as Node `own` reaches it.

    A gateway's do at its internalIP. A worker's do at its first usable InternalIP: as a gateway sees it, of the
    family of its own internalIP, else IPv4 where it has one. Nodes that share no family are told.
    """
    found = {gateway.node: gateway.internal_ip for gateway in gateways}
    holders = {address: name for name, address in found.items()}
    here = found.get(own)  # of this Node, if it is a gateway
    for node in sorted(snapshot.nodes.values(), key=lambda n: seniority(n.meta)):
        name = node.meta.name
        if name in found:
            continue
        address = first_usable(node.internal_ips, here.version if here is not None else 0)
        if address is None:
            other = first_usable(node.internal_ips)
            if here is not None and other is not None:
                problems.append(
                    _mixed(node.meta, "status.addresses", (f"its InternalIP {other}", other), (own, here))
                )
                continue
            message = "no InternalIP that can be used: there is no tunnel to this Node"
            problems.append(problem_of(node.meta, "status.addresses", "NoUsableAddress", message))
        elif address in holders:
            message = f'{address} is the address of Node "{holders[address]}" already: no tunnel to this one'
            problems.append(problem_of(node.meta, "status.addresses", "DuplicateAddress", message))
        else:
            found[name] = address
            holders[address] = name
    for gateway in gateways:
        one = _own_end(snapshot, own, here, gateway.internal_ip.version)
        if gateway.node != own and one is not None and one.version != gateway.internal_ip.version:
            there = (f"internalIP {gateway.internal_ip} of its Gateway", gateway.internal_ip)
            problems.append(_mixed(snapshot.nodes[gateway.node].meta, "", there, (own, one)))
            del found[gateway.node]
    return found


def _own_end(snapshot: Snapshot, own: str, here: Address | None, version: int) -> Address | None:
    """Return where a peer of this IP version is reached from: `here`, if this Node is a gateway."""
    if here is not None or own not in snapshot.nodes:
        return here
    addresses = snapshot.nodes[own].internal_ips
    return first_usable(addresses, version) or first_usable(addresses)


def _mixed(meta: Meta, path: str, there: tuple[str, Address], here: tuple[str, Address]) -> Problem:
    """Return the problem of two Nodes without a common family; `there` and `here` say what is of which."""
    message = (
        f'no tunnel between this Node and "{here[0]}": {there[0]} is {family(there[1])}, and {here[1]} of '
        f'"{here[0]}" is {family(here[1])}; both need InternalIPs of one family'
    )
    return problem_of(meta, path, "MixedFamilies", message)


def all_addresses(snapshot: Snapshot, gateways: tuple[LocalGateway, ...]) -> tuple[tuple[Address, str], ...]:
    """Return every address that a Node or Gateway of this cluster has or is known by, and whose it is."""
    found: dict[Address, str] = {}
    for gateway in gateways:
        who = f'Gateway "{gateway.node}"'
        found |= dict.fromkeys((gateway.gateway_ip, gateway.internal_ip, source_of(gateway.gateway_ip)), who)
    for _, node in sorted(snapshot.nodes.items()):
        mapped = own_mapped_address(node, None)
        for address in (*node.internal_ips, *node.external_ips, *(() if mapped is None else (mapped,))):
            found.setdefault(address, f'Node "{node.meta.name}"')
    return tuple(sorted(found.items(), key=lambda item: (item[0].version, int(item[0]))))


def problem_of(meta: Meta, path: str, reason: str, message: str) -> Problem:
    """Return a problem of this object."""
    return Problem(subject=meta.subject, path=path, reason=reason, message=message)
