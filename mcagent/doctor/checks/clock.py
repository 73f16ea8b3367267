"""Clocks that differ, for the checks of API servers."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding, FindingLevel
from mcagent.doctor.check import DoctorCheck

_WARNING, _FAILED = 5.0, 300.0  # seconds; Kerberos and many tokens tolerate five minutes


def clock_finding(check: DoctorCheck, reason: str, ahead: float | None, owner: str) -> Iterator[CheckFinding]:
    """Yield a finding if a clock is off. `ahead`: seconds by which that of `owner` is ahead; None if unknown."""
    if ahead is not None and abs(ahead) > _WARNING:
        relation = "behind" if ahead > 0 else "ahead of"
        detail = f"the clock here is {abs(ahead):.0f} s {relation} that of {owner}"
        yield check.finding(reason, detail, level=FindingLevel.FAILED if abs(ahead) > _FAILED else None)
