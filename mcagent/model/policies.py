"""NetworkPolicies and Antrea's policies as frozen values: what of them concerns traffic between clusters.

One form for all kinds. A peer of this cluster's Pods is not in it: such a peer is in no other cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from mcagent.model.net import Network

if TYPE_CHECKING:
    from mcagent.model.objects import Meta

CLUSTER_LABEL = "multicluster.kubernetes.io/cluster"  # of a Namespace in a selector: the ID of its cluster


PROTOCOLS = {"TCP": 6, "UDP": 17, "SCTP": 132}  # IANA protocol-numbers


class Direction(StrEnum):
    """From the Pod's point of view."""

    INGRESS = "ingress"
    EGRESS = "egress"


class Verdict(StrEnum):
    """What a rule does with a request; the stricter first. PASS: NetworkPolicies decide."""

    DROP = "Drop"
    REJECT = "Reject"
    PASS = "Pass"  # noqa: S105 - no password
    ALLOW = "Allow"


class Operator(StrEnum):
    """Of a requirement on labels."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a label has to be; `values` are sorted. NotIn holds where there is no label (labels.Requirement)."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether labels are so."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
        return value is None


@dataclass(frozen=True, slots=True)
class Selector:
    """Pods by their Namespace's labels and their own. All requirements hold of those that it selects."""

    namespace: tuple[Requirement, ...] = ()
    pod: tuple[Requirement, ...] = ()

    @property
    def names_clusters(self) -> bool:
        """Whether it says of which cluster Pods are."""
        return any(requirement.key == CLUSTER_LABEL for requirement in self.namespace)

    def selects(self, namespace: Mapping[str, str], pod: Mapping[str, str]) -> bool:
        """Tell whether it selects Pods with these labels."""
        matches_namespace = all(requirement.holds(namespace) for requirement in self.namespace)
        return matches_namespace and all(requirement.holds(pod) for requirement in self.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The other side of a rule: Pods of all clusters by label, or addresses.

    `same_namespace`, `same_labels`: Pods of Namespaces with the same name, or the same values of these labels, as
    that of the Pod that the rule is for. `network`: addresses, but those of `without`.
    """

    pods: Selector | None = None
    same_namespace: bool = False
    same_labels: tuple[str, ...] = ()
    network: Network | None = None
    without: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePort:
    """Ports of a protocol (IP's number): `low` to `high`, or by name; of ICMP type and code, None: any."""

    protocol: int
    low: int = 0
    high: int = 65535
    name: str = ""
    icmp_type: int | None = None
    icmp_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPolicyRule:
    """One rule. `peers` and `services` (namespace and name) count unless `any_peer` is set.

    `log_label`: what it decides is logged, with this text; None: it is not.
    `fault`: what of it cannot be enforced; then `Policy.applied_to` alone is known to be right.
    """

    name: str  # "ingress[0]", or what the user calls it
    direction: Direction
    verdict: Verdict
    applied_to: tuple[Selector, ...]
    any_peer: bool = False
    peers: tuple[Peer, ...] = ()
    services: tuple[tuple[str, str], ...] = ()
    ports: tuple[RulePort, ...] = ()  # none: every
    log_label: str | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A NetworkPolicy, or one of Antrea's. `tier`: "" for a NetworkPolicy.

    `isolates`: where Pods of `applied_to` are let do only what some NetworkPolicy allows.
    """

    meta: Meta
    rules: tuple[NetworkPolicyRule, ...]
    tier: str = ""
    priority: float = 0.0
    applied_to: tuple[Selector, ...] = ()
    isolates: frozenset[Direction] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Antrea's Tier: which policies come first, those of the lowest priority."""

    meta: Meta
    priority: int
