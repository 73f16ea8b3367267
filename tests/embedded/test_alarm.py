"""Evidence of a failed test has a time limit; the time-out of a test does not end the run (`tests/alarm.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = """
import time

import pytest

from tests import alarm


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for seconds in (2.0, 0.1):
            with alarm.time_limit(seconds):
                time.sleep(1.2)
                report.sections.append(("evidence", f"collected within {seconds} s"))
    return report
"""
TESTS = """
import time


def test_fails_just_in_time():
    time.sleep(0.5)
    assert False, "broken"


def test_takes_too_long():
    time.sleep(60)


def test_is_fine():
    pass
"""


def test_evidence_does_not_end_the_run(tmp_path: Path) -> None:
    """The time-out would fire while evidence is collected; both failures are reported, and the last test runs."""
    (tmp_path / "pyproject.toml").write_text(
        f"[tool.pytest.ini_options]\npythonpath = [{str(ROOT)!r}]\ntimeout = 1\n"
    )
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stdout
    assert "2 failed, 1 passed" in result.stdout
    assert result.stdout.count("collected within 2.0 s") == 2
    assert "collected within 0.1 s" not in result.stdout
