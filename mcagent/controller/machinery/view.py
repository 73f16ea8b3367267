"""What reconcilers see: the cache, the connection, outcomes of writes; each reconciler only what it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.connection.connection import LeaderConnection
from mcagent.controller.machinery.current_events import CurrentEvents
from mcagent.controller.machinery.reconciler import (
    Index,
    Leader,
    Object,
    Reconciler,
    Ref,
    Side,
    UndeclaredAccessError,
    View,
)
from mcagent.controller.machinery.written import WrittenObjects
from mcagent.model.event import Event
from mcagent.model.objects import Kind


class EngineView:
    """Implements `mcagent.controller.machinery.reconciler.View`. Safe to use from many threads."""

    def __init__(
        self,
        cache: Cache,
        namespace: str,
        connection: LeaderConnection | None,
        written: WrittenObjects,
        events: CurrentEvents,
    ) -> None:
        self._cache, self.namespace, self._connection, self._written = cache, namespace, connection, written
        self._events = events

    @property
    def leader(self) -> Leader | None:
        """Return the membership; None while there is no usable ClusterSet (or on a leader's controller)."""
        return self._connection.leader if self._connection is not None else None

    def get(self, ref: Ref, cls: type[Object]) -> Object | None:
        """Return an object, None if there is none."""
        return self._cache.get(ref, cls)

    def list(self, cls: type[Object], side: Side = Side.LOCAL, namespace: str | None = None) -> Sequence[Object]:
        """Return all objects of a kind, those of one namespace if given, sorted by namespace and name."""
        return self._cache.list(cls, side, namespace)

    def indexed(self, index: Index[Object], value: str) -> Sequence[Object]:
        """Return the objects that an index files under a value, sorted likewise."""
        return self._cache.indexed(index, value)

    def count(self, index: Index[Object], value: str) -> int:
        """Return how many objects an index files under a value."""
        return self._cache.count_indexed(index, value)

    def quiet_for(self, ref: Ref) -> float:
        """Return for how many seconds an object has been as it is; 0.0: no object."""
        return self._cache.quiet_for(ref)

    def failure(self, ref: Ref) -> str:
        """Return why the last write of an object was refused, in plain words; "" if it was not."""
        return self._written.failure(ref)

    def accepted(self, ref: Ref) -> bool:
        """Tell whether an object's last write went well, or none was needed; known from the first question on."""
        return self._written.accepted(ref, self._connection.epoch if self._connection is not None else 0)

    def dropped_fields(self, side: Side) -> Sequence[str]:
        """Return "Kind field" of what an API server drops of the objects written to it."""
        return self._written.dropped_fields(side)

    def events(self, reconciler: str) -> Mapping[str, frozenset[Event]]:
        """Return the Events of a reconciler that there should be now, by key."""
        return self._events.of(reconciler)


class DeclaredView:
    """A view as far as one reconciler declares that it reads. Implements `View`."""

    def __init__(self, view: View, reconciler: Reconciler) -> None:
        self._view, self._reconciler = view, reconciler
        self._indexes = {(index.side, index.name) for index in reconciler.indexes}

    @property
    def namespace(self) -> str:
        """Return the namespace of the ClusterSet."""
        return self._view.namespace

    @property
    def leader(self) -> Leader | None:
        """Return the membership; None: see `View`. Needs no declaration."""
        return self._view.leader

    def get(self, ref: Ref, cls: type[Object]) -> Object | None:
        """Return an object, None if there is none."""
        self._check(ref.side, ref.kind)
        return self._view.get(ref, cls)

    def list(self, cls: type[Object], side: Side = Side.LOCAL, namespace: str | None = None) -> Sequence[Object]:
        """Return all objects of a kind."""
        self._check(side, cls.KIND)
        return self._view.list(cls, side, namespace)

    def indexed(self, index: Index[Object], value: str) -> Sequence[Object]:
        """Return the objects that an index files under a value."""
        self._check_index(index)
        return self._view.indexed(index, value)

    def count(self, index: Index[Object], value: str) -> int:
        """Return how many objects an index files under a value."""
        self._check_index(index)
        return self._view.count(index, value)

    def quiet_for(self, ref: Ref) -> float:
        """Return for how many seconds an object has been as it is."""
        self._check(ref.side, ref.kind)
        return self._view.quiet_for(ref)

    def failure(self, ref: Ref) -> str:
        """Return why the last write of an object was refused."""
        return self._view.failure(ref)

    def accepted(self, ref: Ref) -> bool:
        """Tell whether the last write of an object went well, or none was needed."""
        return self._view.accepted(ref)

    def dropped_fields(self, side: Side) -> Sequence[str]:
        """Return what an API server drops."""
        return self._view.dropped_fields(side)

    def events(self, reconciler: str) -> Mapping[str, frozenset[Event]]:
        """Return the Events of a reconciler, by key."""
        return self._view.events(reconciler)

    def _check(self, side: Side, kind: Kind) -> None:
        if kind not in self._reconciler.reads.on(side):
            raise UndeclaredAccessError(f"{self._reconciler.name} does not declare that it reads {kind} ({side})")

    def _check_index(self, index: Index[Object]) -> None:
        if (index.side, index.name) not in self._indexes:
            raise UndeclaredAccessError(f"{self._reconciler.name} does not declare index {index.name}")
