"""Shows something again and again: over itself in a terminal, one after the other elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from mcagent.model.errors import InputError

_CLEAR = "\x1b[H\x1b[2J"  # ECMA-48: cursor home, erase the screen
LEAST, MOST = 0.2, 3600.0  # seconds


def interval_of(text: str) -> float:
    """Return an interval in seconds. Raises InputError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not LEAST <= seconds <= MOST:
        raise InputError("--interval", "", f'must be seconds from {LEAST:g} to {MOST:g}, is "{text[:40]}"')
    return seconds


def show(pictures: Iterable[str], *, whole: bool = True) -> None:
    """Print each text as it comes. `whole`: one takes the place of the last one where that can be."""
    over = whole and sys.stdout.isatty()
    for number, picture in enumerate(pictures):
        print(f"{_CLEAR if over else chr(10) if number and whole else ''}{picture}", flush=True)


def every(seconds: float) -> Iterable[int]:
    """Yield 0, 1, ... this often; what happens between takes no time away from the pace."""
    due, number = time.monotonic(), 0
    while True:
        yield number
        due = max(due + seconds, time.monotonic())
        time.sleep(due - time.monotonic() if due > time.monotonic() else 0)
        number += 1
