"""What reconcilers declare: they see and write that, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mcagent.controller.config import ControllerRole, ControllerSettings
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    ObjectChange,
    Ref,
    Side,
    UndeclaredAccessError,
    View,
    Wanted,
    check_writes,
    side_of,
)
from mcagent.controller.machinery.view import DeclaredView
from mcagent.controller.run import reconcilers_of
from mcagent.model.api.kubernetes import ApiNode, ApiService
from mcagent.model.api.multicluster import ResourceImport
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
