"""The tables of docs/security.md: `python -m tests.attacks.security_page FILE` makes them, `--check` checks."""

from __future__ import annotations

import argparse
import sys
from itertools import groupby
from pathlib import Path

from tests.attacks.catalogue import Shown, shown
from tests.attacks.generated.classes import CLASSES

START = "<!-- attacks: made by python -m tests.attacks.security_page -->"
END = "<!-- end of attacks -->"
START_GENERATED = "<!-- generated attacks: made by python -m tests.attacks.security_page -->"
END_GENERATED = "<!-- end of generated attacks -->"


def tables(attacks: list[Shown]) -> str:
    """Return one table for each group."""
    lines = [f"{len(attacks)} attacks run with every `make test`; `make attacks` runs them alone.", ""]
    for group, rows in groupby(attacks, key=lambda row: row.attack.group):
        lines += [f"### {group}", "", "| attacker | wants to | is stopped by | shown by |", "|---|---|---|---|"]
        lines += [
            f"| {row.attack.attacker} | {row.attack.wants} | {row.attack.stopped_by} | `{row.test}` |"
            for row in rows
        ]
        lines.append("")
    return "\n".join(lines)


def generated_table() -> str:
    """Return the table of the classes of attacks that are generated."""
    lines = ["| class | the generator draws | what must hold | an attack is found without |", "|---|---|---|---|"]
    lines += [
        f"| {attacks.name} | {attacks.title} | {attacks.property} | {'; '.join(attacks.protections)} |"
        for attacks in CLASSES
    ]
    return "\n".join([*lines, ""])


def filled(page: str) -> str:
    """Return the page with its tables made anew. ValueError when it has no place for them."""
    page = _between(page, START, END, tables(shown()))
    return _between(page, START_GENERATED, END_GENERATED, generated_table())


def _between(page: str, start: str, end: str, content: str) -> str:
    before, first, rest = page.partition(start)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"the page has no lines {start!r} and {end!r}")
    return f"{before}{start}\n\n{content}\n{end}{after}"


def main() -> int:
    """Write or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true", help="only tell whether the page is current")
    options = parser.parse_args()
    text = options.page.read_text(encoding="utf-8")
    filled_page = filled(text)
    if not options.check:
        options.page.write_text(filled_page, encoding="utf-8")
    elif filled_page != text:
        sys.stderr.write(
            f"{options.page}: not current: run python -m tests.attacks.security_page {options.page}\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
