"""A test that depends on timing and fails runs once more, alone, and is reported as flaky if it passes.

Owns the records in `.cache/flaky/RUN`, one file per flaky test with the output of both runs. Must not know any
suite: `tests/conftest.py` registers the plugin for all of them, in the kernel lane's test kernels, too. A run is
whatever shares `MCAGENT_TEST_RUN`, for example all suites of `make test`; more than `MOST` flaky tests fail it.

Only tests with the marker `timing` run again. A test without it that fails, fails the run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MARKER = "timing"
MOST = 3
"""How many tests may be flaky in one run."""
RUN = "MCAGENT_TEST_RUN"
AGAIN = "MCAGENT_TEST_AGAIN"
"""Set while a test runs for the second time."""


def records(base: Path = ROOT) -> Path:
    """Return the directory of the records of this process's run."""
    run = os.environ.get(RUN) or f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return base / ".cache" / "flaky" / run


class FlakyTests:
    """Runs failed tests with the marker once more when all others are done. Lives in the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder = records(config.rootpath)
        self._failures: dict[str, str] = {}  # output by node ID, of tests with the marker
        self._unmarked = False
        self._lines: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note that a module could not be imported: that fails the run."""
        self._unmarked = self._unmarked or report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the output of a failed test."""
        if not report.failed:
            return
        if MARKER not in report.keywords:
            self._unmarked = True
            return
        sections = (f"---- {title} ----\n{content}" for title, content in report.sections)
        output = "\n".join((f"==== {report.when} failed ====", report.longreprtext, *sections))
        self._failures[report.nodeid] = "\n".join(filter(None, (self._failures.get(report.nodeid), output)))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Run the failed tests again, and let the session pass if only timing failed it."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not self._failures:
            return
        allowed = MOST - len(list(self._folder.glob("*.txt")))
        if len(self._failures) > allowed:
            failed, before = len(self._failures), MOST - allowed
            self._lines.append(
                f"{failed} tests that depend on timing failed after {before}: more than {MOST} in one run fail it"
            )
            return
        passed = [self._passes_alone(name, output) for name, output in self._failures.items()]
        if all(passed) and not self._unmarked:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report flaky tests."""
        if self._lines:
            terminalreporter.section("tests that depend on timing", "=", red=True)
            for line in self._lines:
                terminalreporter.write_line(line, red=True)

    def _passes_alone(self, name: str, output: str) -> bool:
        """Run one test again, write the record if it passes, and tell whether it does."""
        datapath = self._config.getoption("--datapath", None)
        command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]
        second = subprocess.run(
            [*command, *([f"--datapath={datapath}"] if datapath else ()), name],
            cwd=self._config.rootpath,
            env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | {AGAIN: "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if second.returncode:
            self._lines += [f"FAILED TWICE {name}; output of the second run:", second.stdout]
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        record = self._folder / (re.sub(r"[^\w.-]+", "-", name) + ".txt")
        record.write_text(
            f"FLAKY {name}\n\n#### First run\n\n{output}\n\n#### Second run, alone\n\n{second.stdout}"
        )
        self._lines.append(f"FLAKY {name}: it failed, and passed alone; the output of both runs is in {record}")
        return True


def register(config: pytest.Config) -> None:
    """Add the plugin to the process that reports results, unless this is a second run."""
    if not hasattr(config, "workerinput") and not os.environ.get(AGAIN):
        config.pluginmanager.register(FlakyTests(config), "mcagent-flaky-tests")


def main() -> int:
    """Print the flaky tests of the run that `MCAGENT_TEST_RUN` names."""
    folder = records()
    flaky = sorted(folder.glob("*.txt"))
    for record in flaky:
        print(f"{record.read_text().splitlines()[0]}  ({record.relative_to(ROOT)})")
    if not flaky:
        print("no flaky tests")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
