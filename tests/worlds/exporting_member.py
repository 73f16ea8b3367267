"""A member that exports a Service: what is in it, and what it writes."""

from __future__ import annotations

from typing import Any

from mcagent.controller.member.services.service_export import ServiceExports
from mcagent.controller.settings import MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.member_world import AREA, conditions_of, member, north_of, settings


def run(view: MemoryView, own_settings: MemberSettings | None = None) -> Controller:
    """Reconcile until nothing changes."""
    controller = Controller(view, [ServiceExports(own_settings or settings())])
    controller.settle()
    return controller


def world(*objects: RawObject) -> MemoryView:
    """Return a member with these objects."""
    view = member()
    for raw in objects:
        view.local.put(raw)
    return view


def exports(view: MemoryView) -> list[str]:
    """Return the names of the exports that are not on their way out, as a leader without work to do keeps them."""
    return [
        raw["metadata"]["name"]
        for raw in north_of(view).list(Kind.RESOURCE_EXPORT)
        if "deletionTimestamp" not in raw["metadata"]
    ]


def release(view: MemoryView) -> None:
    """Take off the finalizers of what is being deleted, as the leader does."""
    for raw in north_of(view).list(Kind.RESOURCE_EXPORT):
        if "deletionTimestamp" in raw["metadata"]:
            name = raw["metadata"]["name"]
            north_of(view).change(Kind.RESOURCE_EXPORT, AREA, name, {"metadata": {"finalizers": None}})


def subsets(view: MemoryView, name: str = "east-shop-web-endpoints") -> Any:
    """Return the subsets of an Endpoints export."""
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, name)
    return raw["spec"]["endpoints"]["subsets"] if raw else None


def valid(view: MemoryView, name: str = "web", namespace: str = "shop") -> tuple[str, str]:
    """Return the condition Valid of a ServiceExport."""
    return conditions_of(view.local.get(Kind.SERVICE_EXPORT, namespace, name))["Valid"]


def told_of(view: MemoryView) -> str | None:
    """Return how many ready endpoints the Endpoints export says there are."""
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-shop-web-endpoints")
    assert raw is not None
    return (raw["metadata"].get("annotations") or {}).get("mcagent.io/ready-endpoints")
