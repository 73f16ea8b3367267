"""Tells the API what the agent found: Events for problems, a condition in a status. Never in anybody's way.

Calls only leave a value behind; a thread of its own writes, slowly (a rate limit), and only what is not there
already. What cannot be written is counted and dropped: reporting must not cost the dataplane anything.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.errors import SourceError
from mcagent.model.event import Event
from mcagent.model.field import printable
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_MAX_MESSAGE = 1000  # the API's limit for an Event's message is 1024 bytes
_MAX_WAITING = 16
_BURST = 4  # writes that may follow each other at once after a quiet time


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A metav1.Condition, but for its time, which is that of the last change of `status`."""

    type: str
    status: bool
    reason: str
    message: str = ""


_Target = tuple[Kind, str, str]  # kind, namespace, name


def _target(subject: str) -> _Target | None:
    """Return the object that a problem's subject names, or None (a file, the leader's object)."""
    word, _, key = subject.partition(" ")
    try:
        kind = Kind(word)
    except ValueError:
        return None
    namespace, slash, name = key.rpartition("/")
    if not name or " " in name or bool(slash) != KINDS[kind].namespaced:
        return None
    return kind, namespace, name


def _path(target: _Target) -> str:
    kind, namespace, name = target
    return object_path(kind, namespace, name)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class EventRecorder:
    """Writes Events and conditions to one API server until stopped.

    `component` and `node` say who reports. At most `per_minute` writes a minute; a first write waits up to
    `spread` seconds, so that a thousand Nodes that see the same problem do not all write the Event.
    """

    def __init__(
        self,
        client: Client,
        *,
        node: str,
        component: str = "mcagent",
        per_minute: float = 12.0,
        spread: float = 5.0,
    ) -> None:
        self._client, self._node, self._component = client, node, component
        self._pause, self._spread = 60.0 / per_minute, spread
        self._lock = threading.Lock()
        self._problems: frozenset[Problem] = frozenset()
        self._conditions: dict[_Target, Condition] = {}
        self._happened: deque[tuple[Event, str]] = deque(maxlen=_MAX_WAITING)  # each with when it happened
        self._counts: Counter[str] = Counter()
        self._free_at = -math.inf  # of the rate limit: when the next write is free
        self._dirty, self._stopping = threading.Event(), threading.Event()
        self._thread = Supervised(self._run, name="events", until=self._stopping)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Stop within about a second; what is not written yet is not."""
        self._stopping.set()
        self._dirty.set()
        self._thread.join(timeout=1.0)

    def problems(self, problems: Iterable[Problem]) -> None:
        """Take the problems that there are now; new ones become Events. Returns at once."""
        with self._lock:
            self._problems = frozenset(problems)
        self._dirty.set()

    def record(self, happened: Event) -> None:
        """Take an Event to be written. Returns at once; of too many the last are kept."""
        with self._lock:
            if len(self._happened) == _MAX_WAITING:
                self._counts["dropped"] += 1
            self._happened.append((happened, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")))
        self._dirty.set()

    def condition(self, kind: Kind, namespace: str, name: str, condition: Condition) -> None:
        """Take what a condition of an object, on which nobody else reports, should be. Returns at once."""
        with self._lock:
            self._conditions[kind, namespace, name] = condition
        self._dirty.set()

    def counts(self) -> Mapping[str, int]:
        """Return how many were written, there already, failed, dropped."""
        with self._lock:
            return dict(self._counts)

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        told: set[Problem] = set()
        written: dict[_Target, Condition] = {}
        attempts: Counter[object] = Counter()
        self._dirty.wait()
        self._stopping.wait(random.uniform(0, self._spread))  # noqa: S311 (spreads load)
        while not self._stopping.is_set():
            self._dirty.clear()
            with self._lock:
                problems, conditions = self._problems, dict(self._conditions)
            told &= problems
            self._tell_happened(attempts)
            for target, condition in conditions.items():
                if written.get(target) != condition and self._try(
                    attempts, self._write_condition, target, condition
                ):
                    written[target] = condition
            for problem in sorted(problems - told):
                if self._try(attempts, self._write_event, problem):
                    told.add(problem)
            done = told == problems and written == conditions and not self._happened
            if done:
                attempts.clear()
                self._dirty.wait()

    def _tell_happened(self, attempts: Counter[object]) -> None:
        while not self._stopping.is_set():
            with self._lock:
                if not self._happened:
                    return
                happened, at = self._happened[0]
            if not self._try(attempts, self._write_happening, happened, at):
                return
            with self._lock:
                if self._happened and self._happened[0] == (happened, at):
                    self._happened.popleft()

    def _try(self, attempts: Counter[object], write: Any, *what: Any) -> bool:
        """Write one thing, slowly. Returns whether it is done with, for better or worse."""
        if self._stopping.is_set():
            return False
        try:
            outcome = write(*what)
        except SourceError as err:
            attempts[what] += 1
            outcome = "failed" if attempts[what] < _ATTEMPTS else "dropped"
            log.info("report: %s", err)
        with self._lock:
            self._counts[outcome] += 1
        if outcome != "unchanged":
            self._slow_down()
        return bool(outcome != "failed")

    def _slow_down(self) -> None:
        """Wait so that in the long run a write takes `pause`; a few may follow each other at once."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now - _BURST * self._pause) + self._pause
        if self._free_at > now:
            self._stopping.wait(self._free_at - now)

    def _write_condition(self, target: _Target, condition: Condition) -> str:
        obj = self._client.request("GET", _path(target))
        status = obj.get("status") if isinstance(obj, dict) else None
        present = status.get("conditions") if isinstance(status, dict) else None
        present = [item for item in present if isinstance(item, dict)] if isinstance(present, list) else []
        wanted = {
            "type": condition.type,
            "status": str(condition.status),
            "reason": condition.reason,
            "message": condition.message,
        }
        old: dict[str, Any] = next((item for item in present if item.get("type") == condition.type), {})
        if all(old.get(key) == value for key, value in wanted.items()):
            return "unchanged"
        since = old.get("lastTransitionTime") if old.get("status") == wanted["status"] else None
        wanted["lastTransitionTime"] = since or _now()
        others = [item for item in present if item.get("type") != condition.type]
        version = obj["metadata"]["resourceVersion"]
        self._client.request(
            "PATCH",
            f"{_path(target)}/status",
            body={"metadata": {"resourceVersion": version}, "status": {"conditions": [*others, wanted]}},
            content_type="application/merge-patch+json",
        )
        return "written"

    def _write_event(self, problem: Problem) -> str:
        target = _target(problem.subject)
        if target is None:
            return "unchanged"
        # the same for every Node, so that of many that see a problem one writes it
        identity = repr((problem.path, problem.reason, problem.message))
        message = (f"{problem.path}: " if problem.path else "") + problem.message
        return self._post_event(
            target, identity, Event(subject="", reason=problem.reason, message=message), _now()
        )

    def _write_happening(self, happened: Event, at: str) -> str:
        target = _target(happened.subject)
        if target is None:
            return "unchanged"
        return self._post_event(target, repr((happened, at)), happened, f"{at[:19]}Z")

    def _post_event(self, target: _Target, identity: str, happened: Event, at: str) -> str:
        kind, namespace, name = target
        home = namespace or "default"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        path = f"/api/v1/namespaces/{home}/events"
        try:
            uid = self._client.request("GET", _path(target))["metadata"]["uid"]
        except ApiRefusalError as err:
            if err.code == 404:
                return "unchanged"  # it is gone, and its problem with it
            raise
        except (KeyError, TypeError) as err:
            raise SourceError(f"{kind} {name}: the API server told no uid") from err
        involved = {"apiVersion": KINDS[kind].api_version, "kind": str(kind), "name": name, "uid": uid}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name[:200]}.{digest}", "namespace": home},
            "involvedObject": involved | ({"namespace": namespace} if namespace else {}),
            "type": "Warning" if happened.warning else "Normal",
            "reason": happened.reason,
            "message": printable(happened.message, _MAX_MESSAGE),
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            self._client.request("POST", path, body=event)
        except ApiRefusalError as err:
            if err.code == 409:
                return "unchanged"  # another Node told it, or we did before a restart
            raise
        return "written"
