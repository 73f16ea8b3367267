"""The ClusterSets of a leader for its topology page, from announcements and ResourceExports. Pure.

Members report their links themselves: the page shows them, limited in number, and no decision uses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from mcagent.api.topology import Change, ShownCluster, ShownLink, ShownProblem, Topology
from mcagent.controller.contract import names
from mcagent.controller.contract.health import HEALTHY, read_health
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.pod_ranges import AssignedPodCidrs, configured_pod_cidrs, read_pod_ranges
from mcagent.controller.leader.cluster_set import ready_of
from mcagent.controller.leader.exports.header import announces
from mcagent.controller.machinery.reconciler import View
from mcagent.core.health import LINK_REASONS, HealthFinding, judge_link
from mcagent.model.api.base import Condition
from mcagent.model.api.multicluster import ClusterInfo, ClusterSet, MemberClusterAnnounce, ResourceExport
from mcagent.model.parsing import links
from mcagent.model.parsing.field import printable
from mcagent.model.parsing.links import ClusterLink
from mcagent.observe.topology import MAX_CHANGES, MAX_PROBLEMS, shown_findings, shown_link, shown_network

_MAX_LISTED = 16  # gateways and networks of a cluster
_POLICIES = frozenset({names.POLICY, names.KUBERNETES_POLICY})


def topologies(view: View, namespace: str | None) -> tuple[Topology, ...]:
    """Return the leader's ClusterSets of `namespace` (None: of all namespaces), sorted by name."""
    led = [cluster_set for cluster_set in view.list(ClusterSet, namespace=namespace) if cluster_set.is_leaders]
    return tuple(_topology(cluster_set, view) for cluster_set in led if not cluster_set.is_deleting)


def _topology(cluster_set: ClusterSet, view: View) -> Topology:
    area, name = cluster_set.namespace, cluster_set.name
    members = {
        announce.cluster_id: announce
        for announce in view.list(MemberClusterAnnounce, namespace=area)
        if announces(announce) and announce.cluster_set_id == name
    }
    services: Counter[str] = Counter()
    infos: dict[str, ResourceExport] = {}
    refused: list[ShownProblem] = []
    policies = 0
    for export in view.list(ResourceExport, namespace=area):
        kind, cluster = export.spec.kind, export.spec.cluster_id
        services[cluster] += kind == ExportKind.SERVICE
        policies += kind in _POLICIES
        if kind == ExportKind.CLUSTER_INFO:
            infos.setdefault(cluster, export)
        refused += _refused(export)
    pod_ranges = read_pod_ranges(cluster_set)
    reported = tuple(_links(members))
    ways = tuple(shown_link(source, link) for source, link in reported)
    problems = [
        *_set_problems(cluster_set),
        *_member_problems(cluster_set, members),
        *shown_findings(cluster_set.subject, _link_findings(reported)),
        *refused,
    ]
    return Topology(
        name=name,
        clusters=tuple(
            _cluster(cluster, ready_of(cluster_set, cluster), infos.get(cluster), services[cluster], pod_ranges)
            for cluster in sorted(members)
        ),
        links=ways,
        changes=_changes(ways),
        problems=tuple(problems[:MAX_PROBLEMS]),
        problem_count=len(problems),
        policies=policies,
    )


def _cluster(
    cluster: str,
    ready: Condition,
    export: ResourceExport | None,
    services: int,
    pod_ranges: Mapping[str, AssignedPodCidrs],
) -> ShownCluster:
    info = (export.spec.cluster_info if export is not None else None) or ClusterInfo()
    pairs = pod_ranges[cluster].pairs if cluster in pod_ranges else ()
    real = {str(pair.virtual): str(pair.real) for pair in pairs}
    real |= configured_pod_cidrs(export) if export is not None else {}
    cidrs = filter(None, (info.service_cidr, *info.pod_cidrs[:_MAX_LISTED]))
    return ShownCluster(
        id=cluster,
        ready=ready.is_true if ready.is_true or ready.is_false else None,
        since=_short(ready.last_transition_time),
        why="" if ready.is_true else _short(ready.message),
        gateways=tuple(_short(gateway.gateway_ip) for gateway in info.gateway_infos[:_MAX_LISTED]),
        networks=tuple(shown_network(printable(cidr), real.get(cidr)) for cidr in cidrs),
        services=services,
    )


def _links(members: Mapping[str, MemberClusterAnnounce]) -> Iterable[tuple[str, ClusterLink]]:
    """Yield the links between members that members announce; links to other clusters are ignored."""
    for cluster, announce in sorted(members.items()):
        for link in links.read_text(announce.annotation(links.ANNOTATION) or ""):
            if link.cluster in members and link.cluster != cluster:
                yield cluster, link


def _link_findings(reported: Iterable[tuple[str, ClusterLink]]) -> Iterable[HealthFinding]:
    """Yield what is wrong with links, apart from what members announce of themselves."""
    for source, link in reported:
        if (finding := judge_link(source, link)) is not None and finding.reason in LINK_REASONS:
            yield finding


def _changes(ways: tuple[ShownLink, ...]) -> tuple[Change, ...]:
    changes = [
        Change(
            at=way.since,
            source=way.source,
            target=way.target,
            good=way.live == way.tunnels,
            text=way.why or f"{way.live} of {way.tunnels} tunnels are live",
        )
        for way in ways
        if way.since
    ]
    return tuple(sorted(changes, key=lambda change: change.at, reverse=True)[:MAX_CHANGES])


def _set_problems(cluster_set: ClusterSet) -> Iterable[ShownProblem]:
    for condition in cluster_set.status.conditions:
        if condition.is_false and condition.type != HEALTHY:  # the sum of those below
            yield ShownProblem(
                subject=cluster_set.subject,
                reason=_short(condition.reason) or _short(condition.type),
                message=_short(condition.message),
            )


def _member_problems(
    cluster_set: ClusterSet, members: Mapping[str, MemberClusterAnnounce]
) -> Iterable[ShownProblem]:
    for cluster in sorted(members):
        ready = ready_of(cluster_set, cluster)
        if ready.is_false:
            yield ShownProblem(
                subject=cluster_set.subject,
                reason="Disconnected",
                message=f"{printable(cluster)}: {_short(ready.message)}",
            )
        finding = read_health(members[cluster])
        if ready.is_true and finding is not None and finding.reason not in LINK_REASONS:
            message = f"{printable(cluster)}: {_short(finding.message)}"
            yield ShownProblem(
                subject=cluster_set.subject, reason=finding.reason, message=message, error=finding.error
            )


def _refused(export: ResourceExport) -> Iterable[ShownProblem]:
    for condition in export.status.conditions[:4]:
        failed = condition.type == "Failure" and condition.is_false
        if failed or (condition.type == "Conflict" and condition.is_true):
            yield ShownProblem(
                subject=export.subject,
                reason=_short(condition.reason),
                message=_short(condition.message),
                error=failed,
            )


def _short(text: str) -> str:
    return printable(text, 512)
