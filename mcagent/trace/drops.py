"""What is probably wrong where a packet is dropped, and what to look at next, by the reason of the drop."""

from __future__ import annotations

from collections.abc import Mapping

CAUSES: Mapping[str, tuple[str, str]] = {
    "miss": ("no rule matches this packet: is the agent ready?", "mcagent status"),
    "spoofed": ("the source is not the sender's own: is it in the Node's podCIDR?", "kubectl get nodes -o yaml"),
    "spoofed-remote": (
        "the source is in no CIDR that its cluster has announced, or one was refused",
        "kubectl get clusterinfoimports -A -o yaml",
    ),
    "not-published": ("Pod-to-Pod traffic is off (enablePodToPodConnectivity)", "mcagent config show"),
    "not-exported": ("no ServiceExport of this Service, or of another port", "kubectl get serviceexports -A"),
    "no-endpoint": ("the exported Service has no ready endpoint", "kubectl get endpointslices -A"),
    "no-state": ("a reply of a connection unknown to this gateway", "mcagent gateways --history"),
    "invalid": ("conntrack does not match the packet to a connection", "mcagent status"),
    "no-route": ("no other cluster has this address", "kubectl get clusterinfoimports -A -o yaml"),
    "no-gateway": ("no gateway of that cluster can be used", "mcagent gateways --history"),
    "no-node": ("no Node of this cluster has this address", "kubectl get pods -A -o wide"),
    "refused": ("the reset of a client that the agent probed", "mcagent status"),
    "policy": ("a policy rule forbids it", "mcagent policy explain --from WHO --to WHO --port PORT"),
    "isolated": ("a NetworkPolicy isolates the Pod, and none allows this", "mcagent policy list"),
    "unknown-identity": (
        "policies select this Pod's clients by labels, and the sender's are not known",
        "kubectl get labelidentities",
    ),
    "no-connection": (
        "a TCP packet of a connection to a Service that no endpoint has: it is over, or its Pod is gone",
        "kubectl get endpointslices -A",
    ),
    "not-related": (
        "an ICMP error about no connection between its sender's cluster and this Node",
        "kubectl get clusterinfoimports -A -o yaml",
    ),
}  # fmt: skip
