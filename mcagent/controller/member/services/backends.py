"""The payload of a Service's ResourceExports: its ports, and the subsets of its endpoints. Pure.

An address is in one subset, that of all its ports. Of each port, ready endpoints are exported; if none is ready,
those that still serve, as in kube-proxy (KEP-1669).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address

from mcagent.controller.contract import names
from mcagent.controller.contract.services import (
    CLIENT_IP,
    NO_CLUSTER_IP,
    EndpointPort,
    Hostnames,
    Ports,
    PortSubsets,
    affinity_config,
    endpoint_ports,
    service_ports,
)
from mcagent.core.addresses.rules import refuse_address
from mcagent.model.api.base import as_json
from mcagent.model.api.kubernetes import ApiEndpoint, ApiEndpointSlice, ApiService, ApiServiceSpec
from mcagent.model.api.patches import ABSENT, patch
from mcagent.model.net import address_or_none

MAX_SIZE = 240_000  # bytes of JSON that the subsets may have: leaders refuse exports of more than 256 KiB


def ports_of(service: ApiService) -> list[EndpointPort]:
    """Return the ports of a Service, in its order."""
    return [(item.name, item.protocol, item.port) for item in service.spec.ports]


def service_spec(service: ApiService) -> ApiServiceSpec:
    """Return the spec in the Service export."""
    spec = service.spec
    has_affinity = spec.session_affinity == CLIENT_IP
    seconds = spec.session_affinity_config.client_ip.timeout_seconds
    return patch(
        ApiServiceSpec,
        ports=service_ports(spec.ports),
        cluster_ip=NO_CLUSTER_IP if is_headless(service) else ABSENT,
        session_affinity=CLIENT_IP if has_affinity else ABSENT,
        session_affinity_config=affinity_config(seconds if has_affinity else None),
        internal_traffic_policy=spec.internal_traffic_policy or ABSENT,
        traffic_distribution=spec.traffic_distribution or ABSENT,
        ip_families=spec.ip_families or ABSENT,
    )


def is_headless(service: ApiService) -> bool:
    """Tell whether a Service has the ClusterIP "None"."""
    return service.spec.cluster_ip == NO_CLUSTER_IP


def cluster_ips(service: ApiService) -> list[str]:
    """Return the IPv4 ClusterIPs of a Service; none for a headless one."""
    addresses = service.spec.cluster_ips or (service.spec.cluster_ip,)
    return [text for text in dict.fromkeys(addresses) if _address(text) is not None]


def cluster_ip_subsets(
    service: ApiService, ports: Iterable[EndpointPort], export_address: str = ""
) -> PortSubsets:
    """Return the subset for endpointIPType ClusterIP: the export address, or the ClusterIPs, with these ports."""
    addresses = [export_address] if export_address else cluster_ips(service)
    return _subsets({ip: set(ports) for ip in addresses})


def pod_ip_subsets(service: ApiService, slices: Iterable[ApiEndpointSlice]) -> PortSubsets:
    """Return the subsets for endpointIPType PodIP: IPv4 endpoints by their ports."""
    names_and_protocols = {(port.name, port.protocol) for port in service.spec.ports}
    ready: dict[tuple[str, str], set[tuple[str, EndpointPort]]] = {}  # by name and protocol of a port
    serving: dict[tuple[str, str], set[tuple[str, EndpointPort]]] = {}
    for endpoint_slice in slices:
        if endpoint_slice.address_type != "IPv4":
            continue
        ports: set[EndpointPort] = {
            (port.name, port.protocol, port.port)
            for port in endpoint_slice.ports
            if port.port is not None and (port.name, port.protocol) in names_and_protocols
        }
        for endpoint in endpoint_slice.endpoints:
            if not endpoint.is_ready and not _serves(endpoint):
                continue
            usable = ready if endpoint.is_ready else serving
            for text in endpoint.addresses:
                for port in ports if _address(text) is not None else ():
                    usable.setdefault(port[:2], set()).add((text, port))
    ports_by_address: dict[str, set[EndpointPort]] = {}
    for named in names_and_protocols:
        for text, served_port in ready.get(named) or serving.get(named) or ():
            ports_by_address.setdefault(text, set()).add(served_port)
    return _subsets(ports_by_address)


def hostnames_of(slices: Iterable[ApiEndpointSlice]) -> dict[str, str]:
    """Return the valid hostnames of endpoints, by IPv4 address; DNS of a headless Service has them."""
    return {
        text: endpoint.hostname
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints
        for text in endpoint.addresses
        if names.is_label(endpoint.hostname) and _address(text) is not None
    }


def places_of(slices: Iterable[ApiEndpointSlice]) -> dict[str, ApiEndpoint]:
    """Return node, zone and hints of endpoints, by address, for clients that prefer near endpoints."""
    return {
        text: ApiEndpoint(node_name=endpoint.node_name, zone=endpoint.zone, hints=endpoint.hints)
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints
        for text in endpoint.addresses[:1]
    }


def limited(subsets: PortSubsets, hostnames: Hostnames) -> tuple[PortSubsets, int]:
    """Return the subsets up to MAX_SIZE, and the number of addresses left out.

    In the wire contract a Service has one Endpoints export, so no second object can have the rest.
    """
    room = MAX_SIZE
    fitting: dict[Ports, tuple[str, ...]] = {}
    dropped = 0
    for ports, addresses in subsets.items():
        room -= len(json.dumps(as_json(endpoint_ports(ports)))) + 40
        first_addresses = []
        for text in addresses:
            room -= len(text) + 12  # {"ip": "..."}, and the comma
            room -= len(hostnames[text]) + 16 if text in hostnames else 0
            if room >= 0:
                first_addresses.append(text)
        dropped += len(addresses) - len(first_addresses)
        if first_addresses:
            fitting[ports] = tuple(first_addresses)
    return fitting, dropped


def _serves(endpoint: ApiEndpoint) -> bool:
    return endpoint.conditions.serving is True


def _subsets(ports_by_address: Mapping[str, set[EndpointPort]]) -> PortSubsets:
    groups: dict[Ports, list[str]] = {}
    for address, ports in ports_by_address.items():
        if ports:
            groups.setdefault(tuple(sorted(ports)), []).append(address)
    return {
        ports: tuple(sorted(addresses, key=lambda text: int(IPv4Address(text))))
        for ports, addresses in sorted(groups.items())
    }


def _address(text: str) -> IPv4Address | None:
    address = address_or_none(text)
    return address if isinstance(address, IPv4Address) and refuse_address(address) is None else None
