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

ROOT = Path(__file__).parents[2]
PRODUCT = {"flows", "mcagent"}


def test_nothing_refers_to_a_directory_beside_the_repository() -> None:
    """What is not in the repository is named by an environment variable, never found by where it lies."""
    beside = "../" + "shared"
    command = ["git", "grep", "--untracked", "-lF", beside]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode == 1, f"{beside} is named in:\n{listed.stdout}{listed.stderr}"


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that a module imports, at its beginning or in a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


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
