"""Check `neighbours`: other multi-cluster systems in the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import name_of, namespace_of
from mcagent.doctor.check import DoctorCheck, warning
from mcagent.doctor.examined import ExaminedCluster

CHECK = DoctorCheck(
    name="neighbours",
    order=260,
    summary="other multi-cluster systems in the cluster",
    causes={
        "OtherSystem": warning(
            "two systems may claim the same networks, ServiceImports, routes or UDP ports",
            "uninstall it with its own command, if it is not used",
        ),
    },
)
# Kind, prefix of the name, and the system.
_SYSTEMS = (
    ("DaemonSet", "submariner-", "Submariner"),
    ("Deployment", "submariner-", "Submariner"),
    ("Deployment", "clustermesh-apiserver", "Cilium's Cluster Mesh"),
    ("Deployment", "antrea-mc-controller", "Antrea's Multi-cluster"),
    ("Deployment", "skupper-", "Skupper"),
    ("Deployment", "linkerd-service-mirror", "Linkerd's multicluster"),
    ("Deployment", "istio-eastwestgateway", "Istio's multicluster"),
    ("Deployment", "liqo-", "Liqo"),
    ("DaemonSet", "kilo", "Kilo"),
)
Workload = tuple[str, str, str]  # kind, namespace, name


def workloads(cluster: ExaminedCluster) -> list[Workload]:
    """Return all Deployments and DaemonSets of the cluster. Raises SourceError."""
    return [
        (kind, namespace_of(obj), name_of(obj))
        for kind, plural in (("Deployment", "deployments"), ("DaemonSet", "daemonsets"))
        for obj in cluster.items(f"/apis/apps/v1/{plural}")
    ]


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Report each other system once."""
    systems: dict[str, str] = {}
    for kind, namespace, name in cluster.read(workloads):
        for of_kind, prefix, system in _SYSTEMS:
            if kind == of_kind and name.startswith(prefix):
                systems.setdefault(system, f"{kind} {namespace}/{name}")
    for system, workload in sorted(systems.items()):
        yield CHECK.finding("OtherSystem", f"{system} is here ({workload})", subject=system)
    if not systems:
        yield CHECK.passed("none found")
