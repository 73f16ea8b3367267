"""Gateways of a member, and the Nodes that become them."""

from __future__ import annotations

from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.control_view import MemoryView
from tests.worlds.member_world import AREA, HOME, north_of


def info(view: MemoryView) -> RawObject:
    """Return the published ClusterInfo."""
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-clusterinfo")
    assert raw is not None
    cluster_info: RawObject = raw["spec"]["clusterInfo"]
    return cluster_info


def gateway(view: MemoryView, name: str) -> RawObject:
    """Return a Gateway object."""
    raw = view.local.get(Kind.GATEWAY, HOME, name)
    assert raw is not None
    return raw


def add(view: MemoryView, *nodes: RawObject) -> None:
    """Put Nodes into the cluster."""
    for raw in nodes:
        view.local.put(raw)


def ready(view: MemoryView, name: str, status: str) -> None:
    """Set a Node's readiness."""
    view.local.change(Kind.NODE, "", name, {"status": {"conditions": [{"type": "Ready", "status": status}]}})
