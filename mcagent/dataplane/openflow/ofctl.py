"""Runs ovs-ofctl(8): a process for each request; that for the next bundle is started ahead if that is asked for.

Most of a run is the program's start (12 ms of 14 for one flow): a process that waits for its input takes a bundle
in under 2 ms. Owns these processes. Must not know what the texts mean.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

from mcagent.model.errors import BackendError

TIMEOUT = 10  # seconds for one run
PIPE_SIZE = 64 * 1024  # bytes that a pipe takes at once when it is empty (pipe(7), "Pipe capacity")
_PROGRAM = ("ovs-ofctl", "-O", "OpenFlow15")

Ended = subprocess.CompletedProcess[str]


class Ofctl:
    """ovs-ofctl for the bridge at `socket` ("unix:PATH/BRIDGE.mgmt"). Several threads may use it."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._lock = threading.RLock()
        self._held: subprocess.Popen[str] | None = None
        self._closed = False

    def run(self, *args: str, timeout: int = TIMEOUT) -> Ended:
        """Run a command to its end, in so many seconds. Raises BackendError when that is not possible."""
        return self._finish(self._start(args, subprocess.DEVNULL), timeout)

    def bundle(self, text: str, timeout: int) -> Ended:
        """Send the lines of a bundle file, by the process held for it if there is one. Raises BackendError.

        The text is whole before ovs-ofctl can read any of it, so that the end of this process, at whatever moment,
        never leaves it with half a bundle, or half a line: those would take effect.
        """
        data = text.encode()
        held = self._take() if len(data) <= PIPE_SIZE else None
        if held is not None:
            assert held.stdin is not None
            try:
                os.write(held.stdin.fileno(), data)  # one call, into an empty pipe that has room for all of it
            except OSError:
                _end(held)
            else:
                return self._finish(held, timeout)
        with os.fdopen(os.memfd_create("bundle", os.MFD_CLOEXEC), "w+b") as file:
            file.write(data)
            file.seek(0)
            return self._finish(self._start(("bundle", self.socket, "-"), file), timeout)

    def hold(self) -> None:
        """Start the process for the next bundle, unless it is there. If that fails the bundle does without."""
        with self._lock:
            held = self._take()
            if held is None and not self._closed:
                with contextlib.suppress(BackendError):
                    held = self._start(("bundle", self.socket, "-"), subprocess.PIPE)
            self._held = held

    def close(self) -> None:
        """End the process that is held."""
        with self._lock:
            self._closed = True
            if (held := self._take()) is not None:
                _end(held)

    def _take(self) -> subprocess.Popen[str] | None:
        with self._lock:
            held, self._held = self._held, None
        if held is not None and held.poll() is not None:
            _end(held)
            return None
        return held

    def _start(self, args: Sequence[str], stdin: int | IO[bytes]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen([*_PROGRAM, *args], stdin=stdin, stdout=pipe, stderr=pipe, text=True)
        except OSError as error:
            raise BackendError("openflow", "run", self.socket, f"ovs-ofctl: {error.strerror}") from None

    def _finish(self, process: subprocess.Popen[str], timeout: int) -> Ended:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            reason = f"ovs-ofctl did not end in {timeout} s"
            raise BackendError("openflow", "run", self.socket, reason) from None
        finally:
            _end(process)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process unless it has ended, and let go of its pipes. What was sent nothing does nothing."""
    process.kill()
    with contextlib.suppress(OSError), process:
        pass
