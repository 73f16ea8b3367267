"""Clusters whose Pods reach each other without tunnels: endpointIPType PodIP, and no podCIDRs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from mcagent.controller.contract import names
from mcagent.doctor.check import run
from mcagent.doctor.checks.cluster import exports
from mcagent.doctor.examined import ExaminedCluster
from mcagent.model.config import Config
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.antrea.clusters import AREA, OURS, Cluster, Json
from tests.antrea.running import checked
from tests.antrea.suite import has
from tests.antrea.worlds import Member, World, running, soon

V1, V2 = "v1.14.3", "v2.4.0"
KEY = "allowedEndpointCIDRs"


def pod_of(member: Member) -> str:
    """Return the address of a Pod, which no cluster announces."""
    return f"10.{200 + member.cluster.number}.1.5"


def export(world: World, name: str) -> None:
    """Export a Service of each cluster."""
    for member in world.members:
        member.cluster.service(f"{name}-{member.name}", [pod_of(member)])
        member.cluster.export(f"{name}-{member.name}")


def everywhere(world: World, name: str) -> None:
    """Wait until each cluster's Service leads to its Pod from all others."""
    for here, other in world.pairs():
        imported = f"{name}-{other.name}"
        soon(partial(has, here.cluster, imported, pod_of(other)), f"{imported} to be imported in {here.name}")


def said_to(member: Member, leader: Cluster, name: str) -> str:
    """Return what a leader of ours says of a member's endpoints: to ours at its ServiceExport, too."""
    if member.ours:
        export = member.cluster.get(Kind.SERVICE_EXPORT, name, "default")
    else:
        export = leader.get(Kind.RESOURCE_EXPORT, names.endpoints_export(member.name, "default", name), AREA)
    conditions: list[Json] = (export or {}).get("status", {}).get("conditions", [])
    return " ".join(item.get("message", "") for item in conditions if item["status"] == "False")


def events(cluster: Cluster, name: str) -> str:
    """Return what Events say of an imported Service."""
    events = cluster.client.request("GET", object_path(Kind.EVENT, "default"))["items"]
    return " ".join(item["message"] for item in events if item["involvedObject"]["name"] == names.imported(name))


def doctor_says(cluster: Cluster) -> bool:
    """Tell whether `mcagent doctor` names the key."""
    examined = ExaminedCluster(cluster.client, Config(node_name="any"))
    return any(KEY in finding.do for finding in run(exports.CHECK, exports.examine, examined))


@pytest.mark.parametrize(
    ("leader", "whose"), [(OURS, (OURS, V1, V2)), (V1, (V1, OURS)), (V2, (V2, OURS))], ids=["ours", V1, V2]
)
def test_pods_that_are_reached_without_tunnels(
    leader: str, whose: Sequence[str], program: Callable[[str], Path], tmp_path: Path
) -> None:
    """Controllers of ours refuse them and name the key; with it they are reached, with gateways and without."""
    with running(leader, whose, tmp_path, program, endpointIPType="PodIP", podCIDRs=[]) as world:
        world.lead()
        world.join(world.members)
        export(world, "web")
        for member in world.members:
            if leader == OURS:
                conditions_of = partial(said_to, member, world.area, f"web-{member.name}")
            elif member.ours:
                conditions_of = partial(events, member.cluster, f"web-{world.members[0].name}")
            else:
                continue
            soon(lambda t=conditions_of: KEY in t(), f"{member.name} to be told {KEY}")  # type: ignore[misc]
            if member.ours:
                soon(partial(doctor_says, member.cluster), f"the doctor to name {KEY}")
        warned = [item.text for item in checked(world.area, "leader") if item.about.startswith("cluster ")]
        assert [KEY in text for text in warned] == [True] * len(world.members)

        for member in world.members:
            member.controllers.only_ours = {KEY: ["10.200.0.0/14"]}
        for controllers, role in [(world.members[0].controllers, "leader")] * (leader == OURS) + [
            (member.controllers, "member") for member in world.members if member.ours
        ]:
            controllers.end(role)
            controllers.run(OURS, role)
        everywhere(world, "web")

        for member in world.members:
            member.cluster.node("node-1", member.gateway(1), gateway=False)
        for here, other in world.pairs():
            soon(lambda h=here, o=other: not h.cluster.gateways_of(o.name), "gateways to be forgotten")  # type: ignore[misc]
        export(world, "late")
        everywhere(world, "late")
