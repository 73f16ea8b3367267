"""Objects between clusters: Gateway, ClusterInfoImport, LabelIdentity, ServiceExport, ServiceImport.

Other clusters write most of what is in them: a part that is wrong takes away no more than it has to.
"""

from __future__ import annotations

from mcagent.model.api import multicluster as api
from mcagent.model.api.base import ApiObject, condition_of
from mcagent.model.errors import InputError
from mcagent.model.net import Address, PodPrefix, parse_address
from mcagent.model.objects import (
    ClusterInfoImport,
    Gateway,
    LabelIdentity,
    Meta,
    ServiceExport,
    ServiceImport,
    WireGuardInfo,
)
from mcagent.model.parsing import labels as label_texts
from mcagent.model.parsing.field import Field, printable
from mcagent.model.parsing.fields import (
    addresses,
    annotation,
    bounded,
    networks,
    optional_network,
    problem_of,
    read_or,
)
from mcagent.model.parsing.granted import (
    CLAIMS_ANNOTATION,
    PROTECTED_ANNOTATION,
    REFUSED_PODS_ANNOTATION,
    read_cidrs,
    read_granted,
)
from mcagent.model.parsing.kubernetes import service_ports
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION, read_prefixes
from mcagent.model.problem import Problem
from mcagent.model.traffic import EXPORTED_TRAFFIC_ANNOTATION, TRAFFIC_ANNOTATION, read_traffic

AGENTS_ANNOTATION, OUR_AGENTS = "mcagent.io/agents", "mcagent"  # of a cluster's ClusterInfo: what its gateways run
# Of a Gateway, and of a cluster's ClusterInfo ResourceExport: the Service CIDR of its own ClusterIPs, which is not
# `serviceCIDR` while the cluster has an export range.
SERVICE_CIDR_ANNOTATION = "mcagent.io/service-cidr"
# The condition of a ServiceExport whose message is the Service's export address.
ADDRESS_CONDITION = "mcagent.io/ExportAddress"
EXPORTERS_ANNOTATION = "mcagent.io/exporters"  # of a LabelIdentity: the clusters with such Pods, by commas
DEMOTIONS_ANNOTATION = "mcagent.io/demotions"  # of a Gateway: its place in the cluster's order, see `demotions_of`
MTU_ANNOTATION = "mcagent.io/tunnel-mtu"  # of a ClusterInfo: the largest packet that its tunnels take, in bytes
_MTUS = range(576, 65536)
MAX_GATEWAYS = 64  # gatewayInfos of one cluster
MAX_ANTREA_CLUSTERS = 1024  # that a Gateway's status may list; more than clusters in a ClusterSet


def parse_gateway(meta: Meta, obj: api.ApiGateway, problems: list[Problem]) -> Gateway:
    """Gateway: fields at top level."""
    return Gateway(
        meta=meta,
        gateway_ip=Field(meta.subject, obj.gateway_ip or None, "gatewayIP").address(),
        internal_ip=Field(meta.subject, obj.internal_ip or None, "internalIP").address(),
        service_cidr=optional_network(Field(meta.subject, obj.service_cidr, "serviceCIDR"), problems),
        real_service_cidr=optional_network(annotation(obj, SERVICE_CIDR_ANNOTATION), problems),
        prefixes=_prefixes(obj, problems),
        wireguard=_wireguard(obj, obj.wireguard, "wireGuard", problems),
        demotions=demotions_of(obj),
        antrea_clusters=obj.status.antrea_clusters[:MAX_ANTREA_CLUSTERS],
    )


def _prefixes(obj: api.ApiGateway, problems: list[Problem]) -> tuple[PodPrefix, ...]:
    try:
        return read_prefixes(obj.annotation(PREFIXES_ANNOTATION) or "")
    except ValueError as error:
        path = f"metadata.annotations[{PREFIXES_ANNOTATION}]"
        problems.append(Problem(obj.subject, path, "InvalidValue", f"no Pod CIDR is translated: {error}"))
        return ()


def demotions_of(gateway: ApiObject) -> int:
    """Return the number in a Gateway's DEMOTIONS_ANNOTATION; 0 without a valid one.

    The member's controller writes it. Of two gateways the one with the lower number precedes, whatever their age.
    """
    text = gateway.annotation(DEMOTIONS_ANNOTATION) or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def parse_cluster_info(meta: Meta, obj: api.ApiClusterInfoImport, problems: list[Problem]) -> ClusterInfoImport:
    """ClusterInfoImport: fields under `spec`. A cluster without a gateway yet is well-formed."""
    subject, spec = meta.subject, obj.spec
    gateways: dict[Address, WireGuardInfo | None] = {}
    for number, item in bounded(spec.gateway_infos, subject, "spec.gatewayInfos", MAX_GATEWAYS):
        path = f"spec.gatewayInfos[{number}]"
        address = Field(subject, item.gateway_ip or None, f"{path}.gatewayIP").address()
        gateways.setdefault(address, _wireguard(obj, item.wireguard, f"{path}.wireGuard", problems))
    return ClusterInfoImport(
        meta=meta,
        cluster_id=Field(subject, spec.cluster_id or None, "spec.clusterID").name(),
        service_cidr=optional_network(Field(subject, spec.service_cidr, "spec.serviceCIDR"), problems),
        gateway_ips=tuple(gateways),
        pod_cidrs=networks(spec.pod_cidrs, subject, "spec.podCIDRs", problems),
        wireguard=_wireguard(obj, spec.wireguard, "spec.wireGuard", problems),
        gateway_wireguard=tuple((address, info) for address, info in gateways.items() if info is not None),
        granted=read_or(annotation(obj, CLAIMS_ANNOTATION), problems, _granted, {}),
        our_agents=obj.annotation(AGENTS_ANNOTATION) == OUR_AGENTS,
        protected_cidrs=read_cidrs(obj.annotation(PROTECTED_ANNOTATION) or ""),
        refused_pod_cidrs=read_cidrs(obj.annotation(REFUSED_PODS_ANNOTATION) or ""),
        mtu=read_or(annotation(obj, MTU_ANNOTATION), problems, read_mtu, 0),
    )


def read_mtu(text: str) -> int:
    """Return the MTU of MTU_ANNOTATION; 0 without one. Raises ValueError."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) in _MTUS):
        raise ValueError(f"must be a number from {_MTUS[0]} to {_MTUS[-1]}")
    return int(text)


def _granted(text: str) -> dict[str, str]:
    return read_granted(text) if text else {}


def _wireguard(
    obj: ApiObject, published: api.WireGuard | None, path: str, problems: list[Problem]
) -> WireGuardInfo | None:
    """Return what is published of WireGuard, None where that is nothing, or wrong.

    What is wrong is reported, and takes only the encryption away: without a key nothing is sent to that gateway.
    """
    if published is None or obj.is_faulty(path):
        return None
    try:
        key = Field(obj.subject, published.public_key, f"{path}.publicKey").public_key()
        if not key:
            return None
        return WireGuardInfo(
            public_key=key,
            next_public_key=Field(obj.subject, published.next_public_key, f"{path}.nextPublicKey").public_key(),
            port=published.port or 0,
            devices=published.devices or 1,
        )
    except InputError as error:
        problems.append(problem_of(error))
        return None


def parse_label_identity(meta: Meta, obj: api.ApiLabelIdentity, problems: list[Problem]) -> LabelIdentity:  # noqa: ARG001
    """LabelIdentity: the number has to fit a tunnel's VNI, and not to be the one that means "unknown"."""
    label_texts.read_labels(Field(meta.subject, obj.spec.label, "spec.label"))
    exporters = obj.annotation(EXPORTERS_ANNOTATION)
    clusters = None if exporters is None else frozenset(filter(None, exporters.split(",")))
    number = Field(meta.subject, obj.spec.id, "spec.id").integer(label_texts.FIRST, label_texts.LAST)
    return LabelIdentity(meta=meta, label=obj.spec.label, id=number, clusters=clusters)


def parse_service_export(meta: Meta, obj: api.ApiServiceExport, problems: list[Problem]) -> ServiceExport:
    """ServiceExport: its name and its export address; an invalid one is reported, and counts as none."""
    assigned = condition_of(obj.status.conditions, ADDRESS_CONDITION)
    field = Field(meta.subject, assigned.message if assigned.is_true else None, "status.conditions")
    return ServiceExport(meta=meta, address=read_or(field, problems, parse_address, None))


def parse_service_import(meta: Meta, obj: api.ApiServiceImport, problems: list[Problem]) -> ServiceImport:
    """ServiceImport: what is wrong about its traffic is reported, and counts as if nothing were said."""
    return ServiceImport(
        meta=meta,
        ips=addresses(obj.spec.ips, meta.subject, "spec.ips"),
        ports=service_ports(meta, obj.spec.ports),
        client_ip_affinity=obj.spec.session_affinity == "ClientIP",
        distribution=printable(obj.spec.traffic_distribution),
        traffic=read_or(annotation(obj, TRAFFIC_ANNOTATION), problems, read_traffic, None),
        exported_traffic=read_or(annotation(obj, EXPORTED_TRAFFIC_ANNOTATION), problems, read_traffic, None),
    )
