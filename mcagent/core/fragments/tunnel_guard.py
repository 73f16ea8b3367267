"""What keeps everybody but tunnels out of tunnels: nft chains that drop, and count, what pretends to be one.

A peer takes a tunnel packet by its source address, and the CNI gives what Pods send beyond their cluster the
address of their Node. So nothing that this Node forwards may go to a tunnel, BFD or WireGuard port of a peer. What
the Node itself sends passes the hook output, never forward. A Service whose endpoint is such a port is translated
before the hook forward, so it is caught, too.

A Node may be the router of other gateways: what a peer sends to a peer passes, from a device that leads to the
sender (the check of sources sees to that), and with the destination that it came with: a translated one is a
Service's.

Pure; owns the sets and chains named here. Knows nothing of flows, keys or routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from mcagent.core.addresses.rules import merge_networks
from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.core.remote_clusters.claims import CheckedCluster
from mcagent.model.config import Config
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import AcceptedCluster, LocalGateway
from mcagent.model.resources import DEFAULT_PORTS, NftChain, NftSet, Resource

BFD_PORT = 3784  # RFC 5881 section 4; Open vSwitch has it inside tunnels only (lib/bfd.c)

_POD_DEVICES = ("veth", "netkit", "bridge", "openvswitch")  # kinds, as in `ip -d link`

TO_TUNNEL, TO_WIREGUARD, FORGED, CLEAR = "mct_to_tunnel", "mct_to_wireguard", "mct_forged", "mct_clear_in"
DROPS = MappingProxyType(
    {TO_TUNNEL: "to-tunnel", TO_WIREGUARD: "to-wireguard", FORGED: "forged-tunnel", CLEAR: "clear-tunnel"}
)
"""Why what the rules of a chain count is dropped, by the chain's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where tunnels end, of one IP version: Nodes of this cluster, gateways of others; and WireGuard's ports."""

    version: int
    addresses: tuple[Network, ...]  # disjoint, sorted
    wireguard: tuple[tuple[Address, int], ...]  # sorted; empty while nothing is encrypted


class PeerEnd(NamedTuple):
    """Where tunnels of a peer end: the address as an integer and as a network, and its WireGuard's port."""

    number: int
    host: Network
    port: int


def ends_of(value: tuple[AcceptedCluster, CheckedCluster], default: int) -> tuple[PeerEnd, ...]:
    """Return where a cluster's gateways take packets; WireGuard's at port `default` if they publish none."""
    cluster, info = value[0], value[1].info
    published = {address: found.port for address, found in info.gateway_wireguard}
    first = info.wireguard.port if info.wireguard is not None else 0
    return tuple(
        PeerEnd(int(address), host_network(address), published.get(address, first) or default)
        for address in cluster.gateways
    )


def peers_of(
    gateways: tuple[LocalGateway, ...],
    node_addresses: tuple[tuple[Address, str], ...],
    remote: Mapping[str, tuple[PeerEnd, ...]],
    config: Config,
) -> tuple[Peers, ...]:
    """Return the peers of each IP version that this cluster's tunnels have. `remote`: gateways of other clusters.

    Every Node knows all of them, with a tunnel or without: its Pods could speak in the name of any.
    """
    port = config.wireguard_port
    own = [
        PeerEnd(int(address), host_network(address), port if address == gateway.gateway_ip else 0)
        for gateway in gateways
        for address in (gateway.internal_ip, gateway.gateway_ip)
    ]
    nodes = [PeerEnd(int(a), host_network(a), 0) for a, _ in node_addresses if a not in ENDPOINTS]
    ends = [*own, *nodes, *chain.from_iterable(remote.values())]
    return tuple(
        _peers(version, [end for end in ends if end.host.version == version], encrypts=config.encrypts)
        for version in sorted({end.host.version for end in own})
    )


def _peers(version: int, ends: list[PeerEnd], *, encrypts: bool) -> Peers:
    hosts = {end.number: end.host for end in ends}
    sockets = sorted({(end.number, end.port) for end in ends if end.port}) if encrypts else ()
    return Peers(
        version=version,
        addresses=_merged(hosts),
        wireguard=tuple((hosts[number].network_address, port) for number, port in sockets),
    )


def _merged(hosts: Mapping[int, Network]) -> tuple[Network, ...]:
    """Merge as `merge_networks` does, at a tenth of its cost: each move of one gateway merges the hosts of all."""
    values = sorted(hosts)
    found: list[Network] = []
    place = 0
    while place < len(values):
        first = values[place]
        size = 1  # as many neighbours as an aligned network holds
        while (
            not first & (2 * size - 1)
            and place + 2 * size <= len(values)
            and values[place + 2 * size - 1] == first + 2 * size - 1
        ):
            size *= 2
        host = hosts[first]
        found.append(host if size == 1 else host.supernet(size.bit_length() - 1))
        place += size
    return tuple(found)


def guard(config: Config, peers: Iterable[Peers]) -> list[Resource]:
    """Return what drops packets to and from tunnels that no tunnel sent."""
    return [resource for one in peers for resource in _guard(config, one)]


def _guard(config: Config, peers: Peers) -> list[Resource]:
    family = "ip" if peers.version == 4 else "ip6"
    ports = f"udp dport {{ {', '.join(map(str, sorted({BFD_PORT, tunnel_port(config)})))} }}"
    tunnel = f"{ports} {family} daddr @mct_peers"
    found: list[Resource] = [
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
        found.append(filter_chain(config, family, FORGED, ("prerouting", -250), *_forged(ports, family)))
    if config.encrypts:
        device, wireguard = config.wireguard_device, f"{family} daddr . udp dport @mct_wireguard"
        found += [
            NftSet(table=config.nft_table, name="mct_wireguard", sockets=peers.wireguard, family=family),
            filter_chain(
                config,
                family,
                TO_WIREGUARD,
                ("forward", -150),
                f'oifname "{device}" counter drop',
                f'iifname "{device}" counter drop',
                *((f"ip daddr {ENDPOINTS} counter drop",) if family == "ip" else ()),
                f"{wireguard} {family} saddr != @mct_peers counter drop",
                f"{wireguard} ct status dnat counter drop",
            ),
        ]
    return found


def _forged(ports: str, family: str) -> tuple[str, ...]:
    """Return what drops packets of peers that come by a device of Pods: one that does not lead to the peer.

    "fib … oif" asks for the best route only (nft_fib4_eval in net/ipv4/netfilter/nft_fib_ipv4.c), as rp_filter=1
    does, and peers may well come by another device than the one back to them. So only the kinds of devices that
    lead to Pods are asked (not a network card, nor a CNI's WireGuard between Nodes, as Cilium has it), and what is
    for a Node's address on the very device that it came by passes. No device of Pods has that; a bridge of the CNI
    has a Pod address. One rule for each kind: nft's order of names in a set is not the same everywhere.
    """
    here = f"{ports} {family} daddr @mct_peers fib daddr . iif type local accept"
    forged = (
        f'{ports} meta iifkind "{kind}" {family} saddr @mct_peers fib saddr . iif oif missing counter drop'
        for kind in _POD_DEVICES
    )
    return (f"{ports.replace(' {', ' != {')} accept", here, *forged)


def clear_arrivals(config: Config, family: str, own: tuple[Address, ...]) -> list[Resource]:
    """Return what takes no tunnel packet from an encrypted peer but from the WireGuard device.

    `own` are this Node's endpoints behind the device: nothing else has a way to them, so whatever comes for them
    by another device was made up on the underlay. The set @mct_encrypted is `mcagent.core.fragments.kernel`'s.
    """
    device = config.wireguard_device
    rules = [f'iifname != "{device}" udp dport {tunnel_port(config)} {family} saddr @mct_encrypted counter drop']
    found: list[Resource] = []
    if family == "ip" and own:
        ends = merge_networks(host_network(address) for address in own)
        found.append(NftSet(table=config.nft_table, name="mct_own_ends", elements=ends))
        rules.append(f'iifname != "lo" iifname != "{device}" ip daddr @mct_own_ends counter drop')
    return [*found, filter_chain(config, family, CLEAR, ("input", -150), *rules)]


def tunnel_port(config: Config) -> int:
    """Return the UDP port of every tunnel."""
    return config.tunnel_port or DEFAULT_PORTS[config.tunnel_type]


def filter_chain(config: Config, family: str, name: str, where: tuple[str, int], *rules: str) -> NftChain:
    """Return a filter chain; `where`: hook and priority."""
    hook, priority = where
    return NftChain(
        table=config.nft_table, name=name, type="filter", hook=hook, priority=priority, rules=rules, family=family
    )
