"""The objects: one lock, one version counter, optimistic locking, deletion with finalizers, and the watch cache.

It must not know HTTP. Everything stored is treated as immutable: a write stores a new object.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from devtools.apiserver import errors
from devtools.apiserver.errors import Json
from devtools.apiserver.objects.registry import Registry, crd_status
from devtools.apiserver.objects.resources import CRDS, NAMESPACES, SERVICES, ResourceType
from devtools.apiserver.objects.services import ServiceAddresses
from devtools.apiserver.storage import lifecycle
from devtools.apiserver.storage.history import Event, History, ObjectKey, Stored

StoreKey = tuple[str, str]  # group, plural
Listener = Callable[[ResourceType, ObjectKey, Json | None, Json | None], None]  # resource, key, before, after
Review = Callable[[Json | None, Json], None]  # before, after; raises ApiError for a write that is refused
Decision = tuple[Json, bool]  # what the object becomes, and whether it is removed
FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


class Store:
    """All objects of one API server. Every method may be called from any thread.

    Writes take a `review`, which is called with no lock held, and again if another write was faster. With
    `dry_run` they return what they would store.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        history_limit: int = 10_000,
        first_rv: int = 1,
        namespaces: bool = True,
        addresses: ServiceAddresses | None = None,
        now: Callable[[], str] = lambda: lifecycle.utc_text(time.time()),
        uid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._addresses = addresses
        self._now, self._uid = now, uid
        self._listeners: list[Listener] = []
        self.lock = threading.RLock()
        self.registry = registry
        self._rv = first_rv
        self._limit = history_limit
        self._compacted = first_rv
        self._objects: dict[StoreKey, dict[ObjectKey, Stored]] = {}
        self._histories: dict[StoreKey, History] = {}
        if namespaces:
            for name in FIRST_NAMESPACES:
                self.create(NAMESPACES, "", {"metadata": {"name": name}})

    @property
    def rv(self) -> int:
        """Return the version of the last write."""
        return self._rv

    def listen(self, listener: Listener) -> None:
        """Call this with every change from now on, with the lock held."""
        self._listeners.append(listener)

    def history(self, key: StoreKey) -> History:
        """Return the watch cache of a resource."""
        with self.lock:
            if key not in self._histories:
                self._histories[key] = History(self.lock, self._limit, self._compacted)
            return self._histories[key]

    def compact(self, rv: int | None = None) -> int:
        """Forget all history up to `rv` (default: all there is). Returns the version compacted to."""
        with self.lock:
            self._compacted = self._rv if rv is None else min(rv, self._rv)
            for history in self._histories.values():
                history.compact(self._compacted)
            return self._compacted

    # --- reading ------------------------------------------------------------------------------------------

    def find(self, rt: ResourceType, namespace: str, name: str) -> Stored | None:
        """Return an object, None if there is none."""
        with self.lock:
            return self._objects.get(rt.store_key, {}).get((namespace, name))

    def get(self, rt: ResourceType, namespace: str, name: str) -> Stored:
        """Return an object. Raises ApiError 404."""
        stored = self.find(rt, namespace, name)
        if stored is None:
            raise errors.not_found(rt.resource, name)
        return stored

    def select(self, rt: ResourceType, namespace: str) -> tuple[list[Stored], int]:
        """Return the objects (of one namespace, or "" for all), sorted by key, and the version they are of."""
        with self.lock:
            objects = self._objects.get(rt.store_key, {})
            selected = [stored for key, stored in objects.items() if not namespace or key[0] == namespace]
            rv = self._rv
        selected.sort(key=lambda stored: stored.key)
        return selected, rv

    def dump(self) -> tuple[int, list[Json]]:
        """Return the version and all objects, for a file."""
        with self.lock:
            return self._rv, [stored.obj for objects in self._objects.values() for stored in objects.values()]

    def restore(self, objects: list[Json]) -> None:
        """Take in objects of a dump as they are, CustomResourceDefinitions first."""
        objects = sorted(objects, key=lambda obj: obj.get("kind") != CRDS.kind)
        with self.lock:
            for obj in objects:
                if obj.get("kind") == CRDS.kind:
                    self.registry.define(obj)
                rt = self.registry.by_kind(obj["apiVersion"], obj["kind"])
                if rt is not None:
                    stored = Stored(obj, int(obj["metadata"]["resourceVersion"]))
                    self._objects.setdefault(rt.store_key, {})[stored.key] = stored
                    self._noted(rt, stored.key, None, obj)

    # --- writing ------------------------------------------------------------------------------------------

    def create(
        self, rt: ResourceType, namespace: str, obj: Json, *, review: Review | None = None, dry_run: bool = False
    ) -> Stored:
        """Store a new object. Raises ApiError 404 or 403 for its namespace, 409 when it exists, 422."""
        new = lifecycle.prepare_create(rt, namespace, obj, self._now(), self._uid())
        if rt is CRDS:
            new["status"] = crd_status(new, self._now())
        key = (new["metadata"].get("namespace", ""), new["metadata"]["name"])
        self._check_home(rt, namespace)
        if review is not None:  # webhooks refuse also what exists already
            review(None, new)

        def created(old: Stored | None) -> Decision:
            self._check_home(rt, namespace)
            if old is not None:
                raise errors.already_exists(rt.resource, key[1])
            return self._addressed(rt, key, new, None), False

        return self._write(rt, key, created, None, dry_run)

    def _check_home(self, rt: ResourceType, namespace: str) -> None:
        if rt.namespaced:
            home = self.get(NAMESPACES, "", namespace).obj
            if home["metadata"].get("deletionTimestamp"):
                why = f"unable to create new content in namespace {namespace} because it is being terminated"
                raise errors.forbidden(rt.resource, why)

    def put(self, rt: ResourceType, obj: Json) -> Stored:
        """Store an object as it is given, with its metadata and status: what tests find on a server.

        Only what the server counts and allocates is added where it is missing.
        """
        meta = obj["metadata"]
        key = (meta.get("namespace", "") if rt.namespaced else "", meta["name"])

        def given(old: Stored | None) -> Decision:
            before: Json = old.obj["metadata"] if old else {"uid": self._uid(), "creationTimestamp": self._now()}
            identity = {name: before[name] for name in ("uid", "creationTimestamp")}
            type_meta = {"apiVersion": rt.api_version(rt.versions[0]), "kind": rt.kind}
            new: Json = {**type_meta, **obj, "metadata": {**identity, **meta}}
            if rt.generation:
                changed = old is None or lifecycle.spec_of(old.obj) != lifecycle.spec_of(new)
                new["metadata"]["generation"] = before.get("generation", 0) + changed
            if not (isinstance(new.get("spec"), dict) and new["spec"].get("clusterIP")):
                new = self._addressed(rt, key, new, old.obj if old else None)
            return new, old is not None and _is_released(new)

        return self._write(rt, key, given, None, dry_run=False)

    def update(
        self,
        rt: ResourceType,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        *,
        subresource: str = "",
        unconditional: bool = True,
        review: Review | None = None,
        dry_run: bool = False,
    ) -> Stored:
        """Replace an object by what `change` makes of it (it gets the stored object and must not change it).

        When the result names a resourceVersion it must be the present one; `unconditional` says whether it may
        be left out. Raises ApiError 404, 409, 422.
        """

        def updated(old: Stored | None) -> Decision:
            if old is None:
                raise errors.not_found(rt.resource, name)
            new = change(old.obj)
            rv = new.get("metadata", {}).get("resourceVersion")
            if not rv and not unconditional:
                why = "Invalid value: 0x0: must be specified for an update"
                raise errors.invalid(rt.group_kind, name, "metadata.resourceVersion", why)
            if rv and rv != str(old.rv):
                raise errors.conflict(rt.resource, name)
            new = lifecycle.prepare_update(rt, old.obj, new, subresource)
            return self._addressed(rt, old.key, new, old.obj), _is_released(new)

        return self._write(rt, (namespace, name), updated, review, dry_run)

    def delete(
        self,
        rt: ResourceType,
        namespace: str,
        name: str,
        *,
        preconditions: Json | None = None,
        review: Review | None = None,
        dry_run: bool = False,
    ) -> tuple[Stored, bool]:
        """Delete an object, or mark it while it has finalizers. Returns it and whether it is gone.

        Raises ApiError 404, and 409 for a failed precondition (uid, resourceVersion).
        """

        def deleted(old: Stored | None) -> Decision:
            if old is None:
                raise errors.not_found(rt.resource, name)
            meta = old.obj["metadata"]
            for field, value in (preconditions or {}).items():
                if value is not None and meta.get(field) != value:
                    why = f"Precondition failed: {field}: {value} is not {meta.get(field)}"
                    raise errors.conflict(rt.resource, name, why)
            if not meta.get("finalizers") and not (rt is NAMESPACES and self._content(name)):
                return old.obj, True
            if meta.get("deletionTimestamp"):
                return old.obj, False
            return lifecycle.prepare_delete(rt, old.obj, self._now()), False

        stored = self._write(rt, (namespace, name), deleted, review, dry_run)
        if rt is NAMESPACES and not dry_run:
            with self.lock:
                for content_type, content in self._content(name):
                    self.delete(content_type, *content.key)
        return stored, self.find(rt, namespace, name) is None

    def _write(
        self,
        rt: ResourceType,
        key: ObjectKey,
        decide: Callable[[Stored | None], Decision],
        review: Review | None,
        dry_run: bool,
    ) -> Stored:
        """Store what `decide` makes of the present object, if it is still the present one after the review."""
        while True:
            with self.lock:
                old = self.find(rt, *key)
                new, removed = decide(old)
                if review is None:
                    return self._commit(rt, key, old, new, removed=removed, dry_run=dry_run)
            review(old.obj if old else None, new)
            with self.lock:
                if self.find(rt, *key) is old:
                    return self._commit(rt, key, old, new, removed=removed, dry_run=dry_run)

    def _commit(
        self, rt: ResourceType, key: ObjectKey, old: Stored | None, new: Json, *, removed: bool, dry_run: bool
    ) -> Stored:
        if old is not None and not removed and lifecycle.same_but_version(old.obj, new):
            return old
        rv = self._rv + 1
        stored = Stored({**new, "metadata": {**new["metadata"], "resourceVersion": str(rv)}}, rv)
        if dry_run:
            return stored
        if rt is CRDS:
            (self.registry.undefine if removed else self.registry.define)(new)
        self._noted(rt, key, old.obj if old else None, None if removed else stored.obj)
        self._rv = rv
        objects = self._objects.setdefault(rt.store_key, {})
        if removed:
            del objects[key]
        else:
            objects[key] = stored
        self._publish(Event("DELETED" if removed else "MODIFIED" if old else "ADDED", rv, stored, old), rt)
        if removed and rt.namespaced:
            self._finish_namespace(key[0])
        return stored

    def _addressed(self, rt: ResourceType, key: ObjectKey, obj: Json, old: Json | None) -> Json:
        """Return a Service with its ClusterIP, any other object as it is."""
        if rt is not SERVICES or self._addresses is None:
            return obj
        return self._addresses.assign(key, obj, old)

    def _noted(self, rt: ResourceType, key: ObjectKey, old: Json | None, new: Json | None) -> None:
        if self._addresses is not None and rt is SERVICES:
            self._addresses.note(key, old, new)

    def _publish(self, event: Event, rt: ResourceType) -> None:
        self.history(rt.store_key).append(event)
        old, new = event.old.obj if event.old else None, event.new.obj if event.type != "DELETED" else None
        for listener in self._listeners:
            listener(rt, event.new.key, old, new)

    def _content(self, namespace: str) -> list[tuple[ResourceType, Stored]]:
        """Return what is in a namespace."""
        return [
            (rt, stored)
            for rt in self.registry.all()
            if rt.namespaced
            for key, stored in self._objects.get(rt.store_key, {}).items()
            if key[0] == namespace
        ]

    def _finish_namespace(self, name: str) -> None:
        """Remove a namespace that was waiting for its last object."""
        home = self.find(NAMESPACES, "", name)
        if home is not None and home.obj["metadata"].get("deletionTimestamp") and not self._content(name):
            self.delete(NAMESPACES, "", name)


def _is_released(obj: Json) -> bool:
    """Tell whether an object is being deleted and has lost its last finalizer."""
    meta = obj["metadata"]
    return bool(meta.get("deletionTimestamp")) and not meta.get("finalizers")
