"""Antrea's controllers are replaced by ours on the same objects, and one is put back (docs/antrea.md)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from devtools.waiting import wait_until
from mcagent.controller.admin import cluster as admin
from mcagent.controller.admin.migration import Finding, Level, check, read
from mcagent.controller.config import Role
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.model.objects import Kind
from tests.antrea.clusters import AREA, HOME, NAMESPACE, OURS, SET, Cluster
from tests.antrea.conftest import READY, UNPROVEN, World, needed
from tests.antrea.suite import has, soon
from tests.controllers import free_port

VERSION = "v1.14.3"  # the oldest one differs most
KEPT = {  # what traffic stands on, and what members and leader tell each other
    Kind.SERVICE: "default",
    Kind.SERVICE_IMPORT: "default",
    Kind.GATEWAY: HOME,
    Kind.CLUSTER_INFO_IMPORT: HOME,
    Kind.RESOURCE_EXPORT: AREA,
    Kind.RESOURCE_IMPORT: AREA,
    Kind.MEMBER_CLUSTER_ANNOUNCE: AREA,
}
HOOKS = (Kind.VALIDATING_WEBHOOK_CONFIGURATION, Kind.MUTATING_WEBHOOK_CONFIGURATION)


def uids(cluster: Cluster, *, leader: bool) -> dict[str, str]:
    """Return which objects there are."""
    kinds = [(kind, space) for kind, space in KEPT.items() if leader or space != AREA]
    return {
        f"{kind} {item['metadata']['name']}": item["metadata"]["uid"]
        for kind, space in kinds
        for item in cluster.items(kind, space)
    }


def to_do(cluster: Cluster, role: str) -> list[Finding]:
    """Return what `mcagent migrate check` says must be done."""
    with closing(Client(str(cluster.kubeconfig), user_agent="tests")) as client:
        found = check(Role(role), read(admin.Cluster(client, print), NAMESPACE[role]))
    return [item for item in found if item.level is Level.MUST]


def replace(cluster: Cluster, role: str) -> dict[str, int]:
    """Stop Antrea's controller, do what the check says, start ours; return what ours has written, by kind."""
    cluster.end(role)
    for finding in to_do(cluster, role):  # here, where no Deployment runs it
        kind, name = finding.about.split()
        if kind == Kind.ROLE:
            assert "--resource-name=member-west" in finding.command
            cluster.grant("member-west")
            continue
        assert finding.command == f"kubectl delete {kind.lower()} {name}"
        cluster.delete(Kind(kind), name)
    assert to_do(cluster, role) == []
    port = free_port()
    cluster.install(OURS, role, port)
    cluster.run(OURS, role, port)
    ours = cluster.ours[role]
    soon(ours.idle, f"our {role} to come to rest")
    return ours.writes_by_kind()


@UNPROVEN
@pytest.mark.timeout(400)
def test_there_and_back(
    request: pytest.FixtureRequest, program: Callable[[str], Path], pair: tuple[Cluster, Cluster]
) -> None:
    """No object that traffic stands on is deleted or made anew, and all goes on working after each step."""
    needed(request, VERSION)
    a, b = pair
    world = World(a, b, VERSION, VERSION, VERSION)
    for cluster, roles in ((a, ("leader", "member")), (b, ("member",))):
        for role in roles:
            port = free_port()
            cluster.install(VERSION, role, port)
            cluster.run(VERSION, role, port, program(VERSION))
        cluster.node("node-1", f"192.168.{cluster.number}.1", gateway=True)
    a.put_set(AREA, {"clusterID": "north", "leaders": [{"clusterID": "north"}]})
    world.joined("east", "west")
    of_a, of_b = a.service("of-a", ["10.200.1.5"]), b.service("of-b", ["10.201.1.5"])
    a.export("of-a")
    b.export("of-b")
    soon(partial(has, b, "of-a", 80, of_a), "of-a to be imported")
    soon(partial(has, a, "of-b", 80, of_b), "of-b to be imported")
    before = uids(a, leader=True), uids(b, leader=False)

    written = replace(a, "leader")
    heard = partial(heartbeats, a)
    first = heard()
    wait_until(lambda: all(heard()[who] != first[who] for who in first), "a heartbeat of each", timeout=READY)
    wait_until(lambda: world.ready() == (2, 2), "both to be ready", timeout=READY)
    assert (uids(a, leader=True), uids(b, leader=False)) == before
    assert written.get("ResourceExport", 0) <= 6  # statuses
    assert written.get("ResourceImport", 0) <= 12
    later = follows(a, b, "later-a")

    written = replace(b, "member")
    wait_until(lambda: ready(b), "west to be ready", timeout=READY)
    soon(partial(has, b, "of-a", 80, of_a), "of-a to be as it was")
    kept = uids(b, leader=False)
    assert {key: kept[key] for key in before[1]} == before[1]
    assert has(a, "of-b", 80, of_b)
    assert written.get("Service", 0) <= 4  # labels
    moved = follows(b, a, "later-b")

    b.end("member")
    b.uninstall()
    held = b.get(Kind.CLUSTER_SET, SET, HOME)["metadata"]["finalizers"]
    rest = [text for text in held if text != names.MEMBER_FINALIZER] or None
    b.patch(Kind.CLUSTER_SET, SET, HOME, {"metadata": {"finalizers": rest}})
    port = free_port()
    b.install(VERSION, "member", port, crds=False)  # ours stay: what is stored as v1beta1 has to be served
    b.run(VERSION, "member", port, program(VERSION))
    follows(a, b, "last-a")
    again = uids(b, leader=False)
    assert {key: again[key] for key in kept} == kept
    soon(partial(has, b, "later-a", 80, later), "later-a to be as it was")
    assert has(a, "later-b", 80, moved)
    b.delete(Kind.SERVICE_EXPORT, "later-b", "default")
    b.delete(Kind.CLUSTER_SET, SET, HOME)
    soon(lambda: b.get(Kind.CLUSTER_SET, SET, HOME) is None, "the ClusterSet to go")


def heartbeats(leader: Cluster) -> dict[str, str]:
    """Return when each member was heard of last."""
    return {
        item["metadata"]["name"]: item["metadata"]["annotations"][names.HEARTBEAT_ANNOTATION]
        for item in leader.items(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA)
    }


def follows(here: Cluster, there: Cluster, name: str) -> str:
    """Export another Service, wait until it is imported, and return its ClusterIP."""
    address = here.service(name, ["10.200.1.9"])
    here.export(name)
    soon(partial(has, there, name, 80, address), f"{name} to be imported")
    return address


def ready(member: Cluster) -> bool:
    """Tell whether a member's ClusterSet says that it is ready."""
    found = member.get(Kind.CLUSTER_SET, SET, HOME)["status"]["conditions"]
    return any(item["type"] == "Ready" and item["status"] == "True" for item in found)
