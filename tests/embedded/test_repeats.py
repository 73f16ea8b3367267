"""Failed tests run again, alone, and only a test that fails each time fails the run (`tests/repeats.py`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests import failures, repeats, suites
from tests.failures import Failure
from tests.kernel import lane
from tests.repeats import Repeated, Result
from tests.results import Budget

ROOT = Path(__file__).parents[2]
CONFIGURATION = f"""[tool.pytest.ini_options]
pythonpath = [{str(ROOT)!r}]
addopts = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]  # its import takes a third of a run
"""
CONFTEST = "from tests import failures\n\n\ndef pytest_configure(config):\n    failures.register(config)\n"
TESTS = """
import os
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def run_number(name):
    path = HERE / name
    path.write_text((path.read_text() if path.exists() else "") + "x")
    return len(path.read_text())


def test_is_fine():
    pass


@pytest.mark.parametrize("failures", [1, 2])
def test_passes_later(failures):
    print("output of a run")
    assert run_number(f"later{failures}") > failures, "too late"


def test_never_passes():
    run_number("never")
    assert False, "broken"


@pytest.fixture(scope="module")
def world():
    assert run_number("world") > 1, "no world"


@pytest.mark.parametrize("number", range(12))
def test_with_a_fixture(world, number):
    pass


def test_does_not_run_again():
    if run_number("skipped") > 1:
        pytest.skip("not again")
    assert False, "broken"


def test_ends_its_process():
    if run_number("crash") == 1:
        os._exit(9)


def test_ends_pytest():
    if run_number("exit") == 1:
        pytest.exit("no more", returncode=3)
"""
QUIET = 0.0  # seconds


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "QUIET_WITHIN", QUIET)


@pytest.fixture
def suite(tmp_path: Path) -> suites.Suite:
    """Give a suite of tests that fail in certain ways."""
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    return suites.Suite(name="suite", title="a suite", select=("test_it.py",), root=tmp_path)


def run(suite: suites.Suite, keyword: str, *processes: str) -> tuple[bool, dict[str, str]]:
    """Run tests of a suite; return whether the run passes, and the result of each test that failed."""
    folder = suite.root / "records"
    selected = replace(suite, select=(*suite.select, "-k", keyword), processes=processes)
    passes = suites.run([selected], folder, Budget()).passes
    rows = json.loads((folder / "tests.json").read_text()) if folder.exists() else []
    for row in rows:
        assert all((folder / output).read_text() for output in row["outputs"])
    return passes, {row["test"].removeprefix("test_it.py::"): row["result"] for row in rows}


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_a_test_that_passes_in_a_repeat_is_flaky(suite: suites.Suite, processes: str) -> None:
    """The run passes, also if it is the second repeat, and the outputs are kept."""
    passes, results = run(suite, "fine or later", processes)
    assert passes
    assert results == {"test_passes_later[1]": "flaky", "test_passes_later[2]": "flaky"}
    outputs = sorted((suite.root / "records").glob("*later-2*.txt"))
    assert len(outputs) == 2
    assert "too late" in outputs[0].read_text()
    assert "output of a run" in outputs[0].read_text()


def test_a_fault_fails_three_times(suite: suites.Suite) -> None:
    """It fails the run, beside a flaky test."""
    passes, results = run(suite, "never or later and 1")
    assert not passes
    assert results == {"test_passes_later[1]": "flaky", "test_never_passes": "failed"}
    assert (suite.root / "never").read_text() == "xxx"


def test_a_test_that_is_skipped_in_its_repeats_fails(suite: suites.Suite) -> None:
    """It was seen to fail, and never to pass."""
    assert run(suite, "does_not_run") == (False, {"test_does_not_run_again": "failed"})


@pytest.mark.parametrize(
    ("passed", "recorded", "expected"),
    [
        pytest.param(["test_it.py::test"], "", [], id="passed"),
        pytest.param([], "", ["test_it.py", "test_it.py::test"], id="not collected"),
        pytest.param(
            ["test_it.py::test"], "test_it.py::test2", ["test_it.py"], id="another test of the file failed"
        ),
    ],
)
def test_a_repeated_file_passes_if_its_tests_do(
    tmp_path: Path, passed: list[str], recorded: str, expected: list[str]
) -> None:
    """A file is repeated if it could not be imported, or its kernel died."""
    record = tmp_path / "failures"
    failures.counts_file(record).write_text(json.dumps({"passed": passed, "skipped": {}, "slowest": []}))
    if recorded:
        failures.append(record, [Failure(test=recorded, output="broken")])
    failed = failures.of_repeat(["test_it.py", "test_it.py::test"], 1 if recorded else 0, record)
    assert [failure.test for failure in failed] == expected


def test_errors_of_a_fixture_are_repeated_together(suite: suites.Suite) -> None:
    """Twelve tests that one failed fixture ended need one repeat."""
    passes, results = run(suite, "fixture")
    assert passes
    assert results == {f"test_with_a_fixture[{number}]": "flaky" for number in range(12)}
    assert (suite.root / "world").read_text() == "xx"


def test_a_crashed_worker_is_repeated(suite: suites.Suite) -> None:
    """The test that ended its process runs again, and all others run."""
    assert run(suite, "fine or process", "-n2") == (True, {"test_ends_its_process": "flaky"})


def test_a_suite_that_ends_early_fails_the_run(suite: suites.Suite, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody knows which tests did not run."""
    assert run(suite, "fine or ends_pytest") == (False, {})
    assert "FAILED        a suite: pytest ended with status 3 before all tests had run" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "passes"), [(0, True), (1, True), (2, False)])
def test_a_build_that_fails_fails_the_run(
    suite: suites.Suite, capsys: pytest.CaptureFixture[str], status: int, passes: bool
) -> None:
    """Tests that need the program would be skipped; a machine that cannot build it (status 1) skips them."""
    command = ("sh", "-c", f"exit {status}")
    built = replace(suite, select=(*suite.select, "-k", "fine"), builds=(command,))
    assert suites.run([built], suite.root / "records", Budget()).passes is passes
    expected = f"FAILED        a suite: sh -c exit {status} ended with status {status}"
    assert (expected in capsys.readouterr().out) is not passes


def test_a_strict_run_accepts_no_flaky_test(suite: suites.Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """`FLAKY=strict` fails the run for a test that fails once."""
    monkeypatch.setenv("FLAKY", "strict")
    assert run(suite, "later and 1") == (False, {"test_passes_later[1]": "flaky"})


def _never(_suite: str, tests: Sequence[str]) -> tuple[Failure, ...]:
    raise AssertionError(f"{tests} are repeated")


def test_failures_in_many_files_are_not_repeated() -> None:
    """They fail the run: it is broken, not a test."""
    failed = [Failure(test=f"test_{number}.py::test", output="x") for number in range(repeats.MOST_FILES + 1)]
    results = repeats.repeat({"suite": failed}, _never)
    assert {repeated.result for repeated in results} == {Result.NOT_REPEATED}
    assert not repeats.passes(results)


def test_long_repeats_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not been repeated in time fails the run."""
    monkeypatch.setattr(repeats, "MOST_SECONDS", -1.0)
    results = repeats.repeat({"suite": [Failure(test="test_it.py::test", output="x")]}, _never)
    assert [repeated.result for repeated in results] == [Result.NOT_REPEATED]
    assert not repeats.passes(results)


def test_a_run_without_failures_passes(tmp_path: Path) -> None:
    """Nothing is repeated, and there are no records."""
    results = repeats.repeat({"suite": []}, _never)
    repeats.report(results, tmp_path / "records")
    assert repeats.passes(results)
    assert not (tmp_path / "records").exists()


REPORT = '{"passed": [], "skipped": {}, "slowest": []}'
RECORDED = '{"test": "tests/lab/test_it.py::test", "output": "too late"}\n'
FILE = "tests/lab/test_it.py"


@pytest.mark.parametrize(
    ("status", "report", "recorded", "failed"),
    [
        pytest.param(0, REPORT, "", [], id="passed"),
        pytest.param(5, REPORT, "", [], id="no tests"),
        pytest.param(1, REPORT, RECORDED, [f"{FILE}::test"], id="a test failed"),
        pytest.param(0, "", "", [FILE], id="the kernel died"),
        pytest.param(1, "", "", [FILE], id="nothing recorded"),
        pytest.param(124, "", RECORDED, [FILE], id="too long"),
    ],
)
def test_the_kernel_lane_repeats_a_file_that_was_not_done(
    tmp_path: Path, status: int, report: str, recorded: str, failed: list[str]
) -> None:
    """If the kernel or pytest ended early, all tests of the file are repeated."""
    if report:
        failures.counts_file(tmp_path / lane.FAILURES).write_text(report)
    (tmp_path / lane.FAILURES).write_text(recorded)
    assert [failure.test for failure in lane.failures_of(FILE, status, tmp_path)] == failed


def test_a_result_tells_its_outputs() -> None:
    """The record of a failed test has one output for each run that failed."""
    failure = Failure(test="test_it.py::test", output="first")
    outputs = iter([(Failure(test=failure.test, output="second"),), ()])
    (repeated,) = repeats.repeat({"suite": [failure]}, lambda _suite, _tests: next(outputs))
    assert repeated == Repeated(suite="suite", test=failure.test, result=Result.FLAKY, outputs=("first", "second"))
