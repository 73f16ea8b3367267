"""Endpoints of an export that no other cluster has: the ServiceExport has their number and the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mcagent.controller.admin.listing import rows
from mcagent.controller.settings import EndpointIpType, MemberLimits
from mcagent.model.objects import Kind
from tests.worlds.control_clusters import Clusters
from tests.worlds.member_world import service, settings, slice_of

LIMIT = 20
OWN = [f"10.96.250.{host}" for host in range(1, 31)]  # in the Service CIDR, which the leader lets east claim
FOREIGN = [f"10.10.1.{host}" for host in range(1, 11)]  # of no cluster


def world_of(*names: str) -> Clusters:
    """Return a ClusterSet of these members, whose leader takes LIMIT endpoints of one Service."""
    world = Clusters(names)
    world.leader_settings = replace(world.leader_settings, limits=MemberLimits(max_endpoints=LIMIT))
    world.restart_leader()
    for name, member in world.members.items():
        changes = {"service_cidr": member.service_cidr, "endpoint_ip_type": EndpointIpType.POD_IP}
        member.settings = settings(**changes)
        member.restart()
        member.join()
        member.node(f"{name}-1", 1)
    world.run()
    return world


def export(world: Clusters, name: str, addresses: Sequence[str], port: tuple[str, int] = ("http", 80)) -> None:
    """Export the headless Service db of a member with these endpoints."""
    member = world.members[name]
    member.api.put(service("db", port, cluster_ip="None"))
    member.api.put(slice_of("db", *addresses, ports=((port[0], port[1]),)))
    member.export("db")
    world.run()


def ready_message(world: Clusters, name: str) -> str:
    """Return the message of Ready of the ServiceExport, which is True."""
    raw = world.members[name].api.get(Kind.SERVICE_EXPORT, "shop", "db")
    assert raw is not None
    (ready,) = [item for item in raw["status"]["conditions"] if item["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("True", "Exported")
    return str(ready["message"])


def left_out(message: str) -> int:
    """Return the sum of the numbers of endpoints in a message."""
    return sum(map(int, re.findall(r"(\d+) endpoints are left out", message)))


@pytest.mark.parametrize(
    "addresses",
    [OWN[:LIMIT], OWN[: LIMIT + 1], OWN, OWN[:5] + FOREIGN, OWN + FOREIGN],
    ids=["at the limit", "one too many", "ten too many", "in no CIDR", "both"],
)
def test_imported_and_left_out_endpoints_are_all_that_are_exported(addresses: Sequence[str]) -> None:
    """Whatever is left out by the leader, the exporter's condition accounts for it."""
    world = world_of("east", "west")
    export(world, "east", addresses)
    message = ready_message(world, "east")
    imported = world.members["west"].imported()["db"]
    assert len(imported) + left_out(message) == len(addresses)
    assert ("members.maxEndpoints" in message) == (len(set(addresses) & set(OWN)) > LIMIT)
    assert ("10.10.1.1 is not used" in message) == bool(set(addresses) & set(FOREIGN))
    if len(addresses) <= LIMIT and addresses == OWN[:LIMIT]:
        assert message == ""


def test_the_message_ends_when_nothing_is_left_out_any_more() -> None:
    """It follows the endpoints, without a change of the ServiceExport."""
    world = world_of("east", "west")
    export(world, "east", OWN)
    assert left_out(ready_message(world, "east")) == 10
    export(world, "east", OWN[:LIMIT])
    assert ready_message(world, "east") == ""


def test_endpoints_whose_ports_an_older_export_defines_otherwise_are_counted() -> None:
    """Two ports with one number and two names: the younger export has no port, so no endpoint."""
    world = world_of("east", "west")
    export(world, "east", OWN[:3])
    world.clock.forward(10.0)
    export(world, "west", ["10.97.250.1", "10.97.250.2"], ("web", 80))
    assert left_out(ready_message(world, "west")) == 2
    assert ready_message(world, "east") == ""


def test_a_cluster_ip_of_a_second_service_cidr_is_no_conflict() -> None:
    """The leader refuses it: Ready says what to do, which serviceCIDR cannot, and no other cluster is to blame."""
    world = world_of("east", "west")
    east = world.members["east"]
    east.settings = replace(east.settings, endpoint_ip_type=EndpointIpType.CLUSTER_IP, pod_cidrs=("10.10.0.0/16",))
    east.restart()
    east.api.put(service("db", cluster_ip="10.111.0.7"))
    east.api.put(slice_of("db", "10.10.1.1"))
    east.export("db")
    world.run()
    raw = east.api.get(Kind.SERVICE_EXPORT, "shop", "db")
    assert raw is not None
    by_type = {item["type"]: item for item in raw["status"]["conditions"]}
    assert {name: (item["status"], item["reason"]) for name, item in by_type.items()} == {
        "Valid": ("True", "Valid"),
        "Ready": ("False", "Failed"),
        "Conflict": ("False", "NoConflicts"),
    }
    for text in ("10.111.0.7", "10.96.0.0/16", "spec.clusterIP of the first", "endpointIPType: PodIP"):
        assert text in by_type["Ready"]["message"]
    ((*_, message),) = rows("serviceexport", [raw], 0.0, wide=True)
    assert message == by_type["Ready"]["message"]
