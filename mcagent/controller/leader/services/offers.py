"""The offers of members for a Service: their exports that take part in the merge, with usable endpoints. Pure.

Admission has the same rules. They apply here too, because an export can be older than a rule or its change. An
export that does not take part makes no offer, so it changes no other cluster's export.

The endpoints of a member lie in its own networks, never in another member's: the CIDRs that its ResourceImport of
kind ClusterInfo grants. A cluster without Pod CIDRs (its Pods are reached without tunnels) may also use the CIDRs
that an administrator allows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import traffic_of
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import Networks, networks_of
from mcagent.controller.contract.services import ServiceSpec
from mcagent.controller.leader.exports.bounds import (
    Bounds,
    bounds_of,
    defaults_of,
    is_over,
    named_for,
    over_quota,
    refuse_namespace,
    too_large,
)
from mcagent.controller.leader.exports.header import Header, is_member, not_a_member, read_header
from mcagent.controller.leader.exports.payloads import Backends, granted_networks, read_backends, read_definition
from mcagent.controller.leader.exports.status import CONFLICT, reason_of
from mcagent.controller.leader.services.merge import MergeResult, Offer
from mcagent.controller.machinery.reconciler import Index, Ref, Side, View
from mcagent.controller.settings import LeaderSettings
from mcagent.core.addresses.rules import prefix_range, refuse_address
from mcagent.model.api.multicluster import ResourceExport, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.net import Address
from mcagent.model.objects import Kind


def _infos(obj: ResourceImport) -> Sequence[str]:
    return [obj.namespace] if obj.spec.kind == ExportKind.CLUSTER_INFO else []


# ResourceImports of kind ClusterInfo, under the area.
GRANTS = Index("granted-networks", ResourceImport, Side.LOCAL, _infos)


class GrantedNetworks:
    """The networks in which endpoints of a cluster may lie.

    They are the same for all Services, so the last value for an area is kept, with the objects that it was made
    of.
    """

    def __init__(self, settings: LeaderSettings) -> None:
        self._allowed = networks_of(settings.allowed_endpoint_cidrs)
        self._last: dict[str, tuple[Sequence[ResourceImport], Networks]] = {}

    def read(self, view: View, area: str) -> Networks:
        """Return all granted CIDRs of an area; the owners are cluster IDs."""
        infos = view.indexed(GRANTS, area)
        last = self._last.get(area)
        if last is not None and len(last[0]) == len(infos) and all(map(operator.is_, last[0], infos)):
            return last[1]
        granted = granted_networks(infos)
        self._last[area] = (infos, granted)
        return granted

    def address_check(self, view: View, area: str, cluster_id: str, bounds: Bounds) -> Callable[[Address], str]:
        """Return a function that returns why an address cannot be an endpoint of a cluster; "" if it can."""
        granted, allowed = self.read(view, area), self._allowed
        ref = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.cluster_info(cluster_id))
        own = view.get(ref, ResourceImport)
        has_pods = own is not None and own.spec.cluster_info is not None and bool(own.spec.cluster_info.pod_cidrs)
        bounded = (
            None
            if bounds.cidrs is None
            else Networks((*prefix_range(n)[1:], "") for n in bounds.cidrs if n.version == 4)
        )

        def refuse(address: Address) -> str:
            refusal = refuse_address(address)
            if refusal is not None:
                return refusal.message
            number = int(address)
            owners = granted.owners(number)
            if cluster_id not in owners and owners:
                return f"{address} is not used: it lies in a CIDR of cluster {owners[0]}"
            if bounded is not None and not bounded.owners(number):
                return f"{address} is not used: it lies in no CIDR that its cluster may claim"
            if not owners and has_pods:
                return f"{address} is not used: it lies in none of the CIDRs that its cluster publishes"
            if not owners and bounded is None and not allowed.owners(number):
                return (
                    f"{address} is not used: its cluster publishes no Pod CIDRs, and neither "
                    "allowedEndpointCIDRs of the leader nor annotation "
                    f"{names.ALLOWED_CIDRS_ANNOTATION} of its ServiceAccount holds it"
                )
            return ""

        return refuse


NOT_ALLOWED = "NamespaceNotAllowed"
QUOTA = "TooManyExports"
TOO_LARGE = "TooLarge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An export, read once."""

    object: ResourceExport
    key: str  # of the Service: `target_key`
    header: Header | None  # None: invalid
    refused: MergeResult | None  # None: it takes part
    reserved: bool = False  # its namespace is reserved, for its cluster among others

    @property
    def takes_part(self) -> bool:
        """Tell whether the export takes part in the merge."""
        return self.header is not None and self.refused is None and not self.header.deleting


class Offers:
    """Reads exports by the rules in the settings of a leader."""

    def __init__(self, settings: LeaderSettings) -> None:
        self._limits = settings.limits
        self._defaults = defaults_of(settings.limits)
        self._grants = GrantedNetworks(settings)

    def read(self, view: View, export: ResourceExport, key: str) -> Export:
        """Return an export of the Service `key`, with the reason if it is refused."""
        try:
            header = read_header(export)
        except InputError as error:
            refused = MergeResult(merged=False, note=reason_of(error))
            return Export(object=export, key=key, header=None, refused=refused)
        reason, why = self._refusal(view, export, header)
        return Export(
            object=export,
            key=key,
            header=header,
            refused=MergeResult(merged=False, note=why, reason=reason) if why else None,
            reserved=bool(named_for(view, header.area, header.namespace)),
        )

    def _refusal(self, view: View, export: ResourceExport, header: Header) -> tuple[str, str]:
        area, cluster = header.area, header.cluster_id
        if not is_member(view, area, cluster):
            return CONFLICT, not_a_member(cluster)
        bounds = bounds_of(view, area, cluster, self._defaults)
        named = named_for(view, area, header.namespace)
        if why := refuse_namespace(cluster, header.namespace, bounds, named):
            return NOT_ALLOWED, why
        if header.kind is ExportKind.SERVICE and is_over(view, export, bounds.max_exports):
            return QUOTA, over_quota(cluster, bounds.max_exports)
        return TOO_LARGE, too_large((export.metadata, export.spec), header.kind, self._limits.max_export_bytes)

    def max_exports(self, view: View, area: str, cluster_id: str) -> int:
        """Return the number of Services that a member may export."""
        return bounds_of(view, area, cluster_id, self._defaults).max_exports

    def offers(self, view: View, area: str, exports: Iterable[Export]) -> list[Offer]:
        """Return the offers of the clusters that export one Service. An export that is refused makes none."""
        headers: dict[str, Header] = {}
        definitions: dict[str, ServiceSpec | str] = {}
        remarks: dict[str, str] = {}
        endpoints: dict[str, ResourceExport] = {}
        for export in exports:
            header, resource_export = export.header, export.object
            if header is None or header.deleting:
                continue
            cluster = header.cluster_id
            if export.refused is not None:
                if header.kind is ExportKind.SERVICE:
                    definitions[cluster] = export.refused.note  # the endpoints are refused with it
                continue
            if header.kind is ExportKind.ENDPOINTS:
                endpoints[cluster] = resource_export
                headers.setdefault(cluster, header)
                continue
            headers[cluster] = header
            try:
                traffic, remarks[cluster] = traffic_of(resource_export, may_name=export.reserved)
                definitions[cluster] = read_definition(resource_export, traffic)
            except InputError as error:
                definitions[cluster] = reason_of(error)
        offers = []
        for cluster, header in headers.items():
            backends: Backends | str | None = None
            if cluster in endpoints:
                bounds = bounds_of(view, area, cluster, self._defaults)
                refuse = self._grants.address_check(view, area, cluster, bounds)
                try:
                    backends = read_backends(endpoints[cluster], refuse, self._limits.max_endpoints)
                except InputError as error:
                    backends = reason_of(error)
            definition = definitions.get(cluster, f"cluster {cluster} does not export the Service itself")
            remark = remarks.get(cluster, "")
            offers.append(Offer(header=header, definition=definition, backends=backends, remark=remark))
        return offers
