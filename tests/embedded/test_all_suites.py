"""A run of suites continues after a failure, counts its tests, keeps a budget, and becomes a row of a page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import all_suites, failures, repeats, results, suites, under_load
from tests.kernel import lane
from tests.results import Budget
from tests.suites import Suite

ROOT = Path(__file__).parents[2]
CONFIGURATION = f"""[tool.pytest.ini_options]
pythonpath = [{str(ROOT)!r}]
addopts = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]  # its import takes a third of a run
"""
CONFTEST = "from tests import failures\n\n\ndef pytest_configure(config):\n    failures.register(config)\n"
BROKEN = """
def test_passes():
    pass


def test_never_passes():
    assert False
"""
MIXED = """
import pathlib
import time

import pytest

RUNS = pathlib.Path(__file__).with_name("runs")


def run_number():
    RUNS.write_text((RUNS.read_text() if RUNS.exists() else "") + "x")
    return len(RUNS.read_text())


def test_is_slow():
    time.sleep(0.3)


@pytest.fixture
def slow():
    time.sleep(0.2)


def test_is_flaky(slow):
    assert run_number() != 1


def test_fails_the_second_time():
    assert run_number() != 2


@pytest.mark.parametrize("number", range(3))
def test_lacks_a_program(number):
    pytest.skip("no program | set PROGRAM")


@pytest.mark.xfail
def test_is_expected_to_fail():
    assert False


class TestEnd:
    @pytest.fixture
    def broken_end(self):
        yield
        assert run_number() > 1

    def test_with_a_broken_end(self, broken_end):
        pass
"""

# A test runs pytest up to five times, which takes long on a busy machine.


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a project with tests of each result, without the wait for a quiet machine."""
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_broken.py").write_text(BROKEN)
    (tmp_path / "test_mixed.py").write_text(MIXED)
    monkeypatch.setattr(repeats, "QUIET_WITHIN", 0.0)
    return tmp_path


def suite(project: Path, name: str, *arguments: str) -> Suite:
    """Return a suite with one file of the project."""
    return Suite(name=name, title=f"suite {name}", select=(f"test_{name}.py", *arguments), root=project)


def run(project: Path, *parts: Suite, budget: Budget | None = None) -> results.Run:
    """Run suites."""
    return suites.run(parts, project / "records", budget or Budget())


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_a_suite_that_fails_does_not_stop_the_next(
    project: Path, capsys: pytest.CaptureFixture[str], processes: str
) -> None:
    """The table has both, with the results after repeats."""
    mixed = suite(project, "mixed", "-k", "slow or flaky or lacks or expected", processes)
    result = run(project, suite(project, "broken"), mixed, budget=Budget(suites={"mixed": 60}))
    assert not result.passes
    assert result.failed() == ["test_broken.py::test_never_passes"]
    assert result.flaky("mixed") == ["test_mixed.py::test_is_flaky"]
    broken, last = (line.split() for line in results.table(result).splitlines()[1:])
    assert broken[:5] == ["broken", "1", "1", "0", "0"]
    assert last[:5] == ["mixed", "2", "0", "1", "3"]
    assert (broken[6], last[6]) == ("-", "60")
    assert results.table(result) in capsys.readouterr().out


def test_a_test_whose_end_fails_has_not_passed(project: Path) -> None:
    """It counts once."""
    mixed = run(project, suite(project, "mixed", "-k", "broken_end"))
    assert results.table(mixed).splitlines()[1].split()[:5] == ["mixed", "0", "0", "1", "0"]


def test_the_slowest_tests_and_fixtures_are_named(project: Path) -> None:
    """A fixture is named with the test that made it."""
    mixed = run(project, suite(project, "mixed", "-k", "slow or flaky"))
    first, second = results.slowest(mixed).splitlines()[:2]
    assert first.endswith("s  test_mixed.py::test_is_slow")
    assert second.endswith("s  fixtures of test_mixed.py::test_is_flaky")


def test_more_cpu_time_than_the_budget_fails(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only suites with a budget count; more wall time than its budget does not fail a suite."""
    slow = suite(project, "mixed", "-k", "slow")
    assert not run(project, slow, budget=Budget(suites={"mixed": 0}, cpu=0.01)).passes
    assert re.search(r"FAILED +\d+ CPU seconds are more than the budget, 0.01", capsys.readouterr().out)
    assert run(project, slow, budget=Budget(suites={"mixed": 0}, cpu=1000)).passes
    assert run(project, slow, budget=Budget(suites={"other": 0}, cpu=0.01)).passes


def test_each_suite_of_make_test_has_a_budget() -> None:
    """And no other suite."""
    assert set(results.read_budget().suites) == {part.name for part in suites.FIRST_TIER}


def test_a_run_is_a_row_of_the_page(project: Path) -> None:
    """The row has as many cells as the page's table, counts, reasons, and names of what failed."""
    first = run(project, suite(project, "broken"), suite(project, "mixed", "-k", "flaky or lacks"))
    row = results.row(first, revision="1234abcd, tree 5678", seconds=90)
    heading = next(line for line in all_suites.RUNS.read_text().splitlines() if line.startswith("| revision"))
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    assert len(cells) == heading.count("|") - 1
    assert [cells[0], *cells[3:8]] == ["1234abcd, tree 5678", "broken mixed", "2", "1", "1", "1"]
    assert cells[8] == r"3: 3 times no program \| set PROGRAM"
    assert cells[9] == r"test\_broken.py::test\_never\_passes"


def test_the_row_names_the_tree(tmp_path: Path) -> None:
    """Changes are named, but for the rows of earlier runs."""
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.com")
    runs = tmp_path / results.RUNS
    runs.parent.mkdir(parents=True)
    runs.write_text("row\n")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "tree")):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    runs.write_text("row\nrow\n")
    assert re.fullmatch(r"[0-9a-f]{8}, tree [0-9a-f]{8}", results.tree(tmp_path))
    (tmp_path / "new").touch()
    assert results.tree(tmp_path).endswith(", with changes")


def test_the_parts_are_what_make_test_has_and_more(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command runs the named parts, appends a row for a failed run, too, and ends with its result."""
    assert all_suites.ALL[0] == "lint"
    assert {"unit", "lab", "timing", "antrea", "kernel", "e2e"} <= set(all_suites.ALL)
    monkeypatch.setattr(all_suites, "RUNS", project / "runs.md")
    monkeypatch.setattr(repeats, "folder", lambda: project / "records")
    monkeypatch.setattr(all_suites, "part", lambda name: suite(project, {"unit": "broken"}.get(name, "mixed")))
    monkeypatch.setattr(sys, "argv", ["all_suites", "unit"])
    assert all_suites.main() == 1
    assert len((project / "runs.md").read_text().splitlines()) == 1
    assert capsys.readouterr().out.endswith("FAILED\n")
    monkeypatch.setattr(sys, "argv", ["all_suites", "unknown"])
    with pytest.raises(SystemExit):
        all_suites.main()


def test_a_machine_without_a_test_kernel_skips_the_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its tests is in the row, with the reason."""
    monkeypatch.setattr(lane, "find_kernel", lambda: None)
    monkeypatch.setattr(lane, "collect", lambda arguments: ["test_it.py::test1", "test_it.py::test2"])
    outcome = lane.Kernels(base=tmp_path / "kernel").run(tmp_path / "record")
    assert outcome == suites.Outcome(counts=failures.Counts(skipped={lane.NO_KERNEL: 2}))


def test_a_test_is_repeated_beside_load(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One failure in three runs is a failure; so is a test that is skipped."""
    monkeypatch.setattr(under_load, "ROOT", project)
    monkeypatch.setattr(under_load, "BUSY", 1)
    for name, times in (("test_fails_the_second_time", 2), ("test_lacks_a_program", 1)):
        monkeypatch.setattr(sys, "argv", ["under_load", f"test_mixed.py::{name}", "--times", str(times)])
        assert under_load.main() == 1
    assert "test_fails_the_second_time: passed 1 of 2 times" in capsys.readouterr().out


def test_load_ends() -> None:
    """The busy processes are gone after the runs."""
    with under_load.load() as processes:
        assert [process.poll() for process in processes] == [None] * under_load.BUSY
    assert None not in [process.poll() for process in processes]
