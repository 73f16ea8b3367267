"""Resources of the ClusterSet: how much a member may export, and how much a cluster imports.

The leader's and a member's reconcilers over API servers in memory, the leader's admission, and, for what only a
real API server shows, a kube-apiserver with what `deploy/` ships.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.controller.contract.services import MAX_PORTS, MAX_SUBSETS
from mcagent.controller.leader.exports.bounds import too_large
from mcagent.controller.member.exports import RETRY
from mcagent.controller.member.policies.label_exports import LabelExports
from mcagent.controller.member.services.service_export import ServiceExports
from mcagent.controller.member.services.service_import import ServiceImports
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.tenants import LIMIT, POLICIES_ON, Tenants, pod, spaces
from tests.worlds import member_world
from tests.worlds.admission_objects import World as Lookups
from tests.worlds.admission_objects import a_label, a_service, an_endpoints, ask, put, sa
from tests.worlds.admission_objects import account as bound_account
from tests.worlds.apiservers import refusal
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_world import AREA, FLAT, Leader, account, cluster_info, endpoints, service
from tests.worlds.shipped_access import Stage, _stages, export_of, stage, stopped

__all__ = ["_stages", "stage"]  # fixtures

by_member = partial(attack, Group.QUOTAS, Attacker.MEMBER)
by_user = partial(attack, Group.QUOTAS, Attacker.USER)


def world(**limits: int) -> Leader:
    """Return a leader with the members east and evil, and limits for all."""
    bounded = LeaderSettings(namespace="", allowed_endpoint_cidrs=FLAT, limits=MemberLimits(**limits))  # type: ignore[arg-type]
    leader = Leader("east", "evil", settings=bounded)
    leader.put(account("east"), account("evil"))
    return leader


def imported(leader: Leader) -> list[str]:
    """Return the names of the Services that all members import."""
    imports = leader.api.list(Kind.RESOURCE_IMPORT, AREA)
    return sorted(raw["spec"]["name"] for raw in imports if raw["spec"]["kind"] == "ServiceImport")


def flood(leader: Leader, count: int, first: int = 0) -> None:
    """Let `evil` export so many Services, one a second."""
    for number in range(first, first + count):
        leader.clock.forward(1)
        target = f"shop/s{number:02}"
        leader.put(service("evil", target), endpoints("evil", [f"10.97.0.{number}"], target))


# --- how many ------------------------------------------------------------------------------------------


@by_member(
    wants="take a ClusterIP in every cluster for each of thousands of exports",
    stopped_by="the leader: a member has so many exports, the oldest stay, the newest are refused",
)
def test_a_flood_of_exports_is_cut_off() -> None:
    """The limit is that of all members, or its own; the rest takes no part and is told what would help."""
    leader = world(max_exports=8)
    leader.put(account("evil", max_exports="3"))
    flood(leader, 12)
    leader.put(service("east"), endpoints("east", ["10.96.0.1"]))
    assert imported(leader) == ["nginx", "s00", "s01", "s02"]
    verdict = leader.verdict("evil-shop-s03-service")
    assert (verdict["type"], verdict["reason"]) == ("Failure", "TooManyExports")
    assert names.MAX_EXPORTS_ANNOTATION in verdict["message"]
    assert leader.verdict("evil-shop-s03-endpoints")["type"] == "Failure"


@by_member(
    wants="get more exports than it may have by exchanging old ones for new ones",
    stopped_by="the leader: for each that goes the next oldest comes in, and no more",
)
def test_places_that_are_given_up_are_taken_in_order() -> None:
    """After any coming and going there are as many as may be, and more only when the administrator says so."""
    leader = world(max_exports=3)
    flood(leader, 6)
    for name in ("evil-shop-s01-service", "evil-shop-s01-endpoints"):
        leader.remove(name)
    assert imported(leader) == ["s00", "s02", "s03"]
    flood(leader, 2, first=20)
    assert imported(leader) == ["s00", "s02", "s03"]
    leader.put(account("evil", max_exports="4"))
    assert imported(leader) == ["s00", "s02", "s03", "s04"]
    leader.put(account("evil", max_exports="1"))
    assert imported(leader) == ["s00"]
    leader.start()
    leader.settle()
    assert imported(leader) == ["s00"]


def lookups(**limits: int) -> Lookups:
    """Return what the leader's admission looks up of a member that has ten exports of each kind."""
    kinds = ("Service", "Endpoints", "LabelIdentity")
    return Lookups(
        accounts=[bound_account("east-sa", "east")],
        limits=MemberLimits(**limits),  # type: ignore[arg-type]
        exports={("east", kind): 10 for kind in kinds},
    )


@by_member(
    wants="fill the leader's etcd with exports of any kind",
    stopped_by="admission: a member has so many objects of each kind, also of kinds that no reconciler merges",
)
@pytest.mark.parametrize("make", [a_service, an_endpoints, a_label], ids=["Service", "Endpoints", "LabelIdentity"])
def test_each_kind_is_counted(make: object) -> None:
    """The eleventh is refused, and says what would allow it; what is there can be changed and deleted."""
    assert callable(make)
    new, full = make(), lookups(max_exports=10)
    decision = ask("CREATE", new, None, sa("east-sa"), world=full)
    assert (decision.allowed, decision.code) == (False, 403)
    assert "members.maxExports" in decision.message
    assert ask("UPDATE", new, new, sa("east-sa"), world=full).allowed
    assert ask("DELETE", None, new, sa("east-sa"), world=full).allowed
    assert ask("CREATE", new, None, sa("east-sa"), world=lookups(max_exports=11)).allowed


# --- how large -----------------------------------------------------------------------------------------


@by_member(
    wants="fill etcd, lists and memory with exports of a megabyte",
    stopped_by="admission and leader: an export has so many bytes, counted before anything looks into it",
)
def test_an_export_of_a_megabyte() -> None:
    """In whatever field it hides; one that is there already takes no part, if the field is one that is kept."""
    leader = world()
    junk = "x" * 1_000_000
    for path in ("spec.service.serviceSpec.junk", "metadata.annotations"):
        large = put(a_service(), path, {"junk": junk})
        decision = ask("CREATE", large, None, sa("east-sa"), world=lookups())
        assert not decision.allowed
        assert "65536 bytes" in decision.message
    large = put(service("evil"), "metadata.annotations", {"junk": junk})
    leader.put(large, endpoints("evil", ["10.97.0.1"]))
    assert imported(leader) == []
    assert leader.verdict("evil-default-nginx-service")["reason"] == "TooLarge"


@by_member(
    wants="keep the leader busy with the size of what it is not to read",
    stopped_by="counting that stops at the limit, whatever the shape of the object",
)
@pytest.mark.parametrize("shape", ["deep", "wide", "long"])
def test_counting_costs_little(shape: str) -> None:
    """A million levels, fields or characters cost no more than the limit allows."""
    junk: object = 0
    if shape == "deep":
        for _ in range(1_000_000):
            junk = [junk]
    else:
        junk = dict.fromkeys(map(str, range(1_000_000))) if shape == "wide" else "ä" * 1_000_000
    raw: RawObject = {"metadata": {"name": "x"}, "spec": {"junk": junk}}
    start = time.process_time()
    assert too_large(raw, "Service", 256 * 1024)
    assert time.process_time() - start < 0.5


@by_member(
    wants="make every kube-proxy program 10,000 ports for one Service",
    stopped_by="admission and leader: a Service has at most 100 ports",
)
def test_ten_thousand_ports() -> None:
    """More than an EndpointSlice has are refused, and one that is there takes no part."""
    ports = [{"name": f"p{i}", "port": i, "protocol": "TCP"} for i in range(1, 10_001)]
    for many in (ports, ports[: MAX_PORTS + 1]):
        large = put(a_service(), "spec.service.serviceSpec.ports", many)
        assert not ask("CREATE", large, None, sa("east-sa"), world=lookups()).allowed
        leader = world()
        leader.put(service("evil", ports=many), endpoints("evil", ["10.97.0.1"]))
        assert imported(leader) == []
        assert leader.verdict("evil-default-nginx-service")["type"] == "Failure"
    leader.put(service("evil", ports=ports[:MAX_PORTS]))
    assert imported(leader) == ["nginx"]


@by_member(
    wants="make every cluster keep thousands of EndpointSlices for one Service, by ports that all differ",
    stopped_by="the leader: an export has at most 64 sets of ports; members: an import 1,024",
)
def test_thousands_of_port_sets() -> None:
    """Each set of ports is an EndpointSlice of its own."""
    leader = world()
    many = endpoints("evil", [])
    many["spec"]["endpoints"]["subsets"] = [
        {"addresses": [{"ip": "10.97.0.1"}], "ports": [{"name": "http", "port": port, "protocol": "TCP"}]}
        for port in range(1, MAX_SUBSETS + 2)
    ]
    leader.put(service("evil"), many)
    assert leader.addresses() == []
    assert "at most 64" in leader.verdict("evil-default-nginx-endpoints")["message"]
    view = member_with(1)
    subsets = many["spec"]["endpoints"]["subsets"]
    north = member_world.north_of(view)
    spec = {"namespace": "shop", "name": "s0", "kind": "Endpoints", "endpoints": {"subsets": subsets}}
    north.put(
        {"kind": "ResourceImport", "metadata": {"name": "shop-s0-endpoints", "namespace": NORTH}, "spec": spec}
    )
    controller = importer(view, most=5)
    assert view.local.list(Kind.ENDPOINT_SLICE, "shop") == []
    assert [event.reason for event in controller.all_events()] == ["InvalidImport"]


@by_member(
    wants="make every cluster keep tens of thousands of endpoints for one Service",
    stopped_by="the leader: it takes 1,000 endpoints of one export, the first by address",
)
def test_too_many_endpoints() -> None:
    """The others are left out, and their member reads how many."""
    leader = world(max_endpoints=10)
    leader.put(service("evil"), endpoints("evil", [f"10.97.0.{i}" for i in range(100, 0, -1)]))
    assert leader.addresses() == [f"10.97.0.{i}" for i in range(1, 11)]
    verdict = leader.verdict("evil-default-nginx-endpoints")
    assert verdict["type"] == "Succeeded"
    assert "90 endpoints are left out" in verdict["message"]
    assert "members.maxEndpoints" in verdict["message"]


# --- what a cluster imports ----------------------------------------------------------------------------

NORTH = member_world.AREA


def member_with(*numbers: int) -> MemoryView:
    """Return a member whose leader passes on Services s0, s1 and so on; more numbers, more of them."""
    view = member_world.member()
    add_imports(view, range(sum(numbers)))
    return view


def add_imports(view: MemoryView, numbers: range) -> None:
    """Let the leader pass on more Services, one a second."""
    north = member_world.north_of(view)
    for number in numbers:
        north.clock.forward(1)
        ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
        spec: RawObject = {"namespace": "shop", "name": f"s{number}", "kind": "ServiceImport"}
        spec |= {"serviceImport": {"spec": {"ports": ports, "type": "ClusterSetIP"}}}
        name = names.service_import("shop", f"s{number}")
        north.put({"kind": "ResourceImport", "metadata": {"name": name, "namespace": NORTH}, "spec": spec})


def importer(view: MemoryView, most: int) -> Controller:
    """Run the reconciler of imports until nothing changes."""
    controller = Controller(view, [ServiceImports(member_world.settings(max_imported_services=most))])
    controller.settle()
    return controller


def here(view: MemoryView) -> list[str]:
    """Return the Services that were imported."""
    return sorted(
        raw["metadata"]["name"].removeprefix("antrea-mc-") for raw in view.local.list(Kind.SERVICE, "shop")
    )


@by_member(
    wants="exhaust the ClusterIPs of a cluster together with others, or with the leader's help",
    stopped_by="every member: it imports so many Services, the oldest first, and those that are here stay",
)
def test_imports_leave_clusterips_over() -> None:
    """What comes later is told on the ClusterSet, takes no ClusterIP, and gets the places of those that go."""
    view = member_with(5)
    controller = importer(view, most=3)
    assert here(view) == ["s0", "s1", "s2"]
    assert {event.reason for event in controller.all_events()} >= {"TooManyImports"}
    add_imports(view, range(5, 9))
    controller.run()
    assert here(view) == ["s0", "s1", "s2"]
    member_world.north_of(view).remove(Kind.RESOURCE_IMPORT, NORTH, "shop-s1-service")
    controller.run()
    assert here(view) == ["s0", "s2", "s3"]
    view.failures.clear()
    restarted = importer(view, most=3)
    assert here(view) == ["s0", "s2", "s3"]
    assert len([event for event in restarted.all_events() if event.reason == "TooManyImports"]) == 5


# --- on a real API server ------------------------------------------------------------------------------


@pytest.fixture
def bounded(stage: Stage) -> Iterator[ExitStack]:
    """Give what takes bounds of `west` back."""
    with ExitStack() as stack:
        yield stack


def annotate(stage: Stage, member: str, **bounds: str | None) -> None:
    """Change a member's bounds as an administrator does; None takes one away."""
    notes = {f"mcagent.io/{key.replace('_', '-')}": text for key, text in bounds.items()}
    stage.area.patch(stage.area.path("serviceaccounts", member), {"metadata": {"annotations": notes}})


def try_export(stage: Stage, member: str, body: RawObject) -> str:
    """Return how the API server refuses an export, "" if it would take it."""
    refused = refusal(stage.members[member], "POST", stage.path(Kind.RESOURCE_EXPORT), body, dryRun="All")
    return str(refused or "")


@by_member(
    wants="raise its own bounds",
    stopped_by="RBAC: a member's token reads and writes no ServiceAccount",
)
@pytest.mark.real_only
@pytest.mark.parametrize("verb", ["PUT", "DELETE", "GET", "PATCH"])
def test_bounds_are_the_administrators(stage: Stage, verb: str) -> None:
    """Neither its own account nor another's, and no new one either."""
    east = stage.members["east"]
    for path in (stage.area.path("serviceaccounts", "east"), stage.area.path("serviceaccounts", "west")):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": path.rpartition("/")[2]}}
        stopped(refusal(east, "APPLY" if verb == "PATCH" else verb, path, account, fieldManager="x"), "forbidden")
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "another"}}
    stopped(refusal(east, "POST", stage.area.path("serviceaccounts"), made), "forbidden")


@by_member(
    wants="store what it may not export, although no reconciler reads it",
    stopped_by="the leader's webhook: size, number and namespaces are judged before anything is stored",
)
@pytest.mark.real_only
def test_nothing_is_stored_that_may_not_be(stage: Stage, bounded: ExitStack) -> None:
    """A megabyte, another's namespace, one more than allowed, a member whose annotations cannot be read."""
    bounded.callback(annotate, stage, "west", max_exports=None, allowed_namespaces=None)
    bounded.callback(annotate, stage, "east", allowed_namespaces=None)
    good = export_of("west", "shop/cart")
    assert try_export(stage, "west", good) == ""
    large = put(good, "spec.service.serviceSpec.junk", "x" * 1_000_000)
    assert "65536 bytes" in try_export(stage, "west", large)
    for member, bounds, message in (
        ("east", {"allowed_namespaces": "shop"}, "reserved"),
        ("west", {"max_exports": "0"}, "members.maxExports"),
        ("west", {"max_exports": "ten"}, "nothing is allowed until it is fixed"),
    ):
        annotate(stage, member, **bounds)
        wait_until(lambda message=message: message in try_export(stage, "west", good), f'"{message}"', timeout=20)  # type: ignore[misc]
        annotate(stage, member, **dict.fromkeys(bounds))
        wait_until(lambda: try_export(stage, "west", good) == "", "bounds to be taken back", timeout=20)


# --- tenants of one member ------------------------------------------------------------------------------


def exported_service(number: int, namespace: str) -> list[RawObject]:
    """Return a Service that its tenant exports."""
    name = f"s{number}"
    return [
        member_world.service(name, namespace=namespace, cluster_ip=f"10.96.1.{number + 1}"),
        member_world.slice_of(name, f"10.1.1.{number + 1}", namespace=namespace),
        member_world.export_of(name, namespace),
    ]


@by_user(
    wants="use up its cluster's label identities with Pods that no Node takes, so that others' Pods get none",
    stopped_by="the member's controller: a Pod without a Node and an address has no label identity",
)
def test_pods_without_an_address_use_up_nothing() -> None:
    """Hundreds of Pending Pods with labels of their own export nothing; another tenant's Pod is exported."""
    tenants = Tenants(LabelExports(POLICIES_ON))
    tenants.put(*spaces("tenant-a", "tenant-b"))
    tenants.put(*(pod(number, "tenant-a", pending=True) for number in range(100)))
    assert tenants.names("") == []
    tenants.put(pod(0, "tenant-b"))
    assert len(tenants.names("tenant-b")) == 1
    assert tenants.events("LabelIdentityNotExported") == []


@by_user(
    wants="use up its cluster's label identities with running Pods, so that others' Pods get none",
    stopped_by="the member's controller: namespaces share what the leader accepts, max-min fair",
)
def test_label_identities_are_shared_among_namespaces() -> None:
    """Who came first with too many gives way to those with less; what is refused is told."""
    tenants = Tenants(LabelExports(POLICIES_ON))
    tenants.put(*spaces("tenant-a", "tenant-b", "tenant-c"))
    tenants.put(*(pod(number, "tenant-a") for number in range(LIMIT + 5)))
    assert len(tenants.names("tenant-a")) == LIMIT
    oldest = set(tenants.names("tenant-a"))
    tenants.put(*(pod(number, "tenant-b") for number in range(5)))
    assert (len(tenants.names("tenant-a")), len(tenants.names("tenant-b"))) == (LIMIT - 5, 5)
    assert set(tenants.names("tenant-a")) < oldest
    tenants.put(*(pod(number, "tenant-c") for number in range(LIMIT)))
    counts = [len(tenants.names(name)) for name in ("tenant-a", "tenant-b", "tenant-c")]
    assert sum(counts) == LIMIT
    assert counts[1] == 5
    assert {counts[0], counts[2]} <= {7, 8}
    writes = len(tenants.north.writes)
    tenants.controller.settle()
    assert len(tenants.north.writes) == writes, "the places are stable"
    assert tenants.most <= LIMIT
    events = tenants.events("LabelIdentityNotExported")
    assert any(text.startswith("Namespace tenant-a: ") and "has a share of" in text for text in events)


@by_user(
    wants="use up its cluster's exports with ServiceExports, so that no other namespace can export",
    stopped_by="the member's controller: namespaces share what the leader accepts, max-min fair",
)
def test_exports_are_shared_among_namespaces() -> None:
    """Another tenant's Service is exported, the newest of the first gives way, and its ServiceExport says why."""
    tenants = Tenants(ServiceExports(member_world.settings()))
    tenants.put(*spaces("tenant-a", "tenant-b"))
    for number in range(LIMIT + 5):
        tenants.put(*exported_service(number, "tenant-a"))
    assert len(tenants.names("tenant-a")) == LIMIT
    for number in range(3):
        tenants.put(*exported_service(number, "tenant-b"))
    assert (len(tenants.names("tenant-a")), len(tenants.names("tenant-b"))) == (LIMIT - 3, 3)
    assert tenants.most <= LIMIT
    export = tenants.view.local.get(Kind.SERVICE_EXPORT, "tenant-a", f"s{LIMIT - 1}")
    assert member_world.conditions_of(export)["Valid"] == ("False", "TooManyExports")
    assert any("namespace tenant-a has a share of 17" in text for text in tenants.events("TooManyExports"))
    assert "Valid" in member_world.conditions_of(tenants.view.local.get(Kind.SERVICE_EXPORT, "tenant-b", "s0"))


@by_user(
    wants="keep the places of its exports after it gave them up, or get more than the leader accepts",
    stopped_by="the member's controller, which decides again when a place becomes free or the limit changes",
)
def test_places_follow_the_limit_and_become_free() -> None:
    """A place that is given up goes to who waits; a lower limit takes the newest of the largest."""
    tenants = Tenants(ServiceExports(member_world.settings()))
    tenants.put(*spaces("tenant-a", "tenant-b"))
    for number in range(LIMIT + 1):
        tenants.put(*exported_service(number, "tenant-a"))
    tenants.view.local.remove(Kind.SERVICE_EXPORT, "tenant-a", "s0")
    tenants.settle()
    tenants.clock.forward(RETRY)
    tenants.controller.due()
    tenants.settle()
    assert f"east-tenant-a-s{LIMIT}-service" in tenants.names("tenant-a")
    lower = {"metadata": {"annotations": {names.MAX_EXPORTS_ANNOTATION: "5"}}}
    tenants.north.change(Kind.RESOURCE_IMPORT, member_world.AREA, "east-clusterinfo", lower)
    tenants.controller.enqueue_all()
    tenants.settle()
    assert sorted(tenants.names("")) == [f"east-tenant-a-s{number}-service" for number in range(1, 6)]


@by_user(
    wants="end another namespace's export again and again by one that the leader refuses",
    stopped_by="the member's controller: an export that was refused takes no other's place",
)
def test_a_refused_export_takes_no_place() -> None:
    """The export that gave way returns, and stays when the refused one is tried again."""
    tenants = Tenants(ServiceExports(member_world.settings()))
    tenants.put(*spaces("tenant-a", "tenant-b"))
    for number in range(LIMIT):
        tenants.put(*exported_service(number, "tenant-a"))

    def refuse(kind: Kind, old: RawObject | None, new: RawObject | None) -> str:
        if kind is not Kind.RESOURCE_EXPORT or old is not None or new is None:
            return ""
        return "namespace tenant-b is reserved" if new["spec"]["namespace"] == "tenant-b" else ""

    tenants.north.refuse = refuse
    tenants.put(*exported_service(0, "tenant-b"))
    for _ in range(3):
        tenants.clock.forward(RETRY)
        tenants.controller.settle()
        tenants.settle()
    assert len(tenants.names("tenant-a")) == LIMIT
    deletions = [write for write in tenants.north.writes if write.startswith("delete")]
    assert len(deletions) <= 2
    assert any("reserved" in text for text in tenants.events("TooManyExports"))


@by_member(
    wants="be told another limit than the leader's",
    stopped_by="the leader, which writes its limit into its own copy of the member's ClusterInfo",
)
def test_the_leader_tells_each_member_its_limit() -> None:
    """An annotation that the member writes itself does not count; a change of the account's does."""
    leader = world(max_exports=50)
    raw = cluster_info("evil", "10.96.0.0/16")
    raw["metadata"].setdefault("annotations", {})[names.MAX_EXPORTS_ANNOTATION] = "100000"
    leader.put(raw)

    def limit() -> object:
        copy = leader.api.get(Kind.RESOURCE_IMPORT, AREA, "evil-clusterinfo")
        assert copy is not None
        return copy["metadata"]["annotations"][names.MAX_EXPORTS_ANNOTATION]

    assert limit() == "50"
    leader.put(account("evil", max_exports="3"))
    assert limit() == "3"
