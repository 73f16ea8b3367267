"""Check `controller`: the control plane of the cluster runs and holds its Lease, and one leads a ClusterSet."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import name_of, namespace_of, text_at, value_at
from mcagent.controller.contract.area_holder import SECOND_CONTROLLER, message
from mcagent.controller.contract.conditions import time_of
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.checks.cluster.agents import component_of
from mcagent.doctor.checks.cluster.leader import cluster_sets
from mcagent.doctor.examined import OURS, ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

CHECK = DoctorCheck(
    name="controller",
    order=230,
    summary="the control plane of the cluster runs and holds its Lease, and one controller leads a ClusterSet",
    causes={
        "ControllerAway": failed(
            "gateways are not elected, exports and imports are not updated; forwarding continues",
            "kubectl -n {namespace} get pods -l app.kubernetes.io/name=mcagent; kubectl -n {namespace} get lease "
            "{lease} -o yaml",
        ),
        SECOND_CONTROLLER: failed(
            "one of the two writes nothing for this ClusterSet, and its settings have no effect",
            "what the message names (docs/operations.md, The controller)",
        ),
    },
)
_LEASE_LATE = 60.0  # seconds after which a Lease is late


def deployments(cluster: ExaminedCluster) -> list[RawObject]:
    """Return the Deployments of mcagent. Raises SourceError."""
    return cluster.items("/apis/apps/v1/deployments", OURS)


def leases(cluster: ExaminedCluster) -> dict[tuple[str, str], RawObject]:
    """Return all Leases by namespace and name. Raises SourceError."""
    return {(namespace_of(obj), name_of(obj)): obj for obj in cluster.items(object_path(Kind.LEASE, ""))}


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Evaluate each controller's Deployment and Lease, and who leads the ClusterSets."""
    controllers = [obj for obj in cluster.read(deployments) if component_of(obj) in {"leader", "member"}]
    running = []
    for deployment in controllers:
        role, namespace = component_of(deployment), namespace_of(deployment)
        lease = f"mcagent-{role}"
        renewed = time_of(text_at(cluster.read(leases).get((namespace, lease)), "spec", "renewTime"))
        if not value_at(deployment, "status", "readyReplicas"):
            detail = "no replica is ready"
        elif renewed is not None and cluster.now + (cluster.clock or 0.0) - renewed > _LEASE_LATE:
            detail = f"the Lease was last renewed {cluster.now - renewed:.0f} s ago"
        else:
            running.append(role)
            continue
        yield CHECK.finding("ControllerAway", detail, subject=role, namespace=namespace, lease=lease)
    seconds = [
        CHECK.finding(SECOND_CONTROLLER, text, subject=cluster_set.subject)
        for cluster_set in cluster.read(cluster_sets)
        if (text := message(cluster_set))
    ]
    yield from seconds
    if len(running) == len(controllers) and not seconds:
        yield CHECK.passed(f"{', '.join(running)} runs" if running else "no controller Deployment here")
