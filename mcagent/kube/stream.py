"""The answer to a request while it is being read: whole within a deadline, or line by line. Bounded in size."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from mcagent.kube.errors import ApiTooLargeError, ApiUnreachableError, failures, words_of

MAX_LINE = 16 * 1024 * 1024  # bytes of one watch event (an object is at most 1.5 MiB in etcd)
_BLOCK = 64 * 1024


class Stream:
    """An answer that is being read. `abort` is for any thread, everything else for one."""

    def __init__(self, response: Any, where: str) -> None:
        self._response, self._where = response, where
        # Taken now: urllib3 lets go of the connection when the answer ends.
        self.socket: socket.socket | None = getattr(getattr(response, "connection", None), "sock", None)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exc: object) -> None:
        with suppress(*failures()):
            self._response.close()

    def header(self, name: str) -> str:
        """Return a header of the answer, "" where it has none of that name."""
        return str(self._response.headers.get(name) or "")

    def abort(self) -> None:
        """End the answer from another thread: a blocked read returns at once."""
        if self.socket is not None:
            with suppress(OSError, AttributeError):
                self.socket.shutdown(socket.SHUT_RDWR)

    def read(self, timeout: float, most: int) -> bytes:
        """Return the rest. ApiUnreachableError after `timeout` seconds, ApiTooLargeError after `most` bytes."""
        end = time.monotonic() + timeout
        blocks, size = [], 0
        for block in self._blocks():
            blocks.append(block)
            size += len(block)
            if size > most:
                raise ApiTooLargeError(f"{self._where}: an answer of more than {most} bytes")
            if time.monotonic() > end:
                raise ApiUnreachableError(f"{self._where}: the answer takes longer than {timeout:g} s")
        return b"".join(blocks)

    def lines(self, too_long: Callable[[], None] = lambda: None) -> Iterator[bytes]:
        """Yield the lines of the answer, without the empty ones, as they come. Raises ApiUnreachableError.

        One of more than MAX_LINE bytes is left out, and `too_long` called.
        """
        parts: list[bytes] = []  # of the line under way
        size = 0
        for block in self._blocks():
            *ends, remainder = block.split(b"\n")
            for end in ends:
                if size + len(end) > MAX_LINE:
                    too_long()
                elif line := b"".join((*parts, end)).strip():
                    yield line
                parts, size = [], 0
            size += len(remainder)
            parts = [*parts, remainder] if size <= MAX_LINE else []
        if size <= MAX_LINE and (line := b"".join(parts).strip()):
            yield line

    def _blocks(self) -> Iterator[bytes]:
        """Yield what has come, however little: bytes that drip must not hold up the look at the clock."""
        try:
            while block := self._response.read1(_BLOCK):
                yield block
        except failures() as err:
            raise ApiUnreachableError(f"{self._where}: {words_of(err)}") from err
