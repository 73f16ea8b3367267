"""Objects of an API server in memory, by kind: what tests of reconcilers read and write.

They are kept by the embedded server's store; what a reconciler wants is written as `machinery.apply` plans it. No
threads, no network, and a clock that a test moves.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Network
from itertools import count
from typing import Any

from devtools.apiserver.errors import ApiError
from devtools.apiserver.objects.registry import Registry
from devtools.apiserver.objects.resources import BUILT_IN, ResourceType
from devtools.apiserver.objects.services import ServiceAddresses
from devtools.apiserver.storage.merge import merge_patch
from devtools.apiserver.storage.store import Store
from mcagent.controller.machinery.apply import Verb, Write, plan
from mcagent.controller.machinery.reconciler import Ref, Wanted
from mcagent.kube.source import RawObject
from mcagent.model.api.base import ApiObject
from mcagent.model.api.patches import patch
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object

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


def typed(raw: RawObject, kind: Kind | None = None) -> Any:
    """Return an object as informers deliver it."""
    return read_object(kind or Kind(raw["kind"]), raw)


class Content(ApiObject, frozen=True):
    """An object with any content."""

    spec: Any = None
    data: Any = None
    extra: Any = None
    status: Any = None


def content_patch(**fields: Any) -> Content:
    """Return a patch of these fields, which may be JSON."""
    return patch(Content, **fields)


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
_WORDS = {Verb.CREATE: "create", Verb.PATCH: "update", Verb.STATUS: "update", Verb.DELETE: "delete"}


class RefusedError(Exception):
    """The API server refuses a write."""


class MemoryObjects:
    """The objects of one API server.

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
        self.revisions: Counter[Kind] = Counter()  # how many writes of a kind there were
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
        self.revisions[kind] += 1
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
        """Create or replace an object, as a user with all rights does. Metadata and status given are taken."""
        obj = copy.deepcopy(obj)
        if created is not None:
            obj["metadata"]["creationTimestamp"] = created
        return self._store.put(TYPES[Kind(obj["kind"])], obj).obj

    def change(self, kind: Kind, namespace: str, name: str, patch: RawObject) -> RawObject:
        """Merge fields into an object that exists, as a user with all rights does."""
        old = self._store.get(TYPES[kind], namespace, name).obj
        return self._store.put(TYPES[kind], merge_patch(old, patch)).obj

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object if it exists; one with finalizers stays until they are gone."""
        if self._store.find(TYPES[kind], namespace, name):
            self._store.delete(TYPES[kind], namespace, name)

    def carry_out(self, step: Wanted | Ref) -> None:
        """Make an object what a reconciler wants, as `machinery.writer` does. Raises RefusedError."""
        ref = step if isinstance(step, Ref) else step.ref
        first: Write | None = None
        try:
            for _ in range(4):  # create, status, and each once more, as `machinery.writer` does
                if (write := plan(step, self.get(ref.kind, ref.namespace, ref.name))) is None:
                    break
                self._send(write)
                first = first or write
            else:
                raise AssertionError(f"{ref} is never as desired: {first} and {write} do not suffice")
        except ApiError as error:
            raise RefusedError(error.message) from None
        finally:
            if first is not None:
                place = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
                self.writes.append(f"{_WORDS[first.verb]} {ref.kind} {place}")

    def _send(self, write: Write) -> None:
        ref, rt = write.ref, TYPES[write.ref.kind]

        def review(old: RawObject | None, new: RawObject) -> None:
            reason = self.refuse(ref.kind, old, None if write.verb is Verb.DELETE else new)
            if reason:
                raise ApiError(403, "Forbidden", reason)

        match write.verb:
            case Verb.CREATE:
                self._store.create(rt, ref.namespace, write.body, review=review)
            case Verb.DELETE:
                preconditions = write.body["preconditions"]
                self._store.delete(rt, ref.namespace, ref.name, preconditions=preconditions, review=review)
            case _:
                self._store.update(
                    *(rt, ref.namespace, ref.name, lambda old: merge_patch(old, write.body)),
                    subresource="status" if write.verb is Verb.STATUS else "",
                    review=review,
                )
