"""The reconciler of exported Services: a ServiceExport here to two ResourceExports on the leader.

A key is "namespace-name", as in the names of the ResourceExports. Names are concatenated, so two Services can have
the same one (`a-b`/`c` and `a`/`b-c`): the older ServiceExport is exported. It owns both ResourceExports, and the
conditions Valid, Ready and Conflict of all ServiceExports of the key (`export_conditions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mcagent.controller.contract import names
from mcagent.controller.contract.annotations import (
    ExportedMetadata,
    as_annotations,
    asked_for,
    ready_of,
    traffic_of,
)
from mcagent.controller.contract.export_ranges import ADDRESS_ANNOTATION
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.services import Hostnames, PortSubsets, endpoint_subsets
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    Leader,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.exports import (
    BY_CLUSTER,
    OWN_BY_KIND,
    RETRY,
    TOO_MANY_EXPORTS,
    Quota,
    export_ref,
    is_export_of,
    resource_export,
)
from mcagent.controller.member.indexes import SLICES_BY_SERVICE, service_of
from mcagent.controller.member.membership import concerns_membership, exporting_leader
from mcagent.controller.member.published import (
    export_cidr,
    pod_prefixes,
    published_address,
    published_subsets,
    unreachable_cluster_ip,
)
from mcagent.controller.member.services.backends import (
    cluster_ip_subsets,
    cluster_ips,
    hostnames_of,
    is_headless,
    limited,
    pod_ip_subsets,
    ports_of,
    service_spec,
)
from mcagent.controller.member.services.export_addresses import OWN_BY_ADDRESS, address_of_service, same_address
from mcagent.controller.member.services.export_conditions import (
    INVALID_TYPE,
    NO_SERVICE,
    export_status,
    leaders_conditions,
)
from mcagent.controller.member.services.served import ServedEndpoints, network_changed
from mcagent.controller.settings import EndpointIpType, MemberSettings
from mcagent.model.api.kubernetes import (
    ApiEndpointSlice,
    ApiNode,
    ApiService,
    ApiServicePort,
    ApiServiceSpec,
    Subsets,
)
from mcagent.model.api.multicluster import ApiServiceExport, ExportedService, ResourceExport, ResourceExportSpec
from mcagent.model.api.patches import UNSET, patch
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable
from mcagent.model.traffic import READY_ANNOTATION, TRAFFIC_ANNOTATION, told_ready

MAX_SERVICE_NAME = names.MAX_LABEL - len(names.IMPORTED_PREFIX)
_SHOWN = 3  # keys that a message names

_Present = dict[Ref, ResourceExport | None]  # the Service and the Endpoints export of a key, as they are


def _by_export_name(export: ApiServiceExport) -> Iterable[str]:
    return [f"{export.namespace}-{export.name}"]


# Under "namespace-name".
BY_EXPORT_NAME = Index("service-exports-by-export-name", ApiServiceExport, Side.LOCAL, _by_export_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDecision:
    """The decision on a ServiceExport. With a `reason` nothing is exported, and `message` explains it."""

    reason: str = ""
    message: str = ""
    spec: ApiServiceSpec = field(default_factory=ApiServiceSpec)
    ports: Sequence[ApiServicePort] = ()
    subsets: PortSubsets = field(default_factory=dict)
    hostnames: Hostnames = field(default_factory=dict)
    address: str = ""  # the Service's export address, where this cluster has an export range
    ready: int | None = None  # endpoints behind the ClusterIP; None: the endpoints are exported themselves
    metadata: ExportedMetadata = field(default_factory=ExportedMetadata)
    traffic: str = ""
    not_ready: str = ""  # if the Service is exported: why connections find no endpoint
    outside: str = ""  # if its ClusterIP lies outside the Service CIDR: what to do
    left_out: str = ""  # if the Service is exported: the reason of the Event with `message`
    replaced: ResourceExport | None = None  # the export whose place in the quota it takes

    @property
    def refusal(self) -> tuple[str, str] | None:
        """Reason and message if nothing is exported, else None."""
        return (self.reason, self.message) if self.reason else None


class ServiceExports:
    """Exports Services, to the leader."""

    name = "service-export"
    needs_leader = True
    reads = Access(
        local={Kind.SERVICE_EXPORT, Kind.SERVICE, Kind.ENDPOINT_SLICE, Kind.CLUSTER_SET, Kind.NODE},
        leader={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT},
    )
    writes = Access(local={Kind.SERVICE_EXPORT}, leader={Kind.RESOURCE_EXPORT})
    indexes = (BY_EXPORT_NAME, SLICES_BY_SERVICE, BY_CLUSTER, OWN_BY_KIND, OWN_BY_ADDRESS)

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._served = ServedEndpoints(settings)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the names that a change touches."""
        match change.object:
            case ApiServiceExport() as export:
                return _by_export_name(export)
            case ApiService(namespace=namespace, name=name):
                return self._exported(view, namespace, name)
            case ApiEndpointSlice(namespace=namespace):
                owners = {
                    service_of(endpoint_slice)
                    for endpoint_slice in change.of(ApiEndpointSlice)
                    if endpoint_slice is not None
                }
                return [key for owner in owners for key in self._exported(view, namespace, owner)]
            case ApiNode():
                old, new = change.of(ApiNode)
                return self.all_keys(view) if network_changed(old, new) else []
            case ResourceExport() as written:
                exports = (written, *same_address(view, view.leader, written))
                return dict.fromkeys(key for export in exports for key in _key_of_export(export, view.leader))
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def _exported(self, view: View, namespace: str, name: str) -> list[str]:
        ref = Ref(kind=Kind.SERVICE_EXPORT, namespace=namespace, name=name)
        return [f"{namespace}-{name}"] if name and view.get(ref, ApiServiceExport) is not None else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return the names of all that is or was exported."""
        keys = {key: None for export in view.list(ApiServiceExport) for key in _by_export_name(export)}
        if view.leader is not None:
            for resource_export in view.indexed(BY_CLUSTER, view.leader.cluster_id):
                keys |= dict.fromkeys(_key_of_export(resource_export, view.leader))
        return keys

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the two ResourceExports, and the status of the ServiceExports."""
        leader = exporting_leader(view)
        if leader is None:
            return DesiredObjects()
        present = _present(key, view, leader)
        staying = (export for export in view.indexed(BY_EXPORT_NAME, key) if not export.is_deleting)
        exports = sorted(staying, key=lambda export: export.age)
        if not exports:
            return DesiredObjects(steps=[*_removals(present, leader)])
        export = exports[0]
        why = f"its ResourceExport would be named like that of Service {export.key}, which was exported first"
        ambiguous = ExportDecision(reason="AmbiguousName", message=why)
        decision = self._judge(export, view, leader, [*present])
        replaced = _key_of_export(decision.replaced, leader) if decision.replaced is not None else []
        reasons = {"not_ready": decision.not_ready, "outside": decision.outside}
        conditions = leaders_conditions(export, present.values(), decision.ports, view, now, **reasons)
        why, address = decision.message, decision.address
        written, holder = ([], None) if decision.refusal else _written(export, decision, present, leader)
        return DesiredObjects(
            steps=[
                *(export_status(late, ambiguous.refusal, "", (), now) for late in exports[1:]),
                *(ref for other in replaced for ref in _removals(_present(other, view, leader), leader)),
                export_status(export, decision.refusal, why, conditions, now, address=address),
                *written,
                *(_removals(present, leader) if decision.refusal or holder is not None else ()),
            ],
            events=[
                *(event for late in exports[1:] for event in _events(late, ambiguous, (), view)),
                *_events(export, decision, present, view),
                *_name_held(export, holder, leader),
            ],
            again=RETRY if decision.reason == TOO_MANY_EXPORTS else None,
        )

    def _judge(self, export: ApiServiceExport, view: View, leader: Leader, refs: Sequence[Ref]) -> ExportDecision:
        """Return the payload, or the reason why nothing is exported: KEP-1645's reasons where it has one."""
        namespace, name = export.namespace, export.name
        service = view.get(Ref(kind=Kind.SERVICE, namespace=namespace, name=name), ApiService)
        if service is None or service.is_deleting:
            return ExportDecision(reason=NO_SERVICE, message=f"there is no Service {namespace}/{name}")
        if service.annotation(names.IMPORTED_SERVICE_ANNOTATION) is not None:
            return ExportDecision(reason="ImportedService", message="an imported Service cannot be exported")
        if service.spec.type == "ExternalName":
            return ExportDecision(reason=INVALID_TYPE, message="a Service of type ExternalName has no endpoints")
        by_pod_ip = is_headless(service) or self._settings.endpoint_ip_type is EndpointIpType.POD_IP
        if not by_pod_ip and not cluster_ips(service):
            message = "the Service has no IPv4 ClusterIP (endpointIPType is ClusterIP)"
            return ExportDecision(reason="ServiceNoClusterIP", message=message)
        if not ports_of(service):
            message = "a Service without ports has nothing to export"
            return ExportDecision(reason="ServiceWithoutPorts", message=message)
        if len(name) > MAX_SERVICE_NAME or not all(names.is_subdomain(ref.name) for ref in refs):
            message = (
                f"too long: the name may have {MAX_SERVICE_NAME} characters; cluster ID, namespace and name "
                f"together about {names.MAX_NAME - len('---endpoints')}"
            )
            return ExportDecision(reason="NameTooLong", message=message)
        address, cidr = "", export_cidr(view, self._settings)
        if cidr and not by_pod_ip:
            address = address_of_service(view, leader, refs[0], f"{namespace}/{name}", cidr)
            if not address:
                message = f"the export range {cidr} of this cluster has no free address"
                return ExportDecision(reason="NoExportAddress", message=message)
        place = QUOTA.place(view, leader, refs[0].name, namespace)
        if place.refusal:
            return ExportDecision(reason=TOO_MANY_EXPORTS, message=place.refusal)
        slices = view.indexed(SLICES_BY_SERVICE, f"{namespace}/{name}")
        hostnames = hostnames_of(slices) if is_headless(service) else {}
        ready, not_served, not_ready, outside = None, "", "", ""
        if by_pod_ip:
            prefixes = pod_prefixes(view, self._settings)
            hostnames = {published_address(text, prefixes): hostname for text, hostname in hostnames.items()}
            subsets, dropped = limited(published_subsets(pod_ip_subsets(service, slices), prefixes), hostnames)
            if not subsets:
                not_ready = "no usable endpoint: no IPv4 endpoint with a port of the Service is ready"
        else:
            served = self._served.ports(view, service, slices)
            ready, not_served, not_ready = served.ready, served.why_refused, served.why_not_ready
            subsets, dropped = limited(cluster_ip_subsets(service, served.ports, address), {})
            outside = "" if address else unreachable_cluster_ip(view, self._settings, cluster_ips(service)[0])
        metadata = asked_for(export)
        traffic, error = traffic_of(export)
        notes = [error] if error else []
        if dropped:
            notes.append(f"{dropped} endpoints are left out: an API object holds no more")
        if not_served:
            notes.append(not_served)
        if metadata.left_out:
            shown = ", ".join(printable(key) for key in metadata.left_out[:_SHOWN])
            notes.append(f"exportedLabels or exportedAnnotations are reserved, malformed or too many: {shown}")
        return ExportDecision(
            message="; ".join(notes),
            spec=service_spec(service),
            ports=service.spec.ports,
            subsets=subsets,
            hostnames=hostnames,
            ready=ready,
            address=address,
            metadata=metadata,
            traffic=traffic,
            not_ready=not_ready,
            outside=outside,
            left_out="EndpointsLeftOut" if dropped or not_served else "MetadataLeftOut" if notes else "",
            replaced=place.replaced,
        )


def _written(
    export: ApiServiceExport, decision: ExportDecision, present: _Present, leader: Leader
) -> tuple[list[Wanted], ResourceExport | None]:
    """Return the ResourceExports to write, and the object that holds the name of one; none is written then.

    That is an export of another Service with this name, and its fields that say so cannot be changed.
    """
    written: list[Wanted] = []
    metadata = as_annotations(decision.metadata.labels, decision.metadata.annotations)
    metadata |= {TRAFFIC_ANNOTATION: decision.traffic or None, ADDRESS_ANNOTATION: decision.address or None}
    subsets = endpoint_subsets(decision.subsets, decision.hostnames)
    ready = str(told_ready(ready_of([*present.values()][1]), decision.ready)) if decision.ready else None
    payloads: tuple[tuple[ExportKind, ExportedService, Subsets, dict[str, str | None]], ...] = (
        (ExportKind.SERVICE, patch(ExportedService, service_spec=decision.spec), UNSET, metadata),
        (ExportKind.ENDPOINTS, UNSET, patch(Subsets, subsets=subsets), {READY_ANNOTATION: ready}),
    )
    for (ref, before), (kind, service, endpoints, notes) in zip(present.items(), payloads, strict=True):
        if before is not None and before.is_deleting:
            break  # created again once it is gone
        if before is not None and not is_export_of(before, leader, export.namespace, export.name, kind):
            return [], before
        spec = patch(
            ResourceExportSpec,
            cluster_id=leader.cluster_id,
            namespace=export.namespace,
            name=export.name,
            kind=kind,
            service=service,
            endpoints=endpoints,
        )
        written.append(resource_export(ref, spec, before, notes))
    return written, None


def _name_held(export: ApiServiceExport, holder: ResourceExport | None, leader: Leader) -> Iterable[Event]:
    if holder is not None and holder.spec.cluster_id != leader.cluster_id:
        message = f'the name {holder.name} is taken by cluster "{printable(holder.spec.cluster_id)}"'
        yield Event(subject=export.subject, reason="ExportFailed", message=message)


def _key_of_export(resource_export: ResourceExport, leader: Leader | None) -> list[str]:
    """Return the key of a Service or Endpoints export of this cluster, from its name; [] for other exports."""
    if leader is None or resource_export.spec.cluster_id != leader.cluster_id:
        return []
    kind, name, prefix = resource_export.spec.kind, resource_export.name, f"{leader.cluster_id}-"
    suffix = "-service" if kind == ExportKind.SERVICE else "-endpoints" if kind == ExportKind.ENDPOINTS else ""
    if not suffix or not name.startswith(prefix) or not name.endswith(suffix):
        return []
    return [name[len(prefix) : -len(suffix)]]


def _present(key: str, view: View, leader: Leader) -> _Present:
    refs = (export_ref(leader, f"{leader.cluster_id}-{key}-{kind}") for kind in ("service", "endpoints"))
    return {ref: view.get(ref, ResourceExport) for ref in refs}


QUOTA = Quota(kind=ExportKind.SERVICE, what="Services", namespace_of=lambda export: export.spec.namespace)


def _removals(present: _Present, leader: Leader) -> Iterable[Ref]:
    """Yield those of these ResourceExports that are this cluster's, the endpoints first."""
    for ref, export in reversed(present.items()):
        if export is not None and export.spec.cluster_id == leader.cluster_id:
            yield ref


def _events(
    export: ApiServiceExport, decision: ExportDecision, refs: Iterable[Ref], view: View
) -> Iterable[Event]:
    if decision.refusal:
        yield Event(subject=export.subject, reason=decision.reason, message=f"not exported: {decision.message}")
        return
    if decision.message:
        yield Event(subject=export.subject, reason=decision.left_out, message=decision.message)
    for ref in refs:
        if failure := view.failure(ref):
            yield Event(subject=export.subject, reason="ExportFailed", message=f"{ref.name}: {failure}")
