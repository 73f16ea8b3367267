"""Run the tests whose result depends on the datapath on the kernel datapath, in test kernels: one per file.

These are the tests with the marker `datapath`, without those of `make test-failover`. As many files run at a time
as there are CPUs. Failed tests run again, in a kernel of their own, when all files are done (`tests/repeats.py`).

    python -m tests.kernel.lane [--jobs N] [--limit SECONDS] [--out DIR] [PYTEST ARGUMENT...]

Where the machine's own kernel has openvswitch, geneve and vxlan, the tests run on it directly. Otherwise each test
file gets a User Mode Linux kernel of its own (`run-in-kernel`), which starts in under a second. Per file a folder
keeps pytest's output, the kernel's log, and what failed tests left (flows, logs, captures); folders of files that
passed are removed. Exit status: 0 passed, 1 failed, 3 no test kernel (nothing ran).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests import failures, quarantine, repeats, suites
from tests.failures import Failure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARKED = "datapath and not failover"
MODULES = ("openvswitch", "geneve", "vxlan", "vport_geneve", "vport_vxlan")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--datapath=system")
FAILURES = "failures"
REPORT = "junit.xml"
NO_TESTS = 5  # pytest's exit status
DURATIONS = ROOT / ".cache" / "kernel-lane-seconds.json"
LONGEST = {  # seconds, measured on a busy machine: a fresh clone has no DURATIONS, and these are not to begin last
    "tests/lab/test_matrix.py": 590,
    "tests/lab/test_encryption.py": 495,
    "tests/lab/test_failover_short.py": 494,
    "tests/lab/test_failover_state.py": 438,
    "tests/lab/test_bfd_adapts.py": 317,
    "tests/lab/test_faults.py": 309,
    "tests/lab/test_node_encryption.py": 286,
    "tests/lab/test_wireguard_devices.py": 225,
    "tests/lab/test_dead_endpoints.py": 225,
    "tests/lab/test_policies.py": 223,
    "tests/lab/test_antrea_gateway.py": 209,
}
NAME = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one test file: counts by pytest's words, what failed, seconds, and where its output is."""

    file: str
    passed: int
    skipped: int
    failures: tuple[Failure, ...]
    seconds: float
    folder: Path


def host_kernel_has_modules() -> bool:
    """Tell whether this machine's own kernel can run the tests (modules there, or loadable by root)."""
    if os.geteuid() != 0:
        return False
    if shutil.which("modprobe"):
        return subprocess.run(["modprobe", "-a", *MODULES], capture_output=True, check=False).returncode == 0
    return all(Path("/sys/module", name).exists() for name in MODULES)


def find_kernel() -> str | None:
    """Return the directory of the test kernel, or None."""
    found = subprocess.run([HERE / "find-kernel"], capture_output=True, text=True, check=False)
    if found.returncode:
        sys.stderr.write(found.stderr)
        return None
    return found.stdout.strip()


def test_files(arguments: list[str]) -> list[str]:
    """Return the files with tests for this lane, those that took longest first."""
    listed = subprocess.run(
        [sys.executable, *PYTEST, "--collect-only", "-m", MARKED, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode not in (0, 5):
        sys.stderr.write(listed.stdout + listed.stderr)
        raise SystemExit(1)
    files = {line.split("::")[0] for line in listed.stdout.splitlines() if "::" in line}
    seconds = LONGEST | durations()
    return sorted(files, key=lambda name: (-seconds.get(name, 60.0 if "/lab/" in name else 10.0), name))


def durations() -> dict[str, float]:
    """Return how many seconds each file took when it last ran here."""
    return dict(json.loads(DURATIONS.read_text())) if DURATIONS.exists() else {}


def counts(report: Path) -> tuple[int, int]:
    """Return how many tests passed and were skipped, of a JUnit report; none if it is missing."""
    passed = skipped = 0
    for suite in ET.parse(report).getroot().iter("testsuite") if report.exists() else ():
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        left_out = int(suite.get("skipped", 0))
        passed, skipped = passed + int(suite.get("tests", 0)) - failed - left_out, skipped + left_out
    return passed, skipped


def failures_of(name: str, status: int, folder: Path) -> tuple[Failure, ...]:
    """Return what failed in a file: the file itself if the kernel or pytest ended before it was done."""
    if (folder / REPORT).exists() or status == 1:
        failed = failures.of_run(0 if status == NO_TESTS else status, folder / FAILURES)
        if failed is not None:
            return failed
    log = folder / "pytest.log"
    last = log.read_text(errors="replace").splitlines()[-60:] if log.exists() else []
    return (Failure(test=name, output="\n".join((f"ended with status {status}", *last))),)


def run_file(
    name: str, tests: Sequence[str], *, kernel: str, folder: Path, limit: int, arguments: Sequence[str]
) -> Outcome:
    """Run one file's tests (`tests`: its name, or node IDs) in a kernel of its own."""
    folder.mkdir(parents=True)
    started = time.monotonic()
    with (folder / "pytest.log").open("wb") as log:
        boot = [f"{HERE}/run-in-kernel", "-k", kernel, "-t", f"{limit}", "-m", "3072"]
        keep = ["-o", f"{folder}", "-l", f"{folder}/kernel.log"]
        environment = ["-e", "MCAGENT_LAB_FAILURES", "-e", failures.VARIABLE, "-e", "CI"]
        test = [sys.executable, *PYTEST, "-m", MARKED, f"--junitxml={folder / REPORT}", *arguments, *tests]
        status = subprocess.run(
            [*boot, *keep, *environment, "--", *test],
            cwd=ROOT,
            env={
                **os.environ,
                "MCAGENT_LAB_FAILURES": str(folder),
                failures.VARIABLE: str(folder / FAILURES),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    passed, skipped = counts(folder / REPORT)
    return Outcome(
        file=name,
        passed=passed,
        skipped=skipped,
        failures=failures_of(name, status, folder),
        seconds=time.monotonic() - started,
        folder=folder,
    )


def main() -> int:
    """Run the lane; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="kernels at a time")
    parser.add_argument("--limit", type=int, default=900, help="seconds for one file")
    parser.add_argument("--optional", action="store_true", help="say loudly what did not run, and pass")
    parser.add_argument("--out", type=Path, help="where folders of failed files stay (default: temporary)")
    options, arguments = parser.parse_known_args()
    if host_kernel_has_modules():
        print("kernel lane: this machine's kernel has openvswitch: running on it directly", flush=True)
        suite = suites.Suite(
            name=NAME,
            title="kernel lane",
            select=("-m", MARKED, *arguments),
            options=("--datapath=system",),
        )
        return 0 if suites.run([suite], repeats.folder()) else 1
    kernel = find_kernel()
    if kernel is None and not options.optional:
        return 3
    files = test_files(arguments)
    if kernel is None:
        print("*** NOT RUN on the kernel datapath, for want of a kernel that has openvswitch:", flush=True)
        print("".join(f"***   {name}\n" for name in files) + "*** `make test-kernel` builds one.", flush=True)
        return 0
    base = options.out or Path(tempfile.mkdtemp(prefix="mcagent-kernel-lane."))
    base.mkdir(parents=True, exist_ok=True)
    print(f"kernel lane: {len(files)} test files, {options.jobs} test kernels at a time", flush=True)
    rest = [argument for argument in arguments if not Path(ROOT, argument.split("::")[0]).exists()]
    rest += quarantine.options()
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:

        def run_first(name: str) -> Outcome:
            return run_file(
                name,
                [name],
                kernel=kernel,
                folder=base / _folder_name(name),
                limit=options.limit,
                arguments=rest,
            )

        for future in as_completed([pool.submit(run_first, name) for name in files]):
            outcome = future.result()
            outcomes.append(outcome)
            print(
                f"{'FAILED' if outcome.failures else 'ok':7}{outcome.file}: {outcome.passed} passed, "
                f"{len(outcome.failures)} failed, {outcome.skipped} skipped ({outcome.seconds:.0f} s)",
                flush=True,
            )
            if outcome.failures:
                print(f"--- {outcome.file}: all its output is in {outcome.folder}")
                print("\n".join((outcome.folder / "pytest.log").read_text(errors="replace").splitlines()[-60:]))
            else:
                shutil.rmtree(outcome.folder)
    DURATIONS.parent.mkdir(exist_ok=True)
    DURATIONS.write_text(json.dumps(durations() | {o.file: round(o.seconds, 1) for o in outcomes}))

    def run_again(_suite: str, tests: Sequence[str]) -> tuple[Failure, ...]:
        name = tests[0].partition("::")[0]
        folder = Path(tempfile.mkdtemp(prefix=f"{_folder_name(name)}.", dir=base)) / "again"
        again = run_file(name, tests, kernel=kernel, folder=folder, limit=options.limit, arguments=())
        if not again.failures:
            shutil.rmtree(folder.parent)
        return again.failures

    failed = {NAME: [failure for outcome in outcomes for failure in outcome.failures]}
    passes = repeats.report(repeats.repeat(failed, run_again), repeats.folder())
    if options.out is None and not any(base.iterdir()):
        base.rmdir()
    passed, skipped = (sum(getattr(outcome, word) for outcome in outcomes) for word in ("passed", "skipped"))
    print(f"kernel lane: {passed} passed at first, {len(failed[NAME])} failed at first, {skipped} skipped")
    return 0 if passes and passed else 1


def _folder_name(file: str) -> str:
    return file.removesuffix(".py").replace("/", "-")


if __name__ == "__main__":
    sys.exit(main())
