"""The reconciler that deletes what was made for a membership once there is no ClusterSet.

A key is "Kind/namespace/name" of one object. It deletes imported Services, their EndpointSlices and
ServiceImports, ClusterInfoImports, LabelIdentities, ClusterNetworkPolicies and Gateways, as far as they bear our
marks (Services and policies also Antrea's). It runs while the ClusterSet is being deleted, and at start when there
is none any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcagent.controller.contract import names
from mcagent.controller.contract.policies import CARRIED
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    ObjectChange,
    Ref,
    View,
    Wanted,
)
from mcagent.controller.member.membership import is_joined
from mcagent.controller.member.policies.cluster_policies import is_imported_policy
from mcagent.controller.member.policies.kubernetes_policies import is_imported_kubernetes_policy
from mcagent.controller.member.services.imported import ImportedService, is_imported, is_our_import, owner_of
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiService, PolicyObject
from mcagent.model.api.multicluster import ApiServiceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES

OWNED = (
    Kind.SERVICE_IMPORT,
    Kind.SERVICE,
    Kind.ENDPOINT_SLICE,
    Kind.CLUSTER_INFO_IMPORT,
    Kind.GATEWAY,
    Kind.LABEL_IDENTITY,
    Kind.CLUSTER_NETWORK_POLICY,
    *CARRIED,
)


class Cleanup:
    """Deletes what was made for a ClusterSet that is gone or going."""

    name = "cleanup"
    needs_leader = False
    reads = Access(local={*OWNED, Kind.CLUSTER_SET})
    writes = Access(local={*OWNED, Kind.ENDPOINTS})
    indexes = ()

    def __init__(self, settings: MemberSettings) -> None:
        """Nothing of the settings is needed."""

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return what has to go, once there is no ClusterSet."""
        if is_joined(view):
            return []
        if change.kind is Kind.CLUSTER_SET:
            return self.all_keys(view)
        return [_key(change.new)] if change.new is not None else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all that has to go."""
        return [] if is_joined(view) else [_key(obj) for obj in owned(view)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the object as something to delete, if it is ours."""
        if is_joined(view):
            return DesiredObjects()
        kind, namespace, name = key.split("/", 2)
        ref = Ref(kind=Kind(kind), namespace=namespace, name=name)
        obj = view.get(ref, TYPES[ref.kind])
        if obj is None or not _is_ours(obj, view):
            return DesiredObjects()
        steps: list[Wanted | Ref] = [ref]
        if isinstance(obj, ApiService):
            imported = ImportedService(namespace=namespace, name=name.removeprefix(names.IMPORTED_PREFIX))
            present = view.get(imported.service_import, ApiServiceImport)
            # One that Antrea made is known by the address of its Service, so it goes first.
            before = [imported.service_import] if present is not None and is_our_import(present, obj) else []
            steps = [*before, imported.endpoints, ref]
        return DesiredObjects(steps=steps)


def owned(view: View) -> Iterator[ApiObject]:
    """Yield all that was made for a membership and is not on its way out."""
    for kind in OWNED:
        for obj in view.list(TYPES[kind]):
            if not obj.is_deleting and _is_ours(obj, view):
                yield obj


def _is_ours(obj: ApiObject, view: View) -> bool:
    match obj.KIND:
        case Kind.SERVICE:
            return bool(owner_of(obj)) and is_imported(obj)
        case Kind.ENDPOINT_SLICE:
            return obj.labels.get(names.SLICE_MANAGED_BY_LABEL) == names.SLICE_MANAGED_BY
        case Kind.CLUSTER_NETWORK_POLICY:
            return is_imported_policy(obj)
    if isinstance(obj, PolicyObject):
        return is_imported_kubernetes_policy(obj)
    if obj.labels.get(names.MANAGED_BY_LABEL) != names.MANAGED_BY:
        return False
    return obj.KIND in (Kind.SERVICE_IMPORT, Kind.LABEL_IDENTITY) or obj.namespace == view.namespace


def _key(obj: ApiObject) -> str:
    return f"{obj.KIND}/{obj.key}"
