"""The metrics of the controller, read at every scrape from what is counted anyway.

Labels are bounded: reconcilers, sides, kinds, verbs and codes, never a name of an object.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.serving.pages import Process
from mcagent.controller.machinery.statistics import RESULTS, Durations
from mcagent.core.health import HealthReason
from mcagent.observe.metric_families import by_word, counter, gauge, histogram, single
from mcagent.observe.standard import process_metrics


def registry(process: Process) -> CollectorRegistry:
    """Return a registry that reads these at every scrape."""
    collector_registry = CollectorRegistry()
    collector_registry.register(_Collector(process))
    return collector_registry


class _Collector(Collector):
    def __init__(self, process: Process) -> None:
        self._process = process

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        process, engine = self._process, self._process.engine
        yield from process_metrics(process.ready(), prefix="mcagent_controller")
        yield single("mcagent_controller_is_leader", "1 when this replica holds the Lease.", process.leading())
        yield counter(
            "mcagent_controller_events",
            "Events, by result: written, there already, failed, dropped.",
            ["result"],
            by_word(process.events()),
        )
        yield gauge(
            "mcagent_controller_unhealthy_clusters",
            "Clusters that are not healthy, by reason: on a member this one, on a leader also members.",
            ["reason"],
            by_word({**dict.fromkeys(HealthReason, 0), **process.unhealthy()}),
        )
        if process.members is not None:
            yield gauge(
                "mcagent_controller_members",
                "Members of the ClusterSets that this cluster leads, by state: ready, away.",
                ["state"],
                by_word(process.members()),
            )
        yield from _work(engine)
        yield from _requests(engine)
        yield from _informers(engine)
        yield from self._webhook()

    def _webhook(self) -> Iterator[Metric]:
        reviews = sorted(self._process.reviews().items())
        yield counter("mcagent_controller_webhook_requests", "Admission reviews.", ["kind", "answer"], reviews)
        yield histogram(
            "mcagent_controller_webhook_duration_seconds",
            "Time of an admission review.",
            [],
            {(): self._process.review_durations()},
        )
        yield single(
            "mcagent_controller_webhook_certificate_expiry_timestamp_seconds",
            "When the webhook's certificate expires; it is renewed after two thirds of its time. 0: none.",
            self._process.certificate_expiry(),
        )


def _work(engine: Engine) -> Iterator[Metric]:
    depths, statistics = engine.depths(), engine.worker.statistics
    label = ["reconciler"]
    yield gauge("mcagent_controller_queue_depth", "Keys that wait for a worker.", label, by_word(depths))
    later, now = engine.waiting()
    yield single("mcagent_controller_queue_delayed", "Keys that wait for their time.", later)
    yield single("mcagent_controller_queue_active", "Keys that are worked on.", now)
    results = statistics.results()
    reconciles = [
        ([name, result], results.get((name, result), 0)) for name in sorted(depths) for result in RESULTS
    ]
    text = "Keys reconciled, by result: unchanged, changed, conflict, failed, away, not-leading, bug."
    yield counter("mcagent_controller_reconciles", text, ["reconciler", "result"], reconciles)
    durations: dict[tuple[str, ...], Durations] = {
        (name,): times for name, times in sorted(statistics.durations().items())
    }
    text = "Time to reconcile a key, writes included."
    yield histogram("mcagent_controller_reconcile_duration_seconds", text, label, durations)
    labels = ["reconciler", "side", "kind", "verb"]
    yield counter("mcagent_controller_writes", "Objects written.", labels, sorted(statistics.writes().items()))
    yield single(
        "mcagent_controller_refused_objects",
        "Objects whose last write was refused.",
        len(engine.written.failures()),
    )
    yield single(
        "mcagent_controller_contended_objects",
        "Objects that are written the same way again and again.",
        len(engine.written.repeated()),
    )


def _requests(engine: Engine) -> Iterator[Metric]:
    yield counter(
        "mcagent_controller_api_requests",
        "Writes and single reads asked of API servers, by HTTP status, or ok, unreachable, garbage.",
        ["side", "verb", "code"],
        sorted(engine.worker.statistics.requests().items()),
    )
    if engine.connection is not None:
        leader = engine.view.leader
        yield single(
            "mcagent_controller_leader_connected",
            "1 when the leader of the ClusterSet answers.",
            leader is not None and leader.connected,
        )
        yield single(
            "mcagent_controller_leader_changed_timestamp_seconds",
            "When the leader last began or ceased to answer.",
            leader.since if leader is not None else 0.0,
        )
        token = leader.token if leader is not None else None
        yield single(
            "mcagent_controller_leader_token_expiry_timestamp_seconds",
            "When the token of the leader expires. 0: never, or there is none.",
            token.expires if token is not None else 0.0,
        )
        yield single(
            "mcagent_controller_leader_token_renewal_timestamp_seconds",
            "When the leader's token must be new: after two thirds of its life. 0: it does not expire.",
            0.0 if token is None else token.renewal if token.anchor else token.late,
        )


def _informers(engine: Engine) -> Iterator[Metric]:
    labels = ["side", "kind"]
    states = [([side, state.kind], state) for side, states in engine.informers().items() for state in states]
    objects = [
        ([side, state.kind], engine.cache.count(side, state.kind))
        for side, states in engine.informers().items()
        for state in states
    ]
    yield gauge("mcagent_controller_objects", "Objects known, by kind.", labels, objects)
    connected = [(values, state.connected) for values, state in states]
    yield gauge("mcagent_controller_informer_connected", "1 while a watch is open.", labels, connected)
    events = [(values, state.events) for values, state in states]
    yield counter("mcagent_controller_informer_events", "Watch events.", labels, events)
    restarts = [([*values, reason], n) for values, state in states for reason, n in sorted(state.restarts.items())]
    yield counter(
        "mcagent_controller_informer_restarts",
        "Watches begun anew, by reason; object-… and bad-line: what could not be read.",
        [*labels, "reason"],
        restarts,
    )
