"""A ClusterSet of controllers in this process, each over an embedded API server."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from devtools.apiserver import ApiServer
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.member import member_reconcilers
from mcagent.controller.member.announce import released_announcement
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.model.objects import Kind
from tests.embedded.controlworld import COMMON_AREA, NAMESPACE, QUICK, Objects, client_of, join
from tests.worlds.control_clusters import CIDRS
from tests.worlds.member_world import node, service, settings, slice_of
from tests.worlds.settled import settled

SHOP = "default"  # a namespace that every server has


class Cluster:
    """One API server and its controller's engine."""

    def __init__(self, name: str, directory: Path, stack: ExitStack, uid: str = "") -> None:
        self.name, self.directory = name, directory / name
        self.leader_settings = LeaderSettings(namespace=COMMON_AREA, stale_after=3600.0)
        self.settings = settings(
            service_cidr=CIDRS.get(name, ""), heartbeat_period=1.0, cluster_uid=uid or f"{name}-uid"
        )
        self.directory.mkdir(parents=True)
        self.api = stack.enter_context(ApiServer(bookmark_interval=0.2))
        self.objects = Objects(self.api)
        self.engine: Engine | None = None
        stack.callback(self.stop)

    def start(self) -> None:
        """Start the controller."""
        reconcilers: Iterable[Any] = (
            leader_reconcilers(self.leader_settings) if self.name == "north" else member_reconcilers(self.settings)
        )
        self.engine = Engine(
            tuple(reconcilers),
            client_of(self.api, self.directory),
            namespace=COMMON_AREA if self.name == "north" else NAMESPACE,
            member=self.name != "north",
            last=lambda view: released_announcement(view, self.settings),
            timing=QUICK,
        )
        self.engine.start()

    def stop(self) -> None:
        """End the controller."""
        if self.engine is not None:
            assert self.engine.stop()
            self.engine = None

    def put(self, raw: dict[str, Any]) -> None:
        """Make or replace an object, in the namespace of the tests if it has one."""
        fields = {key: value for key, value in raw.items() if key not in ("kind", "metadata")}
        meta = {key: value for key, value in raw["metadata"].items() if key not in ("name", "namespace")}
        self.objects.put(Kind(raw["kind"]), raw["metadata"]["name"], SHOP, metadata=meta, **fields)

    def get(self, kind: Kind, name: str, namespace: str = SHOP) -> Any:
        """Return an object or None."""
        return self.objects.get(kind, name, namespace)

    def remove(self, kind: Kind, name: str, namespace: str = SHOP) -> None:
        """Delete an object if it is there."""
        if self.get(kind, name, namespace) is not None:
            self.objects.remove(kind, name, namespace)

    def serve(self, name: str, host: int) -> None:
        """Make a Service with a ready endpoint."""
        prefix = CIDRS[self.name].rsplit(".", 2)[0]
        self.put(service(name, cluster_ip=f"{prefix}.200.{host}"))
        self.put(slice_of(name, f"10.10.1.{host}", name=f"{name}-slice"))

    def imported(self) -> dict[str, set[str]]:
        """Return the endpoints of each imported Service."""
        prefix = "antrea-mc-"
        endpoints = {
            name.removeprefix(prefix): set[str]()
            for name in self.objects.names(Kind.SERVICE)
            if name.startswith(prefix)
        }
        for name in self.objects.names(Kind.ENDPOINT_SLICE):
            raw = self.get(Kind.ENDPOINT_SLICE, name)
            owner = raw["metadata"]["labels"]["kubernetes.io/service-name"] if raw else ""
            if owner.startswith(prefix):
                addresses = {text for item in raw["endpoints"] for text in item["addresses"]}
                endpoints.setdefault(owner.removeprefix(prefix), set()).update(addresses)
        return endpoints


class World:
    """A leader "north" and members.

    `pod_pool`: podExportCIDRs of the leader. `member_settings`: changes to the settings of each member.
    """

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        members: Iterable[str] = ("east", "west"),
        *,
        pod_pool: tuple[str, ...] = ("100.64.0.0/10",),
        **member_settings: Any,
    ) -> None:
        self.north = Cluster("north", directory, stack)
        self.north.leader_settings = replace(
            self.north.leader_settings, limits=MemberLimits(pod_export_cidrs=pod_pool)
        )
        spec = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
        self.north.objects.put(Kind.CLUSTER_SET, "set", COMMON_AREA, spec=spec)
        self.members = {name: Cluster(name, directory, stack) for name in members}
        self.north.start()
        for number, member in enumerate(self.members.values(), 1):
            member.settings = replace(member.settings, **member_settings)
            for host in (1, 2):
                raw = node(f"n{host}", f"192.168.{number}.{host}")
                member.objects.put(
                    Kind.NODE, raw["metadata"]["name"], metadata=raw["metadata"], status=raw["status"]
                )
            member.serve("web", 1)
            member.serve("db", 2)
            member.start()

    def join(self, name: str) -> None:
        """Make Secret and ClusterSet of a member."""
        member = self.members[name]
        if member.get(Kind.CLUSTER_SET, "set", NAMESPACE) is None:
            join(member.objects, self.north.api.url, cluster_id=name)

    def idle(self) -> bool:
        """Tell whether every controller has seen all objects and has nothing to do now."""
        leader = self.north.objects.listed
        return (self.north.engine is None or settled(self.north.engine, COMMON_AREA, leader)) and all(
            member.engine is None or settled(member.engine, NAMESPACE, member.objects.listed, leader)
            for member in self.members.values()
        )
