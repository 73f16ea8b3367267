"""The agent's connection to Kubernetes: what it reads, as snapshots, and what it writes.

Owns the source of objects (an API server, or manifests in a directory), the store that gathers changes from its
threads until the next snapshot is taken, and the writers of Events and of this Node's WireGuard key. Of several
changes to one object only the last is kept, so a burst costs no more memory than the objects have. Knows nothing
of what objects are used for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcagent.agent.config_keys import Settings
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED
from mcagent.core.snapshot import ATTRIBUTE, Change, Delete, Relist, Upsert, apply_changes
from mcagent.kube.source import WatchEvent
from mcagent.model.informer_state import InformerState
from mcagent.model.net import Address
from mcagent.model.node_state import Role
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.problem import Problem
from mcagent.supervised import attempt

if TYPE_CHECKING:
    from mcagent.kube.events import EventRecorder
    from mcagent.kube.publish import Publisher
    from mcagent.kube.source import Source

log = logging.getLogger(__name__)


class SnapshotStore:
    """A `mcagent.kube.source.Sink`. Its methods may be called from any thread, `take` from one only."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        # By kind: changes by object since the last list, after that list. None: the kind is to be forgotten.
        self._lists: dict[Kind, Relist | None] = {}
        self._changes: dict[Kind, dict[str, Change]] = {}
        self._snapshot = Snapshot()
        self._taken = self._snapshot
        self.source_problems: Callable[[], tuple[Problem, ...]] = tuple  # what the source itself cannot use

    def replace(self, kind: Kind, objects: Sequence[dict[str, Any]]) -> None:
        """Take all objects of a kind."""
        with self._lock:
            self._lists[kind] = Relist(kind=kind, items=objects)
            self._changes.pop(kind, None)
        self._on_change()

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take one change."""
        change: Change
        if event.type == "DELETED":
            change = Delete(kind=kind, key=event.key)
        else:
            change = Upsert(kind=kind, raw=event.object)
        with self._lock:
            self._changes.setdefault(kind, {})[event.key] = change
        self._on_change()

    def forget(self, kind: Kind) -> None:
        """Take that a kind is read no longer."""
        with self._lock:
            self._lists[kind] = None
            self._changes.pop(kind, None)
        self._on_change()

    def take(self) -> Snapshot:
        """Return the snapshot with everything that came until now."""
        with self._lock:
            lists, self._lists = self._lists, {}
            changes, self._changes = self._changes, {}
        gone = [kind for kind, relist in lists.items() if relist is None]
        snapshot = _without(self._snapshot, gone) if gone else self._snapshot
        todo: list[Change] = [relist for relist in lists.values() if relist is not None]
        todo.extend(change for kind in changes.values() for change in kind.values())
        snapshot = _applied(snapshot, todo) if todo else snapshot
        problems = tuple(sorted({*snapshot.problems, *self.source_problems()}))
        if snapshot is not self._snapshot or problems != self._taken.problems:
            self._taken = snapshot if problems == snapshot.problems else replace(snapshot, problems=problems)
        self._snapshot = snapshot
        return self._taken


def _applied(snapshot: Snapshot, changes: list[Change]) -> Snapshot:
    """Return the snapshot after the changes. An object that breaks the parser costs only itself."""
    found, error = attempt(lambda: apply_changes(snapshot, changes))
    if found is not None:
        return found
    log.error("a change breaks the snapshot, which is a bug: each object is tried alone", exc_info=error)
    usable: list[Change] = []
    for change in changes:
        if isinstance(change, Relist):
            usable.append(
                replace(change, items=[raw for raw in change.items if _breaks_nothing(change.kind, raw)])
            )
        elif isinstance(change, Delete) or _breaks_nothing(change.kind, change.raw):
            usable.append(change)
    return apply_changes(snapshot, usable)


def _breaks_nothing(kind: Kind, raw: object) -> bool:
    return attempt(lambda: apply_changes(Snapshot(), [Upsert(kind=kind, raw=raw)]))[1] is None


def _without(snapshot: Snapshot, kinds: Sequence[Kind]) -> Snapshot:
    prefixes = tuple(f"{kind} " for kind in kinds)
    emptied: dict[str, Any] = {ATTRIBUTE[kind]: {} for kind in kinds}
    return replace(
        snapshot,
        synced=snapshot.synced - frozenset(kinds),
        problems=tuple(p for p in snapshot.problems if not p.subject.startswith(prefixes)),
        **emptied,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What writes to the API: Events of problems, and this Node's key; and where the API server is."""

    events: EventRecorder
    publisher: Publisher
    servers: Callable[[], tuple[Address, ...]]


class Objects:
    """Reads objects into snapshots. `api` is None where there is no API server."""

    def __init__(self, settings: Settings, changed: Callable[[], None]) -> None:
        """Connect to nothing yet. Raises SourceError when credentials cannot be read."""
        self._node_name = settings.core.node_name
        self._store = SnapshotStore(changed)
        self._source, self.api = _source(settings, self._store, changed)
        self._store.source_problems = self._source.problems
        self._wanted: tuple[frozenset[Kind], Mapping[Kind, str]] = (ALWAYS_NEEDED, {})
        self._snapshot = Snapshot()
        self._writers: tuple[EventRecorder | Publisher, ...] = ()

    def start(self, *, write: bool) -> None:
        """Begin to read and, if wanted, to write."""
        self._source.start(sorted(ALWAYS_NEEDED))
        if self.api is not None and write:
            self._writers = (self.api.events, self.api.publisher)
            for writer in self._writers:
                writer.start()

    def stop(self) -> None:
        """Stop; what is not written yet is not."""
        self._source.stop()
        for writer in self._writers:
            writer.stop()

    def take(self) -> Snapshot:
        """Return the latest snapshot. From one thread only, as `want`."""
        self._snapshot = self._store.take()
        return self._snapshot

    def want(self, kinds: frozenset[Kind], role: Role) -> None:
        """Read these kinds, as far as a Node of this role needs them. No kinds: as before."""
        selectors = field_selectors(role, self._node_name)
        wanted = (kinds, {kind: selector for kind, selector in selectors.items() if kind in kinds})
        if kinds and wanted != self._wanted:
            log.info("objects needed now: %s", ", ".join(sorted(kinds)))
            self._wanted = wanted
            self._source.set_kinds(sorted(kinds), selectors)

    def api_servers(self) -> tuple[Address, ...]:
        """Return the addresses of the API server."""
        return self.api.servers() if self.api is not None else ()

    def informers(self) -> Iterable[InformerState]:
        """Return how reading goes, by kind; from any thread."""
        return [
            replace(state, objects=len(getattr(self._snapshot, ATTRIBUTE[kind])))
            for kind, state in sorted(self._source.state().items())
        ]


def field_selectors(role: Role, node_name: str) -> Mapping[Kind, str]:
    """Return what narrows kinds down: only a gateway needs to know the Pods of other Nodes than its own."""
    return {} if role is Role.GATEWAY else {Kind.POD: f"spec.nodeName={node_name}"}


def _source(settings: Settings, store: SnapshotStore, changed: Callable[[], None]) -> tuple[Source, Api | None]:
    namespace = settings.core.namespace
    if settings.source.startswith("dir:"):
        from mcagent.kube.sources.directory import DirectorySource

        path = Path(settings.source.removeprefix("dir:"))
        return DirectorySource(path, store, namespace=namespace, changed=changed), None
    from mcagent.kube.client import Client
    from mcagent.kube.events import EventRecorder
    from mcagent.kube.publish import Publisher
    from mcagent.kube.sources.apiserver import ApiServerSource

    client = Client(settings.kubeconfig)
    api = Api(
        events=EventRecorder(client, node=settings.core.node_name),
        publisher=Publisher(client),
        servers=lambda: client.addresses,
    )
    return ApiServerSource(client, store, namespace=namespace), api
