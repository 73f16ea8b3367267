"""The Node at the other end of a tunnel, and the cluster of an address, by agents' pages /status. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from ipaddress import IPv4Address, ip_network

from flows.pipeline.prefixes import address_in_bridge
from mcagent.api.status import GatewayStatus, Status, TunnelStatus
from mcagent.model.net import PodPrefix

Statuses = Mapping[str, Status]  # by Node


def is_remote(status: Status, address: IPv4Address) -> bool:
    """Tell whether a Node's flows route an address to other clusters, by its /status."""
    # A remote gateway's address may be routed: the trace shows it.
    gateways = {gateway for cluster in status.summary.clusters.values() for gateway in cluster.gateways}
    return str(address) in gateways or cluster_of(status, address) != ""


def cluster_of(status: Status, address: IPv4Address) -> str:
    """Return the ID of the other cluster that has an address, "" if none has it."""
    for name, cluster in status.summary.clusters.items():
        if any(address in ip_network(cidr) for cidr in cluster.cidrs):
            return name
    return ""


def virtual_address(status: Status, address: str) -> str:
    """Return an address of a Node's cluster as bridges and other clusters see it, by the Node's /status."""
    pairs = status.summary.virtual_pod_cidrs.items()
    prefixes = (PodPrefix(real=ip_network(real), virtual=ip_network(virtual)) for real, virtual in pairs)
    return str(address_in_bridge(IPv4Address(address), prefixes))


def alternatives(status: Status, tunnel: TunnelStatus | None) -> tuple[GatewayStatus, ...]:
    """Return the gateways of the same cluster as the gateway at the end of a tunnel."""
    for group in status.gateways:
        if tunnel is not None and any(gateway.tunnel == tunnel.name for gateway in group.gateways):
            return tuple(gateway for gateway in group.gateways if gateway.tunnel)
    return ()


def next_node(status: Status, tunnel: TunnelStatus, statuses: Statuses) -> str | None:
    """Return the Node at the other end of a tunnel of the Node with `status`, None if it is none of `statuses`."""
    if not tunnel.remote:
        return tunnel.peer if tunnel.peer in statuses else None
    address = address_of_peer(status, tunnel)
    for node, peer_status in statuses.items():
        if peer_status.cluster_id == tunnel.peer and address in tunnel_ends(peer_status, node):
            return node
    return None


def address_of_peer(status: Status, tunnel: TunnelStatus) -> str:
    """Return the address of the gateway at the other end; an encrypted tunnel's endpoint differs from it."""
    gateway = status.gateways_by_tunnel.get(tunnel.name)
    return gateway.address if gateway is not None and gateway.address else tunnel.remote_ip


def tunnel_ends(status: Status, node: str) -> set[str]:
    """Return the addresses of a gateway at which tunnels to it end, by its own cluster's status."""
    own = [gateway for gateway in status.summary.gateways if gateway.node == node]
    return {address for gateway in own for address in (gateway.gateway_ip, gateway.source)}


def port_to(status: Status, before: Status, node: str) -> int | None:
    """Return the port by which a Node receives packets of Node `node`, whose status is `before`."""
    ends = tunnel_ends(before, node)
    for tunnel in status.tunnels:
        if tunnel.remote:
            leads_there = tunnel.peer == before.cluster_id and address_of_peer(status, tunnel) in ends
        else:
            leads_there = before.cluster_id == status.cluster_id and tunnel.peer == node
        if leads_there:
            return tunnel.ofport
    return None


def lost_tunnels(
    node: str, status: Status, statuses: Statuses, links: Mapping[str, str]
) -> dict[str, GatewayStatus]:
    """Return the tunnels of a Node that are known not to be live, each with the status of its gateway.

    By the status of the Node itself or of the other end, else of all Nodes with a tunnel to the same gateway, else
    by the Node's Gateway object (`links`: the clusters to which it has no live tunnel, with the reason).
    """
    lost_by_tunnel = {}
    for tunnel in status.tunnels:
        from_ends, from_siblings = _views_of(node, status, tunnel, statuses)
        dead = [gateway for gateway in from_ends or from_siblings if not gateway.live]
        if dead and (from_ends or len(dead) == len(from_siblings)):
            lost_by_tunnel[tunnel.name] = dead[0]
        elif not from_ends and not from_siblings and tunnel.remote and tunnel.peer in links:
            lost_by_tunnel[tunnel.name] = GatewayStatus(why=links[tunnel.peer], since="")
    return lost_by_tunnel


def _views_of(
    node: str, status: Status, tunnel: TunnelStatus, statuses: Statuses
) -> tuple[list[GatewayStatus], list[GatewayStatus]]:
    """Return the status of a gateway on both ends of a tunnel, and on other Nodes of the cluster."""
    peer = address_of_peer(status, tunnel) if tunnel.remote else tunnel.peer
    far = statuses.get(next_node(status, tunnel, statuses) or "")
    cluster, names = (status.cluster_id, tunnel_ends(status, node)) if tunnel.remote else ("", {node})
    own = statuses[node].gateways_by_tunnel.get(tunnel.name) if node in statuses else None
    siblings = [
        other for name, other in statuses.items() if name != node and other.cluster_id == status.cluster_id
    ]
    return (
        [*([own] if own is not None else []), *(_gateways(far, cluster, names) if far is not None else ())],
        [view for other in siblings for view in _gateways(other, tunnel.peer if tunnel.remote else "", {peer})],
    )


def _gateways(status: Status, cluster: str, names: Collection[str]) -> Iterator[GatewayStatus]:
    """Yield the gateways of a cluster ("": the own one) with one of these names or addresses."""
    for group in status.gateways:
        for gateway in group.gateways if group.cluster == cluster else ():
            if gateway.tunnel and (gateway.name in names or gateway.address in names):
                yield gateway
