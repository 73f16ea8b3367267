"""What counts as left over, without root: temporary directories, and labs that only were written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from devtools import leftovers
from devtools.k8s import lab as k8s
from devtools.k8s.__main__ import main as mck8s
from devtools.k8s.lab import K8sLab, Plan
from devtools.lab import state
from devtools.lab.progress import Progress
from devtools.lab.state import State
from devtools.lab.topology import generate
from devtools.processes import MARK, start_time

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gone() -> int:
    """Give the pid of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that runs."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def cleaned(base: Path) -> list[str]:
    """Remove directories that are left over; return the names of what is there then."""
    list(leftovers.remove(leftovers.directories([base])))
    return sorted(path.name for path in base.iterdir())


def test_directories_of_processes_that_are_gone_are_removed(tmp_path: Path, gone: int) -> None:
    """Those of a running process stay, and files, links and what is called otherwise."""
    alive = f"mcagent-tests.{os.getpid()}.abc123"
    stay = (alive, "mcagent-gate.abc123", "mcagent-lab-failures", f"mcagent.{gone}.abc123", f"other.{gone}.abc123")
    for name in (*stay, f"mcagent-build-helm.{gone}.Abc123", f"mct.{gone}.x_3"):
        (tmp_path / name / "below").mkdir(parents=True)
    lock, link = f"mcagent-kernel.{gone}.cpu0", f"mcagent-tests.{gone}.link"
    (tmp_path / lock).touch()
    (tmp_path / link).symlink_to(alive)
    assert cleaned(tmp_path) == sorted((*stay, lock, link))
    assert (tmp_path / alive / "below").exists()


def test_a_recorded_process_ends_only_if_it_is_the_same(
    tmp_path: Path, gone: int, sleeper: subprocess.Popen[bytes]
) -> None:
    """A pid that belongs to another process now, which started at another time, is left alone."""
    start = start_time(sleeper.pid)
    assert start is not None
    directory = tmp_path / f"mcagent-kernel.{gone}.abc123"
    for recorded, runs in ((start - 1, True), (start, False)):
        directory.mkdir()
        (directory / leftovers.PROCESS).write_text(f"{sleeper.pid} {recorded}\n")
        assert cleaned(tmp_path) == []
        assert (sleeper.poll() is None) is runs


def test_processes_that_tests_have_outlived_are_ended(monkeypatch: pytest.MonkeyPatch, gone: int) -> None:
    """What a process of tests starts bears its pid and start time; while that runs, it stays."""
    assert os.environ[MARK] == f"{os.getpid()} {start_time(os.getpid())}"
    recorded = [os.environ[MARK], f"{gone} 1", f"{os.getpid()} 1"]  # the last one's pid is another process's now
    children = []
    for mark in recorded:
        monkeypatch.setenv(MARK, mark)
        children.append(subprocess.Popen(["sleep", "600"]))
    try:
        pids = {f"{child.pid}" for child in children}
        removals = [item for item in leftovers.processes() if item[0].split()[1] in pids]
        assert len(list(leftovers.remove(removals))) == len(removals) == 2
        assert [child.poll() is None for child in children] == [True, False, False]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_lab_is_abandoned_when_its_owner_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner is its maker, or the process that $MCLAB_OWNER names; a lab that is kept has none."""
    lab = State("left", tmp_path)
    assert not lab.abandoned
    with subprocess.Popen(["sleep", "600"]) as owner:
        monkeypatch.setenv(state.OWNER, str(owner.pid))
        lab.create(generate(name="left"), [])
        lab.keep()
        assert not lab.abandoned
        owner.kill()
    assert lab.abandoned
    monkeypatch.delenv(state.OWNER)
    lab.keep()
    assert not lab.abandoned
    lab.note("owner", {"pid": os.getpid(), "start": 1})  # the pid is another process's now
    assert lab.abandoned
    lab.note("owner", {"pid": os.getpid(), "start": start_time(os.getpid())})
    assert not lab.abandoned
    document = json.loads((lab.directory / "lab.json").read_text())
    del document["owner"]  # as an older revision writes it
    (lab.directory / "lab.json").write_text(json.dumps(document))
    assert not lab.abandoned


def test_what_cannot_be_removed_is_printed(tmp_path: Path) -> None:
    """An error ends neither the run nor the removal of the rest."""

    def fails() -> None:
        raise OSError("busy")

    removals = [("thing", fails), ("file", (tmp_path / "file").touch), ("lab", lambda: False)]
    assert list(leftovers.remove(removals)) == [
        "cannot remove what an interrupted run left: thing: busy",
        "removed what an interrupted run left: file",
    ]


def test_the_command_shows_what_is_free(tmp_path: Path, gone: int) -> None:
    """It prints a line for each thing, and memory, disks and load."""
    directory = tmp_path / f"mcagent-tests.{gone}.abc123"
    directory.mkdir()
    command = [sys.executable, "-m", "devtools.leftovers"]
    output = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert f"removed what an interrupted run left: directory {directory}" in output
    assert output[-1].startswith("free: ")
    assert not directory.exists()


def test_a_demo_takes_down_only_its_own_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is refused, because clusters are up, leaves them up."""
    taken_down: list[str] = []
    monkeypatch.setattr(k8s, "STATE", tmp_path)
    monkeypatch.setattr(K8sLab, "down", lambda lab: taken_down.append(lab.under))
    monkeypatch.setattr(K8sLab, "up", lambda _lab: pytest.fail("clusters are up already"))
    assert mck8s(["demo", "--image", "mcagent.tar"]) == 1
    assert taken_down == []


def test_clusters_of_real_kubernetes_have_an_owner_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """They are taken down when it is gone, also if nothing was made yet; those that are kept have none."""
    taken_down: list[str] = []
    place = tmp_path / "mck8s"
    monkeypatch.setattr(k8s, "STATE", place)
    monkeypatch.setattr(k8s, "OWNER", place / "owner.json")
    monkeypatch.setattr(K8sLab, "down", lambda lab: taken_down.append(lab.under))
    say = Progress(quiet=True)
    assert not K8sLab.remove_abandoned(say)
    place.mkdir()
    state.write(k8s.OWNER, asdict(state.owner()))
    assert not K8sLab.remove_abandoned(say)
    state.write(k8s.OWNER, asdict(state.Process(pid=gone, start=1)))
    assert K8sLab.remove_abandoned(say)
    assert not place.exists()
    place.mkdir()
    state.write(k8s.OWNER, asdict(state.Process(pid=os.getpid(), start=1)))  # the pid is another process's now
    (place / "plan.json").write_text(json.dumps(asdict(Plan())))
    assert K8sLab.remove_abandoned(say)
    assert taken_down == ["k8s-underlay"]
    K8sLab.keep()
    assert not K8sLab.remove_abandoned(say)
