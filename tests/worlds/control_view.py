"""Reconcilers of the control plane over objects in memory: no threads, no network, own time.

`MemoryView` is what a reconciler reads; `Controller` carries out what it returns until nothing changes, as
`mcagent.controller.machinery.engine` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcagent.controller.machinery.apply import RefusedStepError
from mcagent.controller.machinery.reconciler import (
    DesiredObjects,
    Index,
    Leader,
    Object,
    ObjectChange,
    Reconciler,
    Ref,
    Side,
    Wanted,
    check_writes,
)
from mcagent.controller.machinery.view import DeclaredView
from mcagent.kube.source import RawObject
from mcagent.model.api.base import ApiObject
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from tests.worlds.memory_objects import Key, MemoryObjects, RefusedError, typed


def change_of(kind: Kind, old: RawObject | None, new: RawObject | None, side: Side = Side.LOCAL) -> ObjectChange:
    """Return the change from one object to another."""
    before, after = (None if raw is None else typed(raw, kind) for raw in (old, new))
    return ObjectChange(side=side, kind=kind, old=before, new=after)


class MemoryView:
    """What reconcilers read. `leader_api` is the API server of the leader, if there is one.

    While `leader.connected` is False, the leader's objects stay as they were, and writes to it fail.
    """

    def __init__(
        self,
        local: MemoryObjects,
        *,
        namespace: str = "kube-system",
        leader_api: MemoryObjects | None = None,
        leader: Leader | None = None,
    ) -> None:
        self.namespace = namespace
        self.local = local
        self.leader_api = leader_api
        self.failures: dict[Ref, str] = {}
        self.successes: set[Ref] = set()
        self.lost: dict[Side, Sequence[str]] = {}
        self.events_by_entry: dict[tuple[str, str], tuple[Event, ...]] = {}  # of reconciler and key
        self._leader = leader
        self._frozen: dict[Key, RawObject] | None = None
        self._times_frozen = 0
        self._decoded: dict[int, tuple[RawObject, ApiObject]] = {}
        # Lists, and objects by the values of an index, each with the revision (`_revision`) of which they are.
        self._listed: dict[tuple[Kind, Side, str | None], tuple[object, Sequence[ApiObject]]] = {}
        self._indexed: dict[tuple[Side, str], tuple[object, Mapping[str, Sequence[ApiObject]]]] = {}
        self._filed: dict[tuple[str, int], tuple[ApiObject, frozenset[str]]] = {}

    @property
    def leader(self) -> Leader | None:
        """Return the membership."""
        return self._leader

    @leader.setter
    def leader(self, leader: Leader | None) -> None:
        self._leader = leader
        away = leader is not None and not leader.connected
        if not away:
            self._frozen = None
        elif self._frozen is None and self.leader_api is not None:
            self._frozen = self.leader_api.objects()
            self._times_frozen += 1

    def api(self, side: Side) -> MemoryObjects | None:
        """Return the API server of a side."""
        return self.local if side is Side.LOCAL else self.leader_api

    def _readable(self, side: Side) -> MemoryObjects | None:
        return None if side is Side.LEADER and self._leader is None else self.api(side)

    def decoded(self, kind: Kind, raw: RawObject) -> ApiObject:
        """Return an object as informers deliver it: the same value while it is the same object."""
        entry = self._decoded.get(id(raw))
        if entry is None or entry[0] is not raw:
            entry = self._decoded[id(raw)] = (raw, read_object(kind, raw))
        return entry[1]

    def get(self, ref: Ref, cls: type[Object]) -> Object | None:
        """Return an object, None if there is none."""
        assert issubclass(cls, ApiObject)  # as the type of what may be there, also if nothing is
        raw = self._find(ref)
        obj = None if raw is None else self.decoded(ref.kind, raw)
        assert obj is None or isinstance(obj, cls)
        return obj

    def _find(self, ref: Ref) -> RawObject | None:
        if ref.side is Side.LEADER and self._frozen is not None:
            return self._frozen.get((ref.kind, ref.namespace, ref.name))
        api = self._readable(ref.side)
        return api.get(ref.kind, ref.namespace, ref.name) if api else None

    def _revision(self, kind: Kind, side: Side) -> tuple[object, int]:
        """Return a value that is equal as long as the objects of a kind are the same."""
        if side is Side.LEADER and self._frozen is not None:
            return "frozen", self._times_frozen
        api = self._readable(side)
        return api, api.revisions[kind] if api else 0

    def list(self, cls: type[Object], side: Side = Side.LOCAL, namespace: str | None = None) -> Sequence[Object]:
        """Return the objects of a kind, sorted."""
        key, revision = (cls.KIND, side, namespace), self._revision(cls.KIND, side)
        if key not in self._listed or self._listed[key][0] != revision:
            objects = [self.decoded(cls.KIND, raw) for raw in self._list(cls.KIND, side, namespace)]
            self._listed[key] = (revision, objects)
        return cast("list[Object]", self._listed[key][1])

    def _list(self, kind: Kind, side: Side, namespace: str | None) -> Sequence[RawObject]:
        if side is Side.LEADER and self._frozen is not None:
            keys = sorted(key for key in self._frozen if key[0] is kind and namespace in (None, key[1]))
            return [self._frozen[key] for key in keys]
        api = self._readable(side)
        return api.list(kind, namespace) if api else []

    def indexed(self, index: Index[Object], value: str) -> Sequence[Object]:
        """Return the objects that an index files under a value."""
        key, revision = (index.side, index.name), self._revision(index.of.KIND, index.side)
        if key not in self._indexed or self._indexed[key][0] != revision:
            by_value: dict[str, list[ApiObject]] = {}
            for obj in self.list(index.of, index.side):
                for filed_under in self._filed_under(index, obj):
                    by_value.setdefault(filed_under, []).append(obj)
            self._indexed[key] = (revision, by_value)
        return cast("Sequence[Object]", self._indexed[key][1].get(value, ()))

    def _filed_under(self, index: Index[Object], obj: Object) -> frozenset[str]:
        """Return the values under which an index files an object, computed once."""
        key = (index.name, id(obj))
        if key not in self._filed or self._filed[key][0] is not obj:
            self._filed[key] = (obj, frozenset(index.values(obj)))
        return self._filed[key][1]

    def count(self, index: Index[Any], value: str) -> int:
        """Return how many objects an index files under a value."""
        return len(self.indexed(index, value))

    def quiet_for(self, ref: Ref) -> float:
        """Return for how many seconds an object has been as it is."""
        api = self.api(ref.side)
        if api is None or self.get(ref, ApiObject) is None:
            return 0.0
        return api.clock() - api.changed(ref.kind, ref.namespace, ref.name)

    def failure(self, ref: Ref) -> str:
        """Return why the last write of an object was refused."""
        return self.failures.get(ref, "")

    def accepted(self, ref: Ref) -> bool:
        """Tell whether an object's last write went well."""
        return ref in self.successes

    def dropped_fields(self, side: Side) -> Sequence[str]:
        """Return what an API server does not keep."""
        return self.lost.get(side, ())

    def events(self, reconciler: str) -> Mapping[str, frozenset[Event]]:
        """Return the Events of a reconciler, by key."""
        return {
            key: frozenset(events) for (name, key), events in self.events_by_entry.items() if name == reconciler
        }


class Controller:
    """Runs reconcilers, one key after the other. `events` has the last of each key, `past_events` all."""

    def __init__(self, view: MemoryView, reconcilers: Sequence[Reconciler], user: str = "") -> None:
        self.view = view
        self.user = user
        self.reconcilers = tuple(reconcilers)
        self._views: dict[int, DeclaredView] = {}  # by the ID of a reconciler, which its view keeps
        self.events: dict[tuple[str, str], tuple[Event, ...]] = {}
        view.events_by_entry = self.events
        self.past_events: list[Event] = []
        self.again: dict[tuple[str, str], float] = {}
        self.looks = 0  # at keys, so far
        self.closed = False  # one that ended sees and does nothing more
        self._queue: dict[tuple[int, str], None] = {}
        view.local.watch(lambda kind, old, new: self._change(Side.LOCAL, kind, old, new))
        if view.leader_api is not None:
            view.leader_api.watch(lambda kind, old, new: self._change(Side.LEADER, kind, old, new))

    def _view_of(self, reconciler: Reconciler) -> DeclaredView:
        if id(reconciler) not in self._views:
            self._views[id(reconciler)] = DeclaredView(self.view, reconciler)
        return self._views[id(reconciler)]

    def _change(self, side: Side, kind: Kind, old: RawObject | None, new: RawObject | None) -> None:
        leader = self.view.leader
        if self.closed:
            return
        if side is Side.LEADER and (leader is None or not leader.connected):
            return
        before, after = (None if raw is None else self.view.decoded(kind, raw) for raw in (old, new))
        change = ObjectChange(side=side, kind=kind, old=before, new=after)
        for number, reconciler in enumerate(self.reconcilers):
            if kind in reconciler.reads.on(side):
                for key in reconciler.keys(change, self._view_of(reconciler)):
                    self._queue[number, key] = None

    def enqueue_all(self) -> None:
        """Put every key of every reconciler into the queue, as at start and after a reconnect."""
        for number, reconciler in enumerate(self.reconcilers):
            for key in reconciler.all_keys(self._view_of(reconciler)):
                self._queue[number, key] = None

    def step(self, place: int = 0) -> bool:
        """Work on one key of the queue, by its place; tell whether there was one."""
        if not self._queue:
            return False
        number, key = list(self._queue)[place % len(self._queue)] if place else next(iter(self._queue))
        del self._queue[number, key]
        reconciler = self.reconcilers[number]
        self.looks += 1
        leader = self.view.leader
        if reconciler.needs_leader and (leader is None or not leader.synced):
            return True
        outcome = reconciler.desired(key, self._view_of(reconciler), self.view.local.clock())
        check_writes(reconciler, outcome)
        self._carry_out(reconciler, key, outcome)
        return True

    def _carry_out(self, reconciler: Reconciler, key: str, outcome: DesiredObjects) -> None:
        self.events[reconciler.name, key] = tuple(outcome.events)
        self.past_events.extend(outcome.events)
        self.again.pop((reconciler.name, key), None)
        if outcome.again is not None:
            self.again[reconciler.name, key] = self.view.local.clock() + outcome.again
        deleted = {step for step in outcome.steps if isinstance(step, Ref)}
        created = {step.ref for step in outcome.steps if isinstance(step, Wanted) and step.create}
        assert not deleted & created, f"{reconciler.name} {key}: created and deleted again, without end"
        for item in outcome.steps:
            ref = item if isinstance(item, Ref) else item.ref
            try:
                self._write(item, ref)
            except (RefusedError, RefusedStepError) as err:
                self.view.failures[ref] = str(err)
                self.view.successes.discard(ref)
                return
            self.view.failures.pop(ref, None)
            if isinstance(item, Wanted):
                self.view.successes.add(ref)
            else:
                self.view.successes.discard(ref)

    def _write(self, item: Wanted | Ref, ref: Ref) -> None:
        api = self.view.api(ref.side)
        leader = self.view.leader
        if api is None or (ref.side is Side.LEADER and (leader is None or not leader.connected)):
            raise RefusedError("the leader is not connected")
        api.caller = self.user
        api.carry_out(item)

    def run(self, limit: int = 10_000) -> int:
        """Work until the queue is empty; return how many keys that were. Fails when it does not end."""
        for worked in range(limit):
            if not self.step():
                return worked
        raise AssertionError(f"no end after {limit} keys: {list(self._queue)[:5]}")

    def due(self) -> None:
        """Put the keys into the queue whose time to be called once more has come."""
        if self.closed:
            return
        now = self.view.local.clock()
        numbers = {reconciler.name: number for number, reconciler in enumerate(self.reconcilers)}
        for (name, key), at in list(self.again.items()):
            if at <= now:
                del self.again[name, key]
                self._queue[numbers[name], key] = None

    def settle(self) -> None:
        """Work on every key, until nothing changes."""
        self.enqueue_all()
        self.run()

    def all_events(self) -> list[Event]:
        """Return all Events that there should be now."""
        return [event for _, events in sorted(self.events.items()) for event in events]
