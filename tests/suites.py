"""Runs suites of tests one after the other, and what failed in them again: `python -m tests.suites SUITE...`.

Owns the list of suites: their files, how many processes run them, and what is built first. A suite that fails does
not keep the next one from running. When all have run, failed tests run again, alone (`tests/repeats.py`); the last
lines are the results (`tests/results.py`). Exit status: 0 if each test passed or is flaky and the budget of CPU
seconds is kept, 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tests import failures, quarantine, repeats, results
from tests.failures import Counts, Failure
from tests.results import Budget, SuiteResult

ROOT = Path(__file__).parents[1]
_CPUS = len(os.sched_getaffinity(0))
_EACH = ("-n", str(_CPUS), "--dist", "worksteal")  # they compute
_MANY = ("-n", str(2 * _CPUS))  # many of these tests wait, for a deadline or the loopback
_SOME = ("-n", str(_CPUS * 3 // 2), "--dist", "loadfile")  # they wait for timers, but count packets
_FILES = ("-n", str(_CPUS), "--dist", "loadfile")
_APISERVER = ("tests/kube/find-apiserver", "--build")
_PROMETHEUS = ("tests/prometheus/find-prometheus", "--build")
_HELM = ("tests/helm/find-helm", "--build")
# Only where the programs are already; the image is of this tree, so it is built.
_REAL_NODES = (
    *("sh", "-c"),
    "! devtools/k8s/find-programs 2>/dev/null || devtools/mck8s setup ${MCS_CONFORMANCE:+--conformance}",
)
CANNOT_BUILD = 1
"""Exit status of a command that finds or builds a program: this machine cannot build it, say without Go."""


class Outcome(NamedTuple):
    """What a part did when it ran at first, and what kept tests of it from running ("": nothing did)."""

    counts: Counts = Counts()
    failures: tuple[Failure, ...] = ()
    obstacle: str = ""


class Part(Protocol):
    """A suite, or another part of the tests that reports in the same way."""

    @property
    def name(self) -> str:
        """The word of the command line."""

    @property
    def title(self) -> str:
        """What people read."""

    def prepare(self) -> str:
        """Build what the part needs; return an obstacle, or ""."""

    def run(self, record: Path) -> Outcome:
        """Run all of it; pytest records what fails in a file."""

    def again(self, tests: Sequence[str], record: Path) -> tuple[Failure, ...]:
        """Run tests alone and return those that do not pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A part of the tests that one run of pytest has.

    `select` are pytest's arguments that select its tests, `processes` those that distribute them, and `options`
    those of each run, repeats included. `builds` are commands that build what it needs: where they cannot (status
    1), tests are skipped with a reason; where they fail, so does the suite. pytest runs in `root`.
    """

    name: str
    title: str
    select: tuple[str, ...]
    processes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    root: Path = ROOT
    builds: tuple[tuple[str, ...], ...] = ()

    def prepare(self) -> str:
        """Build what the suite needs; return which command failed, or ""."""
        obstacle = ""
        for command in self.builds:
            status = subprocess.run(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
            ).returncode
            if status not in (0, CANNOT_BUILD):
                obstacle = f"{' '.join(command)} ended with status {status}"
        return obstacle

    def run(self, record: Path) -> Outcome:
        """Run the suite without the tests in quarantine."""
        if not self.select:
            print(f"{self.title}: none")
            return Outcome()
        left_out = () if self.name == "quarantined" else quarantine.options()
        status = self._pytest((*self.processes, *self.select, *left_out), record)
        early = failures.of_run(status, record) is None
        return Outcome(
            counts=failures.read_counts(record) or Counts(),
            failures=failures.read(record),
            obstacle=f"pytest ended with status {status} before all tests had run" if early else "",
        )

    def again(self, tests: Sequence[str], record: Path) -> tuple[Failure, ...]:
        """Run tests alone and return those that do not pass: all of them if pytest ends early."""
        return failures.of_repeat(tests, self._pytest(("-p", "no:cacheprovider", *tests), record), record)

    def _pytest(self, arguments: Sequence[str], record: Path) -> int:
        """Run pytest with its failures recorded in a file; return its exit status."""
        command = [sys.executable, "-m", "pytest", "-q", *self.options, *arguments]
        return subprocess.run(
            [str(ROOT / ".ci/step"), "-v", self.title, "--", *command],
            cwd=self.root,
            env={**os.environ, failures.VARIABLE: str(record)},
            stdin=subprocess.DEVNULL,
            check=False,
        ).returncode


# The first tier: what `make test` and CI run. Times, rates and numbers of lost packets are asserted in the second.
FIRST_TIER = (
    Suite(
        name="unit", title="unit tests", select=("-m", "not costly and not timing", "tests/unit"), processes=_EACH
    ),
    Suite(name="properties", title="properties", select=("-m", "costly", "tests/unit"), processes=_EACH),
    Suite(
        name="embedded",
        title="embedded API server tests",
        select=("-m", "not timing", "tests/embedded"),
        processes=_MANY,
        builds=(_PROMETHEUS, (".ci/setup", "browser")),
    ),
    Suite(
        name="kube",
        title="API server tests",
        select=("-m", "not timing", "tests/kube"),
        processes=_SOME,
        builds=(_APISERVER, _HELM),
    ),
    Suite(
        name="contract", title="contract tests", select=("-m", "not timing", "tests/contract"), processes=_FILES
    ),
    Suite(
        name="packets",
        title="packets: a lab for each capability of the dataplane",
        select=("-m", "packets and not timing", "tests/lab"),
        processes=_FILES,
    ),
    Suite(
        name="attacks",
        title="attacks",
        select=("-m", "not timing", "tests/attacks"),
        processes=_FILES,
        builds=(_APISERVER,),
    ),
)
# The second tier: what `make test-all` runs besides.
SECOND_TIER = (
    Suite(
        name="lab",
        title="lab tests",
        select=("-m", "not packets and not timing and not failover", "tests/lab"),
        processes=_FILES,
        builds=(_PROMETHEUS, _APISERVER),
    ),
    Suite(
        name="timing",
        title="times, rates and losses",
        select=(
            *("-m", "timing and not failover"),
            *("tests/unit", "tests/embedded", "tests/kube", "tests/contract", "tests/lab", "tests/attacks"),
        ),
        processes=_FILES,
        builds=(_PROMETHEUS, _APISERVER),
    ),
    Suite(name="release", title="release", select=("tests/release",), builds=(_HELM,)),
    # Its worlds wait for Antrea's timers most of the time.
    Suite(
        name="antrea",
        title="beside Antrea",
        select=("tests/antrea",),
        processes=(*_MANY, "--dist", "loadfile"),
        builds=(_APISERVER,),
    ),
    Suite(
        name="planned",
        title="planned changes of gateways",
        select=("-m", "failover", "tests/lab/test_drain.py", "tests/lab/test_gateways_planned.py"),
    ),
    Suite(name="failover", title="failover tests", select=("-m", "failover", "tests/lab")),
    Suite(name="e2e", title="end to end", select=("tests/e2e",), builds=(_REAL_NODES, _HELM)),
    Suite(
        name="chart",
        title="chart",
        select=("tests/unit/test_chart.py", "tests/kube/test_chart.py"),
        builds=(_HELM,),
    ),
    Suite(name="quarantined", title="tests in quarantine", select=quarantine.tests()),
)
BY_NAME = {suite.name: suite for suite in (*FIRST_TIER, *SECOND_TIER)}


def run(parts: Sequence[Part], directory: Path, budget: Budget) -> results.Run:
    """Run parts and what failed in them again, print the results, and return them."""
    with tempfile.TemporaryDirectory(prefix=f"mcagent-tests.{os.getpid()}.") as temporary:
        first = [_run(part, Path(temporary, part.name)) for part in parts]
        by_name = {part.name: part for part in parts}

        def again(name: str, tests: Sequence[str]) -> tuple[Failure, ...]:
            return by_name[name].again(tests, Path(tempfile.mkdtemp(dir=temporary), "failures"))

        repeated = repeats.repeat({suite.name: suite.failures for suite in first}, again)
    run = results.Run(suites=first, repeated=repeated, budget=budget)
    results.report(run)
    repeats.report(repeated, directory)
    for obstacle in run.obstacles:
        print(f"FAILED        {obstacle}")
    return run


def _run(part: Part, record: Path) -> SuiteResult:
    broken = part.prepare()
    start, cpu = time.monotonic(), _cpu_seconds()
    counts, failed, obstacle = part.run(record)
    return SuiteResult(
        name=part.name,
        title=part.title,
        counts=counts,
        failures=failed,
        obstacle=obstacle or broken,
        seconds=time.monotonic() - start,
        cpu=_cpu_seconds() - cpu,
    )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Run the suites that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", metavar="SUITE", choices=sorted(BY_NAME), help=", ".join(BY_NAME))
    names = parser.parse_args().suites
    return 0 if run([BY_NAME[name] for name in names], repeats.folder(), results.read_budget()).passes else 1


if __name__ == "__main__":
    raise SystemExit(main())
