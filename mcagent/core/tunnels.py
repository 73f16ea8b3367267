"""The tunnels of a Node: their names, endpoints and peers.

A worker has a tunnel to every gateway of its cluster; a gateway has one to every other Node of its cluster and to
every gateway of every remote cluster. Must not know the state of tunnels, or flows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.addresses.underlay import preferred_address
from mcagent.core.ids import tunnel_port_name
from mcagent.core.local_cluster.nodes import CheckedNode, ends_of
from mcagent.core.local_cluster.topology import LocalPeer
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import PeerKind
from mcagent.model.net import Address
from mcagent.model.node_state import AcceptedCluster, LocalGateway, RemoteEnd

# One prefix for all Nodes of this cluster, so that a worker that becomes a gateway keeps its ports.
_TO_NODES, _TO_CLUSTERS = "mcn-", "mcr-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """A tunnel of the desired state, without its port number."""

    name: str
    address: Address  # the remote endpoint
    peer_kind: PeerKind
    peer: str
    end: RemoteEnd | None = None  # if encryption to that kind of peer is on

    @property
    def gateway(self) -> Address:
        """The peer's address in the API: with encryption not the tunnel's endpoint."""
        return self.address if self.end is None else self.end.gateway

    @property
    def encrypted(self) -> bool:
        """Whether the tunnel ends behind the WireGuard device."""
        return self.end is not None and bool(self.end.public_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnds:
    """This Node's addresses at which its tunnels end."""

    to_nodes: tuple[Address, ...] = ()  # of this cluster, one per IP version
    to_clusters: Address | None = None  # None: unknown, or this Node is not a gateway

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All known ends; one may occur twice."""
        return self.to_nodes if self.to_clusters is None else (*self.to_nodes, self.to_clusters)

    def of(self, tunnel: Tunnel) -> Address | None:
        """Return this Node's end of a tunnel; None: it is not known."""
        if tunnel.end is not None and tunnel.encrypted:
            return tunnel.end.source
        if tunnel.peer_kind is PeerKind.REMOTE:
            return self.to_clusters
        return preferred_address(self.to_nodes, tunnel.address.version)


def own_ends(node: CheckedNode | None, gateway: LocalGateway | None, addresses: tuple[Address, ...]) -> OwnEnds:
    """Return the ends of this Node's tunnels. `addresses`: of its devices; (): not known.

    The other Nodes send to the first address of each IP version (`tunnel_addresses`). A gatewayIP on no device is
    the outer address of a translation. Its inner address is assumed to be the end of the tunnels to Nodes.
    """
    candidates = ends_of(node, gateway) if node is not None else ()
    preferred = (preferred_address(candidates, version) for version in (4, 6))
    to_nodes = tuple(end for end in preferred if end is not None and (not addresses or end in addresses))
    gateway_ip = gateway.gateway_ip if gateway is not None else None
    if gateway_ip is not None and addresses and gateway_ip not in addresses:
        gateway_ip = preferred_address(to_nodes, gateway_ip.version)
    return OwnEnds(to_nodes=to_nodes, to_clusters=gateway_ip)


def node_tunnels(peer_and_end: tuple[LocalPeer, RemoteEnd | None], config: Config) -> tuple[Tunnel, ...]:
    """Return the tunnel to a Node of this cluster; none if the Node has no usable address (a reported problem).

    Without encryption between Nodes the end is None.
    """
    peer, end = peer_and_end
    if peer.address is None:
        return ()
    address = peer.address if end is None else end.address
    kind = PeerKind.GATEWAY if peer.gateway else PeerKind.NODE
    name = _name(_TO_NODES, peer.name, address, config)
    return (Tunnel(name=name, address=address, peer_kind=kind, peer=peer.name, end=end),)


def cluster_tunnels(
    cluster_and_ends: tuple[AcceptedCluster, tuple[RemoteEnd, ...] | None], gateway_ip: Address, config: Config
) -> tuple[Tunnel, ...]:
    """Return the tunnels from the gateway with `gateway_ip` to a cluster. Without encryption the ends are None."""
    cluster, ends = cluster_and_ends
    endpoints: list[tuple[Address, RemoteEnd | None]]
    if ends is None:
        endpoints = [(address, None) for address in cluster.reached_from(gateway_ip)]
    else:
        endpoints = [(end.address, end) for end in ends]
    return tuple(
        Tunnel(
            name=_name(_TO_CLUSTERS, cluster.cluster_id, address, config),
            address=address,
            peer_kind=PeerKind.REMOTE,
            peer=cluster.cluster_id,
            end=end,
        )
        for address, end in endpoints
    )


def names_of(*tunnels: Mapping[str, tuple[Tunnel, ...]]) -> tuple[str, ...]:
    """Return the names of the ports of all tunnels."""
    return tuple(
        tunnel.name
        for tunnels_by_peer in tunnels
        for peer_tunnels in tunnels_by_peer.values()
        for tunnel in peer_tunnels
    )


def _name(prefix: str, peer: str, address: Address, config: Config) -> str:
    return tunnel_port_name(prefix, prefix, peer, address, config.tunnel_type, config.tunnel_port)
