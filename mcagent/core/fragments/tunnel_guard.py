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

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from types import MappingProxyType

from mcagent.core.addresses.rules import merged
from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.core.parts import different
from mcagent.core.remote_clusters.settle import Remotes
from mcagent.core.topology import Topology
from mcagent.model.config import Config
from mcagent.model.net import Address, Network, host_network
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


def peers_of(
    topology: Topology, config: Config, before: Topology | None = None, known: tuple[Peers, ...] = ()
) -> tuple[Peers, ...]:
    """Return the peers of each IP version that this cluster's tunnels have. `known` is what `before` led to.

    Every Node knows all of them, with a tunnel or without: its Pods could speak in the name of any.
    """
    if before is not None and _same(topology, before):
        return known
    local, remotes = topology.local, topology.remotes
    own = {address for gateway in local.gateways for address in (gateway.internal_ip, gateway.gateway_ip)}
    addresses = own | {address for address, _ in local.node_addresses if address not in ENDPOINTS}
    sockets = {(gateway.gateway_ip, config.wireguard_port) for gateway in local.gateways}
    for cluster_id, remote in remotes.clusters.items():
        addresses.update(remote.gateways)
        if config.encrypts:
            sockets.update(_sockets(remotes, cluster_id, config.wireguard_port))
    return tuple(
        Peers(
            version=version,
            addresses=_hosts(addresses, version),
            wireguard=tuple(
                sorted(
                    (one for one in sockets if one[0].version == version), key=lambda one: (int(one[0]), one[1])
                )
            )
            if config.encrypts
            else (),
        )
        for version in sorted({address.version for address in own})
    )


def _hosts(addresses: Iterable[Address], version: int) -> tuple[Network, ...]:
    """Return what `merged` would. By integers, which costs a tenth: all are looked at when one gateway moves."""
    make, bits = (IPv4Network, 32) if version == 4 else (IPv6Network, 128)
    values = sorted(int(address) for address in addresses if address.version == version)
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
        found.append(make((first, bits + 1 - size.bit_length())))
        place += size
    return tuple(found)


def _same(topology: Topology, before: Topology) -> bool:
    """Tell whether no tunnel's end moved. Clusters that did not change are not looked at."""
    if (topology.local.gateways, topology.local.node_addresses) != (
        before.local.gateways,
        before.local.node_addresses,
    ):
        return False
    new, old = topology.remotes, before.remotes
    if new is old:
        return True
    names = different(new.clusters, old.clusters) | different(new.table.winners, old.table.winners)
    return all(_published(new, name) == _published(old, name) for name in names)


def _published(remotes: Remotes, cluster_id: str) -> object:
    remote = remotes.clusters.get(cluster_id)
    if remote is None:
        return None
    info = remotes.table.winners[cluster_id].info
    return (remote.gateways, info.gateway_wireguard, info.wireguard)


def _sockets(remotes: Remotes, cluster_id: str, default: int) -> Iterable[tuple[Address, int]]:
    """Return where the gateways of another cluster take WireGuard's packets."""
    info = remotes.table.winners[cluster_id].info
    published = {address: found.port for address, found in info.gateway_wireguard}
    first = info.wireguard.port if info.wireguard is not None else 0
    for address in remotes.clusters[cluster_id].gateways:
        yield address, published.get(address, first) or default


def guard(config: Config, peers: Iterable[Peers]) -> list[Resource]:
    """Return what drops packets to and from tunnels that no tunnel sent."""
    return [resource for one in peers for resource in _guard(config, one)]


def _guard(config: Config, peers: Peers) -> list[Resource]:
    family = "ip" if peers.version == 4 else "ip6"
    ports = f"udp dport {{ {', '.join(map(str, sorted({BFD_PORT, tunnel_port(config)})))} }}"
    tunnel = f"{ports} {family} daddr @mct_peers"
    found: list[Resource] = [
        NftSet(table=config.nft_table, name="mct_peers", elements=peers.addresses, family=family),
        _chain(
            config,
            family,
            TO_TUNNEL,
            ("forward", -150),
            f"{tunnel} {family} saddr != @mct_peers counter drop",
            f"{tunnel} ct status dnat counter drop",
        ),
    ]
    if config.tunnel_source_check:
        found.append(_chain(config, family, FORGED, ("prerouting", -250), *_forged(ports, family)))
    if config.encrypts:
        device, wireguard = config.wireguard_device, f"{family} daddr . udp dport @mct_wireguard"
        found += [
            NftSet(table=config.nft_table, name="mct_wireguard", sockets=peers.wireguard, family=family),
            _chain(
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
        ends = merged(host_network(address) for address in own)
        found.append(NftSet(table=config.nft_table, name="mct_own_ends", elements=ends))
        rules.append(f'iifname != "lo" iifname != "{device}" ip daddr @mct_own_ends counter drop')
    return [*found, _chain(config, family, CLEAR, ("input", -150), *rules)]


def tunnel_port(config: Config) -> int:
    """Return the UDP port of every tunnel."""
    return config.tunnel_port or DEFAULT_PORTS[config.tunnel_type]


def _chain(config: Config, family: str, name: str, where: tuple[str, int], *rules: str) -> NftChain:
    hook, priority = where
    return NftChain(
        table=config.nft_table, name=name, type="filter", hook=hook, priority=priority, rules=rules, family=family
    )
