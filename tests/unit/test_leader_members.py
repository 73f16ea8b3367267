"""The leader's members: who is one, who is Ready, who has gone. Clocks may say what they like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mcagent.controller.contract import names
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.machinery.reconciler import Index, Object, Side
from mcagent.controller.machinery.view import DeclaredView
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ResourceExport, ResourceImport
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView, change_of
from tests.worlds.leader_world import (
    AREA,
    FLAT,
    SET,
    Leader,
    account,
    announce,
    cluster_info,
    cluster_set,
    endpoints,
    service,
)
from tests.worlds.memory_objects import START, typed

HOUR = 3600.0
KEY = "IRfSjVAaO0TJMcSZSGRCzRRBGD7h5yFXtxrRFCRJJ0A="


class Counting(MemoryView):
    """Counts the exports and imports that are handed out in numbers."""

    handed = 0

    def list(self, cls: type[Object], side: Side = Side.LOCAL, namespace: str | None = None) -> Sequence[Object]:
        """Return all objects of a kind."""
        return self._counted(super().list(cls, side, namespace))

    def indexed(self, index: Index[Object], value: str) -> Sequence[Object]:
        """Return the objects that an index files under a value."""
        return self._counted(super().indexed(index, value))

    def _counted(self, objects: Sequence[Object]) -> Sequence[Object]:
        self.handed += sum(isinstance(obj, ResourceExport | ResourceImport) for obj in objects)
        return objects


def test_a_heartbeat_and_a_write_about_an_export_lead_past_all_other_exports() -> None:
    """Leaders have 50,000 exports, and see heartbeats and their own writes all the time: routing looks at none."""
    members = ("east", "west", "south")
    leader = Leader(*members)
    for number, member in enumerate(members):
        leader.put(service(member), endpoints(member, [f"10.{number}.0.1"]))
    view = Counting(leader.api, namespace=AREA)
    written = leader.api.get(Kind.RESOURCE_EXPORT, AREA, "east-default-nginx-endpoints")
    assert written is not None
    changes = {
        Kind.MEMBER_CLUSTER_ANNOUNCE: (announce("east", START), announce("east", START + 10)),
        Kind.RESOURCE_EXPORT: ({**written, "status": {}}, written),
    }
    keys: dict[str, list[str]] = {}
    for kind, (old, new) in changes.items():
        change = change_of(kind, old, new)
        for reconciler in leader.controller.reconcilers:
            if kind in reconciler.reads.on(Side.LOCAL):
                keys[f"{reconciler.name} {kind}"] = list(reconciler.keys(change, DeclaredView(view, reconciler)))
    assert keys["service-merge ResourceExport"] == [f"{AREA}/default/nginx"]
    assert view.handed == 0


def test_an_announcement_gets_the_finalizer_of_the_contract() -> None:
    """A member cannot vanish before what it exported is removed."""
    leader = Leader("east")
    announcement = leader.api.get(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, "member-announce-from-east")
    assert announcement is not None
    assert announcement["metadata"]["finalizers"] == ["memberclusterannounce.finalizer.antrea.io/east"]


def test_status_counts_members_in_the_words_of_the_contract() -> None:
    """Totals, each member's Ready with its reason, and the whole's Ready without one."""
    leader = Leader("west", "east")
    status = leader.status()
    assert (status["totalClusters"], status["readyClusters"], status["observedGeneration"]) == (2, 2, 1)
    assert [item["clusterID"] for item in status["clusterStatuses"]] == ["east", "west"]
    ready = leader.ready("east")
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "True", "Connected")
    assert status["conditions"][0]["type"] == "Ready"
    assert status["conditions"][0]["status"] == "True"
    assert "reason" not in status["conditions"][0]
    assert "message" not in status["conditions"][0]
    assert Leader().status()["conditions"][0]["message"] == "no cluster has announced itself yet"


def test_a_silent_member_is_not_ready_after_the_timeout() -> None:
    """Without a heartbeat for 30 s a member is Disconnected, with the time at which its exports will go."""
    leader = Leader("east", "west")
    leader.forward(60, "west")
    ready = leader.ready("east")
    assert (ready["status"], ready["reason"]) == ("False", "Disconnected")
    assert ready["message"].startswith("No MemberClusterAnnounce update after 2023-11-14T22:13:20Z; ")
    assert ready["message"].endswith("removed at 2023-11-15T22:13:50Z")
    status = leader.status()
    assert (status["readyClusters"], status["conditions"][0]["reason"]) == (1, "NoReadyCluster")
    assert leader.ready("west")["status"] == "True"


def test_a_member_that_returns_is_ready_again() -> None:
    """The next heartbeat makes it Ready at once."""
    leader = Leader("east")
    leader.forward(100)
    assert leader.ready("east")["status"] == "False"
    leader.put(announce("east", leader.clock.now))
    assert leader.ready("east")["status"] == "True"


@pytest.mark.parametrize("skew", [-10 * 365 * 24 * HOUR, -HOUR, 30.0, HOUR, 10 * 365 * 24 * HOUR])
def test_a_members_clock_does_not_matter(skew: float) -> None:
    """A member whose clock is years off is as good as any."""
    leader = Leader()
    for step in range(20):
        leader.put(announce("east", START + skew + 10 * step))
        leader.forward(10)
        assert leader.ready("east")["status"] == "True"
    assert leader.api.get(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("east")) is not None


@pytest.mark.parametrize("step", [-30 * 24 * HOUR, -60.0, 60.0, 30 * 24 * HOUR])
def test_a_step_of_the_leaders_clock_loses_nobody(step: float) -> None:
    """Wall time that jumps changes no member's status, and removes nobody."""
    leader = Leader("east", "west")
    leader.forward(20, "east", "west")
    before = leader.api.objects()
    for reconciler in leader.controller.reconcilers:
        for key in reconciler.all_keys(leader.view):
            outcome = reconciler.desired(key, leader.view, leader.clock.now + step)
            leader.controller._carry_out(reconciler, key, outcome)
    assert leader.api.objects() == before


def test_a_heartbeat_is_no_write_of_the_leader() -> None:
    """250 members' heartbeats cost the leader not one write."""
    members = [f"c{number:03d}" for number in range(250)]
    leader = Leader(*members)
    leader.api.writes.clear()
    for member in members:
        leader.put(announce(member, START + 10))
    assert leader.api.writes == []


def test_a_restarted_leader_still_knows_who_is_away() -> None:
    """Who was Disconnected stays so, since when it was, until it is heard."""
    leader = Leader("east")
    leader.forward(50)
    away = leader.ready("east")
    leader.start()
    leader.api.changes.clear()  # a new process has seen nothing yet
    leader.settle()
    leader.forward(20)
    assert leader.ready("east") == away
    leader.put(announce("east", leader.clock.now))
    assert leader.ready("east")["status"] == "True"


def test_a_member_away_for_too_long_is_removed_with_its_exports() -> None:
    """After staleAfter the announcement, its exports and their share of the imports are gone."""
    leader = Leader(
        "east", "west", settings=LeaderSettings(namespace="", stale_after=600, allowed_endpoint_cidrs=FLAT)
    )
    for cluster, ip in (("east", "10.1.0.1"), ("west", "10.2.0.1")):
        leader.put(service(cluster), endpoints(cluster, [ip]))
    leader.forward(620, "west")
    assert leader.addresses() == ["10.1.0.1", "10.2.0.1"]
    assert "MemberRemoved" not in {event.reason for event in leader.controller.past_events}
    leader.forward(60, "west")
    assert leader.addresses() == ["10.2.0.1"]
    (event,) = {event for event in leader.controller.past_events if event.reason == "MemberRemoved"}
    assert event.subject == f"MemberClusterAnnounce {AREA}/member-announce-from-east"
    assert event.message == "cluster east has been away for 600 s: no longer a member"
    assert leader.status()["totalClusters"] == 1
    assert {o["spec"]["clusterID"] for o in leader.api.list(Kind.RESOURCE_EXPORT)} == {"west"}


def test_leaving_removes_all_exports_then_the_finalizer() -> None:
    """An announcement is held until the last export of its member has gone."""
    leader = Leader("east", "west")
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]), cluster_info("east", "10.1.0.0/16"))
    leader.leave("east")
    assert leader.api.list(Kind.RESOURCE_EXPORT) == []
    assert leader.api.list(Kind.RESOURCE_IMPORT) == []
    assert leader.api.get(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("east")) is None
    order = [w for w in leader.api.writes if w.startswith(("delete ResourceExport", "update MemberCluster"))]
    assert order[-1] == f"update MemberClusterAnnounce {AREA}/member-announce-from-east"


def test_rejoining_is_a_fresh_join() -> None:
    """A cluster that left and joins again is Ready, and exports as before."""
    leader = Leader("east")
    leader.leave("east")
    leader.put(announce("east"), service("east"), endpoints("east", ["10.1.0.1"]))
    assert leader.ready("east")["status"] == "True"
    assert leader.addresses() == ["10.1.0.1"]


def test_exports_of_who_is_no_member_do_not_count() -> None:
    """An export of a cluster that never announced itself is refused, and taken once it has."""
    leader = Leader("east")
    leader.put(service("west"))
    assert leader.imported("default-nginx-service") is None
    assert "west has not announced itself" in leader.verdict("west-default-nginx-service")["message"]
    leader.put(announce("west"))
    assert leader.imported("default-nginx-service") is not None
    assert leader.verdict("west-default-nginx-service")["type"] == "Succeeded"


def test_an_announcement_to_another_clusterset_is_no_member() -> None:
    """Who names another ClusterSet is not counted."""
    leader = Leader("east")
    leader.put(announce("west", cluster_set="elsewhere"))
    assert leader.status()["totalClusters"] == 1


def test_several_clustersets_in_several_namespaces() -> None:
    """Two Common Areas of one leader have nothing to do with each other."""
    leader = Leader("east")
    leader.put(cluster_set("mcs-b", "set-b"), announce("east", area="mcs-b", cluster_set="set-b"))
    leader.api.put({"kind": "Namespace", "metadata": {"name": "mcs-b"}})
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]))
    leader.put(service("east", ports=81, area="mcs-b"), endpoints("east", ["10.9.0.1"], area="mcs-b"))
    assert leader.addresses() == ["10.1.0.1"]
    assert leader.addresses(area="mcs-b") == ["10.9.0.1"]
    assert leader.status("mcs-b", "set-b")["totalClusters"] == 1
    leader.leave("east")
    assert leader.addresses() == []
    assert leader.addresses(area="mcs-b") == ["10.9.0.1"]


def of_v1alpha1(claim: str) -> tuple[RawObject, RawObject]:
    """Return a leader's ClusterSet without clusterID, as v1alpha1 has it, and the ClusterClaim of its cluster."""
    old = cluster_set()
    del old["spec"]["clusterID"]
    named = {"kind": "ClusterClaim", "metadata": {"name": "id.k8s.io", "namespace": AREA}, "value": claim}
    return old, named


def test_a_leader_of_v1alpha1_gets_its_cluster_id_from_the_claim() -> None:
    """In either order, and with the status as always; a claim that names another cluster changes nothing."""
    old, claim = of_v1alpha1("north")
    for first, second in ((old, claim), (claim, old)):
        leader = Leader("east")
        leader.api.remove(Kind.CLUSTER_SET, AREA, SET)
        leader.controller.run()
        leader.put(first)
        leader.put(second)
        stored_set = leader.api.get(Kind.CLUSTER_SET, AREA, SET)
        assert stored_set is not None
        assert stored_set["spec"] == {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
        assert stored_set["status"]["readyClusters"] == 1
    leader = Leader("east")
    leader.api.remove(Kind.CLUSTER_SET, AREA, SET)
    leader.put(*of_v1alpha1("south"))
    stored_set = leader.api.get(Kind.CLUSTER_SET, AREA, SET)
    assert stored_set is not None
    assert "clusterID" not in stored_set["spec"]


def test_the_members_clusterset_of_a_dual_role_cluster_is_not_the_leaders() -> None:
    """A ClusterSet with a server and a Secret is the member controller's to write."""
    member = cluster_set("kube-system")
    member["spec"]["leaders"][0] |= {"server": "https://10.0.0.1:6443", "secret": "token"}
    leader = Leader("east")
    leader.put(member)
    found = leader.api.get(Kind.CLUSTER_SET, "kube-system", SET)
    assert found is not None
    assert "status" not in found
    assert typed(cluster_set()).is_leaders
    assert not typed({"kind": "ClusterSet", "metadata": {}, "spec": {"leaders": ["x"]}}).is_leaders


def test_members_without_a_list_of_cidrs_stand_in_the_status() -> None:
    """An annotation of the ServiceAccount ends that, as does a list for all members; "*" is no list."""

    def limited() -> tuple[str, str]:
        condition = leader.status()["conditions"][2]
        assert condition["type"] == "CIDRsLimited"
        return condition["status"], condition.get("message", "")

    leader = Leader("east", "west")
    assert limited()[0] == "False"
    assert limited()[1].startswith("no list for east, west, which may claim every private network")
    leader.put(account("west", allowed_cidrs="10.2.0.0/16"), account("east", allowed_cidrs="*"))
    assert limited()[1].startswith("no list for east, which")
    leader.put(account("east", allowed_cidrs="10.1.0.0/16"))
    assert limited() == ("True", "")
    for limits in (MemberLimits(allowed_cidrs=("10.0.0.0/8",)), MemberLimits(cluster_cidrs=("10.0.0.0/8",))):
        leader = Leader("east", "west")
        leader.settings = replace(leader.settings, limits=limits)
        leader.start()
        leader.settle()
        assert limited() == ("True", "")


def test_overlaps_and_mixed_encryption_stand_in_the_status_with_names() -> None:
    """The ClusterSet's Consistent condition names which CIDRs of which clusters overlap, and who encrypts."""
    leader = Leader("east", "west", "south")
    leader.put(cluster_info("east", "10.1.0.0/16"), cluster_info("west", "10.2.0.0/16", key=KEY))
    leader.put(cluster_info("south", "10.3.0.0/16", ["10.2.128.0/17"]))
    condition = leader.status()["conditions"][1]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Consistent",
        "False",
        "OverlappingCIDRs",
    )
    assert "Service CIDR 10.2.0.0/16 of west overlaps Pod CIDR 10.2.128.0/17 of south" in condition["message"]
    assert "WireGuard is on in west and off in east, south" in condition["message"]
    leader.put(cluster_info("south", "10.3.0.0/16", key=KEY), cluster_info("east", "10.1.0.0/16", key=KEY))
    assert leader.status()["conditions"][1]["status"] == "True"


def test_settings_that_differ_stand_in_the_status() -> None:
    """Where clusters say how they are configured, differences are named; a cluster that says nothing is none."""
    leader = Leader("east", "west", "south")
    for cluster, number, text in (("east", 1, "ClusterIP"), ("west", 2, "PodIP"), ("south", 3, "")):
        info = cluster_info(cluster, f"10.{number}.0.0/16")
        info["metadata"]["annotations"] = {names.ENDPOINT_IP_TYPE_ANNOTATION: text} if text else {}
        leader.put(info)
    condition = leader.status()["conditions"][1]
    assert condition["reason"] == "SettingsDiffer"
    assert condition["message"] == "endpointIPType is ClusterIP in east, PodIP in west"
    again = cluster_info("west", "10.2.0.0/16")
    again["metadata"]["annotations"] = {names.ENDPOINT_IP_TYPE_ANNOTATION: "ClusterIP"}
    leader.put(again)
    assert leader.status()["conditions"][1]["status"] == "True"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("leaderClusterID", "south", "west names cluster south as the leader"),
        ("clusterSetID", "other", "west announces itself to ClusterSet other"),
    ],
)
def test_an_announcement_to_another_leader_stands_in_the_status(field: str, value: str, message: str) -> None:
    """Without a webhook, which refuses it, the leader's administrators learn of it in a condition and an Event."""
    leader = Leader("east", "west")
    wrong = announce("west", START)
    leader.put({**wrong, field: value})
    condition = leader.status()["conditions"][1]
    assert (condition["status"], condition["reason"], condition["message"]) == ("False", "NoMember", message)
    leader.put(announce("west", START + 10))
    assert leader.status()["conditions"][1]["reason"] != "NoMember"


def test_an_announcement_with_the_cluster_id_of_no_account_stands_in_the_status() -> None:
    """Where accounts have cluster IDs, one that none of them has is not the member's own."""
    leader = Leader("east", "west")
    leader.put(account("east"), account("wset"))
    condition = leader.status()["conditions"][1]
    assert (condition["status"], condition["reason"]) == ("False", "NoMember")
    assert condition["message"].startswith("west is the cluster ID of no ServiceAccount")
    leader.put(account("west"))
    assert leader.status()["conditions"][1]["reason"] != "NoMember"


def test_fifty_members_joining_at_once_settle_in_few_writes() -> None:
    """Each member costs its finalizer; the status is written once for all that is in the queue."""
    leader = Leader()
    leader.api.writes.clear()
    for number in range(50):
        leader.api.put(announce(f"c{number}"))
    leader.controller.run()
    assert len(leader.api.writes) <= 55
    assert leader.status()["totalClusters"] == 50


@pytest.mark.parametrize(
    "junk",
    [
        {"clusterID": 7},
        {"clusterID": "", "clusterSetID": SET},
        {"clusterID": {"a": []}, "clusterSetID": []},
        {"clusterID": "west", "clusterSetID": SET, "metadata": {"annotations": {"touch-ts": 5}}},
    ],
)
def test_a_bad_announcement_stops_nobody(junk: dict[str, object]) -> None:
    """Whatever stands in one announcement, the other members are served."""
    leader = Leader("east")
    bad = announce("bad")
    leader.api.put({**bad, **junk, "metadata": {**bad["metadata"]}})
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]))
    assert leader.status()["totalClusters"] == 1
    assert leader.addresses() == ["10.1.0.1"]


def test_a_fresh_controller_has_nothing_to_do() -> None:
    """Starting anew over a settled API writes nothing."""
    leader = Leader("east", "west")
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]), cluster_info("west", "10.2.0.0/16"))
    leader.api.writes.clear()
    controller = Controller(MemoryView(leader.api, namespace=AREA), leader_reconcilers(leader.settings))
    controller.settle()
    assert leader.api.writes == []
