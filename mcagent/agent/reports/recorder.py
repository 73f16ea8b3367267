"""What becomes an Event of this Node: drift that is corrected, contention, steps of a drain."""

from __future__ import annotations

from collections.abc import Callable

from mcagent.core.failover.draining import NO_GATEWAY, Draining, Phase
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.observe.report import Report


class NodeRecorder:
    """Hands an Event to `tell` once for each thing that happens."""

    def __init__(self, node: str, tell: Callable[[Event], None]) -> None:
        self._subject, self._tell = f"{Kind.NODE} {node}", tell
        self._passes = 0
        self._fights: tuple[str, ...] = ()
        self._drain = Draining()

    def turned(self, report: Report, drain: Draining) -> None:
        """Take in the state after a turn of the loop."""
        last = report.last_pass
        if last is not None and report.passes != self._passes:
            self._passes = report.passes
            if last.drift:
                self._say("DriftCorrected", last.drift)
            if last.contended and last.contended != self._fights:
                self._say("ChangedAgainAndAgain", "; ".join(last.contended))
            self._fights = last.contended
        before, self._drain = self._drain, drain
        if drain.refused and drain.refused not in (before.refused, NO_GATEWAY):
            self._say("DrainRefused", f"nothing is handed over though {drain.why}: {drain.refused}")
        elif drain.phase is not before.phase:
            if drain.phase is Phase.DRAINED:
                how = "" if drain.clean else "; some packets still came to the end"
                self._say("GatewayDrained", f"other gateways have taken over: {drain.why}{how}", normal=True)
            elif drain.phase is Phase.SERVING:
                self._say("GatewayReturned", "it is a gateway again", normal=True)
            elif before.phase is Phase.SERVING:
                self._say("GatewayDraining", f"other gateways are to take over: {drain.why}", normal=True)

    def _say(self, reason: str, message: str, *, normal: bool = False) -> None:
        self._tell(Event(subject=self._subject, reason=reason, message=message, warning=not normal))
