"""Check `agents`: every Node has a running agent, and all have one version."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import condition_at, items_at, name_of, namespace_of, text_at, value_at
from mcagent.controller.contract.conditions import TRUE
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.examined import OURS, ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ApiNode

CHECK = DoctorCheck(
    name="agents",
    order=200,
    summary="every Node has a running agent, and all have one version",
    causes={
        "ClusterAway": failed(
            "the cluster's state is unknown", "kubectl cluster-info; is the kubeconfig's context the right one?"
        ),
        "AgentMissing": failed(
            "Pods of that Node reach no other cluster, and no other cluster reaches them",
            "kubectl -n {namespace} get pods -l app.kubernetes.io/component=agent -o wide; kubectl -n {namespace} "
            "describe daemonset mcagent-agent",
        ),
        "AgentNotAsked": warning(
            "only API data is available for that Node",
            "kubectl exec in the agent's Pod, or on the Node itself: mcagent doctor",
        ),
        "NoAgents": failed(
            "no Node of this cluster takes part",
            "kubectl get daemonset -A -l app.kubernetes.io/name=mcagent; where there is none, install mcagent "
            "(docs/deploy.md); otherwise: kubectl describe daemonset -A -l app.kubernetes.io/name=mcagent",
        ),
        "VersionsDiffer": warning(
            "agents of two versions run side by side, which is intended only during a roll-out",
            "kubectl -n {namespace} rollout status daemonset mcagent-agent",
        ),
    },
)


def pods(cluster: ExaminedCluster) -> list[RawObject]:
    """Return the Pods of mcagent. Raises SourceError."""
    return cluster.items("/api/v1/pods", OURS)


def nodes(cluster: ExaminedCluster) -> list[ApiNode]:
    """Return the Nodes. Raises SourceError."""
    return cluster.objects(ApiNode)


def component_of(obj: RawObject) -> str:
    """Return the component of an object of mcagent: agent, member, leader."""
    return text_at(obj, "metadata", "labels", "app.kubernetes.io/component")


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Evaluate the agents' Pods. A Node whose agent answers needs none."""
    agents = [pod for pod in cluster.read(pods) if component_of(pod) == "agent"]
    if not agents and not cluster.answered:
        yield CHECK.finding("NoAgents", "there is no agent Pod, and no agent answers")
        return
    namespace = namespace_of(agents[0]) if agents else "kube-system"
    running = {text_at(pod, "spec", "nodeName") for pod in agents if _ready(pod)} | set(cluster.answered)
    missing = sorted({node.name for node in cluster.read(nodes)} - running)
    for node in missing:
        states = [_state(pod) for pod in agents if text_at(pod, "spec", "nodeName") == node]
        detail = states[0] if states else "it has no Pod"
        yield CHECK.finding("AgentMissing", detail, subject=f"Node {node}", namespace=namespace)
    images = {
        str(container.get("image", "")) for pod in agents for container in items_at(pod, "spec", "containers")
    }
    if len(images) > 1:
        yield CHECK.finding("VersionsDiffer", ", ".join(sorted(images)), namespace=namespace)
    elif not missing:
        yield CHECK.passed(f"{len(running)} Nodes, {', '.join(images) or 'none in a Pod'}")


def _ready(pod: RawObject) -> bool:
    return condition_at(pod, "Ready").get("status") == TRUE


def _state(pod: RawObject) -> str:
    waiting = [
        f"{text_at(state, 'reason')} {text_at(state, 'message')}".strip()
        for container in items_at(pod, "status", "containerStatuses")
        if (state := value_at(container, "state", "waiting"))
    ]
    phase = text_at(pod, "status", "phase") or "unknown"
    return f"Pod {name_of(pod)} is {phase}, not ready{': ' if waiting else ''}{'; '.join(waiting)}"
