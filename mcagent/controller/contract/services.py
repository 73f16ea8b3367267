"""A Service and its endpoints, as ResourceExports, ResourceImports and Kubernetes have them.

Exports and imports have the same payload (core/v1 ServiceSpec, EndpointSubset), so leader and members read and
write it with the same functions. Reading checks it, and returns frozen values with only known fields. Pure.
Raises only InputError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import Texts
from mcagent.controller.contract.names import SERVICE_IMPORT, ExportKind
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import (
    ApiEndpointPort,
    ApiServicePort,
    ClientIPConfig,
    EndpointAddress,
    EndpointSubset,
    ServiceFields,
    SessionAffinityConfig,
    Subsets,
)
from mcagent.model.api.kubernetes import ApiServiceSpec as Spec
from mcagent.model.api.multicluster import ResourceImport, ServiceImportSpec
from mcagent.model.api.patches import ABSENT, UNSET, patch
from mcagent.model.errors import InputError
from mcagent.model.objects import IpProtocol
from mcagent.model.parsing.field import Field, printable

MAX_PORTS = 100  # of a Service: what Kubernetes documents as the most that an EndpointSlice has
MAX_SUBSETS = 1024  # of one imported Service: each makes an EndpointSlice at least
MAX_ADDRESSES = 65536  # of all subsets together
AFFINITY_SECONDS = 10800  # Kubernetes' default
MAX_AFFINITY_SECONDS = 86400  # what the API takes
HEADLESS, CLUSTER_SET_IP = "Headless", "ClusterSetIP"  # types of a ServiceImport
CLIENT_IP, NO_AFFINITY = "ClientIP", "None"  # sessionAffinity
NO_CLUSTER_IP = "None"  # the clusterIP of a headless Service
TRAFFIC_POLICIES = ("Cluster", "Local")
FAMILIES = ("IPv4", "IPv6")
_WORD = re.compile(r"[A-Za-z][-A-Za-z0-9_./]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PayloadPort:
    """One port of a Service."""

    name: str
    port: int
    protocol: IpProtocol
    app_protocol: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """The definition of a Service. "" and () are fields without a value."""

    ports: tuple[PayloadPort, ...]
    affinity_seconds: int | None = None  # None: no session affinity to the client's address
    headless: bool = False
    traffic_policy: str = ""  # internalTrafficPolicy
    distribution: str = ""  # trafficDistribution
    families: tuple[str, ...] = ()
    labels: Texts = ()  # of its ServiceImports
    annotations: Texts = ()
    traffic: str = ""  # which clusters get its connections (`mcagent.model.traffic`), where importers do not say


EndpointPort = tuple[str, str, int]  # name, protocol, number
Ports = tuple[EndpointPort, ...]  # sorted
PortSubsets = Mapping[Ports, Sequence[str]]  # addresses by the ports that they serve
Group = tuple[str, Ports]  # cluster ID ("": unknown) and ports of endpoints
Groups = Mapping[Group, Sequence[str]]
Hostnames = Mapping[str, str]  # of endpoints that have one (headless Services), by address


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEndpoint:
    """An endpoint of an imported Service. `cluster`: its owner's ID, "" if unknown; `hostname`: "" if none."""

    address: str
    ports: Ports
    cluster: str = ""
    hostname: str = ""


# --- reading ----------------------------------------------------------------------------------------------


def import_target(resource_import: ResourceImport | None) -> str:
    """Return "namespace/name" of a ResourceImport's Service.

    "" if it has another kind, if the names are invalid, or if its own name does not follow from them: names are
    concatenated, and two objects must not be of one Service.
    """
    if resource_import is None:
        return ""
    spec = resource_import.spec
    named = {SERVICE_IMPORT: names.service_import, ExportKind.ENDPOINTS: names.endpoints_import}.get(spec.kind)
    if named is None or not names.is_label(spec.namespace) or not names.is_label(spec.name):
        return ""
    follows = resource_import.name == named(spec.namespace, spec.name)
    return f"{spec.namespace}/{spec.name}" if follows else ""


def read_service_spec(spec: ServiceFields, obj: ApiObject, path: str) -> ServiceSpec:
    """Return the Service in the spec of a Service or ServiceImport, at a path of `obj`. Raises InputError.

    Unknown values of fields, which later versions may have, are ignored.
    """
    obj.check(path)
    if len(spec.ports) > MAX_PORTS:
        raise too_many(obj, f"{path}.ports", len(spec.ports), MAX_PORTS)
    ports: list[PayloadPort] = []
    for number, item in enumerate(spec.ports):
        place = f"{path}.ports[{number}]"
        port = PayloadPort(
            name=_port_name(Field(obj.subject, item.name, f"{place}.name")),
            port=item.port,
            protocol=item.protocol,
            app_protocol=_app_protocol(Field(obj.subject, item.app_protocol, f"{place}.appProtocol")),
        )
        if any(port.name == p.name or (port.port, port.protocol) == (p.port, p.protocol) for p in ports):
            why = "repeats the name, or number and protocol, of another port of the Service"
            raise InputError(obj.subject, place, why)
        ports.append(port)
    if not ports:
        why = "is empty: a Service has at least one port"
        raise InputError(obj.subject, f"{path}.ports", why, code="Missing")
    affinity = None
    if spec.session_affinity == CLIENT_IP:
        seconds = spec.session_affinity_config.client_ip.timeout_seconds or 0
        affinity = seconds if 0 < seconds <= MAX_AFFINITY_SECONDS else AFFINITY_SECONDS
    families = tuple(dict.fromkeys(f for f in spec.ip_families if f in FAMILIES))
    policy, distribution = spec.internal_traffic_policy, spec.traffic_distribution
    without_ip = spec.cluster_ip == NO_CLUSTER_IP if isinstance(spec, Spec) else spec.type == HEADLESS
    return ServiceSpec(
        ports=tuple(ports),
        affinity_seconds=affinity,
        headless=without_ip,
        traffic_policy=policy if policy in TRAFFIC_POLICIES else "",
        distribution=distribution if _WORD.fullmatch(distribution) else "",
        families=families,
    )


def too_many(obj: ApiObject, path: str, count: int, most: int) -> InputError:
    """Return the error for a list with `count` entries, more than `most`."""
    return InputError(obj.subject, path, f"has {count} entries, at most {most} allowed", code="TooMany")


def read_subsets(
    endpoints: Subsets, obj: ApiObject, path: str, max_subsets: int = MAX_SUBSETS
) -> Iterator[tuple[str, Ports, Sequence[EndpointAddress]]]:
    """Yield path, ports and addresses of each subset at a path of `obj`. Raises InputError.

    The number of subsets is checked before they are read. An address of a wrong type is "".
    """
    obj.check(path, but=".addresses[")
    if len(endpoints.subsets) > max_subsets:
        raise too_many(obj, f"{path}.subsets", len(endpoints.subsets), max_subsets)
    addresses = sum(len(subset.addresses) for subset in endpoints.subsets)
    if addresses > MAX_ADDRESSES:
        why = f"has {addresses} addresses, at most {MAX_ADDRESSES} allowed"
        raise InputError(obj.subject, path, why, code="TooMany")
    for number, subset in enumerate(endpoints.subsets):
        place = f"{path}.subsets[{number}]"
        if len(subset.ports) > MAX_PORTS:
            raise too_many(obj, f"{place}.ports", len(subset.ports), MAX_PORTS)
        ports = {_endpoint_port(item, obj, f"{place}.ports[{index}]") for index, item in enumerate(subset.ports)}
        yield place, tuple(sorted(ports)), subset.addresses


def _endpoint_port(item: ApiEndpointPort, obj: ApiObject, place: str) -> EndpointPort:
    return (
        _port_name(Field(obj.subject, item.name, f"{place}.name")),
        str(item.protocol),
        Field(obj.subject, item.port, f"{place}.port").port(),
    )


def hostname_of(address: EndpointAddress) -> str:
    """Return the hostname of an endpoint; "" if it has no valid one."""
    return address.hostname if names.is_label(address.hostname) else ""


def _port_name(field: Field) -> str:
    name = field.text("")
    if name and not names.is_label(name):
        raise field.error(f'must be a DNS-1123 label: "{printable(name)}"', "InvalidName")
    return name


def _app_protocol(field: Field) -> str:
    """Return an appProtocol: a label, with or without a domain ("kubernetes.io/h2c")."""
    text = field.text("")
    domain, slash, name = text.rpartition("/")
    if text and not (names.is_label(name.lower()) and (not slash or names.is_subdomain(domain))):
        raise field.error(f'not an appProtocol: "{printable(text)}"')
    return text


# --- writing ----------------------------------------------------------------------------------------------


def service_ports(
    ports: Iterable[PayloadPort | ApiServicePort], *, are_targets: bool = False
) -> tuple[ApiServicePort, ...]:
    """Return the ports of a Service without empty fields. `are_targets`: endpoints have the same ports."""
    return tuple(
        patch(
            ApiServicePort,
            port=port.port,
            protocol=port.protocol,
            name=port.name or UNSET,
            app_protocol=port.app_protocol or UNSET,
            target_port=port.port if are_targets else UNSET,
        )
        for port in ports
    )


def affinity_config(seconds: int | None) -> SessionAffinityConfig:
    """Return how long session affinity to the client's address lasts; ABSENT if that is not set."""
    config = patch(SessionAffinityConfig, client_ip=patch(ClientIPConfig, timeout_seconds=seconds))
    return config if seconds else ABSENT


def import_spec(
    spec: ServiceSpec, families: Iterable[str], *, ips: tuple[str, ...] = UNSET, no_affinity: str = ABSENT
) -> ServiceImportSpec:
    """Return the spec of a ServiceImport. `no_affinity`: the value of `sessionAffinity` if there is none."""
    return patch(
        ServiceImportSpec,
        type=HEADLESS if spec.headless else CLUSTER_SET_IP,
        ips=ips,
        ports=service_ports(spec.ports),
        session_affinity=no_affinity if spec.affinity_seconds is None else CLIENT_IP,
        session_affinity_config=affinity_config(spec.affinity_seconds),
        internal_traffic_policy=spec.traffic_policy or ABSENT,
        traffic_distribution=spec.distribution or ABSENT,
        ip_families=tuple(families) or ABSENT,
    )


def endpoint_ports(ports: Ports) -> tuple[ApiEndpointPort, ...]:
    """Return the ports of a subset."""
    return tuple(
        patch(ApiEndpointPort, port=number, protocol=IpProtocol(protocol), name=name or UNSET)
        for name, protocol, number in ports
    )


def endpoint_subsets(subsets: PortSubsets, hostnames: Hostnames) -> tuple[EndpointSubset, ...]:
    """Return the subsets of endpoints, sorted by their ports."""
    return tuple(_subset(ports, addresses, hostnames) for ports, addresses in sorted(subsets.items()))


def grouped_subsets(groups: Groups, hostnames: Hostnames) -> tuple[EndpointSubset, ...]:
    """Return the subsets of the endpoints of several clusters, sorted by cluster and ports."""
    return tuple(_subset(ports, addresses, hostnames) for (_, ports), addresses in sorted(groups.items()))


def _subset(ports: Ports, addresses: Sequence[str], hostnames: Hostnames) -> EndpointSubset:
    listed = tuple(EndpointAddress(ip=text, hostname=hostnames.get(text, "")) for text in addresses)
    return EndpointSubset(addresses=listed, ports=endpoint_ports(ports))
