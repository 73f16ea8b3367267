"""The fragments of the desired state: which resources each owner has.

Functions of values, one for each part of a fragment that changes for reasons of its own: ports with BFD, flows
with next hops, routes with claims. Knows the pipeline only by its values and the builders of `flows.pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from flows import pipeline
from flows.fields import PROTOCOLS
from flows.pipeline.registers import HOST_OFPORT
from mcagent.core.fragments import kernel
from mcagent.core.fragments.path_state import PathState
from mcagent.core.fragments.tunnel_guard import Peers, guard, tunnel_port
from mcagent.core.fragments.wireguard import peer_resources
from mcagent.core.ids import ASK_METERS, PROBE_METERS
from mcagent.core.local_cluster.services import local_endpoints
from mcagent.core.local_cluster.topology import LocalCluster, LocalPeer
from mcagent.model.config import Config, GatewayMode
from mcagent.model.facts import DatapathType
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import AcceptedCluster, ExportedPort, LocalGateway, RemoteEnd, Role
from mcagent.model.plan import Fragment
from mcagent.model.resources import Bridge, FlowEntry, GroupEntry, HostPort, MeterEntry, Resource, TunnelPort

Resources = tuple[Resource, ...]

# Of connections that are SNATed, the first and the last: see `snat_ports`.
_SNAT_PORTS = {DatapathType.NETDEV: (10000, 32767), DatapathType.SYSTEM: (10000, 65535)}

ASKED = 10  # new connections a second for each packet a second about which the Nodes of all endpoints are asked
PROBES = 100  # a second through the tunnels to one cluster, answers included: that of 50 gateways there


def fragment(parts: tuple[str, *tuple[Resources | None, ...]]) -> Fragment:
    """Return the fragment of an owner, made of these parts."""
    owner, *resources = parts
    return Fragment(owner=owner, resources=tuple(chain.from_iterable(filter(None, resources))))


def owners(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Return the owners of the fragments of one kind, by name."""
    return {name: f"{kind}/{name}" for name in names}


def environment(
    local: LocalCluster,
    next_hops: pipeline.NextHopGroup,
    also_known_by: tuple[Address, ...],
    datapath: DatapathType,
    config: Config,
) -> pipeline.Env:
    """Return what all flows share. `next_hops`: the (other) gateways of this cluster."""
    own = local.own_gateway
    return pipeline.Env(
        gateway=local.role is Role.GATEWAY,
        ct_zone_base=config.ct_zone_base,
        local_gateways=tuple(sorted(hop.ofport for hop in next_hops.next_hops)),
        own_gateway_ips=() if own is None else (own.source, *also_known_by),
        service_cidrs=local.service_cidrs,
        identities=config.stretched_network_policy,
        published_pods=local.published_pods,
        userspace_conntrack=datapath is DatapathType.NETDEV,
        snat_ports=snat_ports(datapath, tunnel_port(config)),
    )


def snat_ports(datapath: DatapathType, tunnel: int) -> tuple[int, int]:
    """Return the first and the last source port that a gateway gives to connections that it SNATs.

    None is the UDP port of a tunnel or of BFD: a reply to it would be taken for a forged tunnel packet by the
    other cluster's Nodes (`mcagent.core.fragments.tunnel_guard`). `tunnel` is this ClusterSet's; those below the
    first are 3784 (BFD), 4789 and 8472 (VXLAN) and 6081 (Geneve). On the userspace datapath, whose conntrack does
    not know what the kernel's has, none is one that Linux chooses for the Node's own connections (ip(7),
    ip_local_port_range).
    """
    first, last = _SNAT_PORTS[datapath]
    if not first <= tunnel <= last:
        return first, last
    return max((first, tunnel - 1), (tunnel + 1, last), key=lambda side: side[1] - side[0])


def bridge(order: tuple[str, ...], datapath: DatapathType, config: Config) -> Resources:
    """Return the bridge; `order` is to be kept in it."""
    return (Bridge(name=config.bridge, datapath=datapath, active_order=order),)


def host_port(
    gateways: tuple[LocalGateway, ...], mapped: Address | None, uplink_mtu: int, config: Config
) -> Resources:
    """Return the host port."""
    mtu = kernel.host_port_mtu(uplink_mtu, config, gateways)
    port = HostPort(bridge=config.bridge, name=config.host_port, ofport=HOST_OFPORT, mac=kernel.HOST_MAC, mtu=mtu)
    return (port, *kernel.device(config, mtu, mapped))


def base(
    own_pods: tuple[Network, ...],
    env: pipeline.Env,
    next_hops: pipeline.NextHopGroup,
    wireguard: Resources,
    config: Config,
) -> Resources:
    """Return what a Node with a role has once."""
    return (
        *kernel.routing(config),
        *kernel.netfilter(config, own_pods),
        *entries(pipeline.base(env, next_hops)),
        *wireguard,
    )


def guard_fragment(config: Config, peers: tuple[Peers, ...]) -> Fragment:
    """Return what keeps everybody but tunnels out of tunnels."""
    return Fragment(owner="guard", resources=tuple(guard(config, peers)))


def ports(paths: tuple[PathState, ...], config: Config) -> Resources:
    """Return the ports of tunnels."""
    return tuple(
        TunnelPort(
            bridge=config.bridge,
            name=path.tunnel.name,
            type=config.tunnel_type,
            remote_ip=path.tunnel.address,
            dst_port=config.tunnel_port,
            ofport=path.ofport,
            peer_kind=path.tunnel.peer_kind,
            peer=path.tunnel.peer,
            bfd=path.bfd,
            bfd_seen=path.watched,
        )
        for path in paths
    )


def node_flows(value: tuple[LocalPeer, int, int], env: pipeline.Env) -> Resources:
    """Return the flows to and from a Node of this cluster, with its numeric ID and its port."""
    peer, number, ofport = value
    node = pipeline.LocalNode(id=number, ofport=ofport, gateway=peer.gateway, networks=peer.networks)
    return entries(pipeline.node(env, node))


def endpoints_fragment(exported: Mapping[str, ExportedPort], own: LocalPeer) -> Fragment:
    """Return the flows that find out how clients of this Node's endpoints came, once its conntrack is lost."""
    found = local_endpoints(exported.values(), own.networks)
    endpoints = (pipeline.Endpoint(address=address, port=port) for address, port in found)
    return Fragment(owner="endpoints", resources=entries(pipeline.endpoints(endpoints)))


def remote_cluster(
    value: tuple[AcceptedCluster, int, int, tuple[PathState, ...] | None],
    own: Address | None,
    to_first: int | None,
    config: Config,
) -> pipeline.RemoteCluster:
    """Return a cluster, with its IDs and meter, as flows see it. `own`: this Node's gatewayIP; None on workers.

    `to_first`: port of the tunnel to this cluster's first gateway; None where that is this Node.
    """
    cluster, number, meter, paths = *value[:3], value[3] or ()
    sources = dict(zip(cluster.gateways, cluster.sources, strict=True))
    reached = cluster.reached_from(own) if own is not None else ()
    ends = [path.tunnel.end for path in paths]
    return pipeline.RemoteCluster(
        id=number,
        cidrs=cluster.cidrs,
        gateways=(
            *(
                pipeline.RemoteGateway(address=sources[path.tunnel.gateway], next_hop=path.next_hop)
                for path in sorted(paths, key=lambda path: path.rank)
            ),
            # What a sibling passes on comes from gateways that are not reached from here, too.
            *(
                pipeline.RemoteGateway(address=source)
                for address, source in sources.items()
                if address not in reached
            ),
        ),
        snat=cluster.snat,
        snat_address=next((end.source for end in ends if end is not None and not end.own_key), None),
        ordered=config.gateways is GatewayMode.ACTIVE_STANDBY,
        meter=meter if config.new_connections else None,
        probe_meter=PROBE_METERS + meter if config.new_connections and paths else None,
        ask_meter=ASK_METERS + meter if config.new_connections and paths else None,
        by=to_first if cluster.antrea else None,
    )


def cluster_flows(cluster: pipeline.RemoteCluster, env: pipeline.Env, config: Config) -> Resources:
    """Return the flows of a remote cluster, with its meters: of the connections that it opens, and of probes."""
    asked = max(1, config.new_connections // ASKED)
    rates = ((cluster.meter, config.new_connections), (cluster.probe_meter, PROBES), (cluster.ask_meter, asked))
    meters = (MeterEntry(meter_id=one, rate=rate, burst=2 * rate) for one, rate in rates if one is not None)
    return (*meters, *entries(pipeline.cluster(env, cluster)))


def cluster_routes(
    value: tuple[AcceptedCluster, tuple[RemoteEnd, ...] | None],
    source: Address | None,
    gateway: bool,
    config: Config,
) -> Resources:
    """Return the kernel's way to a remote cluster, with the WireGuard peers that its tunnels go through."""
    cluster, ends = value
    sources = zip(cluster.gateways, cluster.sources, strict=True)
    mapped = (host_network(source) for address, source in sources if address.version == 6)
    direct = cluster.direct if gateway else ()
    return (
        *(resource for end in ends or () for resource in peer_resources(end, config)),
        *kernel.cluster_routes(config, source, (*cluster.cidrs, *mapped), direct),
    )


def watched_nodes(paths: Mapping[str, tuple[PathState, ...]]) -> dict[str, int]:
    """Return the ports of the tunnels to Nodes that liveness detection watches."""
    return {node: found[0].ofport for node, found in paths.items() if found[0].watched}


def endpoint_tunnels(port: ExportedPort, watched: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return for each endpoint the port of the tunnel to its Node, where that is watched."""
    return tuple(map(watched.get, port.nodes))


def service_flows(value: tuple[ExportedPort, int, tuple[int | None, ...]], env: pipeline.Env) -> Resources:
    """Return the flows of one port of an exported Service, with its ID and the tunnels to its endpoints."""
    port, number, tunnels = value
    places = zip(port.endpoints, tunnels, strict=True)
    service = pipeline.LocalService(
        id=number,
        address=port.address,
        protocol=PROTOCOLS[port.protocol],
        port=port.port,
        client_ip_affinity=port.client_ip_affinity,
        endpoints=tuple(pipeline.Endpoint(address=a, port=n, ofport=ofport) for (a, n), ofport in places),
        old_endpoints=tuple(pipeline.Endpoint(address=a, port=n) for a, n in port.old_endpoints),
        shares_endpoints=port.shares_endpoints,
    )
    return entries(pipeline.service(env, service))


def entries(entries: pipeline.Entries) -> Resources:
    """Return flows and groups as text: typed ones are some ten times larger, and nobody reads them again."""
    groups = (GroupEntry(group_id=group.group_id, body=group.body_text) for group in entries.groups)
    flows = (
        FlowEntry(
            table=flow.table,
            priority=flow.priority,
            match=flow.match_text,
            cookie=flow.cookie,
            actions=flow.actions_text,
        )
        for flow in entries.flows
    )
    return (*groups, *flows)
