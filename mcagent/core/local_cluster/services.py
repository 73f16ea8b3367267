"""Exported Services of this cluster: which address and port leads to which endpoints.

`check_export` looks at one ServiceExport with its Service and EndpointSlices; `exported_ports` decides between
them. Knows nothing of flows. Only what is exported exists for other clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mcagent.core.addresses.rules import refuse_address
from mcagent.core.local_cluster.nodes import seniority
from mcagent.model.net import Address, Network, NetworkSet, contains
from mcagent.model.node_state import ExportedPort
from mcagent.model.objects import EndpointSlice, Meta, Service, ServiceExport, ServicePort
from mcagent.model.problem import Problem, Severity

Place = tuple[Address, int]  # address and port of an endpoint
# One bucket takes about 150 bytes of the 64 KiB that an OpenFlow message can have.
MAX_ENDPOINTS = 256
# Where Kubernetes itself listens on a Node (kubernetes.io, "Ports and Protocols"; defaults of kubelet's and
# kube-proxy's flags): etcd, API server, kubelet, kube-proxy, controller manager, scheduler. Those of kube-system
# and default/kubernetes, which are the administrators', may lead there.
KUBERNETES_PORTS = frozenset({2379, 2380, 6443, 10248, 10249, 10250, 10255, 10256, 10257, 10259})
# The name that the API server gives the EndpointSlice of its own Service (pkg/controlplane/reconcilers).
API_SERVERS = "default/kubernetes"


def api_servers(slices: Mapping[str, EndpointSlice]) -> tuple[Address, ...]:
    """Return the API servers behind the Service `kubernetes`, on Nodes that read EndpointSlices."""
    found = slices.get(API_SERVERS)
    return () if found is None else tuple(a for endpoint in found.endpoints for a in endpoint.addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A ServiceExport, and what it exports."""

    meta: Meta
    service: Service | None
    slices: tuple[EndpointSlice, ...]


def exports_of(
    exports: Mapping[str, ServiceExport], services: Mapping[str, Service], slices: Mapping[str, EndpointSlice]
) -> dict[str, Export]:
    """Return the ServiceExports with what they export."""
    found: dict[str, list[EndpointSlice]] = {key: [] for key in exports}
    for one in slices.values():
        of_service = found.get(f"{one.meta.namespace}/{one.service_name}")
        if of_service is not None:
            of_service.append(one)
    return {
        key: Export(meta=export.meta, service=services.get(key), slices=tuple(found[key]))
        for key, export in exports.items()
    }


class Places:
    """Where endpoints may be: on Nodes of this cluster, but not where Kubernetes listens."""

    def __init__(
        self,
        networks: tuple[Network, ...],
        pods: tuple[int, ...],
        nodes: tuple[tuple[Address, str], ...] = (),
        node_cidrs: tuple[Network, ...] = (),
    ) -> None:
        """`networks` and `pods` (IPv4 addresses) lie on Nodes, `nodes` are the Nodes' own addresses.

        `node_cidrs` are their Pod CIDRs: the first two addresses of one are a Node's bridge's.
        """
        self._networks, self._pods = NetworkSet(networks), frozenset(pods)
        bridges = (int(cidr.network_address) + n for cidr in node_cidrs for n in (0, 1))
        self._nodes = frozenset((*(int(address) for address, _ in nodes if address.version == 4), *bridges))

    def holds(self, address: Address) -> bool:
        """Tell whether an IPv4 address is a Pod's or Node's of this cluster."""
        return int(address) in self._pods or int(address) in self._networks

    def kubernetes(self, address: Address, port: int) -> bool:
        """Tell whether Kubernetes may listen there."""
        return port in KUBERNETES_PORTS and int(address) in self._nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedExport:
    """What a ServiceExport exports if no older one has the address; `ports` may be none."""

    meta: Meta
    ports: tuple[ExportedPort, ...]
    problems: tuple[Problem, ...]


def check_export(export: Export, service_cidrs: tuple[Network, ...], places: Places) -> CheckedExport:
    """Return what can be exported."""
    problems: list[Problem] = []
    service, address = export.service, _address(export, service_cidrs, problems)
    ports: tuple[ExportedPort, ...] = ()
    if service is not None and address is not None:
        chosen = ((port, *_endpoints(export, port, places, problems)) for port in service.ports)
        ports = tuple(
            ExportedPort(
                name=f"{service.meta.key}:{port.port}/{port.protocol.lower()}",
                address=address,
                protocol=port.protocol.lower(),
                port=port.port,
                client_ip_affinity=service.client_ip_affinity,
                endpoints=tuple(endpoints),
                nodes=tuple(endpoints.values()),
                old_endpoints=old,
            )
            for port, endpoints, old in chosen
        )
    return CheckedExport(meta=export.meta, ports=ports, problems=tuple(problems))


def exported_ports(exports: Mapping[str, CheckedExport]) -> tuple[dict[str, ExportedPort], tuple[Problem, ...]]:
    """Return the exported ports by name: of two Services with one address and port, the older one's."""
    problems: set[Problem] = set()
    ports: dict[str, ExportedPort] = {}
    holders: dict[tuple[Address, str, int], str] = {}
    for export in sorted(exports.values(), key=lambda export: seniority(export.meta)):
        problems.update(export.problems)
        for port in export.ports:
            holder = holders.setdefault((port.address, port.protocol, port.port), export.meta.key)
            if holder == export.meta.key:
                ports[port.name] = port
                continue
            message = f"{port.address} port {port.port}/{port.protocol} belongs to Service {holder}: not used"
            problems.add(export.meta.problem("", "DuplicateAddress", message))
    leading = Counter((port.protocol, endpoint) for port in ports.values() for endpoint in port.endpoints)
    for name, port in ports.items():
        if any(leading[port.protocol, endpoint] > 1 for endpoint in port.endpoints):
            ports[name] = replace(port, shares_endpoints=True)
    return {name: ports[name] for name in sorted(ports)}, tuple(problems)


def local_endpoints(ports: Iterable[ExportedPort], networks: Iterable[Network]) -> set[Place]:
    """Return the TCP endpoints of exported Services that lie in these networks: those of one Node."""
    here = NetworkSet(networks)
    return {
        (address, number)
        for port in ports
        if port.protocol == "tcp"
        for address, number in (*port.endpoints, *port.old_endpoints)
        if int(address) in here
    }


def _address(export: Export, cidrs: tuple[Network, ...], problems: list[Problem]) -> Address | None:
    """Return the ClusterIP that is served; a problem says why there is none."""
    service, meta = export.service, export.meta
    if service is None:
        problems.append(meta.problem("", "NoService", "there is no Service of this name and namespace"))
        return None
    if not service.cluster_ips:
        message = "the Service has no ClusterIP (headless or ExternalName): it is not served to other clusters"
        problems.append(meta.problem("", "NoClusterIP", message))
        return None
    address = next((a for a in service.cluster_ips if refuse_address(a) is None), None)
    if address is None:
        message = "the Service has no IPv4 ClusterIP: IPv6 is not supported yet"
        problems.append(meta.problem("", "IPv6NotSupported", message))
        return None
    if not any(contains(cidr, address) for cidr in cidrs):
        message = f"its ClusterIP {address} lies in no Gateway's serviceCIDR: other clusters do not reach it"
        problems.append(meta.problem("", "OutsideServiceCIDR", message, Severity.WARNING))
    return address


def _endpoints(
    export: Export, port: ServicePort, places: Places, problems: list[Problem]
) -> tuple[dict[Place, str], tuple[Place, ...]]:
    """Return the endpoints that get new connections, in order, with their Nodes' names, and all others.

    Ready endpoints get them, or serving ones when none is ready (so that a rollout never serves nobody).

    Whoever writes EndpointSlices says what an endpoint is. Outside of the cluster there is none, nor, of a Service
    that a namespace user may have made, where Kubernetes listens.
    """
    anybodys = export.meta.namespace != "kube-system" and export.meta.key != API_SERVERS
    ready: dict[Place, str] = {}
    serving: dict[Place, str] = {}
    listed: set[Place] = set()
    elsewhere = kubernetes = 0
    for found in export.slices:
        # the Service's port and the slice's are joined by name: target ports may differ per Pod
        numbers = [p.port for p in found.ports if p.name == port.name and p.protocol == port.protocol]
        for endpoint in found.endpoints:
            serves = endpoint.ready or endpoint.serving
            for address in endpoint.addresses:
                if refuse_address(address) is not None or not places.holds(address):
                    elsewhere += serves and address.version == 4
                    continue
                theirs = {(address, number) for number in numbers if number is not None}
                refused = {place for place in theirs if anybodys and places.kubernetes(*place)}
                kubernetes += len(refused) if serves else 0
                usable = dict.fromkeys(theirs - refused, endpoint.node_name)
                listed.update(usable)
                if serves:
                    serving |= usable
                if endpoint.ready:
                    ready |= usable
    chosen = sorted((ready or serving).items())
    if elsewhere:
        message = f"{elsewhere} endpoints of port {port.port} match no Pod or Node of this cluster: not used"
        problems.append(export.meta.problem("", "EndpointElsewhere", message, Severity.WARNING))
    if kubernetes:
        message = f"{kubernetes} endpoints of port {port.port} are where Kubernetes listens on a Node: not used"
        problems.append(export.meta.problem("", "EndpointOfKubernetes", message, Severity.WARNING))
    if len(chosen) > MAX_ENDPOINTS:
        message = f"port {port.port} has {len(chosen)} endpoints: the first {MAX_ENDPOINTS} are used"
        problems.append(export.meta.problem("", "TooManyEndpoints", message, Severity.WARNING))
    others = sorted(listed - dict(chosen).keys())
    return dict(chosen[:MAX_ENDPOINTS]), tuple(others[:MAX_ENDPOINTS])
