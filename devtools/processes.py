"""Whether a process is gone: what it held can be taken by the next one only then.

Knows /proc/PID/stat (proc_pid_stat(5)), and the mark by which processes of a run of tests are recognised.
"""

from __future__ import annotations

import os
from pathlib import Path

MARK = "MCAGENT_TEST_PROCESS"  # variable of all that a process of tests starts: its pid and start time


def mark_children() -> None:
    """Let processes that this one starts from now on be left over when it is gone, unless labs are to be kept."""
    if not os.environ.keys() & {"MCAGENT_LAB_KEEP", "E2E_KEEP"}:
        os.environ[MARK] = f"{os.getpid()} {start_time(os.getpid())}"


def start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, None for one that is gone.

    An exiting process first loses its memory, and with it its command line. Its files (sockets, the lock of its
    pid file) are closed when the last of its threads has done with them (kernel/exit.c, do_exit), and only then
    it is gone here. The first thread may be a zombie before.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in parentheses may hold anything
    state, threads, start = fields[0], int(fields[17]), int(fields[19])
    return None if state in "ZX" and threads <= 1 else start
