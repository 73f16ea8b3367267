"""The embedded API server as a process of its own: what it prints, writes and returns."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.apiserver

COMMAND = [sys.executable, "-m", "devtools.apiserver"]


def test_it_says_when_it_is_ready_and_ends_on_sigterm(tmp_path: Path) -> None:
    """One line when ready, a kubeconfig for its owner only, objects kept in the data file, exit code 0."""
    kubeconfig, data = tmp_path / "kubeconfig", tmp_path / "data"
    process = subprocess.Popen(
        [*COMMAND, "--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), "--data", str(data)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        word, url = process.stdout.readline().split()
        assert word == "ready"
        assert json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"] == url
        assert kubeconfig.stat().st_mode & 0o777 == 0o600
        with urllib.request.urlopen(f"{url}/api/v1/namespaces", timeout=10) as answer:
            assert json.load(answer)["kind"] == "NamespaceList"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert len(json.loads(data.read_text())["objects"]) == 4
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_is_told_in_one_line(tmp_path: Path) -> None:
    """A wrong address and a broken data file end it with code 1 and a reason, without a traceback."""
    (tmp_path / "data").write_text("{")
    for arguments in (["--listen", "192.0.2.1:1"], ["--data", str(tmp_path / "data")]):
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("API server: ")
