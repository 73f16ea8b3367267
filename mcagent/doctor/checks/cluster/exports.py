"""Check `exports`: exports that the leader accepts, and imported endpoints that are used."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import text_at
from mcagent.controller.member.published import EXPORT_RANGE, POD_RANGE
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.cluster.leader import cluster_sets
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
        "PartLeftOut": warning(
            "other clusters do not have a part of this export",
            "fewer endpoints or ports, or a higher limit: members.maxEndpoints of the leader's controller "
            "(kubectl describe serviceexport)",
        ),
        "NoExportRange": warning(
            "other clusters reach exported Services by their ClusterIPs, if these are in no network of theirs",
            "exportCIDR of the controller, or exportCIDRs of the leader's (docs/identical-cidrs.md)",
        ),
        "NoVirtualPodCIDR": warning(
            "gateways translate sources towards clusters with the same Pod CIDR, whose Pods are not reached",
            "podExportCIDR of the controller, or podExportCIDRs of the leader's (docs/identical-cidrs.md)",
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
    """Report the refusals of the leader and of this cluster, and missing export ranges."""
    conditions = [(export, condition_of(export.status.conditions, "Ready")) for export in cluster.read(exports)]
    refused = [(export, ready) for export, ready in conditions if ready.reason == "Failed"]
    for export, ready in refused:
        yield CHECK.finding("ExportRefused", ready.message, subject=export.subject)
    reduced = [(export, ready.message) for export, ready in conditions if ready.is_true and ready.message]
    reduced += [
        (export, valid.message)
        for export, _ in conditions
        if (valid := condition_of(export.status.conditions, "Valid")).is_true and valid.message
    ]
    for export, message in reduced:
        yield CHECK.finding("PartLeftOut", message, subject=export.subject)
    events = cluster.read(refusals)
    for event in events:
        kind, namespace, name = (text_at(event, "involvedObject", key) for key in ("kind", "namespace", "name"))
        subject = f"{kind} {namespace}/{name}"
        yield CHECK.finding("EndpointsRefused", text_at(event, "message"), subject=subject)
    missing = [
        (cause, cluster_set.subject, condition)
        for cluster_set in cluster.read(cluster_sets)
        for cause, name in (("NoExportRange", EXPORT_RANGE), ("NoVirtualPodCIDR", POD_RANGE))
        if (condition := condition_of(cluster_set.status.conditions, name)).is_false
    ]
    for cause, subject, condition in missing:
        yield CHECK.finding(cause, f"{condition.reason}: {condition.message}", subject=subject)
    if not refused and not reduced and not events and not missing:
        yield CHECK.passed(f"{len(conditions)} exported, none is refused")
