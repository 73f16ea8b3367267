"""The results of a run of suites: table, what took longest, budget, and the row in docs/notes/test-runs.md.

A suite has a budget of wall seconds in pyproject.toml (`tool.mcagent.suite-seconds`), which is printed beside what
it took and never fails a run. A run fails if the suites with a budget use more CPU seconds than
`tool.mcagent.cpu-seconds` together: processor time depends less on what else the machine does. Builds of programs,
repeats, and processes that outlive their parent (Open vSwitch's, in labs) are not counted.

It must not know how a suite runs: that is `tests/suites.py`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import failures, repeats
from tests.failures import Counts, Failure
from tests.repeats import Repeated, Result

ROOT = Path(__file__).parents[1]
RUNS = "docs/notes/test-runs.md"
_COLUMNS = ("suite", "passed", "failed", "flaky", "skipped", "seconds", "budget", "CPU seconds")
_LONGEST_REASON = 150  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Wall seconds by suite, and the CPU seconds of these suites together."""

    suites: Mapping[str, int] = field(default_factory=dict)
    cpu: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """What became of a suite at first, before repeats. `obstacle` is what kept tests from running, or ""."""

    name: str
    title: str
    counts: Counts
    failures: tuple[Failure, ...]
    obstacle: str
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of suites and of what ran again."""

    suites: Sequence[SuiteResult]
    repeated: Sequence[Repeated]
    budget: Budget

    @property
    def cpu(self) -> float:
        """The CPU seconds of the suites that have a budget."""
        return sum(suite.cpu for suite in self.suites if suite.name in self.budget.suites)

    @property
    def obstacles(self) -> list[str]:
        """What failed the run besides tests."""
        obstacles = [f"{suite.title}: {suite.obstacle}" for suite in self.suites if suite.obstacle]
        if self.cpu > self.budget.cpu:
            obstacles.append(f"{self.cpu:.0f} CPU seconds are more than the budget, {self.budget.cpu:g}")
        return obstacles

    @property
    def passes(self) -> bool:
        """Whether each test passed or is flaky, and nothing else failed."""
        return repeats.passes(self.repeated) and not self.obstacles

    def flaky(self, suite: str | None = None) -> list[str]:
        """Return the flaky tests, of a suite or of all."""
        return self._repeated(suite, flaky=True)

    def failed(self, suite: str | None = None) -> list[str]:
        """Return the tests that failed, of a suite or of all."""
        return self._repeated(suite, flaky=False)

    def _repeated(self, suite: str | None, *, flaky: bool) -> list[str]:
        return [
            result.test
            for result in self.repeated
            if suite in (None, result.suite) and (result.result is Result.FLAKY) is flaky
        ]


def read_budget(root: Path = ROOT) -> Budget:
    """Return the budget of pyproject.toml."""
    values = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["mcagent"]
    return Budget(suites=values["suite-seconds"], cpu=values["cpu-seconds"])


def table(run: Run) -> str:
    """Return the table of the suites: tests, and seconds beside the budget."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for suite in run.suites:
        numbers = (
            len(suite.counts.passed),
            len(run.failed(suite.name)),
            len(run.flaky(suite.name)),
            sum(suite.counts.skipped.values()),
        )
        seconds = (f"{suite.seconds:.0f}", str(run.budget.suites.get(suite.name, "-")), f"{suite.cpu:.0f}")
        rows.append((suite.name, *map(str, numbers), *seconds))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in rows)


def slowest(run: Run) -> str:
    """Return the tests and fixtures that took longest, a line each."""
    counts = failures.total(suite.counts for suite in run.suites)
    return "\n".join(f"{seconds:8.1f} s  {name}" for seconds, name in counts.slowest)


def report(run: Run) -> None:
    """Print the table, what took longest, and the share of the budget."""
    print(table(run))
    if durations := slowest(run):
        print(f"tests and fixtures that took longest:\n{durations}")
    if run.cpu and run.budget.suites:
        print(f"CPU seconds of suites with a budget: {run.cpu:.0f} of {run.budget.cpu:g}")


def tree(root: Path = ROOT) -> str:
    """Return the revision and tree of HEAD, and whether the checkout has changes besides the rows of runs."""
    revision, digest = (_git(root, "rev-parse", "--short=8", name).strip() for name in ("HEAD", "HEAD^{tree}"))
    changes = _git(root, "status", "--porcelain", "--", ".", f":!{RUNS}")
    return f"{revision}, tree {digest}{', with changes' if changes else ''}"


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def machine() -> str:
    """Return the CPUs, memory and kernel of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} CPUs, {memory:.0f} GiB, Linux {platform.release()}"


def row(run: Run, *, revision: str, seconds: float) -> str:
    """Return a run as a row of the table in docs/notes/test-runs.md."""
    counts = failures.total(suite.counts for suite in run.suites)
    reasons = [f"{number} times {reason[:_LONGEST_REASON]}" for reason, number in sorted(counts.skipped.items())]
    cells = (
        revision,
        time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        machine(),
        " ".join(suite.name for suite in run.suites),
        f"{seconds / 60:.0f}",
        str(len(counts.passed)),
        str(len(run.failed())),
        str(len(run.flaky())),
        ": ".join((str(sum(counts.skipped.values())), "; ".join(reasons))) if reasons else "0",
        "; ".join((*run.failed(), *run.obstacles)) or "none",
    )
    return f"| {' | '.join(map(_cell, cells))} |\n"


def _cell(text: str) -> str:
    """Return text as Markdown shows it in a cell: no tags, emphasis or links."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
