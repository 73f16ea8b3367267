"""The output of `mcagent plan -o json`: steps, the desired state, or a forecast (`--what-if`).

Resources have the members of the dataplane's values, `resource` (their kind) and `backend`; they are not stable.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from mcagent.api.codec import VERSION, CamelRecord, Record
from mcagent.api.status import ProblemStatus

Resource = dict[str, Any]


class PlanStep(Record, frozen=True):
    """One change. `op`: add, replace or delete; `owner` as "cluster/west"."""

    op: str = ""
    owner: str = ""
    old: Resource | None = None
    new: Resource | None = None


class PlanStage(Record, frozen=True):
    """Steps of one kind, which a backend applies together."""

    backend: str = ""
    title: str = ""
    steps: tuple[PlanStep, ...] = ()


class PlanReport(Record, frozen=True):
    """Steps in order. `counts` by op."""

    api_version: str = field(name="apiVersion", default=VERSION)
    counts: dict[str, int] = {}
    stages: tuple[PlanStage, ...] = ()
    problems: tuple[ProblemStatus, ...] = ()


class DesiredState(Record, frozen=True):
    """The desired state (`--desired`), by owner."""

    api_version: str = field(name="apiVersion", default=VERSION)
    fragments: dict[str, tuple[Resource, ...]] = {}
    problems: tuple[ProblemStatus, ...] = ()
    summary: dict[str, Any] = {}


class ForecastChange(Record, frozen=True):
    """A change. `effect`: lost, broken, moved, gained, noted; `share`: of the connections (0 to 1), None: all.

    `nodes` and `clusters`: those whose connections change, if not all.
    """

    effect: str = ""
    text: str = ""
    share: float | None = None
    nodes: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    before: dict[str, float] = {}  # by gateway
    after: dict[str, float] = {}


class ForecastReport(CamelRecord, frozen=True):
    """A forecast. `connections`: open ones of this Node by cluster and by opened, translated, arrived."""

    api_version: str = VERSION
    what_if: tuple[str, ...] = ()
    nothing_changes: bool = False
    already_silent: tuple[str, ...] = ()
    findings: tuple[ForecastChange, ...] = ()
    connections: dict[str, dict[str, int]] | None = None
    node: str = ""
    plan: PlanReport = PlanReport()
