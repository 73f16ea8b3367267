"""The condition Healthy of a ClusterSet, and how members announce it to the leader. Pure; never raises.

A member's condition is the result of `mcagent.core.health` on its cluster. The leader repeats it for each member
that announces one, and sums it up. Without an announcement, as of older versions and of Antrea, a member has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcagent.controller.contract.conditions import FALSE, TRUE, UNKNOWN, condition
from mcagent.core.health import HealthFinding, read_finding
from mcagent.model.api.base import ApiObject, Condition, condition_of
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce

HEALTHY = "Healthy"  # of mcagent
NOT_REPORTED = "NotReported"
HEALTH_ANNOTATION = "mcagent.io/health"  # of a MemberClusterAnnounce: "REASON: message" while it is not healthy


def health_condition(
    before: Sequence[Condition], finding: HealthFinding | None, now: float, *, unknown: str = ""
) -> Condition:
    """Return the condition. `unknown`: why nothing is known, if no finding is."""
    if finding is None and unknown:
        return condition(before, HEALTHY, UNKNOWN, reason=NOT_REPORTED, message=unknown, now=now)
    if finding is None:
        return condition(before, HEALTHY, TRUE, now=now)
    status = FALSE if finding.error else TRUE
    return condition(before, HEALTHY, status, reason=finding.reason, message=finding.message, now=now)


def announced_health(cluster_set: ApiObject | None) -> str | None:
    """Return what a member announces of the health in its ClusterSet's status; None: nothing."""
    if not isinstance(cluster_set, ClusterSet):
        return None
    healthy = condition_of(cluster_set.status.conditions, HEALTHY)
    return f"{healthy.reason}: {healthy.message}" if healthy.reason and healthy.reason != NOT_REPORTED else None


def read_health(announce: ApiObject | None) -> HealthFinding | None:
    """Return what a member announces; None: nothing."""
    if not isinstance(announce, MemberClusterAnnounce):
        return None
    return read_finding(announce.annotation(HEALTH_ANNOTATION) or "")


def unhealthy_by_reason(cluster_sets: Sequence[ClusterSet]) -> dict[str, int]:
    """Return the number of clusters that are not healthy, by reason: this one, on a leader also each member."""
    counts: dict[str, int] = {}
    for cluster_set in cluster_sets:
        conditions = [condition_of(status.conditions, HEALTHY) for status in cluster_set.status.cluster_statuses]
        if not cluster_set.is_leaders:
            conditions = [condition_of(cluster_set.status.conditions, HEALTHY)]
        for healthy in conditions:
            if healthy.is_false and (finding := read_finding(f"{healthy.reason}: ")) is not None:
                counts[finding.reason] = counts.get(finding.reason, 0) + 1
    return counts
