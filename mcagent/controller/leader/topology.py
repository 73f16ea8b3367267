"""The ClusterSets of a leader as its page draws them, from what members announced and export. Pure.

Links are what members say of themselves: shown as theirs, bounded, and nothing is decided by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mcagent.api.topology import Change, ShownCluster, ShownLink, ShownProblem, Topology
from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import FALSE, TRUE, find
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.raw import (
    annotation,
    is_deleting,
    items_at,
    key_of,
    name_of,
    namespace_of,
    text_at,
    texts_at,
    value_at,
)
from mcagent.controller.leader.announces import announces
from mcagent.controller.leader.cluster_set import conditions_by_cluster, is_leader_set
from mcagent.controller.leader.exports import cluster_of
from mcagent.controller.machinery.reconciler import View
from mcagent.kube.source import RawObject
from mcagent.model import links
from mcagent.model.field import printable
from mcagent.model.objects import Kind
from mcagent.observe.topology import MAX_CHANGES, MAX_PROBLEMS, shown_link

_MAX_LISTED = 16  # gateways and networks of a cluster
_POLICIES = frozenset({names.POLICY, names.KUBERNETES_POLICY})


def topologies(view: View, namespace: str | None) -> tuple[Topology, ...]:
    """Return the ClusterSets that are led from `namespace` (None: from any), by name."""
    led = [raw for raw in view.list(Kind.CLUSTER_SET, namespace=namespace) if is_leader_set(raw)]
    return tuple(_topology(raw, view) for raw in led if not is_deleting(raw))


def _topology(cluster_set: RawObject, view: View) -> Topology:
    area, name = namespace_of(cluster_set), name_of(cluster_set)
    members = {
        text_at(raw, "clusterID"): raw
        for raw in view.list(Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=area)
        if announces(raw) and text_at(raw, "clusterSetID") == name
    }
    services: Counter[str] = Counter()
    infos: dict[str, RawObject] = {}
    refused: list[ShownProblem] = []
    policies = 0
    for export in view.list(Kind.RESOURCE_EXPORT, namespace=area):
        kind, cluster = text_at(export, "spec", "kind"), cluster_of(export)
        services[cluster] += kind == ExportKind.SERVICE
        policies += kind in _POLICIES
        if kind == ExportKind.CLUSTER_INFO:
            infos.setdefault(cluster, export)
        refused += _refused(export)
    conditions = conditions_by_cluster(cluster_set)
    ways = tuple(_links(members))
    problems = [*_set_problems(cluster_set), *_member_problems(cluster_set, members, conditions), *refused]
    return Topology(
        name=name,
        clusters=tuple(
            _cluster(cluster, find(conditions.get(cluster), "Ready"), infos.get(cluster), services[cluster])
            for cluster in sorted(members)
        ),
        links=ways,
        changes=_changes(ways),
        problems=tuple(problems[:MAX_PROBLEMS]),
        problem_count=len(problems),
        policies=policies,
    )


def _cluster(cluster: str, ready: Mapping[str, Any], info: RawObject | None, services: int) -> ShownCluster:
    there = value_at(info, "spec", "clusterInfo")
    status = ready.get("status")
    return ShownCluster(
        id=cluster,
        ready={TRUE: True, FALSE: False}.get(str(status)),
        since=_short(ready.get("lastTransitionTime")),
        why="" if status == TRUE else _short(ready.get("message")),
        gateways=tuple(_short(one.get("gatewayIP")) for one in items_at(there, "gatewayInfos")[:_MAX_LISTED]),
        networks=tuple(
            printable(network)
            for network in (text_at(there, "serviceCIDR"), *texts_at(there, "podCIDRs")[:_MAX_LISTED])
            if network
        ),
        services=services,
    )


def _links(members: Mapping[str, RawObject]) -> Iterable[ShownLink]:
    """Yield what members announce of their links to other members; what they say of anybody else is left out."""
    for cluster, announce in sorted(members.items()):
        for link in links.read_text(annotation(announce, links.ANNOTATION) or ""):
            if link.cluster in members and link.cluster != cluster:
                yield shown_link(cluster, link)


def _changes(ways: tuple[ShownLink, ...]) -> tuple[Change, ...]:
    found = [
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
    return tuple(sorted(found, key=lambda change: change.at, reverse=True)[:MAX_CHANGES])


def _set_problems(cluster_set: RawObject) -> Iterable[ShownProblem]:
    for one in items_at(cluster_set, "status", "conditions"):
        if one.get("status") == FALSE:
            yield ShownProblem(
                subject=f"{Kind.CLUSTER_SET} {key_of(cluster_set)}",
                reason=_short(one.get("reason")) or _short(one.get("type")),
                message=_short(one.get("message")),
            )


def _member_problems(
    cluster_set: RawObject, members: Mapping[str, RawObject], conditions: Mapping[str, object]
) -> Iterable[ShownProblem]:
    for cluster in sorted(members):
        ready = find(conditions.get(cluster), "Ready")
        if ready.get("status") == FALSE:
            yield ShownProblem(
                subject=f"{Kind.CLUSTER_SET} {key_of(cluster_set)}",
                reason="Disconnected",
                message=f"{printable(cluster)}: {_short(ready.get('message'))}",
            )


def _refused(export: RawObject) -> Iterable[ShownProblem]:
    for one in items_at(export, "status", "conditions")[:4]:
        failed = one.get("type") == "Failure" and one.get("status") == FALSE
        if failed or (one.get("type") == "Conflict" and one.get("status") == TRUE):
            yield ShownProblem(
                subject=f"{Kind.RESOURCE_EXPORT} {key_of(export)}",
                reason=_short(one.get("reason")),
                message=_short(one.get("message")),
                error=failed,
            )


def _short(value: object) -> str:
    return printable(value, 512) if isinstance(value, str) else ""
