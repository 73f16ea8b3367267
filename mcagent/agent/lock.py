"""One agent per Node: an advisory lock on a file (flock(2)), which the kernel lets go when the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from mcagent.model.errors import McagentError


class BusyError(McagentError):
    """Another process holds the lock."""

    exit_code = 3


class NodeLock:
    """Held until `release` or the end of the process. The file stays: removing it would let two hold it."""

    def __init__(self, directory: Path) -> None:
        """Take the lock at once. Raises BusyError, or OSError when the file cannot be made."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "agent.lock"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.fchmod(self._descriptor, 0o600)  # whoever can open it can lock it
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 64).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise BusyError(f"another agent (process {holder}) holds this Node: {self.path} is locked") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
