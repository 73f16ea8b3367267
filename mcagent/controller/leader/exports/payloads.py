"""The checked payload of a ResourceExport: a Service, its endpoints, or the network of a cluster.

Pure. Raises only InputError, whatever the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from mcagent.controller.contract.annotations import carried_by, read_ready_of
from mcagent.controller.contract.cidr_claims import MAX_CIDRS, MAX_GATEWAYS
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import Networks, range_of
from mcagent.controller.contract.services import (
    Ports,
    ServiceSpec,
    hostname_of,
    read_service_spec,
    read_subsets,
    too_many,
)
from mcagent.core.addresses.rules import refuse_network
from mcagent.core.addresses.underlay import refuse_underlay
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ClusterInfo, GatewayInfo, ResourceExport, ResourceImport, WireGuard
from mcagent.model.errors import InputError
from mcagent.model.net import Address, Network
from mcagent.model.parsing.field import Field

MAX_PORT_SETS = 64  # subsets of one export; Pods with different numbers of a named port have several


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The endpoints that a cluster exports: addresses by the ports that they serve."""

    subsets: Mapping[Ports, frozenset[Address]]
    hostnames: Mapping[Address, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # a message for each endpoint that cannot be used
    over: int = 0  # endpoints above the limit of one export
    ready: int | None = None  # endpoints behind the cluster's ClusterIP, by its annotation
    remark: str = ""  # the error in that annotation

    @property
    def count(self) -> int:
        """Return the number of addresses, each counted once for each set of ports."""
        return sum(map(len, self.subsets.values()))


def read_definition(export: ResourceExport, traffic: str = "") -> ServiceSpec:
    """Return the Service in a Service export, with `traffic` as its traffic annotation. Raises InputError."""
    export.check("spec.service")
    if export.spec.service is None:
        raise _missing(export, "spec.service")
    carried = carried_by(export)
    spec = read_service_spec(export.spec.service.service_spec, export, "spec.service.serviceSpec")
    return replace(spec, labels=carried.labels, annotations=carried.annotations, traffic=traffic)


def _missing(export: ResourceExport, path: str) -> InputError:
    why = f"is missing: an export of kind {export.spec.kind} has it"
    return InputError(export.subject, path, why, code="Missing")


def read_backends(export: ResourceExport, refuse: Callable[[Address], str], most: int) -> Backends:
    """Return the endpoints of an export that can be used; `left_out` names the others.

    `refuse` returns why an address cannot be an endpoint of this cluster, "" if it can. At most `most` endpoints
    are used, the first in order of address; `ready` is at most `most`. Raises InputError if the whole is invalid.
    """
    if export.spec.endpoints is None:
        export.check("spec.endpoints")
        raise _missing(export, "spec.endpoints")
    subsets: dict[Ports, set[Address]] = {}
    hostnames: dict[Address, str] = {}
    left_out: list[str] = []
    for place, ports, addresses in read_subsets(export.spec.endpoints, export, "spec.endpoints", MAX_PORT_SETS):
        if not ports:
            why = "is empty: an endpoint is an address and ports"
            raise InputError(export.subject, f"{place}.ports", why, code="Missing")
        for number, item in enumerate(addresses):
            try:
                address = Field(export.subject, item.ip, f"{place}.addresses[{number}].ip").address()
            except InputError as error:
                left_out.append(f"{error.path}: {error.reason}")
                continue
            why = refuse(address)
            if why:
                left_out.append(why)
            else:
                subsets.setdefault(ports, set()).add(address)
                if hostname := hostname_of(item):
                    hostnames[address] = hostname
    first_subsets, over = _first(subsets, most)
    ready, remark = read_ready_of(export)
    return Backends(
        subsets=first_subsets,
        hostnames=hostnames,
        left_out=tuple(left_out),
        over=over,
        ready=None if ready is None else min(ready, most),
        remark=remark,
    )


def _first(subsets: dict[Ports, set[Address]], most: int) -> tuple[dict[Ports, frozenset[Address]], int]:
    """Return the first `most` endpoints in order of address, then ports; and the number of the others."""
    over = max(0, sum(map(len, subsets.values())) - most)
    if over:
        endpoints = ((a.version, int(a), ports, a) for ports, addresses in subsets.items() for a in addresses)
        subsets = {}
        for _, _, ports, address in sorted(endpoints, key=lambda row: row[:3])[:most]:
            subsets.setdefault(ports, set()).add(address)
    return {ports: frozenset(addresses) for ports, addresses in subsets.items()}, over


def read_cluster_info(export: ResourceExport) -> ClusterInfo:
    """Return a cluster's network, each CIDR once and in its canonical form.

    Raises InputError, also if its cluster ID is not the exporting cluster's.
    """
    path, info = "spec.clusterInfo", export.spec.cluster_info
    export.check(path)
    if info is None:
        raise _missing(export, path)
    if info.cluster_id != export.spec.cluster_id:
        why = "must be the exporting cluster's, as spec.clusterID"
        raise InputError(export.subject, f"{path}.clusterID", why, code="Mismatch")
    for name, count, most in (
        ("podCIDRs", len(info.pod_cidrs), MAX_CIDRS),
        ("gatewayInfos", len(info.gateway_infos), MAX_GATEWAYS),
    ):
        if count > most:
            raise too_many(export, f"{path}.{name}", count, most)
    cidrs = dict.fromkeys(
        str(_network(export, f"{path}.podCIDRs[{number}]", text))
        for number, text in enumerate(info.pod_cidrs)
        if text
    )
    gateways = (
        GatewayInfo(
            gateway_ip=_gateway_ip(export, f"{path}.gatewayInfos[{number}].gatewayIP", item.gateway_ip),
            wireguard=_wireguard(export, f"{path}.gatewayInfos[{number}].wireGuard", item.wireguard),
        )
        for number, item in enumerate(info.gateway_infos)
    )
    return ClusterInfo(
        cluster_id=info.cluster_id,
        service_cidr=str(_network(export, f"{path}.serviceCIDR", info.service_cidr)) if info.service_cidr else "",
        pod_cidrs=tuple(cidrs),
        gateway_infos=tuple(gateways),
        wireguard=_wireguard(export, f"{path}.wireGuard", info.wireguard),
    )


def granted_networks(cluster_infos: Iterable[ResourceImport]) -> Networks:
    """Return the CIDRs of ResourceImports of kind ClusterInfo; the owners are cluster IDs."""
    return Networks(
        (*bounds, cluster_info.cluster_id)
        for cluster_info in cluster_infos
        for network in published(cluster_info) or ()
        if (bounds := range_of(str(network))) is not None
    )


def published(obj: ApiObject | None) -> tuple[Network, ...] | None:
    """Return Service CIDR and Pod CIDRs of a ResourceImport of kind ClusterInfo; None if none are valid there."""
    if not isinstance(obj, ResourceImport) or obj.spec.kind != ExportKind.CLUSTER_INFO:
        return None
    info = obj.spec.cluster_info
    if info is None or len(info.pod_cidrs) > MAX_CIDRS:
        return None
    texts = (info.service_cidr, *info.pod_cidrs) if info.service_cidr else info.pod_cidrs
    try:
        return tuple(_network(obj, "spec.clusterinfo", text) for text in texts) or None
    except InputError:
        return None


def _gateway_ip(obj: ApiObject, path: str, text: str) -> str:
    field = Field(obj.subject, text, path)
    address = field.address()
    if refusal := refuse_underlay(address):
        raise field.error(refusal.message, refusal.reason)
    return str(address)


def _wireguard(obj: ApiObject, path: str, published_info: WireGuard | None) -> WireGuard | None:
    """Return the checked WireGuard fields, None if there is no public key."""
    if published_info is None:
        return None
    key = Field(obj.subject, published_info.public_key, f"{path}.publicKey").public_key()
    following = Field(obj.subject, published_info.next_public_key, f"{path}.nextPublicKey").public_key()
    if not key:
        return None
    return structs.replace(published_info, public_key=key, next_public_key=following)


def _network(obj: ApiObject, path: str, text: str) -> Network:
    field = Field(obj.subject, text, path)
    network, _ = field.network()
    if refusal := refuse_network(network):
        raise field.error(refusal.message, refusal.reason)
    return network
