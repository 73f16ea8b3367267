"""Records Kubernetes Events: of problems that objects have, and of what happened. Never delays its callers.

Calls only leave a value behind; a thread of its own writes, slowly (a rate limit), and only what is not there
already. What cannot be written is counted and dropped: reporting must not cost the dataplane anything.

API servers delete an Event an hour after its last write (--event-ttl). So that of a problem which lasts is written
again from time to time, with a higher count, as the recorders of client-go do.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from mcagent.core.causes import remedy
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.errors import SourceError
from mcagent.model.event import Event
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable
from mcagent.model.problem import Problem
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_MAX_MESSAGE = 1000  # characters; the API's limit for an Event's message is 1024 bytes
_MAX_WAITING = 16  # Events of what happened that wait to be written
RENEWAL = 1800.0  # seconds between two writes of an Event of a problem that lasts, as in client-go's tools/events
_BURST = 4  # writes that may follow each other at once after a quiet time

_Item = tuple[Event, str]  # what is to be written, and when it happened; "" for a problem, which lasts


class EventRecorder(BackgroundLoop):
    """Writes Events to one API server until stopped.

    `component` and `node` say who reports. At most `per_minute` writes a minute; a first write waits up to
    `spread` seconds, so that a thousand Nodes that see the same problem do not all write the Event. The one that
    wrote it renews it every `renewal` seconds or so; the others try to create it then, in case that one is gone.
    Without a `permit` (0 or less: a replica without the lease, whose problems may be over) nothing is renewed.
    """

    def __init__(
        self,
        client: Client,
        *,
        node: str,
        component: str = "mcagent",
        per_minute: float = 12.0,
        spread: float = 5.0,
        renewal: float = RENEWAL,
        permit: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__(self._write_next, name="events", patience=1.0)
        self._client, self._node, self._component = client, node, component
        self._interval, self._spread, self._renewal = 60.0 / per_minute, spread, renewal
        self._free_at = -math.inf  # of the rate limit: when the next write is free
        self._lock = threading.Lock()
        self._renew_at, self._permit = time.monotonic() + renewal, permit
        self._problems: dict[
            _Item, int
        ] = {}  # with the count of the Event that this recorder wrote; 0: another did
        self._waiting: dict[_Item, int] = {}  # in order, with how often each has failed
        self._counts: Counter[str] = Counter()

    def problems(self, problems: Iterable[Problem]) -> None:
        """Take the problems that there are now; new ones become Events. Returns at once."""
        items = frozenset((_event_of(problem), "") for problem in problems)
        with self._lock:
            for item in self._problems.keys() - items:
                self._waiting.pop(item, None)
            self._waiting |= dict.fromkeys(sorted(items - self._problems.keys()), 0)
            self._problems = {item: self._problems.get(item, 0) for item in items}
        self.wake()

    def record(self, event: Event) -> None:
        """Take something that happened. Returns at once; of too many the last are kept."""
        with self._lock:
            happened = [item for item in self._waiting if item[1]]
            if len(happened) >= _MAX_WAITING:
                del self._waiting[happened[0]]
                self._counts["dropped"] += 1
            self._waiting[event, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")] = 0
        self.wake()

    def counts(self) -> Mapping[str, int]:
        """Return how many were written, there already, failed, dropped."""
        with self._lock:
            return dict(self._counts)

    # --- the thread ---------------------------------------------------------------------------------------

    def _write_next(self) -> float:
        with self._lock:
            if (now := time.monotonic()) >= self._renew_at:
                lasting = sorted(self._problems) if self._permit() > 0 else ()
                self._waiting = {**dict.fromkeys(lasting, 0), **self._waiting}
                self._renew_at = now + self._renewal * random.uniform(0.8, 1.2)  # noqa: S311 (spreads load)
            # What happened goes before what lasts.
            item = min(self._waiting, key=lambda waiting: not waiting[1], default=None)
        if item is None:
            return self._renew_at - now
        if self._spread:  # the first one: what is waiting afterwards may be another one
            self.pause(random.uniform(0, self._spread))  # noqa: S311 (spreads load)
            self._spread = 0.0
        else:
            self._try(item)
        return 0.0

    def _try(self, item: _Item) -> None:
        """Write one Event, slowly."""
        with self._lock:
            count = self._problems.get(item, 0)
        try:
            outcome = self._write(*item, count)
        except SourceError as error:
            outcome = "failed"
            log.info("cannot write an Event: %s", error)
        with self._lock:
            if outcome == "failed" and item in self._waiting:
                self._waiting[item] += 1
                outcome = "failed" if self._waiting[item] < _ATTEMPTS else "dropped"
            if outcome != "failed":
                self._waiting.pop(item, None)
            if outcome == "written" and item in self._problems:
                self._problems[item] += 1
            self._counts[outcome] += 1
        if outcome != "unchanged":
            self._slow_down()

    def _slow_down(self) -> None:
        """Wait so that in the long run a write takes `pause`; a few may follow each other at once."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now - _BURST * self._interval) + self._interval
        if self._free_at > now:
            self.pause(self._free_at - now)

    def _write(self, event: Event, happened: str, count: int) -> str:
        """Write an Event if it is not there, or was written `count` times by this recorder.

        Returns "written" or "unchanged". Raises SourceError.
        """
        target = _target(event.subject)
        if target is None:
            return "unchanged"
        kind, namespace, name = target
        try:
            if (subject := self._client.find(object_path(kind, namespace, name))) is None:
                return "unchanged"  # it is gone, and its problem with it
            uid = subject["metadata"]["uid"]
        except (KeyError, TypeError) as error:
            raise SourceError(f"{kind} {name}: the API server's answer has no uid") from error
        home = namespace or "default"
        involved = {"apiVersion": KINDS[kind].api_version, "kind": KINDS[kind].name, "name": name, "uid": uid}
        at = f"{happened[:19]}Z" if happened else datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        prefix = name[:200].rstrip(".-")  # with which no label of a name ends
        path, event_name = f"/api/v1/namespaces/{home}/events", f"{prefix}.{_digest(event, happened, uid)}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event_name, "namespace": home},
            "involvedObject": involved | ({"namespace": namespace} if namespace else {}),
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": printable(event.message, _MAX_MESSAGE),
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": count + 1,
        }
        try:
            if count and self._is_renewed(f"{path}/{event_name}", {"count": count + 1, "lastTimestamp": at}):
                return "written"
            self._client.request("POST", path, body=body)
        except ApiRefusalError as error:
            if error.code == 409:
                return "unchanged"  # another Node wrote it, or we did before a restart
            raise
        return "written"

    def _is_renewed(self, path: str, patch: Mapping[str, object]) -> bool:
        """Write the time and the count of an Event; return False if it is gone, or RBAC does not allow it yet."""
        try:
            self._client.request("PATCH", path, body=patch, content_type="application/merge-patch+json")
        except ApiRefusalError as error:
            if error.code in (403, 404):
                return False
            raise
        return True


def _event_of(problem: Problem) -> Event:
    message = (f"{problem.path}: " if problem.path else "") + problem.message
    if action := remedy(problem.reason):
        message += f". What to do: {action}"
    return Event(subject=problem.subject, reason=problem.reason, message=message)


def _digest(event: Event, happened: str, uid: str) -> str:
    """Return what tells Events of an object apart. For a problem every Node comes to the same: one writes it."""
    return hashlib.sha256(repr((event.reason, event.message, happened, uid)).encode()).hexdigest()[:16]


def _target(subject: str) -> tuple[Kind, str, str] | None:
    """Return kind, namespace and name of the object that a subject names; None where it names another thing.

    That is a file, the configuration, or an object of the leader.
    """
    word, _, key = subject.partition(" ")
    try:
        kind = Kind(word)
    except ValueError:
        return None
    namespace, slash, name = key.rpartition("/")
    if not name or " " in name or bool(slash) != KINDS[kind].namespaced:
        return None
    return kind, namespace, name
