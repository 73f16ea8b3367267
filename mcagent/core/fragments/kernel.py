"""Kernel resources of a Node: host port, routes, rule and nft. Values only.

A routing table of its own routes packets to other clusters into the host port. Must not know tunnels, flows or
clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address

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
OWN_REQUEST_MAC = "aa:bb:cc:dd:ee:fa"  # of ICMP errors about connections that this Node or its Pods opened
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
POD_SOURCES = "mct_pod_sources"  # the chain that drops and counts packets in the name of another Pod of this Node
REJECT_MACS = ("0a:6d:01:00:00:00", "0a:6d:02:00:00:00")  # source MACs of rejected packets: to Pods, from Pods
REJECTED = "mct_rejected"  # the chain that drops and counts rejected packets without an answer


def packet_mtu(uplink_mtu: int, config: Config, gateways: tuple[LocalGateway, ...]) -> int:
    """Return the MTU of routes to other clusters in bytes: packets fit into every tunnel on their path.

    These are tunnels between Nodes and between clusters, on the uplink or in WireGuard. All Nodes of the cluster
    compute the same MTU: where gateways have both IP versions, the one with the larger header counts.
    """
    within = max((gateway.internal_ip.version for gateway in gateways), default=4)
    between = max((gateway.gateway_ip.version for gateway in gateways), default=4)
    return config.mtu or largest_mtu(uplink_mtu, config, within=within, between=between)


def device_mtu(uplink_mtu: int, mtu: int) -> int:
    """Return the MTU of the host port in bytes, with `mtu` for the routes.

    Packets of Pods fit the device. A CNI that forwards by eBPF compares them with the device's MTU, and drops
    larger ones without an answer (bpf_skb_fib_lookup in Linux' net/core/filter.c). The kernel, to which the bridge
    returns what is too large for tunnels, answers by the route's MTU.
    """
    return max(uplink_mtu, mtu)


def largest_mtu(uplink_mtu: int, config: Config, *, within: int, between: int) -> int:
    """Return the largest MTU in bytes with which every tunnel packet fits into the uplink.

    `within`, `between`: the IP version of tunnels between Nodes of this cluster, and between clusters.
    """
    inside = _largest(uplink_mtu, config, within, encrypted=config.encrypts_nodes)
    outside = _largest(uplink_mtu, config, between, encrypted=config.encrypts)
    return max(min(inside, outside), SMALLEST_MTU)


def _largest(uplink_mtu: int, config: Config, version: int, *, encrypted: bool) -> int:
    if encrypted:
        return wireguard_mtu(uplink_mtu, config, version) - OVERHEAD[4]
    return uplink_mtu - OVERHEAD[version]


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
    """Return the rule that sends all packets through the table of routes to other clusters."""
    return [Rule(priority=config.rule_priority, table=config.route_table)]


def cluster_routes(
    config: Config, source: Address | None, cidrs: Iterable[Network], direct: Iterable[Address], mtu: int
) -> list[Resource]:
    """Return the routes to the networks of one cluster. `source`: the source address of this Node's own packets.

    `direct`: tunnel endpoints inside remote CIDRs. They are excluded, so that tunnels never loop. `mtu` of the
    tunnels to and in that cluster.
    """
    table, port = config.route_table, config.host_port
    routes: list[Resource] = [
        Route(table=table, destination=cidr, device=port, via=NEXT_HOP, source=source, mtu=mtu) for cidr in cidrs
    ]
    routes.extend(
        Route(table=config.route_table, destination=host_network(address), type=RouteType.THROW)
        for address in direct
    )
    return routes


def endpoint_routes(config: Config, address: Address, source: Address | None, device: str) -> list[Resource]:
    """Return the route to a tunnel endpoint behind a WireGuard device, and an unreachable route to it.

    The kernel removes the device's routes with the device. The unreachable route then keeps the tunnel's packets
    from the default route, where they would be unencrypted.
    """
    destination = host_network(address)
    return [
        Route(table=config.route_table, destination=destination, device=device, source=source),
        Route(table=config.route_table, destination=destination, type=RouteType.UNREACHABLE),
    ]


def encrypted_netfilter(
    config: Config,
    devices: tuple[str, ...],
    forbidden: Iterable[Network],
    own_endpoints: tuple[Address, ...] = (),
) -> list[Resource]:
    """Return the rules that drop tunnel packets to and from encrypted peers outside the WireGuard devices.

    `devices`: the names of these. `forbidden`: gateways of other clusters, Nodes of this one, and endpoints behind
    the devices. `own_endpoints`: this Node's endpoints there. Tunnels of the kernel pass the hook postrouting
    (iptunnel_xmit in net/ipv4/ip_tunnel_core.c: ip_local_out; udp_tunnel6_xmit_skb: ip6tunnel_xmit).

    Packets through a device, and packets of the device itself, are not tracked. A CNI that translates the source
    of all packets that leave the Node (the AWS VPC CNI) would give the former an address that the peer refuses,
    and the latter a random port.
    """
    by_version: dict[int, list[Network]] = {}
    for network in forbidden:
        by_version.setdefault(network.version, []).append(network)
    return [
        resource
        for version, networks in sorted(by_version.items())
        for resource in _encrypted(config, version, devices, networks, own_endpoints)
    ]


def _encrypted(
    config: Config,
    version: int,
    devices: tuple[str, ...],
    forbidden: list[Network],
    own_endpoints: tuple[Address, ...],
) -> list[Resource]:
    """Return these rules for one IP version: an nft set and its table have one family."""
    family = "ip" if version == 4 else "ip6"
    last_port = config.wireguard_port + len(devices) - 1
    listen_ports = f"{config.wireguard_port}-{last_port}" if len(devices) > 1 else f"{last_port}"
    into = (*(f'iifname "{device}" notrack' for device in devices), f"udp dport {listen_ports} notrack")
    out = (*(f'oifname "{device}" notrack' for device in devices), f"udp sport {listen_ports} notrack")
    outside = " ".join(f'oifname != "{device}"' for device in devices)
    clear = f"{outside} {family} daddr @mct_encrypted udp dport {tunnel_port(config)} drop"
    return [
        NftSet(table=config.nft_table, name="mct_encrypted", elements=merge_networks(forbidden), family=family),
        filter_chain(config, family, "mct_clear", ("postrouting", 300), clear),
        *clear_arrivals(config, family, own_endpoints, devices),
        filter_chain(config, family, "mct_untracked_in", ("prerouting", -300), *into),
        filter_chain(config, family, "mct_untracked_out", ("output", -300), *out),
    ]


def netfilter(
    config: Config,
    pods: tuple[Network, ...],
    own_addresses: tuple[Address, ...] = (),
    own_cidrs: tuple[Network, ...] = (),
    *,
    check_sources: bool = True,
) -> list[Resource]:
    """Return the nft table: identity SNAT of Pods, MSS clamp, closed Nodes, sources of Pods.

    `pods`: disjoint networks. `own_addresses`, `own_cidrs`: IPv4 addresses and Pod CIDRs of this Node.
    `check_sources`: drop packets that arrive by another device than that of the Pod with their source address. The
    lookup is in the hook forward, because only packets into the bridge need it (since Linux 5.19: nft_fib_validate
    in net/netfilter/nft_fib.c).
    """
    port = config.host_port
    clamp = "tcp flags syn tcp option maxseg size set rt mtu"

    def of_type(name: str, where: tuple[str, str, int], *rules: str) -> NftChain:
        kind, hook, priority = where
        return NftChain(table=config.nft_table, name=name, type=kind, hook=hook, priority=priority, rules=rules)

    into, out = f'iifname "{port}"', f'oifname "{port}"'
    # The reverse path first: it ends the rule for packets of Pods, which need no lookup in the set then.
    # What the bridge returns because of its size comes from the host port.
    forged = f'{out} iifname != "{port}" fib saddr . iif oif missing ip saddr @mct_pods counter drop'
    # A Pod of another Node has called a NodePort here. Only this Node can translate the replies back, so they must
    # return to it: kube-proxy translates the source, at priority 100. Replies to Pods of this Node do so anyway.
    of_others = "".join(f" ip saddr != {cidr}" for cidr in own_cidrs)
    node_ports = (f"{out} ct original ip daddr {address}{of_others} accept" for address in own_addresses)
    keep_source = f"{out} ip saddr @mct_pods snat to ip saddr"
    nodes = (*_own_connections(config), *(() if config.expose_nodes else _closed_nodes(own_addresses)))
    return [
        of_type(CLOSED_NODES, ("filter", "prerouting", -99), *nodes),
        *(_rejecting(port, of_type) if config.stretched_network_policy else ()),
        NftSet(table=config.nft_table, name="mct_pods", elements=pods),
        # What the bridge returns to the kernel. Before the reassembly, since only large fragments return.
        of_type("mct_returned", ("filter", "prerouting", -450), f"{into} ip saddr @mct_pods notrack"),
        *([of_type(POD_SOURCES, ("filter", "forward", -150), forged)] if check_sources else []),
        # Before the CNI's masquerade: a source that is translated to itself is not translated again.
        of_type("mct_post", ("nat", "postrouting", 99), *node_ports, keep_source),
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


def _own_connections(config: Config) -> Iterator[str]:
    """Yield the rules that drop packets of other clusters in connections of this Node that left by another device.

    A reply must arrive by the device to which the route to its source leads: by that device the request left. The
    Node may reach an address by another route than that of the remote cluster (a rule for one of its addresses, a
    table of the CNI), and knows connections that its bridge has not seen, of its own and of Pods whose source the
    CNI translates. ICMP errors may come from any router; the bridge passes only those about connections that have
    passed it (table Related). A remote cluster can let a connection of this Node pass the bridge in the other
    direction, by packets like replies. So an error about a request of this Node needs the source MAC by which the
    bridge says that it has seen the request.

    An exposed Node may have a kernel without nft_fib; then sources of tunnels are not checked either.
    """
    yield f'iifname != "{config.host_port}" accept'
    if config.tunnel_source_check or not config.expose_nodes:
        yield "ct state established ct direction reply fib saddr . iif oif missing counter drop"
    yield f"meta l4proto 1 ct state related ct direction reply ether saddr != {OWN_REQUEST_MAC} counter drop"


def _closed_nodes(own_addresses: tuple[Address, ...]) -> tuple[str, ...]:
    """Return the rules that drop packets of other clusters to this Node itself, unless the bridge translated them.

    What it translated, for an endpoint of an exported Service, reaches this Node at the addresses of its Node
    object only: they are endpoints only of Pods in the host network (core.local_cluster.endpoints). The CNI may
    give the Node others, also in its Pod CIDR, and a broadcast address, which its sockets hear. Users who may
    write EndpointSlices could name them.

    The chain follows destination NAT (priority -100). There a packet to this Node has a local destination, and a
    packet to a NodePort, hostPort, external or load balancer address has been translated by kube-proxy or the CNI;
    both are dropped. The rules match packets, not connections, so packets whose connection conntrack has lost
    or not yet seen are treated alike. Replies to connections of this Node pass, as do ICMP errors about them
    (`_own_connections`). The bridge sets the source MAC (flows.pipeline, table ArriveState).
    """
    translated = f"ether saddr & {TRANSLATED_MASK} == {TRANSLATED_MAC}"
    return (
        f"{translated} fib daddr type unicast accept",
        *(f"{translated} ip daddr {address} accept" for address in own_addresses),
        "ct direction reply accept",
        "meta l4proto 1 ct state related accept",  # ICMP; its name is not known everywhere
        "ct status dnat counter drop",
        "fib daddr type { local, broadcast, anycast, multicast } counter drop",
    )
