"""A member cluster for tests of its reconcilers: a ClusterSet that was joined, Nodes, Services."""

from __future__ import annotations

from typing import Any

from mcagent.controller.machinery.reconciler import Leader
from mcagent.controller.settings import MemberSettings
from mcagent.kube.client import Client
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.control_view import MemoryView
from tests.worlds.memory_objects import Clock, MemoryObjects

AREA = "antrea-multicluster"
HOME = "kube-system"
SET = "set"


def settings(**changes: Any) -> MemberSettings:
    """Return the settings of cluster "east"."""
    fields: dict[str, Any] = {"namespace": HOME, "service_cidr": "10.96.0.0/16"}
    return MemberSettings(**(fields | changes))


def cluster_set(cluster_id: str = "east", name: str = SET, **spec: Any) -> RawObject:
    """Return the ClusterSet of a member."""
    leader = {"clusterID": "north", "server": "https://192.0.2.1:6443", "secret": "token"}
    return {
        "kind": "ClusterSet",
        "metadata": {"name": name, "namespace": HOME, "finalizers": ["mcagent.io/member"]},
        "spec": {"clusterID": cluster_id, "namespace": AREA, "leaders": [leader]} | spec,
    }


def leader(cluster_id: str = "east", **changes: Any) -> Leader:
    """Return the membership while the leader is connected."""
    fields: dict[str, Any] = {"connected": True, "synced": True}
    return Leader(
        cluster_set=SET, cluster_id=cluster_id, leader_cluster_id="north", namespace=AREA, **(fields | changes)
    )


def member(cluster_id: str = "east", clock: Clock | None = None, north: MemoryObjects | None = None) -> MemoryView:
    """Return the view of a member of a ClusterSet whose leader is connected."""
    clock = clock or Clock()
    local = MemoryObjects(clock, namespaces=["shop"])
    connected = {"type": "Ready", "status": "True", "reason": "Connected"}
    local.put(cluster_set(cluster_id) | {"status": {"conditions": [connected]}})
    north = north or MemoryObjects(clock, namespaces=[AREA])
    return MemoryView(local, namespace=HOME, leader_api=north, leader=leader(cluster_id))


def north_of(view: MemoryView) -> MemoryObjects:
    """Return the leader's API server."""
    assert view.leader_api is not None
    return view.leader_api


def node(
    name: str,
    *addresses: str,
    ready: bool = True,
    annotated: bool = True,
    cordoned: bool = False,
    external: tuple[str, ...] = (),
    **annotations: str,
) -> RawObject:
    """Return a Node. `annotations` have "_" for "-" and go by their last part: gateway_ip, drain."""
    notes = {"multicluster.antrea.io/gateway": "true"} if annotated else {}
    for key, value in annotations.items():
        prefix = "mcagent.io/" if key == "drain" else "multicluster.antrea.io/"
        notes[prefix + key.replace("_", "-")] = value
    return {
        "kind": "Node",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "addresses": [
                *({"type": "InternalIP", "address": a} for a in addresses),
                *({"type": "ExternalIP", "address": a} for a in external),
                {"type": "Hostname", "address": name},
            ],
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def service(
    name: str, *ports: tuple[str, int], namespace: str = "shop", cluster_ip: str = "10.96.7.7", **spec: Any
) -> RawObject:
    """Return a Service with TCP ports (name, number)."""
    listed = [{"name": n, "port": p, "protocol": "TCP"} for n, p in ports or (("http", 80),)]
    ips = {"clusterIP": cluster_ip, "clusterIPs": [cluster_ip]} if cluster_ip else {}
    body = {"ports": listed, "type": "ClusterIP", **ips}
    return {"kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": body | spec}


def slice_of(
    service_name: str,
    *addresses: str,
    name: str = "",
    namespace: str = "shop",
    ports: tuple[tuple[str, int], ...] = (("http", 8080),),
    **conditions: bool,
) -> RawObject:
    """Return an EndpointSlice of a Service, all endpoints with the same conditions."""
    return {
        "kind": "EndpointSlice",
        "metadata": {
            "name": name or f"{service_name}-abcde",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": "IPv6" if ":" in "".join(addresses) else "IPv4",
        "endpoints": [{"addresses": [a], "conditions": {"ready": True} | conditions} for a in addresses],
        "ports": [{"name": n, "port": p, "protocol": "TCP"} for n, p in ports],
    }


def export_of(name: str, namespace: str = "shop") -> RawObject:
    """Return a ServiceExport."""
    return {"kind": "ServiceExport", "metadata": {"name": name, "namespace": namespace}}


def conditions_of(raw: RawObject | None) -> dict[str, tuple[str, str]]:
    """Return status and reason of each condition, by type."""
    conditions = ((raw or {}).get("status") or {}).get("conditions") or []
    return {item["type"]: (item["status"], item.get("reason", "")) for item in conditions}


def names_of(api: MemoryObjects, kind: Kind, namespace: str | None = None) -> list[str]:
    """Return the names of the objects of a kind."""
    return [raw["metadata"]["name"] for raw in api.list(kind, namespace)]


class Answers(Client):
    """A client whose answers are given."""

    def __init__(self, *answers: Any) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self._answers = list(answers)

    def request(self, method: str, path: str, query: Any = None, **arguments: Any) -> Any:
        """Return or raise the next answer."""
        self.requests.append((method, path, query))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer
