"""Metrics of liveness: BFD, flaps, failovers and the share of each gateway. Read at scrape time."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mcagent.core.draining import Phase
from mcagent.core.liveness import Cause
from mcagent.core.observations import group_of
from mcagent.model.resources import PeerKind
from mcagent.observe.gateways import LiveReport, TunnelCounters, share_of

_LABELS = ["peer_kind", "peer", "tunnel"]
_LOSSES = (Cause.BFD, Cause.NODE, Cause.API, Cause.DRAIN)


def liveness_metrics(live: LiveReport, counters: TunnelCounters) -> Iterator[Metric]:
    """Return the metrics of all tunnels that are wanted now."""
    up = GaugeMetricFamily("mcagent_bfd_up", "1 when BFD of a tunnel is up and forwards.", labels=_LABELS)
    used = GaugeMetricFamily(
        "mcagent_tunnel_live",
        "1 when a tunnel's peer is used: the sum of what BFD, API and damping say.",
        labels=_LABELS,
    )
    flaps = CounterMetricFamily("mcagent_bfd_flaps", "Times that BFD of a tunnel was lost.", labels=_LABELS)
    changed = GaugeMetricFamily(
        "mcagent_tunnel_state_change_timestamp_seconds",
        "When a tunnel's peer was last taken into use or out of it.",
        labels=_LABELS,
    )
    share = GaugeMetricFamily(
        "mcagent_gateway_share_ratio",
        "Part of the packets sent to the gateways of a cluster that this one got, since its tunnel exists.",
        labels=_LABELS,
    )
    groups: dict[str, list[str]] = {}
    for port in live.ports.values():
        groups.setdefault(group_of(port), []).append(port.name)
    for name, port in sorted(live.ports.items()):
        peer = live.peers.get(name)
        if peer is None or peer.gone:
            continue
        values = [str(port.peer_kind), port.peer, name]
        if port.bfd is not None:
            up.add_metric(values, float(peer.answering))
            flaps.add_metric(values, peer.flaps)
        used.add_metric(values, float(peer.live))
        changed.add_metric(values, peer.since + live.epoch)
        part = share_of(name, groups[group_of(port)], counters)
        if port.peer_kind is not PeerKind.NODE and part is not None:
            share.add_metric(values, part)
    failovers = CounterMetricFamily(
        "mcagent_failovers", "Times that a peer was taken out of use, by cause.", labels=["peer_kind", "cause"]
    )
    for kind in PeerKind:
        for cause in _LOSSES:
            failovers.add_metric([str(kind), str(cause)], live.failovers.get((str(kind), cause), 0))
    drain = GaugeMetricFamily(
        "mcagent_drain_phase", "1 for the phase of handing over that this Node is in.", labels=["phase"]
    )
    for phase in Phase:
        drain.add_metric([phase.name.lower()], float(live.draining.phase is phase))
    yield from (up, used, flaps, changed, share, failovers, drain)
