"""Each program of tests/bench runs to its end with its smallest workload: `make bench` cannot break unnoticed.

What they measure is not asserted. `throughput` and the rest that need minutes or a test kernel have their own runs
(UNTESTED has the reason of each).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 300  # seconds: ends a benchmark that hangs
SMALLEST = {
    "agent": ("--clusters", "20", "--changes", "3"),
    "compile": (),
    "connection": ("--api", "embedded", "--exports", "2"),
    "control": (
        *("--api", "embedded", "--clusters", "3", "--services", "2"),
        *("--exports", "2", "--changes", "2", "--members", "2"),
    ),
    "dead_cluster": ("--trials", "1"),
    "idle": ("--datapath", "netdev", "--gateways", "1", "--workers", "1", "--seconds", "2"),
    "imported_services": (
        *("--clusters", "5", "--services", "3", "--exporters", "2"),
        *("--unrelated", "2", "--changes", "2"),
    ),
    "merge": ("--clusters", "3", "--endpoints", "2"),
    "netlink": ("--routes", "50"),
    "ovs": ("--tunnels", "5", "--flows", "50"),
    "packet_cost": ("--datapath", "netdev", "--seconds", "1", "--rounds", "1"),
    "policies": (),
    "policy_churn": ("--seconds", "2"),
    "rotation": ("--rounds", "1", "--only", "userspace"),
    "services": ("--api", "embedded", "--clusters", "3", "--services", "2", "--changes", "2"),
}
UNTESTED = {
    "antrea": "tests/antrea and tests/lab/test_antrea_failover.py use its parts; it needs Antrea's controllers",
    "bfd_paths": "takes minutes for each path",
    "failover": "tests/lab/test_failover_short.py runs it",
    "same_cidrs": "the same runs as throughput",
    "scale_out": "the same runs as throughput",
    "throughput": "needs a test kernel, or a minute for each path",
    "wireguard": "needs the WireGuard of a kernel",
    "in_kernel": "no benchmark: runs one in a test kernel",
}


def test_each_benchmark_runs_or_has_a_reason() -> None:
    """A new benchmark is in one of the two tables."""
    programs = {path.stem for path in (ROOT / "tests/bench").glob("*.py")} - {"__init__"}

    assert programs == SMALLEST.keys() | UNTESTED.keys()


@pytest.mark.timing
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs(name: str) -> None:
    """It ends without an error and prints what it measured."""
    command = [sys.executable, "-m", f"tests.bench.{name}", *SMALLEST[name]]

    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)

    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip()
