"""Conditions in an object's status: one of each type, whose time changes only when its status does.

Pure; the time comes from the caller. Source of the fields: metav1.Condition, and Antrea's own condition types,
which have the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from mcagent.model.api.base import Condition, condition_of

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


def time_text(at: float) -> str:
    """Return seconds since the epoch as the API writes times: RFC 3339, UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def time_of(text: str | None) -> float | None:
    """Return an RFC 3339 time in seconds since the epoch; None if the text is none."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def span_text(seconds: float) -> str:
    """Return a span of time as kubectl shows it: 45s, 12m, 5h, 3d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def condition(
    before: Sequence[Condition], kind: str, status: str, *, reason: str = "", message: str = "", now: float
) -> Condition:
    """Return a condition. `before`: the present conditions; with the same status, the time stays.

    `now` is in seconds since the epoch. An empty reason or message is not written, as with Go's `omitempty`.
    """
    last = condition_of(before, kind)
    since = (last.last_transition_time if last.status == status else "") or time_text(now)
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)


def by_type(conditions: Iterable[Condition], owned: Iterable[str] = ()) -> dict[str, Condition | None]:
    """Return conditions by their types, and None for the other types in `owned` (`Wanted.conditions`)."""
    present = {entry.type: entry for entry in conditions}
    return {**present, **{kind: None for kind in owned if kind not in present}}
