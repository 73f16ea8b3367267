"""SIGTERM and SIGHUP in commands that leave something to be removed. Knows nothing of what that is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM, and the end of the terminal, end the block as Ctrl-C does: what it made is removed.

    A signal that is ignored, as SIGHUP by nohup, stays so.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    heeded = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
