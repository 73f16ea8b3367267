"""Resources of encryption: the WireGuard device, its peers, and the rules that drop unencrypted tunnel packets.

Must not decide which gateways are encrypted to: `mcagent.core.wireguard` does.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.core.fragments.kernel import encrypted_netfilter, endpoint_routes, wireguard_mtu
from mcagent.core.wireguard import Encryption
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import Resource
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardPeer
from mcagent.model.net import host_network
from mcagent.model.node_state import AcceptedCluster, LocalGateway, RemoteEnd


def wireguard_resources(
    encryption: Encryption,
    clusters: Mapping[str, AcceptedCluster],
    own: LocalGateway,
    facts: Facts,
    config: Config,
) -> tuple[Resource, ...]:
    """Return the resources that a gateway has once for all clusters: the device, and rules against clear text."""
    ends = [end for cluster_ends in encryption.ends.values() for end in cluster_ends]
    gateways = {address for cluster in clusters.values() for address in cluster.gateways}
    closed = (gateways | {end.address for end in ends}) - {end.address for end in ends if not end.public_key}
    forbidden = (*(host_network(address) for address in sorted(closed, key=int)), ENDPOINTS)
    netfilter = encrypted_netfilter(config, forbidden, encryption.addresses)
    if not encryption.addresses or facts.wireguard is None:
        return tuple(netfilter)
    device = WireGuardDevice(
        name=config.wireguard_device,
        listen_port=config.wireguard_port,
        # All peers have addresses of this family.
        mtu=wireguard_mtu(facts.uplink_mtu, config, own.gateway_ip.version),
        public_key=facts.wireguard_public_key,
        addresses=encryption.addresses,
        implementation=facts.wireguard,
    )
    return (device, *netfilter)


def peer_resources(end: RemoteEnd, config: Config) -> list[Resource]:
    """Return the WireGuard peer and the routes of a tunnel endpoint; none if the endpoint is not encrypted to."""
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
    return [peer, *endpoint_routes(config, end.address, end.source)]
