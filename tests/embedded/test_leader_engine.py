"""The leader's reconcilers in the engine, over an API server with schemas: what is written, and how often."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer
from devtools.apiserver.faults import Fault, FaultKind
from mcagent.controller.contract import names
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.kube.client import Client
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.embedded.controlworld import COMMON_AREA, QUICK, Objects, client_of
from tests.waiting import until
from tests.worlds.crds import create_crds
from tests.worlds.leader_world import announce, cluster_info, cluster_set, endpoints, service

KEY = "IRfSjVAaO0TJMcSZSGRCzRRBGD7h5yFXtxrRFCRJJ0A="


class World:
    """An API server with a leader's engine. The engine is known by its user agent only, so writes are counted."""

    def __init__(self, api: ApiServer, client: Client, timeout: float) -> None:
        self.api, self.client, self.objects = api, client, Objects(api)
        self.settings = LeaderSettings(
            namespace=COMMON_AREA, heartbeat_timeout=timeout, allowed_endpoint_cidrs=("10.0.0.0/8",)
        )
        self.engine = self.start()

    def start(self) -> Engine:
        """Start an engine anew."""
        engine = Engine(
            leader_reconcilers(self.settings), self.client, namespace=COMMON_AREA, member=False, timing=QUICK
        )
        engine.start()
        return engine

    def put(self, *objects: RawObject) -> None:
        """Write objects as members do; what the leader added stays."""
        for obj in objects:
            fields = {k: v for k, v in obj.items() if k not in ("kind", "metadata", "apiVersion")}
            kind, name = Kind(obj["kind"]), obj["metadata"]["name"]
            if self.objects.get(kind, name, COMMON_AREA) is None:
                meta = {k: v for k, v in obj["metadata"].items() if k not in ("name", "namespace")}
                self.objects.put(kind, name, COMMON_AREA, metadata=meta, **fields)
                continue

            def change(old: Any, fields: RawObject = fields, meta: RawObject = obj["metadata"]) -> Any:
                annotations = {"annotations": meta["annotations"]} if "annotations" in meta else {}
                return {**old, **fields, "metadata": {**old["metadata"], **annotations}}

            self.objects.change(kind, name, change, COMMON_AREA)

    def get(self, kind: Kind, name: str) -> Any:
        """Return an object or None."""
        return self.objects.get(kind, name, COMMON_AREA)

    def addresses(self) -> list[str]:
        """Return the imported endpoints."""
        resource_import = self.get(Kind.RESOURCE_IMPORT, "default-nginx-endpoints")
        return (
            [a["ip"] for s in resource_import["spec"]["endpoints"]["subsets"] for a in s["addresses"]]
            if resource_import
            else []
        )

    def verdict(self, name: str) -> str:
        """Return what became of an export: the type of the last of its conditions, "" while there is none."""
        resource_export = self.get(Kind.RESOURCE_EXPORT, name) or {}
        conditions = resource_export.get("status", {}).get("conditions") or [{}]
        return str(conditions[-1].get("type", ""))

    def annotations(self) -> dict[str, str]:
        """Return those of the ClusterSet."""
        return dict(self.get(Kind.CLUSTER_SET, "clusterset1")["metadata"].get("annotations") or {})

    def ready(self) -> int:
        """Return how many members are Ready."""
        return int((self.get(Kind.CLUSTER_SET, "clusterset1") or {}).get("status", {}).get("readyClusters", -1))

    def writes(self) -> list[str]:
        """Return the writes of the engine so far: tests write past the server."""
        return self.objects.writes("/multicluster.crd.antrea.io/")

    def settled(self) -> list[str]:
        """Wait until nothing has been written for half a second; return the writes."""
        last, since = self.writes(), time.monotonic()

        def quiet() -> bool:
            nonlocal last, since
            now = self.writes()
            if now != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since > 0.5

        until(quiet, 20)
        return last


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Give a leader with the members east and west. The parameter is its heartbeat timeout in seconds."""
    with ApiServer() as api:
        client = client_of(api, tmp_path)
        create_crds(client)
        world = World(api, client, getattr(request, "param", 60.0))
        world.put(cluster_set(), announce("east", 1.0), announce("west", 1.0))
        until(lambda: world.ready() == 2)
        yield world
        world.engine.stop()
        client.close()


def test_a_leader_of_one_namespace_leaves_others_alone(world: World) -> None:
    """With a namespace in its settings, a leader reads and writes nothing elsewhere."""
    world.objects.put(Kind.NAMESPACE, "mcs-b", "")
    world.objects.put(Kind.CLUSTER_SET, "set-b", "mcs-b", spec=cluster_set("mcs-b", "set-b")["spec"])
    elsewhere = service("east", area="mcs-b")
    world.objects.put(Kind.RESOURCE_EXPORT, elsewhere["metadata"]["name"], "mcs-b", spec=elsewhere["spec"])
    world.put(service("east"))
    until(lambda: world.verdict("east-default-nginx-service") == "Succeeded")
    assert not [write for write in world.settled() if "mcs-b" in write]


def test_two_controllers_with_different_limits_do_not_write_in_turn(world: World) -> None:
    """Those of two namespaces: the one that is refused has a limit of one endpoint, which has no effect."""
    world.engine.stop()
    limits = [MemberLimits(), MemberLimits(max_endpoints=1)]
    engines = []
    for home, limit in zip(("first", "second"), limits, strict=True):
        world.settings = replace(world.settings, home=home, limits=limit)
        engines.append(world.start())
        until(lambda: world.annotations().get("mcagent.io/controller"))
    try:
        world.put(service("east"), endpoints("east", ["10.1.0.1", "10.1.0.2"]))
        until(lambda: world.addresses() == ["10.1.0.1", "10.1.0.2"])
        until(lambda: world.annotations().get("mcagent.io/refused-controller"))
        marked = {key: text for key, text in world.annotations().items() if "controller" in key}
        assert marked == {"mcagent.io/controller": "first", "mcagent.io/refused-controller": "second"}
        written = [write for write in world.settled() if write.endswith("resourceimports/default-nginx-endpoints")]
        assert not written  # it was created, and never changed
    finally:
        for engine in engines:
            engine.stop()


def test_from_exports_to_imports_and_back(world: World) -> None:
    """Exports are merged, a conflict is told, and a member that leaves takes all of it along."""
    world.put(service("east"), endpoints("east", ["10.1.0.1"]), cluster_info("east", "10.1.0.0/16", key=KEY))
    until(lambda: world.addresses() == ["10.1.0.1"])
    world.put(service("west"), endpoints("west", ["10.2.0.1"]))
    until(lambda: world.addresses() == ["10.1.0.1", "10.2.0.1"])
    until(lambda: world.verdict("west-default-nginx-service") == "Succeeded")
    until(lambda: world.get(Kind.RESOURCE_IMPORT, "east-clusterinfo"))
    info = world.get(Kind.RESOURCE_IMPORT, "east-clusterinfo")["spec"]["clusterinfo"]
    assert info["wireGuard"] == {"publicKey": KEY}
    world.put(service("west", ports=81))
    services = [f"{cluster}-default-nginx-service" for cluster in ("east", "west")]
    until(lambda: set(map(world.verdict, services)) == {"Conflict"})
    world.objects.remove(Kind.MEMBER_CLUSTER_ANNOUNCE, names.announce("east"), COMMON_AREA)
    until(lambda: world.get(Kind.MEMBER_CLUSTER_ANNOUNCE, names.announce("east")) is None)
    until(lambda: world.addresses() == ["10.2.0.1"])
    assert [name for name in world.objects.names(Kind.RESOURCE_EXPORT) if name.startswith("east")] == []
    assert world.get(Kind.RESOURCE_IMPORT, "east-clusterinfo") is None


def test_one_change_of_endpoints_is_one_write(world: World) -> None:
    """Whatever else there is, nothing but the one ResourceImport is written, and nothing again and again."""
    for number in range(10):
        target = f"default/s{number}"
        for cluster in ("east", "west"):
            world.put(service(cluster, target), endpoints(cluster, ["10.1.0.1"], target))
    world.put(service("east"), endpoints("east", ["10.1.0.1"]))
    until(lambda: world.addresses() == ["10.1.0.1"])
    before = world.settled()
    world.put(endpoints("east", ["10.1.0.1", "10.1.0.2"]))
    until(lambda: world.addresses() == ["10.1.0.1", "10.1.0.2"])
    (write,) = world.settled()[len(before) :]
    assert write.startswith(("patch", "update"))
    assert "resourceimports/default-nginx-endpoints" in write


@pytest.mark.parametrize("world", [1.0], indirect=True)
def test_heartbeats_keep_members_ready_without_a_write(world: World) -> None:
    """While announcements change nothing is written; who stops is not Ready; who goes on again is."""
    until(lambda: world.ready() == 0)  # in silence, longer than the timeout
    before = world.settled()
    for beat in range(2, 30):
        world.put(announce("east", float(beat)))
        until(lambda: world.ready() == 1)
    after = world.writes()
    assert 1 <= len(after) - len(before) <= 5, after[len(before) :]


def test_a_restart_writes_nothing(world: World) -> None:
    """An engine that starts over a settled API has nothing to write."""
    world.put(service("east"), endpoints("east", ["10.1.0.1"]), cluster_info("east", "10.1.0.0/16", key=KEY))
    world.put(service("west", ports=81))
    until(lambda: world.addresses() == ["10.1.0.1"])
    before = world.settled()
    world.engine.stop()
    world.engine = world.start()
    assert world.settled() == before


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.STATUS, code=409, verbs=("create", "patch"), times=40),
        Fault(kind=FaultKind.STATUS, code=500, verbs=("create", "patch"), times=20),
        Fault(kind=FaultKind.DROP, verbs=("create", "patch"), times=20),
        Fault(kind=FaultKind.TRUNCATED, verbs=("create", "patch"), times=20),
        Fault(kind=FaultKind.DROP, verbs=("watch",), times=20),
        Fault(kind=FaultKind.TRUNCATED, verbs=("watch",), after=1, times=20),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.verbs[0]}-{fault.code}",
)
def test_faults_of_the_api_server_leave_no_trace(world: World, fault: Fault) -> None:
    """Conflicts, lost answers and cut watches end in what a fresh start computes: it writes nothing."""
    world.api.faults.add(fault)
    world.api.drop_connections()
    for number in range(5):
        target = f"default/s{number}"
        world.put(service("east", target), endpoints("east", [f"10.1.0.{number + 1}"], target))
        world.put(service("west", target, ports=80 + number % 2), endpoints("west", ["10.2.0.1"], target))
    world.put(cluster_info("east", "10.1.0.0/16", key=KEY), service("east"), endpoints("east", ["10.1.0.9"]))
    until(lambda: world.addresses() == ["10.1.0.9"], 20)
    until(lambda: all("Conflict" in verdicts(world, n) for n in (1, 3)), 20)
    until(lambda: all(verdicts(world, n) == {"Succeeded"} for n in (0, 2, 4)), 20)
    until(lambda: len(world.objects.names(Kind.RESOURCE_IMPORT)) == 13, 20)
    world.api.faults.clear()
    until(world.engine.idle, 20)
    before = world.settled()
    world.engine.stop()
    world.engine = world.start()
    assert world.settled() == before


def verdicts(world: World, number: int) -> set[str]:
    """Return what became of the four exports of a Service."""
    clusters, kinds = ("east", "west"), ("service", "endpoints")
    return {world.verdict(f"{cluster}-default-s{number}-{kind}") for cluster in clusters for kind in kinds}
