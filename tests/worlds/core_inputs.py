"""Inputs for tests of the core, written as short as they are meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network

from mcagent.core.compile import Compiled
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import Bfd, PeerKind, Resource, TunnelPort, TunnelType
from mcagent.model.net import Address, Network
from mcagent.model.objects import (
    ApiObject,
    ClusterInfoImport,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Gateway,
    IpProtocol,
    Kind,
    LabelIdentity,
    Meta,
    Namespace,
    Node,
    Pod,
    Service,
    ServiceExport,
    ServiceImport,
    ServicePort,
    Snapshot,
)
from mcagent.model.parsing.labels import NAMESPACE_NAME, label_hash
from mcagent.model.parsing.parse import parse_object
from mcagent.model.plan import Desired
from mcagent.model.traffic import Traffic

ATTRIBUTES = {
    Kind.GATEWAY: "gateways",
    Kind.CLUSTER_INFO_IMPORT: "cluster_infos",
    Kind.NODE: "nodes",
    Kind.POD: "pods",
    Kind.SERVICE: "services",
    Kind.ENDPOINT_SLICE: "endpoint_slices",
    Kind.SERVICE_EXPORT: "service_exports",
    Kind.SERVICE_IMPORT: "service_imports",
    Kind.NAMESPACE: "namespaces",
    Kind.LABEL_IDENTITY: "label_identities",
    Kind.NETWORK_POLICY: "network_policies",
    Kind.ANTREA_NETWORK_POLICY: "antrea_network_policies",
    Kind.CLUSTER_NETWORK_POLICY: "cluster_network_policies",
    Kind.TIER: "tiers",
}


def meta(kind: Kind, name: str, created: str = "", namespace: str = "mc") -> Meta:
    """Return the identity of an object."""
    return Meta(kind=kind, name=name, namespace="" if kind is Kind.NODE else namespace, created=created)


def resources(compiled: Compiled | Desired, owner: str = "") -> list[Resource]:
    """Return the resources of an owner, or of all."""
    fragments = compiled.desired.fragments if isinstance(compiled, Compiled) else compiled.fragments
    return [r for name, u in fragments.items() if owner in ("", name) for r in u.resources]


def addresses(*texts: str) -> tuple[Address, ...]:
    """Return addresses."""
    return tuple(map(ip_address, texts))


def networks(*texts: str) -> tuple[Network, ...]:
    """Return networks."""
    return tuple(map(ip_network, texts))


def node(name: str, ip: str | tuple[str, ...], *cidrs: str, created: str = "") -> Node:
    """Return a Node with these internal addresses and Pod CIDRs."""
    ips = (ip,) if isinstance(ip, str) else ip
    return Node(meta=meta(Kind.NODE, name, created), internal_ips=addresses(*ips), pod_cidrs=networks(*cidrs))


def gateway(
    name: str, ip: str, internal: str = "", cidr: str | None = "10.96.0.0/16", created: str = ""
) -> Gateway:
    """Return a Gateway; its internalIP is the gatewayIP unless told otherwise."""
    return Gateway(
        meta=meta(Kind.GATEWAY, name, created),
        gateway_ip=ip_address(ip),
        internal_ip=ip_address(internal or ip),
        service_cidr=None if cidr is None else ip_network(cidr),
    )


def cluster(
    name: str,
    cidr: str | None,
    *pods: str,
    gateways: tuple[str, ...] = (),
    created: str = "",
    object_name: str = "",
    granted: Mapping[str, str] | None = None,
) -> ClusterInfoImport:
    """Return a ClusterInfoImport of cluster `name`; its gateway follows from the name unless told."""
    if not gateways:
        digits = name.encode()
        gateways = (f"203.0.{sum(digits) % 251}.{1 + digits[-1] % 250}",)
    return ClusterInfoImport(
        meta=meta(Kind.CLUSTER_INFO_IMPORT, object_name or f"{name}-clusterinfo", created),
        cluster_id=name,
        service_cidr=None if cidr is None else ip_network(cidr),
        gateway_ips=addresses(*gateways),
        pod_cidrs=networks(*pods),
        granted=granted or {},
    )


def pod(name: str, on: str, ip: str, created: str = "", labels: str = "") -> Pod:
    """Return a Pod."""
    return Pod(meta=meta(Kind.POD, name, created, "default"), node_name=on, ips=addresses(ip), labels=labels)


def namespace(name: str, labels: str = "") -> Namespace:
    """Return a Namespace with these labels beside its name."""
    text = f"{NAMESPACE_NAME}={name}" + (f",{labels}" if labels else "")
    return Namespace(meta=meta(Kind.NAMESPACE, name, namespace=""), labels=text)


def policy(kind: Kind, name: str, spec: dict[str, object], **annotations: str) -> ApiObject:
    """Return a policy, or Tier, of this spec."""
    metadata = {"name": name, "annotations": {f"mcagent.io/{key}": value for key, value in annotations.items()}}
    if kind in (Kind.NETWORK_POLICY, Kind.ANTREA_NETWORK_POLICY):
        metadata["namespace"] = "default"
    policy = parse_object({"metadata": metadata, "spec": spec}, kind).value
    assert policy is not None
    return policy


def label_identity(label: str, number: int, *clusters: str, believed: bool = False) -> LabelIdentity:
    """Return the number of labels; `believed` of any cluster, else of these."""
    believed_clusters = None if believed else frozenset(clusters)
    of = meta(Kind.LABEL_IDENTITY, label_hash(label), namespace="")
    return LabelIdentity(meta=of, label=label, id=number, clusters=believed_clusters)


def service(name: str, ip: str | None, *ports: int | ServicePort, affinity: bool = False) -> Service:
    """Return a Service with these ports (bare numbers are unnamed TCP ports)."""
    return Service(
        meta=meta(Kind.SERVICE, name, namespace="default"),
        cluster_ips=() if ip is None else addresses(ip),
        ports=tuple(p if isinstance(p, ServicePort) else ServicePort(name="", port=p) for p in ports),
        client_ip_affinity=affinity,
    )


def export(name: str) -> ServiceExport:
    """Return the export of a Service."""
    return ServiceExport(meta=meta(Kind.SERVICE_EXPORT, name, namespace="default"))


def endpoint(ip: str, *, ready: bool = True, serving: bool | None = None) -> Endpoint:
    """Return an endpoint; it serves when it is ready unless told otherwise."""
    return Endpoint(addresses=addresses(ip), ready=ready, serving=ready if serving is None else serving)


def endpoint_slice(
    name: str, of: str, endpoints: Iterable[Endpoint], *ports: tuple[str, int | None]
) -> EndpointSlice:
    """Return an EndpointSlice with TCP ports."""
    return EndpointSlice(
        meta=meta(Kind.ENDPOINT_SLICE, name, namespace="default"),
        service_name=of,
        endpoints=tuple(endpoints),
        ports=tuple(EndpointPort(name=n, port=number, protocol=IpProtocol.TCP) for n, number in ports),
    )


def service_import(
    name: str, *, client_ip_affinity: bool = False, traffic: Traffic | None = None
) -> ServiceImport:
    """Return an imported Service with one TCP port."""
    return ServiceImport(
        meta=meta(Kind.SERVICE_IMPORT, name, namespace="default"),
        ips=addresses("10.96.200.1"),
        ports=(ServicePort(name="http", port=80),),
        client_ip_affinity=client_ip_affinity,
        traffic=traffic,
    )


def imported_slice(name: str, of: str, cluster: str, endpoints: Iterable[Endpoint]) -> EndpointSlice:
    """Return an EndpointSlice of an imported Service, with the endpoints of a cluster."""
    parsed = endpoint_slice(name, f"antrea-mc-{of}", endpoints, ("http", 80))
    return replace(parsed, imported_name=of, source_cluster=cluster)


def snapshot(*objects: ApiObject) -> Snapshot:
    """Return a snapshot with these objects, everything synced."""
    objects_by_kind: dict[str, dict[str, ApiObject]] = {name: {} for name in ATTRIBUTES.values()}
    for item in objects:
        objects_by_kind[ATTRIBUTES[item.meta.kind]][item.meta.key] = item
    return Snapshot(**objects_by_kind, synced=frozenset(Kind))  # type: ignore[arg-type]


def config(name: str, **values: object) -> Config:
    """Return the configuration of a Node of cluster "home"."""
    return Config(**({"node_name": name, "cluster_id": "home"} | values))  # type: ignore[arg-type]


# Cluster "home": two gateways and a worker.
HOME: tuple[ApiObject, ...] = (
    node("g1", "192.0.2.1", "10.10.1.0/24"),
    node("g2", "192.0.2.2", "10.10.2.0/24"),
    node("w1", "192.0.2.3", "10.10.3.0/24"),
    gateway("g1", "192.0.2.1"),
    gateway("g2", "192.0.2.2"),
)


def tunnel_port(number: int, peer: str, kind: PeerKind, *, seen: bool = False) -> TunnelPort:
    """Return the port of a tunnel with BFD; its name, number and the peer's address follow from `number`."""
    return TunnelPort(
        bridge="br-mc",
        name=f"mc-{number}",
        type=TunnelType.GENEVE,
        remote_ip=ip_address(f"192.0.2.{number}"),
        dst_port=0,
        ofport=number,
        peer_kind=kind,
        peer=peer,
        bfd=Bfd(min_tx=100, min_rx=100),
        bfd_seen=seen,
    )


# Cluster "home" on IPv6 alone: a gateway and two workers, one of them dual-stack.
HOME6: tuple[ApiObject, ...] = (
    node("g1", "2001:db8:1::11", "10.10.1.0/24"),
    node("w1", "2001:db8:1::12", "10.10.2.0/24"),
    node("w2", ("192.0.2.13", "2001:db8:1::13"), "10.10.3.0/24"),
    gateway("g1", "2001:db8:1::11"),
)


EAST6 = cluster("east", "10.97.0.0/16", "10.20.0.0/16", gateways=("2001:db8:2::11", "2001:db8:2::12"))
