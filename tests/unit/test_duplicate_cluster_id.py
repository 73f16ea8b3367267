"""Two clusters with one cluster ID: the second one is refused, reported, and writes nothing of the first."""

from __future__ import annotations

import pytest

from mcagent.controller.contract.cluster_uid import CLUSTER_UID_ANNOTATION, REFUSED_UID_ANNOTATION, refuse
from mcagent.controller.leader.members import REFUSED_KEPT
from mcagent.controller.member.networks.discovery import discover_cluster_uid
from mcagent.kube.errors import ApiRefusalError, ApiUnreachableError
from mcagent.model.api.base import Metadata
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as
from tests.worlds.antrea_objects import VERSIONS, written_by
from tests.worlds.control_clusters import Clusters, Member
from tests.worlds.duplicate_clusters import (
    ANNOUNCE,
    FIRST,
    SECOND,
    annotations_of,
    east_of,
    joined,
    ready,
    versions,
    with_uid,
)
from tests.worlds.member_world import AREA, HOME, SET, Answers, conditions_of


def add_twin(world: Clusters) -> Member:
    """Join another cluster as east, with other addresses and a Service more."""
    twin = with_uid(Member("east", world.clock, world.north), SECOND)
    world.members["twin"] = twin
    twin.join()
    twin.node("n9", 9)
    for name, host in (("web", 9), ("db", 8)):
        twin.serve(name, host)
        twin.export(name)
    world.run()
    return twin


def test_a_member_publishes_the_uid_of_its_cluster() -> None:
    """The announcement and the ClusterInfo export have it."""
    world = joined()
    assert annotations_of(world)[CLUSTER_UID_ANNOTATION] == FIRST
    assert world.exports()["east-clusterinfo"]["metadata"]["annotations"][CLUSTER_UID_ANNOTATION] == FIRST


def test_a_second_cluster_is_refused_and_writes_no_export() -> None:
    """Exports keep their versions through heartbeats, restarts and disconnections of the second cluster."""
    world = joined()
    before = versions(world)
    twin = add_twin(world)
    world.wait(60.0)
    twin.restart()
    world.wait(60.0)
    twin.away = True
    twin.link()
    world.wait(60.0)
    twin.away = False
    twin.link()
    world.wait(60.0)
    assert versions(world) == before
    assert annotations_of(world)[CLUSTER_UID_ANNOTATION] == FIRST
    assert ready(world.members["east"]) == ("True", "Connected")
    assert ready(twin) == ("False", "DuplicateClusterID")
    assert world.members["west"].imported() == {"web": {"10.96.200.1"}}
    assert twin.names(Kind.CLUSTER_INFO_IMPORT) == set()


def test_both_sides_name_the_two_uids_and_what_to_do() -> None:
    """The member in its condition and an Event, the leader in the conditions of the cluster and the ClusterSet."""
    world = joined()
    twin = add_twin(world)
    world.wait(20.0)
    (event,) = [event for event in twin.controller.all_events() if event.reason == "DuplicateClusterID"]
    remedies = ("another cluster ID", f"kubectl delete memberclusterannounce -n {AREA} {ANNOUNCE}")
    for text in (FIRST, SECOND, *remedies):
        assert text in event.message
    unique = east_of(world)["UniqueClusterID"]
    assert (unique["status"], unique["reason"]) == ("False", "DuplicateClusterID")
    assert FIRST in unique["message"]
    assert SECOND in unique["message"]
    assert remedies[1] in unique["message"]
    assert east_of(world)["Ready"]["status"] == "True"
    consistent = conditions_of(world.north.get(Kind.CLUSTER_SET, AREA, SET))["Consistent"]
    assert consistent == ("False", "DuplicateClusterID")
    assert "DuplicateClusterID" in {event.reason for event in world.controller.all_events()}


def test_a_refused_cluster_that_leaves_deletes_nothing_of_the_other() -> None:
    """`clusterset join` takes back its ClusterSet when it is refused; the leader's report ends with it."""
    world = joined()
    before = versions(world)
    twin = add_twin(world)
    twin.leave()
    world.wait(30.0)
    assert twin.api.get(Kind.CLUSTER_SET, HOME, SET) is None
    assert versions(world) == before
    assert CLUSTER_UID_ANNOTATION in annotations_of(world)
    assert REFUSED_UID_ANNOTATION not in annotations_of(world)
    assert "UniqueClusterID" not in east_of(world)


def test_a_cluster_that_leaves_before_it_was_answered_deletes_nothing_of_the_other() -> None:
    """A controller that starts after the ClusterSet was deleted asks who holds the ID first."""
    world = joined()
    before = versions(world)
    twin = add_twin(world)
    twin.controller.closed = True
    twin.leave()
    twin.restart()
    world.wait(30.0)
    assert twin.api.get(Kind.CLUSTER_SET, HOME, SET) is None
    assert versions(world) == before


def test_a_cluster_that_is_away_keeps_its_id() -> None:
    """A refused cluster does not take over from a member whose controller or network fails for an hour."""
    world = joined()
    twin, before = add_twin(world), versions(world)
    world.members["east"].away = True
    world.wait(3600.0, step=50.0)
    assert east_of(world)["Ready"]["status"] == "False"
    assert ready(twin) == ("False", "DuplicateClusterID")
    assert versions(world) == before
    world.members["east"].away = False
    world.wait(20.0)
    assert ready(world.members["east"]) == ("True", "Connected")
    assert annotations_of(world)[CLUSTER_UID_ANNOTATION] == FIRST


@pytest.mark.parametrize("restarts", [False, True], ids=["reconnects", "restarts"])
def test_a_rebuilt_cluster_gets_the_id_when_the_announcement_is_deleted(restarts: bool) -> None:
    """As the refusal tells the leader's administrator. The old cluster is refused when it is back."""
    world = joined()
    old, twin = world.members["east"], add_twin(world)
    old.away = True
    world.wait(60.0)
    world.north.remove(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, ANNOUNCE)
    world.wait(20.0)
    assert annotations_of(world)[CLUSTER_UID_ANNOTATION] == SECOND
    assert ready(twin) == ("True", "Connected")
    rebuilt = {"web": {"10.96.200.9"}, "db": {"10.96.200.8"}}
    assert world.members["west"].imported() == rebuilt
    assert "UniqueClusterID" not in east_of(world)
    before = versions(world)
    old.away = False
    if restarts:
        old.restart()
    world.wait(20.0)
    assert ready(old) == ("False", "DuplicateClusterID")
    assert versions(world) == before
    assert world.members["west"].imported() == rebuilt


def test_the_leader_merges_no_cluster_info_of_another_cluster() -> None:
    """Without admission policy, and whatever wrote the export: the ResourceImport keeps its last content."""
    world = joined()
    name = "east-clusterinfo"
    before = world.north.get(Kind.RESOURCE_IMPORT, AREA, name)
    assert before is not None
    world.members["east"].controller.closed = True
    info = {"clusterInfo": {"gatewayInfos": [{"gatewayIP": "192.168.1.99"}]}}
    change = {"metadata": {"annotations": {CLUSTER_UID_ANNOTATION: SECOND}}, "spec": info}
    world.north.change(Kind.RESOURCE_EXPORT, AREA, name, change)
    world.run()
    after = world.north.get(Kind.RESOURCE_IMPORT, AREA, name)
    assert after is not None
    assert after["spec"] == before["spec"]
    (event,) = [event for event in world.controller.all_events() if event.reason == "NotMerged"]
    assert SECOND in event.message
    assert FIRST in event.message


def test_the_report_of_a_refused_cluster_that_is_gone_ends() -> None:
    """The leader removes the UID after a while; a cluster that is still refused writes it again."""
    world = joined()
    twin = add_twin(world)
    world.wait(REFUSED_KEPT + 75.0, step=25.0)
    assert annotations_of(world)[REFUSED_UID_ANNOTATION] == SECOND
    twin.controller.closed = True
    world.wait(REFUSED_KEPT + 75.0, step=25.0)
    assert REFUSED_UID_ANNOTATION not in annotations_of(world)
    assert "UniqueClusterID" not in east_of(world)


@pytest.mark.parametrize("holder", [None, "", SECOND])
def test_an_announcement_without_another_uid_is_written(holder: str | None) -> None:
    """Members of Antrea and of older versions have none."""
    notes = {} if holder is None else {CLUSTER_UID_ANNOTATION: holder}
    for texts, uid in ((notes, SECOND), ({CLUSTER_UID_ANNOTATION: FIRST}, "")):
        announce = MemberClusterAnnounce(metadata=Metadata(namespace=AREA, annotations=texts))
        assert refuse(announce, "east", uid) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_of_antrea_can_be_replaced_by_mcagent(version: str) -> None:
    """Its recorded announcement has no UID, so a migrated cluster keeps its ID."""
    announce = read_as(MemberClusterAnnounce, written_by(version)["member-announce-from-south"])
    assert refuse(announce, "south", FIRST) is None


def test_text_that_is_no_uid_is_not_reported() -> None:
    """A member writes its annotations: what cannot be a UID neither refuses a cluster nor gets into conditions."""
    world = joined()
    for key in (CLUSTER_UID_ANNOTATION, REFUSED_UID_ANNOTATION):
        world.north.change(
            Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, ANNOUNCE, {"metadata": {"annotations": {key: "two\nlines"}}}
        )
    world.run()
    assert "UniqueClusterID" not in east_of(world)
    world.wait(20.0)
    assert annotations_of(world)[CLUSTER_UID_ANNOTATION] == FIRST


def test_the_uid_is_that_of_namespace_kube_system() -> None:
    """A controller that may not read it goes on without; only an API server that is away is waited for."""
    assert discover_cluster_uid(Answers({"metadata": {"name": "kube-system", "uid": FIRST}})) == FIRST
    assert discover_cluster_uid(Answers(ApiRefusalError("forbidden", code=403))) == ""
    assert discover_cluster_uid(Answers({"metadata": {"uid": "two words"}})) == ""
    with pytest.raises(ApiUnreachableError):
        discover_cluster_uid(Answers(ApiUnreachableError("away")))
