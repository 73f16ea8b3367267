"""Failed tests that depend on timing run once more, and all others do not (`tests/flaky.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel import lane

ROOT = Path(__file__).parents[2]
CONFIGURATION = f"""[tool.pytest.ini_options]
pythonpath = [{str(ROOT)!r}]
markers = ["timing: depends on timing"]
"""
CONFTEST = "from tests import flaky\n\n\ndef pytest_configure(config):\n    flaky.register(config)\n"
TESTS = """
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def first_run(name):
    path = HERE / name
    runs = path.read_text() if path.exists() else ""
    path.write_text(runs + "x")
    return not runs


@pytest.mark.timing
@pytest.mark.parametrize("number", range(6))
def test_passes_alone(number):
    print("output of run", number)
    assert not first_run(f"marked{number}"), "too late"


@pytest.mark.timing
def test_never_passes():
    assert False, "broken"


def test_has_no_marker():
    assert not first_run("unmarked")


def test_is_fine():
    pass
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on tests that fail in known ways."""
    (directory / "pyproject.toml").write_text(CONFIGURATION)
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_it.py").write_text(TESTS)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "MCAGENT_TEST_RUN": "run"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_a_test_that_passes_alone_is_flaky(tmp_path: Path, processes: str) -> None:
    """The run passes, the summary names the test, and the record has the output of both runs."""
    done = run(tmp_path, processes, "-k", "fine or alone and 1")
    assert done.returncode == 0, done.stdout
    assert "FLAKY test_it.py::test_passes_alone[1]" in done.stdout
    (record,) = (tmp_path / ".cache/flaky/run").iterdir()
    text = record.read_text()
    assert "too late" in text
    assert "output of run 1" in text
    assert "1 passed" in text


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    """It is no flaky test, and its second output is printed."""
    done = run(tmp_path, "-k", "never")
    assert done.returncode == 1
    assert "FAILED TWICE test_it.py::test_never_passes" in done.stdout
    assert not (tmp_path / ".cache").exists()


def test_a_test_without_the_marker_runs_once(tmp_path: Path) -> None:
    """It fails the run, also beside a flaky test."""
    done = run(tmp_path, "-k", "marker or alone and 1")
    assert done.returncode == 1
    assert "FLAKY test_it.py::test_passes_alone[1]" in done.stdout
    assert (tmp_path / "unmarked").read_text() == "x"


def test_too_many_flaky_tests_fail_the_run(tmp_path: Path) -> None:
    """Three are allowed in all suites of a run together."""
    assert run(tmp_path, "-k", "alone and (1 or 2)").returncode == 0
    done = run(tmp_path, "-k", "alone and (3 or 4)")
    assert done.returncode == 1
    assert "more than 3 in one run fail it" in done.stdout
    assert run(tmp_path, "-k", "alone and 5").returncode == 0


@pytest.mark.parametrize(
    ("selection", "counted"),
    [
        ("fine or alone and (1 or 2)", (1, 0, 2, 0)),
        ("fine or has_no_marker", (1, 1, 0, 0)),
        ("fine or never", (1, 1, 0, 0)),
        ("absent", (0, 0, 0, 0)),
    ],
)
def test_the_kernel_lane_counts_flaky_tests_apart(
    tmp_path: Path, selection: str, counted: tuple[int, int, int, int]
) -> None:
    """Its report has the first run only; what passed alone must not fail the lane."""
    report = tmp_path / "junit.xml"
    done = run(tmp_path, "-k", selection, f"--junitxml={report}")
    assert lane.counts(report, done.returncode) == counted


def test_a_test_kernel_without_a_report_counts_as_a_failure(tmp_path: Path) -> None:
    """It died, whatever its exit status says."""
    assert lane.counts(tmp_path / "junit.xml", 0) == lane.counts(tmp_path / "junit.xml", 1) == (0, 1, 0, 0)
