"""Check `health`: every cluster of the ClusterSet is reached, as gateways observe it (`mcagent.core.health`)."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.contract.health import HEALTHY, NOT_REPORTED
from mcagent.core.health import HealthReason, read_finding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.cluster.leader import cluster_sets
from mcagent.doctor.examined import ExaminedCluster
from mcagent.model.api.base import condition_of

CHECK = DoctorCheck(
    name="health",
    order=250,
    summary="every cluster of the ClusterSet is reached, as gateways observe it",
    causes={
        "ClusterUnhealthy": failed(
            "packets between that cluster and others are lost",
            "mcagent doctor --all, in that cluster and in the one that the message names: findings of gateways "
            "are the cause (docs/operations.md, Health)",
        ),
        "ClusterDegraded": warning(
            "the remaining tunnels carry all packets", "mcagent gateways --history, on gateways of that cluster"
        ),
    },
)
_ELSEWHERE = (HealthReason.AWAY, HealthReason.CLUSTER_ID)  # checks leader, members and cluster-ids report these


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Evaluate the condition Healthy of ClusterSets."""
    conditions = []
    for cluster_set in cluster.read(cluster_sets):
        statuses = cluster_set.status.cluster_statuses if cluster_set.is_leaders else ()
        conditions += [
            (f"cluster {status.cluster_id}", condition_of(status.conditions, HEALTHY)) for status in statuses
        ]
        if not cluster_set.is_leaders:
            own = condition_of(cluster_set.status.conditions, HEALTHY)
            conditions.append((f"cluster {cluster_set.spec.cluster_id}", own))
    findings = [
        CHECK.finding("ClusterUnhealthy" if finding.error else "ClusterDegraded", str(finding), subject=subject)
        for subject, condition in conditions
        if (finding := read_finding(f"{condition.reason}: {condition.message}")) is not None
        and finding.reason not in _ELSEWHERE
    ]
    unknown = any(condition.reason == NOT_REPORTED for _, condition in conditions)
    without = (
        CHECK.skipped("no agent of a gateway has reported yet") if unknown else CHECK.passed("all are reached")
    )
    yield from findings or [without]
