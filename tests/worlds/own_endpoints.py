"""An imported Service with endpoints on this Node, and policies of its clients."""

from __future__ import annotations

from mcagent.model.objects import ApiObject, Kind
from tests.worlds.core_inputs import endpoint, imported_slice, pod, policy

OWN = imported_slice("own", "cart", "home", [endpoint("10.10.2.7"), endpoint("10.10.1.9")])
CLIENTS = (pod("a", "g1", "10.10.1.5", labels="app=client"), pod("b", "g1", "10.10.1.6", labels="app=client"))


def rule(name: str, priority: int, action: str, *, service: str = "cart", tier: str = "application") -> ApiObject:
    """Return a ClusterNetworkPolicy: what clients may do with an imported Service."""
    to = {"name": service, "namespace": "default", "scope": "ClusterSet"}
    spec = {
        "priority": priority,
        "tier": tier,
        "appliedTo": [{"podSelector": {"matchLabels": {"app": "client"}}}],
        "egress": [{"action": action, "toServices": [to]}],
    }
    return policy(Kind.CLUSTER_NETWORK_POLICY, name, spec)
