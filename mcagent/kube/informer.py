"""One kind of one API server: list, watch, resume, relist; delivers to a sink. A thread per informer.

Owns resourceVersion and when to try again. The rules (Kubernetes API concepts, "Efficient detection of changes"):
a list gives a version to watch from; every event and bookmark moves it on; a watch that ends is resumed from the
last version; 410 means that history is gone: list again. An answer that no API server gives is never used, not
even in part: a list with one bad item could otherwise empty a dataplane.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcagent.kube.client import ApiGarbageError, ApiRefusalError, ApiUnreachableError, Client, Stream
from mcagent.kube.source import Backoff, EventType, KindState, ObjectEvent, RawObject, Sink, is_object
from mcagent.kube.trim import trim
from mcagent.model.errors import SourceError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How patient an informer is. Seconds."""

    list_timeout: float = 60.0  # for one page
    watch_timeout: float = 300.0  # asked of the server: timeoutSeconds, from here to twice that
    inactivity: float = 120.0  # a watch without any line; bookmarks come about every minute
    backoff: float = 0.5  # after the first failure
    backoff_most: float = 30.0
    steady: float = 5.0  # a watch that lasted this long, or said something, was no failure
    page: int = 500  # objects of one page of a list


class _ExpiredError(SourceError):
    """The server's history no longer reaches our version."""


class Informer:
    """Reads one kind until stopped.

    `namespace` "" means all; `field_selector` and `label_selector` narrow down. `transform` makes the object
    that is kept of one that came. The sink is called from this informer's thread, never after `stop` returned.
    """

    def __init__(
        self,
        kind: Kind,
        client: Client,
        sink: Sink,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        timing: Timing | None = None,
        transform: Callable[[Kind, RawObject], RawObject] = trim,
    ) -> None:
        self.kind = kind
        self._client, self._sink, self._transform = client, sink, transform
        self._timing = timing or Timing()
        self._path = object_path(kind, namespace)
        self._selectors = {
            key: value
            for key, value in (("fieldSelector", field_selector), ("labelSelector", label_selector))
            if value
        }
        self._rv = ""  # watch from here; "": list first
        self._backoff = Backoff(self._timing.backoff, self._timing.backoff_most)
        self._stopping = threading.Event()
        self._delivery = threading.Lock()  # held while the sink is called
        self._lock = threading.Lock()  # guards what follows
        self._opened = 0.0  # when the present watch began
        self._bookmarks = 0
        self._stream: Stream | None = None
        self._synced = self._connected = False
        self._last_event = 0.0
        self._last_error = ""
        self._lists = self._events = 0
        self._restarts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name=f"informer-{KINDS[kind].plural}", daemon=True)

    def start(self) -> None:
        """Begin to read. Returns at once."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Stop: nothing is delivered afterwards. Waits for the thread up to `timeout` seconds.

        A thread that is still in a connect or a TLS handshake by then ends by itself.
        """
        self.signal_stop()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def signal_stop(self) -> None:
        """Stop as `stop` does, without waiting for the thread."""
        self._stopping.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.abort()
        with self._delivery:  # a delivery under way ends; none begins any more
            pass

    def state(self) -> KindState:
        """Return how reading goes."""
        died = self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()
        with self._lock:
            return KindState(
                kind=self.kind,
                synced=self._synced,
                connected=self._connected and not died,
                last_event=self._last_event,
                last_error="the informer's thread has died: see the log" if died else self._last_error,
                lists=self._lists,
                events=self._events,
                restarts=dict(self._restarts),
            )

    # --- the loop -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._opened = 0.0
            seen = self._events + self._bookmarks
            try:
                if not self._rv:
                    self._list()
                ended, error = self._watch(), None
            except SourceError as err:
                ended, error = _reason(err), err
            if self._stopping.is_set():
                break
            lasted = time.monotonic() - self._opened if self._opened else 0.0
            if self._events + self._bookmarks != seen or lasted >= self._timing.steady:
                self._backoff.reset()  # it worked for a while
            wait = 0.0
            # a server that ends every watch at once must not make us spin
            if error is not None or lasted < self._timing.steady:
                wait = self._after(error)
            self._note(ended, str(error or ""))
            self._stopping.wait(wait)
        self._set_stream(None)

    def _after(self, err: SourceError | None) -> float:
        """Draw the conclusions from a failure. Returns how many seconds to wait."""
        wait = self._backoff.next()
        if isinstance(err, _ExpiredError):
            self._rv = ""
            if self._backoff.failures == 1:
                wait = random.uniform(0.0, min(wait, 0.2))  # noqa: S311 (spreads load)
        elif isinstance(err, ApiRefusalError):
            wait = max(wait, min(err.retry_after, self._timing.backoff_most))
            if err.code == 401:
                self._reload()
        if self._backoff.failures > 3:
            self._rv = ""  # whatever is wrong with this version: begin anew
        return wait

    def _reload(self) -> None:
        try:
            self._client.reload()
        except SourceError as err:
            log.warning("%s: %s", self.kind, err)

    def _note(self, reason: str, error: str) -> None:
        with self._lock:
            self._connected = False
            self._restarts[reason] += 1
            changed, self._last_error = error != self._last_error, error
        if error and changed:
            log.warning("%s: %s", self.kind, error)

    def _set_stream(self, stream: Stream | None) -> None:
        with self._lock:
            self._stream = stream
            self._connected = stream is not None
            if stream is not None:
                self._last_error = ""

    # --- list ---------------------------------------------------------------------------------------------

    def _list(self) -> None:
        try:
            objects, rv = self._pages(self._timing.page)
        except _ExpiredError:
            # history was compacted between two pages: all in one, as client-go's pager does
            objects, rv = self._pages(0)
        with self._delivery:
            if self._stopping.is_set():
                return
            self._sink.replace(self.kind, objects)
        self._rv = rv
        with self._lock:
            self._synced = True
            self._lists += 1
            self._last_event = time.time()
            self._last_error = ""

    def _pages(self, limit: int) -> tuple[list[RawObject], str]:
        objects: list[RawObject] = []
        query = dict(self._selectors)
        if limit:
            query["limit"] = str(limit)
        while True:
            try:
                answer = self._client.request("GET", self._path, query, timeout=self._timing.list_timeout)
            except ApiRefusalError as err:
                if err.code == 410:
                    raise _ExpiredError(str(err)) from err
                raise
            items, rv, token = self._read_page(answer)
            objects += [self._transform(self.kind, obj) for obj in items]
            if not token or self._stopping.is_set():
                return objects, rv
            query["continue"] = token

    def _read_page(self, answer: Any) -> tuple[list[RawObject], str, str]:
        """Return items, version and continue token of a list, or raise ApiGarbageError."""
        wrong = ApiGarbageError(f"{self._client.server}: GET {self._path}: the answer is no {self.kind}List")
        if not isinstance(answer, dict) or answer.get("kind") != f"{self.kind}List":
            raise wrong
        meta, items = answer.get("metadata"), answer.get("items")
        if items is None:
            items = []  # how Go writes an empty list
        if not isinstance(meta, dict) or not isinstance(items, list) or not all(map(is_object, items)):
            raise wrong
        rv, token = meta.get("resourceVersion"), meta.get("continue") or ""
        if not isinstance(rv, str) or not rv or not isinstance(token, str):
            raise wrong
        return items, rv, token

    # --- watch --------------------------------------------------------------------------------------------

    def _watch(self) -> str:
        """Watch from the version we have until the watch ends. Returns why it ended."""
        if self._stopping.is_set():
            return "stopped"
        seconds = int(self._timing.watch_timeout * random.uniform(1.0, 2.0)) or 1  # noqa: S311 (spreads load)
        query = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._rv,
            "timeoutSeconds": str(seconds),
        }
        try:
            stream = self._client.open("GET", self._path, query, timeout=self._timing.inactivity)
        except ApiRefusalError as err:
            if err.code == 410:
                raise _ExpiredError(str(err)) from err
            raise
        with stream:
            self._opened = time.monotonic()
            self._set_stream(stream)
            if self._stopping.is_set():
                return "stopped"
            for line in stream.lines():
                self._read_line(line)
                if self._stopping.is_set():
                    return "stopped"
        return "timeout" if time.monotonic() - self._opened >= seconds - 1 else "closed"

    def _read_line(self, line: bytes) -> None:
        where = f"{self._client.server}: watch {self._path}"
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as err:
            raise ApiGarbageError(f"{where}: a line is no JSON: {line[:60]!r}") from err
        obj = event.get("object") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str) or not isinstance(obj, dict):
            raise ApiGarbageError(f"{where}: a line is no event: {line[:60]!r}")
        if event["type"] == "ERROR":
            raise _error_event(where, obj)
        meta = obj.get("metadata")
        rv = meta.get("resourceVersion") if isinstance(meta, dict) else None
        if event["type"] == "BOOKMARK" and isinstance(rv, str) and rv:
            self._rv = rv
            self._bookmarks += 1
            with self._lock:
                self._last_event = time.time()
            return
        try:
            kind = EventType(event["type"])
        except ValueError:
            with self._lock:
                self._restarts["unknown-event"] += 1  # counted, not used: the watch goes on
            return
        if not is_object(obj) or not isinstance(rv, str) or not rv or obj.get("kind", self.kind) != self.kind:
            raise ApiGarbageError(f"{where}: an event without a usable object: {line[:60]!r}")
        delivered = ObjectEvent(type=kind, object=self._transform(self.kind, obj))
        with self._delivery:
            if self._stopping.is_set():
                return
            self._sink.apply(self.kind, delivered)
        self._rv = rv
        with self._lock:
            self._events += 1
            self._last_event = time.time()


def _error_event(where: str, status: RawObject) -> SourceError:
    """Return the error that an ERROR event tells."""
    code, message = status.get("code"), str(status.get("message", ""))[:300]
    if code == 410 or status.get("reason") in ("Expired", "Gone"):
        return _ExpiredError(f"{where}: {message}")
    if status.get("kind") != "Status" or not isinstance(code, int):
        return ApiGarbageError(f"{where}: an ERROR event without a Status")
    return ApiRefusalError(f"{where}: HTTP {code}: {message}", code=code)


def _reason(err: SourceError) -> str:
    """Return a failure as a word fit for a metric label."""
    match err:
        case _ExpiredError():
            return "expired"
        case ApiGarbageError():
            return "garbage"
        case ApiUnreachableError():
            return "unreachable"
        case ApiRefusalError(code=401):
            return "unauthorized"
        case ApiRefusalError(code=403):
            return "forbidden"
        case ApiRefusalError(code=404):
            return "missing"
        case ApiRefusalError(code=code):
            return "server-error" if code >= 500 else "refused"
    return "other"
