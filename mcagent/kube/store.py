"""A store of the objects of one kind: sorted, indexed, what is gone for good, and since when each is as it is.

It decides only which version of an object is newer. It has no lock: an owner that shares it between threads has
one.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mcagent.model.api.base import ApiObject
from mcagent.supervised import attempt

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace ("" if cluster-scoped), name
IndexFunction = Callable[[Any], Iterable[str]]
NO_INDEXES: Mapping[str, IndexFunction] = MappingProxyType({})
_REMEMBERED = 20_000  # deleted objects of a kind


class Store:
    """All objects of one kind, for one thread at a time. `indexes` turn an object into index values."""

    def __init__(self, indexes: Mapping[str, IndexFunction] = NO_INDEXES) -> None:
        """Begin with nothing, not listed yet."""
        self.objects: dict[Key, ApiObject] = {}
        self.seen: dict[Key, float] = {}  # when this version came; monotonic
        self.order: list[Key] = []
        self.indexes = indexes
        self.filed: dict[str, dict[str, list[Key]]] = {name: defaultdict(list) for name in indexes}
        self.dead: OrderedDict[str, None] = OrderedDict()  # uids of what was deleted of late
        self.unconfirmed: dict[Key, float] = {}  # known from an answer only, since when; monotonic
        self.synced = False

    def put(self, key: Key, obj: ApiObject) -> ApiObject | None:
        """Take an object, and return the one that it replaces."""
        old = self.objects.get(key)
        if old is None:
            insort(self.order, key)
        version = obj.metadata.resource_version
        if old is None or not version or old.metadata.resource_version != version:
            self.seen[key] = time.monotonic()
        self.objects[key] = obj
        for name, index in self.indexes.items():
            before = _values(name, index, old) if old is not None else set()
            after = _values(name, index, obj)
            for value in before - after:
                self._unfile(name, value, key)
            for value in after - before:
                insort(self.filed[name][value], key)
        return old

    def drop(self, key: Key) -> ApiObject | None:
        """Forget an object, and return it."""
        old = self.objects.pop(key, None)
        self.unconfirmed.pop(key, None)
        if old is not None:
            del self.seen[key]
            del self.order[bisect_left(self.order, key)]
            for name, index in self.indexes.items():
                for value in _values(name, index, old):
                    self._unfile(name, value, key)
        return old

    def bury(self, obj: ApiObject) -> None:
        """Remember that an object is gone for good: answers and events that are under way may still report it."""
        if uid := obj.metadata.uid:
            self.dead[uid] = None
            if len(self.dead) > _REMEMBERED:
                self.dead.popitem(last=False)

    def _unfile(self, name: str, value: str, key: Key) -> None:
        keys = self.filed[name][value]
        del keys[bisect_left(keys, key)]
        if not keys:
            del self.filed[name][value]


def _values(name: str, index: IndexFunction, obj: ApiObject) -> set[str]:
    """Return the values under which an index files an object; none where the function fails, which is a bug."""
    values, error = attempt(lambda: set(index(obj)))
    if error is not None:
        log.error("index %s: %s is not indexed, which is a bug", name, key_of(obj), exc_info=error)
    return values or set()


def key_of(obj: ApiObject) -> Key:
    """Return the key of an object."""
    return obj.namespace, obj.name


def is_newer(old: ApiObject, new: ApiObject) -> bool:
    """Tell whether `new` is a later version. Versions are ordered numbers (KEP-5504); others just differ."""
    before, after = old.metadata.resource_version, new.metadata.resource_version
    if before.isdecimal() and after.isdecimal():
        return int(after) > int(before)
    return before != after or not before


def is_gone(obj: ApiObject) -> bool:
    """Tell whether the answer to a write reports an object's end: what held it was taken away."""
    meta = obj.metadata
    return obj.is_deleting and not meta.finalizers and not meta.deletion_grace_period_seconds
