"""Members that get policies of a hostile leader."""

from __future__ import annotations

from mcagent.controller.contract import names
from mcagent.controller.member.policies.consent import CLUSTER_KINDS
from mcagent.kube.source import RawObject
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from tests.worlds.control_view import MemoryView
from tests.worlds.kubernetes_policies import carried
from tests.worlds.member_world import member

POLICIES = (Kind.NETWORK_POLICY, *CLUSTER_KINDS)

ISOLATED: RawObject = {  # by its owner
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "own", "namespace": "shop"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}


def member_with_owner() -> MemoryView:
    """Return a member with Antrea, whose owner isolates the Pods of Namespace shop."""
    view = member()
    for namespace in ("shop", "kube-system"):
        view.local.put({"kind": "Namespace", "metadata": {"name": namespace}})
    view.local.put({"kind": "Tier", "metadata": {"name": "emergency"}, "spec": {"priority": 50}})
    view.local.put(ISOLATED)
    return view


def planted(spec: RawObject, namespace: str = "shop") -> RawObject:
    """Return the spec of a ResourceImport with a NetworkPolicy."""
    document = {**ISOLATED, "metadata": {"name": "planted", "namespace": namespace}, "spec": spec}
    return {"kind": names.KUBERNETES_POLICY, "raw": carried(document)}


def cluster_wide(kind: Kind, action: str) -> RawObject:
    """Return the spec of a ResourceImport with a policy for the whole cluster."""
    spec = {
        "tier": "emergency",
        "priority": 1,
        "ingress": [{"action": action, "from": [{"namespaceSelector": {}}]}],
    }
    if kind is Kind.CLUSTER_NETWORK_POLICY:
        return {"kind": names.POLICY, "clusternetworkpolicy": spec}
    info = KINDS[kind]
    document = {"apiVersion": info.api_version, "kind": info.name, "metadata": {"name": "planted"}, "spec": spec}
    return {"kind": names.KUBERNETES_POLICY, "raw": carried(document)}
