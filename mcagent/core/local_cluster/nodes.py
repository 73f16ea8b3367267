"""The Nodes and Pods of this cluster: where each Node's tunnels end, and which networks live on it.

`check_node` and `check_pod` turn objects into what can be used of them; what follows trusts that. Refuses what
cannot be, each with a Problem. Single Pods count where Nodes have no Pod CIDR: there may be ten thousand, and one
changes at a time, so what one says is worked out once and the rest are loops over integers. Knows nothing of
roles, remote clusters or flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mcagent.core.addresses.rules import refuse_address, refuse_network
from mcagent.core.addresses.underlay import family, preferred_address, source_of, usable_tunnel_addresses
from mcagent.model.config import PodRouting
from mcagent.model.net import Address, Network, host_network, overlaps
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import Meta, Node, Pod
from mcagent.model.problem import Problem


class Standby(StrEnum):
    """Why a gateway takes no new connections while another is there: the words of `LocalGateway.standby`."""

    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    LEAVING = "Leaving"


def seniority(meta: Meta) -> tuple[str, str, str]:
    """Return the order in which objects get what several want: the oldest first."""
    return (meta.created, meta.name, meta.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNode:
    """A Node, as far as it can be used."""

    meta: Meta
    ends: tuple[Address, ...]  # InternalIPs at which tunnels can end
    mapped: Address | None  # the IPv4 address that stands for it between clusters; None: it has one of its own
    addresses: tuple[Address, ...]  # all that it has or is known by
    pod_cidrs: tuple[tuple[str, Network], ...]  # each with its path
    per_pod: bool  # its Pods are known one by one
    standby: str  # why it should not serve as a gateway; "" if it should


def check_node(node: Node, routing: PodRouting) -> CheckedNode:
    """Return what can be used of a Node. Pods are known one by one always, never, or where it has no Pod CIDR."""
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
    )


def _standby(node: Node) -> str:
    if node.drain:
        return Standby.DRAINING
    if not node.ready:
        return Standby.NOT_READY
    return Standby.CORDONED if node.unschedulable else ""


def mapped_address(ends: Iterable[Address]) -> Address | None:
    """Return the IPv4 address of the processes of a Node with these ends; None where it has one of its own."""
    ends = tuple(ends)
    return source_of(ends[0]) if ends and all(address.version == 6 for address in ends) else None


def ends_of(node: CheckedNode, gateway: LocalGateway | None) -> tuple[Address, ...]:
    """Return where a Node can be reached, as a gateway at its internalIP first."""
    return node.ends if gateway is None else (gateway.internal_ip, *node.ends)


def own_addresses(node: CheckedNode, gateway: LocalGateway | None) -> tuple[Network, ...]:
    """Return the Node's own addresses as networks: IPv4, as what tunnels carry, or the one it is mapped to."""
    ends = ends_of(node, gateway)
    mapped = mapped_address(ends)
    if mapped is not None:
        return (host_network(mapped),)
    return tuple(host_network(address) for address in dict.fromkeys(ends) if address.version == 4)


def networks_of_nodes(
    nodes: Iterable[CheckedNode],
    gateways: Mapping[str, LocalGateway],
    service_cidrs: tuple[Network, ...],
    problems: list[Problem],
) -> dict[str, tuple[Network, ...]]:
    """Return what lives on each Node beside single Pods: its addresses and Pod CIDRs. The older has equal ones."""
    found: dict[str, tuple[Network, ...]] = {}
    holders: dict[Network, str] = {}
    for node in sorted(nodes, key=lambda node: seniority(node.meta)):
        name = node.meta.name
        networks: list[Network] = []
        for network in own_addresses(node, gateways.get(name)):
            # two Nodes with one address: reported where tunnels are decided
            if network not in holders and network not in service_cidrs:
                holders[network] = name
                networks.append(network)
        for path, network in () if node.per_pod else node.pod_cidrs:
            overlapping = next((cidr for cidr in service_cidrs if overlaps(cidr, network)), None)
            if overlapping is not None:
                message = f"{network} overlaps this cluster's Service CIDR {overlapping}: not used"
                problems.append(node.meta.problem(path, "OverlapsLocal", message))
            elif network in holders:
                message = f'{network} belongs to Node "{holders[network]}" already: not used here'
                problems.append(node.meta.problem(path, "DuplicatePodCIDR", message))
            else:
                holders[network] = name
                networks.append(network)
        found[name] = tuple(sorted(networks))
    return {name: found[name] for name in sorted(found)}


def tunnel_addresses(
    nodes: Mapping[str, CheckedNode], gateways: tuple[LocalGateway, ...], own: str, problems: list[Problem]
) -> dict[str, Address]:
    """Return where each Node's tunnels end, as Node `own` reaches it.

    A gateway's do at its internalIP. A worker's do at its first usable InternalIP: as a gateway sees it, of the
    family of its own internalIP, else IPv4 where it has one. A problem names Nodes that share no family.
    """
    found = {gateway.node: gateway.internal_ip for gateway in gateways}
    holders = {address: name for name, address in found.items()}
    here = found.get(own)  # of this Node, if it is a gateway
    for node in sorted(nodes.values(), key=lambda node: seniority(node.meta)):
        name = node.meta.name
        if name in found:
            continue
        address = preferred_address(node.ends, here.version if here is not None else 0)
        if address is None:
            other = preferred_address(node.ends)
            if here is not None and other is not None:
                problems.append(
                    _mixed(node.meta, "status.addresses", (f"its InternalIP {other}", other), (own, here))
                )
                continue
            message = "no usable InternalIP: no tunnel to this Node"
            problems.append(node.meta.problem("status.addresses", "NoUsableAddress", message))
        elif address in holders:
            message = f'{address} already belongs to Node "{holders[address]}": no tunnel to this one'
            problems.append(node.meta.problem("status.addresses", "DuplicateAddress", message))
        else:
            found[name] = address
            holders[address] = name
    own_ends = (here,) if here is not None else nodes[own].ends if own in nodes else ()
    for gateway in gateways:
        there = gateway.internal_ip
        one = preferred_address(own_ends, there.version) or preferred_address(own_ends)
        if gateway.node != own and one is not None and one.version != there.version:
            meta, what = nodes[gateway.node].meta, f"internalIP {there} of its Gateway"
            problems.append(_mixed(meta, "", (what, there), (own, one)))
            del found[gateway.node]
    return found


def _mixed(meta: Meta, path: str, there: tuple[str, Address], here: tuple[str, Address]) -> Problem:
    """Return the problem of two Nodes without a common family; `there` and `here` say what is of which."""
    message = (
        f'no tunnel between this Node and "{here[0]}": {there[0]} is {family(there[1])}, and {here[1]} of '
        f'"{here[0]}" is {family(here[1])}; both need InternalIPs of one family'
    )
    return meta.problem(path, "MixedFamilies", message)


def all_addresses(
    nodes: Mapping[str, CheckedNode], gateways: tuple[LocalGateway, ...]
) -> tuple[tuple[Address, str], ...]:
    """Return every address that a Node or Gateway of this cluster has or is known by, and whose it is."""
    found: dict[Address, str] = {}
    for gateway in gateways:
        who = f'Gateway "{gateway.node}"'
        found |= dict.fromkeys((gateway.gateway_ip, gateway.internal_ip, gateway.source), who)
    for _, node in sorted(nodes.items()):
        for address in node.addresses:
            found.setdefault(address, f'Node "{node.meta.name}"')
    return tuple(sorted(found.items(), key=lambda item: (item[0].version, int(item[0]))))


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
