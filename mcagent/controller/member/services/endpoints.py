"""Which endpoints of an import are used, by `networks` and by what this cluster itself exports. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import Networks, address_of
from mcagent.controller.contract.services import Group, Groups
from mcagent.controller.machinery.reconciler import Leader, Ref, View
from mcagent.controller.member.exports import export_ref
from mcagent.controller.member.indexes import CLUSTER_INFOS, NODES_BY_ADDRESS, SLICES_BY_SERVICE
from mcagent.controller.member.services.backends import cluster_ips, pod_ip_subsets
from mcagent.controller.member.services.networks import cidrs_of, networks
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiService
from mcagent.model.api.multicluster import ResourceExport, ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable

_SHOWN = 3  # addresses of a refusal that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The endpoints that are used, whose they are by their addresses, and what is refused, in words."""

    groups: Groups
    clusters: tuple[str, ...]
    refused: tuple[str, ...]


def own_addresses(view: View, leader: Leader, namespace: str, name: str) -> frozenset[str] | None:
    """Return the addresses that this cluster exports for a Service; None when it does not export it."""
    ref = export_ref(leader, names.endpoints_export(leader.cluster_id, namespace, name))
    export = view.get(ref, ResourceExport)
    if export is None:
        return None
    spec = export.spec
    about = (spec.cluster_id, spec.namespace, spec.name, spec.kind)
    if about != (leader.cluster_id, namespace, name, ExportKind.ENDPOINTS):
        return None
    subsets = spec.endpoints.subsets if spec.endpoints is not None else ()
    return frozenset(address.ip for subset in subsets for address in subset.addresses)


class KnownNetworks:
    """This cluster's networks and the others', by what the leader passes on.

    All imports ask the same, so the last answer is kept, with the very objects that it was made from.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._last: tuple[str, Sequence[ResourceImport], tuple[Networks, Networks]] | None = None

    def read(self, view: View, leader: Leader) -> tuple[Networks, Networks]:
        """Return this cluster's networks, and those of others."""
        infos = view.indexed(CLUSTER_INFOS, ExportKind.CLUSTER_INFO)
        last = self._last
        if last is not None and last[0] == leader.cluster_id and _same(last[1], infos):
            return last[2]
        peers = [info for info in infos if info.cluster_id != leader.cluster_id]
        announced = tuple((info.cluster_id, cidrs_of(info)) for info in peers)
        here = [text for info in infos if info.cluster_id == leader.cluster_id for text in cidrs_of(info)]
        if self._settings.service_cidr is not None:
            here.append(self._settings.service_cidr)
        own_and_others = networks(
            announced, (*here, *self._settings.pod_cidrs), self._settings.allowed_endpoint_cidrs
        )
        self._last = (leader.cluster_id, infos, own_and_others)
        return own_and_others


def _same(before: Sequence[ResourceImport], after: Sequence[ResourceImport]) -> bool:
    return len(before) == len(after) and all(map(operator.is_, before, after))


def exporters_of(resource_import: ResourceImport | None) -> frozenset[str] | None:
    """Return the clusters whose endpoints are in a ResourceImport; None if the leader does not say (Antrea's)."""
    text = None if resource_import is None else resource_import.annotation(names.EXPORTERS_ANNOTATION)
    return None if text is None else frozenset(filter(None, text.split(",")))


def accept(
    groups: Groups,
    own: frozenset[str] | None,
    view: View,
    leader: Leader,
    known_networks: KnownNetworks,
    *,
    exporters: frozenset[str] | None = None,
) -> Accepted:
    """Return the endpoints that are used. `exporters`: whose they can be, None if that is not known.

    What this cluster exports itself is. Else an address of this cluster (of its CIDRs, Nodes, API servers) or of
    the leader's API server is not, and any other only if it lies in what a cluster announces that exports the
    Service, or in nobody's network and in what the settings allow. Whose it is follows from where it lies; what
    the leader says of that only decides where it lies in nobody's network, or in those of several clusters.
    """
    own_networks, networks_of_others = known_networks.read(view, leader)
    servers, leaders = _api_servers(view), frozenset(leader.addresses)
    accepted: dict[Group, list[str]] = {}
    clusters: dict[str, None] = {}
    ours: list[str] = []
    of_leader: list[str] = []
    unknown: list[str] = []
    foreign: list[str] = []
    for (stated_owner, ports), addresses in groups.items():
        for text in addresses:
            number, cluster = address_of(text), stated_owner
            if own is not None and text in own and number is not None:
                cluster = leader.cluster_id
            elif number is None:
                unknown.append(text)
                continue
            elif own_networks.owners(number) or text in servers or view.indexed(NODES_BY_ADDRESS, text):
                ours.append(text)
                continue
            elif text in leaders:
                of_leader.append(text)
                continue
            else:
                owners = networks_of_others.owners(number)
                if not owners:
                    unknown.append(text)
                    continue
                clusters_there = {owner for owner in owners if owner}
                possible = clusters_there if exporters is None else clusters_there & exporters
                if clusters_there and not possible:
                    foreign.append(text)
                    continue
                if possible and stated_owner not in possible:
                    cluster = min(possible)
            if cluster:
                clusters[cluster] = None
            accepted.setdefault((cluster, ports), []).append(text)
    refused = []
    if ours and own is None:  # else they are what this cluster exported a moment ago
        refused.append(f"{_named(ours)}: of this cluster, which does not export the Service")
    if unknown:
        outside = "in no CIDR that another cluster announces, nor in allowedEndpointCIDRs of this one"
        refused.append(f"{_named(unknown)}: {outside}")
    if of_leader:
        refused.append(f"{_named(of_leader)}: the API server of the leader")
    if foreign:
        refused.append(f"{_named(foreign)}: of a cluster that does not export the Service")
    return Accepted(
        groups={group: tuple(addresses) for group, addresses in accepted.items()},
        clusters=tuple(sorted(clusters)),
        refused=tuple(refused),
    )


def _api_servers(view: View) -> frozenset[str]:
    endpoint_slice = view.get(
        Ref(kind=Kind.ENDPOINT_SLICE, namespace="default", name="kubernetes"), ApiEndpointSlice
    )
    endpoints = endpoint_slice.endpoints if endpoint_slice is not None else ()
    return frozenset(text for endpoint in endpoints for text in endpoint.addresses)


def _named(addresses: list[str]) -> str:
    shown = ", ".join(printable(text) for text in sorted(set(addresses))[:_SHOWN])
    more = len(set(addresses)) - _SHOWN
    return f"endpoints {shown}" + (f" and {more} more" if more > 0 else "")


def behind_own_address(groups: Groups, own: frozenset[str] | None, view: View, leader: Leader, key: str) -> Groups:
    """Return the endpoints of a Service ("namespace/name"), what is behind it in place of its ClusterIP here.

    Every exporter's ClusterIP is an endpoint of the imported Service. kube-proxy, in every mode, translates a
    connection once: one that chose the ClusterIP of its own cluster would leave with that address as its
    destination, and go nowhere. So in the exporting cluster itself the Service's own ready endpoints stand in its
    place, with the ports that it has in the ClusterSet. `own` are the addresses that this cluster exports; None:
    it exports none.
    """
    namespace, _, name = key.partition("/")
    service = view.get(Ref(kind=Kind.SERVICE, namespace=namespace, name=name), ApiService)
    ours = frozenset(cluster_ips(service) if service is not None and own else ()) & (own or frozenset())
    if service is None or not any(ours.intersection(addresses) for addresses in groups.values()):
        return groups
    with_pods: dict[Group, dict[str, None]] = {}
    serving: set[str] = set()
    for group, addresses in groups.items():
        if ours.intersection(addresses):
            serving.update(port_name for port_name, _, _ in group[1])
        if foreign := [text for text in addresses if text not in ours]:
            with_pods.setdefault(group, {}).update(dict.fromkeys(foreign))
    slices = view.indexed(SLICES_BY_SERVICE, key)
    for ports, pods in pod_ip_subsets(service, slices).items():
        if kept_ports := tuple(port for port in ports if port[0] in serving):
            with_pods.setdefault((leader.cluster_id, kept_ports), {}).update(dict.fromkeys(pods))
    return {group: tuple(addresses) for group, addresses in with_pods.items()}
