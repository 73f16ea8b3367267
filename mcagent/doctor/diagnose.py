"""Runs all checks on this Node, or on a cluster with the reports of its agents. Raises no error.

Needs neither agent nor Open vSwitch nor API server: a part that fails is a finding, and stops no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mcagent.agent.config import Settings
from mcagent.agent.dry_run import dry_run
from mcagent.api.codec import converted, from_json
from mcagent.api.doctor import ClusterReport, NodeReport
from mcagent.api.status import ProblemStatus, Status, Summary
from mcagent.doctor.catalogue import Scope, examine, names
from mcagent.doctor.check import received
from mcagent.doctor.checks.cluster import agents
from mcagent.doctor.examined import TIMEOUT, ExaminedCluster, ExaminedNode, Progress
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.config import Config
from mcagent.model.errors import McagentError, SourceError
from mcagent.model.plan import Desired

_DRY_RUN = 5.0  # seconds: time-out for listing objects when the agent does not answer


def diagnose(
    settings: Settings,
    status: Status | None,
    error: str = "",
    progress: Progress = lambda _: None,
    *,
    probed_pod: str = "",
    desired: Callable[[], Desired | None] | None = None,
    ask: Callable[[], NodeReport] | None = None,
) -> NodeReport:
    """Examine this Node. `status`: the agent's, or None if it does not answer; `error` is the reason then.

    `ask` returns the agent's page /doctor, or raises McagentError. `probed_pod`, `desired`: see `ExaminedNode`.

    Raises no error. Takes a few seconds, and longer only if the kernel or Open vSwitch is slow.
    """
    began, problems_error = time.monotonic(), ""
    if status is None:
        progress("the agent does not answer: reading objects instead")
        try:
            status = _status_without_agent(settings)
        except (McagentError, OSError) as failure:
            status, problems_error = Status(), str(failure)
    node = ExaminedNode(
        settings,
        status,
        error,
        progress,
        probed_pod=probed_pod,
        problems_error=problems_error,
        desired=desired,
        agent_report=None if error else ask,
    )
    findings = examine(Scope.NODE, node)
    return NodeReport(
        node=status.node or settings.core.node_name,
        agent_version=status.version,
        seconds=round(time.monotonic() - began, 1),
        findings=findings,
    )


def _status_without_agent(settings: Settings) -> Status:
    """Return the role and the problems that the agent would report. Raises McagentError, OSError."""
    desired, _ = dry_run(settings, offline=False, timeout=_DRY_RUN)
    problems = converted(tuple[ProblemStatus, ...], desired.problems)
    return Status(summary=Summary(role=desired.state.role), problems=problems)


def diagnose_cluster(
    client: Client, name: str, config: Config, answered: Collection[str], progress: Progress
) -> ClusterReport:
    """Examine a cluster by its API. Raises no error."""
    name = name or client.server
    try:
        clock = client.clock(timeout=TIMEOUT)
    except ApiRefusalError:
        clock = None  # it answers; a check reports what it refuses
    except SourceError as error:
        away = agents.CHECK.finding("ClusterAway", str(error))
        return ClusterReport(cluster=name, server=client.server, findings=(away,))
    findings = examine(Scope.CLUSTER, ExaminedCluster(client, config, answered, progress, clock=clock))
    return ClusterReport(cluster=name, server=client.server, findings=findings)


def node_report(node: str, page: Mapping[str, Any] | None, error: str) -> NodeReport:
    """Decode an agent's page /doctor; without one, the report has one finding with `error`."""
    report = NodeReport()
    if page is not None:
        try:
            report = from_json(NodeReport, page, "its answer")
        except McagentError as failure:
            error = str(failure)
    findings = received(report.findings, names(Scope.NODE))
    if not findings:
        findings = (agents.CHECK.finding("AgentNotAsked", error or "its answer holds no findings"),)
    return NodeReport(node=node, agent_version=report.agent_version, seconds=report.seconds, findings=findings)


def was_asked(report: NodeReport) -> bool:
    """Tell whether the Node's agent has answered."""
    return all(finding.reason != "AgentNotAsked" for finding in report.findings)
