"""Kubernetes' own kinds, as far as they are read or written. Source: core/v1, discovery/v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mcagent.model.api.base import NO_FIELDS, NO_TEXTS, ApiObject, ApiPart, Condition
from mcagent.model.objects import IpProtocol, Kind

PortNumber = Annotated[int, Meta(ge=1, le=65535)]


class ApiNamespace(ApiObject, frozen=True):
    """v1 Namespace."""

    KIND: ClassVar[Kind] = Kind.NAMESPACE


class ServiceAccount(ApiObject, frozen=True):
    """v1 ServiceAccount."""

    KIND: ClassVar[Kind] = Kind.SERVICE_ACCOUNT


class ConfigMap(ApiObject, frozen=True):
    """v1 ConfigMap."""

    KIND: ClassVar[Kind] = Kind.CONFIG_MAP

    data: Mapping[str, str] = NO_TEXTS


class Secret(ApiObject, frozen=True):
    """v1 Secret without its data, which `SecretData` has."""

    KIND: ClassVar[Kind] = Kind.SECRET


class SecretData(Secret, frozen=True):
    """v1 Secret. `data` are base64 texts."""

    data: Mapping[str, str] = NO_TEXTS


# --- Nodes and Pods ---------------------------------------------------------------------------------------


class NodeAddress(ApiPart, frozen=True):
    """An address of a Node."""

    type: str = ""
    address: str = ""


class NodeSpec(ApiPart, frozen=True):
    """v1 NodeSpec."""

    pod_cidr: str = ""
    pod_cidrs: tuple[str, ...] = ()
    unschedulable: bool = False


class NodeStatus(ApiPart, frozen=True):
    """v1 NodeStatus."""

    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()


class ApiNode(ApiObject, frozen=True):
    """v1 Node."""

    KIND: ClassVar[Kind] = Kind.NODE

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ContainerPort(ApiPart, frozen=True):
    """A port of a container."""

    container_port: PortNumber
    name: str = ""
    protocol: IpProtocol = IpProtocol.TCP


class Container(ApiPart, frozen=True):
    """A container of a Pod."""

    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class PodSpec(ApiPart, frozen=True):
    """v1 PodSpec."""

    node_name: str = ""
    host_network: bool = False
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()

    @property
    def serving_containers(self) -> tuple[Container, ...]:
        """The containers that run as long as the Pod: its own, and sidecars (init containers that restart)."""
        sidecars = (container for container in self.init_containers if container.restart_policy == "Always")
        return (*self.containers, *sidecars)


class PodIP(ApiPart, frozen=True):
    """An address of a Pod."""

    ip: str = ""


class PodStatus(ApiPart, frozen=True):
    """v1 PodStatus."""

    phase: str = ""
    pod_ip: str = ""
    pod_ips: tuple[PodIP, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether all containers have ended for good: the addresses may be another Pod's by now."""
        return self.phase in ("Succeeded", "Failed")


class ApiPod(ApiObject, frozen=True):
    """v1 Pod."""

    KIND: ClassVar[Kind] = Kind.POD

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# --- Services ---------------------------------------------------------------------------------------------


# `omit_defaults=False`: the protocol of a port is written, and compared, also where it is TCP.
class ApiServicePort(ApiPart, frozen=True, omit_defaults=False):
    """A port of a Service, or of a ServiceImport."""

    port: PortNumber
    name: str = ""
    protocol: IpProtocol = IpProtocol.TCP
    app_protocol: str = ""
    target_port: int | str | None = None


class ClientIPConfig(ApiPart, frozen=True):
    """v1 ClientIPConfig."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(ApiPart, frozen=True):
    """v1 SessionAffinityConfig."""

    client_ip: ClientIPConfig = ClientIPConfig()


class ServiceFields(ApiPart, frozen=True):
    """The fields that v1 ServiceSpec and ServiceImportSpec have in common."""

    type: str = ""
    ports: tuple[ApiServicePort, ...] = ()
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig = SessionAffinityConfig()
    internal_traffic_policy: str = ""
    traffic_distribution: str = ""
    ip_families: tuple[str, ...] = ()


class ApiServiceSpec(ServiceFields, frozen=True):
    """v1 ServiceSpec."""

    cluster_ip: str = ""
    cluster_ips: tuple[str, ...] = ()
    selector: Mapping[str, str] = NO_TEXTS


class ServiceCidrSpec(ApiPart, frozen=True):
    """networking/v1 ServiceCIDRSpec."""

    cidrs: tuple[str, ...] = ()


class ServiceCidr(ApiObject, frozen=True):
    """networking.k8s.io/v1 ServiceCIDR."""

    KIND: ClassVar[Kind] = Kind.SERVICE_CIDR

    spec: ServiceCidrSpec = ServiceCidrSpec()


class ApiService(ApiObject, frozen=True):
    """v1 Service."""

    KIND: ClassVar[Kind] = Kind.SERVICE

    spec: ApiServiceSpec = ApiServiceSpec()


# --- endpoints --------------------------------------------------------------------------------------------


class ApiEndpointPort(ApiPart, frozen=True, omit_defaults=False):
    """A port of an EndpointSlice or of Endpoints; None in an EndpointSlice: all ports."""

    name: str = ""
    port: PortNumber | None = None
    protocol: IpProtocol = IpProtocol.TCP
    app_protocol: str = ""


class EndpointAddress(ApiPart, frozen=True):
    """An address of Endpoints."""

    ip: str = ""
    hostname: str = ""


class EndpointSubset(ApiPart, frozen=True):
    """Addresses, and the ports that all of them serve."""

    addresses: tuple[EndpointAddress, ...] = ()
    ports: tuple[ApiEndpointPort, ...] = ()


class Subsets(ApiPart, frozen=True):
    """The endpoints that a ResourceExport or ResourceImport carries."""

    subsets: tuple[EndpointSubset, ...] = ()


class Endpoints(ApiObject, frozen=True):
    """v1 Endpoints."""

    KIND: ClassVar[Kind] = Kind.ENDPOINTS

    subsets: tuple[EndpointSubset, ...] = ()


class EndpointConditions(ApiPart, frozen=True):
    """discovery/v1 EndpointConditions; None: unknown."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ObjectReference(ApiPart, frozen=True):
    """v1 ObjectReference."""

    kind: str = ""
    namespace: str = ""
    name: str = ""


class ApiEndpoint(ApiPart, frozen=True):
    """discovery/v1 Endpoint."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str = ""
    node_name: str = ""
    zone: str = ""
    target_ref: ObjectReference = ObjectReference()
    hints: Mapping[str, Any] = NO_FIELDS

    @property
    def is_ready(self) -> bool:
        """Whether the endpoint takes connections: unknown means ready, says the API."""
        return self.conditions.ready is not False


class ApiEndpointSlice(ApiObject, frozen=True):
    """discovery.k8s.io/v1 EndpointSlice."""

    KIND: ClassVar[Kind] = Kind.ENDPOINT_SLICE

    address_type: str = ""
    endpoints: tuple[ApiEndpoint, ...] = ()
    ports: tuple[ApiEndpointPort, ...] = ()
