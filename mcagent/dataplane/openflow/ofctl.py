"""Runs ovs-ofctl(8): one process for each request. The process for the next bundle can be started in advance.

Most of a run is the program's start (12 ms of 14 for one flow): a process that waits for its input handles a
bundle in under 2 ms. Owns these processes. Must not know what the texts mean.
"""

from __future__ import annotations

import contextlib
import fcntl
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
        self._prepared: subprocess.Popen[str] | None = None
        self._closed = False

    def run(self, *args: str, timeout: int = TIMEOUT) -> Ended:
        """Run a command to its end. Raises BackendError when it cannot be run or exceeds `timeout` seconds."""
        return self._finish(self._start(args, subprocess.DEVNULL), timeout)

    def bundle(self, text: str, timeout: int) -> Ended:
        """Send the lines of a bundle file, by the prepared process if there is one. Raises BackendError.

        ovs-ofctl can read the text only when it is complete. So if this process ends at any moment, ovs-ofctl
        never applies an incomplete bundle or line.
        """
        data = text.encode()
        prepared = self._take() if len(data) <= PIPE_SIZE else None
        if prepared is not None:
            assert prepared.stdin is not None
            try:
                if fcntl.fcntl(prepared.stdin, fcntl.F_GETPIPE_SZ) < len(data):
                    raise OSError("the pipe is smaller than usual: root has too many (pipe-user-pages-soft)")
                os.write(prepared.stdin.fileno(), data)  # one call, into an empty pipe that has room for all of it
            except OSError:
                _end(prepared)
            else:
                return self._finish(prepared, timeout)
        with os.fdopen(os.memfd_create("bundle", os.MFD_CLOEXEC), "w+b") as file:
            file.write(data)
            file.seek(0)
            return self._finish(self._start(("bundle", self.socket, "-"), file), timeout)

    def prepare(self) -> None:
        """Start the process for the next bundle, unless it runs. Without it the bundle starts a process."""
        with self._lock:
            process = self._take()
            if process is None and not self._closed:
                with contextlib.suppress(BackendError):
                    process = self._start(("bundle", self.socket, "-"), subprocess.PIPE)
            self._prepared = process

    def close(self) -> None:
        """End the prepared process."""
        with self._lock:
            self._closed = True
            if (prepared := self._take()) is not None:
                _end(prepared)

    def _take(self) -> subprocess.Popen[str] | None:
        with self._lock:
            prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.poll() is not None:
            _end(prepared)
            return None
        return prepared

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
    """Kill a process unless it has ended, and close its pipes. Without input it has no effect."""
    process.kill()
    with contextlib.suppress(OSError), process:
        pass
