"""The agent's connection to Kubernetes: reads objects into snapshots, and owns the writers to the API.

The source of objects is an API server, or manifests in a directory. The writers publish Events, this Node's
WireGuard key and its links. Knows nothing of what objects are used for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcagent.agent.config import Settings
from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.core.imported_services import SELECTORS
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED
from mcagent.core.snapshot import ATTRIBUTE
from mcagent.model.informer_state import InformerState
from mcagent.model.net import Address
from mcagent.model.objects import Kind, Snapshot

if TYPE_CHECKING:
    from mcagent.kube.events import EventRecorder
    from mcagent.kube.links import LinkPublisher
    from mcagent.kube.publish import Publisher
    from mcagent.kube.source import Source

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiWriters:
    """Writers to the API: Events of problems, this Node's key (in its Gateway and its Node) and links.

    `servers`: addresses of the API server.
    """

    events: EventRecorder
    publisher: Publisher
    node_publisher: Publisher
    links: LinkPublisher
    servers: Callable[[], tuple[Address, ...]]


class ObjectReader:
    """Reads objects into snapshots. `api` is None where there is no API server."""

    def __init__(self, settings: Settings, changed: Callable[[], None]) -> None:
        """`changed` is called when a new snapshot can be taken. Connects to nothing yet.

        Raises SourceError when credentials cannot be read.
        """
        self._node_name = settings.core.node_name
        self._store = SnapshotStore(changed, self._node_name)
        self._source, self.api = _source(settings, self._store, changed)
        self._store.source_problems = self._source.problems
        self._changed = changed
        self._selection: tuple[frozenset[Kind], Mapping[Kind, str], Mapping[Kind, str]] = (ALWAYS_NEEDED, {}, {})
        self._writers: tuple[EventRecorder | Publisher | LinkPublisher, ...] = ()

    def start(self, *, write: bool) -> None:
        """Start reading and, with `write`, the writers."""
        self._source.start(sorted(ALWAYS_NEEDED))
        if self.api is not None and write:
            self._writers = (self.api.events, self.api.publisher, self.api.node_publisher, self.api.links)
            for writer in self._writers:
                writer.start()

    def stop(self) -> None:
        """Stop reading and writing; pending writes are discarded."""
        self._source.stop()
        for writer in self._writers:
            writer.stop()

    def take(self) -> Snapshot:
        """Return the latest snapshot. From one thread only, as `set_kinds`."""
        return self._store.take()

    def set_kinds(self, kinds: frozenset[Kind], *, all_pods: bool, all_services: bool) -> None:
        """Read these kinds from now on. No kinds: as before.

        Pods of this Node only, unless `all_pods`; imported Services and their slices only, unless `all_services`.
        """
        fields = {} if all_pods else {Kind.POD: f"spec.nodeName={self._node_name}"}
        labels = {} if all_services else SELECTORS
        fields, labels = ({kind: text for kind, text in f.items() if kind in kinds} for f in (fields, labels))
        selection = (kinds, fields, labels)
        if kinds and selection != self._selection:
            log.info("objects needed now: %s", ", ".join(sorted(kinds)))
            self._selection, self._store.selected = selection, frozenset(labels)
            self._source.set_kinds(sorted(kinds), fields, labels)
            self._changed()

    def api_servers(self) -> tuple[Address, ...]:
        """Return the addresses of the API server."""
        return self.api.servers() if self.api is not None else ()

    def informers(self) -> Iterable[InformerState]:
        """Return the state of the informer of each kind, sorted by kind; from any thread."""
        return [
            replace(state, objects=len(getattr(self._store.snapshot, ATTRIBUTE[kind])))
            for kind, state in sorted(self._source.state().items())
        ]


def _source(
    settings: Settings, store: SnapshotStore, changed: Callable[[], None]
) -> tuple[Source, ApiWriters | None]:
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

    client = Client(settings.kubeconfig, settings.context)
    api = ApiWriters(
        events=EventRecorder(client, node=settings.core.node_name),
        publisher=Publisher(client),
        node_publisher=Publisher(client),
        links=LinkPublisher(client),
        servers=lambda: client.addresses,
    )
    return ApiServerSource(client, store, namespace=namespace), api
