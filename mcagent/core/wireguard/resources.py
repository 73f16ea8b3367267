"""What encryption between clusters adds to a Node: the WireGuard device, peers, and what keeps packets in.

Turns the verdict of `mcagent.core.wireguard.ends` into resources; decides nothing about keys or gateways.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.core.fragments import kernel
from mcagent.core.topology import Topology
from mcagent.core.wireguard.ends import publication
from mcagent.model.config import Config
from mcagent.model.facts import Facts
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import EncryptionState, RemoteEnd
from mcagent.model.objects import Snapshot
from mcagent.model.resources import Resource
from mcagent.model.wireguard import WireGuardDevice, WireGuardPeer


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardResources:
    """This Node's WireGuard device, and where no tunnel packet may go but by it."""

    device: WireGuardDevice | None = None
    forbidden: tuple[Network, ...] = ()
    own: tuple[Address, ...] = ()  # this Node's endpoints behind the device

    @classmethod
    def of(cls, topology: Topology, facts: Facts, config: Config) -> WireGuardResources:
        """Return it; nothing where encryption is off or this Node is no gateway."""
        encryption = topology.encryption
        if encryption is None:
            return cls()
        ends = [end for found in encryption.ends.values() for end in found]
        gateways = {address for remote in topology.remotes.clusters.values() for address in remote.gateways}
        closed = (gateways | {end.address for end in ends}) - {end.address for end in ends if not end.public_key}
        forbidden = (*(host_network(address) for address in sorted(closed, key=int)), ENDPOINTS)
        if not encryption.addresses or facts.wireguard is None:
            return cls(forbidden=forbidden, own=encryption.addresses)
        own = topology.local.own_gateway_ip
        version = own.version if own is not None else 4  # all its peers have addresses of this family
        device = WireGuardDevice(
            name=config.wireguard_device,
            listen_port=config.wireguard_port,
            mtu=kernel.wireguard_mtu(facts, config, version),
            public_key=facts.wireguard_public_key,
            addresses=encryption.addresses,
            implementation=facts.wireguard,
        )
        return cls(device=device, forbidden=forbidden, own=encryption.addresses)

    def resources(self, config: Config) -> list[Resource]:
        """Return what there is once on the Node."""
        device = [] if self.device is None else [self.device]
        return [*device, *(kernel.encrypted_netfilter(config, self.forbidden, self.own) if self.forbidden else ())]


def encryption_state(snapshot: Snapshot, topology: Topology, facts: Facts, config: Config) -> EncryptionState:
    """Return how traffic to other clusters is protected."""
    found = topology.encryption
    return EncryptionState(
        mode=config.encryption,
        fallback=config.encryption_fallback,
        implementation=facts.wireguard,
        public_key=facts.wireguard_public_key,
        next_public_key=facts.wireguard_next_key,
        device=config.wireguard_device if found is not None and found.addresses else "",
        ends=found.ends if found is not None else {},
        publication=publication(snapshot, topology.local, facts, config),
        own_gateway=topology.local.own_gateway_ip,
        problems=found.problems if found is not None else (),
    )


def also_known_by(topology: Topology) -> tuple[Address, ...]:
    """Return the address, beside the gatewayIP, by which clusters with a single key know this gateway."""
    found = topology.encryption
    return tuple(a for a in found.addresses if a not in ENDPOINTS) if found is not None else ()


def way_to(end: RemoteEnd | None, config: Config) -> list[Resource]:
    """Return what leads to a tunnel's end through WireGuard; nothing where it is reached in the clear."""
    if end is None or not end.public_key:
        return []
    peer = WireGuardPeer(
        device=config.wireguard_device,
        public_key=end.public_key,
        endpoint=(end.gateway, end.port),
        allowed_ips=(host_network(end.address),),
        keepalive=config.wireguard_keepalive,
        successor=end.next_public_key,
    )
    return [peer, *kernel.endpoint_routes(config, end.address, end.source)]
