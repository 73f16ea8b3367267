"""The catalogue of causes: for each reason why it matters and what to do. One set of words, used by all.

`mcagent doctor`, `mcagent status`, Events of problems and docs/doctor.md take them from here. A reason is the
stable word that a Problem or a finding of the doctor carries. Pure data; knows no observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mcagent.core.doctor.cluster_causes import CLUSTER_CAUSES
from mcagent.core.doctor.input_causes import INPUT_CAUSES
from mcagent.core.doctor.node_causes import NODE_CAUSES
from mcagent.core.doctor.words import Cause


@dataclass(frozen=True, slots=True)
class Check:
    """A check: what is looked at, and how. `where`: on a Node, or in a cluster's API."""

    what: str
    where: str = "Node"


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "agent": Check("the agent of the Node answers, its loop turns, the dataplane is as it should be"),
        "openvswitch": Check("ovsdb-server and ovs-vswitchd answer, the version, our bridge with its flows"),
        "datapath": Check("the kernel's module, or the uplink of a userspace datapath"),
        "api": Check("the Node reaches its API server, whose clock agrees"),
        "permissions": Check(
            "accounts may do what they need (SelfSubjectAccessReview, SubjectAccessReview)", "both"
        ),
        "tunnels": Check(
            "every tunnel exists and its peer answers BFD; where one does not: who hears whom, a probe"
        ),
        "path-mtu": Check("packets as large as the tunnels make them get to every gateway unfragmented (probe)"),
        "wireguard": Check("gateways of other clusters shake hands"),
        "routes": Check("the kernel's own lookup leads to our device for every network of other clusters"),
        "rp-filter": Check("strict reverse path filters, and packets that they dropped while the doctor looked"),
        "forwarding": Check("the kernel forwards, and others' chains let it"),
        "firewall": Check("rules of others that drop tunnels or what leaves by our device"),
        "masquerade": Check(
            "connections to other clusters that somebody translated (conntrack), chains before ours"
        ),
        "marks": Check("our bit of the packet and connection mark in rules of others"),
        "cidrs": Check("networks of clusters that overlap each other, Pods, Services or Nodes", "both"),
        "services": Check("exported Services that are not served as written"),
        "input": Check("objects and configuration that cannot be used as written", "both"),
        "agents": Check("every Node has an agent that runs, and all are of one version", "cluster"),
        "crds": Check("the CRDs are there, established, with the versions and fields of this mcagent", "cluster"),
        "webhooks": Check("admission webhooks have a CA and endpoints that are ready", "cluster"),
        "controller": Check("the control plane of the cluster runs and holds its Lease", "cluster"),
        "leader": Check("the leader is connected; its API server's certificate and clock", "cluster"),
        "exports": Check("exports that the leader takes, and imported endpoints that are used", "cluster"),
        "neighbours": Check("other multi-cluster systems beside us", "cluster"),
    }
)
NODE_CHECKS = tuple(name for name, check in CHECKS.items() if check.where in {"Node", "both"})
CLUSTER_CHECKS = tuple(name for name, check in CHECKS.items() if check.where in {"cluster", "both"})
CAUSES: Mapping[str, Cause] = MappingProxyType({**NODE_CAUSES, **CLUSTER_CAUSES, **INPUT_CAUSES})
UNKNOWN = Cause(
    "input",
    "failed",
    "what is named is not used, or not as written; the rest is",
    "correct the object; `kubectl describe` shows its Events",
)


def remedy(reason: str) -> str:
    """Return what to do about a reason, "" where the catalogue does not have it."""
    cause = CAUSES.get(reason)
    return cause.do if cause is not None else ""
