"""Runs the parts of the second tier that belong to changed paths: `python -m tests.affected SINCE`.

Owns the table of paths and parts of `make affected`. `make test` has the first tier, whatever changed; a file of
tests that changed runs itself. Paths are those that differ from where HEAD left the revision SINCE, also new ones,
and those that are not committed.
Exit status: 0 if each test passed or is flaky, 1 otherwise.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import repeats, suites
from tests.kernel import lane
from tests.results import Budget
from tests.suites import Part, Suite

ROOT = Path(__file__).parents[1]
TESTS = "tests/lab/test_"
"""Files of tests that run when they change, on the kernel datapath, too, if they have its marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Paths, by their beginnings, and what tests them: suites, files, and files on the kernel datapath."""

    paths: tuple[str, ...]
    suites: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()


_FAILOVER = "tests/lab/test_failover_short.py"
_MATRIX = "tests/lab/test_matrix.py"
_GUIDES = ("tests/lab/test_user_guide.py", "tests/lab/test_real_api.py")
_COMMANDS = ("tests/lab/test_tutorials.py", "tests/lab/test_doctor.py", "tests/lab/test_trace.py")
_ENCRYPTION = (
    "tests/lab/test_encryption.py",
    "tests/lab/test_node_encryption.py",
    "tests/lab/test_wireguard_devices.py",
)
AREAS = (
    Area(
        paths=("flows/", "mcagent/core/failover/", "mcagent/dataplane/"),
        suites=("timing", "planned"),
        files=(_FAILOVER, _MATRIX),
        kernel=(_FAILOVER, _MATRIX),
    ),
    Area(paths=("mcagent/core/", "mcagent/model/", "mcagent/agent/"), suites=("lab",), files=(_FAILOVER,)),
    Area(
        paths=(
            "mcagent/core/wireguard",
            "mcagent/core/node_encryption.py",
            "mcagent/dataplane/wireguard/",
            "mcagent/model/dataplane/",
        ),
        files=_ENCRYPTION,
        kernel=_ENCRYPTION,
    ),
    Area(
        paths=("flows/pipeline/", "mcagent/core/policies/"),
        files=("tests/lab/test_policies.py",),
        kernel=("tests/lab/test_policies.py",),
    ),
    Area(
        paths=("mcagent/controller/leader/", "mcagent/controller/member/", "mcagent/controller/contract/"),
        suites=("antrea",),
        files=_GUIDES,
    ),
    Area(paths=("mcagent/controller/", "mcagent/kube/", "mcagent/supervised.py"), files=_GUIDES),
    Area(
        paths=("mcagent/api/", "mcagent/cli/", "mcagent/config/", "mcagent/doctor/", "mcagent/trace/"),
        files=_COMMANDS,
    ),
    Area(paths=("mcagent/http/", "mcagent/observe/"), files=("tests/lab/test_monitoring.py", *_COMMANDS)),
    Area(paths=("mcagent/vswitch/",), files=("tests/lab/test_openvswitch_upgrade.py",)),
    Area(paths=("deploy/", "Dockerfile", "tests/helm/"), suites=("release", "chart", "e2e")),
    Area(paths=("devtools/release/", "tests/release/", "pyproject.toml", ".ci/requirements"), suites=("release",)),
    Area(paths=("devtools/k8s/", "systemd/", "tests/e2e/"), suites=("e2e",)),
    Area(paths=("tests/antrea/",), suites=("antrea",)),
    Area(paths=("tests/lab/test_drain.py", "tests/lab/test_gateways_planned.py"), suites=("planned",)),
    Area(paths=("devtools/lab/", "devtools/traffic/", "devtools/nodes/", "tests/worlds/labs.py"), suites=("lab",)),
    Area(paths=("docs/tutorials/", "docs/troubleshooting.md"), files=("tests/lab/test_tutorials.py",)),
    Area(
        paths=("tests/failover_results.py", "tests/worlds/failover.py", "tests/worlds/antrea_failover.py"),
        files=(_FAILOVER, "tests/lab/test_antrea_failover.py"),
    ),
    Area(paths=("tests/kernel/",), kernel=(_MATRIX,)),
)


def areas(changed: Iterable[str]) -> list[tuple[Area, list[str]]]:
    """Return the areas of changed paths, each with these paths."""
    paths = sorted(changed)
    own = [_of_tests(path) for path in paths if path.startswith(TESTS) and (ROOT / path).exists()]
    affected = ((area, [path for path in paths if path.startswith(area.paths)]) for area in (*AREAS, *own))
    return [(area, of_area) for area, of_area in affected if of_area]


def _of_tests(file: str) -> Area:
    """Return the area of a file of tests. Those with the marker `failover` are for `make test-failover`."""
    text = (ROOT / file).read_text()
    if "pytestmark = [pytest.mark.failover" in text:
        return Area(paths=(file,), files=(_FAILOVER,))
    return Area(paths=(file,), files=(file,), kernel=(file,) if "mark.datapath" in text else ())


def parts(affected: Sequence[Area]) -> list[Part]:
    """Return what tests the areas, each suite and file once."""
    names = dict.fromkeys(name for area in affected for name in area.suites)
    files = dict.fromkeys(file for area in affected for file in area.files)
    kernel = dict.fromkeys(file for area in affected for file in area.kernel)
    chosen: list[Part] = [suites.BY_NAME[name] for name in names]
    if files:
        lab = suites.BY_NAME["lab"]
        chosen.append(
            Suite(
                name="files",
                title=f"{len(files)} files of tests",
                select=("-m", "not failover", *files),
                processes=lab.processes,
                builds=lab.builds,
            )
        )
    if kernel:
        chosen.append(lane.part(tuple(kernel)))
    return chosen


def changed_paths(since: str) -> list[str]:
    """Return the paths that differ from where HEAD left a revision."""
    base = _git("merge-base", since, "HEAD")[0]
    return _git("diff", "--name-only", "--no-renames", base) + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str) -> list[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def main() -> int:
    """Print what is affected and why, then run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("since", metavar="SINCE", help="a revision, say main")
    parser.add_argument("--list", action="store_true", help="only print what is affected")
    options = parser.parse_args()
    affected = areas(changed_paths(options.since))
    for area, paths in affected:
        kernel = (f"{file} (kernel datapath)" for file in area.kernel)
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        print(f"{paths[0]}{others}: {', '.join((*area.suites, *area.files, *kernel))}")
    if not affected:
        print(f"no part of the second tier belongs to what changed since {options.since}")
    if not affected or options.list:
        return 0
    return 0 if suites.run(parts([area for area, _ in affected]), repeats.folder(), Budget()).passes else 1


if __name__ == "__main__":
    raise SystemExit(main())
