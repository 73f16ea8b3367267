"""The cache of the control plane: nothing goes back in time; indexes and order agree with the objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fields

from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Index, ObjectChange, Ref, Side
from mcagent.kube.source import EventType, WatchEvent
from mcagent.model.api.base import Metadata, as_json
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object

KIND = Kind.SERVICE_ACCOUNT
COLOURS = Index(
    name="colours", of=ServiceAccount, side=Side.LOCAL, values=lambda account: [account.labels.get("colour", "")]
)


def obj(name: str, version: int, colour: str = "red", uid: str = "u", namespace: str = "ns") -> ServiceAccount:
    """Return an object as a server gives it."""
    return ServiceAccount(
        metadata=Metadata(
            name=name,
            namespace=namespace,
            uid=f"{uid}-{name}",
            resource_version=str(version),
            labels={"colour": colour},
        )
    )


def ref(name: str) -> Ref:
    """Return the Ref of an object in the namespace ns."""
    return Ref(kind=KIND, namespace="ns", name=name)


def test_a_cache_is_synced_once_all_kinds_are_listed() -> None:
    """Of each side by itself."""
    cache = Cache({Side.LOCAL: [KIND, Kind.NODE]}, [], lambda _changes: None)
    assert not cache.synced(Side.LOCAL)
    assert cache.unsynced(Side.LOCAL) == {KIND, Kind.NODE}
    cache.replace(Side.LOCAL, KIND, [])
    assert not cache.synced(Side.LOCAL)
    assert cache.unsynced(Side.LOCAL) == {Kind.NODE}
    cache.replace(Side.LOCAL, Kind.NODE, [])
    assert cache.synced(Side.LOCAL)


class World:
    """A cache, and what it told."""

    def __init__(self) -> None:
        self.changes: list[ObjectChange] = []
        self.cache = Cache({Side.LOCAL: [KIND]}, [COLOURS], self.changes.extend)

    def event(self, kind: EventType, thing: ServiceAccount) -> None:
        """Deliver an event."""
        self.cache.apply(Side.LOCAL, KIND, WatchEvent(type=kind, object=thing))

    def version(self, name: str) -> str | None:
        """Return the version known of an object."""
        account = self.cache.get(ref(name), ServiceAccount)
        return None if account is None else account.metadata.resource_version


@pytest.fixture
def world() -> World:
    """Give an empty, synced cache."""
    world = World()
    world.cache.replace(Side.LOCAL, KIND, [])
    return world


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["event", "delete", "wrote", "list"]),
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["red", "blue"]),
        st.sampled_from(["ns", "other"]),
    ),
    max_size=30,
)


@given(_STEPS)
def test_order_indexes_and_changes_agree_with_the_objects(steps: list[tuple[str, str, str, str]]) -> None:
    """After any history the index files exactly what is there, sorted, and the changes told lead to it."""
    world = World()
    cache = world.cache
    for version, (action, name, colour, namespace) in enumerate(steps, start=1):
        thing = obj(name, version, colour, uid=f"{version}", namespace=namespace)
        if action == "event":
            world.event(EventType.MODIFIED, thing)
        elif action == "delete":
            world.event(EventType.DELETED, thing)
        elif action == "wrote":
            cache.wrote(Ref(kind=KIND, namespace=namespace, name=name), thing)
        else:
            cache.replace(Side.LOCAL, KIND, [thing])
    mirror: dict[tuple[str, str], Any] = {}
    for change in world.changes:
        changed_object = change.new or change.old
        assert changed_object is not None
        key = (changed_object.namespace, changed_object.name)
        assert mirror.get(key) == change.old
        mirror[key] = change.new
    remaining = {key: value for key, value in mirror.items() if value is not None}
    listed = list(cache.list(ServiceAccount, Side.LOCAL))
    assert listed == [remaining[key] for key in sorted(remaining)]
    for namespace in ("ns", "other", "n"):
        assert list(cache.list(ServiceAccount, Side.LOCAL, namespace)) == [
            remaining[key] for key in sorted(remaining) if key[0] == namespace
        ]
    for colour in ("red", "blue"):
        assert list(cache.indexed(COLOURS, colour)) == [
            thing for thing in listed if thing.labels["colour"] == colour
        ]
        count = cache.count_indexed(COLOURS, colour)
        assert count == len(cache.indexed(COLOURS, colour))
    assert (cache.has_index(COLOURS), cache.has_index(replace(COLOURS, side=Side.LEADER))) == (True, False)


def test_an_event_older_than_our_own_write_is_passed_over(world: World) -> None:
    """What a write returned stays until something newer comes."""
    world.event(EventType.ADDED, obj("a", 5))
    world.cache.wrote(ref("a"), obj("a", 9))
    world.event(EventType.MODIFIED, obj("a", 7))
    assert world.version("a") == "9"
    world.event(EventType.MODIFIED, obj("a", 11))
    assert world.version("a") == "11"


def test_the_late_answer_to_a_write_does_not_bring_back_what_was_deleted(world: World) -> None:
    """An object that was deleted while our write's answer was under way stays gone."""
    world.event(EventType.ADDED, obj("a", 5))
    world.event(EventType.DELETED, obj("a", 8))
    world.cache.wrote(ref("a"), obj("a", 7))
    assert world.version("a") is None
    world.event(EventType.ADDED, obj("a", 9, uid="second"))
    assert world.version("a") == "9"


def test_events_of_what_we_deleted_do_not_bring_it_back(world: World) -> None:
    """Between our delete and its event, older events of that object say nothing."""
    world.event(EventType.ADDED, obj("a", 5))
    world.cache.wrote(ref("a"), None, obj("a", 5))
    world.event(EventType.MODIFIED, obj("a", 6))
    assert world.version("a") is None


@pytest.mark.parametrize("event_type", ["by its last version", "by nothing"])
def test_the_late_answer_to_a_delete_leaves_what_was_made_since(world: World, event_type: str) -> None:
    """Deleted and made again while the answer to our write was under way: the new one stays, its events count."""
    world.event(EventType.ADDED, obj("a", 5, uid="first"))
    world.event(EventType.DELETED, obj("a", 6, uid="first"))
    world.event(EventType.ADDED, obj("a", 7, uid="second"))
    last = obj("a", 6, uid="first")
    last = replace_fields(last, metadata=replace_fields(last.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    world.cache.wrote(ref("a"), last if event_type == "by its last version" else None, obj("a", 5, uid="first"))
    assert world.version("a") == "7"
    world.event(EventType.MODIFIED, obj("a", 8, uid="second"))
    assert world.version("a") == "8"


def test_a_list_that_missed_our_create_is_mended_by_its_event(world: World) -> None:
    """An object made while a list was under way is forgotten by the list, and known again by the watch."""
    world.cache.wrote(ref("a"), obj("a", 5))
    world.cache.replace(Side.LOCAL, KIND, [])
    world.event(EventType.ADDED, obj("a", 5))
    assert world.version("a") == "5"


def test_what_no_event_confirms_is_forgotten(world: World) -> None:
    """An object known from an answer alone is forgotten after a while; one that a watch told of is not."""
    world.cache.wrote(ref("a"), obj("a", 5))
    world.cache.wrote(ref("b"), obj("b", 6))
    world.event(EventType.ADDED, obj("b", 6))
    world.cache.forget_unconfirmed(3600.0)
    assert world.version("a") == "5"
    world.cache.forget_unconfirmed(-1.0)
    assert (world.version("a"), world.version("b")) == (None, "6")


def test_a_list_may_go_back_in_time(world: World) -> None:
    """After etcd was restored from a backup versions are smaller: a list is the truth all the same."""
    world.event(EventType.ADDED, obj("a", 500, "red"))
    world.cache.replace(Side.LOCAL, KIND, [obj("a", 20, "blue")])
    assert world.version("a") == "20"


def test_an_unchanged_object_of_a_list_is_no_change(world: World) -> None:
    """A relist tells only what differs."""
    world.cache.replace(Side.LOCAL, KIND, [obj("a", 1), obj("b", 2)])
    world.changes.clear()
    world.cache.replace(Side.LOCAL, KIND, [obj("a", 1), obj("b", 3)])
    assert [change.new and change.new.name for change in world.changes] == ["b"]


def test_quiet_time_begins_with_a_version_and_survives_a_relist(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is 0 for what is not there, grows, and starts again with another version only."""
    now = 100.0
    for module in ("controller.machinery.cache", "kube.store"):
        monkeypatch.setattr(f"mcagent.{module}.time", SimpleNamespace(monotonic=lambda: now))
    assert world.cache.quiet_for(ref("a")) == 0.0
    world.event(EventType.ADDED, obj("a", 1))
    now += 1
    assert world.cache.quiet_for(ref("a")) == 1.0
    world.cache.replace(Side.LOCAL, KIND, [obj("a", 1)])
    now += 1
    assert world.cache.quiet_for(ref("a")) == 2.0
    world.event(EventType.MODIFIED, obj("a", 2))
    assert world.cache.quiet_for(ref("a")) == 0.0


def test_bookkeeping_is_not_kept_and_secrets_are_never() -> None:
    """managedFields, what kubectl applied last, and the data of Secrets do not stay in memory."""
    meta = {
        "name": "a",
        "managedFields": [{}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"},
    }
    secret = read_object(Kind.SECRET, {"metadata": meta, "data": {"token": "c2VjcmV0"}})
    assert as_json(secret) == {"metadata": {"name": "a", "annotations": {"mine": "1"}}}


def test_indexes_that_cannot_work_are_refused() -> None:
    """Two of one name, or one over a kind that nobody reads, is a mistake found at start."""
    Cache({Side.LOCAL: [KIND]}, [COLOURS, COLOURS])  # two reconcilers may share one
    with pytest.raises(ValueError, match="two of this name"):
        Cache({Side.LOCAL: [KIND]}, [COLOURS, replace(COLOURS, values=lambda _obj: [])])
    with pytest.raises(ValueError, match="not read"):
        Cache({Side.LOCAL: [Kind.NODE]}, [COLOURS])


def test_a_side_of_another_server_begins_anew() -> None:
    """Its kinds are unknown again, with their indexes; the other side stays, and nothing is reported."""
    changes: list[ObjectChange] = []
    away = replace(COLOURS, side=Side.LEADER)
    cache = Cache({Side.LOCAL: [KIND], Side.LEADER: [KIND]}, [COLOURS, away], changes.extend)
    for side in Side:
        cache.replace(side, KIND, [obj("a", 1)])
    changes.clear()
    cache.clear(Side.LEADER)
    assert changes == []
    assert (cache.synced(Side.LOCAL), cache.synced(Side.LEADER)) == (True, False)
    assert (cache.count(Side.LOCAL, KIND), cache.count(Side.LEADER, KIND)) == (1, 0)
    assert cache.count_indexed(away, "red") == 0
    cache.replace(Side.LEADER, KIND, [obj("b", 1)])
    assert [account.name for account in cache.indexed(away, "red")] == ["b"]
    assert [account.name for account in cache.indexed(COLOURS, "red")] == ["a"]


def test_a_kind_that_is_not_served_counts_as_listed() -> None:
    """Nothing is forgotten of a kind that was listed before."""
    calls: list[Sequence[ObjectChange]] = []
    cache = Cache({Side.LOCAL: [KIND]}, listen=calls.append)
    cache.absent(Side.LOCAL, KIND)
    assert cache.synced(Side.LOCAL)
    assert [list(changes) for changes in calls] == [[]]
    cache.apply(Side.LOCAL, KIND, WatchEvent(type=EventType.ADDED, object=obj("a", 1)))
    cache.absent(Side.LOCAL, KIND)
    assert cache.count(Side.LOCAL, KIND) == 1


def test_the_first_list_is_reported_after_its_changes_and_once() -> None:
    """A listener that looks at what is synced sees the kind so only then."""
    calls: list[tuple[int, bool]] = []
    cache = Cache(
        {Side.LOCAL: [KIND]}, listen=lambda changes: calls.append((len(changes), cache.synced(Side.LOCAL)))
    )
    cache.replace(Side.LOCAL, KIND, [obj("a", 1), obj("b", 1)])
    assert calls == [(2, False), (0, True)]
    cache.replace(Side.LOCAL, KIND, [obj("a", 1), obj("b", 1)])
    assert len(calls) == 2
    cache.replace(Side.LOCAL, KIND, [obj("b", 1)])
    assert calls[2:] == [(1, True)]


def test_changes_have_the_old_and_the_new_object(world: World) -> None:
    """With side and kind: of events, of lists, and of answers to writes."""
    first, second, third = obj("a", 1), obj("a", 2), obj("a", 3)
    world.event(EventType.ADDED, first)
    world.cache.replace(Side.LOCAL, KIND, [second])
    world.cache.wrote(ref("a"), third)
    world.cache.wrote(ref("a"), None, third)
    world.event(EventType.ADDED, obj("b", 4))
    world.event(EventType.DELETED, obj("b", 5))
    world.cache.wrote(ref("c"), obj("c", 6))
    world.cache.forget_unconfirmed(-1.0)
    pairs = [(first, second), (second, third), (third, None), (None, obj("b", 4)), (obj("b", 4), None)]
    pairs += [(None, obj("c", 6)), (obj("c", 6), None)]
    assert world.changes == [
        ObjectChange(side=Side.LOCAL, kind=KIND, old=old, new=new) for old, new in [(None, first), *pairs]
    ]


def test_a_write_of_a_kind_that_is_not_read_is_not_kept(world: World) -> None:
    """Nor is one of the other side."""
    world.cache.wrote(Ref(kind=Kind.NODE, name="n1"), obj("n1", 1, namespace=""))
    world.cache.wrote(replace(ref("a"), side=Side.LEADER), obj("a", 1))
    assert world.changes == []
    assert world.cache.kinds(Side.LOCAL) == {KIND}
    assert world.cache.kinds(Side.LEADER) == frozenset()


def test_an_object_that_a_later_list_lacks_is_not_forgotten_twice(world: World) -> None:
    """What a list has shown is confirmed, and what it lacks is gone."""
    world.cache.wrote(ref("a"), obj("a", 1))
    world.cache.wrote(ref("b"), obj("b", 1))
    world.cache.replace(Side.LOCAL, KIND, [obj("b", 1)])
    world.changes.clear()
    world.cache.forget_unconfirmed(-1.0)
    assert world.changes == []
    assert (world.version("a"), world.version("b")) == (None, "1")


def test_the_end_of_an_earlier_object_is_not_that_of_the_present_one(world: World) -> None:
    """An event that comes late names another uid; one with a later version ends the object all the same."""
    world.event(EventType.ADDED, obj("a", 7, uid="second"))
    world.event(EventType.DELETED, obj("a", 5, uid="first"))
    assert world.version("a") == "7"
    world.event(EventType.DELETED, obj("a", 9, uid="third"))
    assert world.version("a") is None


def test_nothing_comes_through_a_closed_sink() -> None:
    """Informers of a leader that was left may still be at work."""
    cache = Cache({Side.LOCAL: [KIND], Side.LEADER: [KIND]})
    sink = cache.sink(Side.LEADER)
    sink.replace(KIND, [obj("a", 1)])
    sink.apply(KIND, WatchEvent(type=EventType.ADDED, object=obj("b", 2)))
    sink.forget(KIND)
    assert (cache.count(Side.LEADER, KIND), cache.count(Side.LOCAL, KIND)) == (2, 0)
    sink.close()
    sink.replace(KIND, [])
    sink.apply(KIND, WatchEvent(type=EventType.ADDED, object=obj("c", 3)))
    assert cache.count(Side.LEADER, KIND) == 2
