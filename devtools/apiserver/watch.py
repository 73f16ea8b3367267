"""A watch: from a Request to the lines of its stream. It must not know sockets; `WatchStream.lines` blocks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from devtools.apiserver.errors import ApiError, Json
from devtools.apiserver.handlers import chosen_by, dumps
from devtools.apiserver.routes import Request
from devtools.apiserver.storage.history import Event
from devtools.apiserver.storage.store import Store


def _line(kind: str, text: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + text + b"}\n"


class WatchStream:
    """One watch. Made when the request arrives, so that errors before the first event are plain answers."""

    def __init__(self, store: Store, request: Request, *, bookmark_interval: float) -> None:
        self._store = store
        self._request = request
        self._chosen = chosen_by(request)
        self._bookmarks = request.flag("allowWatchBookmarks")
        self._interval = bookmark_interval
        # 30 to 60 minutes unless asked otherwise (kube-apiserver --min-request-timeout)
        self._timeout = request.number("timeoutSeconds") or random.uniform(1800, 3600)  # noqa: S311
        self._from = request.number("resourceVersion") or 0

    def lines(self, stopped: Callable[[], bool], poll: float = 1.0) -> Iterator[list[bytes]]:
        """Yield batches of lines until the time is up or `stopped()`; an empty batch is a chance to look."""
        try:
            yield from self._run(stopped, poll)
        except ApiError as err:
            yield [_line("ERROR", dumps(err.status()))]

    def _run(self, stopped: Callable[[], bool], poll: float) -> Iterator[list[bytes]]:
        store, request = self._store, self._request
        history = store.history(request.rt.store_key)
        first: list[bytes] = []
        with store.lock:
            rv = self._from
            if rv == 0:
                objects, rv = store.select(request.rt, request.namespace)
                first = [_line("ADDED", s.text(request.api_version)) for s in objects if self._chosen(s.obj)]
            position = history.position(rv)
        yield first
        end = time.monotonic() + self._timeout
        bookmark_due = time.monotonic() + self._interval
        while not stopped():
            now = time.monotonic()
            with history.changed:
                events = history.since(position)
                if not events and now < end:
                    history.changed.wait(max(0.0, min(poll, end - now, bookmark_due - now)))
                    events = history.since(position)
                # all events up to here have been sent, so a bookmark may name the store's version
                rv = events[-1].rv if events else store.rv
            position += len(events)
            # From a version that is not reached yet nothing comes, as from kube-apiserver.
            lines = [line for event in events if event.rv > self._from and (line := self._event(event))]
            now = time.monotonic()
            if self._bookmarks and rv >= self._from and (now >= bookmark_due or now >= end):
                lines.append(self._bookmark(rv))
                bookmark_due = now + self._interval
            yield lines
            if now >= end:
                return

    def _event(self, event: Event) -> bytes | None:
        """Return an event as this watch sees it: what leaves or enters a selection is deleted or added."""
        request = self._request
        if request.namespace and event.new.key[0] != request.namespace:
            return None
        now = event.type != "DELETED" and self._chosen(event.new.obj)
        before = event.old is not None and self._chosen(event.old.obj)
        if not now and not before:
            return None
        kind = "MODIFIED" if now and before else "ADDED" if now else "DELETED"
        return _line(kind, event.new.text(request.api_version))

    def _bookmark(self, rv: int) -> bytes:
        meta: Json = {"resourceVersion": str(rv), "creationTimestamp": None}
        obj = {"kind": self._request.rt.kind, "apiVersion": self._request.api_version}
        return _line("BOOKMARK", dumps({**obj, "metadata": meta}))
