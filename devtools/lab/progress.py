"""Telling people what the lab is doing: one line a step with the time it took.

In a terminal the line of the running step counts seconds; elsewhere lines are plain and written once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

Step = Callable[[str], contextlib.AbstractContextManager[None]]


class Progress:
    """Step lines on a stream. `quiet` says nothing at all."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._quiet = quiet
        self._start = time.monotonic()
        self.colour = self._stream.isatty() and not quiet

    def paint(self, text: str, code: str) -> str:
        """Return the text in a colour (an SGR code) where the stream is a terminal."""
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def line(self, text: str = "") -> None:
        """Write a line as it is."""
        if not self._quiet:
            self._stream.write(text + "\n")
            self._stream.flush()

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Say that a step runs, and when it has ended how long it took, or that it failed."""
        begin = time.monotonic()
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(title, begin, done), daemon=True)
        if self.colour:
            ticker.start()
        ok = False
        try:
            yield
            ok = True
        finally:
            done.set()
            if self.colour:
                ticker.join()
            mark = self.paint("ok  ", "32") if ok else self.paint("FAILED  ", "31")
            duration = self.paint(f"({time.monotonic() - begin:.1f} s)", "2")
            self.line(f"{mark}{title} {duration}")

    def _tick(self, title: str, begin: float, done: threading.Event) -> None:
        while not done.wait(0.1):
            self._stream.write(f"\r\033[2m... {title} ({time.monotonic() - begin:.0f} s)\033[0m")
            self._stream.flush()
        self._stream.write("\r\033[K")

    @property
    def elapsed(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._start
