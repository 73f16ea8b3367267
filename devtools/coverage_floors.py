"""Which code unit and embedded tests run, by package, and whether it is as much as it was.

    python -m devtools.coverage_floors [--update]

Runs both suites under coverage.py (lines and branches, subprocesses included), prints a table of packages, and
fails where a package is below its floor (`tool.mcagent.coverage-floors` in pyproject.toml, percent). `--update`
raises the floors to what was measured; it never lowers one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
DATA = ROOT / ".cache/coverage"
SECTION = "[tool.mcagent.coverage-floors]"
SUITES = ("tests/unit", "tests/embedded")


def package_of(path: str) -> str:
    """Return the package of a file, such as `mcagent/core`; the top-level package for its own modules."""
    parts = Path(path).parts
    return "/".join(parts[: 2 if len(parts) > 2 else 1])


def by_package(files: Mapping[str, Any]) -> dict[str, float]:
    """Return the percentage of lines and branches that ran, by package, from the files of coverage.py's JSON."""
    totals: dict[str, tuple[int, int]] = {}
    for path, entry in files.items():
        summary = entry["summary"]
        covered = summary["covered_lines"] + summary["covered_branches"]
        all_of_it = summary["num_statements"] + summary["num_branches"]
        before = totals.get(package_of(path), (0, 0))
        totals[package_of(path)] = (before[0] + covered, before[1] + all_of_it)
    return {package: 100.0 * ran / total for package, (ran, total) in sorted(totals.items()) if total}


def raised(text: str, measured: Mapping[str, float]) -> str:
    """Return pyproject.toml with every floor at what was measured, rounded down, unless it is higher already."""
    floors = dict(read_floors(text))
    for package, percent in measured.items():
        floors[package] = max(floors.get(package, 0), int(percent))
    lines = "".join(f'"{package}" = {floor}\n' for package, floor in sorted(floors.items()))
    pattern = re.escape(SECTION) + r"([^\n]*)\n(?:\"[^\n]*\n)*"
    return re.sub(pattern, lambda match: f"{SECTION}{match[1]}\n{lines}", text)


def read_floors(text: str) -> Mapping[str, int]:
    """Return the floors of pyproject.toml, in percent by package."""
    floors: Mapping[str, int] = tomllib.loads(text)["tool"]["mcagent"]["coverage-floors"]
    return floors


def measure() -> dict[str, float]:
    """Return the percentage by package. Raises CalledProcessError if a test fails."""
    DATA.mkdir(parents=True, exist_ok=True)
    for old in DATA.glob("data*"):
        old.unlink()
    environment = {**os.environ, "COVERAGE_FILE": str(DATA / "data")}
    coverage = [sys.executable, "-m", "coverage"]
    processes = str(2 * len(os.sched_getaffinity(0)))
    tests = [*coverage, "run", "-m", "pytest", "-q", "-n", processes, *SUITES]
    subprocess.run(tests, cwd=ROOT, env=environment, check=True)
    report = DATA / "coverage.json"
    for command in (["combine", "-q"], ["json", "-q", "-o", str(report)]):
        subprocess.run([*coverage, *command], cwd=ROOT, env=environment, check=True)
    return by_package(json.loads(report.read_text())["files"])


def main() -> int:
    """Measure, print the table, and compare with the floors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="raise the floors to what was measured")
    options = parser.parse_args()
    measured = measure()
    floors = read_floors(PROJECT.read_text())
    print("| package | lines and branches | floor |\n|---|---|---|")
    for package, percent in measured.items():
        print(f"| `{package}` | {percent:.1f} % | {floors.get(package, 0)} % |")
    if options.update:
        PROJECT.write_text(raised(PROJECT.read_text(), measured))
        return 0
    low = [package for package, floor in floors.items() if measured.get(package, 0) < floor]
    for package in low:
        print(f"FAILED {package}: {measured.get(package, 0):.1f} % is below its floor of {floors[package]} %")
    return 1 if low else 0


if __name__ == "__main__":
    raise SystemExit(main())
