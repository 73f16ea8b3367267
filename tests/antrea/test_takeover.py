"""Antrea's controllers are replaced by ours on the same objects, put back, and removed (docs/antrea.md)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from mcagent.controller.admin import cluster as admin
from mcagent.controller.admin.manifests import InstalledRole as Part
from mcagent.controller.admin.manifests import Site
from mcagent.controller.admin.migration import Finding, Level
from mcagent.controller.admin.removal import Removal, uninstall
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.antrea.clusters import AREA, HOME, NAMESPACE, OURS, SET, Cluster
from tests.antrea.programs import VERSIONS
from tests.antrea.running import Controllers, checked
from tests.antrea.suite import gone, has
from tests.antrea.worlds import READY, World, running, soon

ACCOUNTS = {"east": "antrea-mc-member-access-sa", "west": "member-west"}  # the default one, and one of the guide's
KEPT = {  # what traffic stands on, and what members and leader tell each other
    Kind.SERVICE: "default",
    Kind.SERVICE_IMPORT: "default",
    Kind.GATEWAY: HOME,
    Kind.CLUSTER_INFO_IMPORT: HOME,
    Kind.RESOURCE_EXPORT: AREA,
    Kind.RESOURCE_IMPORT: AREA,
    Kind.MEMBER_CLUSTER_ANNOUNCE: AREA,
}
MERGE = "application/merge-patch+json"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def uids(world: World) -> dict[str, str]:
    """Return which objects there are."""
    return {
        f"{member.name} {kind} {item['metadata']['name']}": item["metadata"]["uid"]
        for member in world.members
        for kind, space in KEPT.items()
        if space != AREA or member.cluster is world.area
        for item in member.cluster.items(kind, space)
    }


def to_do(cluster: Cluster, role: str) -> list[Finding]:
    """Return what `mcagent migrate check` says must be done."""
    return [item for item in checked(cluster, role) if item.level is Level.MUST]


@contextmanager
def beating(area: Cluster, member: str) -> Iterator[None]:
    """Have a member write its heartbeat ten times a second, judged as any and not stored: its own are few."""
    path, stop = object_path(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce(member)), threading.Event()

    def beat() -> None:
        with closing(area.as_account(ACCOUNTS[member], AREA)) as client:
            while not stop.wait(0.1):
                body = {"metadata": {"annotations": {names.HEARTBEAT_ANNOTATION: str(time.time())}}}
                with suppress(ApiRefusalError):  # the audit log has it
                    client.request("PATCH", path, {"dryRun": "All"}, body=body, content_type=MERGE)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def start(controllers: Controllers, account: str, role: str, *, crds: bool = True) -> None:
    """Start a controller as docs/antrea.md has it: its webhooks must be asked only once it answers them."""
    controllers.install(account, role, crds=crds, must_answer=False)
    controllers.run(account, role)
    soon(controllers.trusted, "the webhooks to have a certificate")
    controllers.install(account, role, crds=crds)


def replace(cluster: Cluster, controllers: Controllers, role: str) -> dict[str, int]:
    """Do what the check says, stop Antrea's controller, start ours; return what ours has written."""
    for finding in to_do(cluster, role):  # here, where no Deployment runs it
        kind, name = finding.about.split()
        if kind == Kind.SERVICE_ACCOUNT:
            assert " annotate serviceaccount " in finding.command
            name = name.partition("/")[2]
            cluster_id = next(who for who, account in ACCOUNTS.items() if account == name)
            note = {"metadata": {"annotations": {names.CLUSTER_ID_ANNOTATION: cluster_id}}}
            cluster.patch(Kind.SERVICE_ACCOUNT, name, AREA, note)
        elif kind == Kind.ROLE:
            assert "--resource-name=member-west" in finding.command
            cluster.grant("member-west")
        else:
            assert finding.command == f"kubectl delete {kind.lower()} {name}"
            cluster.delete(Kind(kind), name)
    assert to_do(cluster, role) == []
    controllers.end(role)
    mark = cluster.audit.mark()
    start(controllers, OURS, role)
    soon(controllers.ours[role].idle, f"our {role} to come to rest")
    return cluster.audit.counted(f"{NAMESPACE[role]}/mcagent-controller", mark)


def put_back(cluster: Cluster, controllers: Controllers, version: str, role: str) -> None:
    """Do what docs/antrea.md says about the way back."""
    controllers.remove_hooks()
    controllers.end(role)
    if role == "member":
        finalizers = cluster.get(Kind.CLUSTER_SET, SET, HOME)["metadata"]["finalizers"]
        name = [text for text in finalizers if text != names.MEMBER_FINALIZER] or None
        cluster.patch(Kind.CLUSTER_SET, SET, HOME, {"metadata": {"finalizers": name}})
    start(controllers, version, role, crds=False)  # ours stay: what is stored as v1beta1 has to be served


def follows(importing: Cluster, exporting: Cluster, name: str) -> str:
    """Export another Service, wait until it is imported, and return its ClusterIP."""
    address = importing.service(name, ["10.200.1.9"])
    importing.export(name)
    soon(partial(has, exporting, name, address), f"{name} to be imported", READY)
    return address


@pytest.mark.parametrize("version", VERSIONS)
def test_there_and_back(version: str, program: Callable[[str], Path], tmp_path: Path) -> None:
    """No object that traffic stands on is made anew, all works after each step, and no heartbeat is refused."""
    with running(version, (version, version), tmp_path, program) as world:
        east, west = world.members
        a, b = east.cluster, west.cluster
        world.lead()
        world.join(world.members, ACCOUNTS)
        kept = {"of-a": follows(a, b, "of-a"), "of-b": follows(b, a, "of-b")}
        before, begin = uids(world), a.audit.mark()

        def as_before() -> None:
            """All that was there before the first step is there, with its uid."""
            uids_before = uids(world)
            assert {key: uids_before.get(key) for key in before} == before
            assert has(b, "of-a", kept["of-a"])
            assert has(a, "of-b", kept["of-b"])

        with beating(a, "west"):
            written = replace(a, east.controllers, "leader")
        print("written by the leader of ours:", written)
        first = world.heartbeats()
        soon(lambda: all(world.heartbeats()[name] != first[name] for name in first), "a heartbeat of each", READY)
        soon(lambda: world.ready() == (2, 2), "both to be ready", READY)
        assert uids(world) == before
        assert not [key for key in written if key.startswith(("create resource", "delete"))]
        assert written.get("patch resourceexports", 0) == 0
        follows(a, b, "later-a")

        written = replace(b, west.controllers, "member")
        print("written by the member of ours:", written)
        soon(west.ready, "west to be ready", READY)
        as_before()
        assert not [key for key in written if key.startswith(("create service", "delete service"))]
        follows(b, a, "later-b")

        mark = a.audit.mark()
        put_back(b, west.controllers, version, "member")
        # Before, it does not know that it exports it (docs/antrea.md).
        west.knows_its_exports(world.area, "later-b", mark)
        follows(a, b, "last-a")
        as_before()
        b.delete(Kind.SERVICE_EXPORT, "later-b", "default")
        soon(partial(gone, a, "later-b"), "later-b to go")

        with beating(a, "west"):
            put_back(a, east.controllers, version, "leader")
        first = world.heartbeats()
        soon(lambda: all(world.heartbeats()[name] != first[name] for name in first), "a heartbeat of each", READY)
        follows(b, a, "last-b")
        as_before()
        b.delete(Kind.SERVICE_EXPORT, "last-b", "default")
        soon(partial(gone, a, "last-b"), "last-b to go")

        heard = a.audit.heard("memberclusterannounces", begin)
        members = {f"{AREA}/{account}" for account in ACCOUNTS.values()}
        answers = Counter(code for account, code in heard if account in members)
        print("heartbeats, by how they were answered:", answers)
        assert members <= {account for account, _ in heard}
        assert set(answers) == {200}

        replace(b, west.controllers, "member")
        follows(b, a, "end-b")
        with closing(Client(str(b.kubeconfig), user_agent="tests")) as client:
            removal = Removal(role=Part.MEMBER, site=Site(), crds=True)
            uninstall(admin.Cluster(client, print), removal, dry_run=False)
        assert west.controllers.ours["member"].process.poll() is None  # until here it was there to leave
        soon(lambda: not world.on_leader("west-"), "all of west to leave the leader")
        soon(partial(gone, a, "end-b"), "end-b to go")
        names = [item["metadata"]["name"] for item in b.client.request("GET", CRDS)["items"]]
        ours = {f"{KINDS[kind].plural}.{KINDS[kind].group}" for kind in (Kind.CLUSTER_SET, Kind.SERVICE_EXPORT)}
        assert not ours & set(names)
        assert [item["metadata"]["name"] for item in b.items(Kind.SERVICE, "default") if _imported(item)] == []


def _imported(service: dict[str, dict[str, str]]) -> bool:
    return service["metadata"]["name"].startswith("antrea-mc-")
