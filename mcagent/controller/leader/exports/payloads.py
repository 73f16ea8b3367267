"""What is in a member's ResourceExport, checked: the Service, its endpoints, the cluster's network.

Pure. Raises only InputError, whatever the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mcagent.controller.contract.cidr_claims import MAX_CIDRS, MAX_GATEWAYS
from mcagent.controller.contract.exported_metadata import carried_by
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.services import (
    Ports,
    ServiceSpec,
    hostname_of,
    read_service_spec,
    read_subsets,
    too_many,
)
from mcagent.controller.contract.shares import read_ready_of
from mcagent.core.addresses.rules import refuse_network
from mcagent.core.addresses.underlay import refuse_underlay
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ClusterInfo, GatewayInfo, ResourceExport, ResourceImport, WireGuard
from mcagent.model.errors import InputError
from mcagent.model.net import Address, Network
from mcagent.model.parsing.field import Field

MAX_PORT_SETS = 64  # subsets of one export; named ports that differ from Pod to Pod make several


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The endpoints that a cluster exports: addresses by the ports they serve; what was left out, in words."""

    subsets: Mapping[Ports, frozenset[Address]]
    hostnames: Mapping[Address, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    over: int = 0  # endpoints that are more than one export may have
    ready: int | None = None  # what the cluster says stands behind its ClusterIP
    remark: str = ""  # what is wrong with that

    @property
    def count(self) -> int:
        """Return how many addresses there are, counted once for each set of ports."""
        return sum(map(len, self.subsets.values()))


def read_definition(export: ResourceExport, traffic: str = "") -> ServiceSpec:
    """Return what a Service export says that the Service is, with what counts of `traffic`. Raises InputError."""
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
    """Return the endpoints of an export that can be used; those that cannot are left out and named.

    `refuse` says why an address cannot be one of this cluster's endpoints, "" if it can. At most `most` are taken,
    the first in order of address, and as many count as ready. Raises InputError when the whole is unreadable.
    """
    if export.spec.endpoints is None:
        export.check("spec.endpoints")
        raise _missing(export, "spec.endpoints")
    found: dict[Ports, set[Address]] = {}
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
                found.setdefault(ports, set()).add(address)
                if hostname := hostname_of(item):
                    hostnames[address] = hostname
    kept, dropped = _first(found, most)
    ready, remark = read_ready_of(export)
    return Backends(
        subsets=kept,
        hostnames=hostnames,
        left_out=tuple(left_out),
        over=dropped,
        ready=None if ready is None else min(ready, most),
        remark=remark,
    )


def _first(found: Mapping[Ports, set[Address]], most: int) -> tuple[dict[Ports, frozenset[Address]], int]:
    """Return the first endpoints in order of address, then ports; and how many that leaves out."""
    count = sum(map(len, found.values()))
    if count <= most:
        return {ports: frozenset(addresses) for ports, addresses in found.items()}, 0
    pairs = ((address.version, int(address), ports, address) for ports, some in found.items() for address in some)
    kept: dict[Ports, set[Address]] = {}
    for _, _, ports, address in sorted(pairs, key=lambda pair: pair[:3])[:most]:
        kept.setdefault(ports, set()).add(address)
    return {ports: frozenset(addresses) for ports, addresses in kept.items()}, count - most


def read_cluster_info(export: ResourceExport) -> ClusterInfo:
    """Return a cluster's network, each CIDR once and in its canonical form.

    Raises InputError, also when it is about another cluster.
    """
    path, info = "spec.clusterInfo", export.spec.cluster_info
    export.check(path)
    if info is None:
        raise _missing(export, path)
    if info.cluster_id != export.spec.cluster_id:
        why = "must be the exporting cluster's, as spec.clusterID"
        raise InputError(export.subject, f"{path}.clusterID", why, code="Mismatch")
    for name, many, most in (
        ("podCIDRs", info.pod_cidrs, MAX_CIDRS),
        ("gatewayInfos", info.gateway_infos, MAX_GATEWAYS),
    ):
        if len(many) > most:
            raise too_many(export, f"{path}.{name}", len(many), most)
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


def published(obj: ApiObject | None) -> tuple[Network, ...] | None:
    """Return the CIDRs in a ResourceImport of kind ClusterInfo, None when it is none or has none."""
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
    """Return what is published of WireGuard, None when there is no key."""
    if published_info is None:
        return None
    key = Field(obj.subject, published_info.public_key, f"{path}.publicKey").public_key()
    following = Field(obj.subject, published_info.next_public_key, f"{path}.nextPublicKey").public_key()
    if not key:
        return None
    return WireGuard(public_key=key, next_public_key=following, port=published_info.port)


def _network(obj: ApiObject, path: str, text: str) -> Network:
    field = Field(obj.subject, text, path)
    network, _ = field.network()
    if refusal := refuse_network(network):
        raise field.error(refusal.message, refusal.reason)
    return network
