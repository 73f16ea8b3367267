"""Check `exports`: exports that the leader accepts, and imported endpoints that are used."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import text_at
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.model.api.base import condition_of
from mcagent.model.api.multicluster import ApiServiceExport
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

_FLAT = (
    "for Pods that are reached without gateways: allowedEndpointCIDRs of the leader's controller and all members' "
    "(docs/antrea.md)"
)
CHECK = DoctorCheck(
    name="exports",
    order=250,
    summary="exports that the leader accepts, and imported endpoints that are used",
    causes={
        "ExportRefused": failed(
            "other clusters do not have this Service, or none of its endpoints",
            f"kubectl describe serviceexport; {_FLAT}",
        ),
        "EndpointsRefused": warning(
            "this cluster sends no connections to that endpoint (an Event of the last hour)",
            f"podCIDRs of the exporting cluster's controller; {_FLAT}",
        ),
    },
)


def exports(cluster: ExaminedCluster) -> list[ApiServiceExport]:
    """Return the ServiceExports. Raises SourceError."""
    return cluster.objects(ApiServiceExport)


def refusals(cluster: ExaminedCluster) -> list[RawObject]:
    """Return the Events about endpoints of imported Services that are not used. Raises SourceError."""
    return cluster.items(object_path(Kind.EVENT, ""), {"fieldSelector": "reason=EndpointsRefused"})


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Report the refusals of the leader and of this cluster."""
    conditions = [(export, condition_of(export.status.conditions, "Ready")) for export in cluster.read(exports)]
    refused = [(export, ready) for export, ready in conditions if ready.reason == "Failed"]
    for export, ready in refused:
        yield CHECK.finding("ExportRefused", ready.message, subject=export.subject)
    events = cluster.read(refusals)
    for event in events:
        kind, namespace, name = (text_at(event, "involvedObject", key) for key in ("kind", "namespace", "name"))
        subject = f"{kind} {namespace}/{name}"
        yield CHECK.finding("EndpointsRefused", text_at(event, "message"), subject=subject)
    if not refused and not events:
        yield CHECK.passed(f"{len(conditions)} exported, none is refused")
