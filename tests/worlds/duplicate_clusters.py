"""Two clusters with one cluster ID, and the leader that has to tell them apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcagent.model.objects import Kind
from tests.worlds.control_clusters import Clusters, Member
from tests.worlds.member_world import AREA, HOME, SET, conditions_of

FIRST, SECOND = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
ANNOUNCE = "member-announce-from-east"


def with_uid(member: Member, uid: str) -> Member:
    """Give a cluster a UID."""
    member.settings = replace(member.settings, cluster_uid=uid)
    member.restart()
    return member


def joined() -> Clusters:
    """Return a ClusterSet of east and west; east exports web."""
    world = Clusters(["east", "west"])
    world.leader_settings = replace(world.leader_settings, stale_after=86400.0)
    world.restart_leader()
    for number, member in enumerate(world.members.values()):
        with_uid(member, FIRST if number == 0 else "west-uid")
        member.join()
        member.node("n1", 1)
        member.serve("web", 1)
    world.members["east"].export("web")
    world.run()
    return world


def annotations_of(world: Clusters) -> dict[str, str]:
    """Return the annotations of east's announcement."""
    announce = world.north.get(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, ANNOUNCE)
    assert announce is not None
    return dict(announce["metadata"]["annotations"])


def ready(member: Member) -> tuple[str, str]:
    """Return status and reason of Ready of a member's ClusterSet."""
    return conditions_of(member.api.get(Kind.CLUSTER_SET, HOME, SET))["Ready"]


def east_of(world: Clusters) -> dict[str, Any]:
    """Return the conditions of east on the leader, by type."""
    cluster_set = world.north.get(Kind.CLUSTER_SET, AREA, SET)
    assert cluster_set is not None
    (east,) = [item for item in cluster_set["status"]["clusterStatuses"] if item["clusterID"] == "east"]
    return {condition["type"]: condition for condition in east["conditions"]}


def versions(world: Clusters) -> dict[str, str]:
    """Return the versions of all ResourceExports."""
    return {name: raw["metadata"]["resourceVersion"] for name, raw in world.exports().items()}
