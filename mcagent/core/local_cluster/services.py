"""Exported Services of this cluster: the endpoints behind each exported address and port.

`check_export` checks one ServiceExport with its Service and EndpointSlices; `exported_ports` resolves conflicts
between exports. Other clusters reach exported Services only. `endpoints` decides which endpoints are usable. Must
not know flows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mcagent.core.addresses.rules import refuse_address
from mcagent.core.local_cluster.endpoints import (
    API_SERVERS,
    EndpointAddress,
    EndpointRules,
    port_endpoints,
    users_may_write_slices,
)
from mcagent.core.local_cluster.nodes import seniority
from mcagent.model.net import Address, Network, NetworkSet, contains
from mcagent.model.node_state import ExportedPort
from mcagent.model.objects import EndpointSlice, Meta, Service, ServiceExport
from mcagent.model.problem import Problem, Severity


def api_servers(slices: Mapping[str, EndpointSlice]) -> tuple[Address, ...]:
    """Return the endpoints of the Service `kubernetes`; none on Nodes that do not watch EndpointSlices."""
    own_slice = slices.get(API_SERVERS)
    return () if own_slice is None else tuple(a for endpoint in own_slice.endpoints for a in endpoint.addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportInput:
    """A ServiceExport with the Service and EndpointSlices of its name."""

    meta: Meta
    address: Address | None  # its export address
    service: Service | None
    slices: tuple[EndpointSlice, ...]


def exports_of(
    exports: Mapping[str, ServiceExport], services: Mapping[str, Service], slices: Mapping[str, EndpointSlice]
) -> dict[str, ExportInput]:
    """Join each ServiceExport with the Service and EndpointSlices of its name, by "namespace/name"."""
    slices_by_key: dict[str, list[EndpointSlice]] = {key: [] for key in exports}
    for endpoint_slice in slices.values():
        service_slices = slices_by_key.get(f"{endpoint_slice.meta.namespace}/{endpoint_slice.service_name}")
        if service_slices is not None:
            service_slices.append(endpoint_slice)
    return {
        key: ExportInput(
            meta=export.meta, address=export.address, service=services.get(key), slices=tuple(slices_by_key[key])
        )
        for key, export in exports.items()
    }


def addresses_of_nodes(nodes: tuple[tuple[Address, str], ...], node_cidrs: tuple[Network, ...]) -> frozenset[int]:
    """Return the Nodes' own IPv4 addresses: of Node objects, and the first two of each Pod CIDR (CNI's bridge)."""
    bridges = (int(cidr.network_address) + n for cidr in node_cidrs for n in (0, 1))
    return frozenset((*(int(address) for address, _ in nodes if address.version == 4), *bridges))


def pods_at_nodes(export: ExportInput, nodes: frozenset[int]) -> frozenset[str]:
    """Return the Pods ("namespace/name") to which endpoints at Nodes' addresses refer, where these matter."""
    if not users_may_write_slices(export.meta):
        return frozenset()
    return frozenset(
        f"{export.meta.namespace}/{endpoint.pod}"
        for endpoint_slice in export.slices
        for endpoint in endpoint_slice.endpoints
        if endpoint.pod and any(int(address) in nodes for address in endpoint.addresses)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedExport:
    """The ports of a ServiceExport, maybe none, before conflicts with older exports are resolved."""

    meta: Meta
    ports: tuple[ExportedPort, ...]
    problems: tuple[Problem, ...]


def check_export(export: ExportInput, service_cidrs: tuple[Network, ...], rules: EndpointRules) -> CheckedExport:
    """Check one ServiceExport. `service_cidrs`: as other clusters use them.

    An address outside of them is reported, but accepted.
    """
    problems: list[Problem] = []
    service, address = export.service, _address(export, service_cidrs, problems)
    ports: tuple[ExportedPort, ...] = ()
    if service is not None and address is not None:
        by_port = [(port, port_endpoints(export.meta, port, export.slices, rules)) for port in service.ports]
        problems.extend(problem for _, endpoints in by_port for problem in endpoints.problems)
        ports = tuple(
            ExportedPort(
                name=f"{service.meta.key}:{port.port}/{port.protocol.lower()}",
                address=address,
                protocol=port.protocol.lower(),
                port=port.port,
                client_ip_affinity=service.client_ip_affinity,
                endpoints=tuple(endpoints.usable),
                nodes=tuple(endpoints.usable.values()),
                old_endpoints=endpoints.old,
            )
            for port, endpoints in by_port
        )
    return CheckedExport(meta=export.meta, ports=ports, problems=tuple(problems))


def exported_ports(exports: Mapping[str, CheckedExport]) -> tuple[dict[str, ExportedPort], tuple[Problem, ...]]:
    """Return the exported ports by name. Of two exports with the same address and port the older one is used."""
    problems: set[Problem] = set()
    ports: dict[str, ExportedPort] = {}
    holders: dict[tuple[Address, str, int], str] = {}
    for export in sorted(exports.values(), key=lambda export: seniority(export.meta)):
        problems.update(export.problems)
        for port in export.ports:
            holder = holders.setdefault((port.address, port.protocol, port.port), export.meta.key)
            if holder == export.meta.key:
                ports[port.name] = port
                continue
            message = f"{port.address} port {port.port}/{port.protocol} belongs to Service {holder}: not used"
            problems.add(export.meta.problem("", "DuplicateAddress", message))
    uses = Counter((port.protocol, endpoint) for port in ports.values() for endpoint in port.endpoints)
    for name, port in ports.items():
        if any(uses[port.protocol, endpoint] > 1 for endpoint in port.endpoints):
            ports[name] = replace(port, shares_endpoints=True)
    return {name: ports[name] for name in sorted(ports)}, tuple(problems)


def local_endpoints(ports: Iterable[ExportedPort], networks: Iterable[Network]) -> set[EndpointAddress]:
    """Return the TCP endpoints of exported Services in the networks of a Node."""
    addresses = NetworkSet(networks)
    return {
        (address, number)
        for port in ports
        if port.protocol == "tcp"
        for address, number in (*port.endpoints, *port.old_endpoints)
        if int(address) in addresses
    }


def _address(export: ExportInput, cidrs: tuple[Network, ...], problems: list[Problem]) -> Address | None:
    """Return the export address if it lies in `cidrs`, else the ClusterIP.

    None if the Service has no ClusterIP, with a problem if that is a fault.
    """
    service, meta = export.service, export.meta
    if service is None:
        problems.append(meta.problem("", "NoService", "there is no Service of this name and namespace"))
        return None
    if not service.cluster_ips:
        # Its Pods are exported, or nothing: the controller decides, and the ServiceExport has the reason.
        return None
    address = next((a for a in service.cluster_ips if refuse_address(a) is None), None)
    if address is None:
        message = "the Service has no IPv4 ClusterIP: IPv6 is not supported yet"
        problems.append(meta.problem("", "IPv6NotSupported", message))
        return None
    if export.address is not None and any(contains(cidr, export.address) for cidr in cidrs):
        return export.address
    if not any(contains(cidr, address) for cidr in cidrs):
        message = f"its ClusterIP {address} lies in no Gateway's serviceCIDR: other clusters do not reach it"
        problems.append(meta.problem("", "OutsideServiceCIDR", message, Severity.WARNING))
    return address
