"""Findings of the doctor as text: a line for each check; below what is wrong, why it matters and what to type."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from mcagent.core.doctor.finding import Finding, Level

SIGNS: Mapping[Level, str] = {Level.OK: "✓", Level.SKIPPED: "-", Level.WARNING: "⚠", Level.FAILED: "✗"}
_WIDTH = 118
_INDENT = 8


def text(title: str, findings: Sequence[Finding], *, quiet: bool = False) -> str:
    """Return the findings about one Node or cluster. `quiet`: only what is wrong."""
    width = max((len(one.check) for one in findings), default=0)
    shown = [one for one in findings if not quiet or one.level in {Level.WARNING, Level.FAILED}]
    lines = [title]
    for one in shown:
        subject = f"{one.subject}: " if one.subject else ""
        lines.append(f"  {SIGNS[one.level]} {one.check:<{width}}  {subject}{one.seen}".rstrip())
        if one.level in {Level.WARNING, Level.FAILED}:
            lines += _below("why", one.why) + _below("do", one.do)
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


def summary(findings: Iterable[Finding]) -> str:
    """Return how many there are of each level, in one line."""
    levels = [one.level for one in findings]
    words = {Level.FAILED: "wrong", Level.WARNING: "to look at", Level.SKIPPED: "not looked at", Level.OK: "fine"}
    return ", ".join(f"{levels.count(level)} {word}" for level, word in words.items() if level in levels)
