"""Resources of encryption: the WireGuard device, its peers, and the rules that drop unencrypted tunnel packets.

Must not decide which gateways are encrypted to: `mcagent.core.wireguard` does.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.core.fragments.kernel import encrypted_netfilter, endpoint_routes, wireguard_mtu
from mcagent.core.node_encryption import NodeEncryption
from mcagent.core.wireguard import Encryption
from mcagent.core.wireguard_devices import device_routes, device_rules, general_device
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import Resource
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardPeer
from mcagent.model.net import Address, host_network
from mcagent.model.node_state import AcceptedCluster, LocalGateway, RemoteEnd


def wireguard_resources(
    decisions: tuple[Encryption, NodeEncryption | None],
    clusters: Mapping[str, AcceptedCluster],
    own: LocalGateway | None,
    facts: Facts,
    config: Config,
    *,
    names: tuple[str, ...],
) -> tuple[Resource, ...]:
    """Return the resources that a Node has once for all peers: the devices, and rules against clear text.

    `decisions`: on other clusters, and on the Nodes of this one. `own`: this Node, if it is a gateway; only
    gateways have tunnels to `clusters`. `names`: of this Node's WireGuard devices.
    """
    encryption, nodes = decisions[0], decisions[1] or NodeEncryption()
    ends = [end for cluster_ends in encryption.ends.values() for end in cluster_ends]
    closed: set[Address] = set()
    if own is not None:
        closed |= {address for cluster in clusters.values() for address in cluster.gateways}
    closed = (closed | {end.address for end in ends}) - {end.address for end in ends if not end.public_key}
    closed |= set(nodes.closed)
    forbidden = (*(host_network(address) for address in sorted(closed, key=int)), ENDPOINTS)
    addresses = tuple(sorted({*encryption.addresses, *nodes.addresses}, key=int))
    netfilter = encrypted_netfilter(config, names, forbidden, addresses)
    if not addresses or facts.wireguard is None:
        return tuple(netfilter)
    versions = [end.gateway.version for end in nodes.ends.values()]
    if own is not None:
        versions.append(own.gateway_ip.version)  # that of all gateways of other clusters
    devices = (
        WireGuardDevice(
            name=name,
            listen_port=config.wireguard_port + number,
            mtu=wireguard_mtu(facts.uplink_mtu, config, max(versions, default=4)),
            public_key=facts.wireguard_public_key,
            addresses=addresses,
            implementation=facts.wireguard,
            loose_source_check=len(names) > 1,
        )
        for number, name in enumerate(names)
    )
    return (*devices, *device_rules(len(names), config), *netfilter)


def peer_resources(
    end: RemoteEnd, config: Config, names: tuple[str, ...], ready: tuple[int, ...] = ()
) -> list[Resource]:
    """Return the WireGuard peers and the routes of a tunnel endpoint; none if the endpoint is not encrypted to.

    `names`: of this Node's WireGuard devices; `ready`: those on which the peer has a session.
    """
    if not end.public_key:
        return []
    peers = (
        WireGuardPeer(
            device=name,
            public_key=end.public_key,
            endpoint=(end.gateway, end.port + number),
            allowed_ips=(host_network(end.address),),
            keepalive=config.wireguard_keepalive,
            successor=end.next_public_key,
        )
        for number, name in enumerate(names[: end.devices])
    )
    routes = endpoint_routes(config, end.address, end.source, names[general_device(ready)])
    return [*peers, *routes, *device_routes(end, ready, names, config)]
