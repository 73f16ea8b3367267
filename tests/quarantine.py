"""Tests that fail without a fault of the code, and are not mended yet: `tests/quarantine.txt`.

One test a line: its node ID, the date, and what was seen, separated by blanks. `make test` leaves them out,
`make test-all` runs them. `tests/unit/test_quarantine.py` limits their number.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_suffix(".txt")
MOST = 10


class Entry(NamedTuple):
    """A test in quarantine."""

    test: str
    since: date
    observation: str


def entries(text: str | None = None) -> tuple[Entry, ...]:
    """Return the tests in quarantine. Raises ValueError for a line with another form."""
    lines = (LIST.read_text() if text is None else text).splitlines()
    fields = (line.split(maxsplit=2) for line in lines if line and not line.startswith("#"))
    return tuple(Entry(test, date.fromisoformat(since), observation) for test, since, observation in fields)


def tests() -> tuple[str, ...]:
    """Return the node IDs of the tests in quarantine."""
    return tuple(entry.test for entry in entries())


def options() -> tuple[str, ...]:
    """Return the options of pytest that leave these tests out."""
    return tuple(f"--deselect={test}" for test in tests())
