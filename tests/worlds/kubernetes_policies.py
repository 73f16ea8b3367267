"""Replicated policies of Kubernetes: on the leader, and in a member that accepts them."""

from __future__ import annotations

import base64
import json
from typing import Any

from mcagent.controller.contract import names
from mcagent.controller.member.announce import Announce
from mcagent.controller.member.cleanup import Cleanup
from mcagent.controller.member.policies.policy_imports import PolicyImports
from mcagent.controller.settings import ReplicatedPolicies
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import member, north_of, settings

SPEC: RawObject = {"podSelector": {}, "policyTypes": ["Ingress"]}

NETWORK_POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny", "namespace": "till"},
    "spec": SPEC,
}

ADMIN = {
    "apiVersion": "policy.networking.k8s.io/v1alpha1",
    "kind": "AdminNetworkPolicy",
    "metadata": {"name": "deny"},
    "spec": {"priority": 5, "subject": {"namespaces": {}}},
}

IMPORT = "deny-all-kubernetespolicy"


def carried(document: object) -> RawObject:
    """Return the field `raw` with a manifest in it."""
    return {"data": base64.b64encode(json.dumps(document).encode()).decode()}


def imported(document: object = NETWORK_POLICY, name: str = IMPORT) -> RawObject:
    """Return the leader's ResourceImport."""
    spec = {"kind": names.KUBERNETES_POLICY, "name": "deny-all", "raw": carried(document)}
    return {"kind": "ResourceImport", "metadata": {"name": name, "namespace": NORTH}, "spec": spec}


def joined(*namespaces: str) -> tuple[MemoryView, Controller]:
    """Return a member with these Namespaces, that has announced itself and accepts policies that isolate."""
    view = member()
    for namespace in namespaces:
        view.local.put({"kind": "Namespace", "metadata": {"name": namespace}})
    return view, started(
        view,
        replicated_network_policies=ReplicatedPolicies.ISOLATE,
        replicated_namespaces=("till",),
        replicated_cluster_policies=ReplicatedPolicies.ISOLATE,
    )


def started(view: MemoryView, **keys: Any) -> Controller:
    """Start the member's controller with these keys."""
    config = settings(**keys)
    controller = Controller(view, [PolicyImports(config), Announce(config), Cleanup(config)])
    controller.settle()
    return controller


def report(view: MemoryView, controller: Controller) -> dict[str, str]:
    """Return what the member tells the leader with its next heartbeat."""
    controller.settle()
    announcement = north_of(view).get(Kind.MEMBER_CLUSTER_ANNOUNCE, NORTH, names.announce("east"))
    assert announcement is not None
    text = announcement["metadata"].get("annotations", {}).get(names.POLICY_PROBLEMS_ANNOTATION, "{}")
    return dict(json.loads(text))


def spec_of(view: MemoryView, kind: Kind = Kind.NETWORK_POLICY, name: str = "antrea-mc-deny") -> Any:
    """Return the policy in the member, None if there is none."""
    policy = view.local.get(kind, "till" if kind is Kind.NETWORK_POLICY else "", name)
    return policy["spec"] if policy else None
