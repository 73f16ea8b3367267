"""One kind of one API server: list, watch, resume, relist; delivers to a sink. A thread per informer.

Owns resourceVersion and when to try again. The rules (Kubernetes API concepts, "Efficient detection of changes"):
a list gives a version to watch from; every event and bookmark moves it on; a watch that ends is resumed from the
last version; 410 means that history is gone: list again. No object ends a list or a watch: what cannot be used of
one is left out and reported. After a line that could not be read the watch goes on, and a list follows it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mcagent.kube.client import Client
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError, ExpiredError, metric_word
from mcagent.kube.source import EventType, RawObject, Sink, WatchEvent
from mcagent.kube.sources.lister import PAGE, PAGE_BYTES, TOO_DEEP, Lister, display_name
from mcagent.kube.sources.watch import BadLineError, read_line
from mcagent.kube.stream import MAX_LINE, Stream
from mcagent.model.api.base import ApiObject
from mcagent.model.backoff import Backoff
from mcagent.model.errors import SourceError
from mcagent.model.informer_state import InformerState
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from mcagent.supervised import Supervised

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
_REPORTED = 1000  # objects that cannot be used and are named in the log, each once
_EXPIRED_WAIT = 0.2  # seconds, at most, before the list that follows an expired version
_HOPELESS = 3  # failures in a row after which the version is not trusted any more


class Informer:
    """Reads one kind until stopped.

    `namespace` "" means all; `field_selector` and `label_selector` narrow down. A kind that the API server
    refuses with one of the `dispensable` codes counts as listed, and empty, until it does not. `transform` makes
    the object that is kept of one that came. The sink is called from this informer's thread, never after `stop`
    returned.
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
        dispensable: frozenset[int] = frozenset(),
        timing: Timing | None = None,
        transform: Callable[[Kind, RawObject], ApiObject] = read_object,
    ) -> None:
        self.kind = kind
        self._client, self._sink, self._transform = client, sink, transform
        self._dispensable = dispensable
        self._timing = timing or Timing()
        self._path = object_path(kind, namespace)
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._selectors = {name: selector for name, selector in selectors.items() if selector}
        self._lister = Lister(
            client,
            kind,
            self._path,
            self._selectors,
            page=self._timing.page,
            page_bytes=self._timing.page_bytes,
            timeout=self._timing.list_timeout,
            keep=self._decoded,
            report=self._report,
        )
        self._stopping = threading.Event()
        self._delivery = threading.Lock()  # held while the sink is called
        self._thread = Supervised(self._run, name=f"informer-{KINDS[kind].plural}", until=self._stopping)
        # Its own thread's:
        self._version = ""  # watch from here; "": list first
        self._failures = 0  # in a row
        self._opened = 0.0  # when the present watch began; monotonic
        self._progress = False  # the present watch said something
        self._bad_lines = 0  # of the present watch: what they said is not known
        self._absent = False  # done without
        self._reported: set[str] = set()
        # Any thread's:
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._state = InformerState(kind=kind)

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

    def state(self) -> InformerState:
        """Return how reading goes."""
        interrupted = self._thread.interrupted
        with self._lock:
            state = self._state
        if interrupted:
            return replace(state, connected=False, error=f"the informer's thread failed: {interrupted}")
        return state

    # --- the loop -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        # Also when it is run again: the watch that broke is gone.
        self._version = ""
        self._connected(None)
        while not self._stopping.is_set():
            self._stopping.wait(self._turn())
        self._connected(None)

    def _turn(self) -> float:
        """List if need be, and watch until that ends. Returns how many seconds to wait then."""
        self._opened, self._progress, self._bad_lines = 0.0, False, 0
        error: SourceError | None = None
        try:
            if not self._version:
                self._list()
            reason = self._watch()
        except SourceError as err:
            error, reason = err, metric_word(err)
        if self._stopping.is_set():
            return 0.0
        if self._bad_lines:
            self._version = ""  # whatever those lines said, a list says it too
        lasted = time.monotonic() - self._opened if self._opened else 0.0
        if lasted >= self._timing.inactivity and not self._progress:
            # No event and no bookmark: perhaps the server accepts a version that it has not reached, after a
            # restore of etcd from a backup (kubernetes/kubernetes#107457). Only a list gives a valid one.
            self._version = ""
        steady = lasted >= self._timing.steady
        if steady or self._progress:
            self._failures = 0
        # A server that ends every watch at once must not make us spin.
        wait = self._pause(error) if error is not None or not steady else 0.0
        self._count(reason)
        if isinstance(error, ApiRefusalError) and error.code in self._dispensable:
            self._do_without(error)
            return wait
        text = str(error or "")
        if text and text != self._state.error:
            log.warning("%s: %s", self.kind, text)
        self._connected(None, error=text)
        return wait

    def _pause(self, error: SourceError | None) -> float:
        """Draw the conclusions from a failure. Returns how many seconds to wait."""
        self._failures += 1
        wait = self._timing.backoff.delay(self._failures, random.random())  # noqa: S311 (spreads load)
        match error:
            case ExpiredError():
                self._version = ""
                if self._failures == 1:
                    wait = random.uniform(0.0, min(wait, _EXPIRED_WAIT))  # noqa: S311 (spreads load)
            case ApiRefusalError(retry_after=retry_after):
                wait = max(wait, min(retry_after, self._timing.backoff.most))
        if self._failures > _HOPELESS:
            self._version = ""  # whatever is wrong with this version: begin anew
        return wait

    def _connected(self, stream: Stream | None, error: str = "") -> None:
        with self._lock:
            self._stream = stream
            self._state = replace(self._state, connected=stream is not None, error=error)

    def _count(self, reason: str) -> None:
        with self._lock:
            counts = self._state.restarts
            self._state = replace(self._state, restarts={**counts, reason: counts.get(reason, 0) + 1})

    # --- list ---------------------------------------------------------------------------------------------

    def _list(self) -> None:
        objects, version = self._lister.read(stopping=self._stopping.is_set)
        with self._delivery:
            if self._stopping.is_set():
                return
            self._sink.replace(self.kind, objects)
        self._listed(version)
        self._absent = False

    def _do_without(self, error: ApiRefusalError) -> None:
        """Count the kind as empty: the API server does not know it, or we may not. The next list will tell.

        Objects listed before stay while access is refused: that is a mistake in RBAC.
        """
        unknown = error.code == 404
        if not self._absent and (unknown or not self._state.synced):
            why = "the API server does not have this kind" if unknown else str(error)
            log.log(logging.INFO if unknown else logging.WARNING, "%s: assuming none: %s", self.kind, why)
            with self._delivery:
                if not self._stopping.is_set():
                    self._sink.replace(self.kind, [])
            self._listed("")
        self._absent = True
        with self._lock:
            state = replace(self._state, connected=unknown, error="" if unknown else str(error))
            self._stream, self._state = None, state

    def _listed(self, version: str) -> None:
        self._version = version
        with self._lock:
            now, lists = time.time(), self._state.lists + 1
            self._state = replace(self._state, synced=True, lists=lists, last_event=now, error="")

    def _decoded(self, obj: RawObject) -> ApiObject:
        """Return an object as a struct; a value of a wrong type is left out, which is reported."""
        decoded = self._transform(self.kind, obj)
        for error in decoded.fault.errors if decoded.fault is not None else ():
            self._report("invalid", f"{error}: left out")
        return decoded

    def _report(self, reason: str, text: str) -> None:
        """Count an object that cannot be used as it is, and log it once."""
        self._count(f"object-{reason}")
        if text not in self._reported and len(self._reported) < _REPORTED:
            self._reported.add(text)
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
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        with self._client.watch(self._path, query, inactivity=self._timing.inactivity) as stream:
            self._opened = time.monotonic()
            self._connected(stream)
            if self._stopping.is_set():
                return "stopped"
            for line in stream.lines(self._too_long):
                self._take(line)
                if self._stopping.is_set():
                    return "stopped"
        return "timeout" if time.monotonic() - self._opened >= seconds - 1 else "closed"

    def _take(self, text: bytes) -> None:
        """Take a line of the watch."""
        try:
            line = read_line(self.kind, text, self._where)
        except BadLineError as error:
            self._bad_line(str(error))
            return
        if line.type is not None:
            self._deliver(line.type, line.object, cut=line.cut)
        elif not line.version:
            self._count("unknown-event")  # not used: the watch goes on
            return
        self._version, self._progress = line.version, True
        with self._lock:
            events = self._state.events + (line.type is not None)
            self._state = replace(self._state, events=events, last_event=time.time())

    def _deliver(self, event_type: EventType, obj: RawObject, *, cut: bool) -> None:
        if cut:
            self._report("nested", f"{display_name(self.kind, obj)}: {TOO_DEEP}")
        event = WatchEvent(type=event_type, object=self._decoded(obj))
        with self._delivery:
            if not self._stopping.is_set():
                self._sink.apply(self.kind, event)

    @property
    def _where(self) -> str:
        return f"{self._client.server}: watch {self._path}"

    def _too_long(self) -> None:
        self._bad_line(f"a line of more than {MAX_LINE} bytes")

    def _bad_line(self, what: str) -> None:
        """Pass over a line. Raises ApiGarbageError when there are too many."""
        self._bad_lines += 1
        if self._bad_lines > _BAD_LINES:
            raise ApiGarbageError(f"{self._where}: {what}")
        self._count("bad-line")  # not used: the watch goes on
        if self._bad_lines == 1:
            log.warning("%s: %s", self._where, what)
