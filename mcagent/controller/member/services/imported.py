"""The objects that stand for an imported Service: their names, whose they are, and what is in them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mcagent.controller.contract import names
from mcagent.controller.contract.services import (
    NO_CLUSTER_IP,
    Groups,
    Hostnames,
    Ports,
    ServiceSpec,
    endpoint_subsets,
    service_ports,
    session_affinity,
)
from mcagent.controller.machinery.reconciler import Json, Ref, View, Wanted
from mcagent.controller.member.indexes import SLICES_BY_SERVICE, service_of
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiService, Endpoints
from mcagent.model.api.multicluster import ApiServiceImport
from mcagent.model.objects import Kind
from mcagent.model.traffic import READY_ANNOTATION

WHOLE = 100  # so many endpoints are one slice in any case
CUT = 64  # one in so many hashes begins a slice
MOST = 1000  # what the API takes
_CLOSE = "PreferClose"  # the one trafficDistribution that all versions of Kubernetes take which know the field
_CLOSE_TOO = frozenset({_CLOSE, "PreferSameZone", "PreferSameNode"})  # the last falls back to the zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What slices say beside addresses and ports.

    `ready`: how many endpoints stand behind the ClusterIPs of other clusters. `places`: node, zone and hints of
    this cluster's endpoints, by address.
    """

    hostnames: Hostnames = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedService:
    """An imported Service and the objects that stand for it here."""

    namespace: str
    name: str

    @property
    def service(self) -> Ref:
        """Return the Service."""
        return Ref(kind=Kind.SERVICE, namespace=self.namespace, name=names.imported(self.name))

    @property
    def endpoints(self) -> Ref:
        """Return the Endpoints."""
        return Ref(kind=Kind.ENDPOINTS, namespace=self.namespace, name=names.imported(self.name))

    @property
    def service_import(self) -> Ref:
        """Return the ServiceImport."""
        return Ref(kind=Kind.SERVICE_IMPORT, namespace=self.namespace, name=self.name)

    def slice(self, name: str) -> Ref:
        """Return one of its EndpointSlices."""
        return Ref(kind=Kind.ENDPOINT_SLICE, namespace=self.namespace, name=name)


def owner_of(obj: ApiObject | None) -> str:
    """Return the key of what may be an object that stands for an imported Service; "" for any other."""
    match obj:
        case ApiServiceImport():
            return obj.key
        case ApiService() | Endpoints():
            service = obj.name
        case ApiEndpointSlice():
            service = service_of(obj)
        case _:
            return ""
    imported = service.startswith(names.IMPORTED_PREFIX)
    return f"{obj.namespace}/{service.removeprefix(names.IMPORTED_PREFIX)}" if imported else ""


def removals(target: ImportedService, view: View) -> list[Wanted | Ref]:
    """Return what goes with an imported Service: only what was made for it."""
    steps: list[Wanted | Ref] = []
    service = view.get(target.service, ApiService)
    present = view.get(target.service_import, ApiServiceImport)
    if present is not None and is_our_import(present, service):
        steps.append(target.service_import)
    if service is not None and is_imported(service) and not service.is_deleting:
        steps += [target.endpoints, target.service]
    steps += [target.slice(endpoint_slice.name) for endpoint_slice in our_slices(target, view)]
    return steps


def is_imported(obj: ApiObject) -> bool:
    """Tell whether a Service or Endpoints object was made for an import, by us or by Antrea."""
    return obj.annotation(names.IMPORTED_SERVICE_ANNOTATION) == "true"


def is_our_import(service_import: ApiServiceImport, service: ApiService | None) -> bool:
    """Tell whether a ServiceImport is ours, or was Antrea's, which does not mark them: it has its Service's IP."""
    if service_import.labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY:
        return True
    address = service.spec.cluster_ip if service is not None and is_imported(service) else ""
    return bool(address) and service_import.spec.ips == (address,)


def our_slices(target: ImportedService, view: View) -> list[ApiEndpointSlice]:
    """Return the EndpointSlices that we made."""
    service_slices = view.indexed(SLICES_BY_SERVICE, f"{target.namespace}/{target.service.name}")
    return [s for s in service_slices if s.labels.get(names.SLICE_MANAGED_BY_LABEL) == names.SLICE_MANAGED_BY]


def is_mirrored(target: ImportedService, view: View) -> bool:
    """Tell whether Kubernetes mirrors Endpoints into slices, which somebody else must have made."""
    service_slices = view.indexed(SLICES_BY_SERVICE, f"{target.namespace}/{target.service.name}")
    return any(s.labels.get(names.SLICE_MANAGED_BY_LABEL) == names.SLICE_MIRRORED_BY for s in service_slices)


def _marks() -> Json:
    return {
        "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
        "annotations": {names.IMPORTED_SERVICE_ANNOTATION: "true"},
    }


def service_object(target: ImportedService, definition: ServiceSpec) -> Wanted:
    """Return the Service.

    It has no internalTrafficPolicy: with Local, Nodes without an endpoint would drop what others can serve.
    """
    ports = [entry | {"targetPort": entry["port"]} for entry in service_ports(definition)]
    spec = {
        "type": "ClusterIP",
        "selector": None,
        "ports": ports,
        "trafficDistribution": _CLOSE if definition.distribution in _CLOSE_TOO else None,
        **session_affinity(None if definition.headless else definition.affinity_seconds, "None"),
    }
    if definition.headless:
        spec["clusterIP"] = NO_CLUSTER_IP
    return Wanted(ref=target.service, body={"metadata": _marks(), "spec": spec})


def is_of_other_type(service: ApiService | None, definition: ServiceSpec) -> bool:
    """Tell whether a Service has to be made anew: whether it has a ClusterIP cannot be changed."""
    address = service.spec.cluster_ip if service is not None else ""
    return bool(address) and (address == NO_CLUSTER_IP) != definition.headless


def endpoints_of(target: ImportedService, groups: Groups, hostnames: Hostnames) -> Wanted:
    """Return the Endpoints. A label keeps Kubernetes from mirroring them: the slices are there already."""
    meta = _marks()
    meta["labels"] |= {names.SKIP_MIRROR_LABEL: "true"}
    addresses_by_ports: dict[Ports, dict[str, None]] = {}
    for (_, ports), addresses in sorted(groups.items()):
        addresses_by_ports.setdefault(ports, {}).update(dict.fromkeys(addresses))
    subsets = endpoint_subsets(
        {ports: tuple(addresses) for ports, addresses in addresses_by_ports.items()}, hostnames
    )
    return Wanted(ref=target.endpoints, body={"metadata": meta, "subsets": subsets})


# --- EndpointSlices -----------------------------------------------------------------------------------------


def slices(target: ImportedService, groups: Groups, details: Details) -> dict[str, Json]:
    """Return the EndpointSlices of a Service by name, the same whatever was there before. Addresses are IPv4.

    Endpoints of one cluster that serve the same ports are sorted by a hash of their address and cut where the hash
    itself says so, in slices of about 64: a change of one endpoint changes one slice (or joins two, or cuts one in
    two), however many there are. Nothing has to be remembered for that: every controller cuts alike.
    """
    slices_by_name: dict[str, Json] = {}
    for (cluster, ports), addresses in sorted(groups.items()):
        served = (f"{name}/{protocol}/{port}" for name, protocol, port in ports)
        group = _digest("|".join((cluster, *served)))[:8]
        labels = {
            names.SERVICE_NAME_LABEL: target.service.name,
            names.SLICE_MANAGED_BY_LABEL: names.SLICE_MANAGED_BY,
            names.MCS_SERVICE_NAME_LABEL: target.name,
        } | ({names.MCS_SOURCE_CLUSTER_LABEL: cluster} if cluster else {})
        number = details.ready.get(cluster)
        meta = {"labels": labels, "annotations": {READY_ANNOTATION: None if number is None else str(number)}}
        for mark, members in _cut(addresses):
            name = f"{target.service.name}-{group}" + (f"-{mark}" if mark else "")
            slices_by_name[name] = _slice(meta, ports, members, details)
    return slices_by_name


def _slice(meta: Json, ports: Ports, addresses: Iterable[str], details: Details) -> Json:
    hostnames = details.hostnames
    endpoints = [
        {"addresses": [text], "conditions": {"ready": True}}
        | ({"hostname": hostnames[text]} if text in hostnames else {})
        | details.places.get(text, {})
        for text in addresses
    ]
    return {
        "metadata": meta,
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": name, "port": port, "protocol": protocol} for name, protocol, port in ports],  # "" too
    }


def _cut(addresses: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the chunks, each with what names it: the hash of its first address, "" for what comes first."""
    if len(addresses) <= WHOLE:
        if addresses:
            yield "", sorted(addresses)
        return
    mark, members = "", list[str]()
    for digest, text in sorted((_digest(text), text) for text in addresses):
        if members and (int(digest[-4:], 16) % CUT == 0 or len(members) == MOST):
            yield mark, sorted(members)
            mark, members = digest[:10], []
        members.append(text)
    yield mark, sorted(members)


def _digest(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=10).hexdigest()
