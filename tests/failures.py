"""Records what fails in a suite, so that it can run again after all suites (`tests/repeats.py`).

A pytest plugin of the process that reports, also of the kernel lane's processes in test kernels. It writes one
line of JSON for each failed phase of a test, each module that cannot be imported and each crash of a worker of
xdist to the file that `MCAGENT_TEST_FAILURES` names. The result of the suite itself does not change. It must not
know any suite: `tests/conftest.py` registers it for all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

VARIABLE = "MCAGENT_TEST_FAILURES"
"""The file to which failures are appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A test (its node ID) that failed, or a file that could not be imported, with pytest's output."""

    test: str
    output: str

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.test.partition("::")[0]


def read(path: Path) -> tuple[Failure, ...]:
    """Return the failures of a file, one for each test, in the order of their first; none if there is no file."""
    outputs: dict[str, list[str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        failure = Failure(**json.loads(line))
        outputs.setdefault(failure.test, []).append(failure.output)
    return tuple(Failure(test=test, output="\n".join(parts)) for test, parts in outputs.items())


def of_run(status: int, path: Path) -> tuple[Failure, ...] | None:
    """Return what failed in a run of pytest, by its exit status and the recorded failures.

    None: it ended before all tests had run, or did not record what failed.
    """
    if status == 0:
        return ()
    recorded = read(path)
    return recorded if status == 1 and recorded else None


def append(path: Path, failures: Iterable[Failure]) -> None:
    """Append failures to a file, which is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(asdict(failure)) + "\n" for failure in failures)


class Recorder:
    """Writes failures as they are reported, so that those before a crash of pytest are kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a module that cannot be imported."""
        if report.failed:
            append(self._path, [Failure(test=report.nodeid, output=report.longreprtext)])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failed phase of a test: its set-up, itself, its end, or the crash of its process."""
        if report.failed:
            sections = (f"---- {title} ----\n{content}" for title, content in report.sections)
            output = "\n".join((f"==== {report.when} failed ====", report.longreprtext, *sections))
            append(self._path, [Failure(test=report.nodeid, output=output)])


def register(config: pytest.Config) -> None:
    """Add the plugin to the process that reports results, if the environment names a file for failures."""
    path = os.environ.get(VARIABLE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "mcagent-failures")
