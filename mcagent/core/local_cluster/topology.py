"""This cluster as one of its Nodes sees it: gateways, Nodes, which addresses are where.

Decides what of the local Gateway, Node and Pod objects is used, each refusal with a Problem. Knows nothing
of remote clusters, flows or routes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from mcagent.core.addresses.rules import merged, refuse_address, usable
from mcagent.core.local_cluster.gateways import gateways_of
from mcagent.core.local_cluster.nodes import (
    all_addresses,
    is_per_pod,
    networks_of_nodes,
    own_addresses,
    own_mapped_address,
    tunnel_addresses,
)
from mcagent.core.local_cluster.pods import Places, places_of, pods_by_node
from mcagent.model.config import Config
from mcagent.model.net import Address, Network, host_network, overlaps
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import Kind, Node, Snapshot
from mcagent.model.problem import Problem, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPeer:
    """A Node of this cluster. `networks` are the addresses that live on it."""

    name: str
    address: Address | None  # of its tunnels; None when it has none that can be used
    gateway: bool
    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """This cluster. Without a role (`role` is "") nothing but the bare bridge is wanted."""

    role: str  # "gateway", "worker", or ""
    why: str  # why there is no role, for people
    own: LocalPeer | None  # this Node
    peers: tuple[LocalPeer, ...]  # the Nodes to have tunnels with, by name
    gateways: tuple[LocalGateway, ...]  # all that are used, by Node name
    own_gateway_ip: Address | None
    own_source: Address | None  # of packets from this Node's own processes, which are IPv4
    own_mapped_address: Address | None  # the same, where this Node has no IPv4 address: then the host port has it
    service_cidrs: tuple[Network, ...]
    pods: tuple[Network, ...]  # this cluster's Pod CIDRs, as far as known
    own_pods: tuple[Network, ...]  # sources on this Node that keep their address: disjoint
    published_pods: tuple[Network, ...]  # what other clusters may reach; empty: no Pod-to-Pod
    node_cidrs: tuple[Network, ...]  # Pod CIDRs of Nodes, as far as they are used
    pod_hosts: frozenset[int]  # addresses of Pods that are known one by one
    taken: tuple[tuple[Network, str], ...]  # what a remote cluster may not have, and what it is
    node_addresses: tuple[tuple[Address, str], ...]
    networks: tuple[Network, ...]  # what lives on Nodes, beside `pod_hosts`
    bfd_on_workers: bool  # not too many for BFD between gateways and them
    needs: frozenset[Kind]  # kinds that this Node's dataplane follows from
    problems: tuple[Problem, ...]
    places: Places = field(compare=False, repr=False)  # for the next call


NO_PLACES: Places = MappingProxyType({})
ALWAYS_NEEDED = frozenset({Kind.GATEWAY, Kind.CLUSTER_INFO_IMPORT, Kind.NODE})
SERVICE_NEEDS = frozenset({Kind.SERVICE, Kind.SERVICE_EXPORT, Kind.ENDPOINT_SLICE})


def build_local(snapshot: Snapshot, config: Config, known: Places = NO_PLACES) -> Local:
    """Return this cluster as `config.node_name` sees it. `known` are the `places` of any earlier result."""
    problems: list[Problem] = []
    gateways = gateways_of(snapshot, config, problems)
    by_node = {gateway.node: gateway for gateway in gateways}
    own_node = snapshot.nodes.get(config.node_name)
    own_gateway = by_node.get(config.node_name)
    is_gateway = own_gateway is not None and config.enable_gateway

    per_pod = {name for name, node in snapshot.nodes.items() if is_per_pod(node, config)}
    service_cidrs = usable(g.service_cidr for g in gateways if g.service_cidr is not None)
    configured = _beside(usable(config.pod_cidrs), service_cidrs, problems)
    node_cidrs = usable(
        c
        for name, n in snapshot.nodes.items()
        if name not in per_pod
        for c in n.pod_cidrs
        if not any(overlaps(c, service_cidr) for service_cidr in service_cidrs)
    )
    pods = configured or node_cidrs
    own_per_pod = config.node_name in per_pod
    if config.enable_gateway and not configured:
        _tell_missing_pod_cidrs(config, own_per_pod and not is_gateway, bool(pods), problems)

    names = sorted(snapshot.nodes) if is_gateway else [config.node_name] if own_node else []
    networks = networks_of_nodes(
        snapshot, names, per_pod=per_pod, gateways=by_node, service_cidrs=service_cidrs, problems=problems
    )
    if own_node and own_per_pod and not is_gateway and configured:
        # a worker needs no list of its Pods: only what is for it comes to it
        networks[config.node_name] = tuple(dict.fromkeys((*configured, *own_addresses(own_node, own_gateway))))
    coarse = tuple(network for found in networks.values() for network in found)
    places: Places = NO_PLACES
    hosts: frozenset[int] = frozenset()
    one_by_one = per_pod & networks.keys()
    if one_by_one and (is_gateway or not configured):
        places = places_of(snapshot.pods, known)
        single = {int(n.network_address) for n in (*coarse, *service_cidrs) if n.prefixlen == n.max_prefixlen}
        of_pods, hosts = pods_by_node(places, one_by_one, single)
        networks |= {name: (*networks[name], *found) for name, found in of_pods.items()}
    addresses = tunnel_addresses(snapshot, gateways, config.node_name, problems)

    own = None
    if own_node is not None and config.node_name in addresses:
        own = LocalPeer(
            name=config.node_name,
            address=addresses[config.node_name],
            gateway=is_gateway,
            networks=networks[config.node_name],
        )
    peer_names = names if is_gateway else [gateway.node for gateway in gateways]
    reached = tuple(g for g in gateways if g.node in addresses)
    why = _why_no_role(config, own_node, own, reached or gateways)
    if not why and not reached:
        why = "no Gateway has an internalIP of a family that this Node has, too"
    needs = ALWAYS_NEEDED
    if is_gateway:
        needs |= SERVICE_NEEDS
    if (is_gateway and per_pod) or (own_per_pod and not configured):
        needs |= {Kind.POD}
    own_pods = merged(pods)
    if own is not None and own_per_pod and not configured:
        own_pods = merged((*pods, *own.networks))
    mapped = own_mapped_address(own_node, own_gateway) if own_node is not None and own is not None else None
    if mapped is not None:
        own_pods = merged((*own_pods, host_network(mapped)))
    return Local(
        role="" if why else "gateway" if is_gateway else "worker",
        why=why,
        own=own,
        peers=tuple(
            LocalPeer(
                name=name, address=addresses.get(name), gateway=name in by_node, networks=networks.get(name, ())
            )
            for name in peer_names
            if name != config.node_name
        ),
        gateways=gateways,
        own_gateway_ip=own_gateway.gateway_ip if own_gateway is not None and is_gateway else None,
        own_source=mapped or _own_source(own, own_node),
        own_mapped_address=mapped,
        service_cidrs=service_cidrs,
        pods=pods,
        own_pods=own_pods,
        published_pods=merged(pods) if config.enable_pod_to_pod else (),
        node_cidrs=node_cidrs,
        pod_hosts=hosts,
        taken=_taken(snapshot, gateways, pods, node_cidrs),
        node_addresses=all_addresses(snapshot, gateways),
        networks=coarse,
        bfd_on_workers=len(snapshot.nodes.keys() - by_node.keys()) <= config.bfd_max_nodes,
        places=places,
        needs=needs,
        problems=tuple(sorted(set(problems))),
    )


def _own_source(own: LocalPeer | None, node: Node | None) -> Address | None:
    """Return where this Node's tunnels end or, where that is IPv6, its first IPv4 address."""
    if own is None or node is None:
        return None
    found = (a for a in (own.address, *node.internal_ips) if a is not None and refuse_address(a) is None)
    return next(found, None)


def _why_no_role(
    config: Config, node: Node | None, own: LocalPeer | None, gateways: tuple[LocalGateway, ...]
) -> str:
    if not config.enable_gateway:
        return "enableGateway is false"
    if node is None:
        return f'there is no Node "{config.node_name}" yet'
    if own is None:
        return f'Node "{config.node_name}" has no InternalIP that can be used'
    return "" if gateways else "no Gateway is known"


def _beside(
    pods: tuple[Network, ...], service_cidrs: tuple[Network, ...], problems: list[Problem]
) -> tuple[Network, ...]:
    """Return the configured Pod CIDRs that do not overlap the Service CIDR."""
    kept = tuple(n for n in pods if not any(overlaps(n, cidr) for cidr in service_cidrs))
    problems.extend(
        Problem(
            subject="configuration",
            path="podCIDRs",
            reason="OverlapsLocal",
            message=f"{network} overlaps this cluster's Service CIDR: not used",
        )
        for network in pods
        if network not in kept
    )
    return kept


def _taken(
    snapshot: Snapshot,
    gateways: tuple[LocalGateway, ...],
    pods: tuple[Network, ...],
    node_cidrs: tuple[Network, ...],
) -> tuple[tuple[Network, str], ...]:
    found: dict[Network, str] = {}
    for gateway in gateways:
        if gateway.service_cidr is not None:
            found.setdefault(gateway.service_cidr, "this cluster's Service CIDR")
    for network in (*pods, *node_cidrs):
        found.setdefault(network, "a Pod CIDR of this cluster")
    for address, who in all_addresses(snapshot, gateways):
        found.setdefault(host_network(address), f"the address of {who}")
    return tuple(found.items())


def _tell_missing_pod_cidrs(config: Config, worker_per_pod: bool, known: bool, problems: list[Problem]) -> None:
    reason = ""
    if worker_per_pod:
        reason = (
            "is not set and this Node has no Pod CIDR: only Pods that are known already are reached; "
            "set it to the range that the Pods' addresses come from"
        )
    elif config.enable_pod_to_pod and not known:
        reason = "is not set and no Node has a Pod CIDR: enablePodToPodConnectivity has nothing to publish"
    if reason:
        problems.append(
            Problem(
                subject="configuration",
                path="podCIDRs",
                reason="PodCIDRsMissing",
                message=reason,
                severity=Severity.WARNING,
            )
        )
