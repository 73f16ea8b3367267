"""The compiler: API objects, facts and configuration -> the desired state of one Node's dataplane.

Pure, total, deterministic. `mcagent.core.forwarding` decides how the Node forwards; this module converts the
decision to fragments: the resources of one owner (the Node itself, another Node, a cluster, a Service, a policy
level).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.pipeline import Env
from flows.pipeline.registers import HOST_OFPORT
from mcagent.core import imported_services, wireguard
from mcagent.core.engine import IncrementalEngine
from mcagent.core.forwarding import Forwarding, forwarding, unreachable_peers
from mcagent.core.fragments import build, kernel, quoted, silent_nodes, tunnel_guard
from mcagent.core.fragments.own_endpoints import not_seen_by_kernel
from mcagent.core.fragments.policies import Enforcement, claimed_flows, enforcement
from mcagent.core.fragments.wireguard import peer_resources, wireguard_resources
from mcagent.core.ids import FRAGMENT_LIMITS, METERS, NODES, assign_ids, share_ids
from mcagent.core.imported_services import Steering, steering
from mcagent.core.local_cluster.pod_sources import PodSources, pod_sources, unverified_labels
from mcagent.core.local_cluster.topology import SERVICE_NEEDS, LocalPeer, dropping_problems, route_source
from mcagent.core.node_encryption import NodeEncryption, node_publication
from mcagent.core.policies.selection import policy_needs
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.net import Address, Network
from mcagent.model.node_state import EncryptionState, NodeRole, NodeState
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired, Fragment
from mcagent.model.problem import Problem, in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The desired state of a Node.

    `needs`: the kinds that the state depends on. Until all of them are in `Snapshot.synced`, `desired` may be
    incomplete.
    """

    desired: Desired
    needs: frozenset[Kind]

    def missing(self, snapshot: Snapshot) -> frozenset[Kind]:
        """Return the needed kinds that are incomplete in `snapshot`, from which this was compiled."""
        return self.needs - (snapshot.synced - snapshot.selected if self.state.all_services else snapshot.synced)

    @property
    def state(self) -> NodeState:
        """The state of this Node: role, gateways, clusters, Services."""
        return self.desired.state


class Compiler:
    """Compiles repeatedly, and computes only what changed since the last call. For one thread.

    The result always equals that of `compile_desired`. After an exception the next call starts from scratch.
    """

    def __init__(self) -> None:
        self._engine = IncrementalEngine()

    def compile(self, snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
        """Return the desired state. Unchanged fragments are the same objects as in the last call."""
        engine, self._engine = self._engine, IncrementalEngine()
        with engine.one_pass():
            compiled = _compile(engine, snapshot, facts, config)
        self._engine = engine
        return compiled


def compile_desired(snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
    """Return the desired state, computed from scratch."""
    return Compiler().compile(snapshot, facts, config)


def _compile(engine: IncrementalEngine, snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
    forwards = forwarding(engine, snapshot, facts, config)
    env, own = forwards.env, forwards.local.own
    source, source_problems = route_source(forwards.local, facts)
    sources = engine.call(
        pod_sources,
        forwards.local.own_pods,
        facts.shared_devices,
        config,
        checks_forwarded=facts.checks_forwarded,
        ipvs=facts.ipvs,
    )
    fragments = [_base(engine, forwards, sources, facts, config)]
    steered, enforced = Steering(), Enforcement()
    silent_problems: tuple[Problem, ...] = ()
    if env is not None and own is not None:
        fragments += [_guard(engine, forwards, facts.connected, config)]
        by_cluster = engine.each(quoted.quoted_rules, forwards.clusters)
        of_pods = engine.call(quoted.quoted_prefixes, forwards.local.prefixes, forwards.clusters)
        fragments += [engine.call(build.quoted_fragment, config, by_cluster, of_pods)]
        fragments += _nodes(engine, forwards, env, own, config)
        fragments += _clusters(engine, forwards, env, snapshot, source=source, config=config)
        if env.identities:
            cni = engine.call(not_seen_by_kernel, forwards.local.own_pods, facts.shared_devices)
            withheld = sources.withholds_labels(config)
            enforced = enforcement(
                *(engine, snapshot, env, config, forwards.cluster_ids),
                accepted=forwards.remote.accepted,
                cni=cni,
                labels_withheld=withheld,
            )
            fragments += enforced.fragments
        if config.steers:
            steered = steering(engine, snapshot, facts.unreachable, forwards.remote.accepted, config)
            fragments += steered.fragments
        if facts.datapath is DatapathType.NETDEV:
            fragments += [engine.call(build.endpoints_fragment, forwards.exports, own, env.prefixes)]
        if env.gateway:
            fragments += _services(engine, forwards, env, facts)
            silent = engine.call(silent_nodes.silent_nodes, forwards.paths_to_nodes, facts.silent)
            silent_problems = engine.call(silent_nodes.problems, forwards.exports, silent)
    elif forwards.drops:
        fragments += _dropped_clusters(engine, forwards, source, config)
    dropping = dropping_problems(forwards.local, config) if forwards.drops else ()
    unreachable = unreachable_peers(engine, forwards, facts, config)
    unverified = engine.call(unverified_labels, sources, config) if env is not None else ()
    problems = engine.call(
        in_order,
        *(snapshot.problems, forwards.problems, source_problems),
        *(dropping, unreachable, unverified, enforced.problems, steered.problems, silent_problems),
    )
    policy_kinds = policy_needs(snapshot, config, forwards.local.role)
    serves = forwards.local.serves(facts.datapath)
    needs = forwards.local.needs | policy_kinds
    needs |= SERVICE_NEEDS if serves else frozenset()
    needs |= {Kind.POD} if forwards.exports_need_pods else frozenset()
    needs |= imported_services.NEEDS if config.steers and env is not None else frozenset()
    all_services = serves or Kind.ENDPOINT_SLICE in policy_kinds
    return Compiled(
        desired=Desired(
            fragments={fragment.owner: fragment for fragment in fragments},
            problems=problems,
            state=_state(forwards, enforced, steered, snapshot, config, all_services=all_services),
        ),
        needs=needs,
    )


# --- fragments


def _base(
    engine: IncrementalEngine, forwards: Forwarding, sources: PodSources, facts: Facts, config: Config
) -> Fragment:
    """Return the fragment that a Node has once, with or without a role."""
    local, call = forwards.local, engine.call
    parts = [
        call(build.bridge, forwards.path_rules.order, facts.datapath, config),
        call(build.host_port, kernel.device_mtu(facts.uplink_mtu, forwards.mtu), local.own_mapped_address, config),
    ]
    if forwards.env is not None or forwards.drops:
        own = (local.own_addresses, local.own_node_cidrs)
        parts.append(call(build.routing, local.own_pods, own, sources.checked, config))
    if forwards.env is not None:
        parts.append(call(build.base, forwards.env, forwards.next_hops, config.fragments))
    if forwards.encrypting is not None or forwards.node_encryption is not None:
        decisions, clusters = (forwards.encryption, forwards.node_encryption), forwards.remote.accepted
        parts.append(
            call(
                wireguard_resources,
                decisions,
                clusters,
                forwards.encrypting,
                forwards.encryption_facts,
                config,
                names=forwards.wireguard_devices,
            )
        )
    return call(build.fragment, ("base", *parts))


def _guard(
    engine: IncrementalEngine, forwards: Forwarding, connected: tuple[Network, ...], config: Config
) -> Fragment:
    """Return the fragment of the rules that accept tunnel packets from peers only."""
    local = forwards.local
    ends = engine.each(tunnel_guard.endpoints_of, forwards.accepted_and_checked, config.wireguard_port)
    peers = engine.call(
        tunnel_guard.peers_of,
        local.gateways,
        local.node_addresses,
        ends,
        forwards.own_ends,
        config,
        connected=connected,
    )
    return engine.call(build.guard_fragment, config, peers, forwards.wireguard_devices)


def _nodes(
    engine: IncrementalEngine, forwards: Forwarding, env: Env, own: LocalPeer, config: Config
) -> Iterable[Fragment]:
    """Return the fragments of this Node and of the Nodes that it has tunnels to."""
    paths, peers = forwards.paths_to_nodes, forwards.local.peers
    ids = engine.call(assign_ids, (own.name, *(peer.name for peer in peers)), NODES)
    reached = {peer.name: peer for peer in peers if peer.name in paths}
    with_flows = {name: (peer, ids[name], paths[name][0].ofport) for name, peer in reached.items() if env.gateway}
    with_flows[own.name] = (own, ids[own.name], HOST_OFPORT)
    ports = engine.each(build.ports, paths, forwards.own_ends, config)
    flows = engine.each(build.node_flows, with_flows, env)
    ends = forwards.node_encryption.ends if forwards.node_encryption is not None else {}
    encrypted = engine.each(peer_resources, ends, config, forwards.wireguard_devices)
    owners = build.owners("node", (own.name, *reached))
    return engine.each(build.fragment, engine.join(owners, ports, encrypted, flows)).values()


def _clusters(
    engine: IncrementalEngine,
    forwards: Forwarding,
    env: Env,
    snapshot: Snapshot,
    *,
    source: Address | None,
    config: Config,
) -> Iterable[Fragment]:
    """Return the fragments of the remote clusters. `source`: the source of this Node's own packets to them."""
    call, call_each, clusters = engine.call, engine.each, forwards.clusters
    gateway_ip = forwards.local.own_gateway_ip if env.gateway else None
    meters = call(assign_ids, tuple(clusters), METERS)
    fragment_meters = call(share_ids, tuple(clusters), FRAGMENT_LIMITS)
    inputs = engine.join(clusters, forwards.cluster_ids, meters, fragment_meters, forwards.paths_to_clusters)
    in_flows = call_each(build.remote_cluster, inputs, gateway_ip, forwards.to_first, config)
    clusters_and_ends = engine.join(clusters, forwards.encryption.ends, forwards.ready_devices)
    claimed: Mapping[str, build.Resources] = {}
    if env.gateway and env.identities:
        claimed = claimed_flows(engine, snapshot, forwards.cluster_ids)
    parts = engine.join(
        call(build.owners, "cluster", tuple(clusters)),
        call_each(build.ports, forwards.paths_to_clusters, forwards.own_ends, config),
        call_each(
            build.cluster_routes,
            clusters_and_ends,
            source,
            env.gateway,
            config,
            own_mtu=forwards.mtu,
            device_names=forwards.wireguard_devices,
        ),
        call_each(build.cluster_flows, in_flows, env, config),
        claimed,
    )
    return (
        call(build.fragment_meters, fragment_meters, config.fragments),
        *call_each(build.fragment, parts).values(),
    )


def _dropped_clusters(
    engine: IncrementalEngine, forwards: Forwarding, source: Address | None, config: Config
) -> Iterable[Fragment]:
    """Return the fragments of the remote clusters on a Node without a role: routes to the bridge, and no flows.

    Without these routes packets to the clusters would leave by the default route, unencrypted.
    """
    clusters_and_ends = engine.join(forwards.clusters, forwards.encryption.ends, forwards.ready_devices)
    routes = engine.each(
        build.cluster_routes,
        clusters_and_ends,
        source,
        False,
        config,
        own_mtu=forwards.mtu,
        device_names=forwards.wireguard_devices,
    )
    parts = engine.join(engine.call(build.owners, "cluster", tuple(forwards.clusters)), routes)
    return engine.each(build.fragment, parts).values()


def _services(engine: IncrementalEngine, forwards: Forwarding, env: Env, facts: Facts) -> Iterable[Fragment]:
    """Return the fragments of exported Services."""
    unheard = facts.silent | facts.unheard
    silent = engine.call(silent_nodes.silent_nodes, forwards.paths_to_nodes, unheard)
    exports = engine.each(silent_nodes.for_new_connections, forwards.exports, silent)
    watched = engine.call(build.watched_nodes, forwards.paths_to_nodes)
    tunnels = engine.each(build.endpoint_tunnels, exports, watched)
    flows = engine.each(build.service_flows, engine.join(exports, forwards.service_ids, tunnels), env)
    return engine.each(build.fragment, engine.join(build.owners("service", flows), flows)).values()


# --- state


def _state(
    forwards: Forwarding,
    enforced: Enforcement,
    steered: Steering,
    snapshot: Snapshot,
    config: Config,
    *,
    all_services: bool,
) -> NodeState:
    local = forwards.local
    gateway = local.role is NodeRole.GATEWAY
    own_gateway = wireguard.own_gateway(snapshot.gateways, config)
    paths = (*forwards.paths_to_nodes.values(), *forwards.paths_to_clusters.values())
    return NodeState(
        role=local.role,
        why=local.why,
        all_pods=gateway and (Kind.POD in local.needs or forwards.exports_need_pods),
        all_services=all_services,
        gateways=local.gateways,
        unserved_gateway=own_gateway.meta if own_gateway is not None and not gateway else None,
        tunnels=sum(map(len, paths)),
        clusters=forwards.clusters,
        cluster_ids=forwards.cluster_ids,
        services=forwards.exports,
        service_ids=forwards.service_ids,
        published_pods=local.published_pods,
        prefixes=local.prefixes,
        policy_rules=enforced.names,
        isolating=enforced.isolating,
        unreachable=steered.unreachable,
        imported=steered.endpoints,
        mtu=forwards.mtu,
        encryption=_encryption_state(forwards, snapshot, config),
    )


def _encryption_state(forwards: Forwarding, snapshot: Snapshot, config: Config) -> EncryptionState:
    facts, encryption = forwards.encryption_facts, forwards.encryption
    of_nodes = forwards.node_encryption or NodeEncryption()
    published = None
    if forwards.local.role is NodeRole.GATEWAY:
        published = wireguard.publication(snapshot.gateways, facts, config)
    return EncryptionState(
        mode=config.encryption,
        node_mode=config.node_encryption,
        fallback=config.encryption_fallback,
        implementation=facts.wireguard,
        public_key=facts.wireguard_public_key,
        next_public_key=facts.wireguard_next_key,
        devices=forwards.wireguard_devices if encryption.addresses or of_nodes.addresses else (),
        ends=encryption.ends,
        node_ends=of_nodes.ends,
        publication=published,
        node_publication=node_publication(snapshot.nodes.get(config.node_name), facts, config),
        own_gateway=forwards.local.own_gateway_ip,
        problems=(*encryption.problems, *of_nodes.problems),
    )
