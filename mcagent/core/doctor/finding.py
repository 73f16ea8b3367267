"""A finding of the doctor: what was seen, why it matters, what to type next. A value, and how it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from mcagent.core.doctor.catalogue import CAUSES, CHECKS, UNKNOWN
from mcagent.model.field import printable
from mcagent.model.problem import Problem, Severity

SHOWN = 600  # characters of what was seen


class Level(StrEnum):
    """How bad it is, from good to bad; `skipped`: it could not be looked at, which says nothing either way."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


RANK = {level: place for place, level in enumerate(Level)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line. `reason` is a key of the catalogue, "" where all is well; `subject` what it is about, or ""."""

    level: Level
    check: str
    seen: str
    reason: str = ""
    subject: str = ""
    why: str = ""
    do: str = ""

    def plain(self) -> dict[str, str]:
        """Return it as JSON has it."""
        return {name: str(value) for name, value in asdict(self).items()}


def fine(check: str, seen: str = "") -> Finding:
    """Return that a check found nothing wrong."""
    return Finding(level=Level.OK, check=check, seen=seen)


def skipped(check: str, why: str) -> Finding:
    """Return that a check could not be made."""
    return Finding(level=Level.SKIPPED, check=check, seen=printable(why, SHOWN))


def found(
    reason: str,
    seen: str,
    *,
    subject: str = "",
    level: Level | None = None,
    places: Mapping[str, object] | None = None,
) -> Finding:
    """Return what the catalogue says of a reason. `places`: for those in its words; `level` overrides."""
    cause = CAUSES[reason]
    return Finding(
        level=level or Level(cause.level),
        check=cause.check,
        reason=reason,
        subject=subject,
        seen=printable(seen, SHOWN),
        why=cause.why.format(**places) if places else cause.why,
        do=cause.do.format(**places) if places else cause.do,
    )


def of_problem(problem: Problem) -> Finding:
    """Return a problem of the input as a finding: an error takes something away, a warning does not."""
    cause = CAUSES.get(problem.reason, UNKNOWN)
    where = f"{problem.path}: " if problem.path else ""
    return Finding(
        level=Level.FAILED if problem.severity is Severity.ERROR else Level.WARNING,
        check=cause.check,
        reason=problem.reason,
        subject=problem.subject,
        seen=printable(where + problem.message, SHOWN),
        why=cause.why,
        do=cause.do,
    )


def of_plain(raw: Mapping[str, Any]) -> Finding | None:
    """Read a finding of another program's JSON; None where it is none."""
    texts = {name: printable(str(raw.get(name, "")), 2 * SHOWN) for name in Finding.__dataclass_fields__}
    level = texts.pop("level")
    if level not in set(Level) or texts["check"] not in CHECKS:
        return None
    return Finding(level=Level(level), **texts)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level; OK where there is none."""
    return max((one.level for one in findings), key=RANK.__getitem__, default=Level.OK)


def complete(findings: Iterable[Finding], checks: Iterable[str]) -> list[Finding]:
    """Return the findings in the order of the catalogue, each once."""
    order = {name: place for place, name in enumerate(CHECKS)}
    wanted = set(checks)
    unique = dict.fromkeys(one for one in findings if one.check in wanted)
    return sorted(unique, key=lambda one: (order[one.check], -RANK[one.level], one.subject, one.seen))
