"""ResourceImports of a leader, and the member that imports them."""

from __future__ import annotations

from typing import Any

from mcagent.controller.member.services.service_import import ServiceImports
from mcagent.controller.settings import MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.member_world import AREA, HOME, member, north_of, settings

HTTP = ({"name": "http", "port": 80, "protocol": "TCP"},)


def service_import(
    name: str = "web", namespace: str = "shop", ports: Any = HTTP, clusters: Any = None, **spec: Any
) -> RawObject:
    """Return the ResourceImport of a Service."""
    return {
        "kind": "ResourceImport",
        "metadata": {"name": f"{namespace}-{name}-service", "namespace": AREA},
        "spec": {
            "kind": "ServiceImport",
            "namespace": namespace,
            "name": name,
            "serviceImport": {"spec": {"ports": list(ports), "type": "ClusterSetIP"} | spec},
        }
        | ({"clusterID": clusters} if clusters is not None else {}),
    }


def endpoints_import(
    *addresses: str, name: str = "web", namespace: str = "shop", ports: Any = HTTP, **notes: str
) -> RawObject:
    """Return the ResourceImport of its endpoints. Notes are annotations, "_" for "-"."""
    subsets = [{"addresses": [{"ip": text} for text in addresses], "ports": list(ports)}]
    annotations = {"annotations": {f"mcagent.io/{key.replace('_', '-')}": text for key, text in notes.items()}}
    return {
        "kind": "ResourceImport",
        "metadata": {"name": f"{namespace}-{name}-endpoints", "namespace": AREA} | (annotations if notes else {}),
        "spec": {"kind": "Endpoints", "namespace": namespace, "name": name, "endpoints": {"subsets": subsets}},
    }


def cluster_info(cluster_id: str, service_cidr: str, *pod_cidrs: str) -> RawObject:
    """Return the ResourceImport of a cluster's networks."""
    info = {"clusterID": cluster_id, "serviceCIDR": service_cidr, "podCIDRs": list(pod_cidrs)}
    return {
        "kind": "ResourceImport",
        "metadata": {"name": f"{cluster_id}-clusterinfo", "namespace": AREA},
        "spec": {"kind": "ClusterInfo", "name": cluster_id, "namespace": HOME, "clusterinfo": info},
    }


WEST = cluster_info("west", "10.97.0.0/16", "10.20.0.0/16")


def world(*imports: RawObject, own_settings: MemberSettings | None = None) -> tuple[MemoryView, Controller]:
    """Return a member that has imported these, with cluster west known."""
    view = member()
    for raw in (WEST, *imports):
        north_of(view).put(raw)
    controller = Controller(view, [ServiceImports(own_settings or settings())])
    controller.settle()
    return view, controller


def endpoints(view: MemoryView) -> dict[str, list[int]]:
    """Return the addresses in all our slices with their ports; no address may be there twice for a port."""
    ports_by_address: dict[str, list[int]] = {}
    for raw in view.local.list(Kind.ENDPOINT_SLICE, "shop"):
        if raw["metadata"]["labels"].get("endpointslice.kubernetes.io/managed-by") == "controller.mcagent.io":
            for item in raw["endpoints"]:
                for port in raw["ports"]:
                    ports = ports_by_address.setdefault(item["addresses"][0], [])
                    assert port["port"] not in ports
                    ports.append(port["port"])
    return ports_by_address
