"""The metrics of the agent: names, labels and counters, in a registry of their own.

Naming follows the Prometheus rules: base units, `_total` for counters, timestamps instead of ages, bounded labels
(never an address or a text of an error). Everything whose truth is elsewhere (the report, informers, Open vSwitch'
own counters) is read at scrape time by `StateCollector`; only what happens in passes is counted here.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mcagent.model.node_state import Role
from mcagent.model.plan import Desired
from mcagent.model.resources import PeerKind, TunnelPort
from mcagent.observe.gateway_metrics import liveness_metrics
from mcagent.observe.gateways import LiveReport
from mcagent.observe.report import InformerReport, Report
from mcagent.observe.threads import thread_metrics
from mcagent.observe.version import version
from mcagent.observe.wireguard import WireGuardReport, wireguard_metrics

BACKENDS = ("ovsdb", "openflow", "netlink", "nft", "wireguard")
PHASES = ("facts", "compile", "observe", "diff", *(f"apply_{name}" for name in BACKENDS))
RESULTS = ("unchanged", "changed", "failed", "waiting")
KINDS = (
    "Bridge", "HostPort", "TunnelPort", "FlowEntry", "GroupEntry", "MeterEntry",
    "Link", "LinkAddress", "Neighbour", "Route", "Rule", "NftChain", "NftSet",
    "WireGuardDevice", "WireGuardPeer",
)  # fmt: skip
_COUNTS = (3, 3, 5, 2, 2)  # of kinds of each facility, in order
_BACKEND_OF = dict(
    zip(KINDS, (name for name, n in zip(BACKENDS, _COUNTS, strict=True) for _ in range(n)), strict=True)
)
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# Interface.statistics of ovs-vswitchd.conf.db(5) -> metric and its direction.
_STATISTICS = (
    ("receive_bytes", "rx_bytes", "Bytes received through a tunnel."),
    ("receive_packets", "rx_packets", "Packets received through a tunnel."),
    ("receive_drops", "rx_dropped", "Received packets of a tunnel that were dropped."),
    ("receive_errors", "rx_errors", "Received packets of a tunnel that were bad."),
    ("transmit_bytes", "tx_bytes", "Bytes sent through a tunnel."),
    ("transmit_packets", "tx_packets", "Packets sent through a tunnel."),
    ("transmit_drops", "tx_dropped", "Packets to a tunnel that were dropped."),
    ("transmit_errors", "tx_errors", "Packets to a tunnel that could not be sent."),
)


COUNTERS = tuple(key for _, key, _ in _STATISTICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelSample:
    """What Open vSwitch says of one of our tunnel ports. `up`: None when it does not say."""

    name: str
    statistics: Mapping[str, int]
    up: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the state comes from at scrape time. None of them raises or blocks for long."""

    report: Callable[[], Report]
    informers: Callable[[], Iterable[InformerReport]]
    ready: Callable[[], bool]
    tunnels: Callable[[], Iterable[TunnelSample]]
    drops: Callable[[], Mapping[str, int]]  # packets by reason
    nft_drops: Callable[[], Mapping[str, int]] = dict
    live: Callable[[], LiveReport] = LiveReport
    wireguard: Callable[[], WireGuardReport] = WireGuardReport


class Metrics:
    """The registry, and the counters that passes feed (`mcagent.agent.reporting.PassMetrics`)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        info = Gauge("mcagent_build_info", "Version of the agent.", ["version"], registry=registry)
        info.labels(version()).set(1)
        self._passes = Counter("mcagent_reconciles", "Passes of the loop.", ["result"], registry=registry)
        self._phases = Histogram(
            "mcagent_reconcile_duration_seconds",
            "Time of each phase of a pass.",
            ["phase"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._success = Gauge(
            "mcagent_reconcile_last_success_timestamp_seconds",
            "When the dataplane was last known to equal the desired state.",
            registry=registry,
        )
        self._changes = Counter("mcagent_changes", "Changes to the dataplane.", ["kind", "op"], registry=registry)
        self._drift = Counter(
            "mcagent_drift_corrections",
            "Changes that put back what somebody else had changed.",
            ["backend", "kind"],
            registry=registry,
        )
        self._errors = Counter(
            "mcagent_apply_errors", "Operations that a facility refused.", ["backend", "reason"], registry=registry
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

    def changed(self, backend: str, kind: str, op: str, count: int) -> None:  # noqa: ARG002 - the kind implies it
        """Count changes made."""
        self._changes.labels(kind, op).inc(count)

    def corrected(self, kind: str, count: int) -> None:
        """Count drift put right."""
        self._drift.labels(_BACKEND_OF[kind], kind).inc(count)

    def failed(self, backend: str, unreachable: bool, count: int) -> None:
        """Count errors."""
        self._errors.labels(backend, "unreachable" if unreachable else "refused").inc(count)

    def watch(self, sources: Sources) -> None:
        """Read these at every scrape."""
        self.registry.register(StateCollector(sources))

    def text(self) -> str:
        """Return everything in the Prometheus text format."""
        return generate_latest(self.registry).decode()


class StateCollector(Collector):
    """Metrics that are read, not counted."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        report = self._sources.report()
        ready = GaugeMetricFamily("mcagent_ready", "1 when /readyz says so.")
        ready.add_metric([], float(self._sources.ready()))
        yield ready
        yield from _of_report(report)
        yield from _of_informers(self._sources.informers())
        if report.desired is not None:
            samples = list(self._sources.tunnels())
            yield from _of_desired(report.desired)
            yield from _of_tunnels(report.desired, samples)
            yield from wireguard_metrics(report.desired, self._sources.wireguard())
            yield from liveness_metrics(self._sources.live(), {s.name: s.statistics for s in samples})
        drops = CounterMetricFamily(
            "mcagent_dropped_packets", "Packets that the pipeline dropped, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._sources.drops().items()):
            drops.add_metric([reason], count)
        yield drops
        nft_drops = CounterMetricFamily(
            "mcagent_nft_dropped_packets", "Packets that our nft chains dropped, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._sources.nft_drops().items()):
            nft_drops.add_metric([reason], count)
        yield nft_drops
        yield from thread_metrics()


def _of_report(report: Report) -> Iterator[Metric]:
    synced = GaugeMetricFamily(
        "mcagent_backend_synced", "1 when a facility is known to hold the desired state.", labels=["backend"]
    )
    failures = GaugeMetricFamily(
        "mcagent_backend_consecutive_failures", "Passes in a row in which a facility failed.", labels=["backend"]
    )
    for backend in report.backends:
        synced.add_metric([backend.name], float(backend.synced))
        failures.add_metric([backend.name], backend.failures)
    yield synced
    yield failures


def _of_informers(informers: Iterable[InformerReport]) -> Iterator[Metric]:
    synced = GaugeMetricFamily(
        "mcagent_informer_synced", "1 when a kind was listed completely.", labels=["resource"]
    )
    connected = GaugeMetricFamily(
        "mcagent_informer_connected", "1 when changes of a kind would be noticed now.", labels=["resource"]
    )
    objects = GaugeMetricFamily("mcagent_informer_objects", "Objects known of a kind.", labels=["resource"])
    lists = CounterMetricFamily("mcagent_informer_lists", "Complete lists of a kind.", labels=["resource"])
    events = CounterMetricFamily("mcagent_informer_events", "Changes told of a kind.", labels=["resource"])
    restarts = CounterMetricFamily(
        "mcagent_watch_restarts", "Watches begun again, by reason.", labels=["resource", "reason"]
    )
    for informer in informers:
        synced.add_metric([informer.kind], float(informer.synced))
        connected.add_metric([informer.kind], float(informer.connected))
        objects.add_metric([informer.kind], informer.objects)
        lists.add_metric([informer.kind], informer.lists)
        events.add_metric([informer.kind], informer.events)
        for reason, count in sorted(informer.restarts.items()):
            restarts.add_metric([informer.kind, reason], count)
    yield from (synced, connected, objects, lists, events, restarts)


def _of_desired(desired: Desired) -> Iterator[Metric]:
    tally = Tally(
        type(resource).__name__ for fragment in desired.fragments.values() for resource in fragment.resources
    )
    objects = GaugeMetricFamily("mcagent_objects", "Resources of the desired state, by kind.", labels=["kind"])
    for kind in KINDS:
        objects.add_metric([kind], tally[kind])
    yield objects
    problems = GaugeMetricFamily(
        "mcagent_problems", "Findings in the input that take something away.", labels=["reason", "severity"]
    )
    for (reason, severity), count in sorted(Tally((p.reason, str(p.severity)) for p in desired.problems).items()):
        problems.add_metric([reason, severity], count)
    yield problems
    active = GaugeMetricFamily("mcagent_gateway_active", "1 when this Node is a gateway.")
    active.add_metric([], float(desired.state.role is Role.GATEWAY))
    yield active


def _of_tunnels(desired: Desired, samples: Iterable[TunnelSample]) -> Iterator[Metric]:
    labels = ["peer_kind", "peer", "tunnel"]
    found = {sample.name: sample for sample in samples}
    ports = [
        port
        for fragment in desired.fragments.values()
        for port in fragment.resources
        if isinstance(port, TunnelPort)
    ]
    counts = GaugeMetricFamily("mcagent_tunnels", "Tunnels that should exist.", labels=["peer_kind"])
    tally = Tally(port.peer_kind for port in ports)
    for kind in PeerKind:
        counts.add_metric([kind], tally[kind])
    yield counts
    up = GaugeMetricFamily("mcagent_tunnel_up", "1 when a tunnel exists and its link is up.", labels=labels)
    families = [
        (key, CounterMetricFamily(f"mcagent_tunnel_{name}", text, labels=labels))
        for name, key, text in _STATISTICS
    ]
    for port in sorted(ports, key=lambda port: port.name):
        values = [str(port.peer_kind), port.peer, port.name]
        sample = found.get(port.name)
        up.add_metric(values, float(sample is not None and sample.up is not False))
        if sample is None:
            continue
        for key, family in families:
            if key in sample.statistics:
                family.add_metric(values, sample.statistics[key])
    yield up
    yield from (family for _, family in families)
