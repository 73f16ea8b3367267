"""A Service and its endpoints as ResourceExports and ResourceImports carry them, and as Kubernetes has them.

The payload is the same on both ways (core/v1 ServiceSpec, EndpointSubset), so leader and members read it by the
same rules and write it by the same functions. What is read is checked: it becomes frozen values with known fields
only. Pure. Raises only InputError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.exported_metadata import Texts
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.field import Field, printable
from mcagent.model.objects import IpProtocol

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
class ServicePort:
    """One port of a Service."""

    name: str
    port: int
    protocol: IpProtocol
    app_protocol: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """What a Service is. Ports in the order given; "" and () are what is not said."""

    ports: tuple[ServicePort, ...]
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
Subsets = Mapping[Ports, Sequence[str]]  # addresses by the ports that they serve
Group = tuple[str, Ports]  # whose addresses serve which ports; "" where that is not known
Groups = Mapping[Group, Sequence[str]]
Hostnames = Mapping[str, str]  # of endpoints that have one (headless Services), by address


# --- reading ----------------------------------------------------------------------------------------------


def read_service_spec(spec: Field) -> ServiceSpec:
    """Return a Service by its spec, that of a Service or of a ServiceImport. Raises InputError.

    Fields that this version does not know the value of count as not said: newer ones may have more.
    """
    ports: list[ServicePort] = []
    for item in spec.get("ports").each(MAX_PORTS):
        port = ServicePort(
            name=_port_name(item.get("name")),
            port=item.get("port").port(),
            protocol=_protocol(item.get("protocol")),
            app_protocol=_app_protocol(item.get("appProtocol")),
        )
        if any(port.name == p.name or (port.port, port.protocol) == (p.port, p.protocol) for p in ports):
            raise item.error("repeats the name, or number and protocol, of another port of the Service")
        ports.append(port)
    if not ports:
        raise spec.get("ports").error("is empty: a Service has at least one port", "Missing")
    affinity = None
    if spec.get("sessionAffinity").text("None") == "ClientIP":
        seconds = spec.get("sessionAffinityConfig").get("clientIP").get("timeoutSeconds").value
        affinity = AFFINITY_SECONDS
        if isinstance(seconds, int) and not isinstance(seconds, bool) and 0 < seconds <= MAX_AFFINITY_SECONDS:
            affinity = seconds
    policy, distribution = (_text(spec.get(name)) for name in ("internalTrafficPolicy", "trafficDistribution"))
    listed = spec.get("ipFamilies").value
    families = tuple(dict.fromkeys(f for f in FAMILIES if f in listed)) if isinstance(listed, list) else ()
    if isinstance(listed, list) and len(families) == len(FAMILIES):
        families = families if listed[0] == families[0] else families[::-1]
    return ServiceSpec(
        ports=tuple(ports),
        affinity_seconds=affinity,
        headless=_text(spec.get("clusterIP")) == NO_CLUSTER_IP or _text(spec.get("type")) == HEADLESS,
        traffic_policy=policy if policy in TRAFFIC_POLICIES else "",
        distribution=distribution if _WORD.fullmatch(distribution) else "",
        families=families,
    )


def _text(field: Field) -> str:
    return field.value if isinstance(field.value, str) else ""


def read_subsets(
    endpoints: Field, max_subsets: int = MAX_SUBSETS
) -> Iterator[tuple[Field, Ports, Iterator[Field]]]:
    """Yield the subsets of endpoints: itself, its ports, and its addresses. Raises InputError.

    Their number is checked before any of them is read.
    """
    subsets = list(endpoints.get("subsets").each(max_subsets))
    addresses = sum(_length(subset, "addresses") for subset in subsets)
    if addresses > MAX_ADDRESSES:
        raise endpoints.error(f"has {addresses} addresses, at most {MAX_ADDRESSES} allowed", "TooMany")
    for subset in subsets:
        ports = {
            (_port_name(p.get("name")), str(_protocol(p.get("protocol"))), p.get("port").port())
            for p in subset.get("ports").each(MAX_PORTS)
        }
        yield subset, tuple(sorted(ports)), subset.get("addresses").each(MAX_ADDRESSES)


def hostname_of(address: Field) -> str:
    """Return the hostname of an endpoint; "" when it has none that can be one."""
    text = _text(address.get("hostname"))
    return text if names.is_label(text) else ""


def _length(subset: Field, name: str) -> int:
    found = subset.get(name).value
    return len(found) if isinstance(found, list) else 0


def _port_name(field: Field) -> str:
    name = field.text("")
    if name and not names.is_label(name):
        raise field.error(f'must be a DNS-1123 label: "{printable(name)}"', "InvalidName")
    return name


def _protocol(field: Field) -> IpProtocol:
    text = field.text("TCP")
    try:
        return IpProtocol(text or "TCP")
    except ValueError:
        raise field.error(f'must be TCP, UDP or SCTP: "{printable(text)}"', "InvalidProtocol") from None


def _app_protocol(field: Field) -> str:
    """Return an appProtocol: a label, or one with a domain in front ("kubernetes.io/h2c")."""
    text = field.text("")
    domain, _, name = text.rpartition("/")
    if text and not (names.is_label(name.lower()) and (not domain or names.is_subdomain(domain))):
        raise InputError(field.subject, field.path, f'not an appProtocol: "{printable(text)}"')
    return text


# --- writing ----------------------------------------------------------------------------------------------


def port_entry(port: object, protocol: str, name: str = "", app_protocol: str = "") -> RawObject:
    """Return a port; what is empty is left out."""
    entry: RawObject = {"port": port, "protocol": str(protocol)}
    return entry | ({"name": name} if name else {}) | ({"appProtocol": app_protocol} if app_protocol else {})


def service_ports(spec: ServiceSpec) -> list[RawObject]:
    """Return the ports of a Service."""
    return [port_entry(p.port, p.protocol, p.name, p.app_protocol) for p in spec.ports]


def session_affinity(seconds: int | None, none: str | None = None) -> RawObject:
    """Return the fields about session affinity. Without it they are named, so that they go; `none` is its word."""
    if seconds is None:
        return {"sessionAffinity": none, "sessionAffinityConfig": None}
    return {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}


def endpoint_ports(ports: Ports) -> list[RawObject]:
    """Return the ports of a subset."""
    return [port_entry(number, protocol, name) for name, protocol, number in ports]


def service_fields(spec: ServiceSpec) -> RawObject:
    """Return the fields that Services and ServiceImports have alike, beside ports and session affinity."""
    return {
        "internalTrafficPolicy": spec.traffic_policy or None,
        "trafficDistribution": spec.distribution or None,
        "ipFamilies": list(spec.families) or None,
    }


def endpoint_subsets(subsets: Subsets, hostnames: Hostnames) -> list[RawObject]:
    """Return the subsets of endpoints, sorted by their ports."""
    return [_subset(ports, addresses, hostnames) for ports, addresses in sorted(subsets.items())]


def grouped_subsets(groups: Groups, hostnames: Hostnames) -> list[RawObject]:
    """Return the subsets of the endpoints of several clusters, sorted by cluster and ports."""
    return [_subset(ports, addresses, hostnames) for (_, ports), addresses in sorted(groups.items())]


def _subset(ports: Ports, addresses: Sequence[str], hostnames: Hostnames) -> RawObject:
    listed = [{"ip": a} | ({"hostname": hostnames[a]} if a in hostnames else {}) for a in addresses]
    return {"addresses": listed, "ports": endpoint_ports(ports)}
