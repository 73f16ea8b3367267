"""Which keys the engine enqueues: by changes, lists, resyncs and news of the leader. Its threads do not run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from mcagent.controller.contract.member_tokens import TokenClaims
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    Leader,
    ObjectChange,
    Ref,
    Side,
    View,
)
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.source import EventType, WatchEvent
from mcagent.model.api.base import ApiObject, Metadata
from mcagent.model.api.kubernetes import ApiService
from mcagent.model.api.multicluster import ClusterSet, ResourceImport
from mcagent.model.objects import Kind

LEADER = Leader(cluster_set="blue", cluster_id="east", leader_cluster_id="north", namespace="area")
IMPORT = Ref(side=Side.LEADER, kind=Kind.RESOURCE_IMPORT, namespace="area", name="i")


NOTHING = Access()


@dataclass
class Named:
    """Has a key for each object that it reads, named as the object."""

    name: str
    reads: Access
    needs_leader: bool = False
    writes: Access = NOTHING
    indexes: tuple[Index[Any], ...] = ()
    broken: bool = False
    calls: list[str] = field(default_factory=list)

    def keys(self, change: ObjectChange, view: View) -> Sequence[str]:
        """Return the object's name, twice."""
        if self.broken:
            raise RuntimeError("keys")
        return [change.object.name, change.object.name]

    def all_keys(self, view: View) -> Sequence[str]:
        """Return one key of its own, and the names of Services."""
        if self.broken:
            raise RuntimeError("all_keys")
        services = [service.name for service in view.list(ApiService)] if Kind.SERVICE in self.reads.local else []
        return ["all", *services]

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return nothing."""
        return DesiredObjects()


SERVICES = Access(local={Kind.SERVICE})
IMPORTS = Access(local={Kind.CLUSTER_SET}, leader={Kind.RESOURCE_IMPORT})


class TurnByTurn(Engine):
    """An engine of which a test does the supervisor's turns."""

    def __init__(self, *reconcilers: Named, member: bool = True, **settings: Any) -> None:
        client = Client(token_kubeconfig("https://127.0.0.1:1", b"", "none"))
        self.permit = math.inf
        super().__init__(
            reconcilers,
            client,
            namespace="kube-system",
            member=member,
            permit=lambda: self.permit,
            **settings,
        )

    def put(self, cls: type[ApiObject], name: str, side: Side = Side.LOCAL, version: str = "1") -> None:
        """Deliver an event of an object."""
        namespace = "kube-system" if cls is ClusterSet else "shop"
        metadata = Metadata(name=name, namespace=namespace, resource_version=version)
        self.cache.apply(side, cls.KIND, WatchEvent(type=EventType.ADDED, object=cls(metadata=metadata)))

    def list_all(self, side: Side = Side.LOCAL) -> None:
        """Have all kinds of a side listed, without any object."""
        for kind in sorted(self.cache.kinds(side)):
            self.cache.replace(side, kind, [])

    def have_leader(self, leader: Leader | None) -> None:
        """Have a membership, and hear of it."""
        assert self.connection is not None
        old, self.connection.leader = self.connection.leader, leader
        self._leader_changed(old, leader)

    def turn(self) -> None:
        """Do what the supervisor does when it is woken."""
        self._resync()

    def begin_one_of_each_side(self) -> None:
        """Take a key of each side, and ask for another one in an hour."""
        for queue in self._queues.values():
            entry = queue.take()
            assert entry is not None
            queue.add_after((entry[0], "later"), 3600.0)

    def taken(self) -> list[tuple[str, str]]:
        """Take all keys that wait for a worker, in order, those of the leader's workers last."""
        entries = []
        for queue in self._queues.values():
            while any(queue.depths().values()):
                entry = queue.take()
                assert entry is not None
                queue.done(entry)
                entries.append(entry)
        return entries

    def settle(self) -> None:
        """Have both sides listed and all their keys done."""
        self.list_all()
        self.have_leader(LEADER)
        self.list_all(Side.LEADER)
        self.turn()
        self.taken()


def both() -> TurnByTurn:
    """Return an engine of three reconcilers: of this cluster, of the leader's objects, and of writes to it."""
    writer = Named("writer", SERVICES, writes=Access(leader={Kind.RESOURCE_EXPORT}))
    return TurnByTurn(Named("services", SERVICES), Named("imports", IMPORTS, needs_leader=True), writer)


def test_reconcilers_begin_when_all_that_they_read_is_listed() -> None:
    """Each key once, also of objects that came before; those that need the leader when its kinds are listed."""
    engine = both()
    engine.put(ApiService, "web")
    engine.turn()
    assert engine.taken() == []
    assert not engine.idle()
    engine.list_all()
    engine.put(ApiService, "db")
    engine.turn()
    assert engine.depths() == {"services": 2, "imports": 0, "writer": 2}
    keys = [("services", "all"), ("services", "db"), ("writer", "all"), ("writer", "db")]
    assert engine.taken() == keys
    assert engine.idle()
    engine.turn()
    assert engine.taken() == []
    engine.list_all(Side.LEADER)
    engine.turn()
    assert engine.taken() == []  # without a membership
    engine.have_leader(LEADER)
    engine.turn()
    assert ("imports", "all") in engine.taken()


def test_a_change_goes_to_those_who_read_its_kind_on_its_side() -> None:
    """A key that is named twice is enqueued once."""
    engine = both()
    engine.settle()
    engine.put(ApiService, "web")
    assert engine.depths() == {"services": 1, "imports": 0, "writer": 1}
    assert engine.taken() == [("services", "web"), ("writer", "web")]
    engine.put(ResourceImport, "i", Side.LEADER)
    assert engine.taken() == [("imports", "i")]
    engine.put(ClusterSet, "blue")
    assert engine.taken() == [("imports", "blue")]


def test_without_the_permit_nothing_is_enqueued_and_with_it_everything() -> None:
    """Changes keep the cache warm only; `suspend` forgets what waits, `resume` enqueues all keys."""
    engine = both()
    engine.settle()
    engine.put(ApiService, "web")
    engine.suspend()
    assert engine.taken() == []
    engine.permit = 0.0
    engine.put(ApiService, "db")
    engine.resume()
    engine.turn()
    assert engine.taken() == []
    engine.permit = 1.0
    engine.resume()
    engine.turn()
    keys = ["all", "db", "web"]
    assert sorted(engine.taken()) == sorted(
        [*(("services", key) for key in keys), *(("writer", key) for key in keys), ("imports", "all")]
    )


@pytest.mark.parametrize(
    ("old", "new", "urgent", "resynced"),
    [
        ({"connected": False}, {"connected": True}, False, ["imports", "writer"]),
        ({"connected": True}, {"connected": True, "synced": True}, False, ["writer"]),
        ({}, {"addresses": ("192.0.2.1",)}, True, ["imports", "writer"]),
        ({"connected": True}, {"connected": False, "error": "refused"}, False, []),
        ({}, {"since": 5.0}, False, []),
    ],
)
def test_news_of_the_leader_resync_those_who_have_to_do_with_it(
    old: dict[str, Any], new: dict[str, Any], urgent: bool, resynced: list[str]
) -> None:
    """Who needs the leader begins by itself when its kinds are listed; addresses are urgent."""
    engine = both()
    engine.settle()
    engine.have_leader(replace(LEADER, **old))
    engine.turn()
    engine.taken()
    engine.put(ApiService, "change")
    engine.taken()
    engine.have_leader(replace(LEADER, **new))
    engine.turn()
    engine.put(ApiService, "later")
    entries = engine.taken()
    assert sorted({name for name, key in entries if key == "all"}) == resynced
    if "writer" in resynced:  # the keys of a resync wait for those of changes
        order = [key for name, key in entries if name == "writer"]
        assert (order.index("all") < order.index("later")) is urgent


@pytest.mark.parametrize(
    ("field_name", "value", "is_shown"),
    [
        ("error", "refused", True),
        ("token_error", "HTTP 403", True),
        ("token", TokenClaims(issued=1.0, expires=2.0, namespace="area", account="east"), True),
        ("connected", False, True),
        ("since", 7.0, False),
    ],
)
def test_what_the_cluster_set_shows_of_the_leader_is_a_change_of_it(
    field_name: str, value: Any, is_shown: bool
) -> None:
    """Reconcilers of ClusterSets hear of it, as long as there is one."""
    engine = both()
    engine.settle()
    engine.have_leader(replace(LEADER, connected=True))
    engine.put(ClusterSet, "blue")
    engine.turn()
    engine.taken()
    changes: dict[str, Any] = {"connected": True, field_name: value}
    engine.have_leader(replace(LEADER, **changes))
    assert engine.taken() == ([("imports", "blue")] if is_shown else [])


def test_a_leader_that_was_away_has_to_accept_each_object_again() -> None:
    """What it accepted before may be lost."""
    engine = both()
    engine.settle()
    engine.have_leader(replace(LEADER, connected=True))
    assert not engine.view.accepted(IMPORT)
    engine.written.succeeded(IMPORT, 0)
    engine.have_leader(replace(LEADER, connected=True, synced=True))
    assert engine.view.accepted(IMPORT)
    engine.have_leader(replace(LEADER, connected=False))
    assert not engine.view.accepted(IMPORT)


def test_a_membership_that_begins_or_ends_concerns_all_reconcilers() -> None:
    """All keys are enqueued."""
    engine = both()
    engine.settle()
    engine.have_leader(None)
    engine.turn()
    assert sorted(engine.taken()) == [("services", "all"), ("writer", "all")]
    engine.have_leader(LEADER)
    engine.turn()
    assert sorted(engine.taken()) == [("imports", "all"), ("services", "all"), ("writer", "all")]


def test_a_reconciler_that_trips_over_a_change_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a change nor a resync; both are logged and counted."""
    broken = Named("broken", SERVICES, broken=True)
    engine = TurnByTurn(broken, Named("services", SERVICES), member=False)
    engine.list_all()
    engine.turn()
    assert engine.taken() == [("services", "all")]
    assert "broken: all_keys() failed" in caplog.messages
    assert engine.worker.statistics.results() == {("broken", "bug"): 1}
    engine.put(ApiService, "web")
    assert engine.taken() == [("services", "web")]
    assert "broken: keys() of a change of a Service failed" in caplog.messages
    assert engine.worker.statistics.results() == {("broken", "bug"): 2}
    assert all(record.exc_info for record in caplog.records)  # the log has the tracebacks
    assert engine.idle()


def test_an_engine_reads_what_its_reconcilers_declare() -> None:
    """A member also its ClusterSets and claims, and each engine what other code reads."""
    leads = TurnByTurn(Named("services", SERVICES), member=False, also=[Kind.NODE])
    assert leads.cache.kinds(Side.LOCAL) == {Kind.SERVICE, Kind.NODE}
    assert leads.cache.kinds(Side.LEADER) == frozenset()
    assert leads.connection is None
    assert leads.view.leader is None
    member = both()
    assert member.cache.kinds(Side.LOCAL) == {Kind.SERVICE, Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM}
    assert member.cache.kinds(Side.LEADER) == {Kind.RESOURCE_IMPORT}
    states = member.informers()
    assert [state.kind for state in states[Side.LOCAL]] == sorted(member.cache.kinds(Side.LOCAL))
    assert states[Side.LEADER] == []
    assert leads.informers()[Side.LEADER] == ()


def test_two_reconcilers_of_one_name_are_refused() -> None:
    """Their keys and metrics could not be told apart."""
    with pytest.raises(ValueError, match=r"^two reconcilers have one name$"):
        TurnByTurn(Named("a", SERVICES), Named("a", IMPORTS))


def test_what_waits_is_counted_over_both_sides() -> None:
    """By reconciler those that wait for a worker; together those that wait for their time or are under way."""
    engine = both()
    engine.settle()
    assert engine.idle()
    engine.put(ApiService, "web")
    assert not engine.idle()
    engine.begin_one_of_each_side()
    assert engine.depths() == {"services": 0, "imports": 0, "writer": 0}
    assert engine.waiting() == (2, 2)
    assert not engine.idle()
