"""Check `input` in a cluster: problems of its objects, if no agent answers."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.checks.cluster.cidrs import input_problems
from mcagent.doctor.checks.node.input import CHECK
from mcagent.doctor.checks.problems import findings_of_problems
from mcagent.doctor.examined import ExaminedCluster

__all__ = ["CHECK", "examine"]


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Yield the problems of objects."""
    if not cluster.answered:
        yield from findings_of_problems(
            CHECK, cluster.read(input_problems), "gateways and clusters are used as written"
        )
