"""nft chains that drop and count forged tunnel packets.

A peer accepts a tunnel packet by its source address, and a CNI masquerades packets that Pods send beyond the
cluster to the address of their Node. So this Node must not forward anything to a tunnel, BFD or WireGuard port of
a peer. Packets of the Node itself pass the hook output, never forward. A Service with such a port as its endpoint
is translated before the hook forward, so its packets are dropped, too.

A Node may be the router of other gateways. Packets from peer to peer pass if they arrive by a device that leads to
the sender (see `_forged`) and if their destination is not translated (a translated one belongs to a Service).

A tunnel ends at one address of each Node. Its packets are not tracked between peers: otherwise a Service with such
an address and port (externalIPs) would divert them. A Node of this cluster in a connected network, whose packets
have arrived with the TTL 255, must always send it (GTSM, RFC 5082): a router decrements the TTL. Nothing is
learned of a Node behind a router: any machine on the link can send such a packet with its address.

Pure; owns the sets and chains named here. Must not know flows, keys or routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from mcagent.core.addresses.rules import merge_networks
from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.core.remote_clusters.claims import CheckedCluster
from mcagent.core.tunnels import OwnEnds
from mcagent.core.wireguard_devices import devices_of_peer
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import POD_DEVICES
from mcagent.model.dataplane.resources import DEFAULT_PORTS, NftChain, NftSet, Resource
from mcagent.model.net import Address, Network, contains, host_network
from mcagent.model.node_state import AcceptedCluster, LocalGateway
from mcagent.model.objects import WireGuardInfo

BFD_PORT = 3784  # RFC 5881 section 4; Open vSwitch has it inside tunnels only (lib/bfd.c)

GTSM_TTL = 255  # RFC 5082: the TTL that tunnels send, and that only a sender on the local link can give a packet
GTSM_TIMEOUT = "1m"  # a peer that was silent for so long may come back without it (an earlier version)

TO_TUNNEL, TO_WIREGUARD, FORGED, CLEAR = "mct_to_tunnel", "mct_to_wireguard", "mct_forged", "mct_clear_in"
TUNNEL_IN, LINK = "mct_tunnel_in", "mct_link"
DROPS = MappingProxyType(
    {
        TO_TUNNEL: "to-tunnel",
        TO_WIREGUARD: "to-wireguard",
        FORGED: "forged-tunnel",
        CLEAR: "clear-tunnel",
        TUNNEL_IN: "not-a-tunnel",
        LINK: "off-link-tunnel",
    }
)
"""The reason of the drops that a chain counts, by the chain's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelPeers:
    """The tunnel endpoints of one IP version (Nodes of this cluster, gateways of others) and WireGuard ports."""

    version: int
    addresses: tuple[Network, ...]  # disjoint, sorted
    on_link: tuple[Network, ...]  # those of Nodes of this cluster in connected networks; disjoint, sorted
    own_ends: tuple[Network, ...]  # this Node's; (): unknown
    wireguard: tuple[tuple[Address, int], ...]  # sorted; empty while nothing is encrypted


class PeerEnd(NamedTuple):
    """A tunnel endpoint of a peer: its address as an integer and as a network, and its WireGuard port or 0.

    The ports of further WireGuard devices follow on `port`.
    """

    number: int
    host: Network
    port: int
    devices: int = 1


def endpoints_of(value: tuple[AcceptedCluster, CheckedCluster], default: int) -> tuple[PeerEnd, ...]:
    """Return the tunnel endpoints of a cluster's gateways. `default`: the WireGuard port if none is published."""
    cluster, info = value[0], value[1].info
    published = dict(info.gateway_wireguard)
    return tuple(
        _gateway_end(address, published.get(address, info.wireguard), default) for address in cluster.gateways
    )


def _gateway_end(address: Address, published: WireGuardInfo | None, default: int) -> PeerEnd:
    port, devices = default, 1
    if published is not None:
        port = published.port or default
        devices = devices_of_peer(published, port)
    return PeerEnd(int(address), host_network(address), port, devices)


def peers_of(
    gateways: tuple[LocalGateway, ...],
    node_addresses: tuple[tuple[Address, str], ...],
    remote: Mapping[str, tuple[PeerEnd, ...]],
    own_ends: OwnEnds,
    config: Config,
    *,
    connected: tuple[Network, ...],
) -> tuple[TunnelPeers, ...]:
    """Return the peers of each IP version that this cluster's tunnels use.

    `remote`: gateways of other clusters. `connected`: networks that this Node reaches without a router.

    Every Node has all peers, with or without a tunnel to them: its Pods could forge packets of any.
    """
    node_port = config.wireguard_port if config.encrypts_nodes else 0

    def node_end(address: Address, gateway: LocalGateway | None = None) -> PeerEnd:
        if gateway is not None and address == gateway.gateway_ip:
            devices = max(1, len(config.wireguard_ports))
            return PeerEnd(int(address), host_network(address), config.wireguard_port, devices)
        return PeerEnd(int(address), host_network(address), node_port)

    own = [node_end(a, gateway) for gateway in gateways for a in (gateway.internal_ip, gateway.gateway_ip)]
    nodes = [node_end(address) for address, _ in node_addresses if address not in ENDPOINTS]
    of_cluster, of_others = [*own, *nodes], list(chain.from_iterable(remote.values()))
    return tuple(
        _peers(version, of_cluster, of_others, own_ends, connected=connected, encrypts=config.encrypts)
        for version in sorted({end.host.version for end in own})
    )


def _peers(
    version: int,
    of_cluster: list[PeerEnd],
    of_others: list[PeerEnd],
    own_ends: OwnEnds,
    *,
    connected: tuple[Network, ...],
    encrypts: bool,
) -> TunnelPeers:
    ends = [end for end in (*of_cluster, *of_others) if end.host.version == version]
    hosts = {end.number: end.host for end in ends}
    listening = (end for end in ends if end.port and encrypts)
    sockets = sorted({(end.number, end.port + n) for end in listening for n in range(end.devices)})
    return TunnelPeers(
        version=version,
        addresses=_merged(hosts),
        on_link=_merged(
            {
                end.number: end.host
                for end in of_cluster
                if end.host.version == version and any(contains(network, end.host) for network in connected)
            }
        ),
        own_ends=merge_networks(host_network(end) for end in own_ends.addresses if end.version == version),
        wireguard=tuple((hosts[number].network_address, port) for number, port in sockets),
    )


def _merged(hosts: Mapping[int, Network]) -> tuple[Network, ...]:
    """Merge as `merge_networks` does, at a tenth of its cost: each move of one gateway merges the hosts of all."""
    values = sorted(hosts)
    merged: list[Network] = []
    index = 0
    while index < len(values):
        first = values[index]
        size = 1  # the largest aligned block of consecutive addresses
        while (
            not first & (2 * size - 1)
            and index + 2 * size <= len(values)
            and values[index + 2 * size - 1] == first + 2 * size - 1
        ):
            size *= 2
        host = hosts[first]
        merged.append(host if size == 1 else host.supernet(size.bit_length() - 1))
        index += size
    return tuple(merged)


def guard(config: Config, peers: Iterable[TunnelPeers], devices: tuple[str, ...]) -> list[Resource]:
    """Return the sets and chains that drop tunnel packets that were not sent by a tunnel.

    `devices`: names of this Node's WireGuard devices.
    """
    return [resource for version_peers in peers for resource in _guard(config, version_peers, devices)]


def _guard(config: Config, peers: TunnelPeers, devices: tuple[str, ...]) -> list[Resource]:
    family = "ip" if peers.version == 4 else "ip6"
    ports = f"udp dport {{ {', '.join(map(str, sorted({BFD_PORT, tunnel_port(config)})))} }}"
    tunnel = f"{ports} {family} daddr @mct_peers"
    between_peers = f"udp dport {tunnel_port(config)} {family} saddr @mct_peers {family} daddr @mct_peers"
    resources: list[Resource] = [
        filter_chain(config, family, "mct_tunnels_pre", ("prerouting", -300), f"{between_peers} notrack"),
        filter_chain(config, family, "mct_tunnels_out", ("output", -300), f"{between_peers} notrack"),
        *_arrivals(config, family, peers, devices),
        NftSet(table=config.nft_table, name="mct_peers", elements=peers.addresses, family=family),
        filter_chain(
            config,
            family,
            TO_TUNNEL,
            ("forward", -150),
            f"{tunnel} {family} saddr != @mct_peers counter drop",
            f"{tunnel} ct status dnat counter drop",
        ),
    ]
    if config.tunnel_source_check:
        resources.append(filter_chain(config, family, FORGED, ("prerouting", -250), *_forged(ports, family)))
    if config.encrypts:
        wireguard = f"{family} daddr . udp dport @mct_wireguard"
        resources += [
            NftSet(table=config.nft_table, name="mct_wireguard", sockets=peers.wireguard, family=family),
            filter_chain(
                config,
                family,
                TO_WIREGUARD,
                ("forward", -150),
                *(f'{way} "{device}" counter drop' for device in devices for way in ("oifname", "iifname")),
                # The addresses of translated sources (`source_of`, `mapped_addresses`) lie in the same range.
                *(
                    (f'oifname != "{config.host_port}" ip daddr {ENDPOINTS} counter drop',)
                    if family == "ip"
                    else ()
                ),
                f"{wireguard} {family} saddr != @mct_peers counter drop",
                f"{wireguard} ct status dnat counter drop",
            ),
        ]
    return resources


def _arrivals(config: Config, family: str, peers: TunnelPeers, devices: tuple[str, ...]) -> Iterator[Resource]:
    """Yield the rules for tunnel packets to this Node: from peers, to the end of a tunnel, never translated.

    Other programs may have tunnels on the same port between other addresses, so what is neither from a peer nor to
    an end of this Node's tunnels passes: Open vSwitch finds no tunnel of the agent for it.
    """
    tunnel = f"udp dport {tunnel_port(config)}"
    encrypted = (f'iifname "{device}" accept' for device in devices if config.encrypts)
    rules = [*encrypted, f"{tunnel} ct status dnat counter drop"]
    if peers.own_ends:
        yield NftSet(table=config.nft_table, name="mct_ends", elements=peers.own_ends, family=family)
        rules += [
            f"{tunnel} {family} saddr @mct_peers {family} daddr != @mct_ends counter drop",
            f"{tunnel} {family} saddr != @mct_peers {family} daddr @mct_ends counter drop",
        ]
    yield filter_chain(config, family, TUNNEL_IN, ("input", -150), *rules)
    if config.tunnel_source_check:
        yield NftSet(table=config.nft_table, name="mct_cluster", elements=peers.on_link, family=family)
        yield NftSet(table=config.nft_table, name="mct_on_link", family=family, learned=True)
        from_link = f"{family} {'ttl' if family == 'ip' else 'hoplimit'} {GTSM_TTL}"
        learn = f"update @mct_on_link {{ {family} saddr timeout {GTSM_TIMEOUT} }} accept"
        yield filter_chain(
            config,
            family,
            LINK,
            ("input", -149),
            f"{tunnel} {family} saddr @mct_cluster {from_link} {learn}",
            # Of both: what was learned counts no more when a Node has left the connected networks.
            f"{tunnel} {family} saddr @mct_cluster {family} saddr @mct_on_link counter drop",
        )


def _forged(ports: str, family: str) -> tuple[str, ...]:
    """Return the rules that drop packets of peers that arrive by a device of Pods.

    "fib … oif" looks up the best route only (nft_fib4_eval in net/ipv4/netfilter/nft_fib_ipv4.c), as rp_filter=1
    does, but packets of a peer may arrive by another device than that of the best route. So the rules apply only
    to the kinds of devices that lead to Pods (not to network cards, nor to WireGuard between Nodes, as in Cilium).
    Packets to an address of the Node on the receiving device pass: devices of Pods have no such address, and a
    CNI's bridge has a Pod address. There is one rule per kind, because the order of names in an nft set varies.
    """
    to_own_address = f"{ports} {family} daddr @mct_peers fib daddr . iif type local accept"
    forged = (
        f'{ports} meta iifkind "{kind}" {family} saddr @mct_peers fib saddr . iif oif missing counter drop'
        for kind in POD_DEVICES
    )
    return (f"{ports.replace(' {', ' != {')} accept", to_own_address, *forged)


def clear_arrivals(
    config: Config, family: str, own_endpoints: tuple[Address, ...], devices: tuple[str, ...]
) -> list[Resource]:
    """Return the rules that drop tunnel packets of encrypted peers that arrive outside the WireGuard devices.

    `own_endpoints`: this Node's endpoints behind `devices`, or (). They are reachable through these only, so
    packets to them by any other device are forged. `mcagent.core.fragments.kernel` defines the set @mct_encrypted.
    """
    outside = " ".join(f'iifname != "{device}"' for device in devices)
    rules = [f"{outside} udp dport {tunnel_port(config)} {family} saddr @mct_encrypted counter drop"]
    own_ends: list[Resource] = []
    if family == "ip" and own_endpoints:
        endpoint_networks = merge_networks(host_network(address) for address in own_endpoints)
        own_ends.append(NftSet(table=config.nft_table, name="mct_own_ends", elements=endpoint_networks))
        rules.append(f'iifname != "lo" {outside} ip daddr @mct_own_ends counter drop')
    return [*own_ends, filter_chain(config, family, CLEAR, ("input", -150), *rules)]


def tunnel_port(config: Config) -> int:
    """Return the UDP port of the tunnels: configured, or the default of the tunnel type."""
    return config.tunnel_port or DEFAULT_PORTS[config.tunnel_type]


def filter_chain(config: Config, family: str, name: str, where: tuple[str, int], *rules: str) -> NftChain:
    """Return a filter chain. `where`: (hook, priority)."""
    hook, priority = where
    return NftChain(
        table=config.nft_table, name=name, type="filter", hook=hook, priority=priority, rules=rules, family=family
    )
