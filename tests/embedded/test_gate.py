"""`make gate` runs what CI runs on a clone of HEAD, and `.ci/run` records the runs that pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = """test:
\t@mkdir -p .cache/flaky && echo 2 >.cache/flaky/count
\t@pwd >"$$HOME/ran-in"
\t@test -z "$$OF_THIS_TERMINAL" && test -f kept && test ! -f uncommitted && test "$$CI" = true
\t@test ! -f fails
"""


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder as a user with a name; return what it prints."""
    user = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    command = ["git", *user, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(project: Path) -> str:
    """Commit all files; return the tree of HEAD."""
    git(project, "add", "--all")
    git(project, "commit", "-q", "-m", "a change")
    return git(project, "rev-parse", "HEAD^{tree}").strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a repository with this project's `.ci` and tests that need a clean clone and environment."""
    project = tmp_path / "project"
    shutil.copytree(ROOT / ".ci", project / ".ci")
    (project / "Makefile").write_text(MAKEFILE)
    (project / ".gitignore").write_text(".cache/\n")
    (project / "kept").touch()
    git(project, "init", "-q")
    return project


def run(project: Path, script: str) -> int:
    """Run a script of `.ci` with `OF_THIS_TERMINAL` set; return its exit status."""
    home = project.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "OF_THIS_TERMINAL": "yes"}
    if script == "run":
        environment |= {"OF_THIS_TERMINAL": "", "CI": "true"}
    return subprocess.run([project / ".ci" / script], env=environment, check=False).returncode


def records(project: Path) -> list[str]:
    """Return the lines of the record."""
    record = project.parent / "home/.local/state/mcagent/gate-passed"
    return record.read_text().splitlines() if record.exists() else []


def test_the_gate_runs_head_in_a_clean_clone(project: Path) -> None:
    """Neither changes nor the environment of the caller are part of it; the run is recorded, the clone removed."""
    tree = commit(project)
    (project / "kept").unlink()
    (project / "uncommitted").touch()
    assert run(project, "gate") == 0
    (line,) = records(project)
    assert re.fullmatch(rf"{tree} \d{{4}}-\d\d-\d\dT\d\d:\d\dZ \d+\.\d 2", line)
    clone = Path((project.parent / "home/ran-in").read_text().strip())
    assert clone != project
    assert not clone.exists()


def test_a_failed_run_is_not_recorded(project: Path) -> None:
    """The clone stays, for what is in it."""
    (project / "fails").touch()
    commit(project)
    assert run(project, "gate") != 0
    assert records(project) == []
    assert Path((project.parent / "home/ran-in").read_text().strip(), "fails").exists()


def test_a_run_passes_where_nothing_can_be_recorded(project: Path) -> None:
    """The home directory is no directory."""
    commit(project)
    (project.parent / "home/.local").parent.mkdir()
    (project.parent / "home/.local").write_text("")
    assert run(project, "run") == 0


def test_a_checkout_with_changes_is_not_recorded(project: Path) -> None:
    """What has passed is not the tree of HEAD."""
    commit(project)
    (project / "kept").write_text("changed")
    assert run(project, "run") == 0
    assert records(project) == []
    git(project, "checkout", "-q", "kept")
    assert run(project, "run") == 0
    assert len(records(project)) == 1
