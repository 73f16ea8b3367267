"""Imported Services: which endpoint a new connection to one gets, by clusters, in front of kube-proxy.

Owns how the ranks and weights of `mcagent.model.traffic` become shares of endpoints, and the rules of nft that
give connections these shares. Where nothing is said of a Service, or nothing of it is ready, kube-proxy decides,
unless some of its endpoints are in a cluster that no gateway reaches.
Knows nothing of tunnels and flows: an endpoint in another cluster is an address like any other.

The kernel asks the chains of nft and iptables that translate destinations one after the other, by priority, and
none after the one that has decided (nf_nat_inet_fn in net/netfilter/nf_nat_core.c): -101 is before kube-proxy's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from mcagent.core.addresses.rules import merged
from mcagent.core.engine import Engine
from mcagent.core.failover.reachability import named
from mcagent.model.config import Config
from mcagent.model.net import Address, host_network
from mcagent.model.objects import EndpointSlice, Kind, Service, ServiceImport, ServicePort, Snapshot
from mcagent.model.plan import Fragment
from mcagent.model.problem import Problem, Severity, all_problems
from mcagent.model.resources import NftChain, NftSet
from mcagent.model.traffic import Traffic, read_traffic

NEEDS = frozenset({Kind.SERVICE_IMPORT, Kind.SERVICE, Kind.ENDPOINT_SLICE})
SLOTS = 1 << 16  # a share is rounded to one of these
MAX_ENDPOINTS = 1000  # of a port: the map of a rule is one message of netlink
_SEED = "0x6d63"  # the same on every Node: a client keeps its endpoint wherever it asks from

Socket = tuple[Address, int]
_RULE = re.compile(r"ip daddr (\S+) (\w+) dport (\d+) dnat ip to .* map \{ (.*) \}")
_ELEMENT = re.compile(r"(\d+)(?:-(\d+))? : (\S+) \. (\d+)")


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
class PortShares:
    """What becomes of new connections to a port: endpoints, each with the end of its share of `SLOTS`."""

    address: Address
    protocol: str
    port: int
    by_client: bool  # all connections of a client go to the same endpoint
    shares: tuple[tuple[int, Socket], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """An imported Service's ports, its endpoints in this cluster, and what is wrong."""

    ports: tuple[PortShares, ...] = ()
    own: tuple[Address, ...] = ()
    problems: tuple[Problem, ...] = ()


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

    `unreachable`: those of the remote clusters that no gateway of this cluster reaches, by number.
    """
    left = engine.cell("unreachable clusters", named, unreachable, tuple(clusters))
    objects = (snapshot.service_imports, snapshot.services, snapshot.endpoint_slices)
    services = engine.cell("imports with slices", imported, *objects)
    default = engine.cell("default traffic", read_traffic, config.imported_traffic)
    decided = engine.each("imported Services", decide, services, default, config.cluster_id, left)
    chains = engine.cell("fragment of imported Services", fragment, decided, config)
    problems = engine.cell("problems of imported Services", _problems, decided)
    return Steering(fragments=(chains,), problems=problems, unreachable=tuple(sorted(left)))


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


def _cluster_ips(services: Mapping[str, Service], slices: Iterable[EndpointSlice]) -> frozenset[Address]:
    owners = {f"{one.meta.namespace}/{one.service_name}" for one in slices}
    return frozenset(address for key in owners if key in services for address in services[key].cluster_ips)


def decide(
    service: Imported, default: Traffic, cluster_id: str, unreachable: frozenset[str] = frozenset()
) -> Decided:
    """Return the shares of a Service's endpoints, none where kube-proxy is to choose; `cluster_id` is ours.

    Endpoints of unreachable clusters have none, unless nothing else may have any: it may be a false alarm.
    """
    said = service.object
    traffic = said.traffic or default
    if not traffic.ranks and unreachable.isdisjoint(one.source_cluster for one in service.slices):
        return Decided()
    ports: list[PortShares] = []
    own: set[Address] = set()
    problems: list[Problem] = []
    for place, port in enumerate(said.ports):
        ready = _ready(service.slices, port)
        reached = {cluster: sockets for cluster, sockets in ready.items() if cluster not in unreachable}
        if not traffic.ranks and len(reached) in (0, len(ready)):
            continue
        own.update(address for address, _ in ready.get(cluster_id, ()))
        if (count := sum(map(len, ready.values()))) > MAX_ENDPOINTS:
            reason = f"has {count} endpoints, of which {MAX_ENDPOINTS} can be weighed: kube-proxy chooses"
            problems.append(
                said.meta.problem(f"spec.ports[{place}]", "TooManyEndpoints", reason, Severity.WARNING)
            )
            continue
        shares = tuple(_shares(reached, traffic, cluster_id)) or tuple(_shares(ready, traffic, cluster_id))
        if shares:
            ports += [
                PortShares(
                    address=address,
                    protocol=port.protocol.lower(),
                    port=port.port,
                    by_client=said.client_ip_affinity,
                    shares=shares,
                )
                for address in said.ips
                if address.version == 4 and address in service.cluster_ips
            ]
    return Decided(ports=tuple(ports), own=tuple(sorted(own, key=int)), problems=tuple(problems))


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


def _shares(ready: Mapping[str, tuple[Socket, ...]], traffic: Traffic, own: str) -> Iterator[tuple[int, Socket]]:
    """Yield the endpoints of the first rank that has any, each with the end of its share."""
    weights = {cluster: len(sockets) for cluster, sockets in ready.items()}  # as kube-proxy chooses
    if traffic.ranks:
        weights = next(filter(None, traffic.weights(ready, own)), {})
    total, before, done = sum(weights.values()), 0, 0
    for cluster in sorted(weights):
        sockets = ready[cluster]
        for number, socket in enumerate(sockets, start=1):
            end = round(SLOTS * (done * len(sockets) + number * weights[cluster]) / (total * len(sockets)))
            if end > before:
                yield end, socket
            before = end
        done += weights[cluster]


def fragment(decided: Mapping[str, Decided], config: Config) -> Fragment:
    """Return the chains for all Services; nothing where kube-proxy chooses everywhere."""
    ports = [port for one in decided.values() for port in one.ports]
    own = sorted({address for one in decided.values() if one.ports for address in one.own}, key=int)
    if not ports:
        return Fragment(owner="imported", resources=())
    table = config.nft_table
    addresses = sorted({port.address for port in ports}, key=int)
    rules = ("ip daddr != @mct_imported accept", *map(_rule, sorted(ports, key=_place)))

    def nat(name: str, hook: str, priority: int, *rules: str) -> NftChain:
        return NftChain(table=table, name=name, type="nat", hook=hook, priority=priority, rules=rules)

    return Fragment(
        owner="imported",
        resources=(
            NftSet(table=table, name="mct_imported", elements=tuple(merged(map(host_network, addresses)))),
            nat("mct_import_pre", "prerouting", -101, f'iifname "{config.host_port}" accept', *rules),
            nat("mct_import_out", "output", -101, *rules),
            # An endpoint that calls itself by the Service's address has to see another sender than itself.
            nat("mct_import_self", "postrouting", 98, *map(_hairpin, own)),
        ),
    )


def _rule(port: PortShares) -> str:
    chosen = f"jhash ip saddr mod {SLOTS} seed {_SEED}" if port.by_client else f"numgen random mod {SLOTS}"
    starts = (0, *(end for end, _ in port.shares))
    elements = ", ".join(
        f"{_span(start, end - 1)} : {address} . {number}"
        for start, (end, (address, number)) in zip(starts, port.shares, strict=False)
    )
    return f"ip daddr {port.address} {port.protocol} dport {port.port} dnat ip to {chosen} map {{ {elements} }}"


def shares_said(rule: str, address: Address, protocol: str, port: int) -> tuple[tuple[Socket, float], ...]:
    """Return the endpoints that a rule of ours gives a Service's port, each with its share of 1; () if none."""
    said = _RULE.fullmatch(rule)
    if said is None or said.groups()[:3] != (str(address), protocol, str(port)):
        return ()
    found: dict[Socket, float] = {}
    for first, last, endpoint, number in _ELEMENT.findall(said[4]):
        socket = ip_address(endpoint), int(number)
        found[socket] = found.get(socket, 0) + (int(last or first) - int(first) + 1) / SLOTS
    return tuple(found.items())


def _span(first: int, last: int) -> str:
    return f"{first}-{last}" if first < last else f"{first}"


def _hairpin(address: Address) -> str:
    return f"ip saddr {address} ip daddr {address} ct status dnat masquerade"


def _problems(decided: Mapping[str, Decided]) -> tuple[Problem, ...]:
    return all_problems({key: one.problems for key, one in decided.items()})


def _order(socket: Socket) -> tuple[int, int]:
    return int(socket[0]), socket[1]


def _place(port: PortShares) -> tuple[int, str, int]:
    return int(port.address), port.protocol, port.port
