"""Faults on demand: which requests are answered slowly, wrongly or not at all. For tests and the fault matrix.

It decides; the server acts. Switched from Python (`ApiServer.faults`) or over HTTP (`/_admin/faults`).
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from devtools.apiserver.errors import Json, bad_request


class FaultKind(StrEnum):
    """What goes wrong."""

    SLOW = "slow"  # answer after `delay` seconds
    SILENT = "silent"  # take the request and never answer; a watch starts and stays quiet
    STATUS = "status"  # answer with `code` and a Status (for a watch too)
    GARBAGE = "garbage"  # answer 200 with `body`; in a watch as one line of the stream, which then ends
    TRUNCATED = "truncated"  # begin the answer and close the connection in the middle
    DROP = "drop"  # close the connection without an answer


GARBAGE: dict[str, str] = {
    "html": "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>",
    "text": "upstream connect error or disconnect/reset before headers",
    "number": "42",
    "null": "null",
    "list": "[1, 2, 3]",
    "empty": "",
    "no-type": '{"object": {"metadata": {"name": "x"}}}',
    "unknown-type": '{"type": "EXPLODED", "object": {"kind": "Node", "metadata": {"name": "x"}}}',
    "wrong-types": '{"kind": "NodeList", "metadata": 7, "items": {"a": 1}, "type": "ADDED", "object": "x"}',
    "bad-items": '{"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [1, null, {"metadata": []}],'
    ' "type": "MODIFIED", "object": {"metadata": {"name": 5}}}',
    "no-version": '{"kind": "List", "metadata": {}, "items": [], "type": "MODIFIED", "object": {"metadata": {}}}',
    "expired": '{"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410,'
    ' "reason": "Expired", "message": "too old resource version"}}',
    "error": '{"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 500,'
    ' "reason": "InternalError", "message": "etcdserver: request timed out"}}',
    "odd-error": '{"type": "ERROR", "object": ["no", "status"]}',
    "binary": "\x00\x01\ufffd\u2603",
    "deep": "[" * 5000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One rule. It applies to requests whose verb is in `verbs` and whose path contains `path`; empty: all.

    Verbs are those of RBAC (get, list, watch, create, update, patch, delete, deletecollection).
    """

    kind: FaultKind
    verbs: tuple[str, ...] = ()
    path: str = ""
    times: int = 0  # how many requests it hits; 0: until cleared
    delay: float = 1.0  # seconds
    code: int = 500
    body: str = "html"  # a name in GARBAGE, or the text itself
    after: int = 0  # a watch: real events to let through first

    @property
    def garbage(self) -> bytes:
        """Return what a GARBAGE answer consists of."""
        return GARBAGE.get(self.body, self.body).encode()


class Faults:
    """The rules in force. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Put a rule in force, after those that are."""
        with self._lock:
            self._rules.append(fault)

    def clear(self) -> None:
        """Answer everything rightly again."""
        with self._lock:
            self._rules.clear()

    def pick(self, verb: str, path: str) -> Fault | None:
        """Return the first rule that applies to a request, and count it down."""
        with self._lock:
            for at, fault in enumerate(self._rules):
                if (fault.verbs and verb not in fault.verbs) or fault.path not in path:
                    continue
                if fault.times == 1:
                    del self._rules[at]
                elif fault.times:
                    self._rules[at] = replace(fault, times=fault.times - 1)
                return fault
        return None

    def as_json(self) -> list[Json]:
        """Return the rules as JSON."""
        with self._lock:
            return [asdict(fault) for fault in self._rules]


def fault_from_json(data: Any) -> Fault:
    """Read a rule. Raises ApiError 400 for anything but an object of Fault's fields."""
    names = {field.name for field in fields(Fault)}
    if not isinstance(data, dict) or not data.keys() <= names:
        raise bad_request(f"a fault is an object with the fields {sorted(names)}")
    try:
        return Fault(**(data | {"kind": FaultKind(data.get("kind", "")), "verbs": tuple(data.get("verbs", ()))}))
    except (ValueError, TypeError) as err:
        raise bad_request(str(err)) from None
