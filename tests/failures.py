"""Records the results of a run of pytest: what failed, to run again (`tests/repeats.py`), and counts of the rest.

A pytest plugin of the process that reports, also of the kernel lane's processes in test kernels. To the file that
`MCAGENT_TEST_FAILURES` names it appends a line of JSON for each failed phase of a test, each module that cannot be
imported and each crash of a worker of xdist. When pytest ends, it writes the counts to a file beside it. pytest's
result does not change. It must not know any suite: `tests/conftest.py` registers it for all of them.
"""

from __future__ import annotations

import heapq
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests import unchanged

VARIABLE = "MCAGENT_TEST_FAILURES"
"""The file to which failures are appended."""
SLOWEST = 10
"""Tests and fixtures whose durations are kept."""
SHORTEST = 0.1
"""Seconds below which a duration is not kept."""
_PHASES = {"setup": "fixtures of ", "call": "", "teardown": "end of "}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A test (its node ID) that failed, or a file that could not be imported, with pytest's output."""

    test: str
    output: str

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.test.partition("::")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The tests that passed (node IDs), how many were skipped for each reason, and what took longest (seconds)."""

    passed: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    slowest: tuple[tuple[float, str], ...] = ()


def total(counts: Iterable[Counts]) -> Counts:
    """Return the counts of several runs together."""
    passed: list[str] = []
    skipped: Counter[str] = Counter()
    durations: list[tuple[float, str]] = []
    for run in counts:
        passed += run.passed
        skipped.update(run.skipped)
        durations += run.slowest
    return Counts(passed=tuple(passed), skipped=dict(skipped), slowest=tuple(heapq.nlargest(SLOWEST, durations)))


def read(path: Path) -> tuple[Failure, ...]:
    """Return the failures of a file, one for each test, in the order of their first; none if there is no file."""
    outputs: dict[str, list[str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        failure = Failure(**json.loads(line))
        outputs.setdefault(failure.test, []).append(failure.output)
    return tuple(Failure(test=test, output="\n".join(parts)) for test, parts in outputs.items())


def counts_file(path: Path) -> Path:
    """Return where the counts of a run are, from the file of its failures."""
    return path.with_name(f"{path.name}.counts")


def read_counts(path: Path) -> Counts | None:
    """Return the counts of a run, from the file of its failures; None if pytest did not end by itself."""
    file = counts_file(path)
    if not file.exists():
        return None
    values = json.loads(file.read_text())
    slowest = tuple((seconds, name) for seconds, name in values["slowest"])
    return Counts(passed=tuple(values["passed"]), skipped=values["skipped"], slowest=slowest)


def of_run(status: int, path: Path) -> tuple[Failure, ...] | None:
    """Return what failed in a run of pytest, by its exit status and the recorded failures.

    None: it ended before all tests had run, or did not record what failed.
    """
    if status == 0:
        return ()
    recorded = read(path)
    return recorded if status == 1 and recorded else None


def of_repeat(tests: Sequence[str], status: int, path: Path) -> tuple[Failure, ...]:
    """Return those tests (node IDs, or files) that did not pass in a run of these tests alone.

    A test that is skipped or not collected has not passed. All of them failed if pytest ended early.
    """
    failed = of_run(status, path)
    if failed is None:
        return tuple(Failure(test=test, output=f"pytest ended with status {status}") for test in tests)
    passed = (read_counts(path) or Counts()).passed
    results = []
    for test in tests:
        outputs = [failure.output for failure in failed if _is_of(failure.test, test)]
        if not outputs and not any(_is_of(other, test) for other in passed):
            outputs = ["It did not run: it was skipped, or not collected."]
        if outputs:
            results.append(Failure(test=test, output="\n".join(outputs)))
    return tuple(results)


def _is_of(test: str, selected: str) -> bool:
    return test == selected or test.startswith(f"{selected}::")


def append(path: Path, failures: Iterable[Failure]) -> None:
    """Append failures to a file, which is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(asdict(failure)) + "\n" for failure in failures)


class Recorder:
    """Writes failures as they are reported, so that those before a crash of pytest are kept; counts at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: dict[str, None] = {}  # in the order of the tests
        self._skipped: Counter[str] = Counter()
        self._durations: list[tuple[float, str]] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a module that cannot be imported, or is skipped as a whole."""
        if report.failed:
            append(self._path, [Failure(test=report.nodeid, output=report.longreprtext)])
        elif report.skipped:
            self._skipped[_reason(report)] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a phase of a test: its set-up, itself, its end, or the crash of its process."""
        if report.duration >= SHORTEST:
            self._durations.append((round(report.duration, 2), f"{_PHASES.get(report.when, '')}{report.nodeid}"))
        expected_to_fail = hasattr(report, "wasxfail")
        if report.failed:
            sections = (f"---- {title} ----\n{content}" for title, content in report.sections)
            output = "\n".join((f"==== {report.when} failed ====", report.longreprtext, *sections))
            append(self._path, [Failure(test=report.nodeid, output=output)])
            self._passed.pop(report.nodeid, None)
        elif report.skipped and not expected_to_fail:
            self._skipped[_reason(report)] += 1
        elif report.when == "call" or expected_to_fail:
            self._passed[report.nodeid] = None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the counts."""
        if number := unchanged.left_out(session.config):
            self._skipped[unchanged.REASON] += number
        counts = Counts(
            passed=tuple(self._passed),
            skipped=dict(self._skipped),
            slowest=tuple(heapq.nlargest(SLOWEST, self._durations)),
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        counts_file(self._path).write_text(json.dumps(asdict(counts)))


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return why a test is skipped; pytest gives file, line and `Skipped: REASON`."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def register(config: pytest.Config) -> None:
    """Add the plugin to the process that reports results, if the environment names a file for failures."""
    path = os.environ.get(VARIABLE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "mcagent-failures")
