"""Pods that serve and ask: the image `web` as Kubernetes objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devtools.k8s import images

Json = dict[str, Any]


def pods(kind: str, name: str, nodes: Sequence[str] = (), **spec: Any) -> Json:
    """Return a DaemonSet or Deployment of `web serve`, spread over these Nodes, or over all."""
    labels = {"app": name}
    container = {"name": name, "image": images.WEB, "imagePullPolicy": "IfNotPresent", "args": ["serve"]}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod: Json = {
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": labels}}],
    }
    if nodes:
        there = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [there]}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**spec, "selector": {"matchLabels": labels}, "template": template},
    }


def web(*, replicas: int, nodes: Sequence[str] = ()) -> list[Json]:
    """Return Service `web` with its Pods, and its export."""
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    meta = {"name": "web", "namespace": "default"}
    return [
        pods("Deployment", "web", nodes, replicas=replicas),
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service},
        {"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport", "metadata": meta},
    ]
