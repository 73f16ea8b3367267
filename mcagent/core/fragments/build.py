"""The fragments of the desired state: the resources of each owner.

Each function builds a part of a fragment that has causes of change of its own: ports change with BFD, flows with
next hops, routes with claims. Uses the pipeline only through the values and builders of `flows.pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from sys import intern

from flows import pipeline
from flows.fields import PROTOCOLS
from flows.pipeline.registers import HOST_OFPORT
from mcagent.core.fragments import kernel
from mcagent.core.fragments.path_state import PathState
from mcagent.core.fragments.quoted import QuotedRules, quoted_addresses
from mcagent.core.fragments.tunnel_guard import GTSM_TTL, TunnelPeers, guard, tunnel_port
from mcagent.core.fragments.wireguard import peer_resources
from mcagent.core.ids import ASK_METERS, ENDED_METER, FRAGMENT_METERS, PROBE_METERS, SENDER_METERS
from mcagent.core.local_cluster.prefixes import pods_in_bridge
from mcagent.core.local_cluster.services import local_endpoints
from mcagent.core.local_cluster.topology import LocalCluster, LocalPeer
from mcagent.core.tunnels import OwnEnds
from mcagent.core.wireguard_devices import EGRESS_MARK, ReadyDevices
from mcagent.model.config import Config, GatewayMode
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import (
    Bridge,
    FlowEntry,
    GroupEntry,
    HostPort,
    MeterEntry,
    Resource,
    TunnelPort,
)
from mcagent.model.net import Address, Network, cluster_fingerprint, host_network
from mcagent.model.node_state import AcceptedCluster, ExportedPort, NodeRole, RemoteEnd
from mcagent.model.plan import Fragment

Resources = tuple[Resource, ...]

# First and last source port of SNATed connections: see `snat_ports`.
_SNAT_PORTS = {DatapathType.NETDEV: (10000, 32767), DatapathType.SYSTEM: (10000, 65535)}

# New connections per second for each packet per second that may query the Nodes of all endpoints.
CONNECTIONS_PER_QUERY = 10
BURST, FRAGMENT_BURST = 2, 4  # seconds of a meter's rate; large datagrams come in bursts of fragments
# One sender has half of the rate that another cluster accepts, so the other half remains to the others.
SENDER_SHARE, SENDER_BURST = 2, 6  # the latter in seconds of its rate: for datagrams of 64 KiB
ENDED = 100  # packets per second from which the agent learns of ended connections
PROBES = 100  # per second through the tunnels to one cluster, answers included: enough for 50 gateways there


def fragment(parts: tuple[str, *tuple[Iterable[Resource] | None, ...]]) -> Fragment:
    """Build the fragment of an owner. `parts`: the owner, then its resources."""
    owner, *resources = parts
    return Fragment(owner=owner, resources=tuple(chain.from_iterable(filter(None, resources))))


def owners(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Return the owner strings "kind/name", by name."""
    return {name: f"{kind}/{name}" for name in names}


def environment(
    local: LocalCluster,
    next_hops: pipeline.NextHopGroup,
    also_known_by: tuple[Address, ...],
    facts: Facts,
    config: Config,
    *,
    mtu: int,
) -> pipeline.Env:
    """Return the values that all flows share. `next_hops`: the other gateways of this cluster."""
    own = local.own_gateway
    return pipeline.Env(
        gateway=local.role is NodeRole.GATEWAY,
        ct_zone_base=config.ct_zone_base,
        local_gateways=tuple(sorted(hop.ofport for hop in next_hops.next_hops)),
        own_gateway_ips=() if own is None else (own.source, *also_known_by),
        service_cidrs=local.service_cidrs,
        identities=config.stretched_network_policy,
        published_pods=pods_in_bridge(local.published_pods, local.prefixes),
        prefixes=local.prefixes,
        userspace_conntrack=facts.datapath is DatapathType.NETDEV,
        snat_ports=snat_ports(facts.datapath, tunnel_port(config)),
        mtu=mtu if mtu < facts.uplink_mtu else None,
        ended_meter=ENDED_METER if config.new_connections else None,
        fragment_meters=SENDER_METERS if config.fragments else (),
        fingerprint=cluster_fingerprint(config.cluster_id) if config.cluster_id else None,
    )


def snat_ports(datapath: DatapathType, tunnel: int) -> tuple[int, int]:
    """Return the first and last source port of connections that a gateway SNATs.

    The range excludes the UDP ports of tunnels and BFD: the Nodes of the other cluster would drop a reply to such
    a port as a forged tunnel packet (`mcagent.core.fragments.tunnel_guard`). `tunnel` is the tunnel port of this
    ClusterSet; 3784 (BFD), 4789 and 8472 (VXLAN) and 6081 (Geneve) lie below the range. The conntrack of the
    userspace datapath does not know the connections of the kernel, so there the range also excludes the ports that
    Linux chooses for the Node's own connections (ip(7), ip_local_port_range).
    """
    first, last = _SNAT_PORTS[datapath]
    if not first <= tunnel <= last:
        return first, last
    return max((first, tunnel - 1), (tunnel + 1, last), key=lambda side: side[1] - side[0])


def bridge(order: tuple[str, ...], datapath: DatapathType, config: Config) -> Resources:
    """Return the bridge, which stores the order of active gateways."""
    return (Bridge(name=config.bridge, datapath=datapath, active_order=order),)


def host_port(mtu: int, mapped: Address | None, config: Config) -> Resources:
    """Return the host port and its kernel device. `mtu` of the device, in bytes; `mapped`: see `kernel.device`."""
    port = HostPort(bridge=config.bridge, name=config.host_port, ofport=HOST_OFPORT, mac=kernel.HOST_MAC, mtu=mtu)
    return (port, *kernel.device(config, mtu, mapped))


def routing(
    own_pods: tuple[Network, ...],
    own: tuple[tuple[Address, ...], tuple[Network, ...]],
    check_sources: bool,
    config: Config,
) -> Resources:
    """Return the rules and nft chains by which the kernel routes packets to other clusters to the bridge.

    `own`: this Node's IPv4 addresses and Pod CIDRs.
    """
    chains = kernel.netfilter(config, own_pods, *own, check_sources=check_sources)
    return (*kernel.routing(config), *chains)


def base(env: pipeline.Env, next_hops: pipeline.NextHopGroup, fragments: int) -> Resources:
    """Return the flows that exist once on a Node with a role, and their meters.

    `fragments`: a second, that a cluster accepts.
    """
    rate = max(1, fragments // SENDER_SHARE)
    meters = [MeterEntry(meter_id=meter, rate=rate, burst=SENDER_BURST * rate) for meter in env.fragment_meters]
    if env.gateway and env.ended_meter is not None:
        meters.append(MeterEntry(meter_id=env.ended_meter, rate=ENDED, burst=BURST * ENDED))
    return (*meters, *entries(pipeline.base(env, next_hops)))


def guard_fragment(config: Config, peers: tuple[TunnelPeers, ...], devices: tuple[str, ...]) -> Fragment:
    """Build the fragment of the rules that drop forged tunnel packets. `devices`: of WireGuard on this Node."""
    return Fragment(owner="guard", resources=tuple(guard(config, peers, devices)))


def quoted_fragment(config: Config, by_cluster: Mapping[str, QuotedRules], of_pods: QuotedRules) -> Fragment:
    """Build the fragment of the rules that repair the packets that ICMP errors quote."""
    return Fragment(owner="mapped", resources=tuple(quoted_addresses(config, by_cluster, of_pods)))


def ports(paths: tuple[PathState, ...], ends: OwnEnds, config: Config) -> Resources:
    """Return the bridge ports of tunnels. `ends`: of this Node.

    A tunnel accepts packets to its own end only: others have an address of the Node that the guard does not know.
    """
    return tuple(
        TunnelPort(
            bridge=config.bridge,
            name=path.tunnel.name,
            type=config.tunnel_type,
            remote_ip=path.tunnel.address,
            local_ip=ends.of(path.tunnel),
            ttl=GTSM_TTL,
            dst_port=config.tunnel_port,
            ofport=path.ofport,
            peer_kind=path.tunnel.peer_kind,
            peer=path.tunnel.peer,
            bfd=path.bfd,
            bfd_seen=path.watched,
            egress_mark=EGRESS_MARK if path.tunnel.end is not None and path.tunnel.end.devices > 1 else 0,
        )
        for path in paths
    )


def node_flows(value: tuple[LocalPeer, int, int], env: pipeline.Env) -> Resources:
    """Return the flows to and from a Node of this cluster. `value`: the Node, its numeric ID, its port."""
    peer, number, ofport = value
    node = pipeline.LocalNode(id=number, ofport=ofport, gateway=peer.gateway, networks=peer.networks)
    return entries(pipeline.node(env, node))


def endpoints_fragment(
    exported: Mapping[str, ExportedPort], own: LocalPeer, prefixes: tuple[pipeline.VirtualPrefix, ...]
) -> Fragment:
    """Return the flows that hold back replies of this Node's endpoints after conntrack was lost."""
    endpoint_addresses = local_endpoints(exported.values(), own.networks)
    endpoints = (pipeline.ServiceEndpoint(address=address, port=port) for address, port in endpoint_addresses)
    return Fragment(owner="endpoints", resources=entries(pipeline.endpoints(endpoints, prefixes)))


def remote_cluster(
    value: tuple[AcceptedCluster, int, int, int, tuple[PathState, ...] | None],
    own: Address | None,
    to_first: int | None,
    config: Config,
) -> pipeline.RemoteCluster:
    """Convert a cluster for `flows.pipeline`.

    `value`: the cluster, its ID, the numbers of its meters and of that of its fragments, the paths to it.

    `own`: this Node's gatewayIP; None on workers. `to_first`: port of the tunnel to this cluster's first gateway;
    None on that gateway.
    """
    cluster, number, meter, fragment_meter, paths = *value[:4], value[4] or ()
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
            # A sibling relays packets of gateways that this Node does not reach, too.
            *(
                pipeline.RemoteGateway(address=source)
                for address, source in sources.items()
                if address not in reached
            ),
        ),
        snat=cluster.snat,
        snat_address=next((end.source for end in ends if end is not None and not end.own_key), None),
        ordered=config.gateways is GatewayMode.ACTIVE_STANDBY,
        mapped=cluster.mapped,
        meter=meter if config.new_connections else None,
        probe_meter=PROBE_METERS + meter if config.new_connections and paths else None,
        ask_meter=ASK_METERS + meter if config.new_connections and paths else None,
        fragment_meter=FRAGMENT_METERS + fragment_meter if config.fragments else None,
        by=to_first if cluster.antrea else None,
    )


def cluster_flows(cluster: pipeline.RemoteCluster, env: pipeline.Env, config: Config) -> Resources:
    """Return the flows of a remote cluster, and its meters: of connections, probes and queries."""
    ask_rate = max(1, config.new_connections // CONNECTIONS_PER_QUERY)
    rates = (
        (cluster.meter, config.new_connections),
        (cluster.probe_meter, PROBES),
        (cluster.ask_meter, ask_rate),
    )
    meters = (
        MeterEntry(meter_id=meter_id, rate=rate, burst=BURST * rate)
        for meter_id, rate in rates
        if meter_id is not None
    )
    return (*meters, *entries(pipeline.cluster(env, cluster)))


def fragment_meters(numbers: Mapping[str, int], rate: int) -> Fragment:
    """Build the fragment of the meters of remote clusters' fragments, which further clusters share."""
    meters = (
        MeterEntry(meter_id=FRAGMENT_METERS + number, rate=rate, burst=FRAGMENT_BURST * rate)
        for number in sorted(set(numbers.values()))
    )
    return Fragment(owner="fragment-meters", resources=tuple(meters) if rate else ())


def cluster_routes(
    value: tuple[AcceptedCluster, tuple[RemoteEnd, ...] | None, ReadyDevices | None],
    source: Address | None,
    gateway: bool,
    config: Config,
    *,
    own_mtu: int,
    device_names: tuple[str, ...],
) -> Resources:
    """Return the kernel routes to a remote cluster, and the WireGuard peers of its gateways.

    `source`: the source address of this Node's own packets to the cluster. `own_mtu`: of this cluster's
    tunnels. The device's MTU is larger: see `kernel.device_mtu`. `device_names`: of this Node's WireGuard devices.
    """
    cluster, ends, ready_devices = value
    mapped = (host_network(address) for _, address in cluster.mapped)
    direct = cluster.direct if gateway else ()
    mtu = min(cluster.mtu or own_mtu, own_mtu)
    return (
        *(
            resource
            for end, ready in zip(ends or (), ready_devices or (), strict=True)
            for resource in peer_resources(end, config, device_names, ready)
        ),
        *kernel.cluster_routes(config, source, (*cluster.cidrs, *mapped), direct, mtu),
    )


def watched_nodes(paths: Mapping[str, tuple[PathState, ...]]) -> dict[str, int]:
    """Return the ports of the tunnels to Nodes, by Node name, where BFD has come up once."""
    return {node: node_paths[0].ofport for node, node_paths in paths.items() if node_paths[0].watched}


def endpoint_tunnels(port: ExportedPort, watched: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return for each endpoint the port of the tunnel to its Node; None if BFD does not watch it."""
    return tuple(map(watched.get, port.nodes))


def service_flows(value: tuple[ExportedPort, int, tuple[int | None, ...]], env: pipeline.Env) -> Resources:
    """Return the flows of a port of an exported Service. `value`: the port, its ID, tunnels to its endpoints."""
    port, number, tunnels = value
    endpoints = zip(port.endpoints, tunnels, strict=True)
    service = pipeline.LocalService(
        id=number,
        address=port.address,
        protocol=PROTOCOLS[port.protocol],
        port=port.port,
        client_ip_affinity=port.client_ip_affinity,
        endpoints=tuple(
            pipeline.ServiceEndpoint(address=a, port=n, ofport=ofport) for (a, n), ofport in endpoints
        ),
        old_endpoints=tuple(pipeline.ServiceEndpoint(address=a, port=n) for a, n in port.old_endpoints),
        shares_endpoints=port.shares_endpoints,
    )
    return entries(pipeline.service(env, service))


def entries(entries: pipeline.Entries) -> Resources:
    """Convert to text entries, which take about a tenth of the memory; equal actions are one text."""
    groups = (GroupEntry(group_id=group.group_id, body=group.body_text) for group in entries.groups)
    flows = (
        FlowEntry(
            table=flow.table,
            priority=flow.priority,
            match=flow.match_text,
            cookie=flow.cookie,
            actions=intern(flow.actions_text),
        )
        for flow in entries.flows
    )
    return (*groups, *flows)
