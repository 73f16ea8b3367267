"""Check `plan`: differences between this Node and its desired state, of resources of every type."""

from __future__ import annotations

import time
from collections.abc import Iterator

from mcagent.agent.dry_run import compare, dry_run
from mcagent.api.doctor import CheckFinding, FindingLevel
from mcagent.core.plan.render import former_text, resource_text
from mcagent.doctor.check import DoctorCheck, failed, received
from mcagent.doctor.examined import ExaminedNode
from mcagent.model.errors import SourceError
from mcagent.model.plan import Step

CHECK = DoctorCheck(
    name="plan",
    order=180,
    summary="every bridge, port, flow, device, route, rule, chain and peer is as the agent would make it",
    causes={
        "Differs": failed(
            "the Node is not as objects and configuration ask for, and no agent has changed it for {seconds} s",
            "mcagent plan shows all differences; mcagent status and the agent's log tell why they stay",
        ),
    },
)
_TIMEOUT = 10.0  # seconds for listing objects
_AGAIN = 2  # seconds between two readings: an agent that runs needs less for a change


def differences(node: ExaminedNode) -> tuple[Step, ...]:
    """Return the steps to the desired state that two readings have in common. Raises SourceError, BackendError."""
    node.progress("the plan")
    steps = _steps(node)
    if steps:
        time.sleep(_AGAIN)
        remaining = {(step.backend, step.key, step.op) for step in _steps(node)}
        steps = tuple(step for step in steps if (step.backend, step.key, step.op) in remaining)
    return steps


def _steps(node: ExaminedNode) -> tuple[Step, ...]:
    if node.desired is None:
        _, plan = dry_run(node.settings, offline=False, timeout=_TIMEOUT)
    elif (desired := node.desired()) is not None:
        plan = compare(node.settings, desired)
    else:
        raise SourceError("the agent has not computed its desired state yet")
    return tuple(plan.steps)


def of_agent(node: ExaminedNode) -> tuple[CheckFinding, ...] | None:
    """Return what the agent of another process finds; None if no agent runs. Raises McagentError."""
    if node.agent_report is None:
        return None
    node.progress("the plan")
    findings = received(node.agent_report().findings, {CHECK.name})
    if not findings:
        raise SourceError("the agent's report has no check of the plan: it is of an earlier version")
    return findings


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Report the first difference of each type of resource, and how many there are.

    Without an agent it is a warning: what a new agent would change may differ from what the last one had learned.
    """
    if (findings := node.read(of_agent)) is not None:
        yield from findings
        return
    level = FindingLevel.WARNING if node.agent_error else None
    by_type: dict[str, list[Step]] = {}
    for step in node.read(differences):
        by_type.setdefault(type(step.resource).__name__, []).append(step)
    for name, steps in by_type.items():
        count = f" (and {len(steps) - 1} more)" if len(steps) > 1 else ""
        yield CHECK.finding("Differs", f"{_text(steps[0])}{count}", subject=name, level=level, seconds=_AGAIN)
    if not by_type:
        yield CHECK.passed("the Node is as it should be")


def _text(step: Step) -> str:
    if step.old is None:
        return f"missing: {resource_text(step.resource)}"
    if step.new is None:
        return f"not in the desired state: {resource_text(step.old)}"
    return f"{former_text(step.old)}; should be: {resource_text(step.new)}"
