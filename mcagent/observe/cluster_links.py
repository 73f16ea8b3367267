"""This gateway's links to other clusters, from liveness and the counters of tunnels. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mcagent.core.failover.liveness import PeerLiveness
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.dataplane.resources import PeerKind
from mcagent.model.net import Network, cluster_fingerprint
from mcagent.model.node_state import AcceptedCluster, EncryptionState
from mcagent.model.parsing.granted import MAX_REFUSED
from mcagent.model.parsing.links import ClusterLink, fingerprint_text
from mcagent.observe.gateways import LiveReport, TunnelCounters
from mcagent.observe.standard import rfc3339
from mcagent.observe.wireguard import WireGuardReport, ends_of, sessions

Answers = Mapping[str, Mapping[str, str]]  # by cluster, of its gateways by address: the fingerprint that answers


def answers_of(
    live: LiveReport,
    probed: Mapping[str, ProbeState],
    encryption: EncryptionState | None,
    wireguard: WireGuardReport,
) -> Answers:
    """Return which clusters answer at the gateways of each cluster: by probes, else by a WireGuard session."""
    gateways = ends_of(encryption)
    answers = {
        cluster: dict.fromkeys(addresses, fingerprint_text(cluster_fingerprint(cluster)))
        for cluster, addresses in sessions(encryption, wireguard).items()
    }
    for name, port in live.ports.items():
        state = probed.get(name)
        if port.peer_kind is PeerKind.REMOTE and state is not None and state.answers and state.answered_by:
            end = str(port.remote_ip)
            answers.setdefault(port.peer, {})[gateways.get(end, end)] = fingerprint_text(state.answered_by)
    return answers


def links_of(
    live: LiveReport,
    rates: Mapping[str, int],
    answers: Answers | None = None,
    refused: Mapping[str, tuple[Network, ...]] | None = None,
    round_trips: Mapping[str, int] | None = None,
) -> tuple[ClusterLink, ...]:
    """Return a link for each cluster with tunnels, by name.

    `rates`: bytes per second by cluster; `round_trips`: microseconds. `refused`: by cluster, the Pod CIDRs that
    this gateway does not use.
    """
    peers: dict[str, list[PeerLiveness]] = {}
    for name, port in live.ports.items():
        if port.peer_kind is PeerKind.REMOTE and name in live.peers and not live.peers[name].gone:
            peers.setdefault(port.peer, []).append(live.peers[name])
    return tuple(
        replace(
            _link(cluster, members, live.epoch, rates),
            round_trip_micros=(round_trips or {}).get(cluster, 0),
            answers=tuple(sorted((answers or {}).get(cluster, {}).items())),
            refused=tuple(sorted(map(str, (refused or {}).get(cluster, ()))))[:MAX_REFUSED],
        )
        for cluster, members in sorted(peers.items())
    )


def refused_pods(clusters: Mapping[str, AcceptedCluster]) -> dict[str, tuple[Network, ...]]:
    """Return, for the clusters that have any, the Pod CIDRs that this gateway does not use."""
    return {name: cluster.refused_pods for name, cluster in clusters.items() if cluster.refused_pods}


def bytes_by_cluster(live: LiveReport, counters: TunnelCounters) -> dict[str, int]:
    """Return the bytes that tunnels to each cluster have carried, in both directions, since they were created."""
    totals: dict[str, int] = {}
    for name, port in live.ports.items():
        if port.peer_kind is PeerKind.REMOTE:
            counted = counters.get(name, {})
            carried = counted.get("tx_bytes", 0) + counted.get("rx_bytes", 0)
            totals[port.peer] = totals.get(port.peer, 0) + carried
    return totals


def round_trips_of(live: LiveReport, probed: Mapping[str, ProbeState]) -> dict[str, float]:
    """Return the round trip in seconds, of the slowest tunnel, to each cluster whose gateways answer probes."""
    slowest: dict[str, float] = {}
    for name, port in live.ports.items():
        result = probed.get(name)
        if port.peer_kind is PeerKind.REMOTE and result is not None and result.round_trip is not None:
            slowest[port.peer] = max(result.round_trip, slowest.get(port.peer, 0.0))
    return slowest


def _link(cluster: str, peers: list[PeerLiveness], epoch: float, rates: Mapping[str, int]) -> ClusterLink:
    down = [peer for peer in peers if not peer.live]
    latest_loss = max(down, key=lambda peer: peer.since, default=None)
    return ClusterLink(
        cluster=cluster,
        live=len(peers) - len(down),
        tunnels=len(peers),
        since=rfc3339(max(peer.since for peer in peers) + epoch),
        why=latest_loss.text if latest_loss is not None else "",
        bytes_per_second=rates.get(cluster, 0),
        one_way=sum(peer.last is not None and peer.last.bfd and peer.last.state == "init" for peer in down),
        silent=sum(peer.live and peer.unheard for peer in peers),
    )
