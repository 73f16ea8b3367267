"""What encryption between clusters adds to a Node: the WireGuard device, peers, and what keeps packets in.

Turns the verdict of `mcagent.core.wireguard.ends` into resources; decides nothing about keys or gateways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.core.fragments import kernel
from mcagent.core.wireguard.ends import Encryption, WireGuardFacts
from mcagent.model.config import Config
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import AcceptedCluster, EncryptionState, LocalGateway, Publication, RemoteEnd
from mcagent.model.resources import Resource
from mcagent.model.wireguard import WireGuardDevice, WireGuardPeer


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardResources:
    """This Node's WireGuard device, and where no tunnel packet may go but by it."""

    device: WireGuardDevice | None = None
    forbidden: tuple[Network, ...] = ()
    own: tuple[Address, ...] = ()  # this Node's endpoints behind the device

    def resources(self, config: Config) -> list[Resource]:
        """Return what there is once on the Node."""
        device = [] if self.device is None else [self.device]
        return [*device, *(kernel.encrypted_netfilter(config, self.forbidden, self.own) if self.forbidden else ())]


NO_WIREGUARD = WireGuardResources()


def wireguard_resources(
    encryption: Encryption,
    clusters: Mapping[str, AcceptedCluster],
    own: LocalGateway,
    facts: WireGuardFacts,
    config: Config,
) -> WireGuardResources:
    """Return what a gateway has once for all clusters."""
    ends = [end for found in encryption.ends.values() for end in found]
    gateways = {address for cluster in clusters.values() for address in cluster.gateways}
    closed = (gateways | {end.address for end in ends}) - {end.address for end in ends if not end.public_key}
    forbidden = (*(host_network(address) for address in sorted(closed, key=int)), ENDPOINTS)
    device = None
    if encryption.addresses and facts.implementation is not None:
        device = WireGuardDevice(
            name=config.wireguard_device,
            listen_port=config.wireguard_port,
            # all its peers have addresses of its own family
            mtu=kernel.wireguard_mtu(facts.uplink_mtu, config, own.gateway_ip.version),
            public_key=facts.public_key,
            addresses=encryption.addresses,
            implementation=facts.implementation,
        )
    return WireGuardResources(device=device, forbidden=forbidden, own=encryption.addresses)


def encryption_state(
    encryption: Encryption | None,
    published: Publication | None,
    own_gateway: Address | None,
    facts: WireGuardFacts,
    config: Config,
) -> EncryptionState:
    """Return how traffic to other clusters is protected."""
    return EncryptionState(
        mode=config.encryption,
        fallback=config.encryption_fallback,
        implementation=facts.implementation,
        public_key=facts.public_key,
        next_public_key=facts.next_public_key,
        device=config.wireguard_device if encryption is not None and encryption.addresses else "",
        ends=encryption.ends if encryption is not None else {},
        publication=published,
        own_gateway=own_gateway,
        problems=encryption.problems if encryption is not None else (),
    )


def also_known_by(encryption: Encryption | None) -> tuple[Address, ...]:
    """Return the address, beside the gatewayIP, by which clusters with a single key know this gateway."""
    return tuple(a for a in encryption.addresses if a not in ENDPOINTS) if encryption is not None else ()


def peer_resources(end: RemoteEnd, config: Config) -> list[Resource]:
    """Return what leads to a tunnel's end through WireGuard; nothing where it is reached in the clear."""
    if not end.public_key:
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
