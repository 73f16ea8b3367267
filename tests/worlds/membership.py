"""A member that has joined, and its heartbeats, for tests of members."""

from __future__ import annotations

from typing import Any

from mcagent.controller.member import member_reconcilers
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_imports import WEST, endpoints_import, service_import
from tests.worlds.member_world import (
    member,
    node,
    north_of,
    settings,
)


def joined(**changes: Any) -> tuple[MemoryView, Controller]:
    """Return a member that has imported a Service and a cluster, and has a gateway."""
    view = member()
    for raw in (WEST, service_import(), endpoints_import("10.97.0.5")):
        north_of(view).put(raw)
    view.local.put(node("n1", "10.0.0.1"))
    controller = Controller(view, member_reconcilers(settings(**changes)))
    controller.settle()
    return view, controller


def tick(view: MemoryView, controller: Controller, seconds: float) -> None:
    """Let time pass, and do what is due then."""
    view.local.clock.forward(seconds)
    controller.due()
    controller.run()
