"""Kernel resources of a Node: host port, routes, rules and nft. Values only.

A routing table of its own routes packets to other clusters into the host port. One bit of the connection mark
routes replies of connections that arrived through the host port back through it. Must not know tunnels, flows or
clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

from mcagent.core.addresses.rules import merge_networks
from mcagent.core.fragments.tunnel_guard import clear_arrivals, filter_chain, tunnel_port
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import (
    Link,
    LinkAddress,
    Neighbour,
    NftChain,
    NftSet,
    Resource,
    Route,
    RouteType,
    Rule,
)
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import LocalGateway

HOST_MAC = "0a:6d:63:00:00:01"
TRANSLATED_MAC, TRANSLATED_MASK = "0a:6d:00:00:00:00", "ff:ff:ff:00:00:00"  # source MACs of translated packets
GATEWAY_MAC = "aa:bb:cc:dd:ee:f0"  # the virtual next hop, the address that Antrea uses too
HOST_ADDRESS = IPv4Address("169.254.77.1")
NEXT_HOP = IPv4Address("169.254.77.2")
# Bytes, by the IP version of the underlay. Geneve without options, or VXLAN: IP, UDP 8, header 8, Ethernet 14.
OVERHEAD = {4: 20 + 8 + 8 + 14, 6: 40 + 8 + 8 + 14}
# WireGuard: IP, UDP 8, header 16, authentication tag 16. Its payload is padded to 16 bytes, but never beyond the
# device's MTU. The tunnel inside is IPv4 on any underlay.
WIREGUARD_OVERHEAD = {4: 20 + 8 + 16 + 16, 6: 40 + 8 + 16 + 16}
SMALLEST_MTU = 576  # RFC 1122 section 3.3.2: every host must be able to receive it

CLOSED_NODES = "mct_nodes"  # the chain that drops and counts packets of other clusters to this Node itself
REJECT_MACS = ("0a:6d:01:00:00:00", "0a:6d:02:00:00:00")  # source MACs of rejected packets: to Pods, from Pods
REJECTED = "mct_rejected"  # the chain that drops and counts rejected packets without an answer

_EVERYTHING = IPv4Network("0.0.0.0/0")


def host_port_mtu(uplink_mtu: int, config: Config, gateways: tuple[LocalGateway, ...]) -> int:
    """Return the MTU of the host port in bytes: its packets fit into every tunnel on their path.

    These are tunnels between Nodes and between clusters, on the uplink or in WireGuard. All Nodes of the cluster
    compute the same MTU: where gateways have both IP versions, the one with the larger header counts.
    """
    within = max((gateway.internal_ip.version for gateway in gateways), default=4)
    between = max((gateway.gateway_ip.version for gateway in gateways), default=4)
    return config.mtu or largest_mtu(uplink_mtu, config, within=within, between=between)


def largest_mtu(uplink_mtu: int, config: Config, *, within: int, between: int) -> int:
    """Return the largest MTU in bytes with which every tunnel packet fits into the uplink.

    `within`, `between`: the IP version of tunnels between Nodes of this cluster, and between clusters.
    """
    inside = uplink_mtu - OVERHEAD[within]
    outside = uplink_mtu - OVERHEAD[between]
    if config.encrypts:
        outside = wireguard_mtu(uplink_mtu, config, between) - OVERHEAD[4]
    return max(min(inside, outside), SMALLEST_MTU)


def wireguard_mtu(uplink_mtu: int, config: Config, version: int) -> int:
    """Return the MTU of the WireGuard device in bytes. `version`: the IP version of the underlay."""
    smallest = SMALLEST_MTU + OVERHEAD[4]
    return config.wireguard_mtu or max(uplink_mtu - WIREGUARD_OVERHEAD[version], smallest)


def device(config: Config, mtu: int, mapped: Address | None) -> list[Resource]:
    """Return the host port's link, addresses and neighbour. `mapped`: see `LocalCluster.own_mapped_address`."""
    addresses = [HOST_ADDRESS] if mapped is None else [HOST_ADDRESS, mapped]
    return [
        Link(name=config.host_port, mtu=mtu),
        *(LinkAddress(device=config.host_port, address=address, prefixlen=32) for address in addresses),
        Neighbour(device=config.host_port, address=NEXT_HOP, mac=GATEWAY_MAC),
    ]


def routing(config: Config) -> list[Resource]:
    """Return the two rules, and the only route of the reply table.

    The rule for replies precedes the other: clients of a cluster where Antrea encrypts have the address of
    Antrea's tunnel endpoint, whose route in the other table leads to the WireGuard device.
    """
    bit = 1 << config.ct_mark_bit
    return [
        Rule(priority=config.rule_priority, table=config.reply_table, fwmark=bit, fwmask=bit),
        Rule(priority=config.rule_priority + 1, table=config.route_table),
        Route(table=config.reply_table, destination=_EVERYTHING, device=config.host_port, via=NEXT_HOP),
    ]


def cluster_routes(
    config: Config, source: Address | None, cidrs: Iterable[Network], direct: Iterable[Address]
) -> list[Resource]:
    """Return the routes to the networks of one cluster. `source`: the source address of this Node's own packets.

    `direct`: tunnel endpoints inside remote CIDRs. They are excluded, so that tunnels never loop.
    """
    routes: list[Resource] = [
        Route(table=config.route_table, destination=cidr, device=config.host_port, via=NEXT_HOP, source=source)
        for cidr in cidrs
    ]
    routes.extend(
        Route(table=config.route_table, destination=host_network(address), type=RouteType.THROW)
        for address in direct
    )
    return routes


def endpoint_routes(config: Config, address: Address, source: Address | None) -> list[Resource]:
    """Return the route to a tunnel endpoint behind the WireGuard device, and an unreachable route to it.

    The kernel removes the device's routes with the device. The unreachable route then keeps the tunnel's packets
    from the default route, where they would be unencrypted.
    """
    destination = host_network(address)
    return [
        Route(table=config.route_table, destination=destination, device=config.wireguard_device, source=source),
        Route(table=config.route_table, destination=destination, type=RouteType.UNREACHABLE),
    ]


def encrypted_netfilter(
    config: Config, forbidden: Iterable[Network], own_endpoints: tuple[Address, ...] = ()
) -> list[Resource]:
    """Return the rules that drop tunnel packets to and from other clusters outside the WireGuard device.

    `forbidden`: gateways of other clusters and endpoints behind the device. `own_endpoints`: this Node's endpoints
    behind the device. Tunnels of the kernel pass the hook postrouting (iptunnel_xmit in
    net/ipv4/ip_tunnel_core.c: ip_local_out; udp_tunnel6_xmit_skb: ip6tunnel_xmit).

    Packets through the device, and packets of the device itself, are not tracked. A CNI that translates the source
    of all packets that leave the Node (the AWS VPC CNI) would give the former an address that the peer refuses,
    and the latter a random port.
    """
    by_version: dict[int, list[Network]] = {}
    for network in forbidden:
        by_version.setdefault(network.version, []).append(network)
    return [
        resource
        for version, networks in sorted(by_version.items())
        for resource in _encrypted(config, version, networks, own_endpoints)
    ]


def _encrypted(
    config: Config, version: int, forbidden: list[Network], own_endpoints: tuple[Address, ...]
) -> list[Resource]:
    """Return these rules for one IP version: an nft set and its table have one family."""
    family = "ip" if version == 4 else "ip6"
    device, port, listen_port = config.wireguard_device, tunnel_port(config), config.wireguard_port
    into, out = (
        (f'iifname "{device}" notrack', f"udp dport {listen_port} notrack"),
        (f'oifname "{device}" notrack', f"udp sport {listen_port} notrack"),
    )
    clear = f'oifname != "{device}" {family} daddr @mct_encrypted udp dport {port} drop'
    return [
        NftSet(table=config.nft_table, name="mct_encrypted", elements=merge_networks(forbidden), family=family),
        filter_chain(config, family, "mct_clear", ("postrouting", 300), clear),
        *clear_arrivals(config, family, own_endpoints),
        filter_chain(config, family, "mct_untracked_in", ("prerouting", -300), *into),
        filter_chain(config, family, "mct_untracked_out", ("output", -300), *out),
    ]


def netfilter(config: Config, pods: tuple[Network, ...]) -> list[Resource]:
    """Return the nft table: identity SNAT of Pods, marks of connections, MSS clamp, closed Nodes.

    `pods`: disjoint networks.
    """
    port, bit = config.host_port, f"0x{1 << config.ct_mark_bit:08x}"
    reply = f"ct direction reply ct mark & {bit} == {bit} meta mark set meta mark | {bit}"
    clamp = "tcp flags syn tcp option maxseg size set rt mtu"

    def of_type(name: str, where: tuple[str, str, int], *rules: str) -> NftChain:
        kind, hook, priority = where
        return NftChain(table=config.nft_table, name=name, type=kind, hook=hook, priority=priority, rules=rules)

    into, out = f'iifname "{port}"', f'oifname "{port}"'
    mark = f"{into} ct direction original ct mark set ct mark | {bit}"
    return [
        *(
            []
            if config.expose_nodes
            else [of_type(CLOSED_NODES, ("filter", "prerouting", -99), *_closed_nodes(port))]
        ),
        *(_rejecting(port, of_type) if config.stretched_network_policy else ()),
        NftSet(table=config.nft_table, name="mct_pods", elements=pods),
        # Before the CNI's masquerade: a source that is translated to itself is not translated again.
        of_type("mct_post", ("nat", "postrouting", 99), f"{out} ip saddr @mct_pods snat to ip saddr"),
        of_type("mct_pre", ("filter", "prerouting", -151), mark, f'iifname != "{port}" {reply}'),
        of_type("mct_out", ("route", "output", -150), reply),
        of_type("mct_mss", ("filter", "forward", -150), f"{out} {clamp}", f"{into} {clamp}"),
    ]


def _rejecting(port: str, of_type: Callable[..., NftChain]) -> Iterator[NftChain]:
    """Yield the chains that answer packets that a policy rejects, and drop the rest.

    Packets to Pods are answered after conntrack, since the answer needs the connection's mark (set at -151).
    Packets from Pods are answered before it: conntrack then sees the answer as a reply of the connection, and
    restores the address of the Service that the Pod called.
    """
    for name, mac, priority in zip(("mct_reject_in", "mct_reject_out"), REJECT_MACS, (-150, -300), strict=True):
        conditions = (f'iifname != "{port}" accept', f"ether saddr != {mac} accept")
        answer = ("reject with tcp reset", "reject with icmp admin-prohibited")
        rules = (*conditions, "limit rate over 100/second burst 200 packets accept", *answer)
        yield of_type(name, ("filter", "prerouting", priority), *rules)
    # This chain is needed where the kernel (before Linux 5.9) refuses the chains above.
    drops = (f'iifname "{port}" ether saddr {mac} counter drop' for mac in REJECT_MACS)
    yield of_type(REJECTED, ("filter", "prerouting", -149), *drops)


def _closed_nodes(port: str) -> tuple[str, ...]:
    """Return the rules that drop packets of other clusters to this Node itself, unless the bridge translated them.

    The chain follows destination NAT (priority -100). There a packet to this Node has a local destination, and a
    packet to a NodePort, hostPort, external or load balancer address has been translated by kube-proxy or the CNI;
    both are dropped. The rules match packets, not connections, so packets whose connection conntrack has lost
    or not yet seen are treated alike. Replies to connections of this Node pass, as do ICMP errors about them. The
    bridge sets the source MAC (flows.pipeline, table ArriveState).
    """
    return (
        f'iifname != "{port}" accept',
        f"ether saddr & {TRANSLATED_MASK} == {TRANSLATED_MAC} accept",
        "ct direction reply accept",
        "meta l4proto 1 ct state related accept",  # ICMP; its name is not known everywhere
        "ct status dnat counter drop",
        "fib daddr type { local, broadcast, anycast, multicast } counter drop",
    )
