"""Check `agent`: the agent's own status."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.node.api import api_server
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import switch

CHECK = DoctorCheck(
    name="agent",
    order=10,
    summary="the agent answers, its loop runs, the dataplane equals the desired state",
    causes={
        "AgentSilent": failed(
            "forwarding continues, but changes of the API are not applied and drift is not repaired",
            "kubectl -n kube-system get pods -l app.kubernetes.io/component=agent -o wide; then `kubectl logs "
            "--previous`, or journalctl -u mcagent",
        ),
        "AgentNotReady": failed(
            "the dataplane differs from the desired state, or changes are not received",
            "mcagent status; the agent's log says what was refused",
        ),
        "AgentThreadDead": failed(
            "a part of the agent has ended, which is a bug",
            "restart the agent, which drops no traffic, and report it with `mcagent doctor --bundle FILE.tgz`",
        ),
        "Draining": warning(
            "other gateways were asked to take over from this Node", "mcagent undrain, to end the drain"
        ),
    },
)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate the agent's status."""
    status = node.status
    if node.agent_error:
        yield CHECK.finding("AgentSilent", node.agent_error)
        return
    if not status.alive:
        yield CHECK.finding("AgentThreadDead", "a thread of the agent does not run (/healthz names it)")
    draining = status.drain.phase not in ("", "serving")
    if draining:
        yield CHECK.finding("Draining", f"{status.drain.phase}: {status.drain.why}")
    reported_elsewhere = _conditions_of_other_checks(node)
    missing = [
        f"{condition.name}: {condition.text}"
        for condition in status.checks
        if not condition.good and condition.name not in reported_elsewhere
    ]
    if missing:
        yield CHECK.finding("AgentNotReady", "; ".join(missing))
    elif status.alive and not draining:
        yield CHECK.passed(f"version {status.version}, {status.summary.role or 'no role'}")


def _conditions_of_other_checks(node: ExaminedNode) -> set[str]:
    """Return the conditions of readiness that other checks report."""
    api, open_vswitch = node.read(api_server), node.read(switch)
    names = {"connected"} if api.used else set()
    names |= {"listed", "dataplane"} if api.error else set()
    return names | ({"backend ovsdb", "backend openflow", "dataplane"} if open_vswitch.away else set())
