"""The reconciler of imported Services: two ResourceImports to a Service, its EndpointSlices and a ServiceImport.

A key is "namespace/name". It owns the Service `antrea-mc-NAME` with the annotation of imports, its EndpointSlices
(and Endpoints, if configured), and the ServiceImport NAME. `imported` has these objects, `endpoints` the addresses
that they may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from mcagent.controller.contract import names
from mcagent.controller.contract.names import SERVICE_IMPORT, ExportKind
from mcagent.controller.contract.ranges import block_of, blocks_of
from mcagent.controller.contract.services import ServiceSpec, import_target
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.indexes import (
    CLUSTER_INFOS,
    IMPORTED,
    IMPORTED_SERVICES,
    IMPORTS_BY_BLOCK,
    IMPORTS_BY_NAMESPACE,
    IMPORTS_BY_TARGET,
    NODES_BY_ADDRESS,
    SLICES_BY_SERVICE,
    addresses_of,
    service_of,
)
from mcagent.controller.member.membership import (
    cluster_set_of,
    concerns_membership,
    is_for,
    joined_leader,
    refused_writes,
)
from mcagent.controller.member.published import export_cidr, local_endpoints, pod_prefixes
from mcagent.controller.member.services.backends import places_of
from mcagent.controller.member.services.endpoints import (
    ImportedEndpoints,
    KnownNetworks,
    accept,
    behind_own_address,
    cidrs_of,
    exporters_of,
    own_addresses,
    read_endpoints,
    read_service,
)
from mcagent.controller.member.services.imported import (
    ImportedService,
    endpoints_of,
    is_imported,
    is_mirrored,
    is_of_other_type,
    is_our_import,
    our_slices,
    owner_of,
    removals,
    service_import_of,
    service_object,
    slices,
)
from mcagent.controller.settings import MemberSettings, WriteEndpoints
from mcagent.model.api.base import ApiObject, condition_of
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiNamespace, ApiService
from mcagent.model.api.multicluster import ApiServiceImport, ClusterSet, ResourceExport, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind

_REFILLED = 64  # free places that are filled at once; the resync fills the others


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objects:
    """The objects of an import beside the Service."""

    slices: Mapping[str, ApiEndpointSlice]
    endpoints: Wanted  # written only with WriteEndpoints.ALWAYS
    service_import: Wanted


class ServiceImports:
    """Imports Services, from the leader."""

    name = "service-import"
    needs_leader = True
    reads = Access(
        local={
            Kind.SERVICE,
            Kind.SERVICE_IMPORT,
            Kind.ENDPOINT_SLICE,
            Kind.NAMESPACE,
            Kind.NODE,
            Kind.CLUSTER_SET,
        },
        leader={Kind.RESOURCE_IMPORT, Kind.RESOURCE_EXPORT},
    )
    writes = Access(local={Kind.SERVICE, Kind.ENDPOINT_SLICE, Kind.ENDPOINTS, Kind.SERVICE_IMPORT})
    indexes = (
        SLICES_BY_SERVICE,
        NODES_BY_ADDRESS,
        IMPORTED_SERVICES,
        IMPORTS_BY_TARGET,
        IMPORTS_BY_NAMESPACE,
        IMPORTS_BY_BLOCK,
        CLUSTER_INFOS,
    )

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._known = KnownNetworks(settings)
        if settings.write_endpoints is WriteEndpoints.ALWAYS:
            self.reads = Access(local={*self.reads.local, Kind.ENDPOINTS}, leader=self.reads.leader)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the Services that a change touches."""
        match change.object:
            case ResourceImport():
                return self._keys_of_import(change, view)
            case ResourceExport(spec=spec):
                own = view.leader is not None and spec.cluster_id == view.leader.cluster_id
                return [f"{spec.namespace}/{spec.name}"] if own and spec.kind == ExportKind.ENDPOINTS else []
            case ApiNamespace(name=name):
                if change.old is not None and change.new is not None:
                    return []
                return {
                    import_target(resource_import) for resource_import in view.indexed(IMPORTS_BY_NAMESPACE, name)
                }
            case ClusterSet():
                return self.all_keys(view) if concerns_membership(change) else []
            case changed:
                keys = {owner_of(change.new), owner_of(change.old), *self._next(change, view)}
                return (keys | self._exported(changed, view) | _with_endpoints(change, view)) - {""}

    def _exported(self, obj: ApiObject, view: View) -> set[str]:
        """Return the import of a Service that this cluster exports, for the Service or a slice of it."""
        if view.leader is None or not isinstance(obj, ApiService | ApiEndpointSlice):
            return set()
        name = obj.name if isinstance(obj, ApiService) else service_of(obj)
        exported = own_addresses(view, view.leader, obj.namespace, name) is not None
        return {f"{obj.namespace}/{name}"} if exported else set()

    def _keys_of_import(self, change: ObjectChange, view: View) -> Iterable[str]:
        keys = {import_target(resource_import) for resource_import in change.of(ResourceImport)}
        blocks = blocks_of(set(cidrs_of(change.old)) ^ set(cidrs_of(change.new)))
        for block in blocks:
            keys |= {import_target(resource_import) for resource_import in view.indexed(IMPORTS_BY_BLOCK, block)}
        return keys - {""}

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all Services that are or were imported, the oldest imports first."""
        keys = dict.fromkeys(_oldest_first(view))
        keys |= {
            import_target(resource_import): None for resource_import in view.list(ResourceImport, Side.LEADER)
        }
        for cls in (ApiService, ApiServiceImport, ApiEndpointSlice):
            keys |= {owner_of(obj): None for obj in view.list(cls)}
        keys.pop("", None)
        return keys

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the objects of an imported Service; events alone while it cannot be imported.

        Those of a present Service that were refused come last: they hold up no endpoints of present slices.
        """
        leader, cluster_set = joined_leader(view), cluster_set_of(view)
        namespace, _, name = key.partition("/")
        target = ImportedService(namespace=namespace, name=name)
        if leader is None or cluster_set is None:
            return DesiredObjects()  # leaving cleans up
        about = cluster_set.subject
        targeted = (
            resource_import
            for resource_import in view.indexed(IMPORTS_BY_TARGET, key)
            if is_for(resource_import, leader)
        )
        imports = {resource_import.spec.kind: resource_import for resource_import in targeted}
        definition = imports.get(SERVICE_IMPORT)
        if definition is None:
            return DesiredObjects(steps=removals(target, view))
        try:
            service_spec = read_service(definition)
            backends = imports.get(ExportKind.ENDPOINTS)
            imported = ImportedEndpoints() if backends is None else read_endpoints(backends)
        except InputError as err:
            message = f"Service {key} is not imported while invalid: {err}"
            return DesiredObjects(events=[Event(subject=about, reason="InvalidImport", message=message)])
        obstacle = _obstacle(target, view, about) or self._full(target, view, about)
        if obstacle is not None:
            return DesiredObjects(events=[obstacle])
        own = own_addresses(view, leader, namespace, name)
        accepted = accept(imported.endpoints, own, view, leader, self._known, exporters=exporters_of(backends))
        own_range = export_cidr(view, self._settings)
        endpoints = behind_own_address(accepted.endpoints, own, view, leader, key, export_range=own_range)
        endpoints = local_endpoints(endpoints, own, pod_prefixes(view, self._settings))
        clusters = _clusters(imports) or accepted.clusters
        ready = {cluster: number for cluster, number in imported.ready.items() if cluster != leader.cluster_id}
        places = places_of(view.indexed(SLICES_BY_SERVICE, key)) if own else {}
        objects = _Objects(
            slices=slices(target, endpoints, ready, places),
            endpoints=endpoints_of(target, endpoints),
            service_import=service_import_of(
                target,
                service_spec,
                view.get(target.service, ApiService),
                clusters,
                view.get(target.service_import, ApiServiceImport),
            ),
        )
        desired = self._steps(target, service_spec, objects, accepted.refused, view)
        steps = desired.steps
        if view.get(target.service, ApiService) is not None:
            present = {endpoint_slice.name for endpoint_slice in our_slices(target, view)}
            steps = _refused_last(steps, {target.slice(name) for name in objects.slices.keys() - present}, view)
        events = [*desired.events, *refused_writes(steps, view, about)]
        return DesiredObjects(steps=steps, events=events)

    def _full(self, target: ImportedService, view: View, about: str) -> Event | None:
        """Return the Event for an import above `maxImportedServices`; None if there is room, or it is imported."""
        limit = self._settings.max_imported_services
        if view.get(target.service, ApiService) is not None or view.count(IMPORTED_SERVICES, IMPORTED) < limit:
            return None
        message = (
            f"Service {target.namespace}/{target.name} is not imported: this cluster has {limit} imported "
            "Services already, the limit (maxImportedServices)"
        )
        return Event(subject=about, reason="TooManyImports", message=message)

    def _next(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the oldest waiting imports if an imported Service was deleted, as many as there is room for."""
        most = self._settings.max_imported_services
        count = view.count(IMPORTED_SERVICES, IMPORTED)
        gone = change.old if change.new is None and isinstance(change.old, ApiService) else None
        if gone is None or not is_imported(gone) or not most - _REFILLED <= count < most:
            return ()
        return islice((key for key in _oldest_first(view) if _waits(key, view)), most - count)

    def _steps(
        self,
        target: ImportedService,
        service_spec: ServiceSpec,
        objects: _Objects,
        refused: Iterable[str],
        view: View,
    ) -> DesiredObjects:
        """Return the steps: creations before deletions, so that no endpoint is missing in between."""
        service = view.get(target.service, ApiService)
        events = [Event(subject=str(target.service), reason="EndpointsRefused", message=why) for why in refused]
        if is_of_other_type(service, service_spec):
            return DesiredObjects(steps=[target.service], events=events)  # created again once it is gone
        present_slices = {endpoint_slice.name for endpoint_slice in our_slices(target, view)}
        steps: list[Wanted | Ref] = [
            Wanted(ref=target.slice(name), body=body)
            for name, body in sorted(objects.slices.items(), key=lambda item: (item[0] in present_slices, item[0]))
        ]
        steps += [target.slice(name) for name in sorted(present_slices - objects.slices.keys())]
        # A Service that exists comes after its endpoints: they change although its update may be refused.
        steps.insert(0 if service is None else len(steps), service_object(target, service_spec, service))
        if self._settings.write_endpoints is WriteEndpoints.ALWAYS:
            steps.append(objects.endpoints)
        elif is_mirrored(target, view):
            steps.append(target.endpoints)  # Antrea's, which Kubernetes would mirror into slices
        present = view.get(target.service_import, ApiServiceImport)
        if present is not None and not is_our_import(present, service):
            message = "it was not made for an import: left as it is"
            events.append(Event(subject=str(target.service_import), reason="NotImported", message=message))
            return DesiredObjects(steps=steps, events=events)
        steps.append(objects.service_import)
        return DesiredObjects(steps=steps, events=events)


def _refused_last(steps: Sequence[Wanted | Ref], new: Set[Ref], view: View) -> list[Wanted | Ref]:
    """Return the steps with those last that were refused; all `new` ones, if one was, since quotas count them."""
    refs = {ref: step for step in steps for ref in [step if isinstance(step, Ref) else step.ref]}
    refused = {ref for ref in refs if view.failure(ref)}
    late = refused | new if refused & new else refused
    return [*(step for ref, step in refs.items() if ref not in late), *(refs[ref] for ref in refs if ref in late)]


def _with_endpoints(change: ObjectChange, view: View) -> set[str]:
    """Return the imports with endpoints at addresses that a Node or an API server of this cluster got or lost."""
    addresses = addresses_of(change.old) ^ addresses_of(change.new)
    near = (endpoints for block in map(block_of, addresses) for endpoints in view.indexed(IMPORTS_BY_BLOCK, block))
    return {
        import_target(endpoints)
        for endpoints in near
        if any(item.ip in addresses for subset in endpoints.spec.endpoints.subsets for item in subset.addresses)
    }


def _oldest_first(view: View) -> list[str]:
    """Return the keys of all ResourceImports of Services, the oldest first."""
    imports = [
        resource_import
        for resource_import in view.list(ResourceImport, Side.LEADER)
        if resource_import.spec.kind == SERVICE_IMPORT
    ]
    return [*filter(None, map(import_target, sorted(imports, key=lambda item: item.age)))]


def _waits(key: str, view: View) -> bool:
    """Tell whether a Service is not imported, although its namespace exists."""
    namespace, _, name = key.partition("/")
    service = view.get(ImportedService(namespace=namespace, name=name).service, ApiService)
    return service is None and view.get(Ref(kind=Kind.NAMESPACE, name=namespace), ApiNamespace) is not None


def _obstacle(target: ImportedService, view: View, about: str) -> Event | None:
    """Return the Event for an import that is not possible; a change of the obstacle enqueues the key again."""
    namespace = view.get(Ref(kind=Kind.NAMESPACE, name=target.namespace), ApiNamespace)
    if namespace is None or namespace.is_deleting:
        message = f"Services of namespace {target.namespace} are not imported: there is no such namespace here"
        return Event(subject=about, reason="NamespaceMissing", message=message, warning=False)
    if not names.is_label(target.service.name):
        message = f"Service {target.namespace}/{target.name} is not imported: {target.service.name} is too long"
        return Event(subject=about, reason="NameTooLong", message=message)
    service = view.get(target.service, ApiService)
    if service is not None and not is_imported(service):
        key = names.IMPORTED_SERVICE_ANNOTATION
        message = f"it has the name of an imported Service but not the annotation {key}: it is left as it is"
        return Event(subject=str(target.service), reason="NotImported", message=message)
    return None


def _clusters(imports: Mapping[str, ResourceImport]) -> list[str]:
    """Return the exporting clusters by the status; Antrea's leader writes it only after a change."""
    if ExportKind.ENDPOINTS not in imports:
        return []
    statuses = imports[ExportKind.ENDPOINTS].status.cluster_statuses
    accepted = {s.cluster_id for s in statuses if condition_of(s.conditions, "Succeeded").is_true}
    return sorted(filter(names.is_subdomain, accepted))
