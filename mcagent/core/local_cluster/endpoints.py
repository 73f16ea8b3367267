"""Which endpoints behind a port of an exported Service get connections from other clusters, and why others do not.

The one judge: gateways make flows of `PortEndpoints.usable`, and the controller of this cluster publishes how many
there are. Knows EndpointSlices, and where the Nodes and Pods of this cluster are; must not know exports or flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import refuse_address
from mcagent.model.net import Address, Network, NetworkSet
from mcagent.model.objects import Endpoint, EndpointSlice, Meta, ServicePort
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


def users_may_write_slices(service: Meta) -> bool:
    """Tell whether users may write the EndpointSlices of a Service; only administrators control the others."""
    return service.namespace != "kube-system" and service.key != API_SERVERS


class EndpointRules:
    """Rules for endpoints: they are on Nodes of this cluster, not ports of Kubernetes components, and Pods'."""

    def __init__(
        self,
        networks: Iterable[Network],
        pods: Iterable[int],
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

    def is_local(self, address: Address, endpoint: Endpoint) -> bool:
        """Tell whether an IPv4 address of an endpoint belongs to a Pod or Node of this cluster."""
        return int(address) in self._networks or self.is_pod(address, endpoint)

    def is_pod(self, address: Address, endpoint: Endpoint) -> bool:  # noqa: ARG002
        """Tell whether an address is that of an individual Pod."""
        return int(address) in self._pods

    def is_outside_cidrs(self, endpoint: Endpoint) -> bool:
        """Tell whether an endpoint that is not local is a Pod that `podRouting: perPod` would find."""
        return bool(endpoint.pod) and endpoint.node_name in self._nodes_by_cidr

    def is_kubernetes(self, address: Address, port: int) -> bool:
        """Tell whether a component of Kubernetes may listen on an address and port."""
        return port in KUBERNETES_PORTS and int(address) in self._nodes

    def is_without_pod(self, address: Address, namespace: str, pod: str) -> bool:
        """Tell whether an address is a Node's and the Pod to which the endpoint refers does not have it."""
        return int(address) in self._nodes and not self.has_address(namespace, pod, address)

    def has_address(self, namespace: str, pod: str, address: Address) -> bool:
        """Tell whether a Pod has a Node's address."""
        return address in self._pods_at_nodes.get(f"{namespace}/{pod}", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PortEndpoints:
    """The endpoints behind a port of a Service."""

    usable: Mapping[EndpointAddress, str]  # for new connections: sorted, with their Nodes' names
    old: tuple[EndpointAddress, ...]  # listed, but not for new connections
    problems: tuple[Problem, ...]  # why serving endpoints are not usable


def port_endpoints(
    service: Meta, port: ServicePort, slices: Iterable[EndpointSlice], rules: EndpointRules
) -> PortEndpoints:
    """Return the endpoints of a port. `service`: the ServiceExport, which has the name of the Service.

    New connections go to ready endpoints, or to serving ones if none is ready (so that a rollout has no outage).

    Users of a namespace may write EndpointSlices. So endpoints outside the cluster are ignored, and, unless
    administrators control the Service, also ports of Kubernetes components and addresses of Nodes that no Pod of
    the namespace has: a user who may create Pods in the host network may use the Nodes' ports.
    """
    restricted = users_may_write_slices(service)
    ready: dict[EndpointAddress, str] = {}
    serving: dict[EndpointAddress, str] = {}
    listed: set[EndpointAddress] = set()
    without_port: set[Address] = set()
    foreign = kubernetes = without_pod = ipv6 = 0
    outside: dict[str, Address] = {}  # by Node
    for endpoint_slice in slices:
        numbers = endpoint_slice.numbers_of(port)
        for endpoint in endpoint_slice.endpoints:
            serves = endpoint.ready or endpoint.serving
            for address in endpoint.addresses:
                if refuse_address(address) is not None or not rules.is_local(address, endpoint):
                    if address.version == 6:
                        ipv6 += serves
                    elif serves and refuse_address(address) is None and rules.is_outside_cidrs(endpoint):
                        outside[endpoint.node_name] = address
                    else:
                        foreign += serves
                    continue
                if restricted and rules.is_without_pod(address, service.namespace, endpoint.pod):
                    without_pod += serves
                    continue
                places = {(address, number) for number in numbers}
                if serves and not places:
                    without_port.add(address)
                refused = {place for place in places if restricted and rules.is_kubernetes(*place)}
                kubernetes += len(refused) if serves else 0
                usable = dict.fromkeys(places - refused, endpoint.node_name)
                listed.update(usable)
                if serves:
                    serving |= usable
                if endpoint.ready:
                    ready |= usable
    chosen = sorted((ready or serving).items())
    problems: list[Problem] = []

    def report(reason: str, message: str, severity: Severity = Severity.WARNING) -> None:
        problems.append(service.problem("", reason, message, severity))

    if foreign:
        message = f"{foreign} endpoints of port {port.port} match no Pod or Node of this cluster: not used"
        report("EndpointElsewhere", message)
    if outside:
        name, address = min(outside.items())
        message = (
            f"endpoints of port {port.port} are outside of their Nodes' Pod CIDRs ({address} on Node {name}; "
            f"Nodes: {len(outside)}): not used; podRouting: perPod finds such Pods"
        )
        report("PodsOutsideCIDRs", message, Severity.ERROR)
    if kubernetes:
        message = f"{kubernetes} endpoints of port {port.port} are where Kubernetes listens on a Node: not used"
        report("EndpointOfKubernetes", message)
    if without_pod:
        message = (
            f"{without_pod} endpoints of port {port.port} are at a Node's address, and refer to no Pod of "
            f"namespace {service.namespace} in that Node's network (targetRef): not used"
        )
        report("EndpointOfNode", message)
    without_port -= {address for address, _ in listed}  # other slices of the address have the port
    if without_port:
        message = (
            f"{len(without_port)} endpoints of port {port.port} are in EndpointSlices without a port "
            f'"{port.name}" ({port.protocol}): not used'
        )
        report("EndpointWithoutPort", message)
    if ipv6 and not listed:  # a Service of both families has its IPv4 addresses in other slices
        message = (
            f"{ipv6} endpoints of port {port.port} have IPv6 addresses, which are not supported yet: not used"
        )
        report("EndpointIPv6", message)
    if len(chosen) > MAX_ENDPOINTS:
        message = f"port {port.port} has {len(chosen)} endpoints: the first {MAX_ENDPOINTS} are used"
        report("TooManyEndpoints", message)
    usable_endpoints = dict(chosen[:MAX_ENDPOINTS])
    old = sorted(listed - usable_endpoints.keys())
    return PortEndpoints(usable=usable_endpoints, old=tuple(old[:MAX_ENDPOINTS]), problems=tuple(problems))
