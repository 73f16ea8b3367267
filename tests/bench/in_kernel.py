"""Runs a benchmark once more, in a test kernel, where this machine's own kernel has no openvswitch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_in_kernel(
    module: str,
    argv: Sequence[str],
    *,
    files: Iterable[Path | None] = (),
    cpus: int = 1,
    memory: int = 3072,
    limit: int = 3600,
) -> int:
    """Run `python -m tests.bench.MODULE ARGV` in a test kernel; return its exit status.

    The directories of `files` are written through. `memory`: MiB. `limit`: seconds after which the kernel ends.
    """
    folders = {file.resolve().parent for file in files if file}
    command: list[str | Path] = [ROOT / "tests/kernel/run-in-kernel", "-m", str(memory), "-t", str(limit)]
    command += ["-c", str(cpus)] + (["-p", "none"] if cpus > 1 else [])
    for folder in folders or {Path(tempfile.gettempdir()) / f"mcagent-bench.{os.getpid()}"}:
        command += ["-o", folder]
    print(f"this machine's kernel has no openvswitch: in a test kernel, {cpus} CPU", file=sys.stderr)
    command += ["--", sys.executable, "-m", f"tests.bench.{module}", *argv]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
