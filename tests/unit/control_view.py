"""Reconcilers of the control plane over API servers in memory: no threads, no network, own time.

`Api` is the store of the embedded API server. `MemoryView` is what a reconciler reads; `Controller` carries out
what it returns until nothing changes, as `mcagent.controller.machinery.engine` does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Network
from itertools import count
from typing import Any, cast

from devtools.apiserver.errors import ApiError
from devtools.apiserver.objects.registry import Registry
from devtools.apiserver.objects.resources import BUILT_IN, ResourceType
from devtools.apiserver.objects.services import ServiceAddresses
from devtools.apiserver.storage.merge import merge_patch
from devtools.apiserver.storage.store import Store
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
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object


def typed(raw: RawObject, kind: Kind | None = None) -> Any:
    """Return an object as informers deliver it."""
    return read_object(kind or Kind(raw["kind"]), raw)


def change_of(kind: Kind, old: RawObject | None, new: RawObject | None, side: Side = Side.LOCAL) -> ObjectChange:
    """Return the change from one object to another."""
    before, after = (None if raw is None else typed(raw, kind) for raw in (old, new))
    return ObjectChange(side=side, kind=kind, old=before, new=after)


START = 1_700_000_000.0  # seconds since the epoch at which a Clock begins
Key = tuple[Kind, str, str]
Watcher = Callable[[Kind, RawObject | None, RawObject | None], None]


class Clock:
    """Time that a test moves by hand."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now += seconds


def timestamp(now: float) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class RefusedError(Exception):
    """The API server refuses a write."""


def _resource_type(kind: Kind) -> ResourceType:
    info = KINDS[kind]
    for rt in BUILT_IN:
        if (rt.group, rt.plural) == (info.group, info.plural):
            return rt if rt.versions[0] == info.version else replace(rt, versions=(info.version,))
    return ResourceType(
        group=info.group,
        versions=(info.version,),
        plural=info.plural,
        kind=info.name,
        namespaced=info.namespaced,
        custom=True,
    )


TYPES = {kind: _resource_type(kind) for kind in KINDS}
_KINDS = {rt.store_key: kind for kind, rt in TYPES.items()}


class Api:
    """One API server's objects: the embedded server's store, in memory, with a clock that a test moves.

    `refuse` (kind, old, new) returns why a write is not allowed, "" if it is: what an admission webhook does.
    While it is asked, `caller` is the user name of the controller that writes.
    """

    def __init__(
        self, clock: Clock, *, service_cidr: str = "10.96.0.0/16", namespaces: Iterable[str] = ()
    ) -> None:
        self.clock = clock
        self.refuse: Callable[[Kind, RawObject | None, RawObject | None], str] = lambda kind, old, new: ""
        self.caller = ""
        self.writes: list[str] = []  # "create Service default/web", ... of controllers only
        self.changes: dict[Key, float] = {}  # when objects were last written
        numbers = count(1)
        self._store = Store(
            Registry(TYPES.values()),
            addresses=ServiceAddresses(IPv4Network(service_cidr)),
            now=lambda: timestamp(clock()),
            uid=lambda: f"uid-{next(numbers)}",
        )
        self.watch(self._note)
        for name in namespaces:
            self.put({"kind": "Namespace", "metadata": {"name": name}})

    def _note(self, kind: Kind, old: RawObject | None, new: RawObject | None) -> None:
        meta = (new or old or {})["metadata"]
        self.changes[kind, meta.get("namespace", ""), meta["name"]] = self.clock()

    def watch(self, watcher: Watcher) -> None:
        """Call this with every change from now on."""
        self._store.listen(lambda rt, _key, old, new: watcher(_KINDS[rt.store_key], old, new))

    def get(self, kind: Kind, namespace: str, name: str) -> RawObject | None:
        """Return an object, None if there is none."""
        stored = self._store.find(TYPES[kind], namespace, name)
        return stored.obj if stored else None

    def list(self, kind: Kind, namespace: str | None = None) -> list[RawObject]:
        """Return the objects of a kind, sorted by namespace and name."""
        return [stored.obj for stored in self._store.select(TYPES[kind], namespace or "")[0]]

    def objects(self) -> dict[Key, RawObject]:
        """Return all objects as they are now."""
        return {
            (kind, *stored.key): stored.obj
            for kind, rt in TYPES.items()
            for stored in self._store.select(rt, "")[0]
        }

    def changed(self, kind: Kind, namespace: str, name: str) -> float:
        """Return when an object was last written, by this test's clock."""
        return self.changes.get((kind, namespace, name), self.clock())

    def put(self, obj: RawObject, *, created: str | None = None) -> RawObject:
        """Create or replace an object, as a person with all rights does. Metadata and status given are taken."""
        obj = copy.deepcopy(obj)
        if created is not None:
            obj["metadata"]["creationTimestamp"] = created
        return self._store.put(TYPES[Kind(obj["kind"])], obj).obj

    def change(self, kind: Kind, namespace: str, name: str, patch: RawObject) -> RawObject:
        """Merge fields into an object that is there, as a person with all rights does."""
        old = self._store.get(TYPES[kind], namespace, name).obj
        return self._store.put(TYPES[kind], merge_patch(old, patch)).obj

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object if it is there; one with finalizers stays until they are gone."""
        if self._store.find(TYPES[kind], namespace, name):
            self._store.delete(TYPES[kind], namespace, name)

    def apply(self, wanted: Wanted) -> bool:
        """Make an object what a reconciler wants; tell whether that took a write. Raises RefusedError."""
        try:
            return self._apply(wanted, TYPES[wanted.ref.kind])
        except ApiError as err:
            raise RefusedError(err.message) from None

    def _apply(self, wanted: Wanted, rt: ResourceType) -> bool:
        ref = wanted.ref
        place = (rt, ref.namespace, ref.name)
        stored = self._store.find(*place)
        if stored is None and not wanted.create:
            return False
        body = {**wanted.body, **({"status": wanted.status} if wanted.status is not None else {})}
        if stored is None:
            new = merge_patch({"metadata": {"name": ref.name, "namespace": ref.namespace}}, body)
            self._check(ref.kind, None, new)
            self._store.create(rt, ref.namespace, new)
        else:
            new = merge_patch(stored.obj, body)
            tried = self._store.update(*place, lambda _old: new, dry_run=True)
            if tried is stored and not (rt.status and new.get("status") != stored.obj.get("status")):
                return False
            self._check(ref.kind, stored.obj, new)
            self._store.update(*place, lambda _old: new)
        if rt.status and "status" in new and self._store.find(*place):
            status = {"status": new["status"]}
            self._store.update(*place, lambda old: {**old, **status}, subresource="status")
        self.writes.append(f"{'create' if stored is None else 'update'} {_name(ref)}")
        return True

    def delete(self, ref: Ref) -> bool:
        """Delete an object for a reconciler; tell whether that took a write. Raises RefusedError."""
        old = self.get(ref.kind, ref.namespace, ref.name)
        if old is None or "deletionTimestamp" in old["metadata"]:
            return False
        self._check(ref.kind, old, None)
        self.writes.append(f"delete {_name(ref)}")
        self.remove(ref.kind, ref.namespace, ref.name)
        return True

    def _check(self, kind: Kind, old: RawObject | None, new: RawObject | None) -> None:
        reason = self.refuse(kind, old, new)
        if reason:
            raise RefusedError(reason)


def _name(ref: Ref) -> str:
    return f"{ref.kind} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind} {ref.name}"


class MemoryView:
    """What reconcilers read. `leader_api` is the API server of the leader, if there is one.

    While `leader.connected` is False, the leader's objects stay as they were, and writes to it fail.
    """

    def __init__(
        self,
        local: Api,
        *,
        namespace: str = "kube-system",
        leader_api: Api | None = None,
        leader: Leader | None = None,
    ) -> None:
        self.namespace = namespace
        self.local = local
        self.leader_api = leader_api
        self.failures: dict[Ref, str] = {}
        self.lost: dict[Side, Sequence[str]] = {}
        self._leader = leader
        self._frozen: dict[Key, RawObject] | None = None
        self._decoded: dict[int, tuple[RawObject, ApiObject]] = {}

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

    def api(self, side: Side) -> Api | None:
        """Return the API server of a side."""
        return self.local if side is Side.LOCAL else self.leader_api

    def _readable(self, side: Side) -> Api | None:
        return None if side is Side.LEADER and self._leader is None else self.api(side)

    def decoded(self, kind: Kind, raw: RawObject) -> ApiObject:
        """Return an object as informers deliver it: the same value while it is the same object."""
        entry = self._decoded.get(id(raw))
        if entry is None or entry[0] is not raw:
            entry = self._decoded[id(raw)] = (raw, read_object(kind, raw))
        return entry[1]

    def get(self, ref: Ref, cls: type[Object]) -> Object | None:
        """Return an object, None if there is none."""
        raw = self._find(ref)
        obj = None if raw is None else self.decoded(ref.kind, raw)
        assert obj is None or isinstance(obj, cls)
        return obj

    def _find(self, ref: Ref) -> RawObject | None:
        if ref.side is Side.LEADER and self._frozen is not None:
            return self._frozen.get((ref.kind, ref.namespace, ref.name))
        api = self._readable(ref.side)
        return api.get(ref.kind, ref.namespace, ref.name) if api else None

    def list(self, cls: type[Object], side: Side = Side.LOCAL, namespace: str | None = None) -> Sequence[Object]:
        """Return the objects of a kind, sorted."""
        return cast("list[Object]", [self.decoded(cls.KIND, raw) for raw in self._list(cls.KIND, side, namespace)])

    def _list(self, kind: Kind, side: Side, namespace: str | None) -> Sequence[RawObject]:
        if side is Side.LEADER and self._frozen is not None:
            keys = sorted(key for key in self._frozen if key[0] is kind and namespace in (None, key[1]))
            return [self._frozen[key] for key in keys]
        api = self._readable(side)
        return api.list(kind, namespace) if api else []

    def indexed(self, index: Index[Object], value: str) -> Sequence[Object]:
        """Return the objects that an index files under a value."""
        return [obj for obj in self.list(index.of, index.side) if value in set(index.values(obj))]

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
        return self.get(ref, ApiObject) is not None and ref not in self.failures

    def dropped_fields(self, side: Side) -> Sequence[str]:
        """Return what an API server does not keep."""
        return self.lost.get(side, ())


class Controller:
    """Runs reconcilers, one key after the other. `events` has the last of each key, `past_events` all."""

    def __init__(self, view: MemoryView, reconcilers: Sequence[Reconciler], user: str = "") -> None:
        self.view = view
        self.user = user
        self.reconcilers = tuple(reconcilers)
        self.events: dict[tuple[str, str], tuple[Event, ...]] = {}
        self.past_events: list[Event] = []
        self.again: dict[tuple[str, str], float] = {}
        self.looks = 0  # at keys, so far
        self.closed = False  # one that ended sees and does nothing more
        self._queue: dict[tuple[int, str], None] = {}
        view.local.watch(lambda kind, old, new: self._change(Side.LOCAL, kind, old, new))
        if view.leader_api is not None:
            view.leader_api.watch(lambda kind, old, new: self._change(Side.LEADER, kind, old, new))

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
                for key in reconciler.keys(change, DeclaredView(self.view, reconciler)):
                    self._queue[number, key] = None

    def enqueue_all(self) -> None:
        """Put every key of every reconciler into the queue, as at start and after a reconnect."""
        for number, reconciler in enumerate(self.reconcilers):
            for key in reconciler.all_keys(DeclaredView(self.view, reconciler)):
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
        outcome = reconciler.desired(key, DeclaredView(self.view, reconciler), self.view.local.clock())
        check_writes(reconciler, outcome)
        self._carry_out(reconciler, key, outcome)
        return True

    def _carry_out(self, reconciler: Reconciler, key: str, outcome: DesiredObjects) -> None:
        self.events[reconciler.name, key] = tuple(outcome.events)
        self.past_events.extend(outcome.events)
        self.again.pop((reconciler.name, key), None)
        if outcome.again is not None:
            self.again[reconciler.name, key] = self.view.local.clock() + outcome.again
        for item in outcome.steps:
            ref = item if isinstance(item, Ref) else item.ref
            try:
                self._write(item, ref)
            except RefusedError as err:
                self.view.failures[ref] = str(err)
                return
            self.view.failures.pop(ref, None)

    def _write(self, item: Wanted | Ref, ref: Ref) -> None:
        api = self.view.api(ref.side)
        leader = self.view.leader
        if api is None or (ref.side is Side.LEADER and (leader is None or not leader.connected)):
            raise RefusedError("the leader is not connected")
        api.caller = self.user
        if isinstance(item, Ref):
            api.delete(item)
        else:
            api.apply(item)

    def run(self, limit: int = 10_000) -> int:
        """Work until the queue is empty; return how many keys that were. Fails when it does not end."""
        for worked in range(limit):
            if not self.step():
                return worked
        raise AssertionError(f"no end after {limit} keys: {list(self._queue)[:5]}")

    def due(self) -> None:
        """Put the keys into the queue whose time to be called once more has come."""
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
        return [event for _, some in sorted(self.events.items()) for event in some]
