"""Desired state of one Node's dataplane from what the API, the Node and the configuration say.

Pure, total, deterministic. Owns the cut into units and their reuse: a unit whose inputs are equal is the very
object of the last call, so one changed cluster costs one unit (and a few sweeps over names and integers). Knows
the pipeline only by the builders of `flows.mc`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flows import mc
from mcagent.core import kernel
from mcagent.core.candidate import Remote
from mcagent.core.local import LocalPeer
from mcagent.core.numbers import HOST_OFPORT, assign_ofports, number_names
from mcagent.core.secrecy import Secrecy, way_to
from mcagent.core.services import ExportedPort
from mcagent.core.topology import Topology, build_topology
from mcagent.core.tunnels import Tunnel, Tunnels, names_of, tunnels_of
from mcagent.core.ways import Port, Ways
from mcagent.model.config import Config
from mcagent.model.facts import Facts
from mcagent.model.net import Address, Network
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.plan import Desired, Unit
from mcagent.model.resources import (
    Bridge,
    FlowEntry,
    GroupEntry,
    HostPort,
    Resource,
    TunnelPort,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all units rest on beside their own input. A change of it means that everything is built anew."""

    config: Config
    env: mc.Env | None  # None without a role
    source: Address | None  # see Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A unit and all that it was built from (beside `Shared`)."""

    inputs: tuple[object, ...]
    unit: Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The desired state, and what the next call reuses of it.

    `needs` are the kinds that this Node's state follows from: before all of them are in `Snapshot.synced`,
    something may be missing from `desired`.
    """

    desired: Desired
    needs: frozenset[Kind]
    topology: Topology = field(repr=False)
    shared: Shared = field(repr=False)
    tunnels: Tunnels = field(repr=False)
    ofports: Mapping[str, int] = field(repr=False)
    in_use: Mapping[str, int] = field(repr=False)
    numbers: Mapping[str, Mapping[str, int]] = field(repr=False)  # by kind of thing numbered
    built: Mapping[str, Built] = field(repr=False)


def compile_desired(
    snapshot: Snapshot, facts: Facts, config: Config, previous: Compiled | None = None
) -> Compiled:
    """Return what should be on this Node. `previous` is any earlier result: it saves work, never changes it."""
    if previous is not None and previous.shared.config != config:
        previous = None
    topology = build_topology(snapshot, facts, config, previous.topology if previous else None)
    tunnels = tunnels_of(topology, config, previous.tunnels if previous else {})
    names = names_of(tunnels)
    if previous is not None and previous.in_use == facts.ofports and previous.ofports.keys() == set(names):
        ofports = previous.ofports
    else:
        ofports = assign_ofports(names, facts.ofports)
    shared = Shared(
        config=config,
        env=_environment(topology, tunnels, ofports, config),
        source=topology.source,
    )
    known: Mapping[str, Built] = {}
    if previous is not None and previous.shared == shared:
        known = previous.built
    numbers = _numbers(topology, previous)
    built = _Units(
        topology=topology,
        facts=facts,
        shared=shared,
        tunnels=tunnels,
        ways=Ways.of(topology.local, facts, config, ofports),
        numbers=numbers,
        known=known,
    ).build()
    units = {name: found.unit for name, found in built.items()}
    return Compiled(
        desired=Desired(units=units, problems=topology.problems, summary=_summary(topology, tunnels, numbers)),
        needs=topology.local.needs,
        topology=topology,
        shared=shared,
        tunnels=tunnels,
        ofports=ofports,
        in_use=facts.ofports,
        numbers=numbers,
        built=built,
    )


def _numbers(topology: Topology, previous: Compiled | None) -> Mapping[str, Mapping[str, int]]:
    wanted = {
        "cluster": topology.remotes.clusters.keys(),
        "node": {peer.name for peer in (*topology.local.peers, topology.local.own) if peer is not None},
        "service": topology.services.ports.keys(),
    }
    known = previous.numbers if previous is not None else {}
    return {
        kind: known[kind] if kind in known and known[kind].keys() == names else number_names(names)
        for kind, names in wanted.items()
    }


def _environment(
    topology: Topology,
    tunnels: Tunnels,
    ofports: Mapping[str, int],
    config: Config,
) -> mc.Env | None:
    local = topology.local
    if not local.role:
        return None
    gateways = (f"node/{peer.name}" for peer in local.peers if peer.gateway)
    base = config.ct_zone_base
    return mc.Env(
        gateway=local.role == "gateway",
        zones=mc.Zones(arrival=base, service=base + 1, snat=base + 2),
        local_gateways=tuple(
            sorted(ofports[tunnel.name] for unit in gateways if unit in tunnels for tunnel in tunnels[unit][1])
        ),
        own_gateway_ips=() if local.own_gateway_ip is None else (local.own_gateway_ip,),
        service_cidrs=local.service_cidrs,
        published_pods=local.published_pods,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """Builds the units, or takes them over where their inputs are the same."""

    topology: Topology
    facts: Facts
    shared: Shared
    tunnels: Tunnels
    ways: Ways
    numbers: Mapping[str, Mapping[str, int]]
    known: Mapping[str, Built]
    built: dict[str, Built] = field(default_factory=dict)

    def build(self) -> dict[str, Built]:
        """Return all units by name, in a fixed order."""
        local = self.topology.local
        facts, config = self.facts, self.shared.config
        choice = self.ways.choice(self.tunnels)
        order = self.ways.kept_order
        secrecy = Secrecy.of(self.topology, facts, config)
        mtu = kernel.host_port_mtu(facts, config)
        base_inputs = (facts.datapath, mtu, local.own_pods, choice, order, secrecy)
        self._take("base", base_inputs, lambda: self._base(choice, secrecy))
        env, source = self.shared.env, self.shared.source
        if env is None or local.own is None:
            return self.built
        own = local.own
        self._take(
            f"node/{own.name}", (own, self.numbers["node"][own.name]), lambda: self._node(env, own, HOST_OFPORT)
        )
        for peer in local.peers:
            self._peer(env, peer)
        numbers = self.numbers["cluster"]
        for cluster_id, remote in self.topology.remotes.clusters.items():
            self._cluster(env, source, remote, numbers[cluster_id])
        numbers = self.numbers["service"]
        for name, port in self.topology.services.ports.items():
            inputs = (port, numbers[name])
            self._take(f"service/{name}", inputs, lambda p=port: self._service(env, p))  # type: ignore[misc]
        return self.built

    def _take(self, name: str, inputs: tuple[object, ...], make: Callable[[], list[Resource]]) -> None:
        known = self.known.get(name)
        if known is None or known.inputs != inputs:
            known = Built(inputs=inputs, unit=Unit(name=name, resources=tuple(make())))
        self.built[name] = known

    def _base(self, choice: mc.Choice, secrecy: Secrecy) -> list[Resource]:
        config = self.shared.config
        found: list[Resource] = [
            Bridge(name=config.bridge, datapath=self.facts.datapath, active_order=self.ways.kept_order),
            HostPort(
                bridge=config.bridge,
                name=config.host_port,
                ofport=HOST_OFPORT,
                mac=kernel.HOST_MAC,
                mtu=kernel.host_port_mtu(self.facts, config),
            ),
            *kernel.device(self.facts, config),
        ]
        if self.shared.env is not None:
            found.extend(kernel.routing(config))
            found.extend(kernel.netfilter(config, self.topology.local.own_pods))
            found.extend(_entries(mc.base(self.shared.env, choice)))
            found.extend(secrecy.resources(config))
        return found

    def _peer(self, env: mc.Env, peer: LocalPeer) -> None:
        unit = f"node/{peer.name}"
        if unit not in self.tunnels:
            return  # a problem says why
        (tunnel,) = self.tunnels[unit][1]
        port = self.ways.port(tunnel)

        def make() -> list[Resource]:
            flows = self._node(env, peer, port.ofport) if env.gateway else []
            return [self._port(tunnel, port), *flows]

        self._take(unit, (peer, port.lasting, self.numbers["node"][peer.name]), make)

    def _node(self, env: mc.Env, peer: LocalPeer, ofport: int) -> list[Resource]:
        node = mc.LocalNode(
            number=self.numbers["node"][peer.name],
            ofport=ofport,
            gateway=peer.gateway,
            networks=peer.networks,
        )
        return _entries(mc.node(env, node))

    def _cluster(self, env: mc.Env, source: Address | None, remote: Remote, number: int) -> None:
        unit = f"cluster/{remote.cluster_id}"
        tunnels = self.tunnels[unit][1] if env.gateway else ()
        ports = self.ways.ports(tunnels)
        known = self.known.get(unit)
        ends = self.tunnels[unit][0] if env.gateway else None
        if known is not None and known.inputs[0] is remote and known.inputs[1:] == (number, ports, ends):
            self.built[unit] = known
            return

        def make() -> list[Resource]:
            gateways = (
                tuple(
                    mc.RemoteGateway(
                        address=tunnel.gateway, ofport=port.ofport, watched=port.watched, reserve=port.reserve
                    )
                    for tunnel, port in sorted(zip(tunnels, ports, strict=True), key=lambda found: found[1].rank)
                )
                if env.gateway
                else tuple(mc.RemoteGateway(address=address, ofport=None) for address in remote.gateways)
            )
            cluster = mc.RemoteCluster(
                number=number,
                cidrs=remote.cidrs,
                gateways=gateways,
                snat=remote.snat,
                ordered=self.ways.ordered,
            )
            direct = remote.direct if env.gateway else ()
            return [
                *(self._port(tunnel, port) for tunnel, port in zip(tunnels, ports, strict=True)),
                *(resource for tunnel in tunnels for resource in way_to(tunnel.end, self.shared.config)),
                *kernel.cluster_routes(self.shared.config, source, remote.cidrs, direct),
                *_entries(mc.cluster(env, cluster)),
            ]

        self._take(unit, (remote, number, ports, ends), make)

    def _service(self, env: mc.Env, port: ExportedPort) -> list[Resource]:
        service = mc.LocalService(
            number=self.numbers["service"][port.name],
            address=port.address,
            protocol=port.protocol,
            port=port.port,
            client_ip_affinity=port.client_ip_affinity,
            endpoints=tuple(mc.Endpoint(address=address, port=number) for address, number in port.endpoints),
        )
        return _entries(mc.service(env, service))

    def _port(self, tunnel: Tunnel, port: Port) -> TunnelPort:
        config = self.shared.config
        return TunnelPort(
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


def _entries(part: mc.Part) -> list[Resource]:
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


def _summary(
    topology: Topology,
    tunnels: Tunnels,
    numbers: Mapping[str, Mapping[str, int]],
) -> dict[str, object]:
    """Return what /status shows. Values are shared, not copied: nobody may change them."""
    local = topology.local
    networks: tuple[Network, ...] = local.published_pods
    encryption = topology.encryption
    return {
        "encryption": None if encryption is None else encryption.ends,
        "role": local.role or "none",
        "why": local.why,
        "gateways": local.gateways,
        "tunnels": sum(len(found) for _, found in tunnels.values()),
        "clusters": topology.remotes.clusters,
        "clusterNumbers": numbers["cluster"],
        "services": len(topology.services.ports),
        "publishedPodCIDRs": networks,
    }
