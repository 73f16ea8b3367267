"""The metrics of the controller, read at scrape time from what counts anyway. Names follow the Prometheus rules.

Labels are bounded: reconcilers, sides, kinds, verbs and codes, never a name of an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.statistics import RESULTS, Durations
from mcagent.observe.threads import thread_metrics
from mcagent.observe.version import version


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the numbers come from. None of them raises or blocks for long."""

    engine: Engine
    leading: Callable[[], bool]  # this replica may write
    ready: Callable[[], bool]
    webhook: Callable[[], Mapping[tuple[str, str], int]]  # reviews by kind and answer
    webhook_seconds: Callable[[], Durations]
    certificate_expiry: Callable[[], float]  # seconds since the epoch; 0.0: there is none
    events: Callable[[], Mapping[str, int]]  # Events by outcome


def registry(sources: Sources) -> CollectorRegistry:
    """Return a registry that reads these at every scrape."""
    made = CollectorRegistry()
    made.register(_Collector(sources))
    return made


def text(made: CollectorRegistry) -> str:
    """Return everything in the Prometheus text format."""
    return generate_latest(made).decode()


class _Collector(Collector):
    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._process()
        yield from self._work()
        yield from self._connections()
        yield from self._webhook()
        yield from thread_metrics()

    def _process(self) -> Iterator[Metric]:
        sources = self._sources
        info = GaugeMetricFamily("mcagent_build_info", "Version of the controller.", labels=["version"])
        info.add_metric([version()], 1)
        yield info
        yield GaugeMetricFamily(
            "mcagent_controller_is_leader", "Whether this replica holds the Lease.", value=sources.leading()
        )
        yield GaugeMetricFamily("mcagent_controller_ready", "What /readyz tells.", value=sources.ready())
        events = CounterMetricFamily(
            "mcagent_controller_events", "Events, by what became of them.", labels=["result"]
        )
        for result, count in sorted(sources.events().items()):
            events.add_metric([result], count)
        yield events

    def _work(self) -> Iterator[Metric]:
        engine = self._sources.engine
        depth = GaugeMetricFamily(
            "mcagent_controller_queue_depth", "Keys that wait for a worker.", labels=["reconciler"]
        )
        for name, count in sorted(engine.depths().items()):
            depth.add_metric([name], count)
        yield depth
        later, now = engine.waiting()
        yield GaugeMetricFamily("mcagent_controller_queue_delayed", "Keys that wait for their time.", value=later)
        yield GaugeMetricFamily("mcagent_controller_queue_active", "Keys that are worked on.", value=now)
        results = engine.worker.statistics.results()
        looks = CounterMetricFamily(
            "mcagent_controller_reconciles", "Looks at a key, by result.", labels=["reconciler", "result"]
        )
        for name in sorted(engine.depths()):
            for result in RESULTS:
                looks.add_metric([name, result], results.get((name, result), 0))
        yield looks
        seconds = HistogramMetricFamily(
            "mcagent_controller_reconcile_duration_seconds",
            "Time of a look at a key, writes included.",
            labels=["reconciler"],
        )
        for name, durations in sorted(engine.worker.statistics.durations().items()):
            seconds.add_metric([name], durations.buckets(), durations.total)
        yield seconds
        writes = CounterMetricFamily(
            "mcagent_controller_writes",
            "Objects written.",
            labels=["reconciler", "side", "kind", "verb"],
        )
        for labels, count in sorted(engine.worker.statistics.writes().items()):
            writes.add_metric(list(labels), count)
        yield writes
        yield GaugeMetricFamily(
            "mcagent_controller_refused_objects",
            "Objects whose last write was refused.",
            value=len(engine.view.failures()),
        )
        yield GaugeMetricFamily(
            "mcagent_controller_contended_objects",
            "Objects that are written the same way again and again.",
            value=len(engine.worker.repeats.repeated()),
        )

    def _connections(self) -> Iterator[Metric]:
        engine = self._sources.engine
        requests = CounterMetricFamily(
            "mcagent_controller_api_requests",
            "Writes and single reads asked of API servers, by HTTP status, or ok, unreachable, garbage.",
            labels=["side", "verb", "code"],
        )
        for labels, count in sorted(engine.worker.counts.read().items()):
            requests.add_metric(list(labels), count)
        yield requests
        objects = GaugeMetricFamily(
            "mcagent_controller_objects", "Objects known, by kind.", labels=["side", "kind"]
        )
        connected = GaugeMetricFamily(
            "mcagent_controller_informer_connected", "Whether a watch is open.", labels=["side", "kind"]
        )
        events = CounterMetricFamily(
            "mcagent_controller_informer_events", "Watch events.", labels=["side", "kind"]
        )
        restarts = CounterMetricFamily(
            "mcagent_controller_informer_restarts", "Watches begun anew.", labels=["side", "kind", "reason"]
        )
        for side, states in engine.informers().items():
            for state in states:
                objects.add_metric([side, state.kind], engine.cache.count(side, state.kind))
                connected.add_metric([side, state.kind], state.connected)
                events.add_metric([side, state.kind], state.events)
                for reason, count in sorted(state.restarts.items()):
                    restarts.add_metric([side, state.kind, reason], count)
        yield from (objects, connected, events, restarts)
        if engine.connection is not None:
            leader = engine.view.leader
            yield GaugeMetricFamily(
                "mcagent_controller_leader_connected",
                "Whether the leader of the ClusterSet answers.",
                value=leader is not None and leader.connected,
            )
            yield GaugeMetricFamily(
                "mcagent_controller_leader_changed_timestamp_seconds",
                "When that last changed.",
                value=leader.since if leader is not None else 0.0,
            )

    def _webhook(self) -> Iterator[Metric]:
        reviews = CounterMetricFamily(
            "mcagent_controller_webhook_requests", "Admission reviews.", labels=["kind", "answer"]
        )
        for labels, count in sorted(self._sources.webhook().items()):
            reviews.add_metric(list(labels), count)
        yield reviews
        durations = self._sources.webhook_seconds()
        seconds = HistogramMetricFamily(
            "mcagent_controller_webhook_duration_seconds", "Time of an admission review."
        )
        seconds.add_metric([], durations.buckets(), durations.total)
        yield seconds
        yield GaugeMetricFamily(
            "mcagent_controller_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate of the webhook expires.",
            value=self._sources.certificate_expiry(),
        )
