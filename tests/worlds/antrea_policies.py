"""Replicated ClusterNetworkPolicies of Antrea: on the leader, and in a member."""

from __future__ import annotations

from typing import Any

from mcagent.controller.contract import names
from mcagent.controller.member.announce import Announce
from mcagent.controller.member.cleanup import Cleanup
from mcagent.controller.member.policies.policy_imports import PolicyImports
from mcagent.controller.settings import ReplicatedPolicies
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_world import export
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import member, settings

POLICY = {
    "tier": "securityops",
    "priority": 1,
    "appliedTo": [{"namespaceSelector": {}}],
    "ingress": [{"action": "Drop", "from": [{"namespaceSelector": {}}]}],
}

IMPORT = "strict-antreaclusternetworkpolicy"
OURS = "antrea-mc-strict"


def policy(name: str = "strict", payload: Any = POLICY, export_name: str = "") -> RawObject:
    """Return the export that an administrator writes."""
    spec = {"name": name, "clusterNetworkPolicy": payload}
    return export("", names.POLICY, export_name or f"{name}-export", spec)


def imported(payload: RawObject | None = None) -> RawObject:
    """Return the leader's ResourceImport."""
    spec = {"kind": names.POLICY, "name": "strict", "clusternetworkpolicy": payload or POLICY}
    return {"kind": "ResourceImport", "metadata": {"name": IMPORT, "namespace": NORTH}, "spec": spec}


def antrea(*tiers: str) -> tuple[MemoryView, Controller]:
    """Return a member with Tiers, that has announced itself."""
    view = member()
    for tier in tiers:
        view.local.put({"kind": "Tier", "metadata": {"name": tier}, "spec": {"priority": 50}})
    config = settings(replicated_cluster_policies=ReplicatedPolicies.ISOLATE)
    controller = Controller(view, [PolicyImports(config), Announce(config), Cleanup(config)])
    controller.settle()
    return view, controller


def spec_of(view: MemoryView) -> Any:
    """Return the policy in the member, None if there is none."""
    policy = view.local.get(Kind.CLUSTER_NETWORK_POLICY, "", OURS)
    return policy["spec"] if policy else None
