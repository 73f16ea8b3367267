"""Runs suites of tests one after the other, and what failed in them again: `python -m tests.suites SUITE...`.

Owns the list of suites: their files, how many processes run them, and what is built first. A suite that fails does
not keep the next one from running. When all have run, failed tests run again, alone (`tests/repeats.py`); the last
lines are the results. Exit status: 0 if each test passed or is flaky, 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import failures, quarantine, repeats
from tests.failures import Failure

ROOT = Path(__file__).parents[1]
_CPUS = len(os.sched_getaffinity(0))
_EACH = ("-n", str(_CPUS), "--dist", "worksteal")  # they compute
_MANY = ("-n", str(2 * _CPUS))  # many of these tests wait, for a deadline or the loopback
_SOME = ("-n", str(_CPUS * 3 // 2), "--dist", "loadfile")  # they wait for timers, but count packets
_FILES = ("-n", str(_CPUS), "--dist", "loadfile")
_APISERVER = ("tests/kube/find-apiserver", "--build")
_PROMETHEUS = ("tests/prometheus/find-prometheus", "--build")
_HELM = ("tests/helm/find-helm", "--build")
CANNOT_BUILD = 1
"""Exit status of a command that finds or builds a program: this machine cannot build it, say without Go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A part of the tests.

    `select` are pytest's arguments that select its tests, `processes` those that distribute them, and `options`
    those of each run, repeats included. `prepare` are commands that build what it needs: where they cannot (status
    1), tests are skipped with a reason; where they fail, so does the suite. pytest runs in `root`.
    """

    name: str
    title: str
    select: tuple[str, ...]
    processes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    root: Path = ROOT
    prepare: tuple[tuple[str, ...], ...] = ()


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
        prepare=(_PROMETHEUS, (".ci/setup", "browser")),
    ),
    Suite(
        name="kube",
        title="API server tests",
        select=("-m", "not timing", "tests/kube"),
        processes=_SOME,
        prepare=(_APISERVER, _HELM),
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
        prepare=(_APISERVER,),
    ),
)
# The second tier: what `make test-all` runs besides.
SECOND_TIER = (
    Suite(
        name="lab",
        title="lab tests",
        select=("-m", "not packets and not timing and not failover", "tests/lab"),
        processes=_FILES,
        prepare=(_PROMETHEUS, _APISERVER),
    ),
    Suite(
        name="timing",
        title="times, rates and losses",
        select=(
            *("-m", "timing and not failover"),
            *("tests/unit", "tests/embedded", "tests/kube", "tests/contract", "tests/lab", "tests/attacks"),
        ),
        processes=_FILES,
        prepare=(_PROMETHEUS, _APISERVER),
    ),
    Suite(name="release", title="release", select=("tests/release",), prepare=(_HELM,)),
    # Its worlds wait for Antrea's timers most of the time.
    Suite(
        name="antrea",
        title="beside Antrea",
        select=("tests/antrea",),
        processes=(*_MANY, "--dist", "loadfile"),
        prepare=(_APISERVER,),
    ),
    Suite(
        name="planned",
        title="planned changes of gateways",
        select=("-m", "failover", "tests/lab/test_drain.py", "tests/lab/test_gateways_planned.py"),
    ),
    Suite(name="failover", title="failover tests", select=("-m", "failover", "tests/lab")),
    Suite(name="e2e", title="end to end", select=("tests/e2e",)),
    Suite(
        name="chart",
        title="chart",
        select=("tests/unit/test_chart.py", "tests/kube/test_chart.py"),
        prepare=(_HELM,),
    ),
    Suite(name="quarantined", title="tests in quarantine", select=quarantine.tests()),
)
BY_NAME = {suite.name: suite for suite in (*FIRST_TIER, *SECOND_TIER)}


def pytest(suite: Suite, arguments: Sequence[str], record: Path) -> int:
    """Run pytest for a suite with its failures recorded in a file; return its exit status."""
    command = [sys.executable, "-m", "pytest", "-q", *suite.options, *arguments]
    return subprocess.run(
        [str(ROOT / ".ci/step"), "-v", suite.title, "--", *command],
        cwd=suite.root,
        env={**os.environ, failures.VARIABLE: str(record)},
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode


def run_suite(suite: Suite, record: Path) -> tuple[tuple[Failure, ...], str]:
    """Run a suite; return its failures, and what kept tests from running ("": nothing did)."""
    if not suite.select:
        print(f"{suite.title}: none")
        return (), ""
    obstacle = ""
    for command in suite.prepare:
        prepared = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        )
        if prepared.returncode not in (0, CANNOT_BUILD):
            obstacle = f"{' '.join(command)} ended with status {prepared.returncode}"
    left_out = () if suite.name == "quarantined" else quarantine.options()
    status = pytest(suite, (*suite.processes, *suite.select, *left_out), record)
    if failures.of_run(status, record) is None:
        obstacle = f"pytest ended with status {status} before all tests had run"
    return failures.read(record), obstacle


def run_again(suite: Suite, tests: Sequence[str], record: Path) -> tuple[Failure, ...]:
    """Run tests alone and return those that fail: all of them if pytest does not end in an orderly way."""
    status = pytest(suite, ("-p", "no:cacheprovider", *tests), record)
    failed = failures.of_run(status, record)
    if failed is not None:
        return failed
    return tuple(Failure(test=test, output=f"pytest ended with status {status}") for test in tests)


def run(suites: Sequence[Suite], directory: Path) -> bool:
    """Run suites and what failed in them again, report, and tell whether the run passes."""
    failed: dict[str, tuple[Failure, ...]] = {}
    obstacles: dict[str, str] = {}  # by the titles of suites whose tests did not all run
    by_name = {suite.name: suite for suite in suites}
    with tempfile.TemporaryDirectory(prefix=f"mcagent-tests.{os.getpid()}.") as temporary:
        for suite in suites:
            failed[suite.name], obstacle = run_suite(suite, Path(temporary, suite.name))
            if obstacle:
                obstacles[suite.title] = obstacle

        def again(name: str, tests: Sequence[str]) -> tuple[Failure, ...]:
            record = Path(tempfile.mkdtemp(dir=temporary), "failures")
            return run_again(by_name[name], tests, record)

        results = repeats.repeat(failed, again)
    passes = repeats.report(results, directory)
    for title, obstacle in obstacles.items():
        print(f"FAILED        {title}: {obstacle}")
    return passes and not obstacles


def main() -> int:
    """Run the suites that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", metavar="SUITE", choices=sorted(BY_NAME), help=", ".join(BY_NAME))
    names = parser.parse_args().suites
    return 0 if run([BY_NAME[name] for name in names], repeats.folder()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
