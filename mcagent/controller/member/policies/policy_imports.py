"""The reconciler of replicated policies: ResourceImports to policies of Antrea (if installed) and Kubernetes.

A key is the name of a ResourceImport. It owns the policy in it, named `antrea-mc-<name>`, with exactly the spec
that the leader has. A policy with that name that was not imported stays. A policy needs the consent of this
cluster's administrator (`consent`), one of Antrea its Tier, a NetworkPolicy its Namespace. A kind that the API
server does not serve, or on which this controller has no rights, is not imported. If a ResourceImport becomes
invalid, or gets a policy without consent, its last accepted policy stays, until the consent to that one is
withdrawn. The announcement reports each reason to the leader (`member.announce`), which makes it an Event
(`leader.policies`).
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.contract.policies import CARRIED, Carried, as_stored, read_carried
from mcagent.controller.machinery.reconciler import (
    Access,
    AnyIndex,
    DesiredObjects,
    Index,
    Leader,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.membership import (
    concerns_membership,
    import_ref,
    is_for,
    is_managed,
    joined_leader,
    managed_labels,
)
from mcagent.controller.member.policies.consent import read_kinds, refusal, written_kinds
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiNamespace
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.api.patches import metadata_patch, patch
from mcagent.model.api.policies import ApiTier, ClusterNetworkPolicy, PolicyObject
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES
from mcagent.model.parsing.field import Field

_ANTREA_BEGINS = 60.0  # seconds within which Antrea's controller sets the phase of a new policy


class PolicyImports:
    """Imports the policies of the ClusterSet to which this cluster's administrator consents."""

    name = "policy-import"
    needs_leader = True

    def __init__(self, settings: MemberSettings) -> None:
        self._settings, self._kinds = settings, written_kinds(settings)
        self.reads = Access(local={*read_kinds(settings), Kind.CLUSTER_SET}, leader={Kind.RESOURCE_IMPORT})
        self.writes = Access(local=set(self._kinds))
        self.indexes: tuple[AnyIndex, ...] = (POLICIES, *(COPIES[kind] for kind in self._kinds))

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the imports that a change touches: all if a Tier or Namespace is created or deleted."""
        match change.object:
            case ResourceImport():
                return dict.fromkeys(o.name for o in change.of(ResourceImport) if o is not None and _is_policy(o))
            case PolicyObject():
                objects = [o for o in (change.old, change.new) if o is not None]
                own = dict.fromkeys(key for o in objects for key in _imports_of(o))
                return [*own, *_imports_with_name_of(view, [o for o in objects if not is_imported_policy(o)])]
            case ApiTier() | ApiNamespace():
                return self.all_keys(view) if change.came_or_went else []
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all policies that are or were imported."""
        imports = (o.name for o in view.indexed(POLICIES, ALL))
        copies = (o for kind in self._kinds for o in view.list(TYPES[kind]))
        return dict.fromkeys((*imports, *(key for o in copies for key in _imports_of(o))))

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the policy, and the deletion of earlier ones if the ResourceImport has another object now."""
        leader = joined_leader(view)
        if leader is None:
            return DesiredObjects()  # leaving cleans up
        resource_import = view.get(import_ref(leader, key), ResourceImport)
        objects = (o for kind in self._kinds for o in view.indexed(COPIES[kind], key))
        copies = [_copied(o) for o in objects if isinstance(o, PolicyObject)]
        steps: list[Wanted | Ref] = []
        ref: Ref | None = None
        if resource_import is not None and _is_policy(resource_import) and is_for(resource_import, leader):
            policy, _ = _read(resource_import)
            if policy is None or refusal(policy, self._settings, leader):  # the last accepted policy stays
                refused = [copy for copy in copies if refusal(copy, self._settings, leader)]
                return DesiredObjects(steps=[_ref(copy) for copy in refused])
            if not _obstacle(view, policy, key):
                ref = _ref(policy)
                steps.append(_wanted(ref, policy, key))
        removed = [_ref(copy) for copy in copies if _ref(copy) != ref]
        return DesiredObjects(steps=[*steps, *removed])


def report(view: View, leader: Leader, settings: MemberSettings, now: float) -> dict[str, str]:
    """Return the reasons why policies are not, or not fully, applied here.

    The names are those of Antrea's policies, and of the ResourceImports of Kubernetes' policies.
    """
    problems: dict[str, str] = {}
    for resource_import in view.indexed(POLICIES, ALL):
        policy, why = _read(resource_import)
        if policy is not None:
            ref = _ref(policy)
            why = refusal(policy, settings, leader) or _obstacle(view, policy, resource_import.name)
            why = why or view.failure(ref) or _unenforced(view, ref, now)
        if why:
            is_antrea = resource_import.spec.kind == names.POLICY
            problems[resource_import.spec.name if is_antrea else resource_import.name] = why
    return problems


def is_imported_policy(obj: ApiObject) -> bool:
    """Tell whether a policy was made for a ResourceImport, by Antrea or by this controller."""
    return bool(_imports_of(obj))


def _read(resource_import: ResourceImport) -> tuple[Carried | None, str]:
    """Return the policy of a ResourceImport, or the reason why it has none."""
    if resource_import.spec.kind == names.POLICY:
        spec, name = resource_import.spec.cluster_network_policy, names.imported(resource_import.spec.name)
        policy = Carried(kind=Kind.CLUSTER_NETWORK_POLICY, namespace="", name=name, spec=spec)
        return (policy, "") if spec else (None, "the ResourceImport has no policy")
    try:
        resource_import.check("spec.raw")
        data = resource_import.spec.raw.data or None
        return read_carried(Field(f"ResourceImport {resource_import.name}", data, "spec.raw.data")), ""
    except InputError as error:
        return None, f"{error.path}: {error.reason}"


def _wanted(ref: Ref, policy: Carried, key: str) -> Wanted:
    is_antrea = policy.kind is Kind.CLUSTER_NETWORK_POLICY
    marks = {names.IMPORTED_POLICY_ANNOTATION: "true"} if is_antrea else {names.REPLICATED_POLICY_ANNOTATION: key}
    metadata = metadata_patch(labels=managed_labels(), annotations=marks)
    body = patch(PolicyObject, metadata=metadata, spec=as_stored(policy.kind, policy.spec))
    return Wanted(ref=ref, body=body)


def _obstacle(view: View, policy: Carried, key: str) -> str:
    """Return why the policy of an import cannot be created here; "" if it can."""
    ref = _ref(policy)
    if policy.kind is Kind.CLUSTER_NETWORK_POLICY:
        tier = policy.spec.get("tier")
        if not view.list(ApiTier):
            return "the cluster has no Tiers: neither Antrea nor mcagent deploy --with-policies has installed them"
        if isinstance(tier, str) and tier and view.get(Ref(kind=Kind.TIER, name=tier), ApiTier) is None:
            return f"there is no Tier {tier}"
    elif ref.namespace and view.get(Ref(kind=Kind.NAMESPACE, name=ref.namespace), ApiNamespace) is None:
        return f"there is no Namespace {ref.namespace}"
    present = view.get(ref, TYPES[ref.kind])
    is_foreign = present is not None and _imports_of(present) != [key]
    return f"there is a {ref.kind} {ref.name} that was not made for this import" if is_foreign else ""


def _unenforced(view: View, ref: Ref, now: float) -> str:
    """Return why an Antrea policy has no effect inside the cluster; "" if Antrea enforces it, or may begin to."""
    policy = view.get(ref, ClusterNetworkPolicy) if ref.kind is Kind.CLUSTER_NETWORK_POLICY else None
    created = time_of(policy.metadata.creation_timestamp) if policy is not None else None
    if policy is None or policy.status.phase or created is None or now < created + _ANTREA_BEGINS:
        return ""
    return "it has no effect inside the cluster: no Antrea runs there (status.phase is empty)"


def _copied(obj: PolicyObject) -> Carried:
    """Return a policy that was made for an import, as it is now."""
    return Carried(kind=obj.KIND, namespace=obj.namespace, name=obj.name, spec=obj.spec)


def _ref(policy: Carried) -> Ref:
    return Ref(kind=policy.kind, namespace=policy.namespace, name=policy.name)


def _is_policy(resource_import: ResourceImport) -> bool:
    """Tell whether a ResourceImport has a policy; the name of one of Antrea's must follow from its spec."""
    kind, name = resource_import.spec.kind, resource_import.spec.name
    follows = resource_import.name == names.policy_import(name) and names.is_subdomain(names.imported(name))
    return kind == names.KUBERNETES_POLICY or (kind == names.POLICY and follows)


def _imports_of(obj: ApiObject) -> list[str]:
    """Return the name of the ResourceImport that a policy was made for; [] if it was made for none."""
    if obj.KIND is Kind.CLUSTER_NETWORK_POLICY:
        annotated = obj.annotation(names.IMPORTED_POLICY_ANNOTATION) == "true"
        is_imported = annotated and obj.name.startswith(names.IMPORTED_PREFIX)
        return [names.policy_import(obj.name.removeprefix(names.IMPORTED_PREFIX))] if is_imported else []
    import_name = obj.annotation(names.REPLICATED_POLICY_ANNOTATION)
    return [import_name] if import_name and is_managed(obj) else []


def _imports_with_name_of(view: View, objects: Iterable[ApiObject]) -> list[str]:
    """Return the imports whose policy has the name of one of these objects, which may just have been deleted."""
    object_names = {(o.KIND, o.namespace, o.name) for o in objects}
    imports = []
    for resource_import in view.indexed(POLICIES, ALL) if object_names else ():
        policy, _ = _read(resource_import)
        if policy is not None and (policy.kind, policy.namespace, policy.name) in object_names:
            imports.append(resource_import.name)
    return imports


def _policies(resource_import: ResourceImport) -> Iterable[str]:
    return [ALL] if _is_policy(resource_import) else []


ALL = "all"
POLICIES = Index("imports-of-policies", ResourceImport, Side.LEADER, _policies)  # all under ALL
COPIES = {
    kind: Index(f"copies-{kind}", TYPES[kind], Side.LOCAL, _imports_of)
    for kind in (Kind.CLUSTER_NETWORK_POLICY, *CARRIED)
}  # policies that were made for an import, under its name
