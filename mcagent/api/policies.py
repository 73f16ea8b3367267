"""What `mcagent policy list -o json` and `mcagent policy explain -o json` print."""

from __future__ import annotations

from mcagent.api.codec import VERSION, CamelRecord
from mcagent.api.status import ProblemStatus


class RuleInForce(CamelRecord, frozen=True):
    """A rule of a policy on a Node. `tier`: "" for a NetworkPolicy; `peers`, `ports` and `pods` as text."""

    node: str = ""
    policy: str = ""
    rule: str = ""
    direction: str = ""
    tier: str = ""
    verdict: str = ""
    peers: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


class IsolatedPod(CamelRecord, frozen=True):
    """A Pod that NetworkPolicies (`by`) isolate in a direction."""

    node: str = ""
    pod: str = ""
    direction: str = ""
    by: tuple[str, ...] = ()


class PolicyList(CamelRecord, frozen=True):
    """The rules of each Node in the order in which they are evaluated, and what is not enforced."""

    api_version: str = VERSION
    rules: tuple[RuleInForce, ...] = ()
    isolated: tuple[IsolatedPod, ...] = ()
    problems: tuple[ProblemStatus, ...] = ()


class PolicyDecision(CamelRecord, frozen=True):
    """The decision of a Pod's Node about a connection. `context`: of the kubeconfig, "" of the only one.

    `policy`, `rule`, `tier`: "" if no rule decides. The virtual address is the one in other clusters, the real one
    that in the peer's cluster. An address of the peer is None, and its cluster and labels are "", if unknown.
    """

    context: str = ""
    node: str = ""
    direction: str = ""
    pod: str = ""
    pod_address: str = ""
    pod_virtual_address: str = ""
    peer_address: str | None = None
    peer_real_address: str | None = None
    peer_cluster: str = ""
    peer_labels: str = ""
    peer_identity: int = 0
    port: str = ""
    verdict: str = ""
    policy: str = ""
    rule: str = ""
    tier: str = ""
    why: str = ""


class PolicyExplanation(CamelRecord, frozen=True):
    """The decisions about a connection, in the order in which its packets meet them."""

    api_version: str = VERSION
    allowed: bool = True
    decisions: tuple[PolicyDecision, ...] = ()
