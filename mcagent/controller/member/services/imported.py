"""The objects of an imported Service: Service, EndpointSlices, Endpoints and ServiceImport. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import Texts
from mcagent.controller.contract.services import (
    CLIENT_IP,
    NO_AFFINITY,
    NO_CLUSTER_IP,
    EndpointPort,
    Group,
    Hostnames,
    ImportedEndpoint,
    Ports,
    ServiceSpec,
    affinity_config,
    endpoint_subsets,
    import_spec,
    service_ports,
)
from mcagent.controller.machinery.reconciler import Ref, View, Wanted
from mcagent.controller.member.indexes import SLICES_BY_SERVICE, service_of
from mcagent.controller.member.membership import is_managed, managed_labels
from mcagent.model.api.base import ApiObject, Metadata
from mcagent.model.api.kubernetes import (
    ApiEndpoint,
    ApiEndpointPort,
    ApiEndpointSlice,
    ApiService,
    ApiServiceSpec,
    EndpointConditions,
    Endpoints,
)
from mcagent.model.api.multicluster import ApiServiceImport, ImportedCluster, ServiceImportStatus
from mcagent.model.api.patches import ABSENT, UNSET, metadata_patch, patch
from mcagent.model.objects import IpProtocol, Kind
from mcagent.model.traffic import EXPORTED_TRAFFIC_ANNOTATION, READY_ANNOTATION

WHOLE = 100  # endpoints that are not divided into several slices
CUT = 64  # endpoints of a slice on average: one in so many hashes begins a slice
MOST = 1000  # endpoints of a slice, the limit of the API
_CLOSE = "PreferClose"  # the trafficDistribution that all versions of Kubernetes with this field accept
_CLOSE_TOO = frozenset({_CLOSE, "PreferSameZone", "PreferSameNode"})  # the last falls back to the zone


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedService:
    """The names of the objects of an imported Service."""

    namespace: str
    name: str

    @property
    def service(self) -> Ref:
        """The Service, with the prefix of imported Services."""
        return Ref(kind=Kind.SERVICE, namespace=self.namespace, name=names.imported(self.name))

    @property
    def endpoints(self) -> Ref:
        """The Endpoints, named as the Service."""
        return Ref(kind=Kind.ENDPOINTS, namespace=self.namespace, name=names.imported(self.name))

    @property
    def service_import(self) -> Ref:
        """The ServiceImport, without the prefix."""
        return Ref(kind=Kind.SERVICE_IMPORT, namespace=self.namespace, name=self.name)

    def slice(self, name: str) -> Ref:
        """Return the reference to an EndpointSlice of the Service."""
        return Ref(kind=Kind.ENDPOINT_SLICE, namespace=self.namespace, name=name)


def owner_of(obj: ApiObject | None) -> str:
    """Return "namespace/name" of the imported Service that an object may belong to, by its name; "" for others."""
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
    """Return the deletion of an imported Service and its objects; objects of other owners stay."""
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
    """Tell whether a Service or Endpoints object was made for an import, by mcagent or by Antrea."""
    return obj.annotation(names.IMPORTED_SERVICE_ANNOTATION) == "true"


def is_our_import(service_import: ApiServiceImport, service: ApiService | None) -> bool:
    """Tell whether a ServiceImport is of an import: by its label, or, if Antrea's, by the IP of its Service."""
    if is_managed(service_import):
        return True
    address = service.spec.cluster_ip if service is not None and is_imported(service) else ""
    return bool(address) and service_import.spec.ips == (address,)


def our_slices(target: ImportedService, view: View) -> list[ApiEndpointSlice]:
    """Return the EndpointSlices that this controller manages."""
    service_slices = view.indexed(SLICES_BY_SERVICE, f"{target.namespace}/{target.service.name}")
    return [s for s in service_slices if s.labels.get(names.SLICE_MANAGED_BY_LABEL) == names.SLICE_MANAGED_BY]


def is_mirrored(target: ImportedService, view: View) -> bool:
    """Tell whether Kubernetes mirrors Endpoints into slices; then another controller made the Endpoints."""
    service_slices = view.indexed(SLICES_BY_SERVICE, f"{target.namespace}/{target.service.name}")
    return any(s.labels.get(names.SLICE_MANAGED_BY_LABEL) == names.SLICE_MIRRORED_BY for s in service_slices)


def _marks(**labels: str) -> Metadata:
    return metadata_patch(
        labels=managed_labels() | labels, annotations={names.IMPORTED_SERVICE_ANNOTATION: "true"}
    )


def service_object(target: ImportedService, definition: ServiceSpec, present: ApiService | None = None) -> Wanted:
    """Return the Service, with an IPv4 address, as its slices are IPv4, whichever family the cluster has first.

    internalTrafficPolicy Local would drop connections on Nodes without endpoints.
    """
    seconds = None if definition.headless else definition.affinity_seconds
    families = (present.spec.ip_families if present is not None else ()) or ("IPv4",)
    spec = patch(
        ApiServiceSpec,
        type="ClusterIP",
        selector=ABSENT,
        ports=service_ports(definition.ports, are_targets=True),
        cluster_ip=NO_CLUSTER_IP if definition.headless else UNSET,
        ip_families=UNSET if definition.headless else families,
        session_affinity=NO_AFFINITY if seconds is None else CLIENT_IP,
        session_affinity_config=affinity_config(seconds),
        traffic_distribution=_CLOSE if definition.distribution in _CLOSE_TOO else ABSENT,
    )
    return Wanted(ref=target.service, body=patch(ApiService, metadata=_marks(), spec=spec))


def is_of_other_type(service: ApiService | None, definition: ServiceSpec) -> bool:
    """Tell whether a Service must be deleted first: only a new one can become headless or cease to be, or IPv4."""
    address = service.spec.cluster_ip if service is not None else ""
    other = (address == NO_CLUSTER_IP) != definition.headless
    return bool(address) and (other or all(":" in text for text in _addresses(service)))


def endpoints_of(target: ImportedService, endpoints: Sequence[ImportedEndpoint]) -> Wanted:
    """Return the Endpoints. SKIP_MIRROR_LABEL prevents that Kubernetes mirrors them into slices."""
    addresses_by_ports: dict[Ports, dict[str, None]] = {}
    for endpoint in sorted(endpoints, key=lambda endpoint: (endpoint.cluster, endpoint.ports)):
        addresses_by_ports.setdefault(endpoint.ports, {})[endpoint.address] = None
    addresses = {ports: tuple(texts) for ports, texts in addresses_by_ports.items()}
    subsets = endpoint_subsets(addresses, _hostnames(endpoints))
    metadata = _marks(**{names.SKIP_MIRROR_LABEL: "true"})
    return Wanted(ref=target.endpoints, body=patch(Endpoints, metadata=metadata, subsets=subsets))


# --- the ServiceImport ---------------------------------------------------------------------------------------


def service_import_of(
    target: ImportedService,
    definition: ServiceSpec,
    service: ApiService | None,
    clusters: Iterable[str],
    present: ApiServiceImport | None,
) -> Wanted:
    """Return the ServiceImport, with the ClusterIPs of `service`. `present`: the ServiceImport as it is."""
    ips = () if definition.headless else _addresses(service)
    families = ["IPv4"] if definition.headless else ["IPv6" if ":" in text else "IPv4" for text in ips]
    body = patch(
        ApiServiceImport,
        metadata=_metadata(target, definition, present),
        # families of this cluster: slices are IPv4, Services have its families
        spec=import_spec(definition, families, ips=ips, no_affinity=NO_AFFINITY),
        status=patch(
            ServiceImportStatus,
            endpoint_slice_objects="Present",  # slices are published, also if no endpoint is ready yet
            clusters=tuple(ImportedCluster(cluster=cluster) for cluster in clusters),
        ),
    )
    return Wanted(ref=target.service_import, body=body)


def _addresses(service: ApiService | None) -> tuple[str, ...]:
    if service is None:
        return ()
    return service.spec.cluster_ips or tuple(filter(None, (service.spec.cluster_ip,)))


def _metadata(target: ImportedService, definition: ServiceSpec, present: ApiServiceImport | None) -> Metadata:
    """Return labels and annotations. Those that are not exported any more are removed; foreign ones stay."""
    before = _keys_before(present)
    keys = {
        "labels": [key for key, _ in definition.labels],
        "annotations": [key for key, _ in definition.annotations],
    }
    labels = _changed(before.get("labels"), definition.labels) | managed_labels()
    annotations = _changed(before.get("annotations"), definition.annotations)
    annotations[names.DERIVED_SERVICE_ANNOTATION] = target.service.name
    annotations[EXPORTED_TRAFFIC_ANNOTATION] = definition.traffic or None
    annotations[names.EXPORTED_KEYS_ANNOTATION] = json.dumps(keys) if any(keys.values()) else None
    return metadata_patch(labels=labels, annotations=annotations)


def _keys_before(present: ApiServiceImport | None) -> Mapping[str, object]:
    text = present.annotation(names.EXPORTED_KEYS_ANNOTATION) if present is not None else None
    try:
        keys = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return keys if isinstance(keys, dict) else {}


def _changed(before: object, exported: Texts) -> dict[str, str | None]:
    gone = [key for key in before if isinstance(key, str)] if isinstance(before, list) else []
    return {**dict.fromkeys(gone), **dict(exported)}


# --- EndpointSlices -----------------------------------------------------------------------------------------


def slices(
    target: ImportedService,
    endpoints: Sequence[ImportedEndpoint],
    ready: Mapping[str, int],
    places: Mapping[str, ApiEndpoint],
) -> dict[str, ApiEndpointSlice]:
    """Return the EndpointSlices of a Service by name, independently of present ones. Addresses are IPv4.

    Endpoints of one cluster with the same ports are sorted by a hash of their address. One in CUT hashes begins a
    slice, so a change of one endpoint changes one slice (or joins two, or divides one), whatever their number, and
    each controller makes the same slices without state.
    `ready`: the endpoints behind the ClusterIPs of other clusters. `places`: `places_of` own endpoints.
    """
    hostnames = _hostnames(endpoints)
    groups: dict[Group, dict[str, None]] = {}
    divided = {ports: _with_distinct_names(ports) for ports in {endpoint.ports for endpoint in endpoints}}
    for endpoint in endpoints:
        for ports in divided[endpoint.ports]:
            groups.setdefault((endpoint.cluster, ports), {})[endpoint.address] = None
    slices_by_name: dict[str, ApiEndpointSlice] = {}
    for (cluster, ports), addresses in sorted(groups.items()):
        served = (f"{name}/{protocol}/{port}" for name, protocol, port in ports)
        group = _digest("|".join((cluster, *served)))[:8]
        labels = {
            names.SERVICE_NAME_LABEL: target.service.name,
            names.SLICE_MANAGED_BY_LABEL: names.SLICE_MANAGED_BY,
            names.MCS_SERVICE_NAME_LABEL: target.name,
        } | ({names.MCS_SOURCE_CLUSTER_LABEL: cluster} if names.is_cluster_id(cluster) else {})
        number = ready.get(cluster)
        notes = {READY_ANNOTATION: None if number is None else str(number)}
        metadata = metadata_patch(labels=labels, annotations=notes)
        for mark, members in _cut([*addresses]):
            name = f"{target.service.name}-{group}" + (f"-{mark}" if mark else "")
            slices_by_name[name] = _slice(metadata, ports, members, hostnames, places)
    return slices_by_name


def _with_distinct_names(ports: Ports) -> list[Ports]:
    """Return ports in groups that have each name once, as API servers require of a slice."""
    groups: list[list[EndpointPort]] = []
    counts = Counter[str]()
    for port in ports:
        if counts[port[0]] == len(groups):
            groups.append([])
        groups[counts[port[0]]].append(port)
        counts[port[0]] += 1
    return [tuple(group) for group in groups]


def _hostnames(endpoints: Sequence[ImportedEndpoint]) -> Hostnames:
    return {endpoint.address: endpoint.hostname for endpoint in endpoints if endpoint.hostname}


_READY = EndpointConditions(ready=True)
_NO_PLACE = ApiEndpoint()


def _slice(
    metadata: Metadata,
    ports: Ports,
    addresses: Iterable[str],
    hostnames: Hostnames,
    places: Mapping[str, ApiEndpoint],
) -> ApiEndpointSlice:
    endpoints = (
        ApiEndpoint(
            addresses=(text,),
            conditions=_READY,
            hostname=hostnames.get(text, ""),
            node_name=place.node_name,
            zone=place.zone,
            hints=place.hints,
        )
        for text, place in ((text, places.get(text, _NO_PLACE)) for text in addresses)
    )
    slice_ports = (
        patch(ApiEndpointPort, name=name, port=port, protocol=IpProtocol(protocol))  # the name also if it is ""
        for name, protocol, port in ports
    )
    return patch(
        ApiEndpointSlice,
        metadata=metadata,
        address_type="IPv4",
        endpoints=tuple(endpoints),
        ports=tuple(slice_ports),
    )


def _cut(addresses: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the addresses of each slice with its mark, the hash of the first one; "" for the first slice."""
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
