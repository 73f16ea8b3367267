"""No test disappears unnoticed: `python -m devtools.test_inventory [--update]`.

tests/inventory/names.txt lists the test functions of the project by name, with their number where several have
one name. A function may move to another file. One that is removed on purpose stands in
tests/inventory/removed.txt with the reason. `--update` adds new functions and takes out those with a reason; it
never drops any other.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = "inventory/names.txt"
REMOVED = "inventory/removed.txt"


def test_functions(tests: Path) -> Counter[str]:
    """Return the test functions below a directory: how many there are of each name."""
    names: Counter[str] = Counter()
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names[node.name] += 1
    return names


def read_names(text: str) -> Counter[str]:
    """Return the inventory: a name a line, with the number of functions after it if there are several."""
    names: Counter[str] = Counter()
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        names[name] = int(number or 1)
    return names


def write_names(names: Mapping[str, int]) -> str:
    """Return the text of an inventory."""
    return "".join(f"{name} {number}\n" if number > 1 else f"{name}\n" for name, number in sorted(names.items()))


def read_removed(text: str) -> dict[str, str]:
    """Return the reason of each removal, from lines `NAME: REASON`. Raises ValueError where there is no reason."""
    reasons: dict[str, str] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, reason = line.partition(":")
            if not reason.strip():
                raise ValueError(f'{REMOVED}: "{line}" gives no reason; write "{name}: why it was removed"')
            reasons[name] = reason.strip()
    return reasons


def faults(present: Counter[str], listed: Counter[str], removed: Mapping[str, str]) -> list[str]:
    """Return what is wrong, a sentence each."""
    gone = sorted(name for name in listed - present if name not in removed)
    new = sorted(present - listed)
    return [
        *(
            f"{name} has disappeared; if that is intended, add it to tests/{REMOVED} with the reason"
            for name in gone
        ),
        *(f"{name} is not in tests/{NAMES}; add it with `make inventory`" for name in new),
    ]


def updated(present: Counter[str], listed: Counter[str], removed: Mapping[str, str]) -> Counter[str]:
    """Return the inventory with new functions, and without those that have a reason to be gone."""
    remaining = Counter({name: number for name, number in listed.items() if name not in removed})
    return remaining | present


def main(argv: list[str], tests: Path = ROOT / "tests") -> int:
    """Compare, or update. Return 1 where a test has disappeared, or is not listed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the inventory anew")
    args = parser.parse_args(argv)
    present = test_functions(tests)
    listed = read_names((tests / NAMES).read_text())
    removed = read_removed((tests / REMOVED).read_text())
    if args.update:
        listed = updated(present, listed, removed)
        (tests / NAMES).write_text(write_names(listed))
    wrong = faults(present, listed, removed)
    sys.stderr.writelines(f"{sentence}\n" for sentence in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
