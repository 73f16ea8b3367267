"""Exported Services of this cluster: which address and port leads to which endpoints.

Decides from Service, ServiceExport and EndpointSlices; knows nothing of flows. Only what is exported exists
for other clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mcagent.core.addresses.rules import Taken, refuse_address
from mcagent.core.local_cluster.nodes import seniority
from mcagent.model.net import Address, Network, NetworkSet, contains, host_network
from mcagent.model.node_state import ExportedPort
from mcagent.model.objects import EndpointSlice, Service, ServiceExport, ServicePort, Snapshot
from mcagent.model.problem import Problem, Severity

# One bucket takes about 150 bytes of the 64 KiB that an OpenFlow message can have.
MAX_ENDPOINTS = 256
# Where Kubernetes itself listens on a Node (kubernetes.io, "Ports and Protocols"; defaults of kubelet's and
# kube-proxy's flags): etcd, API server, kubelet, kube-proxy, controller manager, scheduler. Those of kube-system
# and default/kubernetes, which are the administrators', may lead there.
KUBERNETES_PORTS = frozenset({2379, 2380, 6443, 10248, 10249, 10250, 10255, 10256, 10257, 10259})


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The verdict on all exported Services, and the inputs it came from."""

    ports: Mapping[str, ExportedPort]
    problems: tuple[Problem, ...]
    inputs: tuple[object, ...]


def build_services(
    snapshot: Snapshot,
    service_cidrs: tuple[Network, ...],
    networks: tuple[Network, ...],
    hosts: frozenset[int],
    *,
    nodes: tuple[tuple[Address, str], ...] = (),
    node_cidrs: tuple[Network, ...] = (),
    previous: Services | None = None,
) -> Services:
    """Return the exported ports. `networks` and `hosts` (IPv4 addresses) lie on Nodes of this cluster.

    `nodes` are the Nodes' own addresses, `node_cidrs` their Pod CIDRs.
    """
    objects = (snapshot.services, snapshot.service_exports, snapshot.endpoint_slices)
    inputs = (*objects, service_cidrs, networks, hosts, nodes, node_cidrs)
    if previous is not None and all(map(_same, inputs, previous.inputs)):
        return previous
    problems: list[Problem] = []
    exports = sorted(snapshot.service_exports.values(), key=lambda e: seniority(e.meta))
    slices = _slices_by_service(snapshot.endpoint_slices.values(), exports)
    known = Taken((network, "") for network in networks)

    def local(address: Address) -> bool:
        return int(address) in hosts or known.overlapping(host_network(address)) is not None

    def listens(address: Address, number: int) -> bool:
        """Tell whether Kubernetes may listen there; looks at Nodes only for the few ports that are its own."""
        return number in KUBERNETES_PORTS and _is_nodes(address, nodes, node_cidrs)

    ports: dict[str, ExportedPort] = {}
    holders: dict[tuple[Address, str, int], str] = {}
    for export in exports:
        service = snapshot.services.get(export.meta.key)
        address = _address(export, service, service_cidrs, problems)
        if service is None or address is None:
            continue
        for port in service.ports:
            protocol = port.protocol.lower()
            holder = holders.setdefault((address, protocol, port.port), service.meta.key)
            if holder != service.meta.key:
                message = f"{address} port {port.port}/{protocol} is Service {holder}'s already: not used"
                problems.append(_problem(export, "DuplicateAddress", message))
                continue
            name = f"{service.meta.key}:{port.port}/{protocol}"
            ports[name] = ExportedPort(
                name=name,
                address=address,
                protocol=protocol,
                port=port.port,
                client_ip_affinity=service.client_ip_affinity,
                endpoints=_endpoints(
                    export,
                    port,
                    slices.get(service.meta.key, ()),
                    local=local,
                    guarded=listens if _is_anybodys(service) else lambda _address, _number: False,
                    problems=problems,
                ),
            )
    known_ports = previous.ports if previous is not None else {}
    return Services(
        ports=_kept(_sharing(ports), known_ports), problems=tuple(sorted(set(problems))), inputs=inputs
    )


def local_endpoints(ports: Iterable[ExportedPort], networks: Iterable[Network]) -> set[tuple[Address, int]]:
    """Return the TCP endpoints of exported Services that lie in these networks: those of one Node."""
    here = NetworkSet(networks)
    return {
        (address, number)
        for port in ports
        if port.protocol == "tcp"
        for address, number in port.endpoints
        if address.version == 4 and int(address) in here
    }


def _sharing(ports: Mapping[str, ExportedPort]) -> Mapping[str, ExportedPort]:
    """Return the ports with those marked that share an endpoint."""
    leading = Counter((port.protocol, endpoint) for port in ports.values() for endpoint in port.endpoints)
    return {
        name: replace(port, shares_endpoints=True)
        if any(leading[port.protocol, endpoint] > 1 for endpoint in port.endpoints)
        else port
        for name, port in ports.items()
    }


def _kept(ports: Mapping[str, ExportedPort], known: Mapping[str, ExportedPort]) -> Mapping[str, ExportedPort]:
    """Return the ports, as the very objects that are known where they are the same."""
    return {name: known[name] if known.get(name) == port else port for name, port in ports.items()}


def _same(a: object, b: object) -> bool:
    return a is b or (isinstance(a, (tuple, frozenset)) and a == b)


def _slices_by_service(
    slices: Iterable[EndpointSlice], exports: Iterable[ServiceExport]
) -> Mapping[str, list[EndpointSlice]]:
    wanted: dict[str, list[EndpointSlice]] = {export.meta.key: [] for export in exports}
    for found in slices:
        of_service = wanted.get(f"{found.meta.namespace}/{found.service_name}")
        if of_service is not None:
            of_service.append(found)
    return wanted


def _address(
    export: ServiceExport, service: Service | None, cidrs: tuple[Network, ...], problems: list[Problem]
) -> Address | None:
    """Return the ClusterIP that is served, or tell why there is none."""
    if service is None:
        problems.append(_problem(export, "NoService", "there is no Service of this name and namespace"))
        return None
    if not service.cluster_ips:
        message = "the Service has no ClusterIP (headless or ExternalName): it is not served to other clusters"
        problems.append(_problem(export, "NoClusterIP", message))
        return None
    address = next((a for a in service.cluster_ips if refuse_address(a) is None), None)
    if address is None:
        message = "the Service has no IPv4 ClusterIP: IPv6 is not supported yet"
        problems.append(_problem(export, "IPv6NotSupported", message))
        return None
    if not any(contains(cidr, address) for cidr in cidrs):
        message = f"its ClusterIP {address} lies in no Gateway's serviceCIDR: other clusters do not reach it"
        problems.append(_problem(export, "OutsideServiceCIDR", message, Severity.WARNING))
    return address


def _is_nodes(address: Address, nodes: Iterable[tuple[Address, str]], node_cidrs: Iterable[Network]) -> bool:
    """Tell whether an address is a Node's: known as such, or its bridge's (the first two of a Pod CIDR)."""
    return any(address == own for own, _ in nodes) or any(
        address.version == cidr.version and 0 <= int(address) - int(cidr.network_address) <= 1
        for cidr in node_cidrs
    )


def _is_anybodys(service: Service) -> bool:
    """Tell whether a namespace user may have made a Service."""
    return service.meta.namespace != "kube-system" and service.meta.key != "default/kubernetes"


def _endpoints(
    export: ServiceExport,
    port: ServicePort,
    slices: Iterable[EndpointSlice],
    *,
    local: Callable[[Address], bool],
    guarded: Callable[[Address, int], bool],
    problems: list[Problem],
) -> tuple[tuple[Address, int], ...]:
    """Return ready endpoints, or serving ones when none is ready (so that a rollout never serves nobody).

    Whoever writes EndpointSlices says what an endpoint is. Outside of the cluster there is none, nor where it is
    `guarded`.
    """
    ready: set[tuple[Address, int]] = set()
    serving: set[tuple[Address, int]] = set()
    elsewhere = kubernetes = 0
    for found in slices:
        # the Service's port and the slice's are joined by name: target ports may differ per Pod
        numbers = [p.port for p in found.ports if p.name == port.name and p.protocol == port.protocol]
        for endpoint in found.endpoints:
            if not (endpoint.ready or endpoint.serving):
                continue
            for address in endpoint.addresses:
                if refuse_address(address) is not None or not local(address):
                    elsewhere += address.version == 4
                    continue
                places = {(address, number) for number in numbers if number is not None}
                theirs = {place for place in places if guarded(*place)}
                kubernetes += len(theirs)
                places -= theirs
                serving |= places
                if endpoint.ready:
                    ready |= places
    chosen = sorted(ready or serving)
    if elsewhere:
        message = f"{elsewhere} endpoints of port {port.port} are no Pod or Node of this cluster: not used"
        problems.append(_problem(export, "EndpointElsewhere", message, Severity.WARNING))
    if kubernetes:
        message = f"{kubernetes} endpoints of port {port.port} are where Kubernetes listens on a Node: not used"
        problems.append(_problem(export, "EndpointOfKubernetes", message, Severity.WARNING))
    if len(chosen) > MAX_ENDPOINTS:
        message = f"port {port.port} has {len(chosen)} endpoints: the first {MAX_ENDPOINTS} are used"
        problems.append(_problem(export, "TooManyEndpoints", message, Severity.WARNING))
    return tuple(chosen[:MAX_ENDPOINTS])


def _problem(export: ServiceExport, reason: str, message: str, severity: Severity = Severity.ERROR) -> Problem:
    return Problem(subject=export.meta.subject, path="", reason=reason, message=message, severity=severity)
