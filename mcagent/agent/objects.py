"""The agent's connection to Kubernetes: what it reads, as snapshots, and what it writes.

Owns the source of objects (an API server, or manifests in a directory), the store that it feeds, and the writers
of Events and of this Node's WireGuard key. Knows nothing of what objects are used for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcagent.agent.config_keys import Settings
from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.core.local_cluster.topology import ALWAYS_NEEDED
from mcagent.core.snapshot import ATTRIBUTE
from mcagent.model.informer_state import InformerState
from mcagent.model.net import Address
from mcagent.model.node_state import Role
from mcagent.model.objects import Kind, Snapshot

if TYPE_CHECKING:
    from mcagent.kube.events import EventRecorder
    from mcagent.kube.publish import Publisher
    from mcagent.kube.source import Source

log = logging.getLogger(__name__)


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
