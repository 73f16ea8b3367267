"""The endpoints of an imported Service: those in its ResourceImport, and those of them that are used. Pure.

A leader may pass on what any member wrote, so all of it is checked; reading raises only InputError. Used are
endpoints in networks that other clusters announce: one with the address of this cluster's API server, a Node or
another Service would direct the Pods that use the imported Service to it; a loopback or link-local address would
be another machine on each Node.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import carried_by, ready_by_cluster, traffic_of
from mcagent.controller.contract.export_ranges import is_export_address
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import Networks, address_of, networks_of, range_of
from mcagent.controller.contract.services import (
    ImportedEndpoint,
    Ports,
    ServiceSpec,
    hostname_of,
    read_service_spec,
    read_subsets,
)
from mcagent.controller.machinery.reconciler import Leader, Ref, View
from mcagent.controller.member.exports import export_ref, is_export_of
from mcagent.controller.member.indexes import (
    API_SERVER,
    CLUSTER_INFOS,
    NODES_BY_ADDRESS,
    SLICES_BY_SERVICE,
    addresses_of,
)
from mcagent.controller.member.services.backends import cluster_ips, pod_ip_subsets
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiService
from mcagent.model.api.multicluster import ResourceExport, ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable

Announced = tuple[tuple[str, tuple[str, ...]], ...]  # cluster ID and CIDRs, of all other clusters
_SHOWN = 3  # addresses of a refusal that are named

_OF_THIS_CLUSTER = "of this cluster, which does not export the Service"
_UNKNOWN = "in no CIDR that another cluster announces, nor in allowedEndpointCIDRs of this one"
_OF_LEADER = "the API server of the leader"
_OF_OTHER_CLUSTER = "of a cluster that does not export the Service"


def cidrs_of(obj: ApiObject | None) -> tuple[str, ...]:
    """Return Service CIDR and Pod CIDRs of a ClusterInfo's ResourceImport, unchecked; () for other objects."""
    if not isinstance(obj, ResourceImport) or obj.spec.kind != ExportKind.CLUSTER_INFO:
        return ()
    info = obj.spec.cluster_info
    return () if info is None else tuple(filter(None, (info.service_cidr, *info.pod_cidrs)))


def networks(announced: Announced, own: Iterable[str], allowed: Iterable[str] = ()) -> tuple[Networks, Networks]:
    """Return this cluster's networks, and those of other clusters; "" owns the CIDRs in `allowed`."""
    owned = [
        *((cluster, text) for cluster, cidrs in announced for text in cidrs),
        *(("", text) for text in allowed),
    ]
    foreign = Networks((*bounds, cluster) for cluster, text in owned if (bounds := range_of(text)) is not None)
    return networks_of(own), foreign


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEndpoints:
    """The endpoints in a ResourceImport, unchecked."""

    endpoints: Sequence[ImportedEndpoint] = ()
    ready: Mapping[str, int] = field(default_factory=dict)  # endpoints behind the ClusterIPs of clusters


def read_service(resource_import: ResourceImport) -> ServiceSpec:
    """Return the Service of a ResourceImport of kind ServiceImport. Raises InputError."""
    carried = carried_by(resource_import)
    spec = read_service_spec(resource_import.spec.service_import.spec, resource_import, "spec.serviceImport.spec")
    traffic, _ = traffic_of(resource_import)  # the leader has reported an error in it to the exporter
    return replace(spec, labels=carried.labels, annotations=carried.annotations, traffic=traffic)


def read_endpoints(resource_import: ResourceImport) -> ImportedEndpoints:
    """Return the endpoints in a ResourceImport of kind Endpoints. Raises InputError.

    Addresses keep their order, each once for its cluster and ports. SUBSET_CLUSTERS_ANNOTATION has the cluster
    ID of each subset; without it (Antrea's leader writes none) the cluster is "".
    """
    subsets = list(read_subsets(resource_import.spec.endpoints, resource_import, "spec.endpoints"))
    cluster_ids = (resource_import.annotation(names.SUBSET_CLUSTERS_ANNOTATION) or "").split(",")
    clusters = (
        cluster_ids
        if len(cluster_ids) == len(subsets) and all(map(names.is_cluster_id, cluster_ids))
        else [""] * len(subsets)
    )
    addresses: dict[tuple[str, Ports, str], None] = {}
    hostnames: dict[str, str] = {}
    for cluster, (_, ports, items) in zip(clusters, subsets, strict=True):
        for item in items:
            addresses[cluster, ports, item.ip] = None
            if hostname := hostname_of(item):
                hostnames.setdefault(item.ip, hostname)
    endpoints = tuple(
        ImportedEndpoint(cluster=cluster, ports=ports, address=text, hostname=hostnames.get(text, ""))
        for cluster, ports, text in addresses
        if ports
    )
    return ImportedEndpoints(endpoints=endpoints, ready=ready_by_cluster(resource_import))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The endpoints that are used."""

    endpoints: Sequence[ImportedEndpoint]
    clusters: tuple[str, ...]  # the owners of the addresses, sorted
    refused: tuple[str, ...]  # a message for each reason of refusals


def own_addresses(view: View, leader: Leader, namespace: str, name: str) -> frozenset[str] | None:
    """Return the addresses that this cluster exports for a Service; None if it does not export it."""
    ref = export_ref(leader, names.endpoints_export(leader.cluster_id, namespace, name))
    export = view.get(ref, ResourceExport)
    if export is None or not is_export_of(export, leader, namespace, name, ExportKind.ENDPOINTS):
        return None
    subsets = export.spec.endpoints.subsets if export.spec.endpoints is not None else ()
    return frozenset(address.ip for subset in subsets for address in subset.addresses)


class KnownNetworks:
    """The networks of this cluster and of others, from ResourceImports and settings.

    They are the same for all imports, so the last value is kept, with the objects that it was made of.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._last: tuple[str, Sequence[ResourceImport], tuple[Networks, Networks]] | None = None

    def read(self, view: View, leader: Leader) -> tuple[Networks, Networks]:
        """Return this cluster's networks, and those of other clusters."""
        infos = view.indexed(CLUSTER_INFOS, ExportKind.CLUSTER_INFO)
        last = self._last
        if last is not None and last[0] == leader.cluster_id and _same(last[1], infos):
            return last[2]
        announced = tuple((i.cluster_id, cidrs_of(i)) for i in infos if i.cluster_id != leader.cluster_id)
        own = [text for info in infos if info.cluster_id == leader.cluster_id for text in cidrs_of(info)]
        own += [*filter(None, (self._settings.service_cidr,)), *self._settings.pod_cidrs]
        own_and_foreign = networks(announced, own, self._settings.allowed_endpoint_cidrs)
        self._last = (leader.cluster_id, infos, own_and_foreign)
        return own_and_foreign


def _same(before: Sequence[ResourceImport], after: Sequence[ResourceImport]) -> bool:
    return len(before) == len(after) and all(map(operator.is_, before, after))


def exporters_of(resource_import: ResourceImport | None) -> frozenset[str] | None:
    """Return the clusters whose endpoints are in a ResourceImport; None if the leader is Antrea's."""
    text = None if resource_import is None else resource_import.annotation(names.EXPORTERS_ANNOTATION)
    return None if text is None else frozenset(filter(None, text.split(",")))


def accept(
    endpoints: Iterable[ImportedEndpoint],
    own: frozenset[str] | None,
    view: View,
    leader: Leader,
    known_networks: KnownNetworks,
    *,
    exporters: frozenset[str] | None = None,
) -> Accepted:
    """Return the endpoints that are used. `own`: the addresses that this cluster exports (`own_addresses`).

    An address that this cluster exports is used. Any other address of this cluster (of its CIDRs, Nodes, API
    servers) and that of the leader's API server are refused. The others are used if they lie in a network of a
    cluster that exports the Service (`exporters`; None: of any other cluster), or in no network of a cluster and
    in `allowedEndpointCIDRs`. The network decides the owner of an address; the leader's owner decides only
    between several clusters with that network, or if there is none.
    """
    own_networks, foreign_networks = known_networks.read(view, leader)
    own_servers, leader_servers = _api_servers(view), frozenset(leader.addresses)
    accepted: list[ImportedEndpoint] = []
    reasons = (_OF_THIS_CLUSTER, _UNKNOWN, _OF_LEADER, _OF_OTHER_CLUSTER)
    refused: dict[str, list[str]] = {reason: [] for reason in reasons}
    for endpoint in endpoints:
        text, number = endpoint.address, address_of(endpoint.address)
        if number is None:
            refused[_UNKNOWN].append(text)
        elif own is not None and text in own:
            accepted.append(replace(endpoint, cluster=leader.cluster_id))
        elif own_networks.owners(number) or text in own_servers or view.indexed(NODES_BY_ADDRESS, text):
            refused[_OF_THIS_CLUSTER].append(text)
        elif text in leader_servers:
            refused[_OF_LEADER].append(text)
        elif not (owners := foreign_networks.owners(number)):
            refused[_UNKNOWN].append(text)
        else:
            owning_clusters = {owner for owner in owners if owner}
            possible = owning_clusters if exporters is None else owning_clusters & exporters
            if owning_clusters and not possible:
                refused[_OF_OTHER_CLUSTER].append(text)
            elif possible and endpoint.cluster not in possible:
                accepted.append(replace(endpoint, cluster=min(possible)))
            else:
                accepted.append(endpoint)
    if own is not None:  # this cluster exported them a moment ago
        del refused[_OF_THIS_CLUSTER]
    return Accepted(
        endpoints=accepted,
        clusters=tuple(sorted({endpoint.cluster for endpoint in accepted} - {""})),
        refused=tuple(f"{_named(addresses)}: {reason}" for reason, addresses in refused.items() if addresses),
    )


def _api_servers(view: View) -> frozenset[str]:
    slices = view.indexed(SLICES_BY_SERVICE, API_SERVER)
    return frozenset(text for endpoint_slice in slices for text in addresses_of(endpoint_slice))


def _named(addresses: list[str]) -> str:
    shown = ", ".join(printable(text) for text in sorted(set(addresses))[:_SHOWN])
    hidden = len(set(addresses)) - _SHOWN
    return f"endpoints {shown}" + (f" and {hidden} more" if hidden > 0 else "")


def behind_own_address(
    endpoints: Sequence[ImportedEndpoint],
    own: frozenset[str] | None,
    view: View,
    leader: Leader,
    key: str,
    *,
    export_range: str = "",
) -> Sequence[ImportedEndpoint]:
    """Return the endpoints of the Service `key` ("namespace/name"), its Pods in place of its own ClusterIP.

    The ClusterIP of each exporter is an endpoint of the imported Service. kube-proxy, in each mode, translates a
    connection once, so a connection to the ClusterIP of the own cluster would leave with that destination
    address, and be lost. So the exporting cluster imports the Service's ready endpoints in its place, with the
    ports that it has in the ClusterSet. The same applies to the Service's address in the `export_range` of this
    cluster, which leads nowhere here. `own`: the addresses that this cluster exports; None: it exports none.
    """
    namespace, _, name = key.partition("/")
    service = view.get(Ref(kind=Kind.SERVICE, namespace=namespace, name=name), ApiService)
    own_ips = frozenset(cluster_ips(service) if service is not None and own else ()) & (own or frozenset())
    own_ips |= {text for text in own or () if export_range and is_export_address(text, export_range)}
    serving = {name for endpoint in endpoints if endpoint.address in own_ips for name, _, _ in endpoint.ports}
    if service is None or not serving:
        return endpoints
    pods = [
        ImportedEndpoint(address=text, ports=served_ports, cluster=leader.cluster_id)
        for ports, addresses in pod_ip_subsets(service, view.indexed(SLICES_BY_SERVICE, key)).items()
        if (served_ports := tuple(port for port in ports if port[0] in serving))
        for text in addresses
    ]
    return [*(endpoint for endpoint in endpoints if endpoint.address not in own_ips), *pods]
