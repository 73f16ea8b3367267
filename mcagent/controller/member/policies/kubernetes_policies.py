"""The reconciler of replicated policies of Kubernetes: ResourceImports of them to NetworkPolicies and the like.

A key is the name of a ResourceImport. It owns the policy that this carries, named `antrea-mc-<name>`, made just
what the leader says; one of that name that was not imported is somebody's own and stays. A kind that the API
server does not serve, or that this controller has no rights on, is not imported. That, and whatever else is in
the way, the announcement says to the leader (`member.announce`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcagent.controller.contract import names
from mcagent.controller.contract.policies import CARRIED, Carried, only, read_carried
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.membership import concerns_membership, import_ref, is_for, joined_leader
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiNamespace, PolicyObject
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES
from mcagent.model.parsing.field import Field


class KubernetesPolicyImports:
    """Imports the policies of the ClusterSet that are Kubernetes' own."""

    name = "kubernetes-policy-import"
    needs_leader = True
    reads = Access(local={*CARRIED, Kind.NAMESPACE, Kind.CLUSTER_SET}, leader={Kind.RESOURCE_IMPORT})
    writes = Access(local={*CARRIED})

    def __init__(self, settings: MemberSettings) -> None:  # noqa: ARG002
        """Nothing of the settings is needed."""
        self.indexes: tuple[Index[Any], ...] = (KUBERNETES_POLICIES, *COPIES.values())

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the imports that a change is about: those for a Namespace when that comes or goes."""
        match change.kind:
            case Kind.RESOURCE_IMPORT:
                return dict.fromkeys(o.name for o in change.of(ResourceImport) if o is not None and _imports(o))
            case Kind.CLUSTER_SET:
                return self.all_keys(view) if concerns_membership(change) else []
            case Kind.NAMESPACE:
                return self.all_keys(view) if change.came_or_went else []
            case _:
                objects = [o for o in (change.old, change.new) if o is not None]
                return [*dict.fromkeys(key for o in objects for key in _copied(o)), *_rivals(view, objects)]

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all policies that are or were imported."""
        imports = (o.name for o in view.indexed(KUBERNETES_POLICIES, names.KUBERNETES_POLICY))
        copies = (o for kind in CARRIED for o in view.list(TYPES[kind]))
        return dict.fromkeys((*imports, *(key for o in copies for key in _copied(o))))

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the policy, and what it was before where that is another object."""
        leader = joined_leader(view)
        if leader is None:
            return DesiredObjects()  # leaving cleans up
        resource_import = view.get(import_ref(leader, key), ResourceImport)
        steps: list[Wanted | Ref] = []
        ref: Ref | None = None
        if resource_import is not None and _imports(resource_import) and is_for(resource_import, leader):
            carried, _ = _read(resource_import)
            ref = _ref(carried) if carried is not None else None
            if carried is not None and ref is not None and not _problem(view, ref, key):
                steps.append(_wanted(view, ref, carried, key))
            elif carried is None:
                return DesiredObjects()  # what was good stays
        copies = [
            Ref(kind=kind, namespace=o.namespace, name=o.name)
            for kind in CARRIED
            for o in view.indexed(COPIES[kind], key)
        ]
        return DesiredObjects(steps=[*steps, *(copy for copy in copies if copy != ref)])


def report(view: View) -> dict[str, str]:
    """Return what is not applied, and why, by the name of the ResourceImport."""
    problems: dict[str, str] = {}
    for policy in view.indexed(KUBERNETES_POLICIES, names.KUBERNETES_POLICY):
        carried, why = _read(policy)
        if carried is not None:
            why = _problem(view, _ref(carried), policy.name) or view.failure(_ref(carried))
        problems[policy.name] = why
    return {name: why for name, why in problems.items() if why}


def is_imported_kubernetes_policy(obj: ApiObject) -> bool:
    """Tell whether a policy was made for an import."""
    return bool(_copied(obj))


def _read(resource_import: ResourceImport) -> tuple[Carried | None, str]:
    """Return the policy of a ResourceImport, or why there is none."""
    try:
        resource_import.check("spec.raw")
        data = Field(
            f"ResourceImport {resource_import.name}", resource_import.spec.raw.data or None, "spec.raw.data"
        )
        return read_carried(data), ""
    except InputError as error:
        return None, f"{error.path}: {error.reason}"


def _wanted(view: View, ref: Ref, carried: Carried, key: str) -> Wanted:
    meta = {
        "annotations": {names.REPLICATED_POLICY_ANNOTATION: key},
        "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
    }
    present = view.get(ref, TYPES[ref.kind])
    before = present.spec if isinstance(present, PolicyObject) else None
    return Wanted(ref=ref, body={"metadata": meta, "spec": only(carried.spec, before)})


def _problem(view: View, ref: Ref, key: str) -> str:
    """Return why the policy of an import cannot be here; "" if it can."""
    if ref.namespace and view.get(Ref(kind=Kind.NAMESPACE, name=ref.namespace), ApiNamespace) is None:
        return f"there is no Namespace {ref.namespace}"
    present = view.get(ref, TYPES[ref.kind])
    foreign = present is not None and _copied(present) != [key]
    return f"there is a {ref.kind} {ref.name} that was not made for this import" if foreign else ""


def _ref(carried: Carried) -> Ref:
    return Ref(kind=carried.kind, namespace=carried.namespace, name=carried.name)


def _imports(resource_import: ResourceImport) -> bool:
    return resource_import.spec.kind == names.KUBERNETES_POLICY


def _by_kind(obj: ResourceImport) -> Iterable[str]:
    return [names.KUBERNETES_POLICY] if _imports(obj) else []


def _copied(obj: ApiObject) -> list[str]:
    """Return the name of the ResourceImport that a policy was made for."""
    import_name = obj.annotation(names.REPLICATED_POLICY_ANNOTATION)
    ours = obj.labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY
    return [import_name] if import_name and ours else []


def _rivals(view: View, objects: Iterable[ApiObject]) -> list[str]:
    """Return the imports that want the name of a policy that is somebody's own: it may just have gone."""
    taken = {(o.namespace, o.name) for o in objects if not _copied(o)}
    rivals = []
    for policy in view.indexed(KUBERNETES_POLICIES, names.KUBERNETES_POLICY) if taken else ():
        carried, _ = _read(policy)
        if carried is not None and (carried.namespace, carried.name) in taken:
            rivals.append(policy.name)
    return rivals


# All under the kind.
KUBERNETES_POLICIES = Index("imports-of-kubernetes-policies", ResourceImport, Side.LEADER, _by_kind)
COPIES = {
    kind: Index(f"copies-{kind}", TYPES[kind], Side.LOCAL, _copied) for kind in CARRIED
}  # policies that were made for an import, under its name
