"""Check `webhooks`: admission webhooks have a CA and ready endpoints."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import items_at, text_at
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import OURS, ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiService
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

CHECK = DoctorCheck(
    name="webhooks",
    order=220,
    summary="admission webhooks have a CA and ready endpoints",
    causes={
        "WebhookAway": failed(
            "writes of its objects are refused while it does not answer",
            "kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={service}; kubectl -n "
            "{namespace} get pods",
        ),
        "WebhookNoCa": failed(
            "API servers cannot verify the webhook, and refuse writes of its objects",
            "kubectl -n {namespace} logs deploy/{service}: the controller writes its CA when it runs",
        ),
        "WebhookIgnored": warning(
            "while it does not answer, members can write in each other's name; only for the takeover from "
            "Antrea's leader",
            "mcagent deploy --role leader --apply; with Helm leader.webhook.failurePolicy=Fail",
        ),
    },
)
# Of a leader, those that tell members apart.
_FAIL_CLOSED = {"memberclusterannounces.mcagent.io", "resourceexports.mcagent.io"}
_KINDS = (Kind.VALIDATING_WEBHOOK_CONFIGURATION, Kind.MUTATING_WEBHOOK_CONFIGURATION)
Service = tuple[str, str]  # namespace and name


def webhooks(cluster: ExaminedCluster) -> list[RawObject]:
    """Return our webhooks, of all configurations. Raises SourceError."""
    configurations = (cluster.items(object_path(kind, ""), OURS) for kind in _KINDS)
    return [hook for items in configurations for item in items for hook in items_at(item, "webhooks")]


def ready_endpoints(cluster: ExaminedCluster) -> dict[Service, int]:
    """Count the ready endpoints of each webhook's Service. Raises SourceError.

    A Service of type ExternalName has no EndpointSlices: API servers call its name, which counts as one endpoint.
    """
    counts = {}
    for namespace, name in sorted({_service(hook) for hook in cluster.read(webhooks)}):
        query = {"labelSelector": f"kubernetes.io/service-name={name}"}
        slices = cluster.objects(ApiEndpointSlice, namespace, query) if name else []
        ready = sum(endpoint.is_ready for slice_ in slices for endpoint in slice_.endpoints)
        if not ready and name:
            services = cluster.objects(ApiService, namespace, {"fieldSelector": f"metadata.name={name}"})
            ready = sum(service.spec.type == "ExternalName" for service in services)
        counts[namespace, name] = ready
    return counts


def _service(hook: RawObject) -> Service:
    namespace, name = (text_at(hook, "clientConfig", "service", key) for key in ("namespace", "name"))
    return namespace, name


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Evaluate every webhook."""
    hooks = cluster.read(webhooks)
    findings = [finding for hook in hooks if (finding := _judge(cluster, hook)) is not None]
    yield from findings or [CHECK.passed(f"{len(hooks)} have a CA and endpoints" if hooks else "there are none")]


def _judge(cluster: ExaminedCluster, hook: RawObject) -> CheckFinding | None:
    namespace, service = _service(hook)
    name = text_at(hook, "name")
    if not text_at(hook, "clientConfig", "caBundle"):
        reason, detail = "WebhookNoCa", "it has no caBundle"
    elif service and not cluster.read(ready_endpoints).get((namespace, service)):
        reason, detail = "WebhookAway", f"Service {namespace}/{service} has no ready endpoint"
    elif name in _FAIL_CLOSED and text_at(hook, "failurePolicy") == "Ignore":
        reason, detail = "WebhookIgnored", "its failurePolicy is Ignore"
    else:
        return None
    return CHECK.finding(reason, detail, subject=name, namespace=namespace, service=service)
