"""Imported Services: which endpoint a new connection to one gets, by clusters, in front of kube-proxy.

Owns how the ranks and weights of `mcagent.model.traffic` become shares of endpoints. Where nothing is said of a
Service, or nothing of it is ready, kube-proxy decides, unless some of its endpoints are in a cluster that no
gateway reaches. What the kernel is told of the shares is `mcagent.core.fragments.imported`'s.
Knows nothing of tunnels and flows: an endpoint in another cluster is an address like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from mcagent.core.engine import Engine
from mcagent.core.failover.reachability import clusters_by_hash
from mcagent.core.fragments.imported import SLOTS, PortShares, ServiceShares, Socket, fragment, service_rules
from mcagent.model.config import Config
from mcagent.model.net import Address
from mcagent.model.objects import EndpointSlice, Kind, Node, Service, ServiceImport, ServicePort, Snapshot
from mcagent.model.parsing.kubernetes import MANAGED_BY, MANAGED_BY_LABEL, SOURCE_CLUSTER_LABEL
from mcagent.model.plan import Fragment
from mcagent.model.problem import Problem, Severity, all_problems
from mcagent.model.traffic import Traffic, read_traffic

NEEDS = frozenset({Kind.SERVICE_IMPORT, Kind.SERVICE, Kind.ENDPOINT_SLICE})
# The labels of what is needed of kinds of which a cluster has many: the member's controller sets both.
SELECTORS = {Kind.SERVICE: f"{MANAGED_BY_LABEL}={MANAGED_BY}", Kind.ENDPOINT_SLICE: SOURCE_CLUSTER_LABEL}
MAX_ENDPOINTS = 1000  # of a port: the map of a rule is one message of netlink

SAME_NODE = "PreferSameNode"  # trafficDistribution of a Service: its node's endpoints, else its zone's, else all
SAME_ZONE = frozenset({"PreferClose", "PreferSameZone", SAME_NODE})


@dataclass(frozen=True, slots=True)
class Place:
    """Where this Node is."""

    node: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A ServiceImport, the EndpointSlices that serve it, and the ClusterIPs of the Services that these are of.

    An address that is no such ClusterIP is not the import's, whatever it says: who may write ServiceImports in one
    namespace could take any other Service's connections. ClusterIPs are the API server's to give.
    """

    object: ServiceImport
    slices: tuple[EndpointSlice, ...]
    cluster_ips: frozenset[Address]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """What the imported Services want of this Node."""

    fragments: tuple[Fragment, ...] = ()
    problems: tuple[Problem, ...] = ()
    unreachable: tuple[str, ...] = ()  # clusters that new connections leave


def steering(
    engine: Engine, snapshot: Snapshot, unreachable: frozenset[int], clusters: Iterable[str], config: Config
) -> Steering:
    """Return the shares of all imported Services as rules, and what is wrong.

    `unreachable_from_all`: those of the remote clusters that no gateway of this cluster reaches, by number.
    """
    call, each = engine.call, engine.each
    unreachable_names = call(clusters_by_hash, unreachable, tuple(clusters))
    services = call(imported, snapshot.service_imports, snapshot.services, snapshot.endpoint_slices)
    default = call(read_traffic, config.imported_traffic)
    place = call(_place_of, snapshot.nodes, config)
    decided = each(decide, services, default, config.cluster_id, unreachable_names, place)
    chains = call(fragment, each(service_rules, decided, config), config)
    problems = call(_problems, decided)
    fragments = (chains,) if chains.resources else ()
    return Steering(fragments=fragments, problems=problems, unreachable=tuple(sorted(unreachable_names)))


def imported(
    imports: Mapping[str, ServiceImport], services: Mapping[str, Service], slices: Mapping[str, EndpointSlice]
) -> dict[str, Imported]:
    """Return the ServiceImports with the slices that serve them, and the Services of these."""
    found: dict[str, list[EndpointSlice]] = {key: [] for key in imports}
    for one in slices.values():
        serving = found.get(f"{one.meta.namespace}/{one.imported_name}") if one.source_cluster else None
        if serving is not None:
            serving.append(one)
    return {
        key: Imported(object=one, slices=tuple(found[key]), cluster_ips=_cluster_ips(services, found[key]))
        for key, one in imports.items()
    }


def _place_of(nodes: Mapping[str, Node], config: Config) -> Place:
    own = nodes.get(config.node_name)
    return Place(config.node_name, own.zone if own is not None else "")


def _cluster_ips(services: Mapping[str, Service], slices: Iterable[EndpointSlice]) -> frozenset[Address]:
    owners = {f"{one.meta.namespace}/{one.service_name}" for one in slices}
    return frozenset(address for key in owners if key in services for address in services[key].cluster_ips)


def decide(
    service: Imported,
    default: Traffic,
    cluster_id: str,
    unreachable: frozenset[str] = frozenset(),
    place: Place = Place(),
) -> ServiceShares:
    """Return the shares of a Service's endpoints, none where kube-proxy is to choose; `cluster_id` is ours.

    Endpoints of unreachable clusters have none, unless nothing else may have any: it may be a false alarm. Where
    the Service prefers near ones, these share what all endpoints of this cluster would have.
    """
    said = service.object
    traffic = said.traffic or said.exported_traffic or default
    if not traffic.ranks and unreachable.isdisjoint(one.source_cluster for one in service.slices):
        return ServiceShares()
    ports: list[PortShares] = []
    own: set[Address] = set()
    problems: list[Problem] = []
    for index, port in enumerate(said.ports):
        ready = _ready(service.slices, port)
        reached = {cluster: sockets for cluster, sockets in ready.items() if cluster not in unreachable}
        if not traffic.ranks and len(reached) in (0, len(ready)):
            continue
        own.update(address for address, _ in ready.get(cluster_id, ()))
        if (count := sum(map(len, ready.values()))) > MAX_ENDPOINTS:
            reason = f"has {count} endpoints, of which {MAX_ENDPOINTS} can be weighed: kube-proxy chooses"
            problems.append(
                said.meta.problem(f"spec.ports[{index}]", "TooManyEndpoints", reason, Severity.WARNING)
            )
            continue
        told = {one.source_cluster: one.told_ready for one in service.slices if one.source_cluster != cluster_id}
        weights = _weights(reached, told, traffic, cluster_id) or _weights(ready, told, traffic, cluster_id)
        near = _near(ready, service, cluster_id, place)
        shares = _shares({**ready, **near}, weights)
        if shares:
            ports += [
                PortShares(
                    address=address,
                    protocol=port.protocol.lower(),
                    port=port.port,
                    by_client=said.client_ip_affinity,
                    shares=shares,
                    same_as_kube_proxy=not near and _are_kube_proxys(ready, weights),
                )
                for address in said.ips
                if address.version == 4 and address in service.cluster_ips
            ]
    return ServiceShares(ports=tuple(ports), own=tuple(sorted(own, key=int)), problems=tuple(problems))


def _ready(slices: tuple[EndpointSlice, ...], port: ServicePort) -> dict[str, tuple[Socket, ...]]:
    """Return the ready endpoints of a port by cluster, without clusters that have none."""
    found: dict[str, set[Socket]] = {}
    for one in slices:
        numbers = [p.port for p in one.ports if p.name == port.name and p.protocol is port.protocol and p.port]
        sockets = {
            (address, number)
            for endpoint in one.endpoints
            if endpoint.ready
            for address in endpoint.addresses
            if address.version == 4
            for number in numbers
        }
        if sockets:
            found.setdefault(one.source_cluster, set()).update(sockets)
    return {cluster: tuple(sorted(sockets, key=_order)) for cluster, sockets in sorted(found.items())}


def _near(
    ready: Mapping[str, tuple[Socket, ...]], service: Imported, own: str, place: Place
) -> dict[str, tuple[Socket, ...]]:
    """Return those of this cluster's endpoints that are near, if the Service prefers such and there are any."""
    wanted = service.object.distribution
    if wanted not in SAME_ZONE or own not in ready:
        return {}
    where = {
        address: endpoint
        for one in service.slices
        if one.source_cluster == own
        for endpoint in one.endpoints
        for address in endpoint.addresses
    }
    near = [one for one in ready[own] if place.zone and where[one[0]].zone == place.zone]
    here = [one for one in ready[own] if wanted == SAME_NODE and where[one[0]].node_name == place.node]
    found = tuple(here or near)
    return {own: found} if found else {}


def _weights(
    ready: Mapping[str, tuple[Socket, ...]], told: Mapping[str, int | None], traffic: Traffic, own: str
) -> dict[str, int]:
    """Return the weights of the clusters that share: those of the first rank that has a ready endpoint."""
    if not traffic.ranks:
        return {cluster: len(sockets) for cluster, sockets in ready.items()}  # as kube-proxy chooses
    counts = {cluster: told.get(cluster) or len(sockets) for cluster, sockets in ready.items()}
    return next(filter(None, traffic.weights(counts, own)), {})


def _are_kube_proxys(ready: Mapping[str, tuple[Socket, ...]], weights: Mapping[str, int]) -> bool:
    """Tell whether every endpoint has the same share: so it is where a single cluster exports a Service."""
    return len({Fraction(weights.get(cluster, 0), len(sockets)) for cluster, sockets in ready.items()}) == 1


def _shares(ready: Mapping[str, tuple[Socket, ...]], weights: Mapping[str, int]) -> tuple[tuple[int, Socket], ...]:
    """Return the endpoints of the clusters that share, each with the end of its share."""
    found: list[tuple[int, Socket]] = []
    total, before, done = sum(weights.values()), 0, 0
    for cluster in sorted(weights):
        sockets = ready[cluster]
        for number, socket in enumerate(sockets, start=1):
            end = round(SLOTS * (done * len(sockets) + number * weights[cluster]) / (total * len(sockets)))
            if end > before:
                found.append((end, socket))
            before = end
        done += weights[cluster]
    return tuple(found)


def _problems(decided: Mapping[str, ServiceShares]) -> tuple[Problem, ...]:
    return all_problems({key: one.problems for key, one in decided.items()})


def _order(socket: Socket) -> tuple[int, int]:
    return int(socket[0]), socket[1]
