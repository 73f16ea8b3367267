"""An informer on an embedded API server, and a sink that keeps what the informer passes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer
from mcagent.kube.client import Client
from mcagent.kube.source import EventType, Source, WatchEvent, object_key
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.api.base import ApiObject
from mcagent.model.backoff import Backoff
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind

FAST = Timing(
    list_timeout=2.0, watch_timeout=60.0, inactivity=1.0, backoff=Backoff(first=0.02, most=0.2), steady=0.2, page=3
)


class Mirror:
    """A sink that keeps what it is told, and how."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.objects: dict[Kind, dict[str, ApiObject]] = {}
        self.calls: list[str] = []

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take a list."""
        with self.changed:
            self.objects[kind] = {object_key(obj): obj for obj in objects}
            self.calls.append("replace")
            self.changed.notify_all()

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take an event."""
        with self.changed:
            if event.type is EventType.DELETED:
                self.objects[kind].pop(event.key, None)
            else:
                self.objects[kind][event.key] = event.object
            self.calls.append(event.type)
            self.changed.notify_all()

    def forget(self, kind: Kind) -> None:
        """Forget a kind."""
        with self.changed:
            self.objects.pop(kind, None)
            self.changed.notify_all()

    def names(self, kind: Kind) -> set[str] | None:
        """Return the names known of a kind; None before the first list."""
        objects = self.objects.get(kind)
        return None if objects is None else {key.rpartition("/")[2] for key in objects}

    def wait(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait until a condition over what is known holds."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout), f"{self.objects} {self.calls}"

    def wait_names(self, kind: Kind, *names: str) -> None:
        """Wait until exactly these names are known."""
        self.wait(lambda: self.names(kind) == set(names))


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """Give a running server."""
    with ApiServer(bookmark_interval=0.1) as server:
        yield server


@pytest.fixture
def client(api: ApiServer, tmp_path: Path) -> Iterator[Client]:
    """Give a client of the server, by kubeconfig."""
    api.write_kubeconfig(tmp_path / "kubeconfig")
    client = Client(str(tmp_path / "kubeconfig"))
    yield client
    client.close()


@pytest.fixture
def mirror() -> Mirror:
    """Give a sink."""
    return Mirror()


@pytest.fixture
def start(client: Client, mirror: Mirror) -> Iterator[Callable[..., Informer]]:
    """Give a function that starts an informer; all are stopped at the end."""
    started: list[Informer] = []

    def begin(kind: Kind = Kind.GATEWAY, **settings: Any) -> Informer:
        informer = Informer(kind, client, mirror, timing=settings.pop("timing", FAST), **settings)
        informer.start()
        started.append(informer)
        return informer

    yield begin
    for informer in started:
        informer.stop()


# What an object of a kind cannot be without.
LEAST: dict[Kind, dict[str, Any]] = {
    Kind.SERVICE: {"spec": {"ports": [{"port": 80}]}},
    Kind.ENDPOINT_SLICE: {"addressType": "IPv4", "endpoints": []},
}


def put(api: ApiServer, kind: Kind, name: str, namespace: str = "kube-system", **fields: Any) -> None:
    """Create or replace an object in the server's store."""
    info = KINDS[kind]
    rt = api.registry.find(info.group, info.version, info.plural)
    assert rt is not None
    where = namespace if info.namespaced else ""
    body = {"apiVersion": info.api_version, "kind": info.name, "metadata": {"name": name}}
    body |= LEAST.get(kind, {}) | fields
    if any(stored.key == (where, name) for stored in api.store.select(rt, where)[0]):
        api.store.update(rt, where, name, lambda _old: body)
    else:
        api.store.create(rt, where, body)


def requests(api: ApiServer, verb: str) -> int:
    """Return how many requests of a verb the server has seen."""
    return sum(1 for _, verb_seen, _ in list(api.requests) if verb_seen == verb)


def has_synced(source: Source) -> bool:
    """Tell whether every kind that a source reads has been listed completely once."""
    states = source.state().values()
    return bool(states) and all(state.synced for state in states)
