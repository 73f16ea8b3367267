"""Run the tests whose result depends on the datapath on the kernel datapath, in test kernels: one per file.

These are the tests with the marker `datapath`, without those of `make test-failover`. As many files run at a time
as there are CPUs. A test that depends on timing and fails runs again in its file's kernel (`tests/flaky.py`).

    python tests/kernel/lane.py [--jobs N] [--limit SECONDS] [--out DIR] [PYTEST ARGUMENT...]

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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARKED = "datapath and not failover"
MODULES = ("openvswitch", "geneve", "vxlan", "vport_geneve", "vport_vxlan")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--datapath=system")
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
FLAKY = ROOT / ".cache" / "flaky"  # written through, for the records of tests/flaky.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one test file: counts by pytest's words, seconds, and where its output is."""

    file: str
    status: int
    passed: int
    failed: int
    flaky: int
    skipped: int
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


def counts(report: Path, status: int) -> tuple[int, int, int, int]:
    """Return passed, failed, flaky and skipped tests of a JUnit report and pytest's exit status.

    A report has the first run of a test only. If pytest succeeds nevertheless, its failed tests are flaky:
    they passed when they ran alone (`tests/flaky.py`). Without a report, one test counts as failed.
    """
    passed = failed = skipped = 0
    suites = ET.parse(report).getroot().iter("testsuite") if report.exists() else ()
    for suite in suites:
        total, bad = int(suite.get("tests", 0)), int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        left_out = int(suite.get("skipped", 0))
        passed, failed, skipped = passed + total - bad - left_out, failed + bad, skipped + left_out
    if status == 0 and report.exists():
        return passed, 0, failed, skipped
    return passed, failed if status == 5 else max(failed, 1), 0, skipped


def run_file(name: str, kernel: str, base: Path, limit: int, arguments: list[str]) -> Outcome:
    """Run one file's tests in a kernel of its own."""
    folder = base / name.removesuffix(".py").replace("/", "-")
    folder.mkdir(parents=True)
    started = time.monotonic()
    with (folder / "pytest.log").open("wb") as log:
        boot = [f"{HERE}/run-in-kernel", "-k", kernel, "-t", f"{limit}", "-m", "3072"]
        keep = ["-o", f"{folder}", "-o", f"{FLAKY}", "-l", f"{folder}/kernel.log"]
        environment = ["-e", "MCAGENT_LAB_FAILURES", "-e", "MCAGENT_TEST_RUN", "-e", "CI"]
        test = [
            sys.executable,
            *PYTEST,
            "-m",
            MARKED,
            f"--junitxml={folder}/junit.xml",
            *arguments,
            name,
        ]
        done = subprocess.run(
            [*boot, *keep, *environment, "--", *test],
            cwd=ROOT,
            env={**os.environ, "MCAGENT_LAB_FAILURES": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    passed, failed, flaky, skipped = counts(folder / "junit.xml", done.returncode)
    return Outcome(
        file=name,
        status=done.returncode,
        passed=passed,
        failed=failed,
        flaky=flaky,
        skipped=skipped,
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
        return subprocess.run(
            [sys.executable, *PYTEST, "-m", MARKED, *arguments], cwd=ROOT, check=False
        ).returncode
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
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        futures = [pool.submit(run_file, name, kernel, base, options.limit, rest) for name in files]
        for future in as_completed(futures):
            outcome = future.result()
            outcomes.append(outcome)
            word = "FAILED" if outcome.failed else "flaky" if outcome.flaky else "ok"
            print(
                f"{word:7}{outcome.file}: {outcome.passed} passed, {outcome.failed} failed, "
                f"{outcome.flaky} flaky, {outcome.skipped} skipped ({outcome.seconds:.0f} s)",
                flush=True,
            )
            if word == "ok":
                shutil.rmtree(outcome.folder)
    DURATIONS.parent.mkdir(exist_ok=True)
    DURATIONS.write_text(json.dumps(durations() | {o.file: round(o.seconds, 1) for o in outcomes}))
    if options.out is None and not any(base.iterdir()):
        base.rmdir()
    for outcome in outcomes:
        if outcome.folder.exists():
            print(f"--- {outcome.file}: all its output is in {outcome.folder}")
            print("\n".join((outcome.folder / "pytest.log").read_text(errors="replace").splitlines()[-60:]))
    words = ("passed", "failed", "flaky", "skipped")
    totals = {word: sum(getattr(outcome, word) for outcome in outcomes) for word in words}
    print("kernel lane: " + ", ".join(f"{number} {word}" for word, number in totals.items()))
    return 1 if totals["failed"] or not totals["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
