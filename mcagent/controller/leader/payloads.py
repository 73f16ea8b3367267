"""What is in a member's ResourceExport, checked: the Service, its endpoints, the cluster's network.

Pure: raw objects to frozen values with known fields only. Raises only InputError, whatever the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mcagent.controller.contract.cidr_claims import MAX_CIDRS, MAX_GATEWAYS
from mcagent.controller.contract.exported_metadata import carried_by
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import text_at
from mcagent.controller.contract.services import Ports, ServiceSpec, hostname_of, read_service_spec, read_subsets
from mcagent.controller.contract.shares import read_ready_of
from mcagent.controller.leader.exports import cluster_of, subject
from mcagent.core.addresses.rules import refuse_network
from mcagent.core.addresses.underlay import refuse_underlay
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.field import Field
from mcagent.model.net import Address, Network
from mcagent.model.objects import Kind

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


def read_definition(raw: RawObject, traffic: str = "") -> ServiceSpec:
    """Return what a Service export says that the Service is, with what counts of `traffic`. Raises InputError."""
    payload = subject(raw).get("spec").get("service")
    if payload.absent:
        raise payload.error("is missing: an export of kind Service has it", "Missing")
    carried = carried_by(raw)
    spec = read_service_spec(payload.get("serviceSpec"))
    return replace(spec, labels=carried.labels, annotations=carried.annotations, traffic=traffic)


def read_backends(raw: RawObject, refuse: Callable[[Address], str], most: int) -> Backends:
    """Return the endpoints of an export that can be used; those that cannot are left out and named.

    `refuse` says why an address cannot be one of this cluster's endpoints, "" if it can. At most `most` are taken,
    the first in order of address, and as many count as ready. Raises InputError when the whole is unreadable.
    """
    payload = subject(raw).get("spec").get("endpoints")
    if payload.absent:
        raise payload.error("is missing: an export of kind Endpoints has it", "Missing")
    found: dict[Ports, set[Address]] = {}
    hostnames: dict[Address, str] = {}
    left_out: list[str] = []
    for subset, ports, addresses in read_subsets(payload, MAX_PORT_SETS):
        if not ports:
            raise subset.get("ports").error("is empty: an endpoint is an address and ports", "Missing")
        for item in addresses:
            try:
                address = item.get("ip").address()
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
    ready, remark = read_ready_of(raw)
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


def read_cluster_info(raw: RawObject) -> RawObject:
    """Return a cluster's network as a ResourceImport has it: known, valid fields only.

    Raises InputError, also when it is about another cluster.
    """
    spec = subject(raw).get("spec")
    info = spec.get("clusterInfo")
    if info.absent:
        raise info.error("is missing: an export of kind ClusterInfo has it", "Missing")
    if info.get("clusterID").text() != cluster_of(raw):
        raise info.get("clusterID").error("must be the exporting cluster's, as spec.clusterID", "Mismatch")
    service_cidr = None if info.get("serviceCIDR").value in (None, "") else _network(info.get("serviceCIDR"))
    pod_cidrs = tuple(
        dict.fromkeys(_network(item) for item in info.get("podCIDRs").each(MAX_CIDRS) if item.value != "")
    )
    gateways = [_gateway(item) for item in info.get("gatewayInfos").each(MAX_GATEWAYS)]
    copy: RawObject = {"clusterID": cluster_of(raw)}
    key = _wireguard(info)
    copy |= {"serviceCIDR": str(service_cidr)} if service_cidr else {}
    copy |= {"podCIDRs": [str(network) for network in pod_cidrs]} if pod_cidrs else {}
    copy |= {"gatewayInfos": gateways} if gateways else {}
    copy |= {"wireGuard": key} if key else {}
    return copy


def published(raw: RawObject | None) -> tuple[Network, ...] | None:
    """Return the CIDRs in a ResourceImport of kind ClusterInfo, None when it is none or has none."""
    if raw is None or text_at(raw, "spec", "kind") != ExportKind.CLUSTER_INFO:
        return None
    info = Field(str(Kind.RESOURCE_IMPORT), raw).get("spec").get("clusterinfo")
    try:
        service = [] if info.get("serviceCIDR").value in (None, "") else [_network(info.get("serviceCIDR"))]
        return (*service, *(_network(item) for item in info.get("podCIDRs").each(MAX_CIDRS))) or None
    except InputError:
        return None


def _gateway(item: Field) -> RawObject:
    address = item.get("gatewayIP").address()
    refusal = refuse_underlay(address)
    if refusal:
        raise item.get("gatewayIP").error(refusal.message, refusal.reason)
    key = _wireguard(item)
    return {"gatewayIP": str(address)} | ({"wireGuard": key} if key else {})


def _wireguard(holder: Field) -> RawObject:
    """Return what is published of WireGuard, {} when there is no key. `publicKey` is Antrea's, the others ours."""
    info = holder.get("wireGuard")
    key = info.get("publicKey").public_key()
    if not key:
        return {}
    following = info.get("nextPublicKey").public_key()
    port = info.get("port")
    found: RawObject = {"publicKey": key}
    found |= {"nextPublicKey": following} if following else {}
    found |= {} if port.absent else {"port": port.port()}
    return found


def _network(field: Field) -> Network:
    network, _ = field.network()
    refusal = refuse_network(network)
    if refusal:
        raise field.error(refusal.message, refusal.reason)
    return network
