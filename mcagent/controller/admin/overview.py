"""The state of a whole cluster from objects of its API, for `mcagent status`. Asks no agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mcagent.api.overview import (
    ClusterSetState,
    ClusterState,
    ComponentState,
    GatewayState,
    LinkState,
    Overview,
    OverviewProblem,
)
from mcagent.controller.admin.cluster import Cluster
from mcagent.controller.admin.fields import items_at, name_of, namespace_of, text_at, value_at
from mcagent.controller.contract.health import HEALTHY
from mcagent.controller.leader.cluster_set import UNIQUE
from mcagent.controller.member.leader_token import EXPIRED, LEADER_TOKEN
from mcagent.controller.member.services.export_conditions import NO_ENDPOINT
from mcagent.core.health import HealthFinding, HealthReason, judge_link, read_finding
from mcagent.kube.source import RawObject
from mcagent.model.api.base import Condition, condition_of
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import (
    ApiGateway,
    ApiServiceExport,
    ApiServiceImport,
    ClusterSet,
    MemberClusterAnnounce,
    ResourceExport,
)
from mcagent.model.parsing import links
from mcagent.model.parsing.field import printable
from mcagent.model.parsing.links import ClusterLink

_WORKLOADS = {"DaemonSet": "/apis/apps/v1/daemonsets", "Deployment": "/apis/apps/v1/deployments"}
_OURS = "app.kubernetes.io/name"
_SHOWN = 512  # characters of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewInput:
    """The objects that an overview is made of. `workloads`: DaemonSets and Deployments of mcagent, as JSON."""

    cluster_sets: Sequence[ClusterSet] = ()
    gateways: Sequence[ApiGateway] = ()
    announces: Sequence[MemberClusterAnnounce] = ()
    nodes: Sequence[ApiNode] = ()
    service_exports: Sequence[ApiServiceExport] = ()
    service_imports: Sequence[ApiServiceImport] = ()
    resource_exports: Sequence[ResourceExport] = ()
    workloads: Sequence[RawObject] = ()


def read(cluster: Cluster) -> OverviewInput:
    """Read the objects of all namespaces. Raises SourceError."""
    workloads = [
        {**item, "kind": kind}
        for kind, path in _WORKLOADS.items()
        for item in items_at(cluster.find(f"{path}?labelSelector={_OURS}%3Dmcagent"), "items")
    ]
    return OverviewInput(
        cluster_sets=cluster.typed(ClusterSet),
        gateways=cluster.typed(ApiGateway),
        announces=cluster.typed(MemberClusterAnnounce),
        nodes=cluster.typed(ApiNode),
        service_exports=cluster.typed(ApiServiceExport),
        service_imports=cluster.typed(ApiServiceImport),
        resource_exports=cluster.typed(ResourceExport),
        workloads=workloads,
    )


def overview(objects: OverviewInput, server: str = "") -> Overview:
    """Summarize a cluster; problems are in the order in which to look at them."""
    cluster_sets = tuple(map(_cluster_set, objects.cluster_sets))
    components = tuple(map(_component, objects.workloads))
    ready = {node.name for node in objects.nodes if condition_of(node.status.conditions, "Ready").is_true}
    gateways = tuple(_gateway(gateway, ready) for gateway in objects.gateways)
    ways = tuple(_links(objects))
    problems = [
        *_component_problems(components),
        *_set_problems(objects.cluster_sets),
        *_gateway_problems(gateways, objects.cluster_sets),
        *_health_problems(objects.cluster_sets, ways),
        *_export_problems(objects),
    ]
    return Overview(
        server=server,
        problems=tuple(sorted(problems, key=lambda problem: not problem.error)),
        cluster_sets=cluster_sets,
        components=components,
        gateways=gateways,
        links=ways,
        exports=len(objects.service_exports),
        imports=len(objects.service_imports),
    )


def _state(condition: Condition) -> bool | None:
    return condition.is_true if condition.is_true or condition.is_false else None


def _cluster_set(cluster_set: ClusterSet) -> ClusterSetState:
    states = (
        (status.cluster_id, condition_of(status.conditions, "Ready"))
        for status in cluster_set.status.cluster_statuses
    )
    return ClusterSetState(
        namespace=cluster_set.namespace,
        name=cluster_set.name,
        cluster_id=cluster_set.spec.cluster_id,
        role="leader" if cluster_set.is_leaders else "member",
        ready=_state(condition_of(cluster_set.status.conditions, "Ready")),
        clusters=tuple(
            ClusterState(
                id=printable(cluster_id),
                ready=_state(condition),
                since=condition.last_transition_time,
                why="" if condition.is_true else printable(condition.message, _SHOWN),
            )
            for cluster_id, condition in states
        ),
        token=printable(condition_of(cluster_set.status.conditions, LEADER_TOKEN).message, _SHOWN),
    )


def _component(workload: RawObject) -> ComponentState:
    daemon_set = workload["kind"] == "DaemonSet"
    desired = (
        value_at(workload, "status", "desiredNumberScheduled")
        if daemon_set
        else value_at(workload, "spec", "replicas")
    )
    ready = value_at(workload, "status", "numberReady" if daemon_set else "readyReplicas")
    return ComponentState(
        kind=text_at(workload, "kind"),
        namespace=namespace_of(workload),
        name=name_of(workload),
        desired=desired if isinstance(desired, int) else 0 if daemon_set else 1,
        ready=ready if isinstance(ready, int) else 0,
    )


def _gateway(gateway: ApiGateway, ready: set[str]) -> GatewayState:
    reported = links.read(gateway.status.links)
    return GatewayState(
        node=gateway.name,
        gateway_ip=printable(gateway.gateway_ip),
        internal_ip=printable(gateway.internal_ip),
        node_ready=gateway.name in ready,
        live=sum(link.live for link in reported) if reported else None,
        tunnels=sum(link.tunnels for link in reported) if reported else None,
    )


def _links(objects: OverviewInput) -> Iterator[LinkState]:
    """Yield this cluster's links, as its gateways report them, then on a leader those that members announce."""
    reports: dict[str, tuple[links.ClusterLink, ...]] = {}
    for cluster_set in objects.cluster_sets:
        if not cluster_set.is_leaders:
            own = (
                links.read(gateway.status.links)
                for gateway in objects.gateways
                if gateway.namespace == cluster_set.namespace
            )
            reports[cluster_set.spec.cluster_id] = links.merged(own)
    for announce in objects.announces:
        reports.setdefault(announce.cluster_id, links.read_text(announce.annotation(links.ANNOTATION) or ""))
    for source, reported in sorted(reports.items()):
        for link in reported:
            yield LinkState(
                source=printable(source),
                target=link.cluster,
                live=link.live,
                tunnels=link.tunnels,
                since=link.since,
                why=link.why,
                bytes_per_second=link.bytes_per_second,
                round_trip_micros=link.round_trip_micros,
            )


# --- problems


def _component_problems(components: Iterable[ComponentState]) -> Iterator[OverviewProblem]:
    kinds = set()
    for component in components:
        kinds.add(component.kind)
        subject = f"{component.kind} {component.namespace}/{component.name}"
        if component.ready < component.desired:
            text = f"{component.ready} of {component.desired} Pods are ready"
            look = f"kubectl get pods -n {component.namespace} -l app.kubernetes.io/name=mcagent"
            yield OverviewProblem(subject=subject, message=text, do=look, error=not component.ready)
    if "Deployment" not in kinds:
        text = "no controller of mcagent runs in this cluster as a Deployment"
        yield OverviewProblem(subject="controllers", message=text, do="mcagent doctor --all", error=False)


def _set_problems(cluster_sets: Sequence[ClusterSet]) -> Iterator[OverviewProblem]:
    if not cluster_sets:
        text = "this cluster is in no ClusterSet"
        yield OverviewProblem(subject="ClusterSet", message=text, do="mcagent clusterset join --help", error=False)
    for cluster_set in cluster_sets:
        states = [("", condition_of(cluster_set.status.conditions, "Ready"))]
        states += [
            (f"{status.cluster_id}: ", condition_of(status.conditions, "Ready"))
            for status in cluster_set.status.cluster_statuses
        ]
        for cluster_id, condition in states[1:] or states:
            if condition.is_true:
                continue
            text = printable(f"{cluster_id}{condition.message or 'not ready, or not known'}", _SHOWN)
            yield OverviewProblem(subject=cluster_set.subject, message=text, do="mcagent get clusterset")
        token = condition_of(cluster_set.status.conditions, LEADER_TOKEN)
        if token.is_false:
            text, expired = printable(token.message, _SHOWN), token.reason == EXPIRED
            do = "mcagent membertoken rotate --help (on the leader)"
            yield OverviewProblem(subject=cluster_set.subject, message=text, do=do, error=expired)
        for status in cluster_set.status.cluster_statuses:
            unique = condition_of(status.conditions, UNIQUE)
            if unique.is_false:
                text = printable(f"{status.cluster_id}: {unique.message}", _SHOWN)
                yield OverviewProblem(subject=cluster_set.subject, message=text, do="mcagent doctor --all")


def _gateway_problems(
    gateways: Sequence[GatewayState], cluster_sets: Iterable[ClusterSet]
) -> Iterator[OverviewProblem]:
    member = any(not cluster_set.is_leaders for cluster_set in cluster_sets)
    if member and not gateways:
        do = "kubectl annotate node NODE multicluster.antrea.io/gateway=true"
        yield OverviewProblem(subject="gateways", message="this cluster has no Gateway", do=do)
    for gateway in gateways:
        subject = f"Gateway {gateway.node}"
        if not gateway.node_ready:
            do = f"kubectl describe node {gateway.node}"
            yield OverviewProblem(
                subject=subject, message="its Node is not Ready", do=do, error=len(gateways) == 1
            )
        if gateway.live is None and member:
            do = "mcagent doctor --all"
            yield OverviewProblem(subject=subject, message="its agent reports no links", do=do, error=False)


def _health_problems(cluster_sets: Sequence[ClusterSet], ways: Iterable[LinkState]) -> Iterator[OverviewProblem]:
    """Yield what is wrong with each cluster: by the condition Healthy, else by the links that it reports."""
    findings: dict[str, HealthFinding] = {}
    for cluster_set in sorted(cluster_sets, key=lambda cluster_set: cluster_set.is_leaders):
        conditions = [(cluster_set.spec.cluster_id, condition_of(cluster_set.status.conditions, HEALTHY))]
        if cluster_set.is_leaders:
            statuses = cluster_set.status.cluster_statuses
            conditions = [(status.cluster_id, condition_of(status.conditions, HEALTHY)) for status in statuses]
        for cluster_id, condition in conditions:
            finding = read_finding(f"{condition.reason}: {condition.message}")
            if finding is not None and finding.reason is not HealthReason.AWAY:  # the condition Ready is shown
                findings.setdefault(cluster_id, finding)
    judged = [(f"cluster {printable(cluster_id)}", finding) for cluster_id, finding in findings.items()]
    for way in ways:
        link = ClusterLink(cluster=way.target, live=way.live, tunnels=way.tunnels, why=way.why)
        if way.source not in findings and (finding := judge_link(way.source, link)) is not None:
            judged.append((f"{way.source} to {way.target}", finding))
    for subject, finding in judged:
        text = f"{finding.reason}: {finding.message}"
        yield OverviewProblem(subject=subject, message=text, do="mcagent doctor --all", error=finding.error)


def _export_problems(objects: OverviewInput) -> Iterator[OverviewProblem]:
    for export in objects.service_exports:
        conditions = export.status.conditions
        valid, conflict, ready = (condition_of(conditions, kind) for kind in ("Valid", "Conflict", "Ready"))
        refused = ready.is_false and ready.reason == "Failed"
        unanswered = ready.is_false and ready.reason == NO_ENDPOINT
        if valid.is_false or conflict.is_true or refused or unanswered or (ready.is_true and ready.message):
            why = conflict if conflict.is_true else valid if valid.is_false else ready
            do = f"mcagent get serviceexport {export.name} -n {export.namespace}"
            error = valid.is_false or (refused and not conflict.is_true)
            yield OverviewProblem(
                subject=export.subject, message=printable(why.message, _SHOWN), do=do, error=error
            )
    for resource in objects.resource_exports:
        failure = condition_of(resource.status.conditions, "Failure")
        if failure.is_false:  # as Antrea has it: the condition is there, and says False
            text = printable(failure.message or "not merged", _SHOWN)
            do = f"mcagent get resourceexport {resource.name} -n {resource.namespace}"
            yield OverviewProblem(subject=resource.subject, message=text, do=do)
