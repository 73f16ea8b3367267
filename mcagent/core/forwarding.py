"""The forwarding decision of a Node: the accepted local and remote clusters, the tunnels and their state.

The first half of a compilation (`mcagent.core.compile`). `forwarding` reads from top to bottom; each step is a
plain function of `core`, which the engine calls only if its arguments changed. Facts and Pods change often, so an
expensive step gets only the parts that it needs. Must not know the resulting resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from flows.pipeline import Env, NextHopGroup
from mcagent.core import wireguard, wireguard_devices
from mcagent.core.addresses.rules import ReservedRanges
from mcagent.core.addresses.underlay import endpoint_of
from mcagent.core.engine import IncrementalEngine
from mcagent.core.failover.reachability import clusters_by_hash
from mcagent.core.fragments import kernel, path_state
from mcagent.core.fragments.build import environment
from mcagent.core.fragments.path_state import PathRules, PathState
from mcagent.core.ids import CLUSTERS, SERVICES, assign_ids, assign_ofports
from mcagent.core.local_cluster import endpoints, services, topology
from mcagent.core.local_cluster.gateways import accept_gateways, requested_gateways
from mcagent.core.local_cluster.nodes import NO_PODS, CheckedNode, PodHosts, check_node, check_pod, pods_by_node
from mcagent.core.local_cluster.topology import LocalCluster
from mcagent.core.node_encryption import NodeEncryption, node_encryption
from mcagent.core.remote_clusters.check import check_cluster, cluster_validator
from mcagent.core.remote_clusters.claims import CheckedCluster, published_cidrs
from mcagent.core.remote_clusters.enclosed import later_networks, pods_inside, prefix_numbers
from mcagent.core.remote_clusters.implementation import first_gateway, with_implementation
from mcagent.core.remote_clusters.mapped import mapped_sources, preferred_sources, tunnel_ends
from mcagent.core.remote_clusters.resolve import RemoteClusters, resolve_clusters
from mcagent.core.tunnels import OwnEnds, Tunnel, cluster_tunnels, names_of, node_tunnels, own_ends
from mcagent.core.wireguard import ClaimedValue, Encryption
from mcagent.core.wireguard_devices import ReadyDevices
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.wireguard import device_names as wireguard_names
from mcagent.model.net import Network
from mcagent.model.node_state import AcceptedCluster, ExportedPort, LocalGateway, NodeRole, RemoteEnd
from mcagent.model.objects import Snapshot
from mcagent.model.problem import Problem, Severity, all_problems

Paths = Mapping[str, tuple[PathState, ...]]
Tunnels = Mapping[str, tuple[Tunnel, ...]]
AcceptedAndChecked = Mapping[str, tuple[AcceptedCluster, CheckedCluster]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """The forwarding decision. Keys of mappings are cluster IDs or Node names; paths are states of tunnels."""

    local: LocalCluster
    nodes: Mapping[str, CheckedNode]
    exports: Mapping[str, ExportedPort]
    exports_need_pods: bool  # endpoints of exported Services are Nodes' addresses, which need Pods that have them
    remote: RemoteClusters
    accepted_and_checked: AcceptedAndChecked
    clusters: Mapping[str, AcceptedCluster]  # accepted clusters, adapted to the implementation of their gateways
    encrypting: LocalGateway | None  # this Node, if it encrypts traffic to remote clusters
    encryption_facts: Facts  # those that encryption depends on
    encryption: Encryption
    wireguard_devices: tuple[str, ...]  # names; one that does not exist yet is among them
    ready_devices: Mapping[str, ReadyDevices]  # see `mcagent.core.wireguard_devices`
    node_encryption: NodeEncryption | None  # None: off, or this Node has no role
    tunnels_to_nodes: Tunnels
    tunnels_to_clusters: Tunnels
    path_rules: PathRules
    paths_to_nodes: Paths
    paths_to_clusters: Paths
    own_ends: OwnEnds  # where the tunnels of this Node end
    next_hops: NextHopGroup  # the other gateways of this cluster
    to_first: int | None  # port of the tunnel to this cluster's first gateway; None on that gateway
    mtu: int  # bytes, of routes to other clusters
    env: Env | None  # the values shared by all flows; None without a role
    drops: bool  # there are clusters, and no role: packets to them are routed to the bridge, which drops them
    cluster_ids: Mapping[str, int]
    service_ids: Mapping[str, int]
    problems: tuple[Problem, ...]


def forwarding(engine: IncrementalEngine, snapshot: Snapshot, facts: Facts, config: Config) -> Forwarding:
    """Compute the forwarding decision of Node `config.node_name`."""
    call, call_each = engine.call, engine.each

    nodes = call_each(check_node, snapshot.nodes, config.pod_routing)
    candidates = call(requested_gateways, snapshot.gateways, snapshot.nodes, config)
    gateways, gateway_problems = call(accept_gateways, candidates, snapshot.leaving, nodes)
    without_pods = call(topology.local_cluster, nodes, gateways, snapshot.service_cidrs, config)
    pods = _pods(engine, snapshot, without_pods)
    local = call(topology.with_pods, without_pods, pods)
    exports, exports_need_pods, export_problems = _exports(engine, snapshot, local, pods, facts)

    api_servers = services.api_servers(snapshot.endpoint_slices)
    pods_in_cidrs: tuple[Network, ...] = ()
    if pods.hosts:
        pods_in_cidrs = call(pods_inside, pods.hosts, call_each(published_cidrs, snapshot.cluster_infos))
    of_this_node = ((*facts.connected, *facts.routed), facts.addresses)
    in_use = call_each(prefix_numbers, facts.in_use)
    later = call(later_networks, *of_this_node, without_pods.node_addresses, pods_in_cidrs, in_use)
    validator = call(cluster_validator, without_pods, facts, config, api_servers, later)
    checked_clusters = call_each(check_cluster, snapshot.cluster_infos, validator)
    remote = call(resolve_clusters, checked_clusters, pods.hosts, config)
    accepted_and_checked = engine.join(remote.accepted, remote.checked)
    encrypting = local.own_gateway if config.encrypts and local.role is NodeRole.GATEWAY else None
    encryption_facts = wireguard.encryption_facts(facts)
    of_nodes = None
    if config.encrypts_nodes and local.role is not NodeRole.NONE:
        of_nodes = call(node_encryption, without_pods, nodes, encryption_facts, config)
    encryption = Encryption()
    device_count = wireguard_devices.device_count(encryption_facts, config) if encrypting is not None else 1
    device_names = wireguard_names(config.wireguard_device, device_count)
    if encrypting is not None:
        encryption = _encryption(
            engine,
            local,
            encrypting,
            remote,
            accepted_and_checked=accepted_and_checked,
            claims_of_nodes=of_nodes.claims if of_nodes is not None else (),
            device_count=device_count,
            facts=encryption_facts,
            config=config,
        )

    peers = {peer.name: peer for peer in local.peers if peer.address is not None}
    ends_of_nodes: Mapping[str, RemoteEnd] = {}
    if of_nodes is not None:
        ends_of_nodes = of_nodes.ends
        peers = {name: peer for name, peer in peers.items() if name in ends_of_nodes}
    tunnels_to_nodes = call_each(node_tunnels, engine.join(peers, ends_of_nodes), config)
    tunnels_to_clusters = _tunnels_to_clusters(engine, local, remote, encryption, config)
    preferred = call_each(preferred_sources, accepted_and_checked)
    mapped = call(mapped_sources, preferred, call_each(tunnel_ends, remote.checked), without_pods)
    accepted_clusters = engine.join(remote.accepted, remote.checked, mapped, tunnels_to_clusters)
    clusters = call_each(with_implementation, accepted_clusters, facts.bfd_unanswered, facts.antrea)

    tunnel_names = call(names_of, tunnels_to_nodes, tunnels_to_clusters)
    ofports = call(assign_ofports, tunnel_names, facts.ofports)
    rules = call(path_state.path_rules, local, bool(tunnels_to_clusters), facts, config)
    bfd = {"answered": facts.bfd_seen, "damped": facts.damped | facts.silent, "half_up": facts.bfd_begins}
    factors = facts.bfd_factors
    observed_nodes = path_state.observe_tunnels(tunnels_to_nodes, ofports, factors, **bfd)
    observed_clusters = call(path_state.observe_tunnels, tunnels_to_clusters, ofports, factors, **bfd)
    gateways_by_node = {gateway.node: gateway for gateway in local.gateways}
    paths_to_nodes = call_each(path_state.node_paths, engine.join(observed_nodes, gateways_by_node), rules)
    next_hops = call(path_state.next_hops, tuple(chain.from_iterable(paths_to_nodes.values())), rules)
    other_addresses = wireguard.other_gateway_addresses(encryption)
    mtu = kernel.packet_mtu(facts.uplink_mtu, config, local.gateways)
    env = None
    if local.role is not NodeRole.NONE:
        env = call(environment, local, next_hops, other_addresses, encryption_facts, config, mtu=mtu)

    return Forwarding(
        local=local,
        nodes=nodes,
        exports=exports,
        exports_need_pods=exports_need_pods,
        remote=remote,
        accepted_and_checked=accepted_and_checked,
        clusters=clusters,
        encrypting=encrypting,
        encryption_facts=encryption_facts,
        encryption=encryption,
        wireguard_devices=device_names,
        ready_devices=call_each(
            wireguard_devices.ready_devices, encryption.ends, facts.wireguard_ready, device_names
        ),
        node_encryption=of_nodes,
        tunnels_to_nodes=tunnels_to_nodes,
        tunnels_to_clusters=tunnels_to_clusters,
        path_rules=rules,
        paths_to_nodes=paths_to_nodes,
        paths_to_clusters=call_each(path_state.cluster_paths, observed_clusters, rules),
        own_ends=call(own_ends, nodes.get(config.node_name), local.own_gateway, facts.addresses),
        next_hops=next_hops,
        to_first=next((path.ofport for path in paths_to_nodes.get(first_gateway(local.gateways), ())), None),
        mtu=mtu,
        env=env,
        drops=local.drops and bool(remote.accepted),
        cluster_ids=call(assign_ids, tuple(remote.accepted), CLUSTERS),
        service_ids=call(assign_ids, tuple(exports), SERVICES),
        problems=(
            *gateway_problems,
            *without_pods.problems,
            *export_problems,
            *remote.problems,
            *encryption.problems,
            *(of_nodes.problems if of_nodes is not None else ()),
        ),
    )


def unreachable_peers(
    engine: IncrementalEngine, forwarding: Forwarding, facts: Facts, config: Config
) -> tuple[Problem, ...]:
    """Report clusters without a live tunnel, peers that no or only small packets come from, an unusable uplink."""
    problems: tuple[Problem, ...] = ()
    if forwarding.env is not None:
        unreachable = engine.call(_unreachable_clusters, forwarding.remote.checked, facts.unreachable)
        problems = (*topology.uplink_problems(forwarding.local, facts), *unreachable)
    if not facts.silent and not facts.narrow:
        return problems
    observations = (facts.silent, facts.narrow, facts.datapath, config)
    node_peers = engine.join(forwarding.tunnels_to_nodes, forwarding.nodes)
    cluster_peers = engine.join(forwarding.tunnels_to_clusters, forwarding.remote.checked, forwarding.clusters)
    first = forwarding.to_first is None
    of_nodes = engine.each(path_state.problems, node_peers, *observations)
    of_clusters = engine.each(path_state.cluster_problems, cluster_peers, first, facts.idle, *observations)
    return (*problems, *engine.call(all_problems, of_nodes), *engine.call(all_problems, of_clusters))


def _unreachable_clusters(
    checked: Mapping[str, CheckedCluster], unreachable: frozenset[int]
) -> tuple[Problem, ...]:
    """Report the clusters that no gateway of this cluster reaches; all Nodes report the same."""
    message = "no gateway of this cluster has a live tunnel to a gateway of that cluster"
    return tuple(
        checked[name].meta.problem("spec.gatewayInfos", "ClusterUnreachable", message, Severity.WARNING)
        for name in sorted(clusters_by_hash(unreachable, checked))
    )


def _pods(engine: IncrementalEngine, snapshot: Snapshot, local: LocalCluster) -> PodHosts:
    """Return the individual Pods of the Nodes without usable podCIDRs."""
    if not local.per_pod_nodes:
        return NO_PODS
    checked_pods = engine.each(check_pod, snapshot.pods)
    return engine.call(pods_by_node, checked_pods, local.per_pod_nodes, local.hosts)


def _exports(
    engine: IncrementalEngine, snapshot: Snapshot, local: LocalCluster, pods: PodHosts, facts: Facts
) -> tuple[Mapping[str, ExportedPort], bool, tuple[Problem, ...]]:
    """Return the exported Services' ports on Nodes that need them, whether they need Pods, and problems."""
    if not local.serves(facts.datapath):
        return {}, False, ()
    objects = services.exports_of(snapshot.service_exports, snapshot.services, snapshot.endpoint_slices)
    nodes = engine.call(services.addresses_of_nodes, local.node_addresses, local.node_cidrs)
    named = frozenset(chain.from_iterable(engine.each(services.pods_at_nodes, objects, nodes).values()))
    at_nodes = {key: (*pod.ips, *pod.host_ips) for key in named if (pod := snapshot.pods.get(key)) is not None}
    by_cidr = engine.call(topology.nodes_by_cidr, local)
    rules = engine.call(endpoints.EndpointRules, local.networks, pods.hosts, nodes, at_nodes, by_cidr)
    checked = engine.each(services.check_export, objects, local.service_cidrs, rules)
    ports, problems = engine.call(services.exported_ports, checked)
    # A worker knows only its own endpoints.
    return ports, bool(named), problems if local.role is NodeRole.GATEWAY else ()


def _encryption(
    engine: IncrementalEngine,
    local: LocalCluster,
    own: LocalGateway,
    remote: RemoteClusters,
    *,
    accepted_and_checked: AcceptedAndChecked,
    claims_of_nodes: tuple[ClaimedValue, ...],
    device_count: int,
    facts: Facts,
    config: Config,
) -> Encryption:
    """Decide which gateways are encrypted to. `own`: this Node; `facts`: those of `encryption_facts`.

    `claims_of_nodes`: keys and endpoints of the Nodes of this cluster; `device_count`: of this Node.
    """
    end = endpoint_of(own.gateway_ip)
    claims = engine.each(
        wireguard.endpoint_claims,
        accepted_and_checked,
        own.gateway_ip,
        own.service_cidr,
        config,
        own_devices=device_count,
    )
    own_claims = (facts.wireguard_public_key, facts.wireguard_next_key, end, *claims_of_nodes)
    lost_claims = engine.call(wireguard.lost_claims, claims, remote.accepted, own_claims)
    reserved = engine.call(ReservedRanges, local.reserved)
    claims_of_clusters = engine.join(remote.checked, claims, lost_claims)
    ends = engine.each(wireguard.ends_of, claims_of_clusters, reserved, facts, config)
    return engine.call(wireguard.encryption, ends, end, facts, config)


def _tunnels_to_clusters(
    engine: IncrementalEngine, local: LocalCluster, remote: RemoteClusters, encryption: Encryption, config: Config
) -> Tunnels:
    own_address = local.own_gateway_ip
    if local.role is not NodeRole.GATEWAY or own_address is None:
        return {}
    clusters_and_ends = engine.join(remote.accepted, encryption.ends)
    return engine.each(cluster_tunnels, clusters_and_ends, own_address, config)
