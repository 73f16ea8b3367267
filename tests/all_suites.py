"""Runs all tests, or parts of them, and keeps the results: `python -m tests.all_suites [PART...]`.

The parts of `make test-all` are static checks, the suites of both tiers, and the kernel lane. A part that fails
does not keep the next one from running. What a part needs and this machine lacks is a reason for skipped tests.
Each run becomes a row of docs/notes/test-runs.md. Exit status: 0 if the run passes, 1 otherwise.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests import repeats, results, suites
from tests.failures import Failure
from tests.kernel import lane
from tests.suites import Part

ROOT = Path(__file__).parents[1]
RUNS = ROOT / results.RUNS


class Lint:
    """The static checks of `make lint`, as a part of the tests."""

    name = "lint"
    title = "static checks"

    def prepare(self) -> str:
        """Do nothing: `make lint` installs what it needs."""
        return ""

    def run(self, record: Path) -> suites.Outcome:
        """Run them."""
        status = subprocess.run(["make", "lint"], cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
        return suites.Outcome(obstacle=f"make lint ended with status {status}" if status else "")

    def again(self, tests: Sequence[str], record: Path) -> tuple[Failure, ...]:
        """Repeat no test: there are none."""
        return ()


SECOND_TIER = ("quarantined", "lab", "timing", "release", "antrea", lane.NAME, "planned", "e2e")
ALL = (Lint.name, *(suite.name for suite in suites.FIRST_TIER), *SECOND_TIER)
"""What a run without arguments has: tests of the chart are in two suites, and `failover` wants an idle machine."""
NAMES = tuple(dict.fromkeys((*ALL, *suites.BY_NAME)))


def part(name: str) -> Part:
    """Return a part by its name."""
    if name == Lint.name:
        return Lint()
    return lane.part() if name == lane.NAME else suites.BY_NAME[name]


def main() -> int:
    """Run the parts that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(NAMES))
    names = tuple(dict.fromkeys(parser.parse_args().parts)) or ALL
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"unknown: {', '.join(unknown)}; parts are {', '.join(NAMES)}")
    revision, start = results.tree(), time.monotonic()
    run = suites.run([part(name) for name in names], repeats.folder(), results.read_budget())
    row = results.row(run, revision=revision, seconds=time.monotonic() - start)
    with RUNS.open("a") as file:
        file.write(row)
    print(f"{results.RUNS}:\n{row}{'passed' if run.passes else 'FAILED'}")
    return 0 if run.passes else 1


if __name__ == "__main__":
    raise SystemExit(main())
