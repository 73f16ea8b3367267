"""The repository is complete: it needs no file outside of it, and declares the packages that it imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from tests import all_suites, suites

ROOT = Path(__file__).parents[2]
PRODUCT = {"flows", "mcagent"}


def test_nothing_refers_to_a_directory_beside_the_repository() -> None:
    """What is not in the repository is named by an environment variable, never found by where it lies."""
    beside = "../" + "shared"
    command = ["git", "grep", "--untracked", "-lF", beside]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode == 1, f"{beside} is named in:\n{listed.stdout}{listed.stderr}"


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that a module imports, at its beginning or in a function.

    Only statements are looked at: most of a tree is expressions, which import nothing.
    """
    blocks: list[ast.AST] = [tree]
    while blocks:
        node = blocks.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            blocks += getattr(node, name, ())


def normalised(name: str) -> str:
    """Return the name of a package as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_package_that_the_product_imports_is_declared() -> None:
    """And every declared one is imported: neither comes with another package only by chance."""
    trees = (ast.parse(file.read_text()) for name in PRODUCT for file in (ROOT / name).rglob("*.py"))
    imported = {package for tree in trees for package in imports(tree)} - PRODUCT - sys.stdlib_module_names
    distributions = packages_distributions()
    needed = {normalised(name) for package in imported for name in distributions[package]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {normalised(re.split(r"[^-\w.]", requirement)[0]) for requirement in project["dependencies"]}
    assert needed == declared


DEMO = ("lab", "nodes", "traffic", "apiserver", "realapi")


def test_no_module_imports_from_a_module_of_tests() -> None:
    """What several modules use is in a support module: a test can be moved or removed alone."""
    pattern = re.compile(
        r"^\s*(from tests\.(\w+\.)*(test_\w+|conftest) import|from tests[.\w]* import test_).*", re.M
    )
    imports_of_tests = {
        str(file.relative_to(ROOT)): match[0]
        for file in (ROOT / "tests").rglob("*.py")
        for match in pattern.finditer(file.read_text())
    }
    assert not imports_of_tests


def test_the_demo_needs_no_package_of_the_tests() -> None:
    """`make demo` installs what mcagent needs and no more (.ci/setup demo)."""
    assert re.findall(r"^demo:.*\n\t@(.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE) == [
        ".ci/setup demo"
    ]
    devtools = ROOT / "devtools"
    files = [devtools / "leftovers.py", *(file for name in DEMO for file in (devtools / name).rglob("*.py"))]
    imported = {package for file in files for package in imports(ast.parse(file.read_text()))}
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    declared = {normalised(re.split(r"[^-\w.]", requirement)[0]) for requirement in dependencies}
    other_imports = imported - PRODUCT - {"devtools"} - sys.stdlib_module_names
    distributions = packages_distributions()
    assert {normalised(name) for package in other_imports for name in distributions[package]} <= declared


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_run_targets_of_the_makefile(file: Path) -> None:
    """A forge's CI runs what a developer runs; actions of others are pinned by commit."""
    text = file.read_text()
    jobs = yaml.safe_load(text)["jobs"].values()
    steps = [step for job in jobs for step in job["steps"]]
    ran = "\n".join(step.get("run", "") for step in steps)
    targets = set(re.findall(r"\bmake ([\w-]+)", ran))
    for job in jobs:
        targets |= set(job.get("strategy", {}).get("matrix", {}).get("target", ()))
    declared = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert targets
    assert targets <= declared
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in steps if "uses" in step)


# Tests that `make test-all` does not run, by file. What they protect has another test that it runs.
RUN_BY_HAND = {
    "test_encryption.py": "rotation and faults under load take 20 minutes; test_failover_short.py has faults",
    "test_failover.py": "judges times, on an idle machine; test_failover_short.py has its rows",
    "test_failover_loss.py": "takes two minutes for one link with loss; test_failover_short.py has that row",
    "test_failover_short.py": "the encrypted rows; the others run in both lanes",
}


def test_all_tests_include_those_of_failover() -> None:
    """A regression of SNATed connections was not noticed for a day, because its test had the marker `failover`."""
    assert "planned" in all_suites.ALL
    marked = {
        path.name for path in (ROOT / "tests/lab").glob("test_*.py") if "pytest.mark.failover" in path.read_text()
    }
    run_by_all = {Path(name).name for name in suites.BY_NAME["planned"].select if name.endswith(".py")}
    assert run_by_all
    assert marked - run_by_all == set(RUN_BY_HAND)
