"""Check `members`: on a leader, every member of the ClusterSet is connected, and limited to CIDRs."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.leader.cluster_set import LIMITED, ready_of
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.cluster.leader import cluster_sets
from mcagent.doctor.examined import ExaminedCluster
from mcagent.model.api.base import condition_of

CHECK = DoctorCheck(
    name="members",
    order=245,
    summary="on a leader, every member of the ClusterSet is connected, and limited to CIDRs",
    causes={
        "MemberAway": failed(
            "changes from and to that cluster stop; what it exported is removed at the time in the message",
            "in that cluster: mcagent doctor --all; if its token was deleted or has expired, give it a new one "
            "(docs/operations.md, Tokens of members): mcagent membertoken get -n {namespace}",
        ),
        "AnyPrivateNetwork": warning(
            "a member that claims a network outside of the ClusterSet, such as that of a database, receives what "
            "Pods and Nodes of the others send there",
            "kubectl annotate serviceaccount -n {namespace} NAME mcagent.io/allowed-cidrs=SERVICE-CIDR,POD-CIDR "
            "(docs/multicluster.md, Limit a member)",
        ),
    },
)


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Evaluate the members of each ClusterSet that this cluster leads."""
    led = [cluster_set for cluster_set in cluster.read(cluster_sets) if cluster_set.is_leaders]
    total, away = 0, False
    for cluster_set in led:
        limited = condition_of(cluster_set.status.conditions, LIMITED)
        if limited.is_false:
            subject = f"ClusterSet {cluster_set.name}"
            yield CHECK.finding(
                "AnyPrivateNetwork", limited.message, subject=subject, namespace=cluster_set.namespace
            )
        for member in cluster_set.status.cluster_statuses:
            total += 1
            ready = ready_of(cluster_set, member.cluster_id)
            if not ready.is_true:
                away = True
                text = ready.message or "it has no condition Ready"
                subject = f"cluster {member.cluster_id}"
                yield CHECK.finding("MemberAway", text, subject=subject, namespace=cluster_set.namespace)
    if not away:
        yield CHECK.passed(f"{total} members are connected" if led else "this cluster leads no ClusterSet")
