"""Imported Services: the shares of their endpoints in new connections, by cluster, instead of kube-proxy's choice.

Owns the conversion of ranks and weights (`mcagent.model.traffic`) to shares of endpoints. kube-proxy chooses for a
Service without such settings or without ready endpoints, unless some of its endpoints are in an unreachable
cluster. `mcagent.core.fragments.imported` writes the shares as rules. Must not know tunnels or flows: an endpoint
in a remote cluster is an address like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from mcagent.core.engine import IncrementalEngine
from mcagent.core.failover.reachability import clusters_by_hash
from mcagent.core.fragments.imported import SLOTS, PortShares, ServiceShares, Socket, fragment, service_rules
from mcagent.model.config import Config
from mcagent.model.net import Address
from mcagent.model.node_state import ImportedPort
from mcagent.model.objects import (
    EndpointSlice,
    IpProtocol,
    Kind,
    Node,
    Service,
    ServiceImport,
    ServicePort,
    Snapshot,
)
from mcagent.model.parsing.kubernetes import MANAGED_BY, MANAGED_BY_LABEL, SOURCE_CLUSTER_LABEL
from mcagent.model.plan import Fragment
from mcagent.model.problem import Problem, Severity, all_problems
from mcagent.model.traffic import Traffic, read_traffic

NEEDS = frozenset({Kind.SERVICE_IMPORT, Kind.SERVICE, Kind.ENDPOINT_SLICE})
# Label selectors of kinds with many objects; the member controller sets both labels on the objects needed here.
SELECTORS = {Kind.SERVICE: f"{MANAGED_BY_LABEL}={MANAGED_BY}", Kind.ENDPOINT_SLICE: SOURCE_CLUSTER_LABEL}
MAX_ENDPOINTS = 1000  # per port: the map of a rule is one netlink message

# trafficDistribution of a Service: endpoints on the client's Node, else in its zone, else all.
SAME_NODE = "PreferSameNode"
SAME_ZONE = frozenset({"PreferClose", "PreferSameZone", SAME_NODE})


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """The name and the zone of this Node."""

    node: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportInput:
    """A ServiceImport, its EndpointSlices, and the ClusterIPs of the Services of these slices.

    Addresses of the ServiceImport that are no such ClusterIP are ignored. Otherwise a user who may write
    ServiceImports in one namespace could redirect the connections of any other Service. The API server assigns
    ClusterIPs.
    """

    object: ServiceImport
    slices: tuple[EndpointSlice, ...]
    cluster_ips: frozenset[Address]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """The result for all imported Services: fragments, problems, unreachable clusters."""

    fragments: tuple[Fragment, ...] = ()
    problems: tuple[Problem, ...] = ()
    unreachable: tuple[str, ...] = ()  # IDs of clusters that new connections avoid
    endpoints: Mapping[ImportedPort, frozenset[Socket]] | None = None  # see `listed_endpoints`


def steering(
    engine: IncrementalEngine,
    snapshot: Snapshot,
    unreachable: frozenset[int],
    clusters: Iterable[str],
    config: Config,
) -> Steering:
    """Compute the shares of all imported Services as rules.

    `unreachable`: hashes of the remote clusters that no gateway of this cluster reaches; `clusters`: all IDs.
    """
    call, call_each = engine.call, engine.each
    unreachable_names = call(clusters_by_hash, unreachable, tuple(clusters))
    services = call(imported_services, snapshot.service_imports, snapshot.services, snapshot.endpoint_slices)
    default = call(read_traffic, config.imported_traffic)
    location = call(_node_location, snapshot.nodes, config)
    shares = call_each(share_endpoints, services, default, config.cluster_id, unreachable_names, location)
    chains = call(fragment, call_each(service_rules, shares, config), config)
    problems = call(_problems, shares)
    fragments = (chains,) if chains.resources else ()
    return Steering(
        fragments=fragments,
        problems=problems,
        unreachable=tuple(sorted(unreachable_names)),
        endpoints=call(_merged, call_each(listed_endpoints, services)),
    )


def imported_services(
    imports: Mapping[str, ServiceImport], services: Mapping[str, Service], slices: Mapping[str, EndpointSlice]
) -> dict[str, ImportInput]:
    """Join each ServiceImport with its EndpointSlices and their Services, by "namespace/name"."""
    slices_by_import: dict[str, list[EndpointSlice]] = {key: [] for key in imports}
    for item in slices.values():
        serving = (
            slices_by_import.get(f"{item.meta.namespace}/{item.imported_name}") if item.source_cluster else None
        )
        if serving is not None:
            serving.append(item)
    return {
        key: ImportInput(
            object=item,
            slices=tuple(slices_by_import[key]),
            cluster_ips=_cluster_ips(services, slices_by_import[key]),
        )
        for key, item in imports.items()
    }


def _node_location(nodes: Mapping[str, Node], config: Config) -> NodeLocation:
    own = nodes.get(config.node_name)
    return NodeLocation(config.node_name, own.zone if own is not None else "")


def _cluster_ips(services: Mapping[str, Service], slices: Iterable[EndpointSlice]) -> frozenset[Address]:
    owners = {f"{endpoint_slice.meta.namespace}/{endpoint_slice.service_name}" for endpoint_slice in slices}
    return frozenset(address for key in owners if key in services for address in services[key].cluster_ips)


def share_endpoints(
    service: ImportInput,
    default: Traffic,
    cluster_id: str,
    unreachable: frozenset[str] = frozenset(),
    location: NodeLocation = NodeLocation(),
) -> ServiceShares:
    """Compute the shares of a Service's endpoints; none where kube-proxy chooses. `cluster_id`: of this cluster.

    Endpoints in unreachable clusters get no share unless no other endpoint may get one, since the report may be a
    false alarm. If the Service prefers near endpoints, these divide the shares of all endpoints of this cluster.
    """
    service_import = service.object
    traffic = service_import.traffic or service_import.exported_traffic or default
    if not traffic.ranks and unreachable.isdisjoint(
        endpoint_slice.source_cluster for endpoint_slice in service.slices
    ):
        return ServiceShares()
    ports: list[PortShares] = []
    own_endpoints: set[Address] = set()
    problems: list[Problem] = []
    for index, port in enumerate(service_import.ports):
        ready = _ready(service.slices, port)
        reached = {cluster: sockets for cluster, sockets in ready.items() if cluster not in unreachable}
        if not traffic.ranks and len(reached) in (0, len(ready)):
            continue
        own_endpoints.update(address for address, _ in ready.get(cluster_id, ()))
        if (count := sum(map(len, ready.values()))) > MAX_ENDPOINTS:
            reason = f"has {count} endpoints, of which {MAX_ENDPOINTS} can be weighed: kube-proxy chooses"
            problems.append(
                service_import.meta.problem(f"spec.ports[{index}]", "TooManyEndpoints", reason, Severity.WARNING)
            )
            continue
        reported_ready = {
            endpoint_slice.source_cluster: endpoint_slice.told_ready
            for endpoint_slice in service.slices
            if endpoint_slice.source_cluster != cluster_id
        }
        weights = _weights(reached, reported_ready, traffic, cluster_id) or _weights(
            ready, reported_ready, traffic, cluster_id
        )
        near = _near(ready, service, cluster_id, location)
        shares = _shares({**ready, **near}, weights)
        if shares:
            ports += [
                PortShares(
                    address=address,
                    protocol=port.protocol.lower(),
                    port=port.port,
                    by_client=service_import.client_ip_affinity,
                    shares=shares,
                    same_as_kube_proxy=not near and _are_kube_proxys(ready, weights),
                )
                for address in service_import.ips
                if address.version == 4 and address in service.cluster_ips
            ]
    return ServiceShares(ports=tuple(ports), own=tuple(sorted(own_endpoints, key=int)), problems=tuple(problems))


def listed_endpoints(service: ImportInput) -> dict[ImportedPort, frozenset[Socket]]:
    """Return all endpoints of a Service's ports that are not TCP, ready or not, by ClusterIP and port.

    Connections of these protocols have no end of their own: those to another endpoint are deleted.
    """
    endpoints: dict[ImportedPort, frozenset[Socket]] = {}
    for port in service.object.ports:
        if port.protocol is IpProtocol.TCP:
            continue
        sockets = frozenset(
            (address, number)
            for item in service.slices
            for number in item.numbers_of(port)
            for endpoint in item.endpoints
            for address in endpoint.addresses
        )
        for address in service.object.ips:
            if address in service.cluster_ips:
                endpoints[port.protocol.lower(), address, port.port] = sockets
    return endpoints


def _merged(
    by_service: Mapping[str, Mapping[ImportedPort, frozenset[Socket]]],
) -> dict[ImportedPort, frozenset[Socket]]:
    return {port: sockets for endpoints in by_service.values() for port, sockets in endpoints.items()}


def _ready(slices: tuple[EndpointSlice, ...], port: ServicePort) -> dict[str, tuple[Socket, ...]]:
    """Return the ready IPv4 endpoints of a port by cluster ID, without clusters that have none; sorted."""
    sockets_by_cluster: dict[str, set[Socket]] = {}
    for endpoint_slice in slices:
        numbers = endpoint_slice.numbers_of(port)
        sockets = {
            (address, number)
            for endpoint in endpoint_slice.endpoints
            if endpoint.ready
            for address in endpoint.addresses
            if address.version == 4
            for number in numbers
        }
        if sockets:
            sockets_by_cluster.setdefault(endpoint_slice.source_cluster, set()).update(sockets)
    return {cluster: tuple(sorted(sockets, key=_order)) for cluster, sockets in sorted(sockets_by_cluster.items())}


def _near(
    ready: Mapping[str, tuple[Socket, ...]], service: ImportInput, cluster_id: str, location: NodeLocation
) -> dict[str, tuple[Socket, ...]]:
    """Return this cluster's near endpoints, by its ID; {} without any, or if the Service does not prefer them."""
    distribution = service.object.distribution
    if distribution not in SAME_ZONE or cluster_id not in ready:
        return {}
    endpoints = {
        address: endpoint
        for item in service.slices
        if item.source_cluster == cluster_id
        for endpoint in item.endpoints
        for address in endpoint.addresses
    }
    same_zone = [
        socket for socket in ready[cluster_id] if location.zone and endpoints[socket[0]].zone == location.zone
    ]
    same_node = [
        socket
        for socket in ready[cluster_id]
        if distribution == SAME_NODE and endpoints[socket[0]].node_name == location.node
    ]
    preferred = tuple(same_node or same_zone)
    return {cluster_id: preferred} if preferred else {}


def _weights(
    ready: Mapping[str, tuple[Socket, ...]],
    reported_ready: Mapping[str, int | None],
    traffic: Traffic,
    cluster_id: str,
) -> dict[str, int]:
    """Return the weights of the clusters of the first rank that has a ready endpoint."""
    if not traffic.ranks:
        return {cluster: len(sockets) for cluster, sockets in ready.items()}  # as kube-proxy chooses
    counts = {cluster: reported_ready.get(cluster) or len(sockets) for cluster, sockets in ready.items()}
    return next(filter(None, traffic.weights(counts, cluster_id)), {})


def _are_kube_proxys(ready: Mapping[str, tuple[Socket, ...]], weights: Mapping[str, int]) -> bool:
    """Tell whether all endpoints have the same share, as with kube-proxy (so it is with a single cluster)."""
    return len({Fraction(weights.get(cluster, 0), len(sockets)) for cluster, sockets in ready.items()}) == 1


def _shares(ready: Mapping[str, tuple[Socket, ...]], weights: Mapping[str, int]) -> tuple[tuple[int, Socket], ...]:
    """Return the endpoints of the clusters in `weights`, each with the end of its share of `SLOTS`."""
    shares: list[tuple[int, Socket]] = []
    total, last_end, done = sum(weights.values()), 0, 0
    for cluster in sorted(weights):
        sockets = ready[cluster]
        for number, socket in enumerate(sockets, start=1):
            end = round(SLOTS * (done * len(sockets) + number * weights[cluster]) / (total * len(sockets)))
            if end > last_end:
                shares.append((end, socket))
            last_end = end
        done += weights[cluster]
    return tuple(shares)


def _problems(decided: Mapping[str, ServiceShares]) -> tuple[Problem, ...]:
    return all_problems({key: shares.problems for key, shares in decided.items()})


def _order(socket: Socket) -> tuple[int, int]:
    return int(socket[0]), socket[1]
