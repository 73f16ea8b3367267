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


class Ofctl:
    """ovs-ofctl for the bridge at `socket` ("unix:PATH/BRIDGE.mgmt"). Several threads may use it."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._lock = threading.Lock()
        self._held: subprocess.Popen[str] | None = None
        self._closed = False

    def run(self, *args: str, timeout: int = TIMEOUT) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises BackendError when that is not possible."""
        return self._finish(self._start(args, stdin=None, timeout=timeout), timeout)

    def bundle(self, text: str, timeout: int = TIMEOUT) -> subprocess.CompletedProcess[str]:
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
            process = self._start(("bundle", self.socket, "-"), stdin=file, timeout=timeout)
        return self._finish(process, timeout)

    def hold(self) -> None:
        """Start the process for the next bundle, unless it is there. If that fails the bundle does without."""
        with self._lock:
            if self._closed or (self._held is not None and self._held.poll() is None):
                return
            if self._held is not None:
                _end(self._held)
                self._held = None
            with contextlib.suppress(BackendError):
                # No --timeout: it would count from now on.
                self._held = self._start(("bundle", self.socket, "-"), stdin=subprocess.PIPE, timeout=None)

    def close(self) -> None:
        """End the process that is held."""
        with self._lock:
            self._closed = True
        held = self._take()
        if held is not None:
            _end(held)

    def _take(self) -> subprocess.Popen[str] | None:
        with self._lock:
            held, self._held = self._held, None
        if held is not None and held.poll() is not None:
            _end(held)
            return None
        return held

    def _start(
        self, args: Sequence[str], *, stdin: int | IO[bytes] | None, timeout: int | None
    ) -> subprocess.Popen[str]:
        bound = [f"--timeout={timeout}"] if timeout is not None else []
        try:
            return subprocess.Popen(
                [*_PROGRAM, *bound, *args],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise BackendError("openflow", "run", self.socket, f"ovs-ofctl: {error.strerror}") from None

    def _finish(self, process: subprocess.Popen[str], timeout: int) -> subprocess.CompletedProcess[str]:
        try:
            out, err = process.communicate(timeout=timeout + 1)
        except subprocess.TimeoutExpired:
            reason = f"ovs-ofctl did not end in {timeout} s"
            raise BackendError("openflow", "run", self.socket, reason) from None
        finally:
            _end(process)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process that may have ended already, and let go of its pipes. What was sent nothing does nothing."""
    if process.poll() is None:
        process.kill()  # before its input ends, which it would take for an empty bundle
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
