"""The state of a whole cluster for people: problems first, then tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mcagent.api.overview import Overview
from mcagent.cli.common.tables import table
from mcagent.controller.admin.listing import since

_SHOWN = 20  # problems


def text(overview: Overview, now: float) -> str:
    """Return the text. `now`: seconds since the epoch."""
    return "\n".join(line.rstrip() for line in _lines(overview, now))


def _lines(overview: Overview, now: float) -> Iterator[str]:
    errors = sum(problem.error for problem in overview.problems)
    counted = f"{errors} problems, {len(overview.problems) - errors} warnings"
    yield f"{overview.server}: {counted if overview.problems else 'no problems'}"
    for problem in overview.problems[:_SHOWN]:
        yield f"  {'✗' if problem.error else '⚠'} {problem.subject}: {problem.message}"
        yield f"        do:  {problem.do}"
    if len(overview.problems) > _SHOWN:
        yield f"  and {len(overview.problems) - _SHOWN} more (-o json lists all)"
    clusters = [
        (
            item.name,
            item.cluster_id or "-",
            item.role,
            cluster.id,
            _state(ready=cluster.ready),
            since(cluster.since, now),
        )
        for item in overview.cluster_sets
        for cluster in item.clusters
    ]
    yield from _section(("CLUSTERSET", "THIS CLUSTER", "ROLE", "CLUSTER", "CONNECTED", "SINCE"), clusters)
    yield from _section(
        ("CLUSTERSET", "TOKEN OF THE LEADER"),
        [(item.name, item.token) for item in overview.cluster_sets if item.token],
    )
    gateways = [
        (
            gateway.node,
            gateway.gateway_ip or "-",
            gateway.internal_ip or "-",
            "yes" if gateway.node_ready else "NO",
            _tunnels(gateway.live, gateway.tunnels),
        )
        for gateway in overview.gateways
    ]
    yield from _section(("GATEWAY", "GATEWAY IP", "INTERNAL IP", "NODE READY", "LIVE TUNNELS"), gateways)
    ways = [
        (
            way.source,
            way.target,
            _way(way.live, way.tunnels),
            _tunnels(way.live, way.tunnels),
            since(way.since, now),
            f"{way.bytes_per_second * 8 / 1000:.0f} kbit/s",
            f"{way.round_trip_micros / 1000:.1f} ms" if way.round_trip_micros else "-",
            way.why or "-",
        )
        for way in sorted(overview.links, key=lambda way: (way.live - way.tunnels, way.source, way.target))
    ]
    yield from _section(("FROM", "TO", "STATE", "LIVE TUNNELS", "SINCE", "TRAFFIC", "ROUND TRIP", "WHY"), ways)
    components = [
        (component.kind, component.namespace, component.name, f"{component.ready}/{component.desired}")
        for component in overview.components
    ]
    yield from _section(("COMPONENT", "NAMESPACE", "NAME", "READY"), components)
    yield ""
    yield f"{overview.exports} ServiceExports, {overview.imports} ServiceImports"


def _section(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield ""
        yield from table(head, rows)


def _state(*, ready: bool | None) -> str:
    return "unknown" if ready is None else "yes" if ready else "NO"


def _way(live: int, tunnels: int) -> str:
    return "up" if 0 < live == tunnels else "degraded" if live else "DOWN"


def _tunnels(live: int | None, tunnels: int | None) -> str:
    return "-" if live is None else f"{live}/{tunnels}"
