"""What reconcilers see: the cache, the connection, and refused writes; each one only what it declares."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.connection.connection import LeaderConnection
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
from mcagent.controller.machinery.unkept import UnkeptValues
from mcagent.model.objects import Kind


class EngineView:
    """Implements `mcagent.controller.machinery.reconciler.View`. Safe to use from many threads."""

    def __init__(self, cache: Cache, namespace: str, connection: LeaderConnection | None) -> None:
        self._cache, self._namespace, self._connection = cache, namespace, connection
        self._lock = threading.Lock()
        self._failures: dict[Ref, str] = {}
        self._accepted: dict[Ref, bool] = {}  # of objects that somebody has asked about
        self.unkept_values = UnkeptValues()

    @property
    def namespace(self) -> str:
        """Return the namespace of the ClusterSet; the controller's own one where that may be any."""
        return self._namespace

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

    def count(self, index: Index[Any], value: str) -> int:
        """Return how many objects an index files under a value."""
        return self._cache.count_indexed(index, value)

    def quiet_for(self, ref: Ref) -> float:
        """Return for how many seconds an object has been as it is; 0.0: no object."""
        return self._cache.quiet_for(ref)

    def failure(self, ref: Ref) -> str:
        """Return why the last write of an object was refused, in plain words; "" if it was not."""
        with self._lock:
            return self._failures.get(ref, "")

    def accepted(self, ref: Ref) -> bool:
        """Tell whether an object's last write went well, or none was needed; known from the first question on."""
        with self._lock:
            return self._accepted.setdefault(ref, False)

    def unkept(self, side: Side) -> Sequence[str]:
        """Return "Kind field" of what an API server does not keep of the objects written to it."""
        return self.unkept_values.fields(side)

    # --- the engine's ------------------------------------------------------------------------------------

    def failed(self, ref: Ref, why: str) -> bool:
        """Remember that a write was refused. Returns whether that is news."""
        with self._lock:
            news = self._failures.get(ref) != why
            self._failures[ref] = why
            self._take_note(ref, accepted=False)
            return news

    def succeeded(self, ref: Ref) -> bool:
        """Forget a refusal: the object is as it should be. Returns whether there was one."""
        with self._lock:
            self._take_note(ref, accepted=True)
            return self._failures.pop(ref, None) is not None

    def _take_note(self, ref: Ref, *, accepted: bool) -> None:
        if ref in self._accepted:
            self._accepted[ref] = accepted

    def failures(self) -> dict[Ref, str]:
        """Return all writes that were refused last time, with why."""
        with self._lock:
            return dict(self._failures)


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
        """Return the membership."""
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

    def count(self, index: Index[Any], value: str) -> int:
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

    def unkept(self, side: Side) -> Sequence[str]:
        """Return what an API server does not keep."""
        return self._view.unkept(side)

    def _check(self, side: Side, kind: Kind) -> None:
        if kind not in self._reconciler.reads.on(side):
            raise UndeclaredAccessError(f"{self._reconciler.name} does not declare that it reads {kind} ({side})")

    def _check_index(self, index: Index[Any]) -> None:
        if (index.side, index.name) not in self._indexes:
            raise UndeclaredAccessError(f"{self._reconciler.name} does not declare index {index.name}")
