"""Every reason that users can meet (of a problem, a condition, an Event, a finding) occurs in a test.

Reads the program and the documentation as text: what is named there and in no test would be lost unnoticed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
REASON = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+")
# Functions and classes of the program whose arguments name a reason.
GIVERS = frozenset(
    [
        "Event",
        "ExportDecision",
        "InputError",
        "Problem",
        "Refusal",
        "clock_finding",
        "condition",
        "error",
        "finding",
        "problem",
        "_event",
        "_refused",
    ]
)
# Constants of the program whose value is a reason.
CONSTANTS = re.compile(r"(?:NO_SERVICE|INVALID_TYPE|[A-Z_]*REASON[A-Z_]*)$")
# What stands in each module with such a call or constant: parsing the others takes most of the time.
MENTIONED = re.compile(rf"(?:{'|'.join(sorted(GIVERS))}|DoctorCheck)\(|NO_SERVICE|INVALID_TYPE|REASON")


def of_calls(tree: ast.AST) -> Iterator[str]:
    """Yield the reasons that calls of `GIVERS` name, and those that `CONSTANTS` hold."""
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = [*node.args, *(keyword.value for keyword in node.keywords)] if name in GIVERS else []
            if name == "DoctorCheck":
                causes = (keyword.value for keyword in node.keywords if keyword.arg == "causes")
                values = [
                    key for cause in causes if isinstance(cause, ast.Dict) for key in cause.keys if key is not None
                ]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = [node.value] if CONSTANTS.match(node.targets[0].id) else []
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and REASON.fullmatch(value.value):
                yield value.value


def documented() -> Iterator[str]:
    """Yield the reasons in the tables of docs/architecture.md that say how conflicting input is decided."""
    page = (ROOT / "docs/architecture.md").read_text()
    section = page.partition("## How conflicting input is decided")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| "):
            yield from re.findall(rf"`({REASON.pattern})`", line.split(" | ")[-1])


@cache
def named() -> set[str]:
    """Return all reasons."""
    texts = (path.read_text() for path in sorted((ROOT / "mcagent").rglob("*.py")))
    trees = (ast.parse(text) for text in texts if MENTIONED.search(text))
    return {reason for tree in trees for reason in of_calls(tree)} | set(documented())


def words_of_tests() -> set[str]:
    """Return the words of all tests but this one."""
    files = (path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__))
    return {word for path in files for word in REASON.findall(path.read_text())}


def test_a_reason_occurs_in_a_test() -> None:
    """Where this fails, a rule or a refusal has no test."""
    assert named() - words_of_tests() == set()


def test_reasons_are_found() -> None:
    """The test above would pass if it looked for nothing."""
    assert {"DuplicatePodCIDR", "RefusedByLeader", "NoService", "DriftCorrected", "ClockOff"} <= named()
    assert len(named()) > 120
