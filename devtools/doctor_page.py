"""The tables of docs/doctor.md: `python -m devtools.doctor_page FILE` puts them into the page."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from devtools import doctor_coverage as coverage
from mcagent.core.causes import CAUSES
from mcagent.doctor.catalogue import Scope, entries, names
from mcagent.doctor.check import DoctorCheck, failed, warning

BEGIN = "<!-- checks and causes: made by python -m devtools.doctor_page -->"
END = "<!-- end of checks and causes -->"
_WHERE = {
    Scope.NODE: "a Node",
    Scope.CLUSTER: "a cluster",
    Scope.BEFORE_NODE: "a Node, by `mcagent check --pre`",
    Scope.BEFORE_CLUSTER: "a cluster, by `mcagent check --pre`",
}
_SIGN = {"failed": "✗", "warning": "⚠"}


def tables() -> Iterator[str]:
    """Yield what is examined on a Node, then a section for each check: summary, scope, and causes."""
    yield from _coverage()
    for check in all_checks():
        scopes = " and ".join(text for scope, text in _WHERE.items() if check.name in names(scope))
        summary = f"{check.summary[0].upper()}{check.summary[1:]}"
        yield from (f"### {check.name}", "", f"{summary}. Scope: {scopes}.", "")
        causes = check.causes
        if causes:
            yield from ("| reason | | why it matters | what to type next |", "| --- | --- | --- | --- |")
        for reason, cause in causes.items():
            yield f"| `{reason}` | {_SIGN[cause.level]} | {_cell(cause.why)} | {_cell(cause.do)} |"
        if causes:
            yield ""


def all_checks() -> Iterator[DoctorCheck]:
    """Yield each check once, in order, with its causes on Nodes, in clusters and in the input."""
    checks = sorted((entry.check for scope in Scope for entry in entries(scope)), key=lambda check: check.order)
    for name in dict.fromkeys(check.name for check in checks):
        same = [check for check in checks if check.name == name]
        causes = {reason: cause for check in same for reason, cause in check.causes.items()}
        for reason, problem in CAUSES.items():
            if problem.check == name:
                causes[reason] = (warning if problem.warning else failed)(problem.why, problem.do)
        yield DoctorCheck(name=name, order=same[0].order, summary=same[0].summary, causes=causes)


def _coverage() -> Iterator[str]:
    yield from ("### What the agent sets and needs", "")
    yield "The check `plan` examines all that the agent sets; others examine parts of it more closely."
    yield from ("", "| set by the agent | checks |", "| --- | --- |")
    for text, checks in coverage.SET.values():
        yield f"| {text} | {_links(checks)} |"
    yield from ("", "| needed by the agent | checks |", "| --- | --- |")
    for text, checks in coverage.NEEDED.items():
        yield f"| {text} | {_links(checks)} |"
    yield ""


def _links(checks: Iterable[str]) -> str:
    return ", ".join(f"[{name}](#{name})" for name in checks)


def _cell(text: str) -> str:
    """Format a text as a cell; {names}, which the doctor fills in, are in capitals."""
    plain = text.replace("|", "\\|")
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), plain)


def filled(page: str) -> str:
    """Return the page with new tables. Raises ValueError without BEGIN and END."""
    head, begin, remainder = page.partition(BEGIN)
    _, end, tail = remainder.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the tables: the file needs the lines {BEGIN} and {END}")
    return "\n".join([f"{head}{BEGIN}", "", *tables(), f"{END}{tail}"])


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
