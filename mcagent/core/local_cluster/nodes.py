"""Nodes and Pods of this cluster: the tunnel endpoint and the networks of each Node.

`check_node` and `check_pod` reduce API objects to their valid parts, which all later steps trust; each refusal is
a Problem. Individual Pods count on Nodes without a Pod CIDR. There may be ten thousand of them, and they change
one at a time, so each is checked once and the later steps are loops over integers. Must not know roles, remote
clusters or flows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mcagent.core.addresses.rules import refuse_address, refuse_network
from mcagent.core.addresses.underlay import family, preferred_address, source_of, usable_tunnel_addresses
from mcagent.model.config import PodRouting
from mcagent.model.net import Address, Network, host_network, overlaps
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import Meta, Node, Pod, WireGuardInfo
from mcagent.model.problem import Problem


class Standby(StrEnum):
    """The reason why a gateway gets no new connections while another one is active: see `LocalGateway.standby`."""

    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    LEAVING = "Leaving"


def seniority(meta: Meta) -> tuple[str, str, str]:
    """Return the sort key by which objects that claim the same thing are ranked: the oldest first."""
    return (meta.created, meta.name, meta.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNode:
    """The valid parts of a Node."""

    meta: Meta
    ends: tuple[Address, ...]  # the InternalIPs that can be tunnel endpoints
    mapped: Address | None  # the IPv4 address that represents an IPv6 Node in other clusters
    addresses: tuple[Address, ...]  # internal, external and mapped addresses
    pod_cidrs: tuple[tuple[str, Network], ...]  # (path, CIDR)
    per_pod: bool  # its Pods are watched individually
    standby: str  # why it should not serve as a gateway; "" if it should
    ready: bool
    wireguard: WireGuardInfo | None = None  # the key by which the other Nodes of this cluster encrypt to it


def check_node(node: Node, routing: PodRouting) -> CheckedNode:
    """Check a Node. `routing` says whether its Pods are watched individually; AUTO: if it has no Pod CIDR."""
    ends = usable_tunnel_addresses(node.internal_ips)
    cidrs = tuple(
        (f"spec.podCIDRs[{index}]", cidr)
        for index, cidr in enumerate(node.pod_cidrs)
        if refuse_network(cidr) is None
    )
    mapped = mapped_address(ends)
    return CheckedNode(
        meta=node.meta,
        ends=ends,
        mapped=mapped,
        addresses=(*node.internal_ips, *node.external_ips, *(() if mapped is None else (mapped,))),
        pod_cidrs=cidrs,
        per_pod=not cidrs if routing is PodRouting.AUTO else routing is PodRouting.PER_POD,
        standby=_standby(node),
        ready=node.ready,
        wireguard=node.wireguard,
    )


def precedence(
    node: CheckedNode, own: str, gateways: Container[str] = ()
) -> tuple[bool, bool, bool, tuple[str, str, str]]:
    """Return the sort key by which Nodes that claim the same thing are ranked, as Node `own` does.

    Its own object is first, then those that are ready, since an object may outlive its Node; then gateways.
    """
    name = node.meta.name
    return (name != own, not node.ready, name not in gateways, seniority(node.meta))


def stale_object(loser: CheckedNode, holder: CheckedNode) -> str:
    """Return what to do about two Nodes that claim the same thing: one object may have outlived its Node."""
    name = loser.meta.name if holder.ready and not loser.ready else "NAME"
    return f"if one of the two Nodes no longer exists: kubectl delete node {name}"


def _standby(node: Node) -> str:
    if node.drain:
        return Standby.DRAINING
    if not node.ready:
        return Standby.NOT_READY
    return Standby.CORDONED if node.unschedulable else ""


def mapped_address(ends: Iterable[Address]) -> Address | None:
    """Return the IPv4 address that represents a Node with only IPv6 tunnel endpoints; None if one is IPv4."""
    ends = tuple(ends)
    return source_of(ends[0]) if ends and all(address.version == 6 for address in ends) else None


def ends_of(node: CheckedNode, gateway: LocalGateway | None) -> tuple[Address, ...]:
    """Return the possible tunnel endpoints of a Node, for a gateway its internalIP first."""
    return node.ends if gateway is None else (gateway.internal_ip, *node.ends)


def own_addresses(node: CheckedNode, gateway: LocalGateway | None) -> tuple[Network, ...]:
    """Return the Node's own IPv4 addresses, or its mapped address, as networks (tunnels carry IPv4 only)."""
    ends = ends_of(node, gateway)
    mapped = mapped_address(ends)
    if mapped is not None:
        return (host_network(mapped),)
    return tuple(host_network(address) for address in dict.fromkeys(ends) if address.version == 4)


def networks_of_nodes(
    nodes: Iterable[CheckedNode],
    gateways: Mapping[str, LocalGateway],
    service_cidrs: tuple[Network, ...],
    own: str,
    problems: list[Problem],
) -> dict[str, tuple[Network, ...]]:
    """Return the addresses and Pod CIDRs of each Node. Of two with one network, `precedence` says which has it."""
    networks_by_node: dict[str, tuple[Network, ...]] = {}
    holders: dict[Network, CheckedNode] = {}
    for node in sorted(nodes, key=lambda node: precedence(node, own, gateways)):
        name = node.meta.name
        networks: list[Network] = []
        for network in own_addresses(node, gateways.get(name)):
            # Two Nodes with one address: `tunnel_addresses` reports them.
            if network not in holders and network not in service_cidrs:
                holders[network] = node
                networks.append(network)
        for path, network in () if node.per_pod else node.pod_cidrs:
            overlapping = next((cidr for cidr in service_cidrs if overlaps(cidr, network)), None)
            if overlapping is not None:
                message = f"{network} overlaps this cluster's Service CIDR {overlapping}: not used"
                problems.append(node.meta.problem(path, "OverlapsLocal", message))
            elif network in holders:
                holder = holders[network]
                message = f'{network} belongs to Node "{holder.meta.name}" already: not used here'
                message += f"; {stale_object(node, holder)}"
                problems.append(node.meta.problem(path, "DuplicatePodCIDR", message))
            else:
                holders[network] = node
                networks.append(network)
        networks_by_node[name] = tuple(sorted(networks))
    return {name: networks_by_node[name] for name in sorted(networks_by_node)}


def tunnel_addresses(
    nodes: Mapping[str, CheckedNode], gateways: tuple[LocalGateway, ...], own: str, problems: list[Problem]
) -> dict[str, Address]:
    """Return the tunnel endpoint of each Node by name, as Node `own` reaches it.

    Of two Nodes with one endpoint, `precedence` says which has it.
    The endpoint of a gateway is its internalIP. The endpoint of a worker is its first usable InternalIP: on a
    gateway, of the family of the gateway's own internalIP, else preferably IPv4. Nodes without a common family are
    reported.
    """
    internal_ips = {gateway.node: gateway.internal_ip for gateway in gateways}
    endpoints: dict[str, Address] = {}
    holders: dict[Address, CheckedNode] = {}
    own_endpoint = internal_ips.get(own)  # None on workers
    family_version = own_endpoint.version if own_endpoint is not None else 0
    for node in sorted(nodes.values(), key=lambda node: precedence(node, own, internal_ips)):
        name = node.meta.name
        address = internal_ips.get(name) or preferred_address(node.ends, family_version)
        if address is None:
            other = preferred_address(node.ends)
            if own_endpoint is not None and other is not None:
                problems.append(
                    _mixed(node.meta, "status.addresses", (f"its InternalIP {other}", other), (own, own_endpoint))
                )
                continue
            message = "no usable InternalIP: no tunnel to this Node"
            problems.append(node.meta.problem("status.addresses", "NoUsableAddress", message))
        elif address in holders:
            holder = holders[address]
            message = f'{address} already belongs to Node "{holder.meta.name}": no tunnel to this one'
            message += f"; {stale_object(node, holder)}"
            problems.append(node.meta.problem("status.addresses", "DuplicateAddress", message))
        else:
            endpoints[name] = address
            holders[address] = node
    own_ends = (own_endpoint,) if own_endpoint is not None else nodes[own].ends if own in nodes else ()
    for gateway in gateways:
        internal_ip = gateway.internal_ip
        own_end = preferred_address(own_ends, internal_ip.version) or preferred_address(own_ends)
        if gateway.node != own and own_end is not None and own_end.version != internal_ip.version:
            meta, description = nodes[gateway.node].meta, f"internalIP {internal_ip} of its Gateway"
            problems.append(_mixed(meta, "", (description, internal_ip), (own, own_end)))
            endpoints.pop(gateway.node, None)
    return endpoints


def _mixed(meta: Meta, path: str, peer: tuple[str, Address], own: tuple[str, Address]) -> Problem:
    """Report two Nodes without a common address family. `peer`: (description, address); `own`: (Node, address)."""
    message = (
        f'no tunnel between this Node and "{own[0]}": {peer[0]} is {family(peer[1])}, and {own[1]} of '
        f'"{own[0]}" is {family(own[1])}; both need InternalIPs of one family'
    )
    return meta.problem(path, "MixedFamilies", message)


def all_addresses(
    nodes: Mapping[str, CheckedNode], gateways: tuple[LocalGateway, ...]
) -> tuple[tuple[Address, str], ...]:
    """Return all addresses of Nodes and Gateways of this cluster, sorted, each with its owner (`Node "n1"`)."""
    owners: dict[Address, str] = {}
    for gateway in gateways:
        owner = f'Gateway "{gateway.node}"'
        owners |= dict.fromkeys((gateway.gateway_ip, gateway.internal_ip, gateway.source), owner)
    for _, node in sorted(nodes.items()):
        for address in node.addresses:
            owners.setdefault(address, f'Node "{node.meta.name}"')
    return tuple(sorted(owners.items(), key=lambda item: (item[0].version, int(item[0]))))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPod:
    """A Pod with its valid addresses, each as an integer and as a network."""

    meta: Meta
    node_name: str
    hosts: tuple[tuple[int, Network], ...]


def check_pod(pod: Pod) -> CheckedPod:
    """Drop the addresses of a Pod that cannot be routed to."""
    hosts = tuple((int(address), host_network(address)) for address in pod.ips if refuse_address(address) is None)
    return CheckedPod(meta=pod.meta, node_name=pod.node_name, hosts=hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHosts:
    """The individually watched Pods: networks by Node name, and all addresses as integers; both sorted."""

    by_node: Mapping[str, tuple[Network, ...]]
    hosts: tuple[int, ...]


NO_PODS = PodHosts(by_node={}, hosts=())


def pods_by_node(pods: Mapping[str, CheckedPod], nodes: frozenset[str], excluded: frozenset[int]) -> PodHosts:
    """Group the Pods of `nodes` by Node, without addresses in `excluded`.

    Of several Pods with one address only the newest counts: the others are being deleted.
    """
    holders: dict[int, tuple[CheckedPod, Network]] = {}
    for pod in pods.values():
        if pod.node_name not in nodes:
            continue
        for host, network in pod.hosts:
            other = holders.get(host)
            if other is None or seniority(other[0].meta) < seniority(pod.meta):
                holders[host] = (pod, network)
    by_node: dict[str, list[Network]] = {}
    hosts = sorted(holders.keys() - excluded)
    for host in hosts:
        pod, network = holders[host]
        by_node.setdefault(pod.node_name, []).append(network)
    return PodHosts(by_node={name: tuple(networks) for name, networks in by_node.items()}, hosts=tuple(hosts))
