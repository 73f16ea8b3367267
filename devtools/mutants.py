"""Mutation testing: change the code by a little, and see whether a unit test notices.

    python -m devtools.mutants [--budget 20m] [--since REV] [--package NAME]... [--seed N] [--json FILE]
    python -m devtools.mutants --sample 150 [--package NAME]... [--seed N] [--json FILE]

mutmut makes the mutants of the packages below and runs, for each, the unit tests that call the changed function.
There are thousands, so this takes a random sample of each package, in batches, until the budget is used
up. With `--since` only files that changed since the revision count. Results are kept in `mutants/`, and a mutant
that was tried is not tried again while its function is the same.

With `--sample` each package is measured by itself, on a sample that depends on the seed and the code only, and
with the tests of TESTS only. Mutants and the map of tests then need seconds rather than minutes, so a package can
be measured again after each new test. The score is a lower bound: other tests may kill more.

Owns the sample, the list of equivalent mutants (tests/mutants/equivalent.txt: mutants that no test can notice,
each with the reason) and the table. Must not know how mutants are made or run: that is mutmut's (`tool.mutmut` in
pyproject.toml).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "mutants"
EQUIVALENT = ROOT / "tests/mutants/equivalent.txt"
SEPARATOR = " || "  # in the list of equivalent mutants; types have " | "
BATCH = 120
TARGETS = {
    "mcagent/core/remote_clusters": 95,
    "mcagent/core/addresses": 95,
    "mcagent/core": 85,
    "flows": 85,
    "mcagent/controller/leader/ledger": 95,
    "mcagent/controller/leader": 85,
    "mcagent/controller/admission": 95,
    "mcagent/controller/contract": 85,
    "mcagent/model/parsing": 85,
    "mcagent/kube/sources": 85,
    "mcagent/kube": 85,
    "mcagent/trace": 85,
    "mcagent/controller/machinery": 85,
    "mcagent/controller/member": 85,
    "mcagent/dataplane": 85,
}
"""Percent of the mutants that must be killed, by package. A mutant belongs to the first one that has its file."""
TESTS = {
    "mcagent/core/remote_clusters": "conflicts implementation remote_cluster_problems",
    "mcagent/core/addresses": "address_rules ownership remote_cluster_problems underlay",
    "mcagent/core": (
        "address_rules antrea_verdicts bad_objects cleanup compile compile_failover conflicts contention"
        " control_loop_apply core_* dead_gateways detection* diff draining enclosed_networks encryption"
        " ended_connections endpoints_at_nodes engine export_addresses failover gateways_view granted health"
        " identities identity_shares implementation imported_services liveness loop mapped_sources"
        " node_encryption observe own_endpoints ownership path_down pod_prefixes pod_sources policy_*"
        " reachability remote_cluster_problems resource_counts server_addresses silence silent_nodes snapshot"
        " snapshot_store topology tunnel_guard tunnel_probes underlay usable_endpoints what_if wireguard_*"
    ),
    "flows": (
        "compile compile_failover flows_* mid_connection path_down pipeline_* pod_prefixes policy_rules probes"
        " reachability simulate_* trace_simulated tunnel_probes underlay what_if"
    ),
    "mcagent/controller/leader/ledger": "contested_gateways disputes leader_ledger leader_members member_bounds",
    "mcagent/controller/leader": (
        "bad_objects contested_gateways control_clusters disputes duplicate_cluster_id export_ranges*"
        " foreign_conditions import_reports kubernetes_policies leader_* member_bounds merge_properties pod_ranges"
        " policy_replication second_controller topology"
    ),
    "mcagent/controller/admission": "admission admission_*",
    "mcagent/controller/contract": "antrea_before_2_7 contract_* exported_metadata leader_ledger leader_merge",
    "mcagent/model/parsing": "api_objects granted labels links parse parse_* policy_parsing",
    "mcagent/kube/sources": (
        "apiserver_source directory* informer_turns lister source_* watch ../embedded/informer*"
        " ../embedded/reading_once"
    ),
    "mcagent/kube": (
        "agents_asked api_requests controller_cache credentials event_recorder linear_time server_addresses"
        " serving source_files topology watch wireguard_view ../embedded/kube_events"
    ),
    "mcagent/trace": "simulate_* trace trace_* what_if* ../embedded/trace_*",
    "mcagent/controller/machinery": (
        "controller_* control_clusters copied_cluster dropped_values foreign_conditions member_membership"
        " member_tokens metrics_page policy_writes resolve second_controller workqueue"
        " ../embedded/engine ../embedded/leader_connection ../embedded/lease ../embedded/token_renewal"
        " ../embedded/writes"
    ),
    "mcagent/controller/member": (
        "cleanup control_clusters copied_cluster duplicate_cluster_id export_ranges* foreign_conditions health"
        " import_reports kubernetes_policies member_* pod_ranges policy_consent policy_replication policy_writes"
        " topology usable_endpoints"
    ),
    "mcagent/dataplane": "doctor_cni nft_text openflow_refusals ovsdb_json wireguard_peers wireguard_sessions",
}
"""The tests that a sample of a package is tried with, without `.py` and `test_`; relative to tests/unit."""
MODULES = {"mcagent/dataplane": "nft/apply nft/observe openflow/apply ovsdb/json_stream wireguard/peers"}
"""Of a package only the modules that unit tests cover: contract tests have the others, with real components."""
# Exit codes of mutmut's workers (mutmut/stats.py). Without a test that calls the function, a mutant survives.
SURVIVED, NO_TESTS, SKIPPED, UNKNOWN, STOPPED = {0}, {5, 33}, {34}, {None, 2}, {-24, 24, 36, 152, 255}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A mutant: mutmut's name for it, its file below the project, and how its tests ended (None: not tried)."""

    name: str
    path: str
    exit_code: int | None

    @property
    def package(self) -> str:
        """The package that counts it."""
        return next(package for package in TARGETS if belongs(self.path, package))

    @property
    def tried(self) -> bool:
        """Whether its tests ran, or are known to be none."""
        return self.exit_code not in UNKNOWN | SKIPPED

    @property
    def alive(self) -> bool:
        """Whether no test noticed it."""
        return self.exit_code in SURVIVED | NO_TESTS


def belongs(path: str, package: str) -> bool:
    """Tell whether a file is the module `package`, or in the package."""
    return path == f"{package}.py" or path.startswith(f"{package}/")


def read(directory: Path = MUTANTS) -> list[Mutant]:
    """Return all mutants there are, as mutmut keeps them in one `.meta` file for each module."""
    return [
        Mutant(name=name, path=str(meta.relative_to(directory)).removesuffix(".meta"), exit_code=exit_code)
        for meta in sorted(directory.rglob("*.py.meta"))
        for name, exit_code in json.loads(meta.read_text())["exit_code_by_key"].items()
    ]


def sample(mutants: Iterable[Mutant], chance: random.Random) -> list[Mutant]:
    """Return the mutants that were not tried in a random order that gives every package the same share."""
    by_package: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        if not mutant.tried and mutant.exit_code not in SKIPPED:
            by_package.setdefault(mutant.package, []).append(mutant)
    places = []
    for group in by_package.values():
        chance.shuffle(group)
        places += [(number, mutant.name, mutant) for number, mutant in enumerate(group)]
    return [mutant for *_, mutant in sorted(places, key=lambda place: place[:2])]


def fixed_sample(mutants: Iterable[Mutant], size: int, seed: int) -> list[Mutant]:
    """Return `size` mutants, or all if there are fewer: the same ones for the same seed and mutants."""
    ordered = sorted(mutants, key=lambda mutant: mutant.name)
    return random.Random(seed).sample(ordered, min(size, len(ordered)))


def equivalent(text: str) -> dict[str, str]:
    """Return the listed mutants that no test can notice, each with the reason.

    A line is `MODULE.FUNCTION || REMOVED LINE || ADDED LINE || REASON`: an entry survives changes elsewhere
    in the function, where mutmut's numbers do not. A line that begins with # is a comment. Raises ValueError that
    names a line without a reason.
    """
    entries: dict[str, str] = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        *parts, reason = (part.strip() for part in line.split(SEPARATOR))
        if len(parts) != 3 or not reason:
            raise ValueError(f"{EQUIVALENT.name}: {line!r}: must be FUNCTION || REMOVED || ADDED || REASON")
        entries[SEPARATOR.join(parts)] = reason
    return entries


def identity(name: str, diff: str) -> str:
    """Return how the list names a mutant: its function, and the lines that its diff removes and adds."""
    function = re.sub(r"(?<=\.)x_(?=\w+$)", "", name.partition("__mutmut_")[0].replace("xǁ", "").replace("ǁ", "."))
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "#"))]
    changes = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return SEPARATOR.join((function, *changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What became of a package's mutants. `alive` are those that no test noticed and no reason excuses."""

    package: str
    made: int
    tried: int
    equivalent: int
    alive: tuple[str, ...]

    @property
    def percent(self) -> float | None:
        """The share of killed mutants among those that a test could notice; None if there was none."""
        counted = self.tried - self.equivalent
        return 100.0 * (counted - len(self.alive)) / counted if counted else None


def scores(mutants: Iterable[Mutant], excused: Mapping[str, str], diffs: Mapping[str, str]) -> list[Score]:
    """Return the score of each package. `diffs`: of the survivors, by name."""
    by_package: dict[str, list[Mutant]] = {package: [] for package in TARGETS}
    for mutant in mutants:
        by_package[mutant.package].append(mutant)
    result = []
    for package, group in by_package.items():
        survivors = [mutant.name for mutant in group if mutant.tried and mutant.alive]
        alive = [name for name in survivors if identity(name, diffs[name]) not in excused]
        result.append(
            Score(
                package=package,
                made=len(group),
                tried=sum(mutant.tried for mutant in group),
                equivalent=len(survivors) - len(alive),
                alive=tuple(alive),
            )
        )
    return result


def table(results: Iterable[Score]) -> str:
    """Return the scores as a Markdown table, as CONTRIBUTING.md has it."""
    lines = ["| package | mutants | tried | equivalent | killed | target |", "|---|---|---|---|---|---|"]
    for score in results:
        killed = "-" if score.percent is None else f"{score.percent:.1f} %"
        cells = (score.made, score.tried, score.equivalent, killed, f"{TARGETS[score.package]} %")
        lines.append(f"| `{score.package}` | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def changed_since(revision: str) -> set[str]:
    """Return the files that differ from a revision of the repository."""
    command = ["git", "diff", "--name-only", revision, "--"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def seconds(text: str) -> float:
    """Read a duration such as 90, 90s, 20m or 2h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: 90s, 20m and 2h are")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def test_files(pattern: str) -> list[Path]:
    """Return the files that a pattern of TESTS names."""
    directory, _, name = pattern.rpartition("/")
    return sorted((ROOT / "tests/unit" / directory).resolve().glob(f"test_{name}.py"))


def settings_for(package: str) -> dict[str, object]:
    """Return the settings of mutmut that make the mutants of this package only, and try them with TESTS only.

    A mutant that loops is stopped after three times the time of its tests and 45 seconds, not fifteen times:
    the constant allows for a busy machine.
    """
    inner = [other for other in TARGETS if other.startswith(f"{package}/")]
    modules = [f"{package}/{module}.py" for module in MODULES.get(package, "").split()]
    files = [str(path.relative_to(ROOT)) for pattern in TESTS[package].split() for path in test_files(pattern)]
    return {
        "only_mutate": modules or [f"{package}.py", f"{package}/*"],
        "do_not_mutate": [f"{name}{end}" for name in inner for end in (".py", "/*")],
        "pytest_add_cli_args_test_selection": [*files, "-m", "not costly"],
        "timeout_multiplier": 3.0,
        "timeout_constant": 15.0,
    }


CONFIGURED = """
import json, sys
from mutmut import __main__ as mutmut
for name, value in json.loads(sys.argv.pop(1)).items():
    setattr(mutmut.config(), name, value)
"""
"""Start of a program that runs mutmut with some settings of its own; the others are of pyproject.toml."""


def run(program: str, settings: Mapping[str, object], *arguments: str) -> str:
    """Run a program with mutmut in the project; return what it prints. Raises CalledProcessError."""
    command = [sys.executable, "-c", CONFIGURED + program, json.dumps(settings), *arguments]
    environment = os.environ | {"HYPOTHESIS_PROFILE": "mutants"}  # tests/properties.py
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
        done.check_returncode()
    return done.stdout


def mutmut(*arguments: str, settings: Mapping[str, object] | None = None) -> str:
    """Run a command of mutmut; return what it prints."""
    return run("mutmut.cli()", settings or {}, *arguments)


def make(settings: Mapping[str, object] | None = None) -> None:
    """Make the mutants of everything that changed, and run none."""
    MUTANTS.mkdir(exist_ok=True)
    run("mutmut.copy_src_dir(); mutmut.copy_also_copy_files(); mutmut.create_mutants(2)", settings or {})


def diffs_of_survivors(mutants: Iterable[Mutant], settings: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return the diff of each mutant that was tried and is alive, by name."""
    names = [mutant.name for mutant in mutants if mutant.tried and mutant.alive]
    diff = "mutmut.get_diff_for_mutant(name, path=mutmut.find_mutant(name).path)"
    program = f"print(json.dumps({{name: {diff} for name in sys.argv[1:]}}))"
    diffs: dict[str, str] = json.loads(run(program, settings or {}, *names))
    return diffs


def measure(package: str, size: int, seed: int) -> tuple[Score, dict[str, str]]:
    """Try a fixed sample of a package; return its score, and the diffs of the survivors."""
    shutil.rmtree(MUTANTS, ignore_errors=True)  # of other settings
    settings = settings_for(package)
    make(settings)
    all_mutants = read()
    names = {mutant.name for mutant in fixed_sample(all_mutants, size, seed)}
    print(f"{package}: {len(names)} of {len(all_mutants)} mutants", flush=True)
    mutmut("run", *sorted(names), settings=settings)
    stopped = sorted(mutant.name for mutant in read() if mutant.name in names and mutant.exit_code in STOPPED)
    if stopped:  # in an endless loop, or because the machine was busy
        mutmut("run", *stopped, settings=settings)
    mutants = [mutant if mutant.name in names else replace(mutant, exit_code=None) for mutant in read()]
    diffs = diffs_of_survivors(mutants, settings)
    score = next(s for s in scores(mutants, equivalent(EQUIVALENT.read_text()), diffs) if s.package == package)
    return score, diffs


def search(options: argparse.Namespace) -> tuple[list[Score], dict[str, str]]:
    """Try random mutants until the budget is used up; return the scores, and the diffs of the survivors."""
    end = time.monotonic() + options.budget
    print("making mutants", flush=True)
    make()
    changed = changed_since(options.since) if options.since else None

    def counts(mutant: Mutant) -> bool:
        return (changed is None or mutant.path in changed) and (
            not options.package or mutant.package in options.package
        )

    chance = random.Random(options.seed)
    while time.monotonic() < end:
        batch = [mutant.name for mutant in sample(filter(counts, read()), chance)[:BATCH]]
        if not batch:
            break
        print(f"{len(batch)} mutants, {max(0, end - time.monotonic()):.0f} s left", flush=True)
        mutmut("run", *batch)
    mutants = list(filter(counts, read()))
    diffs = diffs_of_survivors(mutants)
    return scores(mutants, equivalent(EQUIVALENT.read_text()), diffs), diffs


def main() -> int:
    """Try mutants, and print the table and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=seconds, default="20m", help="how long to go on: 90s, 20m, 2h [20m]")
    parser.add_argument("--since", metavar="REV", help="only files that changed since this revision")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="instead: a fixed sample of N mutants of each package"
    )
    parser.add_argument("--package", action="append", choices=TARGETS, help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="of the sample [1]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores there, too")
    options = parser.parse_args()
    results: list[Score] = []
    diffs: dict[str, str] = {}
    if options.sample:
        for package in options.package or TARGETS:
            score, survivors = measure(package, options.sample, options.seed)
            results.append(score)
            diffs |= survivors
    else:
        results, diffs = search(options)
    for score in results:
        for name in score.alive:
            print(f"\nSURVIVED {identity(name, diffs[name])}  ({name})")
    print(f"\n{table(results)}")
    if options.json:
        rows = [{"package": s.package, "tried": s.tried, "percent": s.percent, "alive": s.alive} for s in results]
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
