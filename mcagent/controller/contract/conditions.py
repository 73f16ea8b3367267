"""Conditions in an object's status: one of each type, whose time changes only when its status does.

Pure; the time comes from the caller. Source of the fields: metav1.Condition, and Antrea's own condition types,
which have the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mcagent.kube.source import RawObject

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


def time_text(at: float) -> str:
    """Return seconds since the epoch as the API writes times: RFC 3339, UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def time_of(text: object) -> float | None:
    """Return an RFC 3339 time in seconds since the epoch; None when it is none."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo else None


def find(conditions: object, kind: str) -> Mapping[str, Any]:
    """Return the condition of a type among what may be a list of conditions; {} when there is none."""
    if isinstance(conditions, Sequence) and not isinstance(conditions, str):
        for item in conditions:
            if isinstance(item, Mapping) and item.get("type") == kind:
                return item
    return {}


def condition(
    before: object, kind: str, status: str, *, reason: str = "", message: str = "", now: float
) -> RawObject:
    """Return a condition. `before` is the list that it stood in: with the same status its time stays.

    `now` is in seconds since the epoch. An empty reason or message is left out, as Go's `omitempty` does.
    """
    last = find(before, kind)
    since = last.get("lastTransitionTime")
    made = {
        "type": kind,
        "status": status,
        "lastTransitionTime": since if last.get("status") == status and since else time_text(now),
    }
    return made | {name: text for name, text in (("reason", reason), ("message", message)) if text}
