"""A Service and its endpoints, as ResourceExports, ResourceImports and Kubernetes have them.

Exports and imports have the same payload (core/v1 ServiceSpec, EndpointSubset), so leader and members read and
write it with the same functions. Reading checks it, and returns frozen values with only known fields. Pure.
Raises only InputError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import Texts
from mcagent.controller.contract.names import SERVICE_IMPORT, ExportKind
from mcagent.controller.machinery.reconciler import Json
from mcagent.model.api import kubernetes
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiServiceSpec as Spec
from mcagent.model.api.kubernetes import EndpointAddress, ServiceFields, Subsets
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.objects import IpProtocol
from mcagent.model.parsing.field import Field, printable

MAX_PORTS = 100  # of a Service: what Kubernetes documents as the most that an EndpointSlice has
MAX_SUBSETS = 1024  # of one imported Service: each makes an EndpointSlice at least
MAX_ADDRESSES = 65536  # of all subsets together
AFFINITY_SECONDS = 10800  # Kubernetes' default
MAX_AFFINITY_SECONDS = 86400  # what the API takes
HEADLESS, CLUSTER_SET_IP = "Headless", "ClusterSetIP"  # types of a ServiceImport
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
    if spec.session_affinity == "ClientIP":
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


def _endpoint_port(item: kubernetes.ApiEndpointPort, obj: ApiObject, place: str) -> EndpointPort:
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


def port_entry(port: object, protocol: str, name: str = "", app_protocol: str = "") -> Json:
    """Return a port without empty fields."""
    entry: Json = {"port": port, "protocol": str(protocol)}
    return entry | ({"name": name} if name else {}) | ({"appProtocol": app_protocol} if app_protocol else {})


def service_ports(spec: ServiceSpec) -> list[Json]:
    """Return the ports of a Service."""
    return [port_entry(p.port, p.protocol, p.name, p.app_protocol) for p in spec.ports]


def session_affinity(seconds: int | None, none: str | None = None) -> Json:
    """Return the fields of session affinity. `seconds` None: there is none, and `none` is the field's value."""
    if seconds is None:
        return {"sessionAffinity": none, "sessionAffinityConfig": None}
    return {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}


def endpoint_ports(ports: Ports) -> list[Json]:
    """Return the ports of a subset."""
    return [port_entry(number, protocol, name) for name, protocol, number in ports]


def service_fields(spec: ServiceSpec) -> Json:
    """Return the common fields of Services and ServiceImports, without ports and session affinity."""
    return {
        "internalTrafficPolicy": spec.traffic_policy or None,
        "trafficDistribution": spec.distribution or None,
        "ipFamilies": list(spec.families) or None,
    }


def endpoint_subsets(subsets: PortSubsets, hostnames: Hostnames) -> list[Json]:
    """Return the subsets of endpoints, sorted by their ports."""
    return [_subset(ports, addresses, hostnames) for ports, addresses in sorted(subsets.items())]


def grouped_subsets(groups: Groups, hostnames: Hostnames) -> list[Json]:
    """Return the subsets of the endpoints of several clusters, sorted by cluster and ports."""
    return [_subset(ports, addresses, hostnames) for (_, ports), addresses in sorted(groups.items())]


def _subset(ports: Ports, addresses: Sequence[str], hostnames: Hostnames) -> Json:
    listed = [{"ip": a} | ({"hostname": hostnames[a]} if a in hostnames else {}) for a in addresses]
    return {"addresses": listed, "ports": endpoint_ports(ports)}
