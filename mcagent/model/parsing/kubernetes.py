"""Objects of Kubernetes itself: Node, Pod, Namespace, Service, EndpointSlice."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.model import labels as label_texts
from mcagent.model.field import Field, printable
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
from mcagent.model.parsing.fields import (
    labels,
    networks,
    optional_address,
    optional_network,
    protocol,
    read_or,
)
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


def parse_node(meta: Meta, raw: Field, problems: list[Problem]) -> Node:
    """Node: without a Ready condition (a hand-written manifest) it counts as ready."""
    spec, status = raw.get("spec"), raw.get("status")
    addresses: dict[Address, None] = {}
    external: dict[Address, None] = {}
    for item in status.get("addresses").each():
        kind = item.get("type").text("")
        if kind == "InternalIP":
            addresses[item.get("address").address()] = None
        elif kind == "ExternalIP" and (found := optional_address(item.get("address"), problems)) is not None:
            external[found] = None
    ready = True
    for item in status.get("conditions").each():
        if item.get("type").text("") == "Ready":
            ready = item.get("status").text("") == "True"
    annotations = raw.get("metadata").get("annotations")
    pod_cidrs = networks(spec.get("podCIDRs"), problems)
    if not pod_cidrs:
        single = optional_network(spec.get("podCIDR"), problems)
        pod_cidrs = () if single is None else (single,)
    return Node(
        meta=meta,
        internal_ips=tuple(addresses),
        external_ips=tuple(external),
        pod_cidrs=pod_cidrs,
        ready=ready,
        unschedulable=spec.get("unschedulable").flag(),
        gateway_annotation=not annotations.get(GATEWAY_ANNOTATION).absent,
        gateway_ip=optional_address(annotations.get(GATEWAY_IP_ANNOTATION), problems),
        drain=annotations.get(DRAIN_ANNOTATION).text("") == "true",
        zone=read_or(raw.get("metadata").get("labels").get(ZONE_LABEL), problems, printable, ""),
    )


def parse_pod(meta: Meta, raw: Field, problems: list[Problem]) -> Pod | None:  # noqa: ARG001
    """Pod: None when it has no address of its own (host network, finished, not scheduled, no address yet)."""
    spec, status = raw.get("spec"), raw.get("status")
    node_name = spec.get("nodeName").name("")
    if spec.get("hostNetwork").flag() or status.get("phase").text("") in ("Succeeded", "Failed") or not node_name:
        return None
    addresses = {item.get("ip").address(): None for item in status.get("podIPs").each()}
    if not addresses and not status.get("podIP").absent and status.get("podIP").value != "":
        addresses[status.get("podIP").address()] = None
    if not addresses:
        return None
    text, ports = label_texts.joined(labels(raw)), tuple(_named_ports(spec))
    return Pod(meta=meta, node_name=node_name, ips=tuple(addresses), labels=text, ports=ports)


def _named_ports(spec: Field) -> Iterator[tuple[str, int, int]]:
    for container in spec.get("containers").each():
        for item in container.get("ports").each():
            if name := item.get("name").text(""):
                yield name, PROTOCOLS[protocol(item.get("protocol"))], item.get("containerPort").port()


def parse_namespace(meta: Meta, raw: Field, problems: list[Problem]) -> Namespace:  # noqa: ARG001
    """Namespace: its labels, with its name among them."""
    return Namespace(meta=meta, labels=label_texts.namespace_part(meta.name, labels(raw)))


def parse_service(meta: Meta, raw: Field, problems: list[Problem]) -> Service:  # noqa: ARG001
    """Service: a headless one ("None") and an ExternalName one have no ClusterIPs."""
    spec = raw.get("spec")
    cluster_ips: dict[Address, None] = {}
    if spec.get("type").text("ClusterIP") != "ExternalName":
        fields = list(spec.get("clusterIPs").each()) or [spec.get("clusterIP")]
        for item in fields:
            if not item.absent and item.value not in ("", "None"):
                cluster_ips[item.address()] = None
    return Service(
        meta=meta,
        cluster_ips=tuple(cluster_ips),
        ports=tuple(service_ports(spec)),
        client_ip_affinity=spec.get("sessionAffinity").text("None") == "ClientIP",
    )


def service_ports(spec: Field) -> Iterator[ServicePort]:
    """Yield the ports of a Service, or of a ServiceImport."""
    for item in spec.get("ports").each():
        name = printable(item.get("name").text(""))
        yield ServicePort(name=name, port=item.get("port").port(), protocol=protocol(item.get("protocol")))


def parse_endpoint_slice(meta: Meta, raw: Field, problems: list[Problem]) -> EndpointSlice | None:
    """EndpointSlice: None when it belongs to no Service or holds host names (addressType FQDN)."""
    labelled, annotations = raw.get("metadata").get("labels"), raw.get("metadata").get("annotations")
    service_name = labelled.get(SERVICE_NAME_LABEL).name("")
    if not service_name or raw.get("addressType").text("IPv4") == "FQDN":
        return None
    endpoints = []
    for item in raw.get("endpoints").each():
        conditions = item.get("conditions")
        ready = conditions.get("ready").flag(default=True)  # unknown means ready, says the API
        endpoints.append(
            Endpoint(
                addresses=tuple({a.address(): None for a in item.get("addresses").each()}),
                ready=ready,
                serving=conditions.get("serving").flag(default=ready),
                terminating=conditions.get("terminating").flag(),
                node_name=item.get("nodeName").name(""),
                zone=printable(item.get("zone").text("")),
            )
        )
    ports = tuple(
        EndpointPort(
            name=printable(item.get("name").text("")),
            port=None if item.get("port").absent else item.get("port").port(),
            protocol=protocol(item.get("protocol")),
        )
        for item in raw.get("ports").each()
    )
    return EndpointSlice(
        meta=meta,
        service_name=service_name,
        imported_name=labelled.get(IMPORTED_NAME_LABEL).name(""),
        source_cluster=labelled.get(SOURCE_CLUSTER_LABEL).name(""),
        told_ready=read_or(annotations.get(READY_ANNOTATION), problems, read_ready, None),
        endpoints=tuple(endpoints),
        ports=ports,
    )
