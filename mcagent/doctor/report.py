"""Findings of the doctor as text: a line for each; for faults also why it matters and what to type next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from mcagent.api.doctor import CheckFinding, DoctorReport, FindingLevel
from mcagent.doctor.check import NOT_READ

_SIGNS: Mapping[str, str] = {
    FindingLevel.OK: "✓",
    FindingLevel.SKIPPED: "-",
    FindingLevel.WARNING: "⚠",
    FindingLevel.FAILED: "✗",
}
_WIDTH = 118
_INDENT = 8


def text(report: DoctorReport, *, quiet: bool = False) -> str:
    """Format a report. `quiet`: only faults and warnings."""
    parts = [
        section(f"Cluster {part.cluster}", part.findings, quiet=quiet, also=NOT_READ) for part in report.clusters
    ]
    parts += [section(f"Node {part.node}", part.findings, quiet=quiet) for part in report.nodes]
    return "\n\n".join([*parts, summary(report.findings)])


def section(title: str, findings: Sequence[CheckFinding], *, quiet: bool = False, also: str = "") -> str:
    """Format the findings about one Node or cluster. `quiet`: only faults, warnings and the reason `also`."""
    width = max((len(finding.check) for finding in findings), default=0)
    shown = [finding for finding in findings if not quiet or finding.wrong or (also and finding.reason == also)]
    lines = [title]
    for finding in shown:
        subject = f"{finding.subject}: " if finding.subject else ""
        lines.append(f"  {_SIGNS[finding.level]} {finding.check:<{width}}  {subject}{finding.seen}".rstrip())
        if finding.wrong:
            lines += _below("why", finding.why) + _below("do", finding.do)
    if quiet and not shown:
        lines.append("  ✓ all is well")
    return "\n".join(lines)


def _below(word: str, content: str) -> list[str]:
    begin = f"{'':{_INDENT}}{word + ':':<5}"
    return textwrap.wrap(
        content,
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )


def summary(findings: Iterable[CheckFinding]) -> str:
    """Count the findings by level, in one line."""
    levels = [finding.level for finding in findings]
    words = {
        FindingLevel.FAILED: "wrong",
        FindingLevel.WARNING: "to look at",
        FindingLevel.SKIPPED: "not looked at",
        FindingLevel.OK: "fine",
    }
    return ", ".join(f"{levels.count(level)} {word}" for level, word in words.items() if level in levels)
