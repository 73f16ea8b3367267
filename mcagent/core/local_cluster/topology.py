"""The local cluster as one of its Nodes sees it: the Node's role, its peers, and the networks of each Node.

Input: checked Nodes and accepted gateways; each refusal is a Problem. Individual Pods are added in a second step,
because they change often. Must not know remote clusters, flows or routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcagent.core.addresses.rules import merge_networks, outermost_networks, refuse_network, routable_networks
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
from mcagent.core.local_cluster.prefixes import prefixes_of
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.net import Address, Network, PodPrefix, host_network, overlaps
from mcagent.model.node_state import LocalGateway, NodeRole
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem, Severity

ALWAYS_NEEDED = frozenset({Kind.GATEWAY, Kind.CLUSTER_INFO_IMPORT, Kind.NODE})
SERVICE_NEEDS = frozenset({Kind.SERVICE, Kind.SERVICE_EXPORT, Kind.ENDPOINT_SLICE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPeer:
    """A Node of this cluster. `networks`: its own addresses, its Pod CIDRs and its individual Pods."""

    name: str
    address: Address | None  # its tunnel endpoint; None without a usable address
    gateway: bool
    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """The local cluster. Without a role the Node gets a bare bridge: no tunnels or flows."""

    role: NodeRole
    why: str  # why there is no role, for people
    drops: bool  # without a role: packets to other clusters are routed to the bare bridge, which drops them
    own: LocalPeer | None  # this Node
    own_addresses: tuple[Address, ...]  # IPv4, of this Node
    own_node_cidrs: tuple[Network, ...]  # Pod CIDRs of this Node, if they tell which Pods are its own
    peers: tuple[LocalPeer, ...]  # the Nodes that this Node has tunnels to, by name
    gateways: tuple[LocalGateway, ...]  # all accepted gateways, by Node name
    own_gateway: LocalGateway | None  # this Node's gateway, if it is one
    own_source: Address | None  # source of packets from this Node's own processes (IPv4)
    own_mapped_address: Address | None  # the same, on a Node without an IPv4 address: configured on the host port
    service_cidrs: tuple[Network, ...]  # as other clusters use them
    all_service_cidrs: tuple[Network, ...]  # these, and those of ClusterIPs where the cluster has an export range
    pods: tuple[Network, ...]  # the known Pod CIDRs of this cluster
    own_pods: tuple[Network, ...]  # sources on this Node that keep their address: disjoint
    published_pods: tuple[Network, ...]  # Pods that other clusters may reach; empty: no Pod-to-Pod
    prefixes: tuple[PodPrefix, ...]  # Pod CIDRs that other clusters know by a virtual one; others here are real
    node_cidrs: tuple[Network, ...]  # Pod CIDRs from Node objects, without refused ones
    reserved: tuple[tuple[Network, str], ...]  # networks that a remote cluster cannot have, with descriptions
    node_addresses: tuple[tuple[Address, str], ...]
    networks: tuple[Network, ...]  # the networks of all Nodes, without individual Pods
    per_pod_nodes: frozenset[str]  # Nodes whose Pods this Node has to watch individually
    own_per_pod: bool  # the sources that keep their address are this Node's individual Pods, not a CIDR
    bfd_on_workers: bool  # BFD runs between gateways and workers: there are not too many of them
    needs: frozenset[Kind]  # the kinds of objects that this value depends on
    problems: tuple[Problem, ...]

    @property
    def own_gateway_ip(self) -> Address | None:
        """The gatewayIP of this Node, if it is a gateway."""
        return self.own_gateway.gateway_ip if self.own_gateway is not None else None

    @property
    def hosts(self) -> frozenset[int]:
        """The single addresses of Nodes and Services, as integers: a Pod that reports one of them is ignored."""
        networks = (*self.networks, *self.all_service_cidrs)
        return frozenset(int(n.network_address) for n in networks if n.prefixlen == n.max_prefixlen)

    def serves(self, datapath: DatapathType) -> bool:
        """Tell whether this Node needs exported Services: a gateway does, and a worker with userspace datapath.

        Conntrack of the userspace datapath is lost with the ovs-vswitchd process; that of the kernel is not.
        """
        return self.role is NodeRole.GATEWAY or (self.role is NodeRole.WORKER and datapath is DatapathType.NETDEV)


def local_cluster(
    nodes: Mapping[str, CheckedNode],
    gateways: tuple[LocalGateway, ...],
    last_service_cidrs: tuple[Network, ...] | None,
    config: Config,
) -> LocalCluster:
    """Build the local cluster as Node `config.node_name` sees it, without individual Pods.

    `last_service_cidrs`: see `Snapshot.service_cidrs`; they count while there is no gateway.
    """
    problems: list[Problem] = []
    by_node = {gateway.node: gateway for gateway in gateways}
    own_node = nodes.get(config.node_name)
    own_gateway = by_node.get(config.node_name) if config.enable_gateway else None
    published_cidrs = _service_cidrs(gateways, last_service_cidrs, config)
    real_cidrs = (g.real_service_cidr for g in gateways if g.real_service_cidr is not None)
    service_cidrs = outermost_networks((*published_cidrs, *real_cidrs))
    configured_pods = _outside_service_cidrs(routable_networks(config.pod_cidrs), service_cidrs, problems)
    cidrs = (cidr for node in nodes.values() if not node.per_pod for _, cidr in node.pod_cidrs)
    node_cidrs = outermost_networks(c for c in cidrs if not any(overlaps(c, cidr) for cidr in service_cidrs))
    pods = configured_pods or node_cidrs
    own_per_pod = own_node is not None and own_node.per_pod
    if config.enable_gateway and not configured_pods:
        _report_missing_pod_cidrs(config, own_per_pod and own_gateway is None, bool(pods), problems)

    node_names = sorted(nodes) if own_gateway is not None else [config.node_name] if own_node is not None else []
    networks = networks_of_nodes(
        [nodes[name] for name in node_names], by_node, service_cidrs, config.node_name, problems
    )
    if own_node is not None and own_per_pod and own_gateway is None and configured_pods:
        # A worker needs no list of its Pods: gateways send it only packets for its own Pods.
        own_networks = (*configured_pods, *own_addresses(own_node, by_node.get(config.node_name)))
        networks[config.node_name] = tuple(dict.fromkeys(own_networks))
    prefixes = prefixes_of(gateways, service_cidrs)
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
    per_pod = {name for name in node_names if nodes[name].per_pod}
    needs_pods = own_gateway is not None or not configured_pods
    mapped_source = None
    if own_node is not None and own is not None:
        mapped_source = mapped_address(ends_of(own_node, by_node.get(config.node_name)))
    peer_names = node_names if own_gateway is not None else [gateway.node for gateway in gateways]
    cluster = LocalCluster(
        role=NodeRole.NONE if why else NodeRole.GATEWAY if own_gateway is not None else NodeRole.WORKER,
        why=why,
        # Whatever was known before a restart: else a new process sends to other clusters by the default route.
        drops=bool(why) and config.enable_gateway,
        own=own,
        peers=tuple(
            LocalPeer(
                name=name, address=addresses.get(name), gateway=name in by_node, networks=networks.get(name, ())
            )
            for name in peer_names
            if name != config.node_name
        ),
        gateways=gateways,
        own_gateway=own_gateway,
        own_source=mapped_source or _own_source(own, own_node),
        own_addresses=tuple(a for a in own_node.addresses if a.version == 4) if own_node is not None else (),
        own_node_cidrs=tuple(c for _, c in own_node.pod_cidrs if c.version == 4 and not own_node.per_pod)
        if own_node is not None
        else (),
        own_mapped_address=mapped_source,
        service_cidrs=outermost_networks(published_cidrs),
        all_service_cidrs=service_cidrs,
        pods=pods,
        own_pods=(),
        published_pods=merge_networks(pods) if config.enable_pod_to_pod else (),
        prefixes=prefixes,
        node_cidrs=node_cidrs,
        reserved=_reserved(nodes, gateways, service_cidrs, (*pods, *node_cidrs), prefixes),
        node_addresses=all_addresses(nodes, gateways),
        networks=tuple(network for node_networks in networks.values() for network in node_networks),
        per_pod_nodes=frozenset(per_pod) if needs_pods else frozenset(),
        own_per_pod=own_per_pod and not configured_pods,
        bfd_on_workers=len(nodes.keys() - by_node.keys()) <= config.bfd_max_nodes,
        needs=_needs(own_gateway is not None, bool(per_pod) and needs_pods),
        problems=tuple(problems),
    )
    return replace(cluster, own_pods=_own_pods(cluster))


def with_pods(local: LocalCluster, pods: PodHosts) -> LocalCluster:
    """Add the individual Pods to the networks of their Nodes."""

    def with_pod_networks(peer: LocalPeer) -> LocalPeer:
        networks = pods.by_node.get(peer.name)
        return peer if networks is None else replace(peer, networks=(*peer.networks, *networks))

    own = with_pod_networks(local.own) if local.own is not None else None
    with_networks = replace(local, own=own, peers=tuple(map(with_pod_networks, local.peers)))
    return replace(with_networks, own_pods=_own_pods(with_networks))


def _own_pods(local: LocalCluster) -> tuple[Network, ...]:
    own = local.own.networks if local.own is not None and local.own_per_pod else ()
    mapped = () if local.own_mapped_address is None else (host_network(local.own_mapped_address),)
    return merge_networks((*local.pods, *own, *mapped))


def dropping_problems(local: LocalCluster, config: Config) -> tuple[Problem, ...]:
    """Report that packets to other clusters are dropped."""
    message = f"{local.why}: packets to other clusters are dropped"
    return (Problem(f"{Kind.NODE} {config.node_name}", "", "NoRole", message),)


def route_source(local: LocalCluster, facts: Facts) -> tuple[Address | None, tuple[Problem, ...]]:
    """Return the source address of routes to other clusters; None leaves the choice to the kernel.

    The kernel refuses a route whose source address is on none of its devices (fib_valid_prefsrc in
    net/ipv4/fib_semantics.c).
    """
    address = local.own_source
    if address is None or address == local.own_mapped_address or not facts.addresses or address in facts.addresses:
        return address, ()
    subject = f"{Kind.NODE} {local.own.name if local.own is not None else ''}"
    message = f"{address} is on no device of this Node: its own processes do not reach other clusters"
    return None, (Problem(subject, "status.addresses", "AddressNotHere", message, Severity.WARNING),)


def uplink_problems(local: LocalCluster, facts: Facts) -> tuple[Problem, ...]:
    """Report an uplink through which a userspace datapath cannot send (Open vSwitch: userspace.rst)."""
    if local.own is None or not facts.uplink_outside:
        return ()
    message = (
        f"{facts.uplink_outside}, which has this Node's address, is not an Open vSwitch bridge: the userspace "
        "datapath sends tunnel packets only through one that contains the uplink"
    )
    node = f"{Kind.NODE} {local.own.name}"
    return (Problem(node, "status.addresses", "UplinkOutside", message, Severity.WARNING),)


def nodes_by_cidr(local: LocalCluster) -> frozenset[str]:
    """Return the Nodes that a gateway reaches, and whose Pods it locates by their Pod CIDRs."""
    peers = (*local.peers, *(() if local.own is None else (local.own,)))
    return frozenset(peer.name for peer in peers) - local.per_pod_nodes


def _needs(gateway: bool, pods: bool) -> frozenset[Kind]:
    return ALWAYS_NEEDED | (SERVICE_NEEDS if gateway else frozenset()) | ({Kind.POD} if pods else frozenset())


def _own_source(own: LocalPeer | None, node: CheckedNode | None) -> Address | None:
    """Return this Node's tunnel endpoint or, if that is IPv6, its first IPv4 address."""
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


def _service_cidrs(
    gateways: tuple[LocalGateway, ...], last: tuple[Network, ...] | None, config: Config
) -> tuple[Network, ...]:
    """Return the Service CIDRs of this cluster; before the first gateway, those of the configuration."""
    if gateways:
        return tuple(gateway.service_cidr for gateway in gateways if gateway.service_cidr is not None)
    if last is None:
        return config.service_cidrs
    return tuple(cidr for cidr in last if refuse_network(cidr) is None)


def _outside_service_cidrs(
    pods: tuple[Network, ...], service_cidrs: tuple[Network, ...], problems: list[Problem]
) -> tuple[Network, ...]:
    """Return the configured Pod CIDRs that do not overlap a Service CIDR."""
    allowed = tuple(n for n in pods if not any(overlaps(n, cidr) for cidr in service_cidrs))
    for network in (n for n in pods if n not in allowed):
        message = f"{network} overlaps this cluster's Service CIDR: not used"
        problems.append(Problem("configuration", "podCIDRs", "OverlapsLocal", message))
    return allowed


def _reserved(
    nodes: Mapping[str, CheckedNode],
    gateways: tuple[LocalGateway, ...],
    service_cidrs: tuple[Network, ...],
    pods: tuple[Network, ...],
    prefixes: tuple[PodPrefix, ...],
) -> tuple[tuple[Network, str], ...]:
    reserved = dict.fromkeys(service_cidrs, "this cluster's Service CIDR")
    for network in (*pods, *(prefix.real for prefix in prefixes)):
        reserved.setdefault(network, "a Pod CIDR of this cluster")
    for prefix in prefixes:
        reserved.setdefault(prefix.virtual, f"this cluster's virtual Pod CIDR in the place of {prefix.real}")
    for address, owner in all_addresses(nodes, gateways):
        reserved.setdefault(host_network(address), f"the address of {owner}")
    return tuple(reserved.items())


def _report_missing_pod_cidrs(
    config: Config, worker_per_pod: bool, pods_known: bool, problems: list[Problem]
) -> None:
    reason = ""
    if worker_per_pod:
        reason = (
            "is not set and this Node has no Pod CIDR: only Pods that are known already are reached; "
            "set it to the range that the Pods' addresses come from"
        )
    elif config.enable_pod_to_pod and not pods_known:
        reason = "is not set and no Node has a Pod CIDR: enablePodToPodConnectivity has nothing to publish"
    if reason:
        problems.append(Problem("configuration", "podCIDRs", "PodCIDRsMissing", reason, Severity.WARNING))
