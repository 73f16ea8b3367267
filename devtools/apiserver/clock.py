"""Times as the API writes them: RFC 3339, UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return the time now."""
    return utc_text(datetime.now(UTC).timestamp())


def utc_text(seconds: float) -> str:
    """Return a time, given in seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
