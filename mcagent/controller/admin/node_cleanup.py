"""`mcagent cleanup` on all Nodes of a cluster: a Pod on each, made from the agents' DaemonSet, which it replaces.

So it has the agent's image, configuration, mounts and rights, with any source of Open vSwitch. Each Pod waits
for the end of its Node's agent; the DaemonSet is deleted after all Pods are created, so an interrupted run can
be repeated. A Node whose agent did not run then is cleaned again after the end of its Pod.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence

from mcagent.controller.admin.cluster import AdminError, Cluster, Progress, shown
from mcagent.controller.admin.fields import items_at, namespace_of, text_at
from mcagent.controller.admin.manifests import OURS
from mcagent.kube.source import RawObject
from mcagent.model.api.base import condition_of
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable

DAEMONS = {"apiVersion": "apps/v1", "kind": "DaemonSet"}
COMPONENT = "app.kubernetes.io/component"
_LABELS = OURS | {COMPONENT: "cleanup"}
_GRACE = 5.0  # seconds after the Pods' own deadline
_SHOWN = 300  # characters of a Pod's message


def clean_nodes(cluster: Cluster, namespace: str, *, timeout: float) -> None:
    """End the agents, and remove their objects from the Nodes. Raises McagentError with the Nodes that failed.

    Nodes that are not Ready are skipped and reported. Another run repeats those that failed.
    """
    daemons = cluster.present(DAEMONS | {"metadata": {"name": "mcagent-agent", "namespace": namespace}})
    earlier = _pods(cluster, namespace)
    if daemons is None:
        new_pods = {_node(pod): _again(pod) for pod in earlier if _phase(pod) == "Failed"}
    else:
        nodes = [node for node in agent_nodes(cluster, namespace) if _is_ready(cluster, node)]
        new_pods = {node: cleaning_pod(daemons, node, timeout) for node in nodes}
    replaced = [pod for pod in earlier if daemons is not None or _node(pod) in new_pods]
    _replace(cluster, namespace, replaced, new_pods, timeout)
    if daemons is not None:
        early = _end_agents(cluster, daemons, new_pods.keys(), timeout)
        _replace(cluster, namespace, early, {_node(pod): _again(pod) for pod in early}, timeout)
    _wait(cluster, namespace, timeout)


def _replace(
    cluster: Cluster, namespace: str, pods: Sequence[RawObject], new_pods: Mapping[str, RawObject], timeout: float
) -> None:
    """Delete cleaning Pods, and create others when they are gone, by Node. Raises McagentError."""
    for pod in pods:
        cluster.remove(pod)
    if not cluster.wait(lambda: not any(map(cluster.present, pods)), timeout):
        raise AdminError(f"after {timeout:g} s {shown(pods[0])} is still there")
    for node, pod in new_pods.items():
        cluster.create(Kind.POD, namespace, f"mcagent-cleanup-{node}", pod)


def _end_agents(cluster: Cluster, daemons: RawObject, nodes: Collection[str], timeout: float) -> list[RawObject]:
    """Delete the DaemonSet, and wait for the end of its Pods; return the cleaning Pods that had succeeded before.

    Such an agent did not run when its Node was cleaned. It may have started since, and set up everything again.
    """
    namespace = namespace_of(daemons)

    def succeeded() -> set[str]:
        return {_node(pod) for pod in _pods(cluster, namespace) if _phase(pod) == "Succeeded"}

    early = succeeded()
    cluster.remove(daemons)

    def ended() -> bool:
        present = set(agent_nodes(cluster, namespace)).intersection(nodes)
        early.update(present & succeeded())
        return not present

    cluster.wait(ended, timeout)
    return [pod for pod in _pods(cluster, namespace) if _node(pod) in early]


def _is_ready(cluster: Cluster, node: str) -> bool:
    if condition_of((cluster.read(ApiNode, "", node) or ApiNode()).status.conditions, "Ready").is_true:
        return True
    cluster.report(f"Node {node} is not Ready and is skipped; if it comes back, run mcagent cleanup there")
    return False


def agent_nodes(cluster: Cluster, namespace: str) -> list[str]:
    """Return the names of the Nodes with an agent's Pod, sorted."""
    return sorted({_node(pod) for pod in _pods(cluster, namespace, OURS | {COMPONENT: "agent"})} - {""})


def cleaning_pod(daemons: RawObject, node: str, seconds: float) -> RawObject:
    """Return the Pod that cleans a Node: the agent's with another command, which runs once, for `seconds`."""
    spec = copy.deepcopy(daemons["spec"]["template"]["spec"])
    (agent,) = spec["containers"]
    keys = ("name", "image", "imagePullPolicy", "env", "securityContext", "resources", "volumeMounts")
    container = {key: agent[key] for key in keys if key in agent}
    container["args"] = ["cleanup", *agent["args"][1:], "--wait", f"{seconds:g}"]
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    spec |= {"nodeName": node, "restartPolicy": "Never", "activeDeadlineSeconds": max(1, int(seconds))}
    return {"metadata": {"labels": dict(_LABELS)}, "spec": spec | {"containers": [container]}}


def _again(pod: RawObject) -> RawObject:
    return {"metadata": {"labels": dict(_LABELS)}, "spec": copy.deepcopy(pod["spec"])}


def _node(pod: RawObject) -> str:
    return text_at(pod, "spec", "nodeName")


def _phase(pod: RawObject) -> str:
    return text_at(pod, "status", "phase")


def _pods(cluster: Cluster, namespace: str, labels: Mapping[str, str] = _LABELS) -> list[RawObject]:
    pods = cluster.objects(Kind.POD, namespace)
    return [pod for pod in pods if labels.items() <= (pod["metadata"].get("labels") or {}).items()]


def _wait(cluster: Cluster, namespace: str, timeout: float) -> None:
    """Wait until all Pods have cleaned their Nodes, and delete those that succeeded."""
    pods: Sequence[RawObject] = ()
    progress = Progress(cluster)

    def done() -> bool:
        nonlocal pods
        pods = _pods(cluster, namespace)
        busy = [pod for pod in pods if _phase(pod) not in ("Succeeded", "Failed")]
        text = f"{len(pods) - len(busy)} of {len(pods)} Nodes cleaned"
        if pods:
            progress.report(text, text)
        return not busy

    cluster.wait(done, timeout + _GRACE)  # Kubernetes ends them at their own deadline
    failed = [pod for pod in pods if _phase(pod) != "Succeeded"]
    for pod in pods:
        if pod not in failed:
            cluster.remove(pod)
    if failed:
        nodes = "; ".join(f"Node {_node(pod)}: {_why(pod)} (Pod {pod['metadata']['name']})" for pod in failed)
        raise AdminError(
            f"not cleaned: {nodes}. Repeat the command (all it needs is still there), or delete the Pod of "
            "a Node to skip it"
        )


def _why(pod: RawObject) -> str:
    """Return why a Pod has not cleaned its Node."""
    for status in items_at(pod, "status", "containerStatuses"):
        for state in (status.get("state") or {}).values():
            if text := text_at(state, "message") or text_at(state, "reason"):
                return printable(" ".join(text.split()), _SHOWN)
    return text_at(pod, "status", "message") or _phase(pod) or "no kubelet has started it"
