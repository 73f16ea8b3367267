"""This cluster as one of its Nodes sees it: its role, its peers, and which addresses are where.

Decides from checked Nodes and accepted gateways, each refusal with a Problem. Single Pods come in a second step,
because they change often. Knows nothing of remote clusters, flows or routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcagent.core.addresses.rules import merge_networks, outermost_networks, routable_networks
from mcagent.core.local_cluster.nodes import (
    CheckedNode,
    PodHosts,
    all_addresses,
    ends_of,
    mapped_address,
    networks_of_nodes,
    own_addresses,
    tunnel_addresses,
)
from mcagent.model.config import Config
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address, Network, host_network, overlaps
from mcagent.model.node_state import LocalGateway, Role
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem, Severity

ALWAYS_NEEDED = frozenset({Kind.GATEWAY, Kind.CLUSTER_INFO_IMPORT, Kind.NODE})
SERVICE_NEEDS = frozenset({Kind.SERVICE, Kind.SERVICE_EXPORT, Kind.ENDPOINT_SLICE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPeer:
    """A Node of this cluster. `networks` are the addresses that live on it."""

    name: str
    address: Address | None  # of its tunnels; None when it has none that can be used
    gateway: bool
    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """This cluster. Without a role nothing but the bare bridge is wanted."""

    role: Role
    why: str  # why there is no role, for people
    own: LocalPeer | None  # this Node
    peers: tuple[LocalPeer, ...]  # the Nodes to have tunnels with, by name
    gateways: tuple[LocalGateway, ...]  # all that are used, by Node name
    own_gateway: LocalGateway | None  # this Node's, if it serves as one
    own_source: Address | None  # of packets from this Node's own processes, which are IPv4
    own_mapped_address: Address | None  # the same, where this Node has no IPv4 address: then the host port has it
    service_cidrs: tuple[Network, ...]
    pods: tuple[Network, ...]  # this cluster's Pod CIDRs, as far as known
    own_pods: tuple[Network, ...]  # sources on this Node that keep their address: disjoint
    published_pods: tuple[Network, ...]  # what other clusters may reach; empty: no Pod-to-Pod
    node_cidrs: tuple[Network, ...]  # Pod CIDRs of Nodes, as far as they are used
    taken: tuple[tuple[Network, str], ...]  # what a remote cluster may not have, and what it is
    node_addresses: tuple[tuple[Address, str], ...]
    networks: tuple[Network, ...]  # what lives on Nodes, beside single Pods
    one_by_one: frozenset[str]  # the Nodes whose Pods have to be known one by one here
    own_one_by_one: bool  # what this Node's Pods send keeps its address because the Pods are known
    bfd_on_workers: bool  # not too many for BFD between gateways and them
    needs: frozenset[Kind]  # kinds that this cluster follows from
    problems: tuple[Problem, ...]

    @property
    def own_gateway_ip(self) -> Address | None:
        """The gatewayIP of this Node, if it serves as a gateway."""
        return self.own_gateway.gateway_ip if self.own_gateway is not None else None

    @property
    def hosts(self) -> frozenset[int]:
        """Addresses that are no Pod's, because they are somebody's alone."""
        known = (*self.networks, *self.service_cidrs)
        return frozenset(int(n.network_address) for n in known if n.prefixlen == n.max_prefixlen)

    def serves(self, datapath: DatapathType) -> bool:
        """Tell whether exported Services matter here: to gateways, and to a Node that can lose its conntrack.

        That of the userspace datapath goes with ovs-vswitchd's process; the kernel keeps its own.
        """
        return self.role is Role.GATEWAY or (self.role is Role.WORKER and datapath is DatapathType.NETDEV)


def local_cluster(
    nodes: Mapping[str, CheckedNode], gateways: tuple[LocalGateway, ...], config: Config
) -> LocalCluster:
    """Return this cluster as Node `config.node_name` sees it, without single Pods."""
    problems: list[Problem] = []
    by_node = {gateway.node: gateway for gateway in gateways}
    own_node = nodes.get(config.node_name)
    own_gateway = by_node.get(config.node_name) if config.enable_gateway else None
    service_cidrs = outermost_networks(g.service_cidr for g in gateways if g.service_cidr is not None)
    configured = _beside(routable_networks(config.pod_cidrs), service_cidrs, problems)
    cidrs = (cidr for node in nodes.values() if not node.per_pod for _, cidr in node.pod_cidrs)
    node_cidrs = outermost_networks(c for c in cidrs if not any(overlaps(c, cidr) for cidr in service_cidrs))
    pods = configured or node_cidrs
    own_per_pod = own_node is not None and own_node.per_pod
    if config.enable_gateway and not configured:
        _report_missing_pod_cidrs(config, own_per_pod and own_gateway is None, bool(pods), problems)

    names = sorted(nodes) if own_gateway is not None else [config.node_name] if own_node is not None else []
    networks = networks_of_nodes([nodes[name] for name in names], by_node, service_cidrs, problems)
    if own_node is not None and own_per_pod and own_gateway is None and configured:
        # a worker needs no list of its Pods: only what is for it comes to it
        own_networks = (*configured, *own_addresses(own_node, by_node.get(config.node_name)))
        networks[config.node_name] = tuple(dict.fromkeys(own_networks))
    addresses = tunnel_addresses(nodes, gateways, config.node_name, problems)

    own = None
    if own_node is not None and config.node_name in addresses:
        own = LocalPeer(
            name=config.node_name,
            address=addresses[config.node_name],
            gateway=own_gateway is not None,
            networks=networks[config.node_name],
        )
    why = _why_no_role(config, own_node, own, gateways, addresses)
    per_pod = {name for name in names if nodes[name].per_pod}
    needs_pods = own_gateway is not None or not configured
    mapped = None
    if own_node is not None and own is not None:
        mapped = mapped_address(ends_of(own_node, by_node.get(config.node_name)))
    peers = names if own_gateway is not None else [gateway.node for gateway in gateways]
    found = LocalCluster(
        role=Role.NONE if why else Role.GATEWAY if own_gateway is not None else Role.WORKER,
        why=why,
        own=own,
        peers=tuple(
            LocalPeer(
                name=name, address=addresses.get(name), gateway=name in by_node, networks=networks.get(name, ())
            )
            for name in peers
            if name != config.node_name
        ),
        gateways=gateways,
        own_gateway=own_gateway,
        own_source=mapped or _own_source(own, own_node),
        own_mapped_address=mapped,
        service_cidrs=service_cidrs,
        pods=pods,
        own_pods=(),
        published_pods=merge_networks(pods) if config.enable_pod_to_pod else (),
        node_cidrs=node_cidrs,
        taken=_taken(nodes, gateways, (*pods, *node_cidrs)),
        node_addresses=all_addresses(nodes, gateways),
        networks=tuple(network for found in networks.values() for network in found),
        one_by_one=frozenset(per_pod) if needs_pods else frozenset(),
        own_one_by_one=own_per_pod and not configured,
        bfd_on_workers=len(nodes.keys() - by_node.keys()) <= config.bfd_max_nodes,
        needs=_needs(own_gateway is not None, bool(per_pod) and needs_pods),
        problems=tuple(problems),
    )
    return replace(found, own_pods=_own_pods(found))


def with_pods(local: LocalCluster, pods: PodHosts) -> LocalCluster:
    """Return this cluster with the Pods that are known one by one."""

    def among(peer: LocalPeer) -> LocalPeer:
        networks = pods.by_node.get(peer.name)
        return peer if networks is None else replace(peer, networks=(*peer.networks, *networks))

    own = among(local.own) if local.own is not None else None
    found = replace(local, own=own, peers=tuple(map(among, local.peers)))
    return replace(found, own_pods=_own_pods(found))


def _own_pods(local: LocalCluster) -> tuple[Network, ...]:
    own = local.own.networks if local.own is not None and local.own_one_by_one else ()
    mapped = () if local.own_mapped_address is None else (host_network(local.own_mapped_address),)
    return merge_networks((*local.pods, *own, *mapped))


def source_on(local: LocalCluster, facts: Facts) -> tuple[Address | None, tuple[Problem, ...]]:
    """Return the source of packets from this Node's own processes; None where the kernel has to choose.

    It refuses a route whose source address is not its own (fib_valid_prefsrc in net/ipv4/fib_semantics.c).
    """
    address = local.own_source
    if address is None or address == local.own_mapped_address or not facts.addresses or address in facts.addresses:
        return address, ()
    subject = f"{Kind.NODE} {local.own.name if local.own is not None else ''}"
    message = f"{address} is on no device of this Node: its own processes do not reach other clusters"
    return None, (Problem(subject, "status.addresses", "AddressNotHere", message, Severity.WARNING),)


def uplink_problems(local: LocalCluster, facts: Facts) -> tuple[Problem, ...]:
    """Report of an uplink by which a userspace datapath sends nothing (Open vSwitch: userspace.rst)."""
    if local.own is None or not facts.uplink_outside:
        return ()
    message = (
        f"{facts.uplink_outside}, which has this Node's address, is not an Open vSwitch bridge: the userspace "
        "datapath sends tunnel packets only through one that contains the uplink"
    )
    node = f"{Kind.NODE} {local.own.name}"
    return (Problem(node, "status.addresses", "UplinkOutside", message, Severity.WARNING),)


def _needs(gateway: bool, pods: bool) -> frozenset[Kind]:
    return ALWAYS_NEEDED | (SERVICE_NEEDS if gateway else frozenset()) | ({Kind.POD} if pods else frozenset())


def _own_source(own: LocalPeer | None, node: CheckedNode | None) -> Address | None:
    """Return where this Node's tunnels end or, where that is IPv6, its first IPv4 address."""
    if own is None or node is None:
        return None
    return next((a for a in (own.address, *node.ends) if a is not None and a.version == 4), None)


def _why_no_role(
    config: Config,
    node: CheckedNode | None,
    own: LocalPeer | None,
    gateways: tuple[LocalGateway, ...],
    addresses: Mapping[str, Address],
) -> str:
    if not config.enable_gateway:
        return "enableGateway is false"
    if node is None:
        return f'there is no Node "{config.node_name}" yet'
    if own is None:
        return f'Node "{config.node_name}" has no usable InternalIP'
    if not gateways:
        return "no Gateway is known"
    if not any(gateway.node in addresses for gateway in gateways):
        return "no Gateway has an internalIP of this Node's address family"
    return ""


def _beside(
    pods: tuple[Network, ...], service_cidrs: tuple[Network, ...], problems: list[Problem]
) -> tuple[Network, ...]:
    """Return the configured Pod CIDRs that do not overlap the Service CIDR."""
    kept = tuple(n for n in pods if not any(overlaps(n, cidr) for cidr in service_cidrs))
    for network in (n for n in pods if n not in kept):
        message = f"{network} overlaps this cluster's Service CIDR: not used"
        problems.append(Problem("configuration", "podCIDRs", "OverlapsLocal", message))
    return kept


def _taken(
    nodes: Mapping[str, CheckedNode], gateways: tuple[LocalGateway, ...], pods: tuple[Network, ...]
) -> tuple[tuple[Network, str], ...]:
    found: dict[Network, str] = {}
    for gateway in gateways:
        if gateway.service_cidr is not None:
            found.setdefault(gateway.service_cidr, "this cluster's Service CIDR")
    for network in pods:
        found.setdefault(network, "a Pod CIDR of this cluster")
    for address, who in all_addresses(nodes, gateways):
        found.setdefault(host_network(address), f"the address of {who}")
    return tuple(found.items())


def _report_missing_pod_cidrs(config: Config, worker_per_pod: bool, known: bool, problems: list[Problem]) -> None:
    reason = ""
    if worker_per_pod:
        reason = (
            "is not set and this Node has no Pod CIDR: only Pods that are known already are reached; "
            "set it to the range that the Pods' addresses come from"
        )
    elif config.enable_pod_to_pod and not known:
        reason = "is not set and no Node has a Pod CIDR: enablePodToPodConnectivity has nothing to publish"
    if reason:
        problems.append(Problem("configuration", "podCIDRs", "PodCIDRsMissing", reason, Severity.WARNING))
