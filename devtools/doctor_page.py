"""The tables of docs/doctor.md: `python -m devtools.doctor_page FILE` puts them into the page."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mcagent.core.doctor.catalogue import CAUSES, CHECKS

BEGIN = "<!-- checks and causes: made by python -m devtools.doctor_page -->"
END = "<!-- end of checks and causes -->"
_WHERE = {"Node": "a Node", "cluster": "a cluster", "both": "both"}
_SIGN = {"failed": "✗", "warning": "⚠"}


def tables() -> Iterator[str]:
    """Yield a section for each check: what it looks at, and its causes."""
    for name, check in CHECKS.items():
        yield from (
            f"### {name}",
            "",
            f"{check.what[0].upper()}{check.what[1:]}. Looked at on: {_WHERE[check.where]}.",
            "",
        )
        causes = {reason: cause for reason, cause in CAUSES.items() if cause.check == name}
        if causes:
            yield from ("| reason | | why it matters | what to type next |", "| --- | --- | --- | --- |")
        for reason, cause in causes.items():
            yield f"| `{reason}` | {_SIGN[cause.level]} | {_cell(cause.why)} | {_cell(cause.do)} |"
        if causes:
            yield ""


def _cell(text: str) -> str:
    """Return a text as a table's cell; what the doctor fills in stands in capitals."""
    plain = text.replace("|", "\\|")
    return re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), plain)


def filled(page: str) -> str:
    """Return the page with its tables made anew. ValueError when it has no place for them."""
    head, found, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not found or not end:
        raise ValueError(f"no place for the tables: the file needs the lines {BEGIN} and {END}")
    return "\n".join([f"{head}{BEGIN}", "", *tables(), f"{END}{tail}"])


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
