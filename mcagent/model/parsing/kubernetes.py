"""Objects of Kubernetes itself: Node, Pod, Namespace, Service, EndpointSlice."""

from __future__ import annotations

from collections.abc import Sequence

from mcagent.model.api import kubernetes as api
from mcagent.model.net import Address
from mcagent.model.objects import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Meta,
    Namespace,
    Node,
    Pod,
    Service,
    ServicePort,
)
from mcagent.model.parsing import labels as label_texts
from mcagent.model.parsing.field import Field, printable
from mcagent.model.parsing.fields import (
    addresses,
    annotation,
    bounded,
    networks,
    optional_address,
    optional_network,
    read_or,
)
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION, read_node_key
from mcagent.model.policies import PROTOCOLS
from mcagent.model.problem import Problem
from mcagent.model.traffic import READY_ANNOTATION, read_ready

GATEWAY_ANNOTATION = "multicluster.antrea.io/gateway"
GATEWAY_IP_ANNOTATION = "multicluster.antrea.io/gateway-ip"
DRAIN_ANNOTATION = "mcagent.io/drain"  # "true" on a Node: its gateway is to hand over
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "mcagent"
ZONE_LABEL = "topology.kubernetes.io/zone"
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
IMPORTED_NAME_LABEL = "multicluster.kubernetes.io/service-name"
SOURCE_CLUSTER_LABEL = "multicluster.kubernetes.io/source-cluster"


def parse_node(meta: Meta, obj: api.ApiNode, problems: list[Problem]) -> Node:
    """Node: without a Ready condition (a hand-written manifest) it counts as ready."""
    subject, spec, status = meta.subject, obj.spec, obj.status
    internal: dict[Address, None] = {}
    external: dict[Address, None] = {}
    for number, item in bounded(status.addresses, subject, "status.addresses"):
        field = Field(subject, item.address, f"status.addresses[{number}].address")
        if item.type == "InternalIP":
            internal[field.address()] = None
        elif item.type == "ExternalIP" and (address := optional_address(field, problems)) is not None:
            external[address] = None
    pod_cidrs = networks(spec.pod_cidrs, subject, "spec.podCIDRs", problems)
    if not pod_cidrs:
        single = optional_network(Field(subject, spec.pod_cidr, "spec.podCIDR"), problems)
        pod_cidrs = () if single is None else (single,)
    return Node(
        meta=meta,
        internal_ips=tuple(internal),
        external_ips=tuple(external),
        pod_cidrs=pod_cidrs,
        ready=all(condition.is_true for condition in status.conditions if condition.type == "Ready"),
        unschedulable=spec.unschedulable,
        gateway_annotation=obj.annotation(GATEWAY_ANNOTATION) is not None,
        gateway_ip=optional_address(annotation(obj, GATEWAY_IP_ANNOTATION), problems),
        drain=obj.annotation(DRAIN_ANNOTATION) == "true",
        zone=printable(obj.labels.get(ZONE_LABEL, "")),
        wireguard=read_or(
            annotation(obj, NODE_KEY_ANNOTATION), problems, lambda text: read_node_key(text, subject), None
        ),
    )


def parse_pod(meta: Meta, obj: api.ApiPod, problems: list[Problem]) -> Pod | None:  # noqa: ARG001
    """Pod: None when it has no address (finished, not scheduled, no address yet)."""
    spec, status = obj.spec, obj.status
    node_name = Field(meta.subject, spec.node_name, "spec.nodeName").name("")
    if status.is_finished or not node_name:
        return None
    ips = addresses([item.ip for item in status.pod_ips], meta.subject, "status.podIPs")
    if not ips and status.pod_ip:
        ips = (Field(meta.subject, status.pod_ip, "status.podIP").address(),)
    if not ips:
        return None
    if spec.host_network:  # the addresses that the kubelet writes are then the Node's
        return Pod(meta=meta, node_name=node_name, host_ips=ips)
    ports = tuple(
        (port.name, PROTOCOLS[port.protocol], port.container_port)
        for container in spec.serving_containers
        for port in container.ports
        if port.name
    )
    return Pod(meta=meta, node_name=node_name, ips=ips, labels=label_texts.joined(obj.labels), ports=ports)


def parse_namespace(meta: Meta, obj: api.ApiNamespace, problems: list[Problem]) -> Namespace:  # noqa: ARG001
    """Namespace: its labels, with its name among them."""
    return Namespace(meta=meta, labels=label_texts.namespace_part(meta.name, obj.labels))


def parse_service(meta: Meta, obj: api.ApiService, problems: list[Problem]) -> Service:  # noqa: ARG001
    """Service: a headless one ("None") and an ExternalName one have no ClusterIPs."""
    spec, path = obj.spec, "spec.clusterIPs" if obj.spec.cluster_ips else "spec.clusterIP"
    cluster_ips = () if spec.type == "ExternalName" else spec.cluster_ips or (spec.cluster_ip,)
    return Service(
        meta=meta,
        cluster_ips=addresses(["" if text == "None" else text for text in cluster_ips], meta.subject, path),
        ports=service_ports(meta, spec.ports),
        client_ip_affinity=spec.session_affinity == "ClientIP",
    )


def service_ports(meta: Meta, ports: Sequence[api.ApiServicePort]) -> tuple[ServicePort, ...]:
    """Return the ports of a Service, or of a ServiceImport."""
    return tuple(
        ServicePort(name=printable(item.name), port=item.port, protocol=item.protocol)
        for _, item in bounded(ports, meta.subject, "spec.ports")
    )


def _pod_of(reference: api.ObjectReference, namespace: str) -> str:
    """Return the name of the Pod that an endpoint refers to; "" for another kind or another namespace."""
    if reference.kind != "Pod" or (reference.namespace or namespace) != namespace:
        return ""
    return printable(reference.name)


def parse_endpoint_slice(meta: Meta, obj: api.ApiEndpointSlice, problems: list[Problem]) -> EndpointSlice | None:
    """EndpointSlice: None when it belongs to no Service or holds host names (addressType FQDN)."""
    service_name = _label(obj, SERVICE_NAME_LABEL)
    if not service_name or obj.address_type == "FQDN":
        return None
    return EndpointSlice(
        meta=meta,
        service_name=service_name,
        imported_name=_label(obj, IMPORTED_NAME_LABEL),
        source_cluster=_label(obj, SOURCE_CLUSTER_LABEL),
        told_ready=read_or(annotation(obj, READY_ANNOTATION), problems, read_ready, None),
        endpoints=tuple(
            _endpoint(meta, item, f"endpoints[{number}]")
            for number, item in bounded(obj.endpoints, meta.subject, "endpoints")
        ),
        ports=tuple(
            EndpointPort(name=printable(item.name), port=item.port, protocol=item.protocol)
            for _, item in bounded(obj.ports, meta.subject, "ports")
        ),
    )


def _label(obj: api.ApiEndpointSlice, label: str) -> str:
    return Field(obj.subject, obj.labels.get(label), f"metadata.labels.{label}").name("")


def _endpoint(meta: Meta, item: api.ApiEndpoint, path: str) -> Endpoint:
    serving = item.conditions.serving
    return Endpoint(
        addresses=addresses(item.addresses, meta.subject, f"{path}.addresses", allow_empty=False),
        ready=item.is_ready,
        serving=item.is_ready if serving is None else serving,
        terminating=bool(item.conditions.terminating),
        node_name=Field(meta.subject, item.node_name, f"{path}.nodeName").name(""),
        zone=printable(item.zone),
        pod=_pod_of(item.target_ref, meta.namespace),
    )
