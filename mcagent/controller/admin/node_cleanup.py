"""`mcagent cleanup` on the Nodes of a cluster: a Pod on each, made from the agents' DaemonSet, which it replaces.

So it has the agent's image, configuration, mounts and rights, wherever Open vSwitch comes from. Each Pod waits for
its Node's agent to end; the DaemonSet is deleted when all Pods are there, so that a run that is interrupted can be
repeated.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from time import monotonic

from mcagent.controller.admin.cluster import AdminError, Cluster, shown
from mcagent.controller.admin.fields import condition_at, items_at, text_at
from mcagent.controller.admin.manifests import OURS
from mcagent.controller.contract.conditions import TRUE
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable

DAEMONS = {"apiVersion": "apps/v1", "kind": "DaemonSet"}
COMPONENT = "app.kubernetes.io/component"
_LABELS = OURS | {COMPONENT: "cleanup"}
_PROGRESS = 5.0  # seconds without a line, at most
_SHOWN = 300  # characters of what a Pod says


def clean_nodes(cluster: Cluster, namespace: str, *, timeout: float) -> None:
    """End the agents, and take away what they made on their Nodes. Raises McagentError that names the Nodes left.

    A Node that is not Ready is passed over, and told. Repeated, it tries those again that failed.
    """
    daemons = cluster.there(DAEMONS | {"metadata": {"name": "mcagent-agent", "namespace": namespace}})
    earlier = _pods(cluster, namespace)
    if daemons is None:
        wanted = {_node(pod): _again(pod) for pod in earlier if _phase(pod) == "Failed"}
    else:
        nodes = [node for node in agent_nodes(cluster, namespace) if _is_ready(cluster, node)]
        wanted = {node: cleaning_pod(daemons, node, timeout) for node in nodes}
    there = [pod for pod in earlier if daemons is not None or _node(pod) in wanted]
    for pod in there:
        cluster.remove(pod)
    if not cluster.wait(lambda: not any(map(cluster.there, there)), timeout):
        raise AdminError(f"after {timeout:g} s {shown(there[0])} is still there")
    for node, pod in wanted.items():
        cluster.create(Kind.POD, namespace, f"mcagent-cleanup-{node}", pod)
    if daemons is not None:
        cluster.remove(daemons)
    _wait(cluster, namespace, timeout)


def _is_ready(cluster: Cluster, node: str) -> bool:
    found = cluster.get(Kind.NODE, "", node) or {}
    if condition_at(found, "Ready").get("status") == TRUE:
        return True
    cluster.report(f"Node {node} is not Ready and is skipped; if it comes back, run mcagent cleanup there")
    return False


def agent_nodes(cluster: Cluster, namespace: str) -> list[str]:
    """Return the Nodes on which there is an agent."""
    wanted = OURS | {COMPONENT: "agent"}
    return sorted({_node(pod) for pod in _pods(cluster, namespace, wanted)} - {""})


def cleaning_pod(daemons: RawObject, node: str, seconds: float) -> RawObject:
    """Return the Pod that cleans a Node: the agent's, with another command, once."""
    spec = copy.deepcopy(daemons["spec"]["template"]["spec"])
    (agent,) = spec["containers"]
    kept = ("name", "image", "imagePullPolicy", "env", "securityContext", "resources", "volumeMounts")
    container = {key: agent[key] for key in kept if key in agent}
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
    found = cluster.objects(Kind.POD, namespace)
    return [pod for pod in found if labels.items() <= (pod["metadata"].get("labels") or {}).items()]


def _wait(cluster: Cluster, namespace: str, timeout: float) -> None:
    """Wait until all Pods have cleaned their Nodes, and delete those that have."""
    pods: Sequence[RawObject] = ()
    told, said = "", monotonic()

    def done() -> bool:
        nonlocal pods, told, said
        pods = _pods(cluster, namespace)
        busy = [pod for pod in pods if _phase(pod) not in ("Succeeded", "Failed")]
        text = f"{len(pods) - len(busy)} of {len(pods)} Nodes cleaned"
        if pods and (text != told or monotonic() - said >= _PROGRESS):
            told, said = text, monotonic()
            cluster.report(text)
        return not busy

    cluster.wait(done, timeout + _PROGRESS)  # Kubernetes ends them at their own deadline
    left = [pod for pod in pods if _phase(pod) != "Succeeded"]
    for pod in pods:
        if pod not in left:
            cluster.remove(pod)
    if left:
        nodes = "; ".join(f"Node {_node(pod)}: {_why(pod)} (Pod {pod['metadata']['name']})" for pod in left)
        raise AdminError(
            f"not cleaned: {nodes}. Repeat the command (all it needs is still there), or delete the Pod of "
            "a Node to skip it"
        )


def _why(pod: RawObject) -> str:
    """Return why a Pod has not cleaned its Node."""
    for one in items_at(pod, "status", "containerStatuses"):
        for state in (one.get("state") or {}).values():
            if text := text_at(state, "message") or text_at(state, "reason"):
                return printable(" ".join(text.split()), _SHOWN)
    return text_at(pod, "status", "message") or _phase(pod) or "no kubelet has started it"
