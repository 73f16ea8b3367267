"""The repository stands for itself: nothing in it needs a file that lies outside of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_nothing_refers_to_a_directory_beside_the_repository() -> None:
    """What is not in the repository is named by an environment variable, never found by where it lies."""
    beside = "../" + "shared"
    command = ["git", "grep", "--untracked", "-lF", beside]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode == 1, f"{beside} is named in:\n{listed.stdout}{listed.stderr}"
