"""Tenants of a member that export as much as they can."""

from __future__ import annotations

from mcagent.controller.contract import names
from mcagent.controller.machinery.reconciler import Reconciler
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds import member_world
from tests.worlds.control_view import Controller
from tests.worlds.memory_objects import Clock, MemoryObjects

LIMIT = 20


class Tenants:
    """A member that may export LIMIT Services and label identities, and the leader that accepts no more."""

    def __init__(self, *reconcilers: Reconciler, limit: str | None = str(LIMIT)) -> None:
        self.clock = Clock()
        self.north = MemoryObjects(self.clock, namespaces=[member_world.AREA])
        if limit is not None:
            meta = {
                "name": "east-clusterinfo",
                "namespace": member_world.AREA,
                "annotations": {names.MAX_EXPORTS_ANNOTATION: limit},
            }
            self.north.put({"kind": "ResourceImport", "metadata": meta, "spec": {"kind": "ClusterInfo"}})
        self.view = member_world.member(clock=self.clock, north=self.north)
        self.controller = Controller(self.view, reconcilers)
        self.most = 0

    def put(self, *objects: RawObject) -> None:
        """Let tenants write objects, one a second, and the controller act after each."""
        for raw in objects:
            self.clock.forward(1)
            self.view.local.put(raw)
            self.settle()

    def settle(self) -> None:
        """Let the controller act, and the leader release what is deleted."""
        for _ in range(3):
            self.controller.run()
            for raw in self.north.list(Kind.RESOURCE_EXPORT):
                if "deletionTimestamp" in raw["metadata"]:
                    name = raw["metadata"]["name"]
                    self.north.change(
                        Kind.RESOURCE_EXPORT, member_world.AREA, name, {"metadata": {"finalizers": None}}
                    )
            self.most = max(self.most, len(self.names("")))

    def names(self, namespace: str) -> list[str]:
        """Return the names of the exports of a namespace ("": of all) that count for one kind."""
        exports = self.north.list(Kind.RESOURCE_EXPORT)
        return [
            raw["metadata"]["name"]
            for raw in exports
            if raw["spec"]["kind"] != "Endpoints"
            and (not namespace or namespace in (raw["spec"].get("namespace"), _space(raw)))
        ]

    def events(self, reason: str) -> list[str]:
        """Return the objects of the Events with a reason, and their messages."""
        return [
            f"{event.subject}: {event.message}" for event in self.controller.all_events() if event.reason == reason
        ]


def _space(export: RawObject) -> str:
    text = str(export["spec"].get("labelIdentity", {}).get("normalizedLabel", ""))
    return text.partition("metadata.name=")[2].partition("&")[0]


def pod(number: int, namespace: str, *, pending: bool = False) -> RawObject:
    """Return a Pod with labels of its own; `pending`: no Node takes it."""
    return {
        "kind": "Pod",
        "metadata": {"name": f"p{number}", "namespace": namespace, "labels": {"app": f"a{number}"}},
        "spec": {} if pending else {"nodeName": "n1"},
        "status": {"phase": "Pending"} if pending else {"phase": "Running", "podIP": f"10.1.0.{number + 1}"},
    }


def spaces(*tenants: str) -> list[RawObject]:
    """Return Namespaces."""
    return [{"kind": "Namespace", "metadata": {"name": name}} for name in tenants]


POLICIES_ON = member_world.settings(stretched_network_policy=True)
