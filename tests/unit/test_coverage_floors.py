"""Floors of coverage: what a package is, what was measured of it, and that a floor only rises."""

from __future__ import annotations

from typing import Any

from devtools import coverage_floors

PROJECT = """[tool.other]
x = 1

[tool.mcagent.coverage-floors] # percent
"flows" = 90
"mcagent/core" = 97

[tool.last]
"""


def summary(lines: int, of: int, branches: int, of_branches: int) -> dict[str, Any]:
    """Return what coverage.py says of one file."""
    return {
        "summary": {
            "covered_lines": lines,
            "num_statements": of,
            "covered_branches": branches,
            "num_branches": of_branches,
        }
    }


def test_lines_and_branches_of_a_package_are_added() -> None:
    """Files of subpackages count, modules beside the packages are one of their own, empty files nothing."""
    files = {
        "mcagent/core/engine.py": summary(8, 10, 1, 2),
        "mcagent/core/compile/a.py": summary(3, 4, 0, 0),
        "mcagent/supervised.py": summary(1, 2, 0, 0),
        "mcagent/http/__init__.py": summary(0, 0, 0, 0),
        "flows/flow.py": summary(5, 5, 0, 0),
    }
    assert coverage_floors.by_package(files) == {"flows": 100.0, "mcagent": 50.0, "mcagent/core": 75.0}


def test_floors_only_rise() -> None:
    """A floor above what was measured stays, a package without one gets it, and nothing else changes."""
    text = coverage_floors.raised(PROJECT, {"flows": 93.9, "mcagent/core": 96.0, "mcagent/http": 80.2})
    assert coverage_floors.read_floors(text) == {"flows": 93, "mcagent/core": 97, "mcagent/http": 80}
    assert text.startswith("[tool.other]\nx = 1\n\n[tool.mcagent.coverage-floors] # percent\n")
    assert text.endswith('"mcagent/http" = 80\n\n[tool.last]\n')
