"""Reachability of remote clusters: the frames in which gateways report it to the Nodes, and their evaluation.

A gateway knows by BFD which clusters it does not reach. Its agent reports them to the Nodes of its cluster: at
once after a change, and repeatedly while there is any, since a frame may be lost. A gateway that reaches all
clusters sends nothing, and reports expire, so missing frames never make a cluster unreachable. Pure; must not know
sockets or clocks.

A frame, in network byte order: Ethernet header with the type `ETHERTYPE_AGENTS`; 4 bytes `mcU` and the version; 2
bytes n; n hashes of cluster IDs, 8 bytes each. Each frame is the complete report of the gateway.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.pipeline.registers import ETHERTYPE_AGENTS, HOST_MAC, MAC_PLAIN
from mcagent.core.failover.liveness import Peers
from mcagent.model.dataplane.resources import PeerKind, TunnelPort

AGAIN = (0.1, 0.3, 0.6)  # seconds between the first repetitions of a report; then every `EVERY`
EVERY = 1.0
LASTS = 5.0  # seconds for which a report is valid: long enough for a restart of the agent
# Clusters in one frame: 1.2 kB, which every tunnel carries. Further clusters are not reported: a gateway that
# loses so many at once is cut off itself, and other endpoints would be no better.
MOST = 150

_HEAD = struct.Struct("!6s6sH4sH")  # destination, source, type; mark and version, number of clusters
_MARK = b"mcU\x01"


@dataclass(frozen=True, slots=True)
class ReachabilityState:
    """The last report of a gateway: hashes of unreachable clusters, and the time at which it expires."""

    clusters: frozenset[int]
    until: float


def cluster_hash(cluster_id: str) -> int:
    """Return the 8-byte hash of a cluster ID (SHA-256, so that IDs cannot be chosen to collide)."""
    return int.from_bytes(hashlib.sha256(cluster_id.encode()).digest()[:8])


def encode_frame(clusters: Iterable[int]) -> bytes:
    """Encode the report that these clusters are unreachable and all others are reachable."""
    reported = sorted(clusters)[:MOST]
    head = _HEAD.pack(MAC_PLAIN.to_bytes(6), HOST_MAC.to_bytes(6), ETHERTYPE_AGENTS, _MARK, len(reported))
    return head + b"".join(number.to_bytes(8) for number in reported)


def decode_frame(payload: bytes) -> frozenset[int] | None:
    """Return the hashes in a frame; None if it is no report, or of another version."""
    if len(payload) < _HEAD.size:
        return None
    *_, kind, mark, count = _HEAD.unpack_from(payload)
    if kind != ETHERTYPE_AGENTS or mark != _MARK or count > MOST or len(payload) < _HEAD.size + 8 * count:
        return None
    return frozenset(int.from_bytes(payload[at : at + 8]) for at in range(_HEAD.size, _HEAD.size + 8 * count, 8))


def unreachable_clusters(ports: Iterable[TunnelPort], peers: Peers) -> frozenset[int] | None:
    """Return the hashes of the clusters that no tunnel of this Node reaches; None without tunnels to clusters."""
    reached: dict[str, bool] = {}
    for port in ports:
        if port.peer_kind is PeerKind.REMOTE:
            reached[port.peer] = reached.get(port.peer, False) or peers[port.name].live
    return frozenset(cluster_hash(name) for name, live in reached.items() if not live) if reached else None


def unreachable_from_all(
    own: frozenset[int] | None, gateways: Mapping[int, bool], states: Mapping[int, ReachabilityState], now: float
) -> frozenset[int]:
    """Return the hashes of the clusters that every counted gateway reports as unreachable.

    `own`: the report of this Node, if it is a gateway. `gateways`: the liveness of the other gateways of this
    cluster, by port. Live gateways count. If none is live, all with a valid report count: a gateway that reaches
    no cluster signals path down, so it is not live.
    """
    fresh = {port: state.clusters for port, state in states.items() if now < state.until and port in gateways}
    reporting = [port for port, live in gateways.items() if live]
    if not reporting and own is None:
        reporting = list(fresh)
    reports = [fresh.get(port, frozenset()) for port in reporting] + ([] if own is None else [own])
    return frozenset.intersection(*reports) if reports else frozenset()


def clusters_by_hash(hashes: frozenset[int], clusters: Iterable[str]) -> frozenset[str]:
    """Return the cluster IDs whose hash is among `hashes`."""
    if not hashes:
        return frozenset()
    return frozenset(cluster_id for cluster_id in clusters if cluster_hash(cluster_id) in hashes)
