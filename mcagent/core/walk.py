"""The walk from objects to resources: which step follows from which.

Each step is a plain function of `core`, and a cell of the engine, which calls it where its input has changed. What
changes often (facts, Pods) is taken apart before it gets to a dear step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from flows.pipeline import Env, NextHopGroup
from flows.pipeline.registers import HOST_OFPORT
from mcagent.core import imported_services, wireguard
from mcagent.core.engine import Engine, joined
from mcagent.core.fragments import build, path_state, tunnel_guard
from mcagent.core.fragments.path_state import PathRules, PathState, Tunnel, cluster_tunnels, names_of, node_tunnels
from mcagent.core.ids import CLUSTERS, METERS, NODES, SERVICES, assign_ids, assign_ofports
from mcagent.core.local_cluster import services, topology
from mcagent.core.local_cluster.gateways import accept_gateways, wanted_gateways
from mcagent.core.local_cluster.nodes import NO_PODS, CheckedNode, PodHosts, check_node, check_pod, pods_by_node
from mcagent.core.local_cluster.topology import SERVICE_NEEDS, LocalCluster, LocalPeer
from mcagent.core.policies import steps as policy_steps
from mcagent.core.remote_clusters import steps as cluster_steps
from mcagent.core.remote_clusters.check import check_cluster, judge_of
from mcagent.core.remote_clusters.settle import CheckedCluster, RemoteClusters, settle
from mcagent.model.config import Config
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address
from mcagent.model.node_state import AcceptedCluster, ExportedPort, LocalGateway, NodeState, Role
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired, Fragment
from mcagent.model.problem import Problem, in_order
from mcagent.model.resources import Resource

Paths = Mapping[str, tuple[PathState, ...]]
Tunnels = Mapping[str, tuple[Tunnel, ...]]


class Walk:
    """One walk from objects to resources: each step is a property, and names the steps that it follows from.

    Remembers nothing of the last walk: the engine does.
    """

    def __init__(self, engine: Engine, snapshot: Snapshot, facts: Facts, config: Config) -> None:
        self._engine, self._cell, self._each = engine, engine.cell, engine.each
        self._snapshot, self._facts, self._config = snapshot, facts, config
        self._wireguard = wireguard.facts_of(facts)

    @cached_property
    def desired(self) -> Desired:
        """What should be on this Node."""
        return Desired(fragments=self._fragments, problems=self._problems, state=self._state)

    @cached_property
    def needs(self) -> frozenset[Kind]:
        """The kinds that the desired state follows from."""
        local = self.local
        found = local.needs | self._policy_needs
        found |= SERVICE_NEEDS if local.serves(self._facts.datapath) else frozenset()
        return found | (imported_services.NEEDS if self._config.steers and local.role else frozenset())

    @cached_property
    def _policy_needs(self) -> frozenset[Kind]:
        return policy_steps.needs(self._snapshot, self._config, self.local.role)

    # --- this cluster

    @cached_property
    def _nodes(self) -> Mapping[str, CheckedNode]:
        return self._each("checked Nodes", check_node, self._snapshot.nodes, self._config.pod_routing)

    @cached_property
    def _gateways(self) -> tuple[tuple[LocalGateway, ...], tuple[Problem, ...]]:
        objects = (self._snapshot.gateways, self._snapshot.nodes)
        wanted = self._cell("wanted gateways", wanted_gateways, *objects, self._config)
        return self._cell("gateways", accept_gateways, wanted, self._snapshot.leaving, self._nodes)

    @cached_property
    def _without_pods(self) -> LocalCluster:
        return self._cell("local cluster", topology.local_cluster, self._nodes, self._gateways[0], self._config)

    @cached_property
    def _pods(self) -> PodHosts:
        """Pods that are known one by one."""
        local = self._without_pods
        if not local.one_by_one:
            return NO_PODS
        checked = self._each("checked Pods", check_pod, self._snapshot.pods)
        return self._cell("Pods by Node", pods_by_node, checked, local.one_by_one, local.hosts)

    @cached_property
    def local(self) -> LocalCluster:
        """This cluster."""
        return self._cell("local cluster with Pods", topology.with_pods, self._without_pods, self._pods)

    @cached_property
    def exported(self) -> tuple[Mapping[str, ExportedPort], tuple[Problem, ...]]:
        """The ports of exported Services, where they matter."""
        local, found = self.local, self._snapshot
        if not local.serves(self._facts.datapath):
            return {}, ()
        exports = services.exports_of(found.service_exports, found.services, found.endpoint_slices)
        where = (local.networks, self._pods.hosts, local.node_addresses, local.node_cidrs)
        places = self._cell("places of endpoints", services.Places, *where)
        checked = self._each("checked exports", services.check_export, exports, local.service_cidrs, places)
        ports, problems = self._cell("exported ports", services.exported_ports, checked)
        return ports, problems if local.role is Role.GATEWAY else ()  # a worker knows its own endpoints only

    # --- the other clusters

    @cached_property
    def clusters(self) -> RemoteClusters:
        """What is used of the other clusters."""
        servers = services.api_servers(self._snapshot.endpoint_slices)
        judge = self._cell("judge", judge_of, self._without_pods, self._facts, self._config, servers)
        checked = self._each("checked clusters", check_cluster, self._snapshot.cluster_infos, judge)
        return self._cell("remote clusters", settle, checked, self._pods.hosts, self._config)

    @cached_property
    def _encrypting(self) -> LocalGateway | None:
        """This Node, where it encrypts traffic to other clusters."""
        on = self._config.encrypts and self.local.role is Role.GATEWAY
        return self.local.own_gateway if on else None

    @cached_property
    def _encryption(self) -> wireguard.Encryption:
        """Which gateways are encrypted to."""
        known = (self.clusters, self._both, self.local, self._encrypting)
        return cluster_steps.encryption(self._engine, *known, facts=self._wireguard, config=self._config)

    @cached_property
    def _both(self) -> Mapping[str, tuple[AcceptedCluster, CheckedCluster]]:
        return self._cell("clusters, accepted and checked", joined, self.clusters.accepted, self.clusters.checked)

    # --- tunnels

    @cached_property
    def _to_nodes(self) -> Tunnels:
        peers = {peer.name: peer for peer in self.local.peers if peer.address is not None}
        return self._each("tunnels to Nodes", node_tunnels, peers if self.local.role else {}, self._config)

    @cached_property
    def _to_clusters(self) -> Tunnels:
        own = self.local.own_gateway_ip
        if self.local.role is not Role.GATEWAY or own is None:
            return {}
        wanted = self._cell("clusters and ends", joined, self.clusters.accepted, self._encryption.ends)
        return self._each("tunnels to clusters", cluster_tunnels, wanted, own, self._config)

    @cached_property
    def accepted(self) -> Mapping[str, AcceptedCluster]:
        """The other clusters as they are used, by what runs on their gateways."""
        return cluster_steps.used(self._engine, self.clusters, self._to_clusters, self._facts.bfd_unanswered)

    @cached_property
    def to_first(self) -> int | None:
        """The port of the tunnel to this cluster's first gateway."""
        return cluster_steps.to_first(self.local.gateways, self.paths[0])

    @cached_property
    def _rules(self) -> PathRules:
        return self._cell("path rules", path_state.path_rules, self.local, self._facts, self._config)

    @cached_property
    def paths(self) -> tuple[Paths, Paths]:
        """The state of the tunnels to Nodes of this cluster, and to other clusters."""
        facts = self._facts
        names = self._cell("names of tunnels", names_of, self._to_nodes, self._to_clusters)
        ofports = self._cell("OpenFlow ports", assign_ofports, names, facts.ofports)
        said = {"seen": facts.bfd_seen, "damped": facts.damped | facts.silent, "begins": facts.bfd_begins}
        nodes = path_state.observed(self._to_nodes, ofports, **said)
        of_gateways = joined(nodes, {gateway.node: gateway for gateway in self.local.gateways})
        clusters = self._cell("observed of clusters", path_state.observed, self._to_clusters, ofports, **said)
        return (
            self._each("paths to Nodes", path_state.node_paths, of_gateways, self._rules),
            self._each("paths to clusters", path_state.cluster_paths, clusters, self._rules),
        )

    # --- fragments

    @cached_property
    def _fragments(self) -> dict[str, Fragment]:
        """All fragments, by owner."""
        found = [self._base]
        if self.env is not None and self.local.own is not None:
            found += [self._guard, *self._node_fragments(self.env, self.local.own)]
            found += self._cluster_fragments(self.env)
            if self.env.identities:
                found += self._policies.fragments
            found += self._steering.fragments
            if self._facts.datapath is DatapathType.NETDEV:
                ports = self.exported[0]
                found.append(self._cell("endpoints", build.endpoints_fragment, ports, self.local.own))
            if self.env.gateway:
                found += self._service_fragments(self.env)
        return {one.owner: one for one in found}

    @cached_property
    def env(self) -> Env | None:
        """What all flows share; None without a role."""
        if self.local.role is Role.NONE:
            return None
        shared = (wireguard.also_known_by(self._encryption), self._facts.datapath, self._config)
        return self._cell("environment", build.environment, self.local, self.hops, *shared)

    @cached_property
    def hops(self) -> NextHopGroup:
        """The gateways of this cluster to choose from."""
        paths = tuple(path for found in self.paths[0].values() for path in found)
        return self._cell("next hops", path_state.next_hops, paths, self._rules)

    @cached_property
    def _base(self) -> Fragment:
        local, facts, config = self.local, self._facts, self._config
        ours = (local.gateways, local.own_mapped_address)
        parts = [
            self._cell("bridge", build.bridge, self._rules.order, facts.datapath, config),
            self._cell("host port", build.host_port, *ours, facts.uplink_mtu, config),
        ]
        if self.env is not None:
            encrypting: tuple[Resource, ...] = ()
            if self._encrypting is not None:
                found = (self._encryption, self.clusters.accepted, self._encrypting, self._wireguard)
                encrypting = self._cell("WireGuard", wireguard.wireguard_resources, *found, config)
            flows = (local.own_pods, self.env, self.hops, encrypting)
            parts.append(self._cell("base flows", build.base, *flows, config))
        return self._cell("base", build.fragment, ("base", *parts))

    @cached_property
    def _guard(self) -> Fragment:
        local, config = self.local, self._config
        peers = self._each("ends of clusters", tunnel_guard.ends_of, self._both, config.wireguard_port)
        where = (local.gateways, local.node_addresses, peers)
        every = self._cell("peers of the guard", tunnel_guard.peers_of, *where, config)
        return self._cell("guard", build.guard_fragment, config, every)

    def _node_fragments(self, env: Env, own: LocalPeer) -> Iterable[Fragment]:
        """Return those of this Node, and of those that it has tunnels to."""
        paths = self.paths[0]
        ids = self._cell("Node IDs", assign_ids, (own.name, *(p.name for p in self.local.peers)), NODES)
        there = {peer.name: peer for peer in self.local.peers if peer.name in paths}
        wanted = {name: (peer, ids[name], paths[name][0].ofport) for name, peer in there.items() if env.gateway}
        wanted[own.name] = (own, ids[own.name], HOST_OFPORT)
        ports = self._each("ports to Nodes", build.ports, paths, self._config)
        flows = self._each("flows of Nodes", build.node_flows, wanted, env)
        parts = joined(build.owners("node", (own.name, *there)), ports, flows)
        return self._each("fragments of Nodes", build.fragment, parts).values()

    @cached_property
    def _cluster_ids(self) -> Mapping[str, int]:
        return self._cell("cluster IDs", assign_ids, tuple(self.clusters.accepted), CLUSTERS)

    @cached_property
    def _service_ids(self) -> Mapping[str, int]:
        return self._cell("Service IDs", assign_ids, tuple(self.exported[0]), SERVICES)

    def _cluster_fragments(self, env: Env) -> Iterable[Fragment]:
        """Return those of the other clusters."""
        config, accepted, paths = self._config, self.accepted, self.paths[1]
        own = self.local.own_gateway_ip if env.gateway else None
        meters = self._cell("meter IDs", assign_ids, tuple(accepted), METERS)
        seen = self._cell("clusters and paths", joined, accepted, self._cluster_ids, meters, paths)
        clusters = self._each("clusters as flows see them", build.remote_cluster, seen, own, self.to_first, config)
        flows = self._each("flows of clusters", build.cluster_flows, clusters, env, config)
        led_to = self._cell("clusters and their ends", joined, accepted, self._encryption.ends)
        source = self._source[0]
        routes = self._each("routes to clusters", build.cluster_routes, led_to, source, env.gateway, config)
        ports = self._each("ports to clusters", build.ports, paths, config)
        owners = self._cell("owners of clusters", build.owners, "cluster", tuple(accepted))
        checked: Mapping[str, build.Resources] = {}
        if env.gateway and env.identities:
            checked = policy_steps.claimed(self._engine, self._snapshot, self._cluster_ids)
        parts = self._cell("parts of clusters", joined, owners, ports, routes, flows, checked)
        return self._each("fragments of clusters", build.fragment, parts).values()

    @cached_property
    def _policies(self) -> policy_steps.Enforced:
        """What policies want of this Node, where they count."""
        if self.env is None or not self.env.identities:
            return policy_steps.Enforced()
        return policy_steps.enforced(self._engine, self._snapshot, self.env, self._config, self._cluster_ids)

    @cached_property
    def _steering(self) -> imported_services.Steering:
        """What imported Services want of this Node, where they are steered."""
        if not self._config.steers or self.env is None:
            return imported_services.Steering()
        known = (self._snapshot, self._facts.unreachable, self.clusters.accepted, self._config)
        return imported_services.steering(self._engine, *known)

    def _service_fragments(self, env: Env) -> Iterable[Fragment]:
        """Return those of exported Services."""
        exported = self.exported[0]
        watched = self._cell("watched Nodes", build.watched_nodes, self.paths[0])
        tunnels = self._each("tunnels to endpoints", build.endpoint_tunnels, exported, watched)
        known = joined(exported, self._service_ids, tunnels)
        flows = self._each("flows of Services", build.service_flows, known, env)
        parts = joined(build.owners("service", flows), flows)
        return self._each("fragments of Services", build.fragment, parts).values()

    # --- what is known beside

    @cached_property
    def _source(self) -> tuple[Address | None, tuple[Problem, ...]]:
        return topology.source_on(self.local, self._facts)

    @cached_property
    def _unreached(self) -> tuple[Problem, ...]:
        """What is known of peers that packets do not reach."""
        facts = self._facts
        found = topology.uplink_problems(self.local, facts) if self.local.role else ()
        if not facts.silent and not facts.narrow:
            return found
        speaking = cluster_steps.speaking(self._to_clusters, self.accepted, self.to_first)
        peers = {"Nodes": joined(self._to_nodes, self._nodes), "clusters": joined(speaking, self.clusters.checked)}
        return found + cluster_steps.unreached(self._engine, peers, facts, self._config)

    @cached_property
    def _problems(self) -> tuple[Problem, ...]:
        found = (
            *(self._snapshot.problems, self._gateways[1], self._without_pods.problems, self._source[1]),
            *(self.exported[1], self.clusters.problems, self._unreached, self._policies.problems),
        )
        return self._cell("problems", in_order, *found, self._encryption.problems, self._steering.problems)

    @cached_property
    def _state(self) -> NodeState:
        local, config = self.local, self._config
        said = (self._snapshot.gateways, self._wireguard, config)
        published = wireguard.publication(*said) if local.role is Role.GATEWAY else None
        known = (self._encryption, published, local.own_gateway_ip, self._wireguard)
        return NodeState(
            role=local.role,
            why=local.why,
            all_pods=local.role is Role.GATEWAY and Kind.POD in local.needs,
            all_services=local.serves(self._facts.datapath) or Kind.ENDPOINT_SLICE in self._policy_needs,
            gateways=local.gateways,
            tunnels=sum(len(found) for paths in self.paths for found in paths.values()),
            clusters=self.accepted,
            cluster_ids=self._cluster_ids,
            services=self.exported[0],
            service_ids=self._service_ids,
            published_pods=local.published_pods,
            policy_rules=self._policies.names,
            isolating=self._policies.isolating,
            unreachable=self._steering.unreachable,
            encryption=wireguard.encryption_state(*known, config),
        )
