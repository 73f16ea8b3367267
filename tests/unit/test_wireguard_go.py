"""The process of wireguard-go, in the place of which a script runs."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.waiting import wait_until
from mcagent.dataplane.wireguard import userspace
from mcagent.dataplane.wireguard.userspace import WireGuardGo
from mcagent.model.errors import BackendError

DEVICE = "mc-wg-test"
SCRIPT = "#!/bin/sh\nread -r forever < fifo\n"  # waits, as its FIFO has no writer


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WireGuardGo]:
    """Give a device whose processes are ended after the test; each answers at once."""
    os.mkfifo(tmp_path / "fifo")
    program = tmp_path / "program"
    program.write_text(SCRIPT.replace("fifo", str(tmp_path / "fifo")))
    program.chmod(0o700)
    monkeypatch.setattr(userspace, "BINARY", str(program))
    monkeypatch.setattr(WireGuardGo, "_exchange", lambda *_: "")
    device = WireGuardGo(DEVICE, tmp_path / "run")
    yield device
    device._stop()


def test_a_process_whose_record_cannot_be_written_is_ended(
    device: WireGuardGo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk. Without its record it would be unknown, and occupy the TUN device."""
    started: list[subprocess.Popen[bytes]] = []
    popen, write_text = subprocess.Popen, Path.write_text

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **options))
        return started[-1]

    def full(_: Path, __: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BackendError, match="No space left on device"):
        device._start()
    monkeypatch.setattr(Path, "write_text", write_text)
    try:
        (first,) = started
        assert first.poll() is not None
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert device.process() is None
    device._start()
    assert started[-1] is not first
    wait_until(lambda: device.process() == started[-1].pid, "the next process")
