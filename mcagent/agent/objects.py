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
from typing import TYPE_CHECKING

from mcagent.agent.config import Settings
from mcagent.core.imported_services import SELECTORS
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED
from mcagent.core.snapshot import ATTRIBUTE, Change, Delete, Forget, Relist, Upsert, apply_changes
from mcagent.kube.source import EventType, RawObject, WatchEvent
from mcagent.model.informer_state import InformerState
from mcagent.model.net import Address
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.problem import Problem

if TYPE_CHECKING:
    from mcagent.kube.events import EventRecorder
    from mcagent.kube.links import LinkPublisher
    from mcagent.kube.publish import Publisher
    from mcagent.kube.source import Source

log = logging.getLogger(__name__)


class SnapshotStore:
    """A `mcagent.kube.source.Sink`. Its methods may be called from any thread, `take` from one only."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        # By kind: under "" the last list, or that there is none any more; then the last change of each object.
        self._changes: dict[Kind, dict[str, Change]] = {}
        self._read = Snapshot()
        self.snapshot = self._read  # the last that was taken: with problems of the source
        self.selected: frozenset[Kind] = frozenset()  # kinds that are read by labels
        self.source_problems: Callable[[], tuple[Problem, ...]] = tuple  # what the source itself cannot use

    def replace(self, kind: Kind, objects: Sequence[RawObject]) -> None:
        """Take all objects of a kind."""
        self._begin_anew(Relist(kind=kind, items=objects))

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take one change."""
        gone = event.type is EventType.DELETED
        change = Delete(kind=kind, key=event.key) if gone else Upsert(kind=kind, raw=event.object)
        with self._lock:
            self._changes.setdefault(kind, {})[event.key] = change
        self._on_change()

    def forget(self, kind: Kind) -> None:
        """Take that a kind is read no longer."""
        self._begin_anew(Forget(kind=kind))

    def _begin_anew(self, change: Relist | Forget) -> None:
        with self._lock:
            self._changes[change.kind] = {"": change}
        self._on_change()

    def take(self) -> Snapshot:
        """Return the snapshot with everything that came until now."""
        with self._lock:
            changes, self._changes = self._changes, {}
        before = self._read
        self._read = apply_changes(before, (change for kind in changes.values() for change in kind.values()))
        problems = tuple(sorted({*self._read.problems, *self.source_problems()}))
        known = (problems, self.selected)
        if self._read is not before or known != (self.snapshot.problems, self.snapshot.selected):
            self.snapshot = replace(self._read, problems=problems, selected=self.selected)
        return self.snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What writes to the API: Events of problems, this Node's key and links; and where the API server is."""

    events: EventRecorder
    publisher: Publisher
    links: LinkPublisher
    servers: Callable[[], tuple[Address, ...]]


class Objects:
    """Reads objects into snapshots. `api` is None where there is no API server."""

    def __init__(self, settings: Settings, changed: Callable[[], None]) -> None:
        """Connect to nothing yet. Raises SourceError when credentials cannot be read."""
        self._node_name = settings.core.node_name
        self._store = SnapshotStore(changed)
        self._source, self.api = _source(settings, self._store, changed)
        self._store.source_problems = self._source.problems
        self._changed = changed
        self._wanted: tuple[frozenset[Kind], Mapping[Kind, str], Mapping[Kind, str]] = (ALWAYS_NEEDED, {}, {})
        self._writers: tuple[EventRecorder | Publisher | LinkPublisher, ...] = ()

    def start(self, *, write: bool) -> None:
        """Begin to read and, if wanted, to write."""
        self._source.start(sorted(ALWAYS_NEEDED))
        if self.api is not None and write:
            self._writers = (self.api.events, self.api.publisher, self.api.links)
            for writer in self._writers:
                writer.start()

    def stop(self) -> None:
        """Stop; what is not written yet is not."""
        self._source.stop()
        for writer in self._writers:
            writer.stop()

    def take(self) -> Snapshot:
        """Return the latest snapshot. From one thread only, as `want`."""
        return self._store.take()

    def want(self, kinds: frozenset[Kind], *, all_pods: bool, all_services: bool) -> None:
        """Read these kinds. No kinds: as before.

        Pods of this Node only, unless `all_pods`; imported Services and their slices only, unless `all_services`.
        """
        fields = {} if all_pods else {Kind.POD: f"spec.nodeName={self._node_name}"}
        labels = {} if all_services else SELECTORS
        fields, labels = ({kind: text for kind, text in f.items() if kind in kinds} for f in (fields, labels))
        wanted = (kinds, fields, labels)
        if kinds and wanted != self._wanted:
            log.info("objects needed now: %s", ", ".join(sorted(kinds)))
            self._wanted, self._store.selected = wanted, frozenset(labels)
            self._source.set_kinds(sorted(kinds), fields, labels)
            self._changed()

    def api_servers(self) -> tuple[Address, ...]:
        """Return the addresses of the API server."""
        return self.api.servers() if self.api is not None else ()

    def informers(self) -> Iterable[InformerState]:
        """Return how reading goes, by kind; from any thread."""
        return [
            replace(state, objects=len(getattr(self._store.snapshot, ATTRIBUTE[kind])))
            for kind, state in sorted(self._source.state().items())
        ]


def _source(settings: Settings, store: SnapshotStore, changed: Callable[[], None]) -> tuple[Source, Api | None]:
    namespace = settings.core.namespace
    if settings.source.startswith("dir:"):
        from mcagent.kube.sources.directory import DirectorySource

        path = Path(settings.source.removeprefix("dir:"))
        return DirectorySource(path, store, namespace=namespace, changed=changed), None
    from mcagent.kube.client import Client
    from mcagent.kube.events import EventRecorder
    from mcagent.kube.links import LinkPublisher
    from mcagent.kube.publish import Publisher
    from mcagent.kube.sources.apiserver import ApiServerSource

    client = Client(settings.kubeconfig)
    api = Api(
        events=EventRecorder(client, node=settings.core.node_name),
        publisher=Publisher(client),
        links=LinkPublisher(client),
        servers=lambda: client.addresses,
    )
    return ApiServerSource(client, store, namespace=namespace), api
