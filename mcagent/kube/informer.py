"""One kind of one API server: list, watch, resume, relist; delivers to a sink. A thread per informer.

Owns resourceVersion and when to try again. The rules (Kubernetes API concepts, "Efficient detection of changes"):
a list gives a version to watch from; every event and bookmark moves it on; a watch that ends is resumed from the
last version; 410 means that history is gone: list again. No object ends a list or a watch: what cannot be used of
one is left out and told. After a line that could not be read the watch goes on, and a list follows it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mcagent.kube.client import MAX_LINE, Client, Stream
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError, ApiUnreachableError, ExpiredError
from mcagent.kube.lister import PAGE, PAGE_BYTES, Lister
from mcagent.kube.source import EventType, KindState, RawObject, Sink, WatchEvent, is_object, object_key
from mcagent.kube.trim import trim
from mcagent.model.backoff import Backoff
from mcagent.model.document import MAX_DEPTH, decode_told
from mcagent.model.errors import SourceError
from mcagent.model.field import printable
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.supervised import Supervised, attempt

log = logging.getLogger(__name__)


RETRY = Backoff(first=0.5, most=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How patient an informer is. Seconds."""

    list_timeout: float = 60.0  # for one page
    watch_timeout: float = 300.0  # asked of the server: timeoutSeconds, from here to twice that
    inactivity: float = 120.0  # a watch without any line; bookmarks come about every minute
    backoff: Backoff = RETRY
    steady: float = 5.0  # a watch that lasted this long, or said something, was no failure
    page: int = PAGE  # objects of one page of a list
    page_bytes: int = PAGE_BYTES


_BAD_LINES = 100  # of one watch: an API server does not say so much nonsense
_TOLD = 1000  # objects of which the log tells once what cannot be used


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
        self._lister = Lister(
            client,
            kind,
            self._path,
            self._selectors,
            page=self._timing.page,
            page_bytes=self._timing.page_bytes,
            timeout=self._timing.list_timeout,
            keep=self._kept,
            tell=self._tell,
        )
        self._rv = ""  # watch from here; "": list first
        self._bad_lines = 0  # of the present watch: what they told is not known
        self._told: set[str] = set()
        self._failures = 0  # in a row
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
        self._thread = Supervised(self._run, name=f"informer-{KINDS[kind].plural}", until=self._stopping)

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
        died = self._thread.cause
        with self._lock:
            return KindState(
                kind=self.kind,
                synced=self._synced,
                connected=self._connected and not died,
                last_event=self._last_event,
                last_error=f"the informer's thread broke: {died}" if died else self._last_error,
                lists=self._lists,
                events=self._events,
                restarts=dict(self._restarts),
            )

    # --- the loop -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._rv = ""  # also when it is run again
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
            if self._bad_lines:
                self._rv, self._bad_lines = "", 0  # whatever they told, a list tells it, too
            lasted = time.monotonic() - self._opened if self._opened else 0.0
            if self._events + self._bookmarks != seen or lasted >= self._timing.steady:
                self._failures = 0  # it worked for a while
            wait = 0.0
            # a server that ends every watch at once must not make us spin
            if error is not None or lasted < self._timing.steady:
                wait = self._after(error)
            self._note(ended, str(error or ""))
            self._stopping.wait(wait)
        self._set_stream(None)

    def _after(self, err: SourceError | None) -> float:
        """Draw the conclusions from a failure. Returns how many seconds to wait."""
        self._failures += 1
        wait = self._timing.backoff.delay(self._failures, random.random())  # noqa: S311 (spreads load)
        if isinstance(err, ExpiredError):
            self._rv = ""
            if self._failures == 1:
                wait = random.uniform(0.0, min(wait, 0.2))  # noqa: S311 (spreads load)
        elif isinstance(err, ApiRefusalError):
            wait = max(wait, min(err.retry_after, self._timing.backoff.most))
            if err.code == 401:
                self._reload()
        if self._failures > 3:
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
        objects, rv = self._lister.read(stopping=self._stopping.is_set)
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

    def _kept(self, obj: RawObject) -> RawObject | None:
        """Return what is kept of an object; None, and tell, where that cannot be made."""
        kept, error = attempt(lambda: self._transform(self.kind, obj))
        if error is not None:
            what = f"{self.kind} {printable(object_key(obj), 320)}"
            self._tell("unusable", f"{what} cannot be used: {type(error).__name__}: {printable(str(error))}")
        return kept

    def _tell(self, reason: str, text: str) -> None:
        """Count an object that cannot be used as it is, and say so once."""
        with self._lock:
            self._restarts[f"object-{reason}"] += 1
        if text not in self._told and len(self._told) < _TOLD:
            self._told.add(text)
            log.warning("%s", text)

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
                raise ExpiredError(str(err)) from err
            raise
        with stream:
            self._opened, self._bad_lines = time.monotonic(), 0
            self._set_stream(stream)
            if self._stopping.is_set():
                return "stopped"
            for line in stream.lines(self._too_long):
                self._read_line(line)
                if self._stopping.is_set():
                    return "stopped"
        return "timeout" if time.monotonic() - self._opened >= seconds - 1 else "closed"

    def _too_long(self) -> None:
        self._bad_line(f"a line of more than {MAX_LINE} bytes")

    def _bad_line(self, what: str) -> None:
        """Pass over a line. Raises ApiGarbageError when there are too many."""
        where = f"{self._client.server}: watch {self._path}"
        self._bad_lines += 1
        if self._bad_lines > _BAD_LINES:
            raise ApiGarbageError(f"{where}: {what}")
        with self._lock:
            self._restarts["bad-line"] += 1  # counted, not used: the watch goes on
        if self._bad_lines == 1:
            log.warning("%s: %s", where, what)

    def _read_line(self, line: bytes) -> None:
        try:
            event, cut = decode_told(line)
        except ValueError:
            return self._bad_line(f"a line is no JSON: {line[:60]!r}")
        obj = event.get("object") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str) or not isinstance(obj, dict):
            return self._bad_line(f"a line is no event: {line[:60]!r}")
        if event["type"] == "ERROR":
            raise _error_event(f"{self._client.server}: watch {self._path}", obj)
        meta = obj.get("metadata")
        rv = meta.get("resourceVersion") if isinstance(meta, dict) else None
        if event["type"] == "BOOKMARK" and isinstance(rv, str) and rv:
            self._rv = rv
            self._bookmarks += 1
            with self._lock:
                self._last_event = time.time()
            return None
        try:
            kind = EventType(event["type"])
        except ValueError:
            with self._lock:
                self._restarts["unknown-event"] += 1  # counted, not used: the watch goes on
            return None
        if not is_object(obj) or not isinstance(rv, str) or not rv or obj.get("kind", self.kind) != self.kind:
            return self._bad_line(f"an event without a usable object: {line[:60]!r}")
        if cut:
            what = f"{self.kind} {printable(object_key(obj), 320)}"
            self._tell("nested", f"{what}: what is nested more than {MAX_DEPTH} deep is not read")
        kept = self._kept(obj)
        if kept is None and kind is EventType.DELETED:
            kept = obj
        with self._delivery:
            if self._stopping.is_set():
                return None
            if kept is not None:
                self._sink.apply(self.kind, WatchEvent(type=kind, object=kept))
        self._rv = rv
        with self._lock:
            self._events += 1
            self._last_event = time.time()
        return None


def _error_event(where: str, status: RawObject) -> SourceError:
    """Return the error that an ERROR event tells."""
    code, message = status.get("code"), printable(str(status.get("message", "")), 300)
    if code == 410 or status.get("reason") in ("Expired", "Gone"):
        return ExpiredError(f"{where}: {message}")
    if status.get("kind") != "Status" or not isinstance(code, int):
        return ApiGarbageError(f"{where}: an ERROR event without a Status")
    return ApiRefusalError(f"{where}: HTTP {code}: {message}", code=code)


def _reason(err: SourceError) -> str:
    """Return a failure as a word fit for a metric label."""
    match err:
        case ExpiredError():
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
