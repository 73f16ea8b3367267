"""Compares benchmarks of two revisions on one machine: python -m devtools.bench_compare REF [--new REVISION]

Both revisions are worktrees in a temporary directory and use this tree's virtual environment. Benchmarks of the
two alternate, and each round gives a ratio of its own, so that other load of the machine affects both alike. A
ratio is a cost: above 1, the new revision is worse. Exit status 1: a ratio is above the limit in three quarters of
the rounds.

A benchmark that a revision does not have is copied from this tree. Needs root, except for compile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devtools.errors import LabError

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.5  # ratio above which a benchmark is worse, if it is reproducible
DEFAULT = "compile,agent,idle,control,packet-cost,throughput,failover"
REPRODUCIBLE = 0.75  # the share of the rounds above the limit
MORE_IS_BETTER = ("tcp1", "tcp8", "udp", "rr", "connect")  # the last part of a number's name
Json = dict[str, Any]
Numbers = dict[str, float]  # by name, with dots between the parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A module of tests.bench with its arguments. `numbers` reads what it printed, or wrote to the file {json}."""

    module: str
    arguments: tuple[str, ...]
    numbers: Callable[[str], Numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One number of both revisions: medians, and the median, least and greatest ratio of the rounds."""

    name: str
    old: float
    new: float
    ratio: float
    least: float
    greatest: float
    worse: bool


# --- what benchmarks print ------------------------------------------------------------------------------


def compile_numbers(text: str) -> Numbers:
    """Read the lines of tests.bench.compile, which has no JSON."""
    numbers: Numbers = {}
    for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        scenario = part.partition(":")[0]
        for line, name in (("cold", "cold_s"), ("one change", "change_ms")):
            if value := re.search(rf"^  {line} +([\d.]+)", part, re.MULTILINE):
                numbers[f"{scenario}.{name}"] = float(value[1])
    return numbers


def selected_numbers(*names: str) -> Callable[[str], Numbers]:
    """Return a reader of JSON that takes members by their paths, such as `changes.-1.p50_ms`."""

    def read(text: str) -> Numbers:
        return {name: float(_member(json.loads(text), name)) for name in names}

    return read


def _member(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def all_numbers(text: str) -> Numbers:
    """Read all numbers of a benchmark whose JSON is one object."""
    return {name: float(value) for name, value in json.loads(text).items()}


def throughput_numbers(text: str) -> Numbers:
    """Read the medians of all paths, without ratios, upcalls and CPU shares."""
    return {
        f"{path}.{name}": float(result["median"][name])
        for paths in json.loads(text)["results"].values()
        for path, result in paths.items()
        for name in (*MORE_IS_BETTER, "p50")
    }


def failover_numbers(text: str) -> Numbers:
    """Read by fault the silences of TCP connections, the gaps of datagrams (seconds), and broken connections."""
    numbers: Numbers = {}
    for result in json.loads(text)["results"]:
        for fault, rounds in result["rounds"].items():
            silences = sorted(value for played in rounds for part in played["tcp"].values() for value in part)
            numbers[f"{fault}.tcp_p50"] = statistics.median(silences)
            numbers[f"{fault}.tcp_p99"] = silences[min(len(silences) - 1, len(silences) * 99 // 100)]
            numbers[f"{fault}.udp_gap"] = statistics.median(played["udp"] for played in rounds)
            numbers[f"{fault}.broken"] = sum(played["broken"] + played["after broken"] for played in rounds)
    return numbers


_THROUGHPUT = (
    *("--tunnels", "geneve", "--encrypted", "no", "--paths", "underlay,worker-worker,worker-worker+service"),
    *("--rounds", "2", "--seconds", "1", "--json", "{json}"),
)
_FAILOVER = (
    *("--rounds", "3", "--fault", "link cut", "--fault", "vswitchd killed", "--connections", "100"),
    *("--datagrams", "200", "--interval", "0.05", "--json", "{json}"),
)
_AGENT = selected_numbers(
    *("cold_after_imports_seconds", "cold_processor_seconds", "change_p50_ms", "change_p99_ms"),
    *("change_processor_ms", "resident_after_changes_mib"),
)
_CONTROL = selected_numbers(
    *(f"embedded.through.{name}" for name in ("export_p50_ms", "changes.-1.p50_ms", "changes.-1.p99_ms"))
)
BENCHMARKS = {
    "compile": Benchmark(module="compile", arguments=("500",), numbers=compile_numbers),
    "agent": Benchmark(module="agent", arguments=("--json", "--changes", "100"), numbers=_AGENT),
    "idle": Benchmark(module="idle", arguments=("--json",), numbers=all_numbers),
    "packet-cost": Benchmark(module="packet_cost", arguments=("--json",), numbers=all_numbers),
    "control": Benchmark(
        module="control",
        arguments=("--api", "embedded", "--only", "through", "--exports", "30", "--changes", "30", "--json"),
        numbers=_CONTROL,
    ),
    "throughput": Benchmark(module="throughput", arguments=_THROUGHPUT, numbers=throughput_numbers),
    "throughput-userspace": Benchmark(
        module="throughput", arguments=(*_THROUGHPUT, "--datapath", "netdev"), numbers=throughput_numbers
    ),
    "failover": Benchmark(
        module="failover", arguments=(*_FAILOVER, "--datapath", "netdev"), numbers=failover_numbers
    ),
    "failover-kernel": Benchmark(module="failover", arguments=_FAILOVER, numbers=failover_numbers),
}


# --- ratios ---------------------------------------------------------------------------------------------


def cost_ratio(name: str, old: float, new: float) -> float:
    """Return how many times worse the new value is; below 1 it is better."""
    worse, better = (old, new) if name.rpartition(".")[2] in MORE_IS_BETTER else (new, old)
    if better:
        return worse / better
    return math.inf if worse else 1.0


def compare(rounds: Sequence[tuple[Numbers, Numbers]], limit: float = LIMIT) -> list[Comparison]:
    """Compare the numbers that all rounds have; each round is (old, new)."""
    common = [name for name in rounds[0][0] if all(name in numbers for pair in rounds for numbers in pair)]
    comparisons = []
    for name in common:
        pairs = [(old[name], new[name]) for old, new in rounds]
        ratios = [cost_ratio(name, old, new) for old, new in pairs]
        above = sum(ratio > limit for ratio in ratios)
        comparisons.append(
            Comparison(
                name=name,
                old=statistics.median(old for old, _ in pairs),
                new=statistics.median(new for _, new in pairs),
                ratio=statistics.median(ratios),
                least=min(ratios),
                greatest=max(ratios),
                worse=above >= REPRODUCIBLE * len(ratios),
            )
        )
    return comparisons


def table(results: Mapping[str, Sequence[Comparison]]) -> Iterator[str]:
    """Yield a Markdown table of all benchmarks."""
    yield "| benchmark | number | old | new | ratio: median (least to greatest) |"
    yield "|---|---|---|---|---|"
    for benchmark, comparisons in results.items():
        for result in comparisons:
            spread = f"{result.ratio:.2f} ({result.least:.2f} to {result.greatest:.2f})"
            mark = " **worse**" if result.worse else ""
            yield f"| {benchmark} | {result.name} | {result.old:.4g} | {result.new:.4g} | {spread}{mark} |"


# --- running --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def worktree(revision: str, directory: Path) -> Iterator[Path]:
    """Check a revision out, with this tree's virtual environment. Raises CalledProcessError."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(directory), revision], check=True)
    try:
        (directory / ".venv").symlink_to(Path(sys.prefix))
        for benchmark in BENCHMARKS.values():
            file = Path("tests/bench", f"{benchmark.module}.py")
            if not (directory / file).exists():
                shutil.copy(ROOT / file, directory / file)
        yield directory
    finally:
        subprocess.run([*git, "remove", "--force", str(directory)], check=True)


def run(benchmark: Benchmark, tree: Path, output: Path) -> Numbers:
    """Run a benchmark of a revision. Raises LabError if it has no result."""
    output.mkdir(parents=True)
    file = output / "numbers.json"
    arguments = [argument.format(json=file) for argument in benchmark.arguments]
    command = [sys.executable, "-m", f"tests.bench.{benchmark.module}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    # Its errors are shown as they come; a benchmark that judges itself (compile) may fail and have numbers.
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    try:
        return benchmark.numbers(file.read_text() if file.exists() else done.stdout)
    except (ValueError, LookupError) as error:
        reason = f"{' '.join(command)}: exit status {done.returncode}, no numbers ({error!r})"
        raise LabError(reason) from None


def alternate(
    results: Mapping[str, list[tuple[Numbers, Numbers]]], trees: tuple[Path, Path], rounds: int, output: Path
) -> frozenset[str]:
    """Run the benchmarks round by round, each of both revisions, and add the numbers to their results.

    The order of the revisions changes with each round. A benchmark without a result is not run again. Returns the
    names of those benchmarks.
    """
    failed: set[str] = set()
    for number in range(rounds):
        for name, pairs in results.items():
            if name in failed:
                continue
            pair: list[Numbers] = [{}, {}]
            try:
                for place in (0, 1) if number % 2 == 0 else (1, 0):
                    label = f"round {number + 1} of {rounds}: {name}, {('old', 'new')[place]}"
                    print(f"{label} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
                    place_output = output / f"{name}-{number}-{place}"
                    pair[place] = run(BENCHMARKS[name], trees[place], place_output)
            except LabError as error:
                print(error, file=sys.stderr)
                failed.add(name)
            else:
                pairs.append((pair[0], pair[1]))
    return frozenset(failed)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="REF", help="the revision to compare with")
    parser.add_argument("--new", default="HEAD", metavar="REVISION", help="[%(default)s]")
    parser.add_argument("--only", default=DEFAULT, metavar="NAME,...")
    parser.add_argument("--rounds", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--limit", type=float, default=LIMIT, help="a worse ratio fails [%(default)s]")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args(argv)
    names = args.only.split(",")
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    before = os.getloadavg()[0]
    rounds: dict[str, list[tuple[Numbers, Numbers]]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcagent-compare.")))
        old = stack.enter_context(worktree(args.old, directory / "old"))
        new = stack.enter_context(worktree(args.new, directory / "new"))
        failed = alternate(rounds, (old, new), args.rounds, directory / "output")
    results = {name: compare(pairs, args.limit) for name, pairs in rounds.items() if pairs}
    worse = [f"{name}: {number.name}" for name, numbers in results.items() for number in numbers if number.worse]
    about: Json = {"old": args.old, "new": args.new, "limit": args.limit}
    about["rounds"] = {name: len(pairs) for name, pairs in rounds.items()}
    about["load"] = [before, os.getloadavg()[0]]
    if args.output == "json":
        shown = {name: [asdict(number) for number in numbers] for name, numbers in results.items()}
        print(json.dumps({"about": about, "results": shown, "worse": worse}, indent=1))
    else:
        print(", ".join(f"{key} {value}" for key, value in about.items()), *table(results), sep="\n")
    for name in worse:
        print(f"worse than {args.limit:g} times: {name}", file=sys.stderr)
    return 1 if worse or failed else 0


if __name__ == "__main__":
    sys.exit(main())
