"""Metrics of liveness: BFD, flaps, failovers, the share of each gateway, and probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from mcagent.core.failover.detection import detection_time
from mcagent.core.failover.draining import Phase
from mcagent.core.failover.liveness import LivenessCause
from mcagent.core.failover.observations import group_of
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.dataplane.resources import PeerKind
from mcagent.observe.gateways import LiveReport, TunnelCounters, share_of
from mcagent.observe.metric_families import counter, gauge, histogram

_LABELS = ["peer_kind", "peer", "tunnel"]
_LOSSES = (LivenessCause.BFD, LivenessCause.NODE, LivenessCause.API, LivenessCause.DRAIN)


def probe_metrics(live: LiveReport, probed: Mapping[str, ProbeState]) -> Iterator[Metric]:
    """Yield the metrics of probes, without tunnels whose peer answers no probes."""
    results = [
        ((str(live.ports[name].peer_kind), live.ports[name].peer, name), result)
        for name, result in sorted(probed.items())
        if name in live.ports and result.answers
    ]
    text = "Round trip of probes through a tunnel to another cluster's gateway and back, by both Open vSwitches."
    yield histogram("mcagent_tunnel_probe_round_trip_seconds", text, _LABELS, dict(results))
    text = "Probes through a tunnel that were answered or lost; absent where the peer answers no probes."
    yield counter("mcagent_tunnel_probes", text, _LABELS, [(values, result.sent) for values, result in results])
    text = "Probes through a tunnel that were not answered within two seconds."
    yield counter(
        "mcagent_tunnel_probes_lost", text, _LABELS, [(values, result.lost) for values, result in results]
    )
    text = "1 while packets of the routes' MTU pass a tunnel, 0 while only smaller ones do."
    full = [(values, result.full) for values, result in results if result.full is not None]
    yield gauge("mcagent_tunnel_full_size_passes", text, _LABELS, full)


def liveness_metrics(live: LiveReport, counters: TunnelCounters) -> Iterator[Metric]:
    """Yield the metrics of all tunnels of the desired state."""
    groups: dict[str, list[str]] = {}
    for port in live.ports.values():
        groups.setdefault(group_of(port), []).append(port.name)
    tunnels = [
        ((str(port.peer_kind), port.peer, name), port, peer)
        for name, port in sorted(live.ports.items())
        if (peer := live.peers.get(name)) is not None and not peer.gone
    ]
    with_bfd = [(values, peer) for values, port, peer in tunnels if port.bfd is not None]
    text = "1 when BFD of a tunnel is up and forwards."
    yield gauge("mcagent_bfd_up", text, _LABELS, [(values, peer.answering) for values, peer in with_bfd])
    text = "Number of times that BFD of a tunnel went down."
    yield counter("mcagent_bfd_flaps", text, _LABELS, [(values, peer.flaps) for values, peer in with_bfd])
    text = "Detection time of BFD of a tunnel to another cluster, which adapts to the path (bfd.remote.adapt)."
    times = [
        (values, detection_time(port.bfd))
        for values, port, _ in tunnels
        if port.bfd is not None and port.peer_kind is PeerKind.REMOTE
    ]
    yield gauge("mcagent_tunnel_bfd_detection_seconds", text, _LABELS, times)
    text = "1 when a tunnel's peer is used, by BFD, API and damping."
    yield gauge("mcagent_tunnel_live", text, _LABELS, [(values, peer.live) for values, _, peer in tunnels])
    text = "When a tunnel's peer was last put into use or taken out of use."
    since = [(values, peer.since + live.epoch) for values, _, peer in tunnels]
    yield gauge("mcagent_tunnel_state_change_timestamp_seconds", text, _LABELS, since)
    text = (
        "Share of this gateway in the packets sent to its cluster's gateways, since its tunnel exists; with BFD's."
    )
    shares = [
        (values, share)
        for values, port, _ in tunnels
        if port.peer_kind is not PeerKind.NODE
        and (share := share_of(port.name, groups[group_of(port)], counters)) is not None
    ]
    yield gauge("mcagent_gateway_share_ratio", text, _LABELS, shares)
    failovers = [
        ((str(kind), str(cause)), live.failovers.get((str(kind), cause), 0))
        for kind in PeerKind
        for cause in _LOSSES
    ]
    text = "Number of times that a peer was taken out of use, by cause: BFD, Node readiness, API, drain."
    yield counter("mcagent_failovers", text, ["peer_kind", "cause"], failovers)
    phases = [([phase.name.lower()], live.draining.phase is phase) for phase in Phase]
    text = "1 for this Node's phase of a drain: serving, remote, local, drained."
    yield gauge("mcagent_drain_phase", text, ["phase"], phases)
