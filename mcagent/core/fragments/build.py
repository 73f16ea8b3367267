"""The fragments of the desired state: what each holds, and which are taken over from the last call.

Which clusters have to be looked at is told from what changed, so that one changed cluster costs one fragment.
Knows the pipeline only by the builders of `flows.pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flows import pipeline
from mcagent.core.addresses.underlay import mapped_sources, source_of
from mcagent.core.fragments import kernel
from mcagent.core.fragments.path_state import PathState, Port
from mcagent.core.fragments.tunnel_guard import Peers, guard, peers_of
from mcagent.core.fragments.tunnels import Tunnel, Tunnels
from mcagent.core.ids import HOST_OFPORT
from mcagent.core.local_cluster.nodes import Families
from mcagent.core.local_cluster.services import local_endpoints
from mcagent.core.local_cluster.topology import LocalPeer
from mcagent.core.parts import Built, Maker, different, take_fragment
from mcagent.core.topology import Topology
from mcagent.core.wireguard.resources import WireGuardResources, way_to
from mcagent.model.config import Config
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address
from mcagent.model.node_state import AcceptedCluster, ExportedPort
from mcagent.model.plan import Fragment
from mcagent.model.resources import Bridge, FlowEntry, GroupEntry, HostPort, MeterEntry, Resource, TunnelPort


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all fragments rest on beside their own input. A change of it means that everything is built anew."""

    config: Config
    env: pipeline.Env | None  # None without a role
    source: Address | None  # see Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """All fragments, by kind and then by name, and what they were built from."""

    shared: Shared
    topology: Topology
    tunnels: Tunnels
    paths: PathState
    peers: tuple[Peers, ...]
    numbers: Mapping[str, Mapping[str, int]]  # by kind of thing numbered
    nodes: Mapping[str, Built]  # "base" is among them
    clusters: Mapping[str, Built]
    services: Mapping[str, Built]

    @property
    def by_name(self) -> dict[str, Fragment]:
        """The fragments of all kinds."""
        return {
            name: built.owner
            for kind in (self.nodes, self.clusters, self.services)
            for name, built in kind.items()
        }


def build_fragments(
    *,
    topology: Topology,
    facts: Facts,
    shared: Shared,
    tunnels: Tunnels,
    paths: PathState,
    numbers: Mapping[str, Mapping[str, int]],
    previous: Fragments | None,
) -> Fragments:
    """Return all fragments. `previous` is any earlier result: it saves work, never changes it."""
    if previous is not None and previous.shared != shared:
        previous = None
    if previous is None:
        peers = peers_of(topology, shared.config)
    else:
        peers = peers_of(topology, shared.config, previous.topology, previous.peers)
    builder = _Builder(
        topology=topology,
        peers=peers,
        facts=facts,
        shared=shared,
        tunnels=tunnels,
        paths=paths,
        numbers=numbers,
        previous=previous,
    )
    return Fragments(
        shared=shared,
        topology=topology,
        tunnels=tunnels,
        paths=paths,
        peers=peers,
        numbers=numbers,
        nodes=builder.nodes(),
        clusters=builder.clusters(),
        services=builder.services(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Builds the fragments, or takes them over where their inputs are the same."""

    topology: Topology
    peers: tuple[Peers, ...]
    facts: Facts
    shared: Shared
    tunnels: Tunnels
    paths: PathState
    numbers: Mapping[str, Mapping[str, int]]
    previous: Fragments | None

    def nodes(self) -> dict[str, Built]:
        """Return what every Node has, and the Nodes of this cluster."""
        local = self.topology.local
        known = self.previous.nodes if self.previous is not None else {}
        found = {"base": take_fragment("base", known, self._base())}
        env = self.shared.env
        if env is None or local.own is None:
            return found
        found["guard"] = take_fragment("guard", known, self._guard())
        owner = f"node/{local.own.name}"
        found[owner] = take_fragment(owner, known, self._flows_to(env, local.own, HOST_OFPORT))
        if self.facts.datapath is DatapathType.NETDEV:
            found["endpoints"] = take_fragment("endpoints", known, self._endpoints(local.own))
        for peer in local.peers:
            owner = f"node/{peer.name}"
            if owner not in self.tunnels:
                continue  # a problem says why
            (tunnel,) = self.tunnels[owner][1]
            port = self.paths.port(tunnel)
            parts = [self._ports(((tunnel, port),))]
            if env.gateway:
                parts.append(self._flows_to(env, peer, port.ofport))
            found[owner] = take_fragment(owner, known, *parts)
        return found

    def _base(self) -> Maker:
        config, local = self.shared.config, self.topology.local
        choice = self.paths.choice(self.tunnels)
        wireguard = WireGuardResources.of(self.topology, self.facts, config)
        order, datapath = self.paths.kept_order, self.facts.datapath
        mtu = kernel.host_port_mtu(self.facts, config, Families.of(local.gateways))

        def make() -> list[Resource]:
            found: list[Resource] = [
                Bridge(name=config.bridge, datapath=datapath, active_order=order),
                HostPort(
                    bridge=config.bridge, name=config.host_port, ofport=HOST_OFPORT, mac=kernel.HOST_MAC, mtu=mtu
                ),
                *kernel.device(config, mtu, local.own_mapped_address),
            ]
            if self.shared.env is not None:
                found.extend(kernel.routing(config))
                found.extend(kernel.netfilter(config, local.own_pods))
                found.extend(_entries(pipeline.base(self.shared.env, choice)))
                found.extend(wireguard.resources(config))
            return found

        return (datapath, mtu, local.own_pods, local.own_mapped_address, choice, order, wireguard), make

    def _guard(self) -> Maker:
        config, peers = self.shared.config, self.peers
        return (peers,), lambda: guard(config, peers)

    def _flows_to(self, env: pipeline.Env, peer: LocalPeer, ofport: int) -> Maker:
        number = self.numbers["node"][peer.name]

        def make() -> list[Resource]:
            node = pipeline.LocalNode(id=number, ofport=ofport, gateway=peer.gateway, networks=peer.networks)
            return _entries(pipeline.node(env, node))

        return (peer, ofport, number), make

    def _endpoints(self, own: LocalPeer) -> Maker:
        ports = self.topology.services.ports

        def make() -> list[Resource]:
            found = local_endpoints(ports.values(), own.networks)
            return _entries(
                pipeline.endpoints(pipeline.Endpoint(address=address, port=port) for address, port in found)
            )

        return (ports, own.networks), make

    def clusters(self) -> Mapping[str, Built]:
        """Return the other clusters. Those of which nothing changed are not looked at."""
        env, remotes = self.shared.env, self.topology.remotes.clusters
        if env is None or self.topology.local.own is None:
            return {}
        known = self.previous.clusters if self.previous is not None else {}
        stale = self._stale()
        if stale is None:
            return {owner: self._cluster(env, owner, remote, known) for owner, remote in _units_of(remotes)}
        found = dict(known)
        for owner in stale:
            remote = remotes.get(owner.removeprefix("cluster/"))
            if remote is None:
                found.pop(owner, None)
            else:
                found[owner] = self._cluster(env, owner, remote, known)
        return found

    def _stale(self) -> set[str] | None:
        """Return the clusters that may not be as before; None where that may be any."""
        before = self.previous
        if before is None:
            return None
        moved = self.paths.moved_since(before.paths)
        if moved is None:
            return None
        gateway = self.shared.env is not None and self.shared.env.gateway
        stale = {
            f"cluster/{name}"
            for new, old in (
                (self.topology.remotes.clusters, before.topology.remotes.clusters),
                (self.numbers["cluster"], before.numbers["cluster"]),
                (self.numbers["meter"], before.numbers["meter"]),
            )
            if new is not old
            for name in different(new, old)
        }
        if gateway and self.tunnels is not before.tunnels:
            stale.update(
                owner for owner in different(self.tunnels, before.tunnels) if owner.startswith("cluster/")
            )
        for owner in stale:
            moved.difference_update(tunnel.name for tunnel in self.tunnels.get(owner, (None, ()))[1])
        if moved and gateway:
            stale.update(
                owner
                for owner, (_, tunnels) in self.tunnels.items()
                if owner.startswith("cluster/") and any(tunnel.name in moved for tunnel in tunnels)
            )
        return stale

    def _cluster(
        self, env: pipeline.Env, owner: str, remote: AcceptedCluster, known: Mapping[str, Built]
    ) -> Built:
        config, source, ordered = self.shared.config, self.shared.source, self.paths.ordered
        number, meter = self.numbers["cluster"][remote.cluster_id], self.numbers["meter"][remote.cluster_id]
        rate = config.new_connections
        ends, tunnels = self.tunnels[owner] if env.gateway else (None, ())
        ports = self.paths.ports(tunnels)
        known_by = next((t.end.source for t in tunnels if t.end is not None and not t.end.own_key), None)

        def make() -> list[Resource]:
            reached = remote.reached_from(self.topology.local.own_gateway_ip) if env.gateway else ()
            gateways = (
                *(
                    pipeline.RemoteGateway(
                        address=source_of(tunnel.gateway),
                        ofport=port.ofport,
                        watched=port.watched,
                        standby=port.standby,
                    )
                    for tunnel, port in sorted(zip(tunnels, ports, strict=True), key=lambda found: found[1].rank)
                ),
                # What a sibling passes on comes from gateways that are not reached from here, too.
                *(
                    pipeline.RemoteGateway(address=source_of(a), ofport=None)
                    for a in remote.gateways
                    if a not in reached
                ),
            )
            cluster = pipeline.RemoteCluster(
                id=number,
                cidrs=remote.cidrs,
                gateways=gateways,
                snat=remote.snat,
                snat_address=known_by,
                ordered=ordered,
                meter=meter if rate else None,
            )
            direct = remote.direct if env.gateway else ()
            return [
                *(resource for tunnel in tunnels for resource in way_to(tunnel.end, config)),
                *kernel.cluster_routes(config, source, (*remote.cidrs, *mapped_sources(remote.gateways)), direct),
                *([MeterEntry(meter_id=meter, rate=rate, burst=2 * rate)] if rate else []),
                *_entries(pipeline.cluster(env, cluster)),
            ]

        rest: Maker = ((remote, number, meter, ends, ordered, tuple(port.used for port in ports)), make)
        return take_fragment(owner, known, self._ports(tuple(zip(tunnels, ports, strict=True))), rest)

    def services(self) -> dict[str, Built]:
        """Return the exported Services."""
        env = self.shared.env
        if env is None or not env.gateway or self.topology.local.own is None:
            return {}
        known = self.previous.services if self.previous is not None else {}
        found = {}
        for name, port in self.topology.services.ports.items():
            owner = f"service/{name}"
            found[owner] = take_fragment(owner, known, self._service(env, port))
        return found

    def _service(self, env: pipeline.Env, port: ExportedPort) -> Maker:
        number = self.numbers["service"][port.name]

        def make() -> list[Resource]:
            service = pipeline.LocalService(
                id=number,
                address=port.address,
                protocol=port.protocol,
                port=port.port,
                client_ip_affinity=port.client_ip_affinity,
                endpoints=tuple(
                    pipeline.Endpoint(address=address, port=number) for address, number in port.endpoints
                ),
                shares_endpoints=port.shares_endpoints,
            )
            return _entries(pipeline.service(env, service))

        return (port, number), make

    def _ports(self, ports: tuple[tuple[Tunnel, Port], ...]) -> Maker:
        config = self.shared.config

        def make() -> list[Resource]:
            return [
                TunnelPort(
                    bridge=config.bridge,
                    name=tunnel.name,
                    type=config.tunnel_type,
                    remote_ip=tunnel.address,
                    dst_port=config.tunnel_port,
                    ofport=port.ofport,
                    peer_kind=tunnel.peer_kind,
                    peer=tunnel.peer,
                    bfd=port.bfd,
                    bfd_seen=port.watched,
                )
                for tunnel, port in ports
            ]

        return tuple((tunnel, port.lasting) for tunnel, port in ports), make


def _units_of(clusters: Mapping[str, AcceptedCluster]) -> Iterator[tuple[str, AcceptedCluster]]:
    return ((f"cluster/{name}", remote) for name, remote in clusters.items())


def _entries(part: pipeline.Entries) -> list[Resource]:
    """Return flows and groups as text: typed ones are some ten times larger, and nobody reads them again."""
    found: list[Resource] = [GroupEntry(group_id=g.group_id, body=g.body_text) for g in part.groups]
    found.extend(
        FlowEntry(
            table=flow.table,
            priority=flow.priority,
            match=flow.match_text,
            cookie=flow.cookie,
            actions=flow.actions_text,
        )
        for flow in part.flows
    )
    return found
