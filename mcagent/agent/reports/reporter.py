"""Reports passes and turns of the loop.

`Reporter` turns the outcome of passes into log lines, metrics and the report that pages show. `TurnRecorder`
writes after each turn: Events of this Node (drift, contention, steps of a drain; each once), this Node's key in
its Gateway, the state of the systemd unit. Decides nothing of the dataplane.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from mcagent.agent.object_reader import ApiWriters
from mcagent.agent.pass_outcome import PassOutcome, Retry, kind_of
from mcagent.api.status import BackendStatus, PassStatus
from mcagent.core.failover.draining import NO_GATEWAY, Draining, Phase
from mcagent.core.health import encryption_error
from mcagent.core.plan.render import resource_text
from mcagent.model.dataplane.backend import Backend
from mcagent.model.event import Event
from mcagent.model.net import Network
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import MAX_ANTREA_CLUSTERS
from mcagent.model.parsing.links import ClusterLink, GatewayReport
from mcagent.model.plan import Op, Step
from mcagent.model.problem import Problem
from mcagent.observe.cluster_links import refused_pods
from mcagent.observe.gateways import LiveReport
from mcagent.observe.metrics.agent import Metrics
from mcagent.observe.report import Report
from mcagent.observe.standard import rfc3339
from mcagent.observe.systemd import Notifier
from mcagent.supervised import dead

log = logging.getLogger(__name__)

NAMED = 20  # steps, errors and problems listed; further ones are counted


class Reporter:
    """Keeps the report current. `passed` is called by the loop's thread; `report` may be read by any thread."""

    def __init__(self, backends: Iterable[Backend], metrics: Metrics) -> None:
        self._metrics = metrics
        self._errors: dict[Backend, tuple[str, ...]] = dict.fromkeys(backends, ())  # as logged last
        self._contended: dict[Backend, tuple[str, ...]] = {}
        self.report = Report(backends=tuple(BackendStatus(name=name) for name in self._errors))

    def passed(self, outcome: PassOutcome, *, trigger: str, error: str, retries: Mapping[Backend, Retry]) -> None:
        """Log a pass, count it and update the report. `error`: why the pass failed as a whole, or ""."""
        previous, now = self.report, time.time()
        counts = Counter((step.backend, kind_of(step), step.op) for step in outcome.done)
        failed = [str(backend_error) for failure in outcome.failures.values() for backend_error in failure.errors]
        last = PassStatus(
            at=rfc3339(now),
            trigger=trigger,
            result=_result(outcome, error),
            phases=dict(outcome.phases),
            changes={f"{backend} {kind} {op}": count for (backend, kind, op), count in sorted(counts.items())},
            steps=tuple(step_text(step) for step in outcome.done[:NAMED]),
            drift="; ".join(_cut([f"{step.backend}: {drift_text(step)}" for step in outcome.drift])),
            contended=tuple(text for texts in outcome.contended.values() for text in texts)[:NAMED],
            errors=(*((error,) if error else ()), *_cut(failed)),
        )
        self._metrics.passed(last.result, outcome.phases, now)
        self._count(outcome, counts)
        self._log(outcome, last)
        for name in self._errors:
            self._log_backend(name, outcome, retries)
        self.report = Report(
            desired=outcome.desired or previous.desired,
            converged=outcome.converged,
            waiting_for=tuple(sorted(outcome.waiting_for)),
            error=error,
            passes=previous.passes + 1,
            drift=previous.drift + len(outcome.drift),
            backends=tuple(self._backend(name, outcome, retries, now) for name in self._errors),
            last_pass=last,
            last_change=last if outcome.done else previous.last_change,
        )

    def _backend(
        self, name: Backend, outcome: PassOutcome, retries: Mapping[Backend, Retry], now: float
    ) -> BackendStatus:
        retry = retries.get(name)
        if retry is None and name in outcome.contended:
            return BackendStatus(name=name, errors=_cut(outcome.contended[name]))
        if retry is None:
            return BackendStatus(name=name, synced=outcome.desired is not None)
        at = now + retry.at - time.monotonic()
        return BackendStatus(
            name=name,
            failures=retry.failures,
            retry_at=None if at == float("inf") else rfc3339(at),
            errors=self._errors[name],
        )

    def _count(self, outcome: PassOutcome, counts: Counter[tuple[Backend, str, Op]]) -> None:
        for (_, kind, op), count in counts.items():
            self._metrics.changed(kind, op, count)
        for kind, count in Counter(map(kind_of, outcome.drift)).items():
            self._metrics.corrected(kind, count)
        for name, failure in outcome.failures.items():
            self._metrics.failed(name, failure.unreachable, len(failure.errors))

    def _log(self, outcome: PassOutcome, last: PassStatus) -> None:
        if outcome.waiting_for and tuple(sorted(outcome.waiting_for)) != self.report.waiting_for:
            log.info("waiting until these are listed: %s", ", ".join(sorted(outcome.waiting_for)))
        if outcome.drift:
            log.warning("reverted %d changes made by others: %s", len(outcome.drift), last.drift)
        if outcome.done:
            counted = ", ".join(f"{count} {change}" for change, count in last.changes.items())
            log.info("changed (%s) in %.0f ms: %s", last.trigger, 1000 * sum(last.phases.values()), counted)
        if log.isEnabledFor(logging.DEBUG):
            spent = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in last.phases.items())
            log.debug("pass (%s): %s; ms: %s", last.trigger, last.result, spent)
            for step in outcome.done:
                log.debug("%s", step_text(step))
        if outcome.converged and not self.report.converged:
            log.info("the dataplane is as it should be")
        if outcome.desired is not None:
            before = self.report.desired.problems if self.report.desired is not None else ()
            if outcome.desired.problems is not before:
                _log_problems(before, outcome.desired.problems)
            unreachable_before = self.report.desired.state.unreachable if self.report.desired is not None else ()
            _log_reach(set(unreachable_before), set(outcome.desired.state.unreachable))

    def _log_backend(self, name: Backend, outcome: PassOutcome, retries: Mapping[Backend, Retry]) -> None:
        """Log contention and errors that are new, and the end of errors."""
        contended = _cut(outcome.contended.get(name, ()))
        for text in contended if contended != self._contended.get(name, ()) else ():
            log.warning("%s", text)
        self._contended[name] = contended
        failure = outcome.failures.get(name)
        if failure is None and (name in retries or outcome.desired is None):
            return  # not tried in this pass
        errors = _cut([str(error) for error in failure.errors]) if failure is not None else ()
        for text in errors if errors != self._errors[name] else ():
            log.error("%s", text)
        if not errors and self._errors[name]:
            log.info("%s: works again", name)
        self._errors[name] = errors


def _log_problems(before: tuple[Problem, ...], now: tuple[Problem, ...]) -> None:
    earlier = set(before)
    added = [problem for problem in now if problem not in earlier]
    for problem in added[:NAMED]:
        log.warning("%s (%s)", problem, problem.reason)
    if len(added) > NAMED:
        log.warning("and %d more problems: see /status", len(added) - NAMED)
    if removed_count := len(earlier.difference(now)):
        log.info("%d problems are resolved", removed_count)


def _log_reach(before: set[str], now: set[str]) -> None:
    for name in sorted(now - before):
        text = "no gateway of this cluster reaches cluster %s: new connections to imported Services avoid it"
        log.warning(text, name)
    for name in sorted(before - now):
        log.info("cluster %s is reachable again or was removed; its endpoints are used again", name)


def _result(outcome: PassOutcome, error: str) -> str:
    if error or outcome.failures:
        return "failed"
    if outcome.waiting_for:
        return "waiting"
    return "changed" if outcome.done else "unchanged"


def step_text(step: Step) -> str:
    """Return "add flow ...", "replace route ...", "delete tunnel ..."."""
    return f"{step.op} {resource_text(step.resource)}"


def drift_text(step: Step) -> str:
    """Describe a step that reverted a change made outside of the agent."""
    text = resource_text(step.resource)
    if step.new is None:
        return f"removed what was added: {text}"
    if step.old is None:
        return f"put back what was gone: {text}"
    return f"put back {text} (it was changed to {resource_text(step.old)})"


def _cut(texts: Sequence[str]) -> tuple[str, ...]:
    return (*texts[:NAMED], *([f"and {len(texts) - NAMED} more"] if len(texts) > NAMED else []))


class TurnRecorder:
    """Records changes after a turn of the loop. `api` is None where there is no API server.

    `links` returns this gateway's present links to other clusters, `cluster_id` the configured `clusterID`.
    """

    def __init__(
        self,
        node: str,
        api: ApiWriters | None,
        links: Callable[[], Sequence[ClusterLink]],
        cluster_id: Callable[[], str],
    ) -> None:
        self._api, self._links, self._cluster_id = api, links, cluster_id
        self._events = NodeRecorder(node, api.events.record) if api is not None else None
        self._notifier = Notifier()
        self._problems: tuple[Problem, ...] = ()
        self._clusters: Mapping[str, AcceptedCluster] = {}
        self._refused_pods: Mapping[str, tuple[Network, ...]] = {}

    def turned(self, report: Report, live: LiveReport) -> None:
        """Publish the state after a turn of the loop, as far as it changed."""
        if self._events is not None:
            self._events.turned(report, live.draining)
        desired = report.desired
        if self._api is not None and desired is not None:
            if desired.problems != self._problems:
                self._problems = desired.problems
                self._api.events.problems(self._problems)
            encryption = desired.state.encryption
            publication = encryption.publication
            for publisher, due in (
                (self._api.publisher, publication),
                (self._api.node_publisher, encryption.node_publication),
            ):
                if due is None:
                    publisher.want_nothing()
                else:
                    publisher.want(due.meta, due.published, due.desired)
            gateway_report = GatewayReport(
                cluster_id=self._cluster_id(),
                antrea_clusters=tuple(sorted(live.antrea))[:MAX_ANTREA_CLUSTERS],
                unreachable_gateways=tuple(sorted(live.dead_gateways)),
                encryption_error=encryption_error(encryption, desired.problems),
                tunnel_mtu=desired.state.mtu,
                export_addresses=True,
                pod_prefixes=True,
            )
            if publication is not None:
                self._api.links.want(publication.meta, self._links, live.peers, gateway_report)
            else:  # what it reported as a gateway holds no longer
                self._api.links.want(desired.state.unserved_gateway, tuple, None, None)
            if desired.state.clusters is not self._clusters:
                self._clusters = desired.state.clusters
                refused = refused_pods(desired.state.clusters)
                if refused != self._refused_pods:  # links name these CIDRs
                    self._refused_pods = refused
                    self._api.links.wake()
        if not dead():  # else the watchdog ends the process
            self._notifier.turn(ready=report.converged, status=_status(report)[:500])

    def stopping(self) -> None:
        """Notify systemd that the process ends."""
        self._notifier.stopping()


class NodeRecorder:
    """Passes an Event of this Node to `record`, once for each occurrence."""

    def __init__(self, node: str, record: Callable[[Event], None]) -> None:
        self._subject, self._record = f"{Kind.NODE} {node}", record
        self._passes = 0
        self._contended: tuple[str, ...] = ()
        self._drain = Draining()

    def turned(self, report: Report, drain: Draining) -> None:
        """Publish the state after a turn of the loop, as far as it changed."""
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
            self._event("DrainRefused", f"drain has no effect: {drain.refused} ({drain.why})")
        elif drain.phase is not before.phase:
            if drain.phase is Phase.DRAINED:
                how = "" if drain.clean else "; packets still arrived at the end"
                self._event("GatewayDrained", f"other gateways have taken over: {drain.why}{how}", normal=True)
            elif drain.phase is Phase.SERVING:
                self._event("GatewayReturned", "in use as a gateway again", normal=True)
            elif before.phase is Phase.SERVING:
                self._event("GatewayDraining", f"draining to other gateways: {drain.why}", normal=True)

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
