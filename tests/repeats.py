"""Runs the failed tests of a run again, alone, and decides whether the run passes.

A fault fails three times. A test that fails and passes in one of two repeats is FLAKY: the run passes, and reports
it. A test that is skipped in a repeat has not passed. The failed tests of one file run again together, in one
process, since an error of a fixture fails all of them. Failures in more than `MOST_FILES` files, or repeats of
more than `MOST_SECONDS`, fail the run: the change or the machine is broken. So does any failure if the environment
has `FLAKY=strict`.

Owns `.cache/flaky`: `count`, how many tests failed in the last run, and `RUN/` for each run with failures, which
has `tests.json` (the result of each test that failed) and the outputs of its runs. It must not know how a test
runs: that is a function, of `tests/suites.py` or of the kernel lane.
"""

from __future__ import annotations

import enum
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.failures import Failure

ROOT = Path(__file__).parents[1]
MOST_FILES = 10
MOST_SECONDS = 600.0
REPEATS = 2
QUIET_WITHIN = 60.0
"""Seconds to wait for the machine's load to fall before the first repeat."""
VARIABLE = "FLAKY"
"""Of the environment: `strict` fails the run for any failure."""

Run = Callable[[str, Sequence[str]], tuple[Failure, ...]]
"""Runs tests of a suite again and returns those that fail."""


class Result(enum.StrEnum):
    """What became of a test that failed."""

    FLAKY = "flaky"
    FAILED = "failed"
    NOT_REPEATED = "not repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A test that failed: its suite, node ID, result, and the output of each run that failed."""

    suite: str
    test: str
    result: Result
    outputs: tuple[str, ...]


def folder(base: Path = ROOT) -> Path:
    """Return the folder of a new run."""
    return base / ".cache" / "flaky" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def repeat(failures: Mapping[str, Sequence[Failure]], run: Run) -> list[Repeated]:
    """Run failed tests again, file by file, and return their results. `failures` are those of each suite."""
    modules: dict[tuple[str, str], list[Failure]] = {}
    for suite, failed in failures.items():
        for failure in failed:
            modules.setdefault((suite, failure.file), []).append(failure)
    if len(modules) > MOST_FILES:
        return [
            _result(suite, [failure], Result.NOT_REPEATED)
            for (suite, _), failed in modules.items()
            for failure in failed
        ]
    if modules:
        _wait_for_quiet(QUIET_WITHIN)
    start = time.monotonic()
    results = []
    for (suite, _), failed in modules.items():
        if time.monotonic() - start > MOST_SECONDS:
            results += [_result(suite, [failure], Result.NOT_REPEATED) for failure in failed]
        else:
            results += _repeat_module(suite, failed, run)
    return results


def _repeat_module(suite: str, failed: Sequence[Failure], run: Run) -> list[Repeated]:
    history = {failure.test: [failure] for failure in failed}
    remaining = list(history)
    for _ in range(REPEATS):
        if remaining:
            print(f"==> again, alone: {suite}: {', '.join(remaining)}", flush=True)
            again = {failure.test: failure for failure in run(suite, remaining)}
            remaining = [test for test in remaining if test in again]
            for test in remaining:
                history[test].append(again[test])
    return [
        _result(suite, runs, Result.FAILED if test in remaining else Result.FLAKY)
        for test, runs in history.items()
    ]


def _result(suite: str, runs: Sequence[Failure], result: Result) -> Repeated:
    outputs = tuple(failure.output for failure in runs)
    return Repeated(suite=suite, test=runs[0].test, result=result, outputs=outputs)


def _wait_for_quiet(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while os.getloadavg()[0] > len(os.sched_getaffinity(0)) and time.monotonic() < deadline:
        time.sleep(1)


def passes(results: Sequence[Repeated]) -> bool:
    """Tell whether a run passes in which these tests failed at first."""
    strict = bool(results) and os.environ.get(VARIABLE) == "strict"
    return all(repeated.result is Result.FLAKY for repeated in results) and not strict


def report(results: Sequence[Repeated], directory: Path) -> None:
    """Write the records of a run, and print the tests that failed."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    (directory.parent / "count").write_text(f"{len(results)}\n")
    if not results:
        print("no test failed")
        return
    directory.mkdir(exist_ok=True)
    rows = []
    print(f"tests that failed ({directory} has their outputs):")
    for repeated in results:
        name = re.sub(r"[^\w.-]+", "-", f"{repeated.suite}-{repeated.test}")[-150:]
        files = [directory / f"{name}.{number}.txt" for number in range(1, len(repeated.outputs) + 1)]
        for file, output in zip(files, repeated.outputs, strict=True):
            file.write_text(output)
        rows.append(
            {
                "suite": repeated.suite,
                "test": repeated.test,
                "result": str(repeated.result),
                "outputs": [file.name for file in files],
            }
        )
        runs = [*("failed" for _ in files), *(["passed"] if repeated.result is Result.FLAKY else [])]
        print(f"{repeated.result.upper():13} {repeated.test} ({repeated.suite}: {', '.join(runs)})")
    (directory / "tests.json").write_text(json.dumps(rows, indent=2) + "\n")
    if any(repeated.result is Result.NOT_REPEATED for repeated in results):
        print(
            f"Failures in more than {MOST_FILES} files, or more than {MOST_SECONDS:g} s of repeats, fail the run."
        )
