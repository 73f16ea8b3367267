"""Check `cluster-ids`: one cluster has each cluster ID, and the agents have that of the ClusterSet."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import text_at
from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import DUPLICATE
from mcagent.controller.contract.health import HEALTHY
from mcagent.core.health import HealthReason
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.cluster.leader import cluster_sets
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.model.api.base import Condition, condition_of
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

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
        "ClusterCopied": warning(
            "the leader accepts this cluster; the copy exports and imports nothing (an Event of the last hour)",
            "in the copy: mcagent clusterset leave --clusterset NAME, then join with another --clusterid",
        ),
        "ClusterIDDiffers": failed(
            "traffic distribution (importedTraffic), probes and metrics of agents name the wrong cluster",
            "in the cluster that the message names: set clusterID in the agents' configuration "
            "(agent.config.clusterID of the chart) to that of the ClusterSet, and restart them",
        ),
    },
)


def duplicates(cluster: ExaminedCluster) -> list[RawObject]:
    """Return the Events about a second cluster with the ID of this one. Raises SourceError."""
    return cluster.items(object_path(Kind.EVENT, ""), {"fieldSelector": f"reason={DUPLICATE}"})


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Judge the cluster IDs of the ClusterSets."""
    findings = [
        finding
        for cluster_set in cluster.read(cluster_sets)
        for finding in (*_duplicates(cluster_set), *_agents(cluster_set, cluster.config.cluster_id))
    ]
    joined = {
        (s.namespace, s.name): s for s in cluster.read(cluster_sets) if s.leader_server and _ready(s).is_true
    }
    for event in cluster.read(duplicates) if joined else ():
        namespace, name = (text_at(event, "involvedObject", key) for key in ("namespace", "name"))
        if (member := joined.get((namespace, name))) is not None:
            findings.append(CHECK.finding("ClusterCopied", text_at(event, "message"), subject=member.subject))
    yield from findings or [CHECK.passed("unique, and the same in agents and ClusterSet")]


def _duplicates(cluster_set: ClusterSet) -> Iterator[CheckFinding]:
    """Yield the cluster IDs that two clusters use: on a member its own one, on the leader those of all members."""
    if cluster_set.leader_server:
        area = cluster_set.spec.namespace
        conditions = [(cluster_set.spec.cluster_id, _ready(cluster_set))]
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


def _ready(cluster_set: ClusterSet) -> Condition:
    return condition_of(cluster_set.status.conditions, "Ready")


def _agents(cluster_set: ClusterSet, agents_id: str) -> Iterator[CheckFinding]:
    healthy = condition_of(cluster_set.status.conditions, HEALTHY)
    if healthy.reason == HealthReason.CLUSTER_ID:
        yield CHECK.finding("ClusterIDDiffers", healthy.message, subject=cluster_set.subject)
        return
    joined_id = cluster_set.spec.cluster_id
    if cluster_set.leader_server and agents_id and joined_id and agents_id != joined_id:
        text = f'clusterID is "{agents_id}" in the agents\' configuration, and "{joined_id}" in the ClusterSet'
        yield CHECK.finding("ClusterIDDiffers", text, subject=cluster_set.subject)
