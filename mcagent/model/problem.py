"""A problem: something in the input that is not used, or not as written, and why. A value, not an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much of the object a problem takes away."""

    ERROR = "error"  # the object, or the named part of it, is not used
    WARNING = "warning"  # it is used, but not exactly as written


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One finding about one object. `reason` is a stable CamelCase word fit for a metric label or an Event."""

    subject: str  # "ClusterInfoImport kube-system/east-clusterinfo"
    path: str  # "spec.podCIDRs[1]", or "" for the whole object
    reason: str  # "InvalidCIDR", "OverlappingCIDR", ...
    message: str  # one sentence for people
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        where = f"{self.subject}: {self.path}" if self.path else self.subject
        return f"{where}: {self.message}"


def all_problems(found: Mapping[str, tuple[Problem, ...]]) -> tuple[Problem, ...]:
    """Return all problems of a mapping."""
    return tuple(problem for problems in found.values() for problem in problems)


def in_order(*found: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Return each problem once, in the order of what they are about."""
    return tuple(sorted({problem for problems in found for problem in problems}))
