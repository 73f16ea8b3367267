"""Objects between clusters: Gateway, ClusterInfoImport, LabelIdentity, ServiceExport, ServiceImport.

Other clusters write most of what is in them: a part that is wrong takes away no more than it has to.
"""

from __future__ import annotations

from mcagent.model import labels as label_texts
from mcagent.model.errors import InputError
from mcagent.model.field import Field, printable
from mcagent.model.net import Address
from mcagent.model.objects import (
    ClusterInfoImport,
    Gateway,
    LabelIdentity,
    Meta,
    ServiceExport,
    ServiceImport,
    WireGuardInfo,
)
from mcagent.model.parsing.fields import (
    networks,
    optional_network,
    problem_of,
    read_or,
)
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, read_granted
from mcagent.model.parsing.kubernetes import service_ports
from mcagent.model.problem import Problem
from mcagent.model.traffic import EXPORTED_TRAFFIC_ANNOTATION, TRAFFIC_ANNOTATION, read_traffic

AGENTS_ANNOTATION, OUR_AGENTS = "mcagent.io/agents", "mcagent"  # of a cluster's ClusterInfo: what its gateways run
EXPORTERS_ANNOTATION = "mcagent.io/exporters"  # of a LabelIdentity: the clusters with such Pods, by commas
MAX_GATEWAYS = 64  # gatewayInfos of one cluster


def parse_gateway(meta: Meta, raw: Field, problems: list[Problem]) -> Gateway:
    """Gateway: fields at top level."""
    return Gateway(
        meta=meta,
        gateway_ip=raw.get("gatewayIP").address(),
        internal_ip=raw.get("internalIP").address(),
        service_cidr=optional_network(raw.get("serviceCIDR"), problems),
        wireguard=_wireguard(raw.get("wireGuard"), problems),
    )


def parse_cluster_info(meta: Meta, raw: Field, problems: list[Problem]) -> ClusterInfoImport:
    """ClusterInfoImport: fields under `spec`. A cluster without a gateway yet is well-formed."""
    spec = raw.get("spec")
    gateways: dict[Address, WireGuardInfo | None] = {}
    for item in spec.get("gatewayInfos").each(MAX_GATEWAYS):
        gateways.setdefault(item.get("gatewayIP").address(), _wireguard(item.get("wireGuard"), problems))
    return ClusterInfoImport(
        meta=meta,
        cluster_id=spec.get("clusterID").name(),
        service_cidr=optional_network(spec.get("serviceCIDR"), problems),
        gateway_ips=tuple(gateways),
        pod_cidrs=networks(spec.get("podCIDRs"), problems),
        wireguard=_wireguard(spec.get("wireGuard"), problems),
        gateway_wireguard=tuple((address, found) for address, found in gateways.items() if found is not None),
        granted=_granted(raw.get("metadata").get("annotations").get(CLAIMS_ANNOTATION), problems),
        our_agents=_says(raw.get("metadata").get("annotations").get(AGENTS_ANNOTATION), OUR_AGENTS, problems),
    )


def _wireguard(field: Field, problems: list[Problem]) -> WireGuardInfo | None:
    """Return what is published of WireGuard, None where that is nothing, or wrong.

    What is wrong is reported, and takes only the encryption away: without a key nothing is sent to that gateway.
    """
    try:
        key = field.get("publicKey").public_key()
        if not key:
            return None
        port = field.get("port")
        return WireGuardInfo(
            public_key=key,
            next_public_key=field.get("nextPublicKey").public_key(),
            port=0 if port.absent else port.port(),
        )
    except InputError as error:
        problems.append(problem_of(error))
        return None


def _says(field: Field, word: str, problems: list[Problem]) -> bool:
    """Tell whether an annotation is this word."""
    return read_or(field, problems, lambda text: text == word, False)


def _granted(field: Field, problems: list[Problem]) -> dict[str, str]:
    """Return when each claim was granted."""
    return read_or(field, problems, lambda text: read_granted(text) if text else {}, {})


def parse_label_identity(meta: Meta, raw: Field, problems: list[Problem]) -> LabelIdentity:  # noqa: ARG001
    """LabelIdentity: the number has to fit a tunnel's VNI, and not to be the one that means "unknown"."""
    spec = raw.get("spec")
    label = spec.get("label")
    label_texts.read_labels(label)
    exporters = raw.get("metadata").get("annotations").get(EXPORTERS_ANNOTATION)
    clusters = None if exporters.absent else frozenset(filter(None, exporters.text().split(",")))
    number = spec.get("id").integer(label_texts.FIRST, label_texts.LAST)
    return LabelIdentity(meta=meta, label=label.text(), id=number, clusters=clusters)


def parse_service_export(meta: Meta, raw: Field, problems: list[Problem]) -> ServiceExport:  # noqa: ARG001
    """ServiceExport: its name says it all."""
    return ServiceExport(meta=meta)


def parse_service_import(meta: Meta, raw: Field, problems: list[Problem]) -> ServiceImport:
    """ServiceImport: what is wrong about its traffic is reported, and counts as if nothing were said."""
    spec, annotations = raw.get("spec"), raw.get("metadata").get("annotations")
    return ServiceImport(
        meta=meta,
        ips=tuple({item.address(): None for item in spec.get("ips").each() if item.value != ""}),
        ports=tuple(service_ports(spec)),
        client_ip_affinity=spec.get("sessionAffinity").text("None") == "ClientIP",
        distribution=printable(spec.get("trafficDistribution").text("")),
        traffic=read_or(annotations.get(TRAFFIC_ANNOTATION), problems, read_traffic, None),
        exported_traffic=read_or(annotations.get(EXPORTED_TRAFFIC_ANNOTATION), problems, read_traffic, None),
    )
