"""The reconciler that deletes the objects of a membership once there is no ClusterSet.

A key is "Kind/namespace/name" of one object. It deletes imported Services, their EndpointSlices and
ServiceImports, ClusterInfoImports, LabelIdentities, imported policies and Gateways that bear this controller's
marks. It runs while the ClusterSet is being deleted, then also for Services and policies that Antrea's controller
imported, and at start if there is none: Antrea's controller may be a member by a ClusterSet of another namespace.
ServiceExports belong to users and stay: their condition Ready becomes False.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcagent.controller.contract import names
from mcagent.controller.machinery.reconciler import Access, DesiredObjects, ObjectChange, Ref, View, Wanted
from mcagent.controller.member.membership import cluster_set_of, is_joined, is_managed
from mcagent.controller.member.policies.consent import written_kinds
from mcagent.controller.member.policies.policy_imports import is_imported_policy
from mcagent.controller.member.services.export_conditions import withdrawn
from mcagent.controller.member.services.imported import ImportedService, is_imported, is_our_import, owner_of
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiService
from mcagent.model.api.multicluster import ApiServiceExport, ApiServiceImport
from mcagent.model.api.policies import PolicyObject
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES

_OWNED = (
    Kind.SERVICE_IMPORT,
    Kind.SERVICE,
    Kind.ENDPOINT_SLICE,
    Kind.CLUSTER_INFO_IMPORT,
    Kind.GATEWAY,
    Kind.LABEL_IDENTITY,
)


def owned_kinds(settings: MemberSettings) -> tuple[Kind, ...]:
    """Return the kinds of the objects of a membership."""
    return (*_OWNED, *written_kinds(settings))


class Cleanup:
    """Deletes the objects of a ClusterSet that is deleted or being deleted."""

    name = "cleanup"
    needs_leader = False
    indexes = ()

    def __init__(self, settings: MemberSettings) -> None:
        self._kinds = owned_kinds(settings)
        self.reads = Access(local={*self._kinds, Kind.CLUSTER_SET, Kind.SERVICE_EXPORT})
        self.writes = Access(local={*self._kinds, Kind.ENDPOINTS, Kind.SERVICE_EXPORT})

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the objects to delete, once there is no ClusterSet."""
        if is_joined(view):
            return []
        if change.kind is Kind.CLUSTER_SET:
            return self.all_keys(view)
        return [_key(change.new)] if change.new is not None else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all objects to delete, and all ServiceExports."""
        return [] if is_joined(view) else [_key(obj) for obj in self._objects(view)]

    def _objects(self, view: View) -> Iterable[ApiObject]:
        yield from owned(view, self._kinds)
        yield from view.list(ApiServiceExport)

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the deletion of the object, if it belongs to a membership; of a ServiceExport the status."""
        if is_joined(view):
            return DesiredObjects()
        kind, namespace, name = key.split("/", 2)
        ref = Ref(kind=Kind(kind), namespace=namespace, name=name)
        obj = view.get(ref, TYPES[ref.kind])
        if isinstance(obj, ApiServiceExport):
            status = withdrawn(obj, now)
            return DesiredObjects(steps=[status] if status is not None else [])
        if obj is None or not _is_ours(obj, view):
            return DesiredObjects()
        steps: list[Wanted | Ref] = [ref]
        if isinstance(obj, ApiService):
            imported = ImportedService(namespace=namespace, name=name.removeprefix(names.IMPORTED_PREFIX))
            present = view.get(imported.service_import, ApiServiceImport)
            # Antrea's ServiceImport is identified by the address of its Service, so it is deleted first.
            before = [imported.service_import] if present is not None and is_our_import(present, obj) else []
            steps = [*before, imported.endpoints, ref]
        return DesiredObjects(steps=steps)


def owned(view: View, kinds: Iterable[Kind]) -> Iterator[ApiObject]:
    """Yield the objects of a membership, of these kinds, that are not being deleted."""
    for kind in kinds:
        for obj in view.list(TYPES[kind]):
            if not obj.is_deleting and _is_ours(obj, view):
                yield obj


def _is_ours(obj: ApiObject, view: View) -> bool:
    is_marked = is_managed(obj) or cluster_set_of(view) is not None
    match obj.KIND:
        case Kind.SERVICE:
            return bool(owner_of(obj)) and is_imported(obj) and is_marked
        case Kind.ENDPOINT_SLICE:
            return obj.labels.get(names.SLICE_MANAGED_BY_LABEL) == names.SLICE_MANAGED_BY
    if isinstance(obj, PolicyObject):
        return is_imported_policy(obj) and is_marked
    if not is_managed(obj):
        return False
    return obj.KIND in (Kind.SERVICE_IMPORT, Kind.LABEL_IDENTITY) or obj.namespace == view.namespace


def _key(obj: ApiObject) -> str:
    return f"{obj.KIND}/{obj.key}"
