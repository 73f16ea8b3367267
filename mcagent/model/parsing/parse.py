"""Raw API objects (decoded JSON or YAML) to the frozen values of `mcagent.model.objects`.

Owns which path each field is read from and what is an error. Only the form is judged here; whether a
well-formed address may be used, and who wins a conflict, is `mcagent.core`'s business. Nothing but
`InputError` is raised, whatever the value: other clusters write some of these objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from mcagent.model import labels
from mcagent.model.errors import InputError
from mcagent.model.field import Field, describe, printable
from mcagent.model.kinds import kind_of
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
    ServicePort,
    WireGuardInfo,
)
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, read_granted
from mcagent.model.parsing.policies import parse_antrea_policy, parse_network_policy, parse_tier
from mcagent.model.policies import PROTOCOLS
from mcagent.model.problem import Problem, Severity

GATEWAY_ANNOTATION = "multicluster.antrea.io/gateway"
GATEWAY_IP_ANNOTATION = "multicluster.antrea.io/gateway-ip"
DRAIN_ANNOTATION = "mcagent.io/drain"  # "true" on a Node: its gateway is to hand over
EXPORTERS_ANNOTATION = "mcagent.io/exporters"  # of a LabelIdentity: the clusters with such Pods, by commas
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
MAX_GATEWAYS = 64  # gatewayInfos of one cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What an object says. `value` is None for a well-formed object that is of no interest (see `parse_pod`)."""

    meta: Meta
    value: ApiObject | None
    problems: tuple[Problem, ...] = ()


def parse_meta(raw: object, kind: Kind | None = None) -> Meta:
    """Return which object this is; InputError when it has no usable kind, name or namespace.

    `kind` is for items of a list, which the API server sends without `kind` and `apiVersion`.
    """
    found = kind or kind_of(raw)
    if not isinstance(raw, Mapping):
        raise InputError(str(found or "object"), "", f"must be a mapping, is {describe(raw)}")
    if found is None:
        api_version, name = raw.get("apiVersion"), raw.get("kind")
        shown = [printable(v) if isinstance(v, str) else describe(v) for v in (api_version, name)]
        raise InputError(
            "object", "kind", f"not a kind that is read here: {shown[0]} {shown[1]}", code="UnknownKind"
        )
    metadata = Field(found, raw).get("metadata")
    name = metadata.get("name").name()
    namespace = metadata.get("namespace").name("")
    metadata.subject = f"{found} {namespace}/{name}" if namespace else f"{found} {name}"
    return Meta(
        kind=found,
        name=name,
        namespace=namespace,
        created=metadata.get("creationTimestamp").timestamp(),
        resource_version=printable(metadata.get("resourceVersion").text("")),
    )


def parse_object(raw: object, kind: Kind | None = None) -> Parsed:
    """Return what the object says; InputError names the object, the path and what is wrong there."""
    meta = parse_meta(raw, kind)
    problems: list[Problem] = []
    value = _PARSERS[meta.kind](meta, Field(meta.subject, raw), problems)
    return Parsed(meta=meta, value=value, problems=tuple(problems))


def problem_of(error: InputError) -> Problem:
    """Return the error as the value that is kept beside the last good version of the object."""
    return Problem(subject=error.subject, path=error.path, reason=error.code, message=error.reason)


def _network(field: Field, problems: list[Problem]) -> Network:
    network, host_bits = field.network()
    if host_bits:
        problems.append(
            Problem(
                subject=field.subject,
                path=field.path,
                reason="HostBitsSet",
                message=f'host bits are set in "{printable(field.text())}": used as {network}',
                severity=Severity.WARNING,
            )
        )
    return network


def _networks(field: Field, problems: list[Problem]) -> tuple[Network, ...]:
    """Return the distinct CIDRs in order; empty strings are passed over (Antrea's sample has `podCIDRs: [""]`)."""
    found: dict[Network, None] = {}
    for item in field.each():
        if item.value != "":
            found[_network(item, problems)] = None
    return tuple(found)


def _optional_network(field: Field, problems: list[Problem]) -> Network | None:
    return None if field.absent or field.value == "" else _network(field, problems)


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


def _protocol(field: Field) -> IpProtocol:
    text = field.text("TCP")
    try:
        return IpProtocol(text or "TCP")
    except ValueError:
        raise field.error(f'must be TCP, UDP or SCTP, is "{printable(text)}"', "InvalidProtocol") from None


def parse_gateway(meta: Meta, raw: Field, problems: list[Problem]) -> Gateway:
    """Gateway: fields at top level."""
    return Gateway(
        meta=meta,
        gateway_ip=raw.get("gatewayIP").address(),
        internal_ip=raw.get("internalIP").address(),
        service_cidr=_optional_network(raw.get("serviceCIDR"), problems),
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
        service_cidr=_optional_network(spec.get("serviceCIDR"), problems),
        gateway_ips=tuple(gateways),
        pod_cidrs=_networks(spec.get("podCIDRs"), problems),
        wireguard=_wireguard(spec.get("wireGuard"), problems),
        gateway_wireguard=tuple((address, found) for address, found in gateways.items() if found is not None),
        granted=_granted(raw.get("metadata").get("annotations").get(CLAIMS_ANNOTATION), problems),
    )


def _granted(field: Field, problems: list[Problem]) -> dict[str, str]:
    """Return when each claim was granted; an annotation that makes no sense is reported, and counts as none."""
    try:
        text = field.text("")
        return read_granted(text) if text else {}
    except ValueError as error:
        wrong = field.error(str(error))
    except InputError as error:
        wrong = error
    problems.append(replace(problem_of(wrong), severity=Severity.WARNING))
    return {}


def _optional_address(field: Field, problems: list[Problem]) -> Address | None:
    """Return the address; a wrong one is reported and passed over: it must not take the Node away."""
    if field.absent or field.value == "":
        return None
    try:
        return field.address()
    except InputError as error:
        problems.append(replace(problem_of(error), severity=Severity.WARNING))
        return None


def parse_node(meta: Meta, raw: Field, problems: list[Problem]) -> Node:
    """Node: without a Ready condition (a hand-written manifest) it counts as ready."""
    spec, status = raw.get("spec"), raw.get("status")
    addresses: dict[Address, None] = {}
    external: dict[Address, None] = {}
    for item in status.get("addresses").each():
        kind = item.get("type").text("")
        if kind == "InternalIP":
            addresses[item.get("address").address()] = None
        elif kind == "ExternalIP" and (found := _optional_address(item.get("address"), problems)) is not None:
            external[found] = None
    ready = True
    for item in status.get("conditions").each():
        if item.get("type").text("") == "Ready":
            ready = item.get("status").text("") == "True"
    annotations = raw.get("metadata").get("annotations")
    pod_cidrs = _networks(spec.get("podCIDRs"), problems)
    if not pod_cidrs:
        single = _optional_network(spec.get("podCIDR"), problems)
        pod_cidrs = () if single is None else (single,)
    return Node(
        meta=meta,
        internal_ips=tuple(addresses),
        external_ips=tuple(external),
        pod_cidrs=pod_cidrs,
        ready=ready,
        unschedulable=spec.get("unschedulable").flag(),
        gateway_annotation=not annotations.get(GATEWAY_ANNOTATION).absent,
        gateway_ip=_optional_address(annotations.get(GATEWAY_IP_ANNOTATION), problems),
        drain=annotations.get(DRAIN_ANNOTATION).text("") == "true",
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
    text, ports = labels.joined(_labels(raw)), tuple(_named_ports(spec))
    return Pod(meta=meta, node_name=node_name, ips=tuple(addresses), labels=text, ports=ports)


def _named_ports(spec: Field) -> Iterator[tuple[str, int, int]]:
    for container in spec.get("containers").each():
        for item in container.get("ports").each():
            if name := item.get("name").text(""):
                yield name, PROTOCOLS[_protocol(item.get("protocol"))], item.get("containerPort").port()


def _labels(raw: Field) -> dict[str, str]:
    field = raw.get("metadata").get("labels")
    names = field.value if isinstance(field.value, Mapping) else ()
    return {str(name): field.get(name).text() for name in names}


def parse_namespace(meta: Meta, raw: Field, problems: list[Problem]) -> Namespace:  # noqa: ARG001
    """Namespace: its labels, with its name among them."""
    return Namespace(meta=meta, labels=labels.namespace_part(meta.name, _labels(raw)))


def parse_label_identity(meta: Meta, raw: Field, problems: list[Problem]) -> LabelIdentity:  # noqa: ARG001
    """LabelIdentity: the number has to fit a tunnel's VNI, and not to be the one that means "unknown"."""
    spec = raw.get("spec")
    label = spec.get("label")
    labels.read_labels(label)
    exporters = raw.get("metadata").get("annotations").get(EXPORTERS_ANNOTATION)
    clusters = None if exporters.absent else frozenset(filter(None, exporters.text().split(",")))
    return LabelIdentity(
        meta=meta, label=label.text(), id=spec.get("id").integer(labels.FIRST, labels.LAST), clusters=clusters
    )


def parse_service(meta: Meta, raw: Field, problems: list[Problem]) -> Service:  # noqa: ARG001
    """Service: a headless one ("None") and an ExternalName one have no ClusterIPs."""
    spec = raw.get("spec")
    cluster_ips: dict[Address, None] = {}
    if spec.get("type").text("ClusterIP") != "ExternalName":
        fields = list(spec.get("clusterIPs").each()) or [spec.get("clusterIP")]
        for item in fields:
            if not item.absent and item.value not in ("", "None"):
                cluster_ips[item.address()] = None
    ports = tuple(
        ServicePort(
            name=printable(item.get("name").text("")),
            port=item.get("port").port(),
            protocol=_protocol(item.get("protocol")),
        )
        for item in spec.get("ports").each()
    )
    return Service(
        meta=meta,
        cluster_ips=tuple(cluster_ips),
        ports=ports,
        client_ip_affinity=spec.get("sessionAffinity").text("None") == "ClientIP",
    )


def parse_endpoint_slice(meta: Meta, raw: Field, problems: list[Problem]) -> EndpointSlice | None:  # noqa: ARG001
    """EndpointSlice: None when it belongs to no Service or holds host names (addressType FQDN)."""
    service_name = raw.get("metadata").get("labels").get(SERVICE_NAME_LABEL).name("")
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
            )
        )
    ports = tuple(
        EndpointPort(
            name=printable(item.get("name").text("")),
            port=None if item.get("port").absent else item.get("port").port(),
            protocol=_protocol(item.get("protocol")),
        )
        for item in raw.get("ports").each()
    )
    return EndpointSlice(meta=meta, service_name=service_name, endpoints=tuple(endpoints), ports=ports)


def parse_service_export(meta: Meta, raw: Field, problems: list[Problem]) -> ServiceExport:  # noqa: ARG001
    """ServiceExport: its name says it all."""
    return ServiceExport(meta=meta)


_PARSERS: Mapping[Kind, Callable[[Meta, Field, list[Problem]], ApiObject | None]] = {
    Kind.GATEWAY: parse_gateway,
    Kind.CLUSTER_INFO_IMPORT: parse_cluster_info,
    Kind.NODE: parse_node,
    Kind.POD: parse_pod,
    Kind.SERVICE: parse_service,
    Kind.ENDPOINT_SLICE: parse_endpoint_slice,
    Kind.SERVICE_EXPORT: parse_service_export,
    Kind.NAMESPACE: parse_namespace,
    Kind.LABEL_IDENTITY: parse_label_identity,
    Kind.NETWORK_POLICY: parse_network_policy,
    Kind.ANTREA_NETWORK_POLICY: parse_antrea_policy,
    Kind.CLUSTER_NETWORK_POLICY: parse_antrea_policy,
    Kind.TIER: parse_tier,
}
