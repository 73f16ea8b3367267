"""Leader and members with their engines on embedded API servers: the same as in memory, over real connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from devtools.apiserver.objects.resources import ResourceType
from devtools.apiserver.storage.lifecycle import check_shape
from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import CLUSTER_UID_ANNOTATION
from mcagent.controller.contract.instances import INSTANCE_ANNOTATION
from mcagent.model.objects import Kind
from tests.embedded.clusterset import SHOP, Cluster, World
from tests.embedded.controlworld import COMMON_AREA, NAMESPACE, client_of, join
from tests.properties import REAL
from tests.waiting import until
from tests.worlds import leader_world
from tests.worlds.control_clusters import CIDRS
from tests.worlds.member_world import conditions_of, export_of, service, slice_of

REFUSED = ("False", "DuplicateClusterID")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Give a leader and two members that have joined."""
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        for name in world.members:
            world.join(name)
        yield world


def test_export_import_change_unexport(world: World) -> None:
    """A Service exported in two clusters is imported in both, follows its endpoints, and goes with its exports."""
    east, west = world.members.values()
    east.put(export_of("web"))
    until(lambda: west.imported() == {"web": {"10.96.200.1"}})
    until(lambda: east.imported() == {"web": {"10.10.1.1"}})  # kube-proxy translates once: its own Pod
    west.put(export_of("web"))
    until(lambda: east.imported() == {"web": {"10.10.1.1", "10.97.200.1"}})
    until(
        lambda: (
            conditions_of(west.get(Kind.SERVICE_EXPORT, "web"))
            == {"Valid": ("True", "Valid"), "Ready": ("True", "Exported"), "Conflict": ("False", "NoConflicts")}
        )
    )
    info = east.get(Kind.CLUSTER_INFO_IMPORT, "west-clusterinfo", NAMESPACE)
    assert info["spec"]["gatewayInfos"] == [{"gatewayIP": "192.168.2.1"}]
    assert info["spec"]["serviceCIDR"] == "10.97.0.0/16"
    west.remove(Kind.ENDPOINT_SLICE, "web-slice")
    until(lambda: east.imported() == {"web": {"10.10.1.1"}})
    east.remove(Kind.SERVICE_EXPORT, "web")
    until(lambda: east.imported() == west.imported() == {"web": set()})  # exported, and nobody is behind it
    west.remove(Kind.SERVICE_EXPORT, "web")
    until(lambda: east.imported() == west.imported() == {})
    until(lambda: set(world.north.objects.names(Kind.RESOURCE_IMPORT)) == {"east-clusterinfo", "west-clusterinfo"})


def test_an_export_without_usable_endpoints_gets_no_connections(world: World) -> None:
    """It is not Ready, and other clusters import the endpoints of those that have some; until it has one, too."""
    east, west = world.members.values()
    west.put(slice_of("web", "10.10.1.1", name="web-slice", ports=(("other", 8080),)))
    for member in (east, west):
        member.put(export_of("web"))

    def ready(member: Cluster) -> tuple[str, str]:
        return conditions_of(member.get(Kind.SERVICE_EXPORT, "web")).get("Ready", ("", ""))

    until(lambda: (ready(east), ready(west)) == (("True", "Exported"), ("False", "NoUsableEndpoint")))
    until(lambda: east.imported() == {"web": {"10.10.1.1"}})
    (valid,) = (
        condition
        for condition in west.get(Kind.SERVICE_EXPORT, "web")["status"]["conditions"]
        if condition["type"] == "Valid"
    )
    assert valid["message"] == (
        '1 endpoints of port 80 are in EndpointSlices without a port "http" (TCP): not used'
    )
    west.put(slice_of("web", "10.10.1.1", name="web-slice"))
    until(lambda: ready(west) == ("True", "Exported"))
    until(lambda: east.imported() == {"web": {"10.10.1.1", "10.97.200.1"}})


def test_one_endpoint_change_writes_the_same_however_many_clusters_export(world: World) -> None:
    """Of one cluster's endpoint: one object by the leader, one EndpointSlice in each importing cluster."""
    north, members = world.north, world.members.values()
    written: list[dict[str, list[str]]] = []
    for there, count in ((0, 5), (5, 20)):
        for number in range(there, count):
            north.put(leader_world.announce(f"c{number}"))
            north.put(leader_world.cluster_info(f"c{number}", f"10.{100 + number}.0.0/16"))
            north.put(leader_world.service(f"c{number}", f"{SHOP}/many"))
            north.put(leader_world.endpoints(f"c{number}", [f"10.{100 + number}.0.1"], f"{SHOP}/many"))
        until(lambda: all(len(member.imported().get("many", ())) == count for member in members))  # noqa: B023
        until(world.idle)
        for cluster in (north, *members):
            cluster.api.requests.clear()
        changed = leader_world.endpoints("c0", [f"10.100.0.{count}"], f"{SHOP}/many")
        north.objects.change(
            Kind.RESOURCE_EXPORT,
            changed["metadata"]["name"],
            lambda old: {**old, "spec": changed["spec"]},  # noqa: B023
            COMMON_AREA,
        )
        until(lambda: all(f"10.100.0.{count}" in member.imported()["many"] for member in members))  # noqa: B023
        until(world.idle)
        written.append(
            {
                cluster.name: [w.partition("-c0-")[0] for w in cluster.objects.writes() if "announce" not in w]
                for cluster in (north, *members)
            }
        )
    assert written[0] == written[1]
    assert {name: len(writes) for name, writes in written[1].items()} == {"north": 1, "east": 1, "west": 1}


def test_all_that_a_service_is_reaches_the_other_clusters(world: World) -> None:
    """Settings, labels and hostnames come through both API servers, and are written once."""
    east, west = world.members.values()
    fields: dict[str, Any] = {"internalTrafficPolicy": "Local", "trafficDistribution": "PreferClose"}
    fields["ipFamilies"] = ["IPv4"]
    config = {"clientIP": {"timeoutSeconds": 60}}
    affinity: dict[str, Any] = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}
    east.put(service("all", cluster_ip="10.96.200.7", **fields, **affinity))
    export = export_of("all") | {"spec": {"exportedLabels": {"team": "shop"}}}
    pods = slice_of("pods", "10.96.250.9")
    pods["endpoints"][0]["hostname"] = "pods-0"
    for raw in (export, service("pods", cluster_ip="None"), pods, export_of("pods")):
        east.put(raw)

    def shown(name: str) -> Any:
        return west.get(Kind.SERVICE_IMPORT, name) or {"spec": {}, "metadata": {}}

    until(lambda: shown("all")["spec"])
    until(lambda: shown("pods")["spec"].get("type") == "Headless")
    spec = shown("all")["spec"] | {"ipFamilies": ["IPv4"]}  # this server gives Services no addresses
    assert {key: spec[key] for key in fields | affinity} == fields | affinity
    assert shown("all")["metadata"]["labels"]["team"] == "shop"
    assert shown("pods")["spec"].get("ips", []) == []
    until(lambda: east.imported().get("pods") == {"10.96.250.9"})
    (name,) = [n for n in east.objects.names(Kind.ENDPOINT_SLICE) if n.startswith("antrea-mc-pods-")]
    endpoint_slice = east.get(Kind.ENDPOINT_SLICE, name)
    assert endpoint_slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"] == "east"
    assert [item["hostname"] for item in endpoint_slice["endpoints"]] == ["pods-0"]
    until(world.idle)
    written = world.north.objects.writes("/resourceexports/east-default-all-service")
    assert [write for write in written if write.startswith("patch") and "/status" not in write] == []


def test_fields_that_an_older_definition_lacks_are_written_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Antrea's ServiceImport has no internalTrafficPolicy: it is tried once for all Services, and said."""
    east, west = world.members.values()

    def pruned(rt: ResourceType, *request: Any) -> Any:  # as a real server does by the schema
        obj = check_shape(rt, *request)
        if rt.kind != "ServiceImport":
            return obj
        return {**obj, "spec": {k: v for k, v in obj["spec"].items() if k != "internalTrafficPolicy"}}

    monkeypatch.setattr("devtools.apiserver.storage.writes.check_shape", pruned)
    for number in range(4):
        fields: dict[str, Any] = {"internalTrafficPolicy": "Local"}
        east.put(service(f"s{number}", cluster_ip=f"10.96.200.{number + 10}", **fields))
        east.put(export_of(f"s{number}"))
        until(lambda name=f"s{number}": west.get(Kind.SERVICE_IMPORT, name))  # type: ignore[misc]
    until(world.idle)
    until(lambda: (west.get(Kind.SERVICE_IMPORT, "s3") or {}).get("status"))
    patches = [w for w in west.objects.writes("/serviceimports/") if w.startswith("patch") and "/status" not in w]
    assert len(patches) <= 2
    assert "internalTrafficPolicy" not in west.get(Kind.SERVICE_IMPORT, "s3")["spec"]


def test_a_gateway_is_replaced_in_place(world: World) -> None:
    """When a gateway's Node is no more Ready, others learn of the next one by an update of the same object."""
    east, west = world.members.values()
    until(lambda: west.get(Kind.CLUSTER_INFO_IMPORT, "east-clusterinfo", NAMESPACE))
    before = west.get(Kind.CLUSTER_INFO_IMPORT, "east-clusterinfo", NAMESPACE)
    client_of(east.api, east.directory).request(
        "PATCH",
        "/api/v1/nodes/n1/status",
        body={"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
        content_type="application/merge-patch+json",
    )

    def gateways() -> Any:
        return west.get(Kind.CLUSTER_INFO_IMPORT, "east-clusterinfo", NAMESPACE)["spec"]["gatewayInfos"]

    until(lambda: gateways() == [{"gatewayIP": "192.168.1.2"}])
    after = west.get(Kind.CLUSTER_INFO_IMPORT, "east-clusterinfo", NAMESPACE)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert east.objects.names(Kind.GATEWAY) == ["n2"]


def test_leaving_and_rejoining(world: World) -> None:
    """Who leaves has nothing left; who joins again has everything again."""
    east, west = world.members.values()
    for member in (east, west):
        member.put(export_of("web"))
    at_east, at_west = {"web": {"10.10.1.1", "10.97.200.1"}}, {"web": {"10.96.200.1", "10.10.1.1"}}
    until(lambda: east.imported() == at_east and west.imported() == at_west)
    east.remove(Kind.CLUSTER_SET, "set", NAMESPACE)
    until(lambda: east.get(Kind.CLUSTER_SET, "set", NAMESPACE) is None)
    until(lambda: east.imported() == {} and not east.objects.names(Kind.GATEWAY))
    until(lambda: west.imported() == {"web": {"10.10.1.1"}})
    until(lambda: not [n for n in world.north.objects.names(Kind.RESOURCE_EXPORT) if n.startswith("east-")])
    until(lambda: world.north.objects.names(Kind.MEMBER_CLUSTER_ANNOUNCE) == ["member-announce-from-west"])
    world.join("east")
    until(lambda: east.imported() == at_east and west.imported() == at_west)


def test_a_second_cluster_with_the_id_of_a_member_is_refused(world: World, tmp_path: Path) -> None:
    """While both controllers run, no object of the first one changes, and none goes when the second one leaves."""
    for name in world.members:
        world.join(name)
    world.members["east"].put(export_of("web"))
    until(lambda: world.members["west"].imported() == {"web": {"10.96.200.1"}})

    def versions() -> dict[str, str]:
        listed = world.north.objects.names(Kind.RESOURCE_EXPORT)
        exports = {name: world.north.get(Kind.RESOURCE_EXPORT, name, COMMON_AREA) for name in listed}
        return {name: export["metadata"]["resourceVersion"] for name, export in exports.items()}

    def announced() -> dict[str, str]:
        announce = world.north.get(Kind.MEMBER_CLUSTER_ANNOUNCE, "member-announce-from-east", COMMON_AREA)
        return dict(announce["metadata"]["annotations"])

    until(lambda: "east-clusterinfo" in versions() and world.idle())
    before = versions()
    with ExitStack() as stack:
        second = Cluster("east", tmp_path / "second", stack, uid="second-uid")
        second.serve("web", 9)
        second.put(export_of("web"))
        second.start()
        join(second.objects, world.north.api.url, cluster_id="east")
        for _ in range(2):
            until(lambda: conditions_of(second.get(Kind.CLUSTER_SET, "set", NAMESPACE)).get("Ready") == REFUSED)
            beat = announced()[names.HEARTBEAT_ANNOTATION]
            until(lambda beat=beat: announced()[names.HEARTBEAT_ANNOTATION] != beat)  # type: ignore[misc]
            second.stop()
            second.start()
        consistent = conditions_of(world.north.get(Kind.CLUSTER_SET, "set", COMMON_AREA))["Consistent"]
        assert consistent == REFUSED
        assert versions() == before
        second.remove(Kind.CLUSTER_SET, "set", NAMESPACE)
        until(lambda: second.get(Kind.CLUSTER_SET, "set", NAMESPACE) is None)
    assert announced()[CLUSTER_UID_ANNOTATION] == "east-uid"
    assert versions() == before


def test_a_copy_of_a_cluster_writes_nothing_and_a_stop_releases_the_id(world: World, tmp_path: Path) -> None:
    """A copy of east has its UID and is refused. The first process of east would hold the ID for 50 minutes."""
    east = world.members["east"]

    def instance() -> str:
        announce = world.north.get(Kind.MEMBER_CLUSTER_ANNOUNCE, "member-announce-from-east", COMMON_AREA)
        return str((announce or {"metadata": {}})["metadata"].get("annotations", {}).get(INSTANCE_ANNOTATION))

    def ready(cluster: Cluster) -> tuple[str, str] | None:
        return conditions_of(cluster.get(Kind.CLUSTER_SET, "set", NAMESPACE)).get("Ready")

    def restart(name: str, period: float) -> None:
        east.stop()
        east.settings = replace(east.settings, instance=name, heartbeat_period=period)
        east.start()

    restart("first", 1000.0)
    until(lambda: instance() == "first 3000")
    with ExitStack() as stack:
        copied = Cluster("east", tmp_path / "copy", stack, uid="east-uid")
        copied.settings = replace(copied.settings, instance="copy")
        copied.start()
        join(copied.objects, world.north.api.url, cluster_id="east")
        until(lambda: ready(copied) == ("Unknown", "NotAnnounced"))
        restart("second", 1.0)
        until(lambda: instance() == "second 3")
        until(lambda: ready(copied) == REFUSED)
        until(
            lambda: conditions_of(world.north.get(Kind.CLUSTER_SET, "set", COMMON_AREA))["Consistent"] == REFUSED
        )
        until(lambda: ready(east) == ("True", "Connected"))


def test_a_leader_that_is_away_changes_nothing(world: World) -> None:
    """Members keep what they imported and elect gateways; afterwards they catch up and write nothing twice."""
    east, west = world.members.values()
    east.put(export_of("web"))
    until(lambda: west.imported() == {"web": {"10.96.200.1"}})
    until(world.idle)
    world.north.stop()
    world.north.api.stop()
    until(
        lambda: (
            conditions_of(west.get(Kind.CLUSTER_SET, "set", NAMESPACE)).get("Ready") == ("False", "Disconnected")
        )
    )
    east.remove(Kind.NODE, "n1", "")
    until(lambda: east.objects.names(Kind.GATEWAY) == ["n2"])
    west.remove(Kind.SERVICE, "antrea-mc-web")
    until(lambda: west.imported() == {"web": {"10.96.200.1"}})


def test_restarts_write_nothing(world: World) -> None:
    """A new leader's and a new member's controller find everything as it should be."""
    east, west = world.members.values()
    east.put(export_of("web"))
    until(lambda: west.imported() == {"web": {"10.96.200.1"}})
    until(
        lambda: (
            conditions_of(east.get(Kind.SERVICE_EXPORT, "web")).get("Conflict") == ("False", "NoConflicts")
            and world.idle()
        )
    )
    for cluster in (world.north, west):
        cluster.stop()
    for cluster in (world.north, west):
        cluster.api.requests.clear()
        cluster.start()
    until(
        lambda: west.engine is not None and west.engine.view.leader is not None and west.engine.view.leader.synced
    )
    until(world.idle)
    writes = [
        w for w in (*west.objects.writes(), *world.north.objects.writes()) if "memberclusterannounce" not in w
    ]
    assert [w for w in writes if "clustersets" not in w] == []


class Interleavings(RuleBasedStateMachine):
    """Joining, leaving, exporting, faults and restarts in any order, on API servers; few, as they take time."""

    members = st.sampled_from(["east", "west"])
    services = st.sampled_from(["web", "db"])
    make: Callable[[], Path]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.world = World(type(self).make(), self.stack)

    @rule(member=members)
    def join(self, member: str) -> None:
        self.world.join(member)

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.world.members[member].remove(Kind.CLUSTER_SET, "set", NAMESPACE)

    @rule(member=members, name=services)
    def export(self, member: str, name: str) -> None:
        self.world.members[member].put(export_of(name))

    @rule(member=members, name=services)
    def unexport(self, member: str, name: str) -> None:
        self.world.members[member].remove(Kind.SERVICE_EXPORT, name)

    @rule(member=members, name=services)
    def meddle(self, member: str, name: str) -> None:
        self.world.members[member].remove(Kind.SERVICE, f"antrea-mc-{name}")

    @rule(member=members)
    def lose_gateway(self, member: str) -> None:
        self.world.members[member].remove(Kind.NODE, "n1", "")

    @rule(member=members)
    def restart(self, member: str) -> None:
        cluster = self.world.members[member]
        cluster.stop()
        cluster.start()

    @rule()
    def restart_leader(self) -> None:
        self.world.north.stop()
        self.world.north.start()

    def _expected(self) -> dict[str, dict[str, set[str]]]:
        inside = {
            name: member
            for name, member in self.world.members.items()
            if member.get(Kind.CLUSTER_SET, "set", NAMESPACE) is not None
        }
        expected: dict[str, dict[str, set[str]]] = {name: {} for name in self.world.members}
        for name, member in inside.items():
            for exported in member.objects.names(Kind.SERVICE_EXPORT):
                host = {"web": 1, "db": 2}[exported]
                for importer in inside:
                    own, other = f"10.10.1.{host}", f"{CIDRS[name].rsplit('.', 2)[0]}.200.{host}"
                    expected[importer].setdefault(exported, set()).add(own if importer == name else other)
        return expected

    def teardown(self) -> None:
        try:
            until(lambda: self._settled() == [], 20)
        except AssertionError:
            raise AssertionError(self._settled()) from None
        finally:
            self.stack.close()

    def _settled(self) -> list[str]:
        """Return what is not yet as it should be."""
        world = self.world
        wrong = []
        for name, expected in self._expected().items():
            member = world.members[name]
            if (imported_addresses := member.imported()) != expected:
                wrong.append(f"{name} imports {imported_addresses}, not {expected}")
            raw = member.get(Kind.CLUSTER_SET, "set", NAMESPACE)
            if raw is not None and "deletionTimestamp" in raw["metadata"]:
                wrong.append(f"{name} is still leaving")
            if raw is None and member.objects.names(Kind.GATEWAY):
                wrong.append(f"{name} has Gateways")
            announced = f"member-announce-from-{name}" in world.north.objects.names(Kind.MEMBER_CLUSTER_ANNOUNCE)
            if announced != (raw is not None):
                wrong.append(f"{name} is announced: {announced}")
            exported = {n for n in world.north.objects.names(Kind.RESOURCE_EXPORT) if n.startswith(name)}
            wanted = {
                f"{name}-{SHOP}-{n}-{kind}"
                for n in member.objects.names(Kind.SERVICE_EXPORT)
                for kind in ("service", "endpoints")
            } | {f"{name}-clusterinfo"}
            if exported != (wanted if raw is not None else set()):
                wrong.append(f"{name} has exported {exported}")
        return wrong


@pytest.mark.slow
def test_any_interleaving_ends_as_it_should(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever happened in which order, everything is as a fresh start would compute it."""
    from hypothesis.stateful import run_state_machine_as_test

    Interleavings.make = staticmethod(lambda: tmp_path_factory.mktemp("world"))
    run_state_machine_as_test(
        Interleavings,
        settings=hypothesis_settings(REAL, stateful_step_count=10),
    )
