"""Exported Services of this cluster: the endpoints behind each exported address and port.

`check_export` checks one ServiceExport with its Service and EndpointSlices; `exported_ports` resolves conflicts
between exports. Other clusters reach exported Services only. Must not know flows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mcagent.core.addresses.rules import refuse_address
from mcagent.core.local_cluster.nodes import seniority
from mcagent.model.net import Address, Network, NetworkSet, contains
from mcagent.model.node_state import ExportedPort
from mcagent.model.objects import Endpoint, EndpointSlice, Meta, Service, ServiceExport, ServicePort
from mcagent.model.problem import Problem, Severity

EndpointAddress = tuple[Address, int]  # address and port
# One bucket takes about 150 bytes of the 64 KiB that an OpenFlow message can have.
MAX_ENDPOINTS = 256
# Ports of Kubernetes components on a Node (kubernetes.io, "Ports and Protocols"; flag defaults of kubelet and
# kube-proxy): etcd, API server, kubelet, kube-proxy, controller manager, scheduler. Only Services of kube-system
# and default/kubernetes, which administrators control, may have such endpoints.
KUBERNETES_PORTS = frozenset({2379, 2380, 6443, 10248, 10249, 10250, 10255, 10256, 10257, 10259})
# The name that the API server gives the EndpointSlice of its own Service (pkg/controlplane/reconcilers).
API_SERVERS = "default/kubernetes"


def api_servers(slices: Mapping[str, EndpointSlice]) -> tuple[Address, ...]:
    """Return the endpoints of the Service `kubernetes`; none on Nodes that do not watch EndpointSlices."""
    own_slice = slices.get(API_SERVERS)
    return () if own_slice is None else tuple(a for endpoint in own_slice.endpoints for a in endpoint.addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportInput:
    """A ServiceExport with the Service and EndpointSlices of its name."""

    meta: Meta
    address: Address | None  # its export address
    service: Service | None
    slices: tuple[EndpointSlice, ...]


def exports_of(
    exports: Mapping[str, ServiceExport], services: Mapping[str, Service], slices: Mapping[str, EndpointSlice]
) -> dict[str, ExportInput]:
    """Join each ServiceExport with the Service and EndpointSlices of its name, by "namespace/name"."""
    slices_by_key: dict[str, list[EndpointSlice]] = {key: [] for key in exports}
    for endpoint_slice in slices.values():
        service_slices = slices_by_key.get(f"{endpoint_slice.meta.namespace}/{endpoint_slice.service_name}")
        if service_slices is not None:
            service_slices.append(endpoint_slice)
    return {
        key: ExportInput(
            meta=export.meta, address=export.address, service=services.get(key), slices=tuple(slices_by_key[key])
        )
        for key, export in exports.items()
    }


def addresses_of_nodes(nodes: tuple[tuple[Address, str], ...], node_cidrs: tuple[Network, ...]) -> frozenset[int]:
    """Return the Nodes' own IPv4 addresses: of Node objects, and the first two of each Pod CIDR (CNI's bridge)."""
    bridges = (int(cidr.network_address) + n for cidr in node_cidrs for n in (0, 1))
    return frozenset((*(int(address) for address, _ in nodes if address.version == 4), *bridges))


def pods_at_nodes(export: ExportInput, nodes: frozenset[int]) -> frozenset[str]:
    """Return the Pods ("namespace/name") to which endpoints at Nodes' addresses refer, where these matter."""
    if not _is_restricted(export):
        return frozenset()
    return frozenset(
        f"{export.meta.namespace}/{endpoint.pod}"
        for endpoint_slice in export.slices
        for endpoint in endpoint_slice.endpoints
        if endpoint.pod and any(int(address) in nodes for address in endpoint.addresses)
    )


def users_may_write_slices(namespace: str, service: str) -> bool:
    """Tell whether users may write the EndpointSlices of a Service; only administrators control the others."""
    return namespace != "kube-system" and f"{namespace}/{service}" != API_SERVERS


def _is_restricted(export: ExportInput) -> bool:
    return users_may_write_slices(export.meta.namespace, export.meta.name)


class EndpointRules:
    """Rules for endpoints: they are on Nodes of this cluster, not ports of Kubernetes components, and Pods'."""

    def __init__(
        self,
        networks: tuple[Network, ...],
        pods: tuple[int, ...],
        nodes: frozenset[int],
        pods_at_nodes: Mapping[str, tuple[Address, ...]],
        nodes_by_cidr: frozenset[str],
    ) -> None:
        """Take the networks of Nodes, individual Pods and the Nodes' own addresses (IPv4, as integers).

        `pods_at_nodes`: the addresses of Pods to which endpoints at Nodes' addresses refer, by "namespace/name".
        `nodes_by_cidr`: the Nodes whose Pods are located by the Node's Pod CIDRs.
        """
        self._nodes_by_cidr = nodes_by_cidr
        self._networks, self._pods = NetworkSet(networks), frozenset(pods)
        self._nodes, self._pods_at_nodes = nodes, pods_at_nodes

    def is_local(self, address: Address) -> bool:
        """Tell whether an IPv4 address belongs to a Pod or Node of this cluster."""
        return int(address) in self._pods or int(address) in self._networks

    def is_outside_cidrs(self, endpoint: Endpoint) -> bool:
        """Tell whether an endpoint that is not local is a Pod that `podRouting: perPod` would find."""
        return bool(endpoint.pod) and endpoint.node_name in self._nodes_by_cidr

    def is_kubernetes(self, address: Address, port: int) -> bool:
        """Tell whether a component of Kubernetes may listen on an address and port."""
        return port in KUBERNETES_PORTS and int(address) in self._nodes

    def is_without_pod(self, address: Address, pod: str) -> bool:
        """Tell whether an address is a Node's and a Pod, "namespace/name", does not have it."""
        return int(address) in self._nodes and address not in self._pods_at_nodes.get(pod, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedExport:
    """The ports of a ServiceExport, maybe none, before conflicts with older exports are resolved."""

    meta: Meta
    ports: tuple[ExportedPort, ...]
    problems: tuple[Problem, ...]


def check_export(export: ExportInput, service_cidrs: tuple[Network, ...], rules: EndpointRules) -> CheckedExport:
    """Check one ServiceExport. `service_cidrs`: as other clusters use them.

    An address outside of them is reported, but accepted.
    """
    problems: list[Problem] = []
    service, address = export.service, _address(export, service_cidrs, problems)
    ports: tuple[ExportedPort, ...] = ()
    if service is not None and address is not None:
        chosen = ((port, *_endpoints(export, port, rules, problems)) for port in service.ports)
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
    """Return the exported ports by name. Of two exports with the same address and port the older one is used."""
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
    uses = Counter((port.protocol, endpoint) for port in ports.values() for endpoint in port.endpoints)
    for name, port in ports.items():
        if any(uses[port.protocol, endpoint] > 1 for endpoint in port.endpoints):
            ports[name] = replace(port, shares_endpoints=True)
    return {name: ports[name] for name in sorted(ports)}, tuple(problems)


def local_endpoints(ports: Iterable[ExportedPort], networks: Iterable[Network]) -> set[EndpointAddress]:
    """Return the TCP endpoints of exported Services in the networks of a Node."""
    addresses = NetworkSet(networks)
    return {
        (address, number)
        for port in ports
        if port.protocol == "tcp"
        for address, number in (*port.endpoints, *port.old_endpoints)
        if int(address) in addresses
    }


def _address(export: ExportInput, cidrs: tuple[Network, ...], problems: list[Problem]) -> Address | None:
    """Return the export address if it lies in `cidrs`, else the ClusterIP.

    None if the Service has no ClusterIP, with a problem if that is a fault.
    """
    service, meta = export.service, export.meta
    if service is None:
        problems.append(meta.problem("", "NoService", "there is no Service of this name and namespace"))
        return None
    if not service.cluster_ips:
        # Its Pods are exported, or nothing: the controller decides, and the ServiceExport has the reason.
        return None
    address = next((a for a in service.cluster_ips if refuse_address(a) is None), None)
    if address is None:
        message = "the Service has no IPv4 ClusterIP: IPv6 is not supported yet"
        problems.append(meta.problem("", "IPv6NotSupported", message))
        return None
    if export.address is not None and any(contains(cidr, export.address) for cidr in cidrs):
        return export.address
    if not any(contains(cidr, address) for cidr in cidrs):
        message = f"its ClusterIP {address} lies in no Gateway's serviceCIDR: other clusters do not reach it"
        problems.append(meta.problem("", "OutsideServiceCIDR", message, Severity.WARNING))
    return address


def _endpoints(
    export: ExportInput, port: ServicePort, rules: EndpointRules, problems: list[Problem]
) -> tuple[dict[EndpointAddress, str], tuple[EndpointAddress, ...]]:
    """Return the endpoints for new connections, sorted, with their Nodes' names, and the old endpoints.

    New connections go to ready endpoints, or to serving ones if none is ready (so that a rollout has no outage).

    Users of a namespace may write EndpointSlices. So endpoints outside the cluster are ignored, and, unless
    administrators control the Service, also ports of Kubernetes components and addresses of Nodes that no Pod of
    the namespace has: a user who may create Pods in the host network may use the Nodes' ports.
    """
    restricted = _is_restricted(export)
    ready: dict[EndpointAddress, str] = {}
    serving: dict[EndpointAddress, str] = {}
    listed: set[EndpointAddress] = set()
    foreign = kubernetes = without_pod = 0
    outside: dict[str, Address] = {}  # by Node
    for endpoint_slice in export.slices:
        # the Service's port and the slice's are joined by name: target ports may differ per Pod
        numbers = [p.port for p in endpoint_slice.ports if p.name == port.name and p.protocol == port.protocol]
        for endpoint in endpoint_slice.endpoints:
            serves = endpoint.ready or endpoint.serving
            for address in endpoint.addresses:
                if refuse_address(address) is not None or not rules.is_local(address):
                    if serves and refuse_address(address) is None and rules.is_outside_cidrs(endpoint):
                        outside[endpoint.node_name] = address
                    else:
                        foreign += serves and address.version == 4
                    continue
                if restricted and rules.is_without_pod(address, f"{export.meta.namespace}/{endpoint.pod}"):
                    without_pod += serves
                    continue
                places = {(address, number) for number in numbers if number is not None}
                refused = {place for place in places if restricted and rules.is_kubernetes(*place)}
                kubernetes += len(refused) if serves else 0
                usable = dict.fromkeys(places - refused, endpoint.node_name)
                listed.update(usable)
                if serves:
                    serving |= usable
                if endpoint.ready:
                    ready |= usable
    chosen = sorted((ready or serving).items())
    if foreign:
        message = f"{foreign} endpoints of port {port.port} match no Pod or Node of this cluster: not used"
        problems.append(export.meta.problem("", "EndpointElsewhere", message, Severity.WARNING))
    if outside:
        name, address = min(outside.items())
        message = (
            f"endpoints of port {port.port} are outside of their Nodes' Pod CIDRs ({address} on Node {name}; "
            f"Nodes: {len(outside)}): not used; podRouting: perPod finds such Pods"
        )
        problems.append(export.meta.problem("", "PodsOutsideCIDRs", message))
    if kubernetes:
        message = f"{kubernetes} endpoints of port {port.port} are where Kubernetes listens on a Node: not used"
        problems.append(export.meta.problem("", "EndpointOfKubernetes", message, Severity.WARNING))
    if without_pod:
        message = (
            f"{without_pod} endpoints of port {port.port} are at a Node's address, and refer to no Pod of "
            f"namespace {export.meta.namespace} in that Node's network (targetRef): not used"
        )
        problems.append(export.meta.problem("", "EndpointOfNode", message, Severity.WARNING))
    if len(chosen) > MAX_ENDPOINTS:
        message = f"port {port.port} has {len(chosen)} endpoints: the first {MAX_ENDPOINTS} are used"
        problems.append(export.meta.problem("", "TooManyEndpoints", message, Severity.WARNING))
    old_endpoints = sorted(listed - dict(chosen).keys())
    return dict(chosen[:MAX_ENDPOINTS]), tuple(old_endpoints[:MAX_ENDPOINTS])
