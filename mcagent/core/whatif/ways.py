"""By which gateways the connections of this cluster go, and what they reach, in one world: what is compared.

Looks from every gateway of this cluster, and from one worker for all (they choose alike), with the groups that
each would really have. Of this Node what its agent knows counts; of others, that their peers answer BFD, as do
tunnels that are not there yet. Shares are of many connections: a hash decides on each. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from flows.flow import Group
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import groups as local_groups
from flows.pipeline.route import cluster_groups
from mcagent.core.compile import compile_desired
from mcagent.core.engine import IncrementalEngine
from mcagent.core.forwarding import Forwarding, forwarding
from mcagent.core.fragments.build import remote_cluster
from mcagent.core.fragments.path_state import PathState
from mcagent.core.ids import CLUSTERS, assign_ids
from mcagent.core.imported_services import imported_services
from mcagent.core.whatif.assumptions import World
from mcagent.core.whatif.shares import ONWARD, WHOLE, shares
from mcagent.model.config import Config
from mcagent.model.facts import Facts
from mcagent.model.net import Address, Network
from mcagent.model.node_state import AcceptedCluster, ExportedPort, LocalGateway, Role
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired

WORKERS = ""  # the place of all Nodes that are no gateways


@dataclass(frozen=True, slots=True, order=True)
class Way:
    """By which gateway connections leave this cluster, with which address if it translates them, and where to."""

    leaves_by: str  # a Node of this cluster
    source: str
    far: str  # a gatewayIP of the other cluster


Ways = Mapping[Way, Fraction]  # parts of the connections to one cluster; what is missing is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is reached and how. `ways` by place (a gateway's name, or `WORKERS`) and cluster ID."""

    desired: Desired  # of this Node
    cluster_id: str = ""  # of this cluster
    places: Mapping[str, str] = field(default_factory=dict)  # of each Node that is not silent
    ways: Mapping[str, Mapping[str, Ways]] = field(default_factory=dict)
    gateways: Mapping[str, LocalGateway] = field(default_factory=dict)
    clusters: Mapping[str, AcceptedCluster] = field(default_factory=dict)
    published: tuple[Network, ...] = ()
    arriving: Mapping[str, Fraction] = field(default_factory=dict)  # of what others open, by gateway
    exports: Mapping[str, frozenset[tuple[Address, int]]] = field(default_factory=dict)  # endpoints that answer
    imports: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # ready endpoints by cluster
    silent: frozenset[str] = frozenset()
    handing_over: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()  # gateways that are to drain, and stay since nobody would take over


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What one Node would have: its groups, and whose ports they name."""

    forwarding: Forwarding
    groups: Mapping[int, Group]
    ids: Mapping[str, int]
    near: Mapping[int, str]  # Nodes by port
    far: Mapping[int, PathState]


def view_of(world: World, config: Config) -> View:
    """Return what is reached and how, as the Nodes of this cluster have it."""
    desired = compile_desired(world.snapshot, answered(world, config, IncrementalEngine()), config).desired
    own = _look(world, config.node_name, config)
    gateways = {gateway.node: gateway for gateway in own.forwarding.local.gateways}
    handing, refused = _handing_over(world, gateways)
    away = world.silent | handing
    looks = {name: own if name == config.node_name else _look(world, name, config) for name in gateways}
    ordered = own.forwarding.next_hops.ordered
    direct = {name: dict(_leaving(look, gateways[name], world.silent)) for name, look in looks.items()}
    ways = {name: dict(_by_relay(looks[name], name, direct, away, world.silent)) for name in gateways}
    workers = [name for name in sorted(world.snapshot.nodes) if name not in gateways and name not in world.silent]
    if workers:
        worker = config.node_name if config.node_name in workers else workers[0]
        look = own if worker == config.node_name else _look(world, worker, config)
        ways[WORKERS] = dict(_from_worker(look, ways, away, world.silent))
    serving = next((look for name, look in looks.items() if look.forwarding.local.role is Role.GATEWAY), None)
    present = {name: name for name in gateways} | dict.fromkeys(workers, WORKERS)
    return View(
        desired=desired,
        cluster_id=config.cluster_id,
        places={name: place for name, place in present.items() if name not in world.silent},
        ways=ways,
        gateways=gateways,
        clusters=own.forwarding.clusters if own.forwarding.local.role is not Role.NONE else {},
        published=own.forwarding.local.published_pods,
        arriving=_arriving(gateways, away, world.silent, ordered=ordered, facts=world.facts),
        exports=_exports(serving.forwarding.exports if serving else {}, world.silent),
        imports=_imports(world.snapshot),
        silent=world.silent,
        handing_over=handing,
        refused=refused,
    )


def _look(world: World, node: str, config: Config) -> _Look:
    own = node == config.node_name
    facts = world.facts if own else _facts_there(world.facts)
    node_world = replace(world, facts=facts)
    config = config if own else replace(config, node_name=node)
    engine = IncrementalEngine()
    facts = answered(node_world, config, engine)
    with engine.one_pass():
        forwards = forwarding(engine, world.snapshot, facts, config)
    env, far = forwards.env, forwards.paths_to_clusters
    ids = assign_ids(tuple(forwards.clusters), CLUSTERS)
    groups: list[Group] = []
    if env is not None:
        groups += local_groups.local_gateways(env, forwards.next_hops)
        address = forwards.local.own_gateway_ip if env.gateway else None
        for name, cluster in forwards.clusters.items() if env.gateway else ():
            remote = remote_cluster((cluster, ids[name], 0, far.get(name)), address, forwards.to_first, config)
            tunnels = {
                gateway.address: gateway.next_hop for gateway in remote.gateways if gateway.next_hop is not None
            }
            groups += cluster_groups(env, remote, tunnels) if tunnels else ()
    return _Look(
        forwarding=forwards,
        groups={group.group_id: group for group in groups},
        ids=ids,
        near={path.ofport: name for name, paths in forwards.paths_to_nodes.items() for path in paths},
        far={path.ofport: path for paths in far.values() for path in paths},
    )


def _facts_there(facts: Facts) -> Facts:
    """Return the facts of another Node, as far as this one knows: tunnels have the same names there."""
    return Facts(datapath=facts.datapath, active_order=facts.active_order, bfd_unanswered=facts.bfd_unanswered)


def answered(world: World, config: Config, engine: IncrementalEngine) -> Facts:
    """Return the facts, with tunnels that are not there yet taken for such as will answer BFD."""
    with engine.one_pass():
        forwards = forwarding(engine, world.snapshot, world.facts, config)
    tunnels = (*forwards.tunnels_to_nodes.values(), *forwards.tunnels_to_clusters.values())
    names = {tunnel.name for tunnels_of_peer in tunnels for tunnel in tunnels_of_peer}
    new = names - world.facts.ofports.keys()
    return replace(world.facts, bfd_seen=world.facts.bfd_seen | new)


def _handing_over(world: World, gateways: Mapping[str, LocalGateway]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the gateways that drain, and those that are to and do not: nobody would take over."""
    asked = frozenset(name for name in gateways if world.snapshot.nodes[name].drain)
    others = gateways.keys() - asked - world.silent
    return (asked, frozenset()) if others else (frozenset(), asked - world.silent)


def _leaving(look: _Look, own: LocalGateway, silent: frozenset[str]) -> Iterator[tuple[str, Ways]]:
    """Yield what a gateway sends out itself, by cluster."""

    def live(port: int) -> bool:
        path = look.far.get(port)
        return path is None or not _is_silent(path, silent)

    for name, number in look.ids.items():
        found = shares(look.groups, d.GROUP_CLUSTER.group_id(number), live)
        yield (
            name,
            {
                Way(own.node, str(own.source), str(look.far[port].tunnel.gateway)): part
                for port, part in found.items()
                if live(port)
            },
        )


def _is_silent(path: PathState, silent: frozenset[str]) -> bool:
    """With encryption the tunnel ends elsewhere than at the gatewayIP."""
    return str(path.tunnel.gateway) in silent or str(path.tunnel.address) in silent


def _by_relay(
    look: _Look,
    own: str,
    direct: Mapping[str, Mapping[str, Ways]],
    away: frozenset[str],
    silent: frozenset[str],
) -> Iterator[tuple[str, Ways]]:
    """Yield what becomes of what a gateway has to send, by cluster: out itself, or by a sibling (one hop)."""

    def live(port: int) -> bool:
        path = look.far.get(port)
        return look.near.get(port) not in away if path is None else not _is_silent(path, silent)

    for name, number in look.ids.items():
        relay = d.GROUP_RELAY.group_id(number)
        found = shares(look.groups, relay, live) if relay in look.groups else {ONWARD: WHOLE}
        yield name, _along(found, look.near, own, {g: ways.get(name, {}) for g, ways in direct.items()}, silent)


def _from_worker(
    look: _Look, ways: Mapping[str, Mapping[str, Ways]], away: frozenset[str], silent: frozenset[str]
) -> Iterator[tuple[str, Ways]]:
    """Yield the ways of a worker's connections, by cluster."""
    found = shares(look.groups, e.LOCAL_GATEWAYS, lambda port: look.near.get(port) not in away)
    for name in look.ids:
        yield name, _along(found, look.near, "", {g: there.get(name, {}) for g, there in ways.items()}, silent)


def _along(
    found: Mapping[int, Fraction],
    near: Mapping[int, str],
    own: str,
    ways: Mapping[str, Ways],
    silent: frozenset[str],
) -> Ways:
    """Return where parts get that are handed to gateways of this cluster."""
    total: dict[Way, Fraction] = {}
    for port, part in found.items():
        gateway = own if port == ONWARD else near[port]
        for way, share in ways.get(gateway, {}).items() if gateway not in silent else ():
            total[way] = total.get(way, Fraction(0)) + part * share
    return total


def _arriving(
    gateways: Mapping[str, LocalGateway],
    away: frozenset[str],
    silent: frozenset[str],
    *,
    ordered: bool,
    facts: Facts,
) -> dict[str, Fraction]:
    """Return which part of what other clusters open comes in by each gateway, if they choose as this one does."""
    there = [g for g in gateways.values() if g.node not in away] or [
        g for g in gateways.values() if g.node not in silent
    ]
    chosen = [gateway for gateway in there if not gateway.standby] or there
    if ordered:
        order = {name: place for place, name in enumerate(facts.active_order)}
        chosen = sorted(chosen, key=lambda g: (order.get(g.node, len(order)), g.place))[:1]
    return {gateway.node: Fraction(1, len(chosen)) for gateway in chosen}


def _exports(
    ports: Mapping[str, ExportedPort], silent: frozenset[str]
) -> dict[str, frozenset[tuple[Address, int]]]:
    """Return the endpoints of exported Services' ports that are on a Node which answers."""
    return {
        name: frozenset(one for one, node in zip(port.endpoints, port.nodes, strict=True) if node not in silent)
        for name, port in ports.items()
    }


def _imports(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Return how many ready endpoints imported Services have in each cluster."""
    found: dict[str, dict[str, int]] = {}
    objects = (snapshot.service_imports, snapshot.services, snapshot.endpoint_slices)
    for key, service in imported_services(*objects).items():
        ready: dict[str, set[Address]] = {}
        for slice_ in service.slices:
            addresses = {a for endpoint in slice_.endpoints if endpoint.ready for a in endpoint.addresses}
            if addresses:
                ready.setdefault(slice_.source_cluster, set()).update(addresses)
        found[key] = {cluster: len(addresses) for cluster, addresses in sorted(ready.items())}
    return found
