"""Pods that serve and ask: the image `web` as Kubernetes objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devtools.k8s import images

Json = dict[str, Any]
PORT = 8080
PORTS: list[Json] = [
    {"name": "http", "port": 80, "targetPort": PORT},
    {"name": "echo", "port": 80, "targetPort": PORT, "protocol": "UDP"},
]


def pods(kind: str, name: str, nodes: Sequence[str] = (), *, host_network: bool = False, **spec: Any) -> Json:
    """Return a DaemonSet or Deployment of `web serve`, spread over these Nodes, or over all."""
    labels = {"app": name}
    container = {
        "name": name,
        "image": images.WEB,
        "imagePullPolicy": "IfNotPresent",
        "args": ["serve"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": PORT}, "periodSeconds": 1, "failureThreshold": 1},
    }
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod: Json = {
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": labels}}],
    }
    if host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if nodes:
        on_nodes = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [on_nodes]}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": _meta(name),
        "spec": {**spec, "selector": {"matchLabels": labels}, "template": template},
    }


def service(name: str, app: str, **spec: Any) -> list[Json]:
    """Return a Service over the Pods of `app`, and its export."""
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": _meta(name), "spec": _service(app) | spec},
        {"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport", "metadata": _meta(name)},
    ]


def web(*, replicas: int, nodes: Sequence[str] = ()) -> list[Json]:
    """Return Service `web` with its Pods, and its export."""
    return [pods("Deployment", "web", nodes, replicas=replicas), *service("web", "web")]


def _service(app: str) -> Json:
    return {"selector": {"app": app}, "ports": PORTS}


def _meta(name: str) -> Json:
    return {"name": name, "namespace": "default"}
