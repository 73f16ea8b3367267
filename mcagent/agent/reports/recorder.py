"""What is recorded outside the process after each turn of the loop: Events, this Node's key, the unit's state.

Decides what is worth an Event of this Node (drift, contention, steps of a drain); each happens once.
"""

from __future__ import annotations

from collections.abc import Callable

from mcagent.agent.objects import Api
from mcagent.core.failover.draining import NO_GATEWAY, Draining, Phase
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem
from mcagent.observe.report import Report
from mcagent.observe.systemd import Notifier
from mcagent.supervised import dead


class TurnRecorder:
    """Records what a turn of the loop changed. `api` is None where there is no API server."""

    def __init__(self, node: str, api: Api | None) -> None:
        self._api = api
        self._events = NodeRecorder(node, api.events.record) if api is not None else None
        self._notifier = Notifier()
        self._problems: tuple[Problem, ...] = ()

    def turned(self, report: Report, drain: Draining) -> None:
        """Take in the state after a turn of the loop."""
        if self._events is not None:
            self._events.turned(report, drain)
        desired = report.desired
        if self._api is not None and desired is not None:
            if desired.problems != self._problems:
                self._problems = desired.problems
                self._api.events.problems(self._problems)
            if (found := desired.state.encryption.publication) is not None:
                self._api.publisher.want(found.meta, found.there, found.wanted)
        if not dead():  # else the watchdog ends the process
            self._notifier.turn(ready=report.converged, status=_status(report)[:500])

    def stopping(self) -> None:
        """The process ends."""
        self._notifier.stopping()


class NodeRecorder:
    """Hands an Event of this Node to `record` once for each thing that happens."""

    def __init__(self, node: str, record: Callable[[Event], None]) -> None:
        self._subject, self._record = f"{Kind.NODE} {node}", record
        self._passes = 0
        self._contended: tuple[str, ...] = ()
        self._drain = Draining()

    def turned(self, report: Report, drain: Draining) -> None:
        """Take in the state after a turn of the loop."""
        last = report.last_pass
        if last is not None and report.passes != self._passes:
            self._passes = report.passes
            if last.drift:
                self._event("DriftCorrected", last.drift)
            if last.contended and last.contended != self._contended:
                self._event("ChangedAgainAndAgain", "; ".join(last.contended))
            self._contended = last.contended
        before, self._drain = self._drain, drain
        if drain.refused and drain.refused not in (before.refused, NO_GATEWAY):
            self._event("DrainRefused", f"nothing is handed over though {drain.why}: {drain.refused}")
        elif drain.phase is not before.phase:
            if drain.phase is Phase.DRAINED:
                how = "" if drain.clean else "; some packets still came to the end"
                self._event("GatewayDrained", f"other gateways have taken over: {drain.why}{how}", normal=True)
            elif drain.phase is Phase.SERVING:
                self._event("GatewayReturned", "it is a gateway again", normal=True)
            elif before.phase is Phase.SERVING:
                self._event("GatewayDraining", f"other gateways are to take over: {drain.why}", normal=True)

    def _event(self, reason: str, message: str, *, normal: bool = False) -> None:
        self._record(Event(subject=self._subject, reason=reason, message=message, warning=not normal))


def _status(report: Report) -> str:
    """Return one line for `systemctl status`."""
    if report.error:
        return f"nothing is changed: {report.error}"
    if report.waiting_for:
        return f"waiting for objects: {', '.join(report.waiting_for)}"
    if report.converged and report.desired is not None:
        return f"{report.desired.state.role}: the dataplane is as it should be"
    return "; ".join(text for backend in report.backends for text in backend.errors) or "starting"
