"""Check `cluster-ids`: one cluster has each cluster ID, and the agents have that of the ClusterSet."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import DUPLICATE
from mcagent.controller.contract.health import HEALTHY
from mcagent.core.health import HealthReason
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.checks.cluster.leader import cluster_sets
from mcagent.doctor.examined import ExaminedCluster
from mcagent.model.api.base import condition_of
from mcagent.model.api.multicluster import ClusterSet

CHECK = DoctorCheck(
    name="cluster-ids",
    order=245,
    summary="one cluster has each cluster ID, and the agents have that of the ClusterSet",
    causes={
        "ClusterIDInUse": failed(
            "the leader accepts one cluster of the two; the other one exports and imports nothing",
            "in the refused cluster: mcagent clusterset leave --clusterset NAME, then join with another "
            "--clusterid; if it replaces the other one, on the leader: kubectl delete memberclusterannounce "
            "-n {namespace} {announce}",
        ),
        "ClusterIDDiffers": failed(
            "traffic distribution (importedTraffic), probes and metrics of agents name the wrong cluster",
            "in the cluster that the message names: set clusterID in the agents' configuration "
            "(agent.config.clusterID of the chart) to that of the ClusterSet, and restart them",
        ),
    },
)


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Judge the cluster IDs of the ClusterSets."""
    findings = [
        finding
        for cluster_set in cluster.read(cluster_sets)
        for finding in (*_duplicates(cluster_set), *_agents(cluster_set, cluster.config.cluster_id))
    ]
    yield from findings or [CHECK.passed("unique, and the same in agents and ClusterSet")]


def _duplicates(cluster_set: ClusterSet) -> Iterator[CheckFinding]:
    """Yield the cluster IDs that two clusters use: on a member its own one, on the leader those of all members."""
    if cluster_set.leader_server:
        area = cluster_set.spec.namespace
        conditions = [(cluster_set.spec.cluster_id, condition_of(cluster_set.status.conditions, "Ready"))]
    else:
        area = cluster_set.namespace
        statuses = cluster_set.status.cluster_statuses
        conditions = [(status.cluster_id, condition) for status in statuses for condition in status.conditions]
    for cluster_id, condition in conditions:
        if condition.is_false and condition.reason == DUPLICATE:
            yield CHECK.finding(
                "ClusterIDInUse",
                condition.message,
                subject=cluster_set.subject,
                namespace=area,
                announce=names.announce(cluster_id),
            )


def _agents(cluster_set: ClusterSet, agents_id: str) -> Iterator[CheckFinding]:
    healthy = condition_of(cluster_set.status.conditions, HEALTHY)
    if healthy.reason == HealthReason.CLUSTER_ID:
        yield CHECK.finding("ClusterIDDiffers", healthy.message, subject=cluster_set.subject)
        return
    joined_id = cluster_set.spec.cluster_id
    if cluster_set.leader_server and agents_id and joined_id and agents_id != joined_id:
        text = f'clusterID is "{agents_id}" in the agents\' configuration, and "{joined_id}" in the ClusterSet'
        yield CHECK.finding("ClusterIDDiffers", text, subject=cluster_set.subject)
