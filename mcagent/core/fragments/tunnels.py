"""Which tunnels a Node has, and what their ports are called.

A worker has one to every gateway of its cluster; a gateway one to every other Node of its cluster and to every
gateway of every remote cluster. Knows nothing of port numbers or flows.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcagent.core.ids import tunnel_port_name
from mcagent.core.topology import Topology
from mcagent.model.config import Config
from mcagent.model.net import Address
from mcagent.model.node_state import RemoteEnd
from mcagent.model.resources import PeerKind

# Nodes and gateways of this cluster share a prefix: a Node that becomes a gateway keeps its port.
_PREFIX: Mapping[PeerKind, str] = {PeerKind.NODE: "mcn-", PeerKind.GATEWAY: "mcn-", PeerKind.REMOTE: "mcr-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """One tunnel that is wanted, named but not numbered yet."""

    name: str
    address: Address  # where it ends
    peer_kind: PeerKind
    peer: str
    end: RemoteEnd | None = None  # of a gateway of another cluster, while encryption is on

    @property
    def gateway(self) -> Address:
        """The peer's address in the API."""
        return self.address if self.end is None else self.end.gateway


Tunnels = Mapping[str, tuple[object, tuple[Tunnel, ...]]]  # by owner, each with the value it follows from


def tunnels_of(topology: Topology, config: Config, known: Tunnels) -> Tunnels:
    """Return the tunnels of this Node by the name of the owner that they belong to; reuses `known`."""
    local = topology.local
    found: dict[str, tuple[object, tuple[Tunnel, ...]]] = {}
    if not local.role:
        return found

    def want(owner: str, cause: object, kind: PeerKind, peer: str, addresses: tuple[Address, ...]) -> None:
        before = known.get(owner)
        if before is not None and (before[0] is cause or before[0] == cause):
            found[owner] = before
            return
        found[owner] = (cause, tuple(_tunnel(config, kind, peer, address) for address in addresses))

    for peer in local.peers:
        if peer.address is not None:
            kind = PeerKind.GATEWAY if peer.gateway else PeerKind.NODE
            want(f"node/{peer.name}", peer, kind, peer.name, (peer.address,))
    if local.role == "gateway":
        for remote in topology.remotes.clusters.values():
            cluster_id = remote.cluster_id
            owner = f"cluster/{cluster_id}"
            if (before := known.get(owner)) is not None and before[0] is remote:
                found[owner] = before
                continue
            if topology.encryption is None:
                want(owner, remote, PeerKind.REMOTE, cluster_id, remote.reached_from(local.own_gateway_ip))
                continue
            ends = topology.encryption.ends[cluster_id]
            if before is not None and before[0] is ends:
                found[owner] = before
                continue
            tunnels = (_tunnel(config, PeerKind.REMOTE, cluster_id, end.address) for end in ends)
            found[owner] = (ends, tuple(replace(one, end=end) for one, end in zip(tunnels, ends, strict=True)))
    if found.keys() == known.keys() and all(map(operator.is_, found.values(), map(known.__getitem__, found))):
        return known
    return found


def _tunnel(config: Config, kind: PeerKind, peer: str, address: Address) -> Tunnel:
    prefix = _PREFIX[kind]
    name = tunnel_port_name(prefix, prefix, peer, address, config.tunnel_type, config.tunnel_port)
    return Tunnel(name=name, address=address, peer_kind=kind, peer=peer)


def names_of(tunnels: Tunnels) -> list[str]:
    """Return the names of all ports."""
    return [tunnel.name for _, found in tunnels.values() for tunnel in found]
