"""What reconcilers declare: they see and write that, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mcagent.controller.config import ControllerRole, ControllerSettings
from mcagent.controller.machinery.apply import DroppedValue
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.connection.connection import LeaderConnection
from mcagent.controller.machinery.current_events import CurrentEvents
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    Leader,
    ObjectChange,
    Ref,
    Side,
    UndeclaredAccessError,
    View,
    Wanted,
    check_writes,
    side_of,
)
from mcagent.controller.machinery.view import DeclaredView, EngineView
from mcagent.controller.machinery.written import WrittenObjects
from mcagent.controller.run import reconcilers_of
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.source import EventType, WatchEvent
from mcagent.model.api.base import Metadata
from mcagent.model.api.kubernetes import ApiNode, ApiService
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from tests.worlds.control_view import MemoryView
from tests.worlds.memory_objects import Clock, MemoryObjects

SERVICES = Index(name="services", of=ApiService, side=Side.LOCAL, values=lambda _: ["all"])
NODES = Index(name="nodes", of=ApiNode, side=Side.LOCAL, values=lambda _: ["all"])
READS = Access(local={Kind.SERVICE}, leader={Kind.RESOURCE_IMPORT})
WRITES = Access(local={Kind.SERVICE})


@dataclass
class Example:
    """A reconciler of Services, which it exports to a leader."""

    name: str = "example"
    needs_leader: bool = False
    reads: Access = READS
    writes: Access = WRITES
    indexes: tuple[Index[Any], ...] = (SERVICES,)

    def keys(self, change: ObjectChange, view: View) -> list[str]:
        """Return none."""
        return []

    def all_keys(self, view: View) -> list[str]:
        """Return none."""
        return []

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return nothing."""
        return DesiredObjects()


SERVICE = Ref(kind=Kind.SERVICE, namespace="shop", name="web")
LOOKS: list[tuple[Callable[[View], object], bool]] = [
    (lambda view: view.get(SERVICE, ApiService), True),
    (lambda view: view.list(ApiService), True),
    (lambda view: view.quiet_for(SERVICE), True),
    (lambda view: view.indexed(SERVICES, "all"), True),
    (lambda view: view.count(SERVICES, "all"), True),
    (lambda view: view.list(ResourceImport, Side.LEADER), True),
    (lambda view: view.get(Ref(kind=Kind.NODE, name="n"), ApiNode), False),
    (lambda view: view.list(ApiNode), False),
    (lambda view: view.quiet_for(Ref(kind=Kind.NODE, name="n")), False),
    (lambda view: view.indexed(NODES, "all"), False),
    (lambda view: view.count(NODES, "all"), False),
    (lambda view: view.list(ApiService, Side.LEADER), False),
    (lambda view: view.list(ResourceImport), False),
]


@pytest.mark.parametrize(("look", "declared"), LOOKS)
def test_a_reconciler_sees_what_it_declares_and_nothing_else(
    look: Callable[[View], object], declared: bool
) -> None:
    """Kinds of the other side count as others; so does an index that it does not declare."""
    view = DeclaredView(MemoryView(MemoryObjects(Clock()), leader_api=MemoryObjects(Clock())), Example())
    if declared:
        look(view)
        return
    with pytest.raises(UndeclaredAccessError, match="example does not declare"):
        look(view)


@pytest.mark.parametrize("side", list(Side))
def test_a_reconciler_writes_what_it_declares_and_nothing_else(side: Side) -> None:
    """Whether it makes an object or deletes one."""
    ref = Ref(side=side, kind=Kind.SERVICE, namespace="shop", name="web")
    for step in (ref, Wanted(ref=ref)):
        if side is Side.LOCAL:
            check_writes(Example(), DesiredObjects(steps=[step]))
            continue
        with pytest.raises(UndeclaredAccessError, match="example does not declare that it writes"):
            check_writes(Example(), DesiredObjects(steps=[step]))


def test_who_has_to_do_with_the_leader_is_run_by_its_workers() -> None:
    """By what is read, by what is written, or by waiting for it."""
    local = Access(local={Kind.SERVICE})
    leader = Access(leader={Kind.RESOURCE_EXPORT})
    assert side_of(Example(reads=local)) is Side.LOCAL
    assert side_of(Example(reads=leader)) is Side.LEADER
    assert side_of(Example(reads=local, writes=leader)) is Side.LEADER
    assert side_of(Example(reads=local, needs_leader=True)) is Side.LEADER
    sides = {r.name: side_of(r) for r in reconcilers_of(ControllerRole.MEMBER, ControllerSettings(), "x")}
    assert {name for name, side in sides.items() if side is Side.LOCAL} == {
        "membership",
        "cleanup",
        "gateway-election",
    }


@pytest.mark.parametrize("role", list(ControllerRole))
def test_indexes_are_over_what_is_read(role: ControllerRole) -> None:
    """Of every reconciler that is shipped."""
    for reconciler in reconcilers_of(role, ControllerSettings(), "x"):
        assert all(index.kind in reconciler.reads.on(index.side) for index in reconciler.indexes), reconciler.name


NAMES = Index(name="names", of=ApiService, side=Side.LOCAL, values=lambda service: [service.name])
IMPORTS = Index(name="imports", of=ResourceImport, side=Side.LEADER, values=lambda _: ["all"])
IMPORT = Ref(side=Side.LEADER, kind=Kind.RESOURCE_IMPORT, namespace="area", name="web")
LEADER = Leader(cluster_set="blue", cluster_id="east", leader_cluster_id="north", namespace="area")


class EngineWorld:
    """What an engine's view is made of, on values: two Services here, and an import on the leader."""

    def __init__(self) -> None:
        kinds = {Side.LOCAL: [Kind.SERVICE], Side.LEADER: [Kind.RESOURCE_IMPORT]}
        self.cache = Cache(kinds, [NAMES, IMPORTS])
        self.services = [self.put(ApiService, Side.LOCAL, "shop", name) for name in ("db", "web")]
        self.services.append(self.put(ApiService, Side.LOCAL, "test", "web"))
        self.imported = self.put(ResourceImport, Side.LEADER, "area", "web")
        self.written, self.events = WrittenObjects(self.cache), CurrentEvents()
        kubeconfig = token_kubeconfig("https://127.0.0.1:1", b"", "none")
        self.connection = LeaderConnection(Client(kubeconfig), self.cache, "kube-system", lambda _old, _new: None)
        self.connection.leader, self.connection.epoch = LEADER, 3
        self.view = EngineView(self.cache, "kube-system", self.connection, self.written, self.events)

    def put(self, cls: type[Any], side: Side, namespace: str, name: str) -> Any:
        """Have an object in the cache."""
        metadata = Metadata(name=name, namespace=namespace, uid=f"{side}/{namespace}/{name}", resource_version="1")
        self.cache.apply(side, cls.KIND, WatchEvent(type=EventType.ADDED, object=cls(metadata=metadata)))
        ref = Ref(side=side, kind=cls.KIND, namespace=namespace, name=name)
        return self.cache.get(ref, cls)


@pytest.mark.parametrize("declared", [False, True])
def test_a_view_has_what_is_known_of_objects(declared: bool) -> None:
    """The engine's view of all objects, and that of a reconciler, which declares these."""
    world = EngineWorld()
    example = Example(indexes=(NAMES, IMPORTS))
    view: View = DeclaredView(world.view, example) if declared else world.view
    assert (view.namespace, view.leader) == ("kube-system", LEADER)
    assert view.get(SERVICE, ApiService) is world.services[1]
    assert view.get(IMPORT, ResourceImport) is world.imported
    assert view.get(replace(SERVICE, name="other"), ApiService) is None
    assert list(view.list(ApiService)) == world.services
    assert list(view.list(ApiService, Side.LOCAL, "shop")) == world.services[:2]
    assert list(view.list(ApiService, namespace="other")) == []
    assert list(view.list(ResourceImport, Side.LEADER)) == [world.imported]
    assert list(view.indexed(NAMES, "web")) == world.services[1:]
    assert (view.count(NAMES, "web"), view.count(NAMES, "db"), view.count(NAMES, "x")) == (2, 1, 0)
    assert list(view.indexed(IMPORTS, "all")) == [world.imported]
    assert view.quiet_for(SERVICE) > 0.0
    assert view.quiet_for(replace(SERVICE, name="other")) == 0.0


@pytest.mark.parametrize("declared", [False, True])
def test_a_view_has_what_became_of_writes(declared: bool) -> None:
    """Refusals, acceptance by the present leader, dropped fields, and Events, without a declaration."""
    world = EngineWorld()
    view: View = DeclaredView(world.view, Example(reads=Access())) if declared else world.view
    assert not view.accepted(IMPORT)
    world.written.succeeded(IMPORT, 3)
    assert view.accepted(IMPORT)
    world.connection.epoch = 4
    assert not view.accepted(IMPORT)
    assert view.failure(IMPORT) == ""
    world.written.failed(IMPORT, "quota")
    assert view.failure(IMPORT) == "quota"
    value = DroppedValue(sent="1", stored=None, fields=("spec.new",))
    world.written.add_dropped(IMPORT, {("spec", "new"): value}, {"metadata": {}}, 4, 0.0)
    assert view.dropped_fields(Side.LEADER) == ["ResourceImport spec.new"]
    assert view.dropped_fields(Side.LOCAL) == []
    events = frozenset({Event(subject="Service shop/web", reason="Refused", message="quota")})
    world.events.remember(("other", "shop/web"), events)
    assert view.events("other") == {"shop/web": events}
    assert view.events("example") == {}


def test_a_controller_without_a_leader_has_no_membership() -> None:
    """Writes to its own API server are accepted all the same."""
    world = EngineWorld()
    view = EngineView(world.cache, "mcs", None, world.written, world.events)
    assert (view.namespace, view.leader) == ("mcs", None)
    assert not view.accepted(SERVICE)
    world.written.succeeded(SERVICE, 0)
    assert view.accepted(SERVICE)


def test_an_undeclared_access_names_reconciler_and_object() -> None:
    """The text is that of a bug report."""
    view = DeclaredView(MemoryView(MemoryObjects(Clock())), Example())
    with pytest.raises(UndeclaredAccessError, match=r"^example does not declare that it reads Node \(local\)$"):
        view.list(ApiNode)
    with pytest.raises(UndeclaredAccessError, match=r"^example does not declare index nodes$"):
        view.indexed(NODES, "all")
    text = r"^example does not declare that it writes ResourceImport area/web \(leader\)$"
    with pytest.raises(UndeclaredAccessError, match=text):
        check_writes(Example(), DesiredObjects(steps=[IMPORT]))
    check_writes(Example(), DesiredObjects())


def test_a_ref_is_named_by_kind_namespace_and_side() -> None:
    """A cluster-scoped object has no namespace."""
    assert str(SERVICE) == "Service shop/web"
    assert str(IMPORT) == "ResourceImport area/web (leader)"
    assert str(Ref(kind=Kind.NODE, name="n1")) == "Node n1"


def test_a_change_says_what_came_and_went() -> None:
    """The object is the newest of both; the beginning of a deletion counts as a departure."""
    old = ApiService(metadata=Metadata(name="web", resource_version="1"))
    new = ApiService(metadata=Metadata(name="web", resource_version="2"))
    going = ApiService(
        metadata=Metadata(name="web", resource_version="3", deletion_timestamp="2026-01-01T00:00:00Z")
    )

    def change(before: ApiService | None, after: ApiService | None) -> ObjectChange:
        return ObjectChange(side=Side.LOCAL, kind=Kind.SERVICE, old=before, new=after)

    assert change(old, new).object is new
    assert change(old, None).object is old
    pairs = [(None, new), (old, None), (old, new), (new, going), (going, going)]
    assert [change(*pair).came_or_went for pair in pairs] == [True, True, False, True, False]
    assert change(old, new).of(ApiService) == (old, new)
    assert change(old, None).of(ApiService) == (old, None)
    assert change(old, new).of(ApiNode) == (None, None)
