"""What a ResourceImport says, checked: a leader may pass on what any member wrote, so nothing in it is trusted.

Pure: raw objects to frozen values with known fields only. Raises only InputError, whatever the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.controller import names
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.field import Field, printable
from mcagent.model.objects import IpProtocol, Kind

SERVICE_IMPORT, ENDPOINTS, CLUSTER_INFO = "ServiceImport", "Endpoints", "ClusterInfo"  # spec.kind
MAX_PORTS = 256
MAX_SUBSETS = 4096
MAX_ADDRESSES = 65536  # of one subset
AFFINITY_SECONDS = 10800  # Kubernetes' default
MAX_AFFINITY_SECONDS = 86400  # what the API takes


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ImportedPort:
    """One port of an imported Service."""

    name: str
    port: int
    protocol: IpProtocol
    app_protocol: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedService:
    """What an imported Service should be. Ports in the order given; None: no session affinity."""

    ports: tuple[ImportedPort, ...]
    affinity_seconds: int | None = None


Ports = tuple[tuple[str, str, int], ...]  # name, protocol, number; sorted
Subsets = Mapping[Ports, tuple[str, ...]]  # addresses as they were written, in their order, each once


def field_of(raw: RawObject) -> Field:
    """Return a ResourceImport as a Field, named for messages."""
    metadata = raw.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    return Field(f"{Kind.RESOURCE_IMPORT} {printable(str(name))}", raw)


def read_service(raw: RawObject) -> ImportedService:
    """Return the Service of a ResourceImport of kind ServiceImport. Raises InputError."""
    spec = field_of(raw).get("spec").get("serviceImport").get("spec")
    ports: list[ImportedPort] = []
    for item in spec.get("ports").each(MAX_PORTS):
        port = ImportedPort(
            name=_port_name(item.get("name")),
            port=item.get("port").port(),
            protocol=_protocol(item.get("protocol")),
            app_protocol=_app_protocol(item.get("appProtocol")),
        )
        if any(port.name == p.name or (port.port, port.protocol) == (p.port, p.protocol) for p in ports):
            raise item.error("has the name, or the number and protocol, of another port of the Service")
        ports.append(port)
    if not ports:
        raise spec.get("ports").error("is empty: a Service has at least one port", "Missing")
    affinity = None
    if spec.get("sessionAffinity").text("None") == "ClientIP":
        seconds = spec.get("sessionAffinityConfig").get("clientIP").get("timeoutSeconds").value
        affinity = AFFINITY_SECONDS
        if isinstance(seconds, int) and not isinstance(seconds, bool) and 0 < seconds <= MAX_AFFINITY_SECONDS:
            affinity = seconds
    return ImportedService(ports=tuple(ports), affinity_seconds=affinity)


def read_subsets(raw: RawObject) -> Subsets:
    """Return the endpoints of a ResourceImport of kind Endpoints by the ports they serve. Raises InputError."""
    found: dict[Ports, dict[str, None]] = {}
    for subset in field_of(raw).get("spec").get("endpoints").get("subsets").each(MAX_SUBSETS):
        ports = tuple(
            sorted(
                {
                    (_port_name(p.get("name")), str(_protocol(p.get("protocol"))), p.get("port").port())
                    for p in subset.get("ports").each(MAX_PORTS)
                }
            )
        )
        addresses = found.setdefault(ports, {}) if ports else {}
        for item in subset.get("addresses").each(MAX_ADDRESSES):
            addresses[item.get("ip").text()] = None
    return {ports: tuple(addresses) for ports, addresses in found.items()}


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
