"""The objects: one lock, one version counter, optimistic locking, deletion with finalizers, and the watch cache.

It must not know HTTP. Everything stored is treated as immutable: a write stores a new object.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from devtools.apiserver import errors
from devtools.apiserver.clock import utc_now
from devtools.apiserver.errors import Json
from devtools.apiserver.objects.definitions import crd_status, parse_crd
from devtools.apiserver.objects.registry import Registry
from devtools.apiserver.objects.resources import CRDS, NAMESPACES, SERVICES, ResourceType
from devtools.apiserver.objects.services import ServiceAddresses
from devtools.apiserver.storage import lifecycle
from devtools.apiserver.storage.history import Event, History, ObjectKey, Stored, too_large

StoreKey = tuple[str, str]  # group, plural
Listener = Callable[[ResourceType, ObjectKey, Json | None, Json | None], None]  # resource, key, before, after
FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


class MovedError(Exception):
    """The object is not at the version that the write was prepared for: prepare it again."""


class Store:
    """All objects of one API server. Every method may be called from any thread."""

    def __init__(
        self,
        registry: Registry,
        *,
        history_limit: int = 10_000,
        first_rv: int = 1,
        namespaces: bool = True,
        addresses: ServiceAddresses | None = None,
        now: Callable[[], str] = utc_now,
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
            found = self._histories.get(key)
            if found is None:
                found = self._histories[key] = History(self.lock, self._limit, self._compacted)
            return found

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
            raise errors.not_found(rt.group, rt.plural, name)
        return stored

    def select(self, rt: ResourceType, namespace: str, *, at: int | None = None) -> tuple[list[Stored], int]:
        """Return the objects (of one namespace, or "" for all), sorted by key, and the version they are of.

        `at` asks for exactly that version of the past. Raises ApiError 410 when it was compacted, 504 when it
        does not exist yet.
        """
        with self.lock:
            state = self._objects.get(rt.store_key, {})
            rv = self._rv
            if at is not None and at != rv:
                if at > rv:
                    raise too_large(at, rv)
                state, rv = self.history(rt.store_key).rewind(state.values(), at), at
            found = [stored for key, stored in state.items() if not namespace or key[0] == namespace]
        found.sort(key=lambda stored: stored.key)
        return found, rv

    def dump(self) -> tuple[int, list[Json]]:
        """Return the version and all objects, for a file."""
        with self.lock:
            return self._rv, [stored.obj for kept in self._objects.values() for stored in kept.values()]

    def restore(self, objects: list[Json]) -> None:
        """Take in objects of a dump as they are, CustomResourceDefinitions first."""
        objects = sorted(objects, key=lambda obj: obj.get("kind") != CRDS.kind)
        with self.lock:
            for obj in objects:
                if obj.get("kind") == CRDS.kind:
                    self.registry.define(obj)
                found = self.registry.by_kind(obj["apiVersion"], obj["kind"])
                if found is not None:
                    stored = Stored(obj, int(obj["metadata"]["resourceVersion"]))
                    self._objects.setdefault(found[0].store_key, {})[stored.key] = stored
                    self._noted(found[0], stored.key, None, obj)

    # --- writing ------------------------------------------------------------------------------------------

    def prepare(self, rt: ResourceType, namespace: str, obj: Json) -> Json:
        """Return a new object as `insert` takes it. Raises ApiError 404 or 403 for its namespace, 422."""
        self._check_home(rt, namespace)
        return lifecycle.prepare_create(rt, namespace, obj, self._now(), self._uid())

    def insert(self, rt: ResourceType, obj: Json, *, dry_run: bool = False) -> Stored:
        """Store a new object as it is. Raises ApiError 404 or 403 for its namespace, 409 when it exists, 422."""
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        with self.lock:
            self._check_home(rt, namespace)
            key = (namespace if rt.namespaced else "", name)
            if key in self._objects.get(rt.store_key, {}):
                raise errors.already_exists(rt.group, rt.plural, name)
            if rt is SERVICES and self._addresses is not None:
                obj = self._addresses.assign(key, obj, None)
            if rt is CRDS:
                obj = {**obj, "status": crd_status(obj, self._now())}
                self.registry.define(obj)
            return self._write(rt, key, obj, None, dry_run)

    def create(self, rt: ResourceType, namespace: str, obj: Json, *, dry_run: bool = False) -> Stored:
        """Prepare and insert a new object."""
        with self.lock:
            return self.insert(rt, self.prepare(rt, namespace, obj), dry_run=dry_run)

    def _check_home(self, rt: ResourceType, namespace: str) -> None:
        if rt.namespaced:
            home = self.get(NAMESPACES, "", namespace).obj
            if home["metadata"].get("deletionTimestamp"):
                why = f"unable to create new content in namespace {namespace} because it is being terminated"
                raise errors.forbidden(rt.group, rt.plural, "", why)

    def put(self, rt: ResourceType, obj: Json) -> Stored:
        """Store an object as it is given, with its metadata and status: what tests find on a server.

        Only what the server counts and allocates is added where it is missing.
        """
        with self.lock:
            meta = obj["metadata"]
            key = (meta.get("namespace", "") if rt.namespaced else "", meta["name"])
            old = self.find(rt, *key)
            before: Json = old.obj["metadata"] if old else {"uid": self._uid(), "creationTimestamp": self._now()}
            identity = {name: before[name] for name in ("uid", "creationTimestamp")}
            type_meta = {"apiVersion": rt.api_version(rt.versions[0]), "kind": rt.kind}
            new: Json = {**type_meta, **obj, "metadata": {**identity, **meta}}
            if rt.generation:
                changed = old is None or lifecycle.spec_of(old.obj) != lifecycle.spec_of(new)
                new["metadata"]["generation"] = before.get("generation", 0) + changed
            spec = new.get("spec")
            if rt is SERVICES and self._addresses and isinstance(spec, dict) and not spec.get("clusterIP"):
                new = self._addresses.assign(key, new, None)
            if old is not None and meta.get("deletionTimestamp") and not meta.get("finalizers"):
                return self._remove(rt, old, new, False)
            return self._write(rt, key, new, old, False)

    def update(
        self,
        rt: ResourceType,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        *,
        subresource: str = "",
        unconditional: bool = True,
        dry_run: bool = False,
        at: int | None = None,
    ) -> Stored:
        """Replace an object by what `change` makes of it (it gets the stored object and must not change it).

        When the result names a resourceVersion it must be the present one; `unconditional` says whether it may
        be left out. Raises ApiError 404, 409, 422; MovedError when the object is not at version `at`.
        """
        with self.lock:
            old = self.get(rt, namespace, name)
            if at not in (None, old.rv):
                raise MovedError
            new = change(old.obj)
            wanted = new.get("metadata", {}).get("resourceVersion")
            if not wanted and not unconditional:
                raise errors.invalid(
                    rt.group_kind,
                    name,
                    "metadata.resourceVersion",
                    "Invalid value: 0x0: must be specified for an update",
                )
            if wanted and wanted != str(old.rv):
                raise errors.conflict(rt.group, rt.plural, name)
            updated = lifecycle.prepare_update(rt, old.obj, new, subresource)
            if rt is SERVICES and self._addresses is not None and not subresource:
                updated = self._addresses.assign(old.key, updated, old.obj)
            if lifecycle.same_but_version(old.obj, updated):
                return old
            if rt is CRDS:
                self.registry.define(updated)
            if updated["metadata"].get("deletionTimestamp") and not updated["metadata"].get("finalizers"):
                return self._remove(rt, old, updated, dry_run)
            return self._write(rt, old.key, updated, old, dry_run)

    def delete(
        self,
        rt: ResourceType,
        namespace: str,
        name: str,
        *,
        preconditions: Json | None = None,
        dry_run: bool = False,
        at: int | None = None,
    ) -> tuple[Stored, bool]:
        """Delete an object, or mark it while it has finalizers. Returns it and whether it is gone.

        Raises ApiError 404, and 409 for a failed precondition (uid, resourceVersion); MovedError as `update`.
        """
        with self.lock:
            old = self.get(rt, namespace, name)
            if at not in (None, old.rv):
                raise MovedError
            meta = old.obj["metadata"]
            for field, value in (preconditions or {}).items():
                if value is not None and meta.get(field) != value:
                    raise errors.conflict(
                        rt.group,
                        rt.plural,
                        name,
                        f"Precondition failed: {field}: {value} is not {meta.get(field)}",
                    )
            if rt is CRDS and not dry_run:
                self._empty(parse_crd(old.obj).store_key)
                self.registry.undefine(old.obj)
            waiting = bool(meta.get("finalizers"))
            if rt is NAMESPACES and not dry_run:
                waiting |= self._empty_namespace(name)
            if not waiting:
                return self._remove(rt, old, old.obj, dry_run), True
            if meta.get("deletionTimestamp"):
                return old, False
            marked = {**meta, "deletionTimestamp": self._now(), "deletionGracePeriodSeconds": 0}
            if "generation" in meta:
                marked["generation"] = meta["generation"] + 1
            made = {**old.obj, "metadata": marked}
            if rt is NAMESPACES:
                made["status"] = {"phase": "Terminating"}
            return self._write(rt, old.key, made, old, dry_run), False

    def _write(self, rt: ResourceType, key: ObjectKey, obj: Json, old: Stored | None, dry_run: bool) -> Stored:
        rv = self._rv + 1
        stored = Stored({**obj, "metadata": {**obj["metadata"], "resourceVersion": str(rv)}}, rv)
        if dry_run:
            return stored
        self._noted(rt, key, old.obj if old else None, stored.obj)
        self._rv = rv
        self._objects.setdefault(rt.store_key, {})[key] = stored
        self._publish(Event("MODIFIED" if old else "ADDED", rv, stored, old), rt)
        return stored

    def _remove(self, rt: ResourceType, old: Stored, last: Json, dry_run: bool) -> Stored:
        rv = self._rv + 1
        gone = Stored({**last, "metadata": {**last["metadata"], "resourceVersion": str(rv)}}, rv)
        if dry_run:
            return gone
        self._noted(rt, old.key, old.obj, None)
        self._rv = rv
        del self._objects[rt.store_key][old.key]
        self._publish(Event("DELETED", rv, gone, old), rt)
        if rt.namespaced:
            self._finish_namespace(old.key[0])
        return gone

    def _noted(self, rt: ResourceType, key: ObjectKey, old: Json | None, new: Json | None) -> None:
        if self._addresses is not None and rt is SERVICES:
            self._addresses.note(key, old, new)

    def _publish(self, event: Event, rt: ResourceType) -> None:
        self.history(rt.store_key).append(event)
        old, new = event.old.obj if event.old else None, event.new.obj if event.type != "DELETED" else None
        for listener in self._listeners:
            listener(rt, event.new.key, old, new)

    def _empty(self, key: StoreKey) -> None:
        rt = self.registry.get(key)
        if rt is not None:
            for stored in list(self._objects.get(key, {}).values()):
                self._remove(rt, stored, stored.obj, False)

    def _empty_namespace(self, name: str) -> bool:
        """Delete everything in a namespace; tell whether something is left, waiting for its finalizers."""
        left = False
        for key in list(self._objects):
            rt = self.registry.get(key)
            if rt is None or not rt.namespaced:
                continue
            for stored in list(self._objects[key].values()):
                if stored.key[0] == name:
                    left |= not self.delete(rt, name, stored.key[1])[1]
        return left

    def _finish_namespace(self, name: str) -> None:
        """Remove a namespace that was waiting for its last object."""
        home = self._objects.get(NAMESPACES.store_key, {}).get(("", name))
        if home is None or not home.obj["metadata"].get("deletionTimestamp"):
            return
        if home.obj["metadata"].get("finalizers"):
            return
        for key, kept in self._objects.items():
            if key != NAMESPACES.store_key and any(space == name for space, _ in kept):
                return
        self._remove(NAMESPACES, home, home.obj, False)
