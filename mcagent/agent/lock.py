"""One agent per Node: an advisory lock on a file (flock(2)), which the kernel releases when the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from mcagent.model.errors import McagentError


class BusyError(McagentError):
    """Another process holds the lock."""

    exit_code = 3


@contextlib.contextmanager
def node_lock(directory: Path) -> Iterator[None]:
    """Hold the lock. The file stays: if it were removed, two processes could hold it.

    Raises BusyError, or OSError when the file cannot be created.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "agent.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "r+", errors="replace") as file:
        os.fchmod(descriptor, 0o600)  # a process that can open the file can lock it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(64).strip() or "unknown"
            raise BusyError(f"another agent (process {holder}) holds this Node: {path} is locked") from None
        with contextlib.suppress(OSError):  # a full disk must not keep the agent from its work
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
