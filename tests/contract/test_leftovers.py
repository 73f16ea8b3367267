"""Namespaces of contract tests whose process is gone are removed; those of running ones stay."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from devtools import leftovers
from devtools.nodes import netns
from devtools.waiting import wait_until


def remove(name: str) -> list[str]:
    """Remove this namespace if it is left over; return what is printed."""
    return list(leftovers.remove(item for item in leftovers.namespaces() if item[0] == f"namespace {name}"))


def test_a_namespace_of_a_dead_process_goes_with_its_processes(namespace: str) -> None:
    """And the one of this test's own process stays."""
    with subprocess.Popen(["true"]) as ended:
        pass
    name = f"mct{ended.pid}-1"
    netns.create(name)
    try:
        with subprocess.Popen(netns.command(name, ["sleep", "600"])) as inside:
            wait_until(
                lambda: Path(f"/proc/{inside.pid}/comm").read_text() == "sleep\n", "the process in the namespace"
            )
            remove(name)  # or another clone's run has done it
            inside.wait(10)
        assert not netns.exists(name)
    finally:
        netns.delete(name)
    assert remove(namespace) == []
    assert netns.exists(namespace)


def test_a_pid_that_was_given_away_again_does_not_keep_a_namespace(
    fresh_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that started after the namespace was made is not its maker."""
    time.sleep(0.1)  # start times are multiples of 10 ms
    with subprocess.Popen(["sleep", "600"]) as later:
        name = f"mct{later.pid}-1"
        path = netns.NETNS_DIRECTORY / name
        path.touch()
        netns.run(["mount", "--bind", str(netns.NETNS_DIRECTORY / fresh_namespace), str(path)])
        try:
            assert remove(name) == []  # not by so much that a clock which was set could not explain it
            monkeypatch.setattr(leftovers, "_MARGIN", 0.0)
            assert remove(name) == [f"removed what an interrupted run left: namespace {name}"]
            assert not path.exists()
            assert later.poll() is None
        finally:
            netns.delete(name)
            later.kill()
