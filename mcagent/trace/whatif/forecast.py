"""The gateways of this cluster's connections, and the clusters and endpoints that they reach, in one World. Pure.

Simulates every gateway of this cluster, and one worker for all (they choose alike), and evaluates their groups.
This Node has the facts of its agent; the peers of other Nodes, and of new tunnels, are assumed to answer BFD.
Shares are averages over many connections: a hash chooses for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.simulator.groups import ONWARD, WHOLE, shares
from mcagent.core.imported_services import imported_services
from mcagent.model.config import Config, GatewayMode
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.model.net import Address, Network
from mcagent.model.node_state import AcceptedCluster, ExportedPort, LocalGateway, NodeRole
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired
from mcagent.observe.wireguard import ends_of
from mcagent.trace.simulator import SimulatedNode, simulate, with_assumed_wireguard
from mcagent.trace.whatif.assumptions import World

WORKERS = ""  # the place of all Nodes that are not gateways


@dataclass(frozen=True, slots=True, order=True)
class EgressPath:
    """Gateway by which connections leave this cluster, its address for translation, and the remote gateway."""

    leaves_by: str  # a Node of this cluster
    source: str
    far: str  # a gatewayIP of the other cluster


EgressPaths = Mapping[EgressPath, Fraction]  # shares of the connections to one cluster; the rest is lost
ByCluster = Mapping[str, EgressPaths]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Reachability in a World. `paths` by place (a gateway's name, or `WORKERS`) and cluster ID."""

    desired: Desired  # of this Node
    cluster_id: str = ""  # of this cluster
    places: Mapping[str, str] = field(default_factory=dict)  # of each Node that is not silent
    paths: Mapping[str, ByCluster] = field(default_factory=dict)
    gateways: Mapping[str, LocalGateway] = field(default_factory=dict)
    clusters: Mapping[str, AcceptedCluster] = field(default_factory=dict)
    published: tuple[Network, ...] = ()
    arriving: Mapping[str, Fraction] = field(default_factory=dict)  # shares of others' connections, by gateway
    exports: Mapping[str, frozenset[tuple[Address, int]]] = field(default_factory=dict)  # endpoints that answer
    imports: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # ready endpoints by cluster
    silent: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()  # gateways that do not drain, as no other would take over


@dataclass(frozen=True, slots=True)
class _Liveness:
    """Nodes and gatewayIPs that do not answer, and Nodes of this cluster that drain."""

    silent: frozenset[str]
    handing_over: frozenset[str]

    def near(self, node: str) -> bool:
        """Tell whether Nodes of this cluster send packets to a Node."""
        return node not in self.silent and node not in self.handing_over


def forecast(world: World, config: Config) -> Forecast:
    """Simulate the Nodes of this cluster."""
    own = simulate(world.snapshot, world.facts, config)
    state = own.desired.state
    gateways = {gateway.node: gateway for gateway in state.gateways}
    handing_over, refused = _handing_over(world, gateways)
    liveness = _Liveness(world.silent, handing_over)
    nodes = {name: _simulated(world, name, own) for name in gateways}
    direct = {name: dict(_sent_out(node, gateways[name], liveness)) for name, node in nodes.items()}
    paths: dict[str, ByCluster] = {
        name: dict(_sent_or_relayed(node, name, direct, liveness)) for name, node in nodes.items()
    }
    workers = [name for name in sorted(world.snapshot.nodes) if name not in gateways and name not in world.silent]
    if workers:
        worker = config.node_name if config.node_name in workers else workers[0]
        paths[WORKERS] = dict(_from_worker(_simulated(world, worker, own), paths, liveness))
    serving = next((node for node in nodes.values() if node.desired.state.role is NodeRole.GATEWAY), None)
    present = {name: name for name in gateways} | dict.fromkeys(workers, WORKERS)
    return Forecast(
        desired=own.desired,
        cluster_id=config.cluster_id,
        places={name: place for name, place in present.items() if name not in world.silent},
        paths=paths,
        gateways=gateways,
        clusters=state.clusters if state.role is not NodeRole.NONE else {},
        published=state.published_pods,
        arriving=_arriving(gateways, liveness, config, world.facts),
        exports=_exports(serving.desired.state.services if serving else {}, world.silent),
        imports=_imports(world.snapshot),
        silent=world.silent,
        refused=refused,
    )


def _simulated(world: World, node: str, own: SimulatedNode) -> SimulatedNode:
    """Simulate a Node of this cluster with this Node's facts: tunnels have the same names on all Nodes."""
    config, facts = own.config, world.facts
    if node == config.node_name:
        return own
    config = replace(config, node_name=node)
    facts = Facts(datapath=facts.datapath, active_order=facts.active_order, bfd_unanswered=facts.bfd_unanswered)
    return simulate(world.snapshot, with_assumed_wireguard(world.snapshot, facts, config), config)


def _handing_over(world: World, gateways: Mapping[str, LocalGateway]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the gateways that drain, and those that should but do not, as no other would take over."""
    draining = frozenset(name for name in gateways if world.snapshot.nodes[name].drain)
    remaining = gateways.keys() - draining - world.silent
    return (draining, frozenset()) if remaining else (frozenset(), draining - world.silent)


def _near(node: SimulatedNode) -> dict[int, str]:
    """Return the Nodes of this cluster by the port of the tunnel to them."""
    return {port.ofport: port.peer for port in node.tunnels.values() if port.peer_kind is not PeerKind.REMOTE}


def _far(node: SimulatedNode, liveness: _Liveness) -> dict[int, str]:
    """Return the gatewayIPs of other clusters that answer, by the port of the tunnel to them."""
    return {port: address for port, address in _far_ends(node).items() if address not in liveness.silent}


def _far_ends(node: SimulatedNode) -> dict[int, str]:
    # With encryption the tunnel's endpoint differs from the gatewayIP.
    ends = ends_of(node.desired.state.encryption)

    def gateway_ip(port: TunnelPort) -> str:
        return ends.get(str(port.remote_ip), str(port.remote_ip))

    remote = (port for port in node.tunnels.values() if port.peer_kind is PeerKind.REMOTE)
    return {port.ofport: gateway_ip(port) for port in remote}


def _sent_out(node: SimulatedNode, own: LocalGateway, liveness: _Liveness) -> Iterator[tuple[str, EgressPaths]]:
    """Yield the paths of connections that a gateway sends out itself, by cluster."""
    far_ends, far = _far_ends(node), _far(node, liveness)
    for name, number in node.desired.state.cluster_ids.items():
        parts = shares(
            node.groups, d.GROUP_CLUSTER.group_id(number), lambda port: port not in far_ends or port in far
        )
        yield (
            name,
            {
                EgressPath(own.node, str(own.source), far[port]): part
                for port, part in parts.items()
                if port in far
            },
        )


def _sent_or_relayed(
    node: SimulatedNode, own: str, direct: Mapping[str, ByCluster], liveness: _Liveness
) -> Iterator[tuple[str, EgressPaths]]:
    """Yield the paths of a gateway's connections, by cluster: out itself, or by another gateway (one hop)."""
    near, far_ends, far = _near(node), _far_ends(node), _far(node, liveness)

    def live(port: int) -> bool:
        return port in far if port in far_ends else port not in near or liveness.near(near[port])

    for name, number in node.desired.state.cluster_ids.items():
        relay = d.GROUP_RELAY.group_id(number)
        parts = shares(node.groups, relay, live) if relay in node.groups else {ONWARD: WHOLE}
        yield name, _combined(parts, {**near, ONWARD: own}, direct, name, liveness)


def _from_worker(
    node: SimulatedNode, paths: Mapping[str, ByCluster], liveness: _Liveness
) -> Iterator[tuple[str, EgressPaths]]:
    """Yield the paths of a worker's connections, by cluster."""
    near = _near(node)
    parts = shares(node.groups, e.LOCAL_GATEWAYS, lambda port: port not in near or liveness.near(near[port]))
    for name in node.desired.state.cluster_ids:
        yield name, _combined(parts, near, paths, name, liveness)


def _combined(
    parts: Mapping[int, Fraction],
    near: Mapping[int, str],
    paths: Mapping[str, ByCluster],
    cluster: str,
    liveness: _Liveness,
) -> EgressPaths:
    """Return the paths of connections to a cluster, of which `parts` are sent to gateways by port."""
    total: dict[EgressPath, Fraction] = {}
    for port, part in parts.items():
        gateway = near.get(port, "")
        for path, share in (
            paths.get(gateway, {}).get(cluster, {}).items() if gateway not in liveness.silent else ()
        ):
            total[path] = total.get(path, Fraction(0)) + part * share
    return total


def _arriving(
    gateways: Mapping[str, LocalGateway], liveness: _Liveness, config: Config, facts: Facts
) -> dict[str, Fraction]:
    """Return the share of other clusters' connections by gateway, if they choose as this cluster does."""
    answering = [gateway for gateway in gateways.values() if gateway.node not in liveness.silent]
    candidates = [gateway for gateway in answering if liveness.near(gateway.node)] or answering
    chosen = [gateway for gateway in candidates if not gateway.standby] or candidates
    if config.gateways is GatewayMode.ACTIVE_STANDBY:
        order = {name: rank for rank, name in enumerate(facts.active_order)}
        chosen = sorted(chosen, key=lambda gateway: (order.get(gateway.node, len(order)), gateway.place))[:1]
    return {gateway.node: Fraction(1, len(chosen)) for gateway in chosen}


def _exports(
    ports: Mapping[str, ExportedPort], silent: frozenset[str]
) -> dict[str, frozenset[tuple[Address, int]]]:
    """Return the endpoints of exported Services' ports on Nodes that answer."""
    return {
        name: frozenset(end for end, node in zip(port.endpoints, port.nodes, strict=True) if node not in silent)
        for name, port in ports.items()
    }


def _imports(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Count the ready endpoints of imported Services in each cluster."""
    counts: dict[str, dict[str, int]] = {}
    objects = (snapshot.service_imports, snapshot.services, snapshot.endpoint_slices)
    for key, service in imported_services(*objects).items():
        ready: dict[str, set[Address]] = {}
        for slice_ in service.slices:
            addresses = {a for endpoint in slice_.endpoints if endpoint.ready for a in endpoint.addresses}
            if addresses:
                ready.setdefault(slice_.source_cluster, set()).update(addresses)
        counts[key] = {cluster: len(addresses) for cluster, addresses in sorted(ready.items())}
    return counts
