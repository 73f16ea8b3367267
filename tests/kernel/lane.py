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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from devtools.processes import mark_children
from tests import failures, quarantine, repeats, suites
from tests.failures import Counts, Failure
from tests.results import Budget
from tests.suites import Part, Suite

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARKED = "datapath and not failover"
MODULES = ("openvswitch", "geneve", "vxlan", "vport_geneve", "vport_vxlan")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--datapath=system")
FAILURES = "failures"
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
TITLE = "kernel datapath"
_CPUS = len(os.sched_getaffinity(0))
LIMIT = 900  # seconds for one file
NO_KERNEL = "no kernel on this machine has openvswitch (make test-kernel builds one)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """What became of a test file: pytest's exit status, counts, failures, seconds, and where its output is."""

    file: str
    status: int
    counts: Counts
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
    search = subprocess.run([HERE / "find-kernel"], capture_output=True, text=True, check=False)
    if search.returncode:
        sys.stderr.write(search.stderr)
        return None
    return search.stdout.strip()


def collect(arguments: Sequence[str]) -> list[str] | None:
    """Return the node IDs of the tests for this lane; None if pytest fails."""
    listed = subprocess.run(
        [sys.executable, *PYTEST, "--collect-only", "-m", MARKED, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode not in (0, NO_TESTS):
        sys.stderr.write(listed.stdout + listed.stderr)
        return None
    return [line for line in listed.stdout.splitlines() if "::" in line]


def in_order(tests: Sequence[str]) -> list[str]:
    """Return the files of tests, those that took longest first."""
    seconds = LONGEST | durations()
    files = {test.partition("::")[0] for test in tests}
    return sorted(files, key=lambda name: (-seconds.get(name, 60.0 if "/lab/" in name else 10.0), name))


def durations() -> dict[str, float]:
    """Return how many seconds each file took when it last ran here."""
    return dict(json.loads(DURATIONS.read_text())) if DURATIONS.exists() else {}


def failures_of(name: str, status: int, folder: Path) -> tuple[Failure, ...]:
    """Return what failed in a file: the file itself if the kernel or pytest ended before it was done."""
    if failures.read_counts(folder / FAILURES) is not None or status == 1:
        failed = failures.of_run(0 if status == NO_TESTS else status, folder / FAILURES)
        if failed is not None:
            return failed
    log = folder / "pytest.log"
    last = log.read_text(errors="replace").splitlines()[-60:] if log.exists() else []
    return (Failure(test=name, output="\n".join((f"ended with status {status}", *last))),)


def run_file(
    name: str, tests: Sequence[str], *, kernel: str, folder: Path, limit: int, arguments: Sequence[str]
) -> FileResult:
    """Run one file's tests (`tests`: its name, or node IDs) in a kernel of its own."""
    folder.mkdir(parents=True)
    started = time.monotonic()
    with (folder / "pytest.log").open("wb") as log:
        boot = [f"{HERE}/run-in-kernel", "-k", kernel, "-t", f"{limit}", "-m", "3072"]
        keep = ["-o", f"{folder}", "-l", f"{folder}/kernel.log"]
        environment = ["-e", "MCAGENT_LAB_FAILURES", "-e", failures.VARIABLE, "-e", "CI"]
        test = [sys.executable, *PYTEST, "-m", MARKED, *arguments, *tests]
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
    return FileResult(
        file=name,
        status=status,
        counts=failures.read_counts(folder / FAILURES) or Counts(),
        failures=failures_of(name, status, folder),
        seconds=time.monotonic() - started,
        folder=folder,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The lane in test kernels, as a part of the tests. Folders of files that failed stay in `base`."""

    base: Path
    arguments: Sequence[str] = ()
    jobs: int = _CPUS
    limit: int = LIMIT
    name: str = NAME
    title: str = TITLE

    def prepare(self) -> str:
        """Build a kernel if there is none; where that fails, the tests are skipped with a reason."""
        subprocess.run([HERE / "find-kernel", "--build"], stdout=subprocess.DEVNULL, check=False)
        return ""

    def run(self, record: Path) -> suites.Outcome:
        """Run all files, several at a time."""
        mark_children()  # kernels outlive a lane that is killed
        kernel, tests = find_kernel(), collect(self.arguments)
        if tests is None:
            return suites.Outcome(obstacle="pytest could not collect its tests")
        if kernel is None:
            return suites.Outcome(counts=Counts(skipped={NO_KERNEL: len(tests)}))
        self.base.mkdir(parents=True, exist_ok=True)
        files = in_order(tests)
        print(f"kernel lane: {len(files)} test files, {self.jobs} test kernels at a time", flush=True)
        options = [argument for argument in self.arguments if not Path(ROOT, argument.split("::")[0]).exists()]
        options += quarantine.options()
        outcomes: list[FileResult] = []
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:

            def run_first(name: str) -> FileResult:
                folder = self.base / _folder_name(name)
                return run_file(name, [name], kernel=kernel, folder=folder, limit=self.limit, arguments=options)

            for future in as_completed([pool.submit(run_first, name) for name in files]):
                outcomes.append(future.result())
                _print(outcomes[-1])
                if not outcomes[-1].failures:
                    shutil.rmtree(outcomes[-1].folder)
        DURATIONS.parent.mkdir(exist_ok=True)
        DURATIONS.write_text(json.dumps(durations() | {o.file: round(o.seconds, 1) for o in outcomes}))
        if not any(self.base.iterdir()):
            self.base.rmdir()
        counts = failures.total(outcome.counts for outcome in outcomes)
        return suites.Outcome(
            counts=counts,
            failures=tuple(failure for outcome in outcomes for failure in outcome.failures),
            obstacle="" if counts.passed else "no test passed",
        )

    def again(self, tests: Sequence[str], record: Path) -> tuple[Failure, ...]:
        """Run tests of one file in a kernel of their own; return those that do not pass."""
        kernel, name = find_kernel(), tests[0].partition("::")[0]
        assert kernel is not None  # there was one before
        self.base.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{_folder_name(name)}.", dir=self.base)) / "again"
        outcome = run_file(name, tests, kernel=kernel, folder=folder, limit=self.limit, arguments=())
        failed = failures.of_repeat(tests, outcome.status, folder / FAILURES)
        if not failed:
            shutil.rmtree(folder.parent)
        return failed


def _print(outcome: FileResult) -> None:
    passed, failed = len(outcome.counts.passed), len(outcome.failures)
    skipped = sum(outcome.counts.skipped.values())
    print(
        f"{'FAILED' if failed else 'ok':7}{outcome.file}: {passed} passed, {failed} failed, {skipped} skipped "
        f"({outcome.seconds:.0f} s)",
        flush=True,
    )
    if outcome.failures:
        print(f"--- {outcome.file}: all its output is in {outcome.folder}")
        print("\n".join((outcome.folder / "pytest.log").read_text(errors="replace").splitlines()[-60:]))


def part(arguments: Sequence[str] = (), *, jobs: int = _CPUS, limit: int = LIMIT, out: Path | None = None) -> Part:
    """Return the lane as a part of the tests: on this machine's kernel if that has the modules."""
    if host_kernel_has_modules():
        print("kernel lane: this machine's kernel has openvswitch: running on it directly", flush=True)
        return Suite(name=NAME, title=TITLE, select=("-m", MARKED, *arguments), options=("--datapath=system",))
    base = out or ROOT / ".cache/kernel-lane" / repeats.folder().name
    return Kernels(base=base, arguments=tuple(arguments), jobs=jobs, limit=limit)


def main() -> int:
    """Run the lane; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=_CPUS, help="kernels at a time")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds for one file")
    parser.add_argument(
        "--out", type=Path, help="where folders of failed files stay (default: in .cache/kernel-lane)"
    )
    options, arguments = parser.parse_known_args()
    if not host_kernel_has_modules() and find_kernel() is None:
        return 3
    lane = part(arguments, jobs=options.jobs, limit=options.limit, out=options.out)
    return 0 if suites.run([lane], repeats.folder(), Budget()).passes else 1


def _folder_name(file: str) -> str:
    return file.removesuffix(".py").replace("/", "-")


if __name__ == "__main__":
    sys.exit(main())
