"""A copy of a member, with its UID, ClusterSet and token: the later one stops, and all three clusters report it.

Processes of one cluster take over from each other: after a stop at once, after a crash when no heartbeat comes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcagent.controller.contract.conditions import FALSE, TRUE, UNKNOWN
from mcagent.controller.contract.instances import (
    DUPLICATE_SILENCE,
    INSTANCE_ANNOTATION,
    REFUSED_INSTANCE_ANNOTATION,
    AnnouncementHolder,
    instance_text,
    is_waiting,
    read_instance,
)
from mcagent.controller.machinery.apply import RefusedStepError, plan
from mcagent.controller.member.announce import released_announcement
from mcagent.model.api.base import Metadata
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as
from tests.worlds.antrea_objects import VERSIONS, written_by
from tests.worlds.control_clusters import Clusters, Member
from tests.worlds.duplicate_clusters import ANNOUNCE, FIRST, annotations_of, east_of, joined, ready, versions
from tests.worlds.member_world import AREA, HOME, SET, conditions_of

HOLDING = 30.0  # seconds: three heartbeats
DUPLICATE = (FALSE, "DuplicateClusterID")
CONNECTED = (TRUE, "Connected")


def start(member: Member, instance: str) -> None:
    """Start another process of a cluster's controller; the one before crashes."""
    member.settings = replace(member.settings, cluster_uid=FIRST, instance=instance)
    member.restart()


def original() -> Clusters:
    """Return a ClusterSet of east and west, each announced by a process with an instance."""
    world = joined()
    for name, member in world.members.items():
        member.settings = replace(member.settings, instance=f"{name}-1")
        member.restart()
    world.wait(HOLDING + 10.0)
    return world


def copy_of_east(world: Clusters, *, statuses: bool = True) -> Member:
    """Start a copy of east: the same objects of its API server, and the same settings, in another process."""
    east = world.members["east"]
    copied = Member("east", world.clock, world.north)
    for (kind, _, _), raw in east.api.objects().items():
        if kind is not Kind.CLUSTER_SET or statuses:
            copied.api.put({"kind": str(kind), **raw})
    if not statuses:
        copied.join()
    copied.node("n1", 9)
    copied.serve("web", 9)
    world.members["copy"] = copied
    start(copied, "copy-1")
    world.run()
    return copied


@pytest.mark.parametrize("statuses", [True, False], ids=["from a backup", "joined anew"])
def test_a_copy_of_a_member_writes_nothing(statuses: bool) -> None:
    """Through heartbeats, restarts and disconnections of the copy the exports keep their versions."""
    world = original()
    before = versions(world)
    copied = copy_of_east(world, statuses=statuses)
    assert ready(copied) == (UNKNOWN, "NotAnnounced")
    world.wait(60.0)
    assert ready(copied) == DUPLICATE
    start(copied, "copy-2")
    world.wait(120.0)
    copied.away = True
    copied.link()
    world.wait(60.0)
    copied.away = False
    copied.link()
    world.wait(60.0)
    assert ready(copied) == DUPLICATE
    assert ready(world.members["east"]) == CONNECTED
    assert versions(world) == before
    assert annotations_of(world)[INSTANCE_ANNOTATION] == instance_text("east-1", 10.0)


def test_both_clusters_and_the_leader_say_that_there_is_a_copy() -> None:
    """Each in an Event, the copy also in its condition, and the leader in two conditions."""
    world = original()
    copied = copy_of_east(world)
    world.wait(60.0)
    for controller in (copied.controller, world.members["east"].controller, world.controller):
        (message,) = {event.message for event in controller.all_events() if event.reason == "DuplicateClusterID"}
        assert "copy" in message
        assert "copy-1" in message
    (event,) = [e for e in copied.controller.all_events() if e.reason == "DuplicateClusterID"]
    assert f"kubectl delete memberclusterannounce -n {AREA} {ANNOUNCE}" in event.message
    unique = east_of(world)["UniqueClusterID"]
    assert (unique["status"], unique["reason"]) == DUPLICATE
    assert f"kubectl delete memberclusterannounce -n {AREA} {ANNOUNCE}" in unique["message"]
    assert conditions_of(world.north.get(Kind.CLUSTER_SET, AREA, SET))["Consistent"] == DUPLICATE


def test_a_restart_of_the_original_gives_the_copy_no_chance() -> None:
    """The copy waits for an hour without a heartbeat; an upgrade of the original takes a minute."""
    world = original()
    before = versions(world)
    copied = copy_of_east(world)
    world.wait(60.0)
    east = world.members["east"]
    stop(world, east)
    world.wait(90.0)
    start(east, "east-2")
    world.wait(60.0)
    assert ready(east) == CONNECTED
    assert ready(copied) == DUPLICATE
    assert versions(world) == before


def stop(world: Clusters, member: Member) -> None:
    """Stop a controller as SIGTERM does: it writes its last writes."""
    member.controller.closed = True
    world.north.caller = member.user
    for wanted in released_announcement(member.view, member.settings):
        world.north.carry_out(wanted)


def test_the_next_process_of_a_cluster_announces_it_at_once_after_a_stop() -> None:
    """An upgrade, and another replica that gets the Lease, wait for nothing."""
    world = original()
    east = world.members["east"]
    stop(world, east)
    assert INSTANCE_ANNOTATION not in annotations_of(world)
    start(east, "east-2")
    world.run()
    assert ready(east) == CONNECTED
    assert annotations_of(world)[INSTANCE_ANNOTATION] == instance_text("east-2", 10.0)


def test_the_next_process_of_a_cluster_announces_it_after_a_crash() -> None:
    """When no heartbeat has come for three periods; no exports change, and nobody has to do anything."""
    world = original()
    before = versions(world)
    east = world.members["east"]
    start(east, "east-2")
    world.run()
    assert ready(east) == (UNKNOWN, "NotAnnounced")
    world.wait(HOLDING + 5.0)
    assert ready(east) == CONNECTED
    assert versions(world) == before
    assert {e.reason for e in east.controller.past_events} & {"DuplicateClusterID", "AnnounceFailed"} == set()


def test_a_cluster_that_was_restored_elsewhere_goes_on_when_the_original_is_gone() -> None:
    """With the UID of the backup: nobody has to delete the announcement."""
    world = original()
    world.members["east"].controller.closed = True
    copied = copy_of_east(world)
    world.wait(HOLDING + 10.0)
    assert ready(copied) == CONNECTED
    assert world.members["west"].imported() == {"web": {"10.96.200.9"}}
    assert "UniqueClusterID" not in east_of(world)


def test_a_copy_goes_on_an_hour_after_the_original_is_gone() -> None:
    """Or as soon as the leader's administrator deletes the announcement, as the message says."""
    world = original()
    copied = copy_of_east(world)
    world.wait(60.0)
    world.members["east"].controller.closed = True
    world.wait(DUPLICATE_SILENCE - 120.0, step=60.0)
    assert ready(copied) == DUPLICATE
    world.wait(240.0, step=20.0)
    assert ready(copied) == CONNECTED
    assert REFUSED_INSTANCE_ANNOTATION not in annotations_of(world)
    assert "UniqueClusterID" not in east_of(world)
    assert "DuplicateClusterID" not in {event.reason for event in copied.controller.all_events()}


def test_the_leaders_administrator_decides_for_the_copy() -> None:
    """After the announcement is deleted while the original is stopped, the copy is the member."""
    world = original()
    copied = copy_of_east(world)
    world.wait(60.0)
    world.members["east"].controller.closed = True
    world.north.remove(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, ANNOUNCE)
    world.wait(30.0)
    assert ready(copied) == CONNECTED


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "restarts"])
def test_an_original_that_comes_back_after_the_takeover_is_the_copy(restarts: bool) -> None:
    """It was silent for longer than it holds the announcement: it is the later one, and stops."""
    world = original()
    east = world.members["east"]
    east.away = True
    east.link()
    copied = copy_of_east(world)
    world.wait(HOLDING + 10.0)
    assert ready(copied) == CONNECTED
    before = versions(world)
    east.away = False
    if restarts:
        start(east, "east-2")
    world.wait(60.0)
    assert ready(east) == DUPLICATE
    assert ready(copied) == CONNECTED
    assert versions(world) == before


def test_a_copy_that_leaves_deletes_nothing_of_the_original() -> None:
    """Also if its controller restarts meanwhile; the leader's report ends with it."""
    world = original()
    before = versions(world)
    copied = copy_of_east(world)
    world.wait(60.0)
    copied.controller.closed = True
    copied.leave()
    start(copied, "copy-2")
    world.wait(30.0)
    assert copied.api.get(Kind.CLUSTER_SET, HOME, SET) is None
    assert versions(world) == before
    assert REFUSED_INSTANCE_ANNOTATION not in annotations_of(world)
    assert "UniqueClusterID" not in east_of(world)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_announcement_of_antrea_is_taken_over_at_once(version: str) -> None:
    """Antrea writes no instance, so a migrated cluster waits for nothing, whoever wrote heartbeats."""
    holder = AnnouncementHolder("east-1")
    announce = written_by(version)["member-announce-from-south"]
    for now in (0.0, 1.0):
        announce["metadata"].setdefault("annotations", {})["touch-ts"] = str(now)
        assert holder.refuse(read_as(MemberClusterAnnounce, announce), "south", now, duplicate=False) is None


def test_clocks_of_two_clusters_are_not_compared() -> None:
    """A heartbeat that is years old or in the future counts from when this process saw it first."""
    for beat in ("1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "no time"):
        holder = AnnouncementHolder("east-2")
        notes = {INSTANCE_ANNOTATION: "east-1 30", "touch-ts": beat}
        announce = MemberClusterAnnounce(metadata=Metadata(namespace=AREA, annotations=notes))
        refusals = [holder.refuse(announce, "east", now, duplicate=False) for now in (500.0, 529.0, 530.0)]
        assert [refusal is None for refusal in refusals] == [False, False, True]


@pytest.mark.parametrize("text", ["", "two words 30", "x" * 65 + " 30", "x 30\n", "x -1", "x 1e9", "x " + "9" * 6])
def test_text_that_is_no_instance_holds_nothing(text: str) -> None:
    """Only the cluster's own token writes it, and at most three times the longest heartbeat period is believed."""
    assert read_instance(text) == ("", 0.0)
    assert read_instance("x 99999") == ("x", 10800.0)


def test_one_late_heartbeat_is_no_other_cluster() -> None:
    """A write of a process that crashed may arrive late: only the second one shows that the process still runs."""
    holder, reasons = AnnouncementHolder("east-2"), []
    for now, beat in enumerate(("1", "2", "3")):
        notes = {INSTANCE_ANNOTATION: "east-1 30", "touch-ts": beat}
        announce = MemberClusterAnnounce(metadata=Metadata(namespace=AREA, annotations=notes))
        refusal = holder.refuse(announce, "east", 10.0 * now, duplicate=False)
        assert refusal is not None
        reasons.append(is_waiting(refusal.reason))
    assert reasons == [True, True, False]


def test_a_process_releases_only_its_own_announcement() -> None:
    """One that lost the Lease before leaves the announcement of the next process as it is."""
    world = original()
    (wanted,) = released_announcement(world.members["east"].view, world.members["east"].settings)
    present = world.north.get(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, ANNOUNCE)
    assert present is not None
    assert plan(wanted, present) is not None
    present = {**present, "metadata": {**present["metadata"], "annotations": {INSTANCE_ANNOTATION: "east-2 30"}}}
    with pytest.raises(RefusedStepError):
        plan(wanted, present)
