"""Desired state of one Node's dataplane from what the API, the Node and the configuration say.

Pure, total, deterministic. This is the walk from objects to resources. Each step is a plain function of `core` and
a cell of the engine, which calls it where its input has changed. What changes often (facts, Pods) is taken apart
before it gets to a dear step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.pipeline import Env
from mcagent.core.engine import Engine, joined
from mcagent.core.fragments import build, path_state, tunnel_guard
from mcagent.core.fragments.path_state import PathRules, PathState
from mcagent.core.fragments.tunnels import Tunnel, cluster_tunnels, names_of, node_tunnels
from mcagent.core.ids import CLUSTERS, HOST_OFPORT, METERS, NODES, SERVICES, assign_ids, assign_ofports
from mcagent.core.local_cluster import services
from mcagent.core.local_cluster.gateways import accept_gateways, wanted_gateways
from mcagent.core.local_cluster.nodes import check_node
from mcagent.core.local_cluster.pods import check_pod, pods_by_node
from mcagent.core.local_cluster.topology import (
    SERVICE_NEEDS,
    LocalCluster,
    LocalPeer,
    local_cluster,
    source_on,
    with_pods,
)
from mcagent.core.remote_clusters.check import Judge, check_cluster, surroundings_of
from mcagent.core.remote_clusters.settle import RemoteClusters, settle
from mcagent.core.wireguard.ends import Encryption, WireGuardFacts, encrypt, publication
from mcagent.core.wireguard.resources import (
    NO_WIREGUARD,
    WireGuardResources,
    also_known_by,
    encryption_state,
    wireguard_resources,
)
from mcagent.model.config import Config
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address
from mcagent.model.node_state import ExportedPort, NodeState, Role
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired, Fragment
from mcagent.model.problem import Problem
from mcagent.model.resources import PeerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The desired state of a Node.

    `needs` are the kinds that this Node's state follows from: before all of them are in `Snapshot.synced`,
    something may be missing from `desired`.
    """

    desired: Desired
    needs: frozenset[Kind]

    @property
    def state(self) -> NodeState:
        """What this Node is."""
        return self.desired.state


class Compiler:
    """Compiles again and again; what did not change since the last call is not computed again.

    The result is that of `compile_desired`, always. What raises leaves nothing behind: the next call starts from
    scratch. One thread.
    """

    def __init__(self) -> None:
        self._engine = Engine()

    def compile(self, snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
        """Return what should be on this Node. Unchanged fragments are the last call's very objects."""
        engine, self._engine = self._engine, Engine()
        with engine.one_pass():
            compiled = Walk(engine, snapshot, facts, config).compiled()
        self._engine = engine
        return compiled


def compile_desired(snapshot: Snapshot, facts: Facts, config: Config) -> Compiled:
    """Return what should be on this Node, from scratch."""
    return Compiler().compile(snapshot, facts, config)


Paths = Mapping[str, tuple[PathState, ...]]
Tunnels = Mapping[str, tuple[Tunnel, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decisions:
    """What has been decided before resources are made. `encryption` is None where nothing is encrypted."""

    local: LocalCluster
    clusters: RemoteClusters
    exported: Mapping[str, ExportedPort]
    encryption: Encryption | None
    source: Address | None  # of packets from this Node's own processes; None where the kernel has to choose
    rules: PathRules
    node_paths: Paths
    cluster_paths: Paths
    service_ids: Mapping[str, int]
    cluster_ids: Mapping[str, int]


class Walk:
    """One walk from objects to resources. Remembers nothing: the engine does."""

    def __init__(self, engine: Engine, snapshot: Snapshot, facts: Facts, config: Config) -> None:
        self._cell, self._each = engine.cell, engine.each
        self._snapshot, self._facts, self._config = snapshot, facts, config
        self._wireguard = WireGuardFacts.of(facts)
        self._problems: list[tuple[Problem, ...]] = [snapshot.problems]

    def compiled(self) -> Compiled:
        """Return the desired state."""
        facts, config = self._facts, self._config
        local, pods = self.local_cluster()
        clusters = self._remote_clusters(local, pods)
        exported = self._services(local, pods)
        encryption = self._encryption(local, clusters)
        source, problems = source_on(local, facts)
        self._problems.append(problems)
        rules = self._cell("path rules", path_state.path_rules, local, facts, config)
        node_paths, cluster_paths = self._paths(local, clusters, encryption, rules)
        decided = _Decisions(
            local=local,
            clusters=clusters,
            exported=exported,
            encryption=encryption,
            source=source,
            rules=rules,
            node_paths=node_paths,
            cluster_paths=cluster_paths,
            cluster_ids=self._cell("cluster IDs", assign_ids, tuple(clusters.accepted), CLUSTERS),
            service_ids=self._cell("Service IDs", assign_ids, tuple(exported), SERVICES),
        )
        fragments = self._fragments(decided)
        every = self._cell("problems", _all_problems, *self._problems)
        needs = local.needs | (SERVICE_NEEDS if local.serves(facts.datapath) else frozenset())
        desired = Desired(fragments=fragments, problems=every, state=self._state(decided))
        return Compiled(desired=desired, needs=needs)

    def local_cluster(self) -> tuple[LocalCluster, tuple[int, ...]]:
        """Return this cluster, and the addresses of Pods that are known one by one, sorted."""
        snapshot, config = self._snapshot, self._config
        nodes = self._each("checked Nodes", check_node, snapshot.nodes, config.pod_routing)
        wanted = self._cell("wanted gateways", wanted_gateways, snapshot.gateways, snapshot.nodes, config)
        gateways, problems = self._cell("gateways", accept_gateways, wanted, snapshot.leaving, nodes)
        local = self._cell("local cluster", local_cluster, nodes, gateways, config)
        self._problems += [problems, local.problems]
        if not local.one_by_one:
            return local, ()
        checked = self._each("checked Pods", check_pod, snapshot.pods)
        pods = self._cell("Pods by Node", pods_by_node, checked, local.one_by_one, local.hosts)
        return self._cell("local cluster with Pods", with_pods, local, pods), pods.hosts

    def _remote_clusters(self, local: LocalCluster, pods: tuple[int, ...]) -> RemoteClusters:
        """Return what is used of the other clusters."""
        servers = self._cell("API servers", services.api_servers, self._snapshot.endpoint_slices)
        around = self._cell("surroundings", surroundings_of, local, self._facts, self._config, servers)
        judge = self._cell("judge", Judge, around)
        checked = self._each("checked clusters", check_cluster, self._snapshot.cluster_infos, judge)
        clusters = self._cell("remote clusters", settle, checked, pods, self._config)
        self._problems.append(clusters.problems)
        return clusters

    def _services(self, local: LocalCluster, pods: tuple[int, ...]) -> Mapping[str, ExportedPort]:
        """Return the ports of exported Services, where they matter."""
        if not local.serves(self._facts.datapath):
            return {}
        found = self._snapshot
        exports = services.exports_of(found.service_exports, found.services, found.endpoint_slices)
        where = (local.networks, pods, local.node_addresses, local.node_cidrs)
        places = self._cell("places of endpoints", services.Places, *where)
        checked = self._each("checked exports", services.check_export, exports, local.service_cidrs, places)
        ports, problems = self._cell("exported ports", services.exported_ports, checked)
        if local.role is Role.GATEWAY:  # a worker knows its own endpoints only
            self._problems.append(problems)
        return ports

    def _encryption(self, local: LocalCluster, clusters: RemoteClusters) -> Encryption | None:
        if not self._config.encrypts or local.own_gateway is None or local.role is not Role.GATEWAY:
            return None
        own, taken = local.own_gateway, local.taken
        found = self._cell("encryption", encrypt, clusters, own, taken, self._wireguard, self._config)
        self._problems.append(found.problems)
        return found

    def _paths(
        self, local: LocalCluster, clusters: RemoteClusters, encryption: Encryption | None, rules: PathRules
    ) -> tuple[Paths, Paths]:
        """Return the state of the tunnels to Nodes of this cluster, and to others."""
        facts, config, own = self._facts, self._config, local.own_gateway_ip
        peers = {peer.name: peer for peer in local.peers} if local.role is not Role.NONE else {}
        to_nodes = self._each("tunnels to Nodes", node_tunnels, peers, config)
        to_clusters: Tunnels = {}
        if local.role is Role.GATEWAY and own is not None:
            ends = encryption.ends if encryption is not None else {}
            wanted = self._cell("clusters and ends", joined, clusters.accepted, ends)
            to_clusters = self._each("tunnels to clusters", cluster_tunnels, wanted, own, config)
        names = self._cell("names of tunnels", names_of, to_nodes, to_clusters)
        ofports = self._cell("OpenFlow ports", assign_ofports, names, facts.ofports)
        said = {"seen": facts.bfd_seen, "damped": facts.damped, "begins": facts.bfd_begins}
        of_nodes = self._cell("observed of Nodes", path_state.observed, to_nodes, ofports, **said)
        of_clusters = self._cell("observed of clusters", path_state.observed, to_clusters, ofports, **said)
        nodes = joined(to_nodes, of_nodes, {gateway.node: gateway for gateway in local.gateways})
        found = self._cell("clusters observed", joined, to_clusters, of_clusters)
        return (
            self._each("paths to Nodes", path_state.node_paths, nodes, rules),
            self._each("paths to clusters", path_state.cluster_paths, found, rules),
        )

    def _fragments(self, decided: _Decisions) -> dict[str, Fragment]:
        """Return all fragments, by owner."""
        local, rules, facts, config = decided.local, decided.rules, self._facts, self._config
        device = self._cell(
            "device",
            build.device,
            local.gateways,
            local.own_mapped_address,
            config,
            order=rules.order,
            datapath=facts.datapath,
            uplink_mtu=facts.uplink_mtu,
        )
        if local.role is Role.NONE or local.own is None:
            return {"base": self._cell("base", build.fragment, ("base", device))}
        env = self._environment(decided)
        paths = tuple(path for found in decided.node_paths.values() for path in found)
        hops = self._cell("next hops", path_state.next_hops, paths, rules)
        base = self._cell("base flows", build.base, local.own_pods, env, hops, self._once(decided), config)
        fragments = [
            self._cell("base", build.fragment, ("base", device, base)),
            self._guard(decided),
            *self._node_fragments(decided, local.own, env),
            *self._cluster_fragments(decided, env),
        ]
        if facts.datapath is DatapathType.NETDEV:
            fragments.append(self._cell("endpoints", build.endpoints_fragment, decided.exported, local.own))
        if env.gateway:
            ports = joined(decided.exported, decided.service_ids)
            flows = self._each("flows of Services", build.service_flows, ports, env)
            parts = joined(build.owners("service", flows), flows)
            fragments += self._each("fragments of Services", build.fragment, parts).values()
        return {one.owner: one for one in fragments}

    def _environment(self, decided: _Decisions) -> Env:
        ports = tuple(
            path.ofport
            for paths in decided.node_paths.values()
            for path in paths
            if path.tunnel.peer_kind is PeerKind.GATEWAY
        )
        known_by = also_known_by(decided.encryption)
        return self._cell(
            "environment", build.environment, decided.local, ports, known_by, self._facts.datapath, self._config
        )

    def _once(self, decided: _Decisions) -> WireGuardResources:
        """Return what of WireGuard there is once on the Node."""
        own = decided.local.own_gateway
        if decided.encryption is None or own is None:
            return NO_WIREGUARD
        return self._cell(
            "WireGuard",
            wireguard_resources,
            decided.encryption,
            decided.clusters.accepted,
            own,
            facts=self._wireguard,
            uplink_mtu=self._facts.uplink_mtu,
            config=self._config,
        )

    def _guard(self, decided: _Decisions) -> Fragment:
        local, clusters, config = decided.local, decided.clusters, self._config
        both = self._cell("clusters, accepted and checked", joined, clusters.accepted, clusters.checked)
        ends = self._each("ends of clusters", tunnel_guard.ends_of, both, config.wireguard_port)
        known = (local.gateways, local.node_addresses, ends, config)
        peers = self._cell("peers of the guard", tunnel_guard.peers_of, *known)
        return self._cell("guard", build.guard_fragment, config, peers)

    def _node_fragments(self, decided: _Decisions, own: LocalPeer, env: Env) -> Iterable[Fragment]:
        """Return those of the Nodes of this cluster: of this one, and of those that it has tunnels to."""
        there = [peer for peer in decided.local.peers if decided.node_paths[peer.name]]
        ids = self._cell("Node IDs", assign_ids, (own.name, *(p.name for p in decided.local.peers)), NODES)
        ports = self._each("ports to Nodes", build.ports, decided.node_paths, self._config)
        wanted = {own.name: (own, ids[own.name], HOST_OFPORT)}
        if env.gateway:
            wanted |= {
                peer.name: (peer, ids[peer.name], decided.node_paths[peer.name][0].ofport) for peer in there
            }
        flows = self._each("flows of Nodes", build.node_flows, wanted, env)
        owners = build.owners("node", (own.name, *ports))
        parts = joined(owners, ports, flows)
        return self._each("fragments of Nodes", build.fragment, parts).values()

    def _cluster_fragments(self, decided: _Decisions, env: Env) -> Iterable[Fragment]:
        """Return those of the other clusters."""
        local, config, accepted = decided.local, self._config, decided.clusters.accepted
        own = local.own_gateway_ip if env.gateway else None
        meters = self._cell("meter IDs", assign_ids, tuple(accepted), METERS)
        paths, ids = decided.cluster_paths, decided.cluster_ids
        ends = decided.encryption.ends if decided.encryption is not None else {}
        ports = self._each("ports to clusters", build.ports, paths, config)
        seen = self._cell("clusters and paths", joined, accepted, ids, meters, paths)
        clusters = self._each("clusters as flows see them", build.remote_cluster, seen, own, config)
        flows = self._each("flows of clusters", build.cluster_flows, clusters, env, config)
        led_to = self._cell("clusters and their ends", joined, accepted, ends)
        routes = self._each(
            "routes to clusters", build.cluster_routes, led_to, decided.source, env.gateway, config
        )
        owners = self._cell("owners of clusters", build.owners, "cluster", tuple(accepted))
        parts = self._cell("parts of clusters", joined, owners, ports, routes, flows)
        return self._each("fragments of clusters", build.fragment, parts).values()

    def _state(self, decided: _Decisions) -> NodeState:
        local, config = decided.local, self._config
        published = None
        if local.role is Role.GATEWAY:
            published = publication(self._snapshot.gateways, self._wireguard, config)
        return NodeState(
            role=local.role,
            why=local.why,
            gateways=local.gateways,
            tunnels=sum(len(p) for paths in (decided.node_paths, decided.cluster_paths) for p in paths.values()),
            clusters=decided.clusters.accepted,
            cluster_ids=decided.cluster_ids,
            services=decided.exported,
            service_ids=decided.service_ids,
            published_pods=local.published_pods,
            encryption=encryption_state(
                decided.encryption, published, local.own_gateway_ip, self._wireguard, config
            ),
        )


def _all_problems(*found: tuple[Problem, ...]) -> tuple[Problem, ...]:
    return tuple(sorted({problem for problems in found for problem in problems}))
