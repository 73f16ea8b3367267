"""The reconciler of replicated policies: ResourceImports of them to ClusterNetworkPolicies, where Antrea is.

A key is the name of a policy. It owns the ClusterNetworkPolicy `antrea-mc-<name>`, made just
what the leader says, as long as its Tier is here; one of that name without the annotation is somebody's own and
stays. What is not applied, and why, the announcement says to the leader (`member.announce`): there it becomes
Events (`leader.policies`). Every cluster that has Antrea has Tiers; without any there is no Antrea here.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.policies import only
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
from mcagent.model.api.kubernetes import ApiTier, ClusterNetworkPolicy
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.objects import Kind

ANTREA = frozenset({Kind.CLUSTER_NETWORK_POLICY, Kind.TIER})


class PolicyImports:
    """Imports the policies of the ClusterSet."""

    name = "policy-import"
    needs_leader = True
    reads = Access(local={*ANTREA, Kind.CLUSTER_SET}, leader={Kind.RESOURCE_IMPORT})
    writes = Access(local={Kind.CLUSTER_NETWORK_POLICY})

    def __init__(self, settings: MemberSettings) -> None:  # noqa: ARG002
        """Nothing of the settings is needed."""
        self.indexes = (POLICIES,)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the policies that a change is about: those of a Tier when that comes or goes."""
        match change.object:
            case ResourceImport():
                policies = dict.fromkeys(_policy_name(o) for o in change.of(ResourceImport) if o is not None)
                return [*filter(None, policies)]
            case ClusterNetworkPolicy(name=name):
                ours = name.startswith(names.IMPORTED_PREFIX)
                return [name.removeprefix(names.IMPORTED_PREFIX)] if ours else []
            case ApiTier():
                return self.all_keys(view) if change.came_or_went else []
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all policies that are or were imported."""
        present = (o for o in view.list(ClusterNetworkPolicy) if is_imported_policy(o))
        policies = dict.fromkeys(map(_policy_name, view.indexed(POLICIES, names.POLICY)))
        policies |= dict.fromkeys(o.name.removeprefix(names.IMPORTED_PREFIX) for o in present)
        return [*filter(None, policies)]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the policy."""
        leader = joined_leader(view)
        if leader is None:
            return DesiredObjects()  # leaving cleans up
        name = names.policy_import(key)
        resource_import = view.get(import_ref(leader, name), ResourceImport)
        ref = Ref(kind=Kind.CLUSTER_NETWORK_POLICY, name=names.imported(key))
        present = view.get(ref, ClusterNetworkPolicy)
        if (
            resource_import is None
            or _policy_name(resource_import) != key
            or not is_for(resource_import, leader)
            or _problem(view, resource_import)
        ):
            return DesiredObjects(steps=[ref] if present is not None and is_imported_policy(present) else [])
        meta = {
            "annotations": {names.IMPORTED_POLICY_ANNOTATION: "true"},
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
        }
        spec = only(resource_import.spec.cluster_network_policy, present.spec if present is not None else None)
        return DesiredObjects(steps=[Wanted(ref=ref, body={"metadata": meta, "spec": spec})])


def is_imported_policy(obj: ApiObject) -> bool:
    """Tell whether a ClusterNetworkPolicy was made for an import, by Antrea or by us."""
    noted = obj.annotation(names.IMPORTED_POLICY_ANNOTATION) == "true"
    return noted and obj.name.startswith(names.IMPORTED_PREFIX)


def _problem(view: View, resource_import: ResourceImport) -> str:
    """Return why a policy cannot be here; "" if it can."""
    if not resource_import.spec.cluster_network_policy:
        return "the ResourceImport has no policy"
    tier = resource_import.spec.cluster_network_policy.get("tier")
    if not view.list(ApiTier):
        return "the cluster has no Antrea: there are no Tiers"
    if isinstance(tier, str) and tier and view.get(Ref(kind=Kind.TIER, name=tier), ApiTier) is None:
        return f"there is no Tier {tier}"
    name = names.imported(_policy_name(resource_import))
    ref = Ref(kind=Kind.CLUSTER_NETWORK_POLICY, name=name)
    present = view.get(ref, ClusterNetworkPolicy)
    foreign = present is not None and not is_imported_policy(present)
    return f"there is a ClusterNetworkPolicy {name} that was not imported" if foreign else ""


def report(view: View) -> dict[str, str]:
    """Return what is not applied, and why, by the name of the policy."""
    problems: dict[str, str] = {}
    for policy in view.indexed(POLICIES, names.POLICY):
        name = _policy_name(policy)
        refused = view.failure(Ref(kind=Kind.CLUSTER_NETWORK_POLICY, name=names.imported(name)))
        problems[name] = _problem(view, policy) or refused
    return {name: why for name, why in problems.items() if name and why}


def _policy_name(resource_import: ResourceImport) -> str:
    """Return which policy a ResourceImport is about; "" when it is about none, or its name does not follow."""
    name = resource_import.spec.name
    good = resource_import.spec.kind == names.POLICY and names.is_subdomain(names.imported(name))
    return name if good and resource_import.name == names.policy_import(name) else ""


def _policies(obj: ResourceImport) -> Iterable[str]:
    return [names.POLICY] if _policy_name(obj) else []


POLICIES = Index("imports-of-policies", ResourceImport, Side.LEADER, _policies)  # all under the kind
