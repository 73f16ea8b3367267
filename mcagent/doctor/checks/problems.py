"""Problems of the input as findings, for the checks that they belong to (`mcagent.core.causes`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mcagent.api.doctor import CheckFinding, FindingLevel
from mcagent.api.status import ProblemStatus
from mcagent.core.causes import CAUSES, UNKNOWN
from mcagent.doctor.check import MAX_TEXT, DoctorCheck
from mcagent.doctor.examined import ExaminedNode
from mcagent.model.parsing.field import printable


def problems_of(check: DoctorCheck, problems: Iterable[ProblemStatus]) -> Iterator[CheckFinding]:
    """Yield the problems that belong to a check; those of severity warning take nothing away."""
    for problem in problems:
        cause = CAUSES.get(problem.reason, UNKNOWN)
        if cause.check == check.name:
            path = f"{problem.path}: " if problem.path else ""
            yield CheckFinding(
                level=FindingLevel.WARNING if problem.severity == "warning" else FindingLevel.FAILED,
                check=check.name,
                seen=printable(path + problem.message, MAX_TEXT),
                reason=problem.reason,
                subject=problem.subject,
                why=cause.why,
                do=cause.do,
            )


def findings_of_problems(
    check: DoctorCheck, problems: Iterable[ProblemStatus], without: str
) -> Iterable[CheckFinding]:
    """Return the problems that belong to a check, or that it has passed with the text `without`."""
    return [*problems_of(check, problems)] or [check.passed(without)]


def examine_problems(check: DoctorCheck, without: str) -> Callable[[ExaminedNode], Iterable[CheckFinding]]:
    """Make the function `examine` of a check that reports only problems of the agent's status."""

    def examine(node: ExaminedNode) -> Iterable[CheckFinding]:
        if node.problems_error:
            return [check.skipped(f"the agent does not answer, and objects cannot be read: {node.problems_error}")]
        return findings_of_problems(check, node.status.problems, without)

    return examine
