"""The offers of members for a Service: their exports that take part in the merge, with usable endpoints. Pure.

Admission has the same rules. They apply here too, because an export can be older than a rule or its change. An
export that does not take part makes no offer, so it changes no other cluster's export.

The endpoints of a member lie in its own networks, never in another member's: the CIDRs that its ResourceImport of
kind ClusterInfo grants. A cluster without Pod CIDRs (its Pods are reached without tunnels) may also use the CIDRs
that an administrator allows.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import traffic_of
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import Networks, networks_of
from mcagent.controller.contract.services import ServiceSpec
from mcagent.controller.leader.exports.bounds import (
    ACCOUNTS_BY_CLUSTER,
    Bounds,
    bounds_of,
    bounds_of_accounts,
    defaults_of,
    is_over,
    named_for,
    over_quota,
    refuse_namespace,
    too_large,
)
from mcagent.controller.leader.exports.header import Header, is_member, not_a_member, read_header, target_key
from mcagent.controller.leader.exports.payloads import Backends, granted_networks, read_backends, read_definition
from mcagent.controller.leader.exports.status import CONFLICT, reason_of
from mcagent.controller.leader.services.merge import MergeResult, Offer
from mcagent.controller.machinery.reconciler import Index, Ref, Side, View
from mcagent.controller.settings import LeaderSettings
from mcagent.core.addresses.rules import prefix_range, refuse_address
from mcagent.core.engine import IncrementalEngine
from mcagent.model.api.multicluster import ResourceExport, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.net import Address
from mcagent.model.objects import Kind


def _infos(obj: ResourceImport) -> Sequence[str]:
    return [obj.namespace] if obj.spec.kind == ExportKind.CLUSTER_INFO else []


# ResourceImports of kind ClusterInfo, under the area.
GRANTS = Index("granted-networks", ResourceImport, Side.LOCAL, _infos)


class GrantedNetworks:
    """The networks in which endpoints of clusters may lie.

    They are the same for all Services, so the last value for an area is kept, with the objects that it was made
    of.
    """

    def __init__(self) -> None:
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


def address_check(
    cluster_id: str, bounds: Bounds, own_info: ResourceImport | None, granted: Networks, allowed: Networks
) -> Callable[[Address], str]:
    """Return a function that returns why an address cannot be an endpoint of a cluster; "" if it can.

    `own_info`: the ResourceImport with the cluster's network. `granted`: the CIDRs of all clusters. `allowed`: the
    leader's `allowedEndpointCIDRs`.
    """
    has_pods = own_info is not None and bool(own_info.spec.cluster_info and own_info.spec.cluster_info.pod_cidrs)
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
        # What is granted is within the bounds, or a range that the leader has assigned.
        if bounded is not None and not owners and not bounded.owners(number):
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


# An export; whether its cluster is a member; the bounds of the cluster; the members for which the namespace is
# reserved; whether the cluster has too many older exports.
ExportInput = tuple[ResourceExport, bool, Bounds, frozenset[str], bool]
# Of a cluster: the Service export, the Endpoints export, the bounds, the ResourceImport with its network.
OfferInput = tuple[Export | None, Export | None, Bounds, ResourceImport | None]


MAX_KEPT_EXPORTS = 10_000  # 12 MB with 4 endpoints each, 37 MB with 40


class RecentEngines:
    """The incremental engines of the Services that were reconciled last, for `size` exports together.

    Safe to use from many threads; a key is used by one at a time.
    """

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._engines: dict[str, tuple[int, IncrementalEngine]] = {}  # with their numbers of exports, oldest first
        self._total = 0  # exports of `_engines`

    @contextmanager
    def one_pass(self, key: str, exports: int) -> Iterator[IncrementalEngine]:
        """Delimit a pass of the engine of a key. After an exception the engine is not kept."""
        with self._lock:
            count, engine = self._engines.pop(key, (0, None))
            self._total -= count
        engine = engine or IncrementalEngine()
        with engine.one_pass():
            yield engine
        with self._lock:
            self._engines[key] = (exports, engine)
            self._total += exports
            while self._total > self._size:
                oldest = next(iter(self._engines))
                self._total -= self._engines.pop(oldest)[0]


class Offers:
    """Reads exports by the rules in the settings of a leader.

    Each change of one export reconciles its Service, which a thousand clusters may export. So what was read of the
    exports of the Services that were reconciled last is kept, and only what changed is read again.
    """

    def __init__(self, settings: LeaderSettings) -> None:
        self._limits = settings.limits
        self._defaults = defaults_of(settings.limits)
        self._allowed = networks_of(settings.allowed_endpoint_cidrs)
        self._grants = GrantedNetworks()
        self._engines = RecentEngines(MAX_KEPT_EXPORTS)

    def read(
        self, view: View, area: str, key: str, exports: Sequence[ResourceExport]
    ) -> tuple[Sequence[Export], Sequence[Offer]]:
        """Return the exports, with the reasons if they are refused, and the offers for the Service `key`.

        `exports`: those whose ResourceImport has the name that the Service's would have. An export that is refused
        makes no offer.
        """
        with self._engines.one_pass(key, len(exports)) as engine:
            accounts = {
                cluster: tuple(view.indexed(ACCOUNTS_BY_CLUSTER, f"{area}/{cluster}"))
                for cluster in dict.fromkeys(export.spec.cluster_id for export in exports)
            }
            bounds = engine.each(bounds_of_accounts, accounts, self._defaults)
            members = {cluster: is_member(view, area, cluster) for cluster in bounds}
            namespaces = dict.fromkeys(export.spec.namespace for export in exports)
            reserved = {namespace: named_for(view, area, namespace) for namespace in namespaces}
            export_inputs: dict[str, ExportInput] = {}
            for export in exports:
                cluster = export.spec.cluster_id
                limit = bounds[cluster].max_exports
                over = export.spec.kind == ExportKind.SERVICE and is_over(view, export, limit)
                reserved_for = reserved[export.spec.namespace]
                export_inputs[export.name] = (export, members[cluster], bounds[cluster], reserved_for, over)
            read_exports = engine.each(_read, export_inputs, self._limits.max_export_bytes)
            offer_inputs = {
                cluster: (service, endpoints, bounds[cluster], _cluster_info(view, area, cluster))
                for cluster, (service, endpoints) in _pairs(read_exports.values(), key).items()
            }
            granted = self._grants.read(view, area)
            offers = engine.each(_offer, offer_inputs, granted, self._allowed, self._limits.max_endpoints)
        return list(read_exports.values()), list(offers.values())

    def max_exports(self, view: View, area: str, cluster_id: str) -> int:
        """Return the number of Services that a member may export."""
        return bounds_of(view, area, cluster_id, self._defaults).max_exports


def _cluster_info(view: View, area: str, cluster_id: str) -> ResourceImport | None:
    ref = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.cluster_info(cluster_id))
    return view.get(ref, ResourceImport)


def _read(export_input: ExportInput, max_bytes: int) -> Export:
    """Return an export, with the reason if it is refused."""
    export, member, bounds, reserved_for, over = export_input
    key = target_key(export)
    try:
        header = read_header(export)
    except InputError as error:
        invalid = MergeResult(merged=False, note=reason_of(error))
        return Export(object=export, key=key, header=None, refused=invalid)
    reason, why = CONFLICT, "" if member else not_a_member(header.cluster_id)
    if not why:
        reason, why = NOT_ALLOWED, refuse_namespace(header.cluster_id, header.namespace, bounds, reserved_for)
    if not why and over:
        reason, why = QUOTA, over_quota(header.cluster_id, bounds.max_exports)
    if not why:
        reason, why = TOO_LARGE, too_large((export.metadata, export.spec), header.kind, max_bytes)
    refused = MergeResult(merged=False, note=why, reason=reason) if why else None
    return Export(object=export, key=key, header=header, refused=refused, reserved=bool(reserved_for))


def _pairs(exports: Iterable[Export], key: str) -> Mapping[str, tuple[Export | None, Export | None]]:
    """Return the Service export and the Endpoints export of each cluster of which one takes part in the merge.

    An Endpoints export that does not take part is left out.
    """
    services: dict[str, Export] = {}
    endpoints: dict[str, Export] = {}
    for export in exports:
        if export.key != key or export.header is None or export.header.deleting:
            continue
        if export.header.kind is ExportKind.SERVICE:
            services[export.header.cluster_id] = export
        elif export.takes_part:
            endpoints[export.header.cluster_id] = export
    taking_part = dict.fromkeys([*(c for c, export in services.items() if export.takes_part), *endpoints])
    return {cluster: (services.get(cluster), endpoints.get(cluster)) for cluster in taking_part}


def _offer(offer_input: OfferInput, granted: Networks, allowed: Networks, max_endpoints: int) -> Offer:
    """Return the offer of a cluster, of which at least one of the two exports takes part in the merge."""
    service, endpoints, bounds, own_info = offer_input
    header = next(e.header for e in (service, endpoints) if e is not None and e.takes_part and e.header)
    definition: ServiceSpec | str = f"cluster {header.cluster_id} does not export the Service itself"
    backends: Backends | str | None = None
    remark = ""
    if service is not None and service.refused is not None:
        definition = service.refused.note  # the endpoints are refused with it
    elif service is not None:
        try:
            traffic, remark = traffic_of(service.object, may_name=service.reserved)
            definition = read_definition(service.object, traffic)
        except InputError as error:
            definition = reason_of(error)
    if endpoints is not None:
        refuse = address_check(header.cluster_id, bounds, own_info, granted, allowed)
        try:
            backends = read_backends(endpoints.object, refuse, max_endpoints)
        except InputError as error:
            backends = reason_of(error)
    return Offer(header=header, definition=definition, backends=backends, remark=remark)
