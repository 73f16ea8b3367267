"""All checks, found in `mcagent.doctor.checks`, in the order of their output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, in_order, run
from mcagent.doctor.examined import Subject


class Scope(StrEnum):
    """What a check examines; the package of its module in `mcagent.doctor.checks`."""

    NODE = "node"
    CLUSTER = "cluster"
    BEFORE_NODE = "before_node"  # mcagent check --pre
    BEFORE_CLUSTER = "before_cluster"


@dataclass(frozen=True, slots=True)
class Entry:
    """A check with its functions. `begin` is called before the first check: it starts, or notes, a reading."""

    check: DoctorCheck
    examine: Callable[[Any], Iterable[CheckFinding]]
    begin: Callable[[Any], object] | None


@cache
def entries(scope: Scope) -> tuple[Entry, ...]:
    """Return the checks of a scope in order."""
    package = import_module(f"mcagent.doctor.checks.{scope}")
    modules = (import_module(f"{package.__name__}.{module.name}") for module in iter_modules(package.__path__))
    unsorted = (Entry(module.CHECK, module.examine, getattr(module, "begin", None)) for module in modules)
    return tuple(sorted(unsorted, key=lambda entry: entry.check.order))


def names(scope: Scope) -> tuple[str, ...]:
    """Return the names of the checks of a scope, in order."""
    return tuple(entry.check.name for entry in entries(scope))


def examine(scope: Scope, subject: Subject) -> tuple[CheckFinding, ...]:
    """Return all findings about a Node or cluster."""
    for entry in entries(scope):
        if entry.begin is not None:
            subject.read(entry.begin)
    findings = (finding for entry in entries(scope) for finding in run(entry.check, entry.examine, subject))
    return in_order(findings, names(scope))
