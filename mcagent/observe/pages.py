"""The pages /metrics, /healthz, /readyz and /status. Converts values to text; decides only what ready means.

Ready means: the dataplane equals the desired state of all input received, every kind that the role needs is
listed, changes are being received, and the Node can encrypt what it must: a roll-out of encryption stops at the
first Node that cannot. Without the API server /readyz fails, while the dataplane keeps forwarding; only people and
roll-outs should act on it. Alive (/healthz) means that the loop turns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mcagent.api.codec import converted, to_json
from mcagent.api.status import (
    ExportStatus,
    HealthProblem,
    InformerStatus,
    ProblemStatus,
    ReadinessCheck,
    Status,
    Summary,
    TunnelStatus,
)
from mcagent.core.health import encryption_error
from mcagent.core.plan.render import node_summary
from mcagent.core.remote_clusters.implementation import unused_clusters
from mcagent.http.server import PlainPages
from mcagent.model.dataplane.resources import PortStatistics, TunnelPort
from mcagent.model.informer_state import InformerState
from mcagent.model.node_state import NodeRole, NodeState
from mcagent.observe.exports import connections_of, exports_of
from mcagent.observe.gateways import drain_of, gateways_of
from mcagent.observe.health import node_health
from mcagent.observe.metrics.agent import COUNTERS, Metrics, Sources
from mcagent.observe.report import Report
from mcagent.observe.standard import rfc3339, standard_pages
from mcagent.observe.version import version
from mcagent.observe.wireguard import encryption_of, ends_of, summary_of
from mcagent.supervised import dead as dead_threads

SHOWN_PROBLEMS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Values that describe an agent: `cluster_id` changes with its configuration, the others do not."""

    node: str
    cluster_id: str
    source: str
    started_at: float


def checks(report: Report, informers: Iterable[InformerState], *, pending: bool) -> tuple[ReadinessCheck, ...]:
    """Evaluate the conditions of readiness, in the order in which they become true at start."""
    informers = tuple(informers)
    unsynced = sorted({i.kind for i in informers if not i.synced} | set(report.waiting_for))
    kinds_by_error: dict[str, list[str]] = {}
    for informer in informers:
        if informer.synced and not informer.connected:
            kinds_by_error.setdefault(informer.error or "not connected", []).append(str(informer.kind))
    disconnected = [f"{', '.join(kinds)}: {error}" for error, kinds in kinds_by_error.items()]
    backends = [f"{b.name}: {'; '.join(b.errors) or 'not known'}" for b in report.backends if not b.synced]
    if report.error:
        dataplane = report.error
    elif report.desired is None:
        dataplane = "nothing was computed yet"
    elif not report.converged:
        dataplane = "does not equal the desired state"
    else:
        dataplane = "input is not processed yet" if pending else ""
    encryption = ""
    if report.desired is not None:
        encryption = encryption_error(report.desired.state.encryption, report.desired.problems)
    return (
        ReadinessCheck(
            name="listed", good=not unsynced, text=f"not listed yet: {', '.join(unsynced)}" if unsynced else ""
        ),
        ReadinessCheck(name="connected", good=not disconnected, text="; ".join(disconnected)),
        *(ReadinessCheck(name=f"backend {text.split(':')[0]}", good=False, text=text) for text in backends),
        ReadinessCheck(name="dataplane", good=not dataplane, text=dataplane),
        ReadinessCheck(name="encryption", good=not encryption, text=encryption),
    )


def make_pages(
    *,
    identity: Callable[[], Identity],
    metrics: Metrics,
    sources: Sources,
    alive: Callable[[], bool],
    pending: Callable[[], bool],
    dead: Callable[[], Sequence[str]] = dead_threads,
) -> PlainPages:
    """Make the pages by path. `dead` returns the threads that ended unexpectedly, with reasons."""

    def current_checks() -> tuple[ReadinessCheck, ...]:
        return checks(sources.report(), sources.informers(), pending=pending())

    def failures() -> list[str]:
        return [*([] if alive() else ["the loop is stalled"]), *(f"not running: {thread}" for thread in dead())]

    opened: Mapping[int, int] = {}

    def connections() -> Mapping[int, int]:
        """Return the connections to Services that were read last: a 0 in between would look like a restart."""
        nonlocal opened
        opened = counts if (counts := sources.services()) is not None else opened
        return opened

    status_sources = replace(sources, services=connections)
    return standard_pages(
        checks=current_checks,
        failures=failures,
        status=lambda: to_json(status_of(identity(), status_sources, current_checks(), alive=not failures())),
        registry=metrics.registry,
    )


def status_of(
    identity: Identity, sources: Sources, conditions: tuple[ReadinessCheck, ...], *, alive: bool
) -> Status:
    """Return the content of /status; `conditions` are those of readiness."""
    report, live = sources.report(), sources.live()
    state = report.desired.state if report.desired is not None else None
    problems = report.desired.problems if report.desired is not None else ()
    encryption = summary_of(report.desired)
    ports = sources.ports()
    return Status(
        version=version(),
        node=identity.node,
        cluster_id=identity.cluster_id,
        source=identity.source,
        started_at=rfc3339(identity.started_at),
        ready=all(check.good for check in conditions),
        alive=alive,
        checks=conditions,
        summary=node_summary(state) if state is not None else Summary(),
        health=tuple(
            HealthProblem(reason=finding.reason, message=finding.message, error=finding.error)
            for finding in node_health(identity.node, state, live, problems, time.time(), probed=sources.probes())
        ),
        tunnels=tuple(tunnel_status(tunnel, ports) for tunnel in report.tunnels),
        exports=_exports(state, sources),
        nft_drops=dict(sources.nft_drops()),
        encryption=encryption_of(
            encryption, sources.wireguard(), unused_clusters(state, identity.node) if state else ()
        ),
        drain=drain_of(live),
        gateways=gateways_of(
            live,
            {name: port.counters for name, port in (ports or {}).items()},
            own_gateway=identity.node if state is not None and state.role is NodeRole.GATEWAY else "",
            ends=ends_of(encryption),
            probed=sources.probes(),
            recent=sources.recent(),
        ),
        problems=converted(tuple[ProblemStatus, ...], problems[:SHOWN_PROBLEMS]),
        problem_count=len(problems),
        resources=Counter(type(resource).__name__ for resource in report.resources),
        informers=converted(tuple[InformerStatus, ...], tuple(sources.informers())),
        backends=report.backends,
        passes=report.passes,
        drift_corrections=report.drift,
        last_pass=report.last_pass,
        last_change=report.last_change,
    )


def _exports(state: NodeState | None, sources: Sources) -> dict[str, ExportStatus]:
    exports = exports_of(state)
    opened = connections_of(state, sources.services() or {}) if exports else {}
    return {
        key: ExportStatus(endpoints=export.endpoints, hash=export.hash, connections=opened.get(key, 0))
        for key, export in exports.items()
    }


def tunnel_status(tunnel: TunnelPort, ports: Mapping[str, PortStatistics] | None) -> TunnelStatus:
    """Return the status of a tunnel. `ports`: those that exist, by name; None: unknown."""
    port = ports.get(tunnel.name) if ports is not None else None
    return TunnelStatus(
        name=tunnel.name,
        type=tunnel.type,
        remote_ip=str(tunnel.remote_ip),
        peer_kind=tunnel.peer_kind,
        peer=tunnel.peer,
        ofport=tunnel.ofport,
        exists=port is not None or ports is None,
        up=None if port is None else port.link_up,
        statistics={} if port is None else {key: port.counters.get(key, 0) for key in COUNTERS},
    )
