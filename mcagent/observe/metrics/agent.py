"""The metrics of the agent: names, labels and counters, in a separate registry.

Naming follows the Prometheus rules: base units, `_total` for counters, timestamps instead of ages, bounded labels
(never an address or the text of an error). `StateCollector` reads values of other components (the report,
informers, Open vSwitch' counters) at scrape time; only events in passes are counted here.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mcagent.api.status import BackendStatus
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.conntrack import TableUse
from mcagent.model.dataplane.resources import PeerKind, PortStatistics, Resource, TunnelPort
from mcagent.model.informer_state import InformerState
from mcagent.model.node_state import NodeRole
from mcagent.model.plan import Desired
from mcagent.observe.exports import export_metrics
from mcagent.observe.gateways import LiveReport, TunnelCounters
from mcagent.observe.metric_families import by_word, counter, gauge, single
from mcagent.observe.metrics.liveness import liveness_metrics, probe_metrics
from mcagent.observe.metrics.policies import policy_metrics
from mcagent.observe.metrics.wireguard import wireguard_metrics
from mcagent.observe.report import Report
from mcagent.observe.standard import process_metrics
from mcagent.observe.wireguard import WireGuardReport

BACKENDS = tuple(Backend)
PHASES = ("facts", "compile", "observe", "diff", *(f"apply_{name}" for name in BACKENDS))
RESULTS = ("unchanged", "changed", "failed", "waiting")
_BACKEND_OF = {kind.__name__: str(kind.backend) for kind in get_args(Resource)}
KINDS = tuple(_BACKEND_OF)
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_TWICE = "on the userspace datapath Open vSwitch 3.1 counts each packet twice"
# Interface.statistics of ovs-vswitchd.conf.db(5) -> metric and its direction.
_STATISTICS = (
    ("receive_bytes", "rx_bytes", "Bytes received through a tunnel."),
    ("receive_packets", "rx_packets", "Packets received through a tunnel."),
    ("receive_drops", "rx_dropped", "Received packets of a tunnel that were dropped."),
    ("receive_errors", "rx_errors", "Received packets of a tunnel that were bad."),
    ("transmit_bytes", "tx_bytes", f"Bytes sent through a tunnel; {_TWICE}."),
    ("transmit_packets", "tx_packets", f"Packets sent through a tunnel; {_TWICE}."),
    ("transmit_drops", "tx_dropped", "Packets to a tunnel that were dropped."),
    ("transmit_errors", "tx_errors", "Packets to a tunnel that could not be sent."),
)


COUNTERS = tuple(key for _, key, _ in _STATISTICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Functions that read the state at scrape time. None of them raises an error or blocks for long."""

    report: Callable[[], Report]
    informers: Callable[[], Iterable[InformerState]]
    ready: Callable[[], bool]
    ports: Callable[[], Mapping[str, PortStatistics]]  # by name; empty: they could not be read
    drops: Callable[[], Mapping[str, int]]  # packets by reason
    recent: Callable[[], TunnelCounters] = dict  # what tunnels carried in the last seconds
    nft_drops: Callable[[], Mapping[str, int]] = dict
    # Packets by the number of the rule, and connections by the ID of an exported Service's port; None: unknown
    rules: Callable[[], Mapping[int, int] | None] = dict
    services: Callable[[], Mapping[int, int] | None] = dict
    live: Callable[[], LiveReport] = LiveReport
    probes: Callable[[], Mapping[str, ProbeState]] = dict  # by tunnel
    wireguard: Callable[[], WireGuardReport] = WireGuardReport
    conntrack: Callable[[], TableUse | None] = lambda: None


class Metrics:
    """The registry, and counters of passes (`mcagent.agent.reports.reporter` increments them)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._passes = Counter(
            "mcagent_reconciles",
            "Passes of the loop, by result: unchanged, changed, failed, waiting.",
            ["result"],
            registry=registry,
        )
        self._phases = Histogram(
            "mcagent_reconcile_duration_seconds",
            "Time of each phase of a pass: facts, compile, observe, diff, and apply per backend.",
            ["phase"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._success = Gauge(
            "mcagent_reconcile_last_success_timestamp_seconds",
            "When the dataplane was last known to equal the desired state; 0: never.",
            registry=registry,
        )
        self._changes = Counter(
            "mcagent_changes", "Changes made to the dataplane.", ["kind", "op"], registry=registry
        )
        self._drift = Counter(
            "mcagent_drift_corrections",
            "Changes that reverted a change by another program.",
            ["backend", "kind"],
            registry=registry,
        )
        self._errors = Counter(
            "mcagent_apply_errors",
            "Operations that a backend refused, and backends that could not be reached.",
            ["backend", "reason"],
            registry=registry,
        )
        for result in RESULTS:
            self._passes.labels(result)
        for phase in PHASES:
            self._phases.labels(phase)
        for kind in KINDS:
            self._drift.labels(_BACKEND_OF[kind], kind)
            for op in ("add", "replace", "delete"):
                self._changes.labels(kind, op)
        for backend in BACKENDS:
            for reason in ("unreachable", "refused"):
                self._errors.labels(backend, reason)

    def passed(self, result: str, phases: Mapping[str, float], at: float) -> None:
        """Count a pass."""
        self._passes.labels(result).inc()
        for phase, seconds in phases.items():
            self._phases.labels(phase).observe(seconds)
        if result in ("changed", "unchanged"):
            self._success.set(at)

    def changed(self, kind: str, op: str, count: int) -> None:
        """Count changes of the dataplane."""
        self._changes.labels(kind, op).inc(count)

    def corrected(self, kind: str, count: int) -> None:
        """Count corrections of drift."""
        self._drift.labels(_BACKEND_OF[kind], kind).inc(count)

    def failed(self, backend: str, unreachable: bool, count: int) -> None:
        """Count errors of a backend."""
        self._errors.labels(backend, "unreachable" if unreachable else "refused").inc(count)

    def watch(self, sources: Sources) -> None:
        """Register the collector that reads `sources` at every scrape."""
        self.registry.register(StateCollector(sources))


class StateCollector(Collector):
    """Metrics that are read at scrape time."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """Return no metric: which ones exist depends on the state at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read all sources once and yield their metrics."""
        sources = self._sources
        report = sources.report()
        yield from process_metrics(sources.ready())
        yield from _of_backends(report.backends)
        yield from _of_informers(tuple(sources.informers()))
        if report.desired is not None:
            ports = sources.ports()
            yield from _of_desired(report, report.desired)
            yield from _of_tunnels(report.tunnels, ports)
            state = report.desired.state
            exports = state.role is NodeRole.GATEWAY and state.services
            yield from export_metrics(state, sources.services() if exports else {})
            if named := report.desired.state.policy_rules:
                yield from policy_metrics(named, sources.rules())
            yield from wireguard_metrics(report.desired, sources.wireguard())
            yield from liveness_metrics(sources.live(), {name: port.counters for name, port in ports.items()})
            yield from probe_metrics(sources.live(), sources.probes())
        text = (
            "Packets that the pipeline dropped, by reason (pipeline.md; over-limit: beyond newConnections, "
            "fragments or 100 tunnel probes a second of one cluster)."
        )
        yield counter("mcagent_dropped_packets", text, ["reason"], by_word(sources.drops()))
        if (use := sources.conntrack()) is not None:
            text = "Entries of the connection tracking table that the bridge uses."
            yield single("mcagent_conntrack_entries", text, use.entries)
            text = "Limit of these entries; above it, new connections are dropped."
            yield single("mcagent_conntrack_entries_limit", text, use.limit)
        text = "Packets that our nft chains dropped, by reason (operations.md), since the chain was last changed."
        yield counter("mcagent_nft_dropped_packets", text, ["reason"], by_word(sources.nft_drops()))


def _of_backends(backends: Iterable[BackendStatus]) -> Iterator[Metric]:
    label = ["backend"]
    text = "1 when a backend is known to equal the desired state."
    yield gauge("mcagent_backend_synced", text, label, [([b.name], b.synced) for b in backends])
    text = "Consecutive passes in which a backend failed."
    yield gauge("mcagent_backend_consecutive_failures", text, label, [([b.name], b.failures) for b in backends])


def _of_informers(informers: Iterable[InformerState]) -> Iterator[Metric]:
    label = ["resource"]
    text = "1 when a kind was listed completely."
    yield gauge("mcagent_informer_synced", text, label, [([i.kind], i.synced) for i in informers])
    text = "1 when changes of a kind are being received."
    yield gauge("mcagent_informer_connected", text, label, [([i.kind], i.connected) for i in informers])
    text = "Objects of a kind that are known."
    yield gauge("mcagent_informer_objects", text, label, [([i.kind], i.objects) for i in informers])
    text = "Complete lists of a kind."
    yield counter("mcagent_informer_lists", text, label, [([i.kind], i.lists) for i in informers])
    text = "Changes of a kind that were reported."
    yield counter("mcagent_informer_events", text, label, [([i.kind], i.events) for i in informers])
    restarts = [([i.kind, reason], n) for i in informers for reason, n in sorted(i.restarts.items())]
    yield counter(
        "mcagent_watch_restarts",
        "Watches that were restarted, by reason; object-… and bad-line: input that could not be parsed.",
        ["resource", "reason"],
        restarts,
    )


def _of_desired(report: Report, desired: Desired) -> Iterator[Metric]:
    counts = Counts(type(resource).__name__ for resource in report.resources)
    text = "Resources of the desired state, by kind."
    yield gauge("mcagent_objects", text, ["kind"], [([kind], counts[kind]) for kind in KINDS])
    problem_counts = Counts((problem.reason, str(problem.severity)) for problem in desired.problems)
    text = "Problems of the input, by reason (architecture.md) and severity."
    yield gauge("mcagent_problems", text, ["reason", "severity"], sorted(problem_counts.items()))
    text = (
        "Clusters that no gateway of this one reaches, to which imported Services send no new connections "
        "(importedTraffic)."
    )
    yield single("mcagent_unreachable_clusters", text, len(desired.state.unreachable))
    active = desired.state.role is NodeRole.GATEWAY
    yield single("mcagent_gateway_active", "1 when this Node is a gateway.", active)


def _of_tunnels(tunnels: Iterable[TunnelPort], ports: Mapping[str, PortStatistics]) -> Iterator[Metric]:
    counts = Counts(tunnel.peer_kind for tunnel in tunnels)
    text = "Tunnels that should exist."
    yield gauge("mcagent_tunnels", text, ["peer_kind"], [([kind], counts[kind]) for kind in PeerKind])
    labels = ["peer_kind", "peer", "tunnel"]
    statistics = [
        ((str(tunnel.peer_kind), tunnel.peer, tunnel.name), ports.get(tunnel.name)) for tunnel in tunnels
    ]
    up = [(values, port is not None and port.link_up) for values, port in statistics if ports]
    yield gauge(
        "mcagent_tunnel_up", "1 when a tunnel exists and its link is up, independent of its peer.", labels, up
    )
    for name, key, text in _STATISTICS:
        rows = [(values, port.counters.get(key, 0)) for values, port in statistics if port is not None]
        yield counter(f"mcagent_tunnel_{name}", text, labels, rows)
