"""The objects of both sides as they were last seen, filled by informers and by the answers to our own writes.

Owns the stores of both sides, and what changed. Nothing goes back in time: an event that is older than the answer
to a write of ours is passed over, so a reconciler sees its own writes at once. Objects are shared and never
changed. Knows no client and no reconciler.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from mcagent.controller.machinery.reconciler import AnyIndex, Index, Object, ObjectChange, Ref, Side
from mcagent.kube.source import EventType, WatchEvent
from mcagent.kube.store import Store, is_gone, is_newer, key_of
from mcagent.model.api.base import ApiObject
from mcagent.model.objects import Kind


class Cache:
    """Both sides' objects. Safe to use from many threads.

    `listen` is called, without any lock held, with the changes of one event or list, in the order in which they
    happened to each object; and with none once a kind has been listed for the first time.
    """

    def __init__(
        self,
        kinds: Mapping[Side, Iterable[Kind]],
        indexes: Iterable[AnyIndex] = (),
        listen: Callable[[Sequence[ObjectChange]], None] = lambda _changes: None,
    ) -> None:
        """Raises ValueError when two indexes of a side share a name, or one is over a kind that is not read."""
        self._lock = threading.Lock()
        self._listen = listen
        indexes = list(dict.fromkeys(indexes))  # several reconcilers may declare the same one
        self._by_name: set[tuple[Side, str]] = set()
        for index in indexes:
            if index.kind not in set(kinds.get(index.side, ())):
                raise ValueError(f"index {index.name}: {index.kind} is not read from {index.side}")
            if (index.side, index.name) in self._by_name:
                raise ValueError(f"index {index.name}: there are two of this name")
            self._by_name.add((index.side, index.name))
        self._stores = {
            (side, kind): Store({i.name: i.values for i in indexes if (i.side, i.kind) == (side, kind)})
            for side, of_side in kinds.items()
            for kind in of_side
        }

    # --- reading ------------------------------------------------------------------------------------------

    def get(self, ref: Ref, cls: type[Object]) -> Object | None:
        """Return an object of the kind that `ref` names, None if there is none."""
        with self._lock:
            obj = self._store(ref.side, ref.kind).objects.get((ref.namespace, ref.name))
        assert obj is None or isinstance(obj, cls)
        return obj

    def list(self, cls: type[Object], side: Side, namespace: str | None = None) -> Sequence[Object]:
        """Return all objects of a kind, or of one namespace of it, sorted by namespace and name."""
        with self._lock:
            store = self._store(side, cls.KIND)
            order = store.order
            if namespace is not None:
                first = bisect_left(order, (namespace, ""))
                order = order[first : bisect_left(order, (namespace + "\0", ""))]
            return cast("list[Object]", [store.objects[key] for key in order])

    def indexed(self, index: Index[Object], value: str) -> Sequence[Object]:
        """Return the objects that an index files under a value. Raises KeyError for one that is not kept."""
        with self._lock:
            store = self._store(index.side, index.kind)
            return cast("list[Object]", [store.objects[key] for key in store.filed[index.name].get(value, ())])

    def has_index(self, index: Index[Object]) -> bool:
        """Tell whether an index is kept."""
        return (index.side, index.name) in self._by_name

    def count_indexed(self, index: Index[Object], value: str) -> int:
        """Return how many objects an index files under a value. Raises KeyError for one that is not kept."""
        with self._lock:
            return len(self._store(index.side, index.kind).filed[index.name].get(value, ()))

    def quiet_for(self, ref: Ref) -> float:
        """Return for how many seconds an object has had the version that it has; 0.0: there is none."""
        with self._lock:
            since = self._store(ref.side, ref.kind).seen.get((ref.namespace, ref.name))
        return 0.0 if since is None else max(0.0, time.monotonic() - since)

    def count(self, side: Side, kind: Kind) -> int:
        """Return how many objects of a kind there are."""
        with self._lock:
            return len(self._store(side, kind).objects)

    def synced(self, side: Side) -> bool:
        """Tell whether all kinds of a side have been listed once."""
        with self._lock:
            return all(store.synced for (of, _), store in self._stores.items() if of is side)

    def unsynced(self, side: Side) -> frozenset[Kind]:
        """Return the kinds of a side that were not listed yet."""
        with self._lock:
            return frozenset(kind for (of, kind), store in self._stores.items() if of is side and not store.synced)

    def kinds(self, side: Side) -> frozenset[Kind]:
        """Return the kinds that are kept of a side."""
        return frozenset(kind for of, kind in self._stores if of is side)

    def _store(self, side: Side, kind: Kind) -> Store:
        return self._stores[side, kind]

    # --- writing ------------------------------------------------------------------------------------------

    def sink(self, side: Side) -> SideSink:
        """Return where informers of a side deliver."""
        return SideSink(self, side)

    def replace(self, side: Side, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Replace all objects of a kind by a list."""
        changes: list[ObjectChange] = []
        with self._lock:
            store = self._store(side, kind)
            first = not store.synced
            store.dead.clear()
            incoming = {key_of(obj): obj for obj in objects}
            # Not buried: one that we made while the list was under way is not in it, and its event will come.
            changes.extend(
                ObjectChange(side=side, kind=kind, old=store.drop(key), new=None)
                for key in [key for key in store.order if key not in incoming]
            )
            store.unconfirmed.clear()
            for key, obj in incoming.items():
                old = store.objects.get(key)
                # A list is the truth, also when it goes back (a restored etcd); what it missed comes by watch.
                version = obj.metadata.resource_version
                if old is not None and version and old.metadata.resource_version == version:
                    continue
                store.put(key, obj)
                changes.append(ObjectChange(side=side, kind=kind, old=old, new=obj))
        if changes:
            self._listen(changes)
        if first:
            # Only now: else a resync could see the objects before these changes are passed on, and they would be
            # enqueued twice.
            store.synced = True  # of this store, which may be none of ours any more
            self._listen(())

    def apply(self, side: Side, kind: Kind, event: WatchEvent) -> None:
        """Apply one watch event."""
        obj = event.object
        key = key_of(obj)
        change: ObjectChange | None = None
        with self._lock:
            store = self._store(side, kind)
            store.unconfirmed.pop(key, None)
            old = store.objects.get(key)
            if event.type is EventType.DELETED:
                store.bury(obj)
                # one that was deleted and made again: the event is about the earlier one
                if old is not None and (old.metadata.uid == obj.metadata.uid or is_newer(old, obj)):
                    store.drop(key)
                    change = ObjectChange(side=side, kind=kind, old=old, new=None)
            elif obj.metadata.uid not in store.dead and (old is None or is_newer(old, obj)):
                store.put(key, obj)
                change = ObjectChange(side=side, kind=kind, old=old, new=obj)
        if change is not None:
            self._listen([change])

    def wrote(self, ref: Ref, obj: ApiObject | None, was: ApiObject | None = None) -> None:
        """Apply the answer to a write or a read of ours: what is there (None: nothing).

        `was` is what was there as far as we knew: that is what is gone, not an object created since.
        """
        new = None if obj is None or is_gone(obj) else obj
        key = (ref.namespace, ref.name)
        with self._lock:
            store = self._stores.get((ref.side, ref.kind))
            if store is None:
                return
            old = store.objects.get(key)
            if new is None:
                gone = obj if obj is not None else was
                if gone is not None:
                    store.bury(gone)
                if old is None or gone is None or old.metadata.uid != gone.metadata.uid:
                    return  # what is there now was made while the answer was under way
                store.drop(key)
            elif new.metadata.uid in store.dead or (old is not None and not is_newer(old, new)):
                return
            else:
                store.put(key, new)
                if old is None:
                    store.unconfirmed[key] = time.monotonic()
        self._listen([ObjectChange(side=ref.side, kind=ref.kind, old=old, new=new)])

    def forget_unconfirmed(self, seconds: float) -> None:
        """Forget objects that only answers have shown, and no event for so long: they may be deleted by now.

        If it is there after all, the next write finds out.
        """
        before = time.monotonic() - seconds
        changes: list[ObjectChange] = []
        with self._lock:
            for (side, kind), store in self._stores.items():
                old = [key for key, since in store.unconfirmed.items() if since < before]
                changes += [ObjectChange(side=side, kind=kind, old=store.drop(key), new=None) for key in old]
        if changes:
            self._listen(changes)

    def absent(self, side: Side, kind: Kind) -> None:
        """Treat a kind as listed and empty: the API server does not serve it."""
        with self._lock:
            synced = self._store(side, kind).synced
        if not synced:
            self.replace(side, kind, ())

    def clear(self, side: Side) -> None:
        """Forget a side: it is another API server now. Nothing is notified; all keys have to be enqueued."""
        with self._lock:
            for of, kind in list(self._stores):
                if of is side:
                    self._stores[of, kind] = Store(self._stores[of, kind].indexes)


class SideSink:
    """The sink of the informers of one side. After `close` nothing comes through any more."""

    def __init__(self, cache: Cache, side: Side) -> None:
        self._cache, self._side = cache, side
        self._closed = False

    def close(self) -> None:
        """Let nothing through from now on."""
        self._closed = True

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Replace all objects of a kind by a list."""
        if not self._closed:
            self._cache.replace(self._side, kind, objects)

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Apply one watch event."""
        if not self._closed:
            self._cache.apply(self._side, kind, event)

    def forget(self, kind: Kind) -> None:
        """Nothing: what was seen last is kept."""
