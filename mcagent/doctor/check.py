"""The declaration of a check, its findings, and their order. Knows no check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from mcagent.api.doctor import CheckFinding, DoctorReport, FindingLevel
from mcagent.doctor.examined import Subject
from mcagent.model.errors import McagentError
from mcagent.model.parsing.field import printable

MAX_TEXT = 600  # characters of an observation
NOT_READ = "NotRead"  # the reason of a check that is skipped for want of rights or of an answer
RANK = {level: rank for rank, level in enumerate(FindingLevel)}


@dataclass(frozen=True, slots=True)
class FindingCause:
    """Why a reason matters and what to type next; the check fills in {names} in both."""

    level: FindingLevel
    why: str
    do: str


def warning(why: str, do: str) -> FindingCause:
    """Declare a cause of findings that need attention, though traffic works."""
    return FindingCause(FindingLevel.WARNING, why, do)


def failed(why: str, do: str) -> FindingCause:
    """Declare a cause of faults."""
    return FindingCause(FindingLevel.FAILED, why, do)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """A check. `order`: its rank in the output; `causes` by reason, which is a stable word."""

    name: str
    order: int
    summary: str
    causes: Mapping[str, FindingCause] = field(default_factory=dict)

    def passed(self, detail: str = "") -> CheckFinding:
        """Return the finding of a check without faults."""
        return CheckFinding(check=self.name, seen=detail)

    def skipped(self, why: str, *, reason: str = "") -> CheckFinding:
        """Return the finding of a check that could not be made."""
        return CheckFinding(
            level=FindingLevel.SKIPPED, check=self.name, seen=printable(why, MAX_TEXT), reason=reason
        )

    def finding(
        self, reason: str, detail: str, *, subject: str = "", level: FindingLevel | None = None, **values: object
    ) -> CheckFinding:
        """Return a finding with its cause's texts. `level` overrides the cause's; `values` fill in {names}."""
        cause = self.causes[reason]
        return CheckFinding(
            level=level or cause.level,
            check=self.name,
            seen=printable(detail, MAX_TEXT),
            reason=reason,
            subject=subject,
            why=cause.why.format(**values) if values else cause.why,
            do=cause.do.format(**values) if values else cause.do,
        )


def run(
    check: DoctorCheck, examine: Callable[[Any], Iterable[CheckFinding]], subject: Subject
) -> list[CheckFinding]:
    """Run a check. If a reading fails, the check is skipped; findings before that remain."""
    findings: list[CheckFinding] = []
    try:
        findings.extend(examine(subject))
    except McagentError as error:
        findings = [finding for finding in findings if finding.level != FindingLevel.OK]
        findings.append(check.skipped(str(error), reason=NOT_READ))
    return findings


def in_order(findings: Iterable[CheckFinding], order: Collection[str]) -> tuple[CheckFinding, ...]:
    """Sort the findings of these checks by check and level, the worst first, without duplicates."""
    ranks = {name: rank for rank, name in enumerate(order)}
    unique = dict.fromkeys(finding for finding in findings if finding.check in ranks)
    key = lambda finding: (ranks[finding.check], -RANK[FindingLevel(finding.level)], finding.subject, finding.seen)  # noqa: E731
    return tuple(sorted(unique, key=key))


def worst(findings: Iterable[CheckFinding]) -> FindingLevel:
    """Return the worst level; OK without findings."""
    return max(
        (FindingLevel(finding.level) for finding in findings), key=RANK.__getitem__, default=FindingLevel.OK
    )


def ends_well(report: DoctorReport) -> bool:
    """Tell whether nothing is wrong, and the checks of clusters could read what they examine."""
    unread = any(finding.reason == NOT_READ for cluster in report.clusters for finding in cluster.findings)
    return not unread and worst(report.findings) != FindingLevel.FAILED


def received(findings: Iterable[CheckFinding], checks: Collection[str]) -> tuple[CheckFinding, ...]:
    """Filter findings of another program: of known checks only, with texts that are safe to print."""
    return tuple(
        structs.replace(
            finding,
            **{name: printable(getattr(finding, name), 2 * MAX_TEXT) for name in CheckFinding.__struct_fields__},
        )
        for finding in findings
        if finding.level in set(FindingLevel) and finding.check in checks
    )
