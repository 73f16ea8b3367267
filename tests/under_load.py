"""Runs a test many times beside two busy processes: `python -m tests.under_load TEST [--times N]`.

Each run of `make repeat` is a process of pytest of its own. A test that passes each time may enter the first tier.
Exit status: 0 if it passed each time, 1 otherwise; a test that is skipped has not passed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import failures

ROOT = Path(__file__).parents[1]
BUSY = 2
# Ends with its parent, also if that is killed.
_LOOP = "import os\nwhile os.getppid() == {parent}:\n    sum(range(100_000))"


@contextmanager
def load() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep processors busy, with these processes."""
    loop = [sys.executable, "-c", _LOOP.format(parent=os.getpid())]
    busy = [subprocess.Popen(loop) for _ in range(BUSY)]
    try:
        yield busy
    finally:
        for process in busy:
            process.kill()
            process.wait()


def passes(test: str) -> bool:
    """Run a test once; print its output unless it passes."""
    with tempfile.TemporaryDirectory(prefix=f"mcagent-repeat.{os.getpid()}.") as temporary:
        record = Path(temporary, "failures")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
            cwd=ROOT,
            env={**os.environ, failures.VARIABLE: str(record)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        failed = failures.of_repeat([test], run.returncode, record)
    if failed:
        print(run.stdout)
    return not failed


def repeat(test: str, times: int) -> int:
    """Run a test so many times and return how many times it passed."""
    passed = 0
    with load():
        for number in range(1, times + 1):
            start = time.monotonic()
            result = passes(test)
            passed += result
            seconds = time.monotonic() - start
            print(f"{number}/{times} {'passed' if result else 'FAILED'} ({seconds:.1f} s)", flush=True)
    return passed


def main() -> int:
    """Repeat the test that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", metavar="TEST", help="its node ID, or a file")
    parser.add_argument("--times", type=int, default=20, help="runs (20)")
    options = parser.parse_args()
    passed = repeat(options.test, options.times)
    print(f"{options.test}: passed {passed} of {options.times} times beside {BUSY} busy processes")
    return 0 if passed == options.times else 1


if __name__ == "__main__":
    raise SystemExit(main())
