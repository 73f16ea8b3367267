"""The process of ovs-ofctl that waits for the next bundle, in the place of which a script runs."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from mcagent.dataplane.openflow import ofctl
from mcagent.dataplane.openflow.ofctl import PIPE_SIZE, TIMEOUT, Ofctl

SCRIPT = "#!/bin/sh\nreadlink /proc/$$/fd/0\nwc -c\n"  # what the input is, and its size
PAGE = 4096


@pytest.mark.parametrize(("capacity", "source"), [(PIPE_SIZE, "pipe:"), (PAGE, "/memfd:bundle")])
def test_a_bundle_is_given_to_the_prepared_process_only_if_its_pipe_takes_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capacity: int, source: str
) -> None:
    """Else the write could wait for ever, or end with a part of the bundle if the agent is killed.

    The kernel gives a process without CAP_SYS_RESOURCE smaller pipes where its user has many (pipe(7)).
    """
    program = tmp_path / "program"
    program.write_text(SCRIPT)
    program.chmod(0o700)
    monkeypatch.setattr(ofctl, "_PROGRAM", (str(program),))
    control = Ofctl("unix:/none")
    control.prepare()
    prepared = control._prepared
    assert prepared is not None
    assert prepared.stdin is not None
    fcntl.fcntl(prepared.stdin, fcntl.F_SETPIPE_SZ, capacity)
    done = control.bundle("x" * 2 * PAGE, TIMEOUT)
    control.close()
    where, size = done.stdout.splitlines()
    assert where.startswith(source)
    assert int(size) == 2 * PAGE
    assert prepared.poll() is not None
