"""Which remote clusters no gateway of this cluster reaches: what each gateway tells the Nodes, and what follows.

A gateway knows by BFD which clusters it does not reach. Its agent tells the Nodes of its cluster: at once when
that changes, and again while there is any, since a frame may be lost. One that reaches all of them says nothing,
and what was said expires: silence never takes a cluster away. Pure; knows no socket and no clock.

A frame, in network byte order: Ethernet header with the type `ETHERTYPE_AGENTS`; 4 bytes `mcU` and the version; 2
bytes n; n times the 8 bytes by which a cluster's ID is known. Each is the whole of what the gateway has to say.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.pipeline.registers import ETHERTYPE_AGENTS, HOST_MAC, MAC_PLAIN
from mcagent.core.failover.liveness import Peers
from mcagent.model.resources import PeerKind, TunnelPort

AGAIN = (0.1, 0.3, 0.6)  # seconds after a change until it is told again, and after that; then every `EVERY`
EVERY = 1.0
LASTS = 5.0  # seconds for which something told counts: an agent may restart meanwhile
# In one frame: 1.2 kB, which every tunnel carries. Of more clusters, those beyond are not told of: who loses so
# many at once is cut off itself, and nothing is better off elsewhere.
MOST = 150

_HEAD = struct.Struct("!6s6sH4sH")  # destination, source, type; mark and version, number of clusters
_MARK = b"mcU\x01"


@dataclass(frozen=True, slots=True)
class Told:
    """What a gateway said last, and until when that counts."""

    clusters: frozenset[int]
    until: float


def number_of(cluster_id: str) -> int:
    """Return the 8 bytes by which gateways tell of a cluster; nobody can choose an ID that has another's."""
    return int.from_bytes(hashlib.sha256(cluster_id.encode()).digest()[:8])


def frame(clusters: Iterable[int]) -> bytes:
    """Return what tells that these clusters are not reached, and all others are."""
    told = sorted(clusters)[:MOST]
    head = _HEAD.pack(MAC_PLAIN.to_bytes(6), HOST_MAC.to_bytes(6), ETHERTYPE_AGENTS, _MARK, len(told))
    return head + b"".join(number.to_bytes(8) for number in told)


def read_frame(found: bytes) -> frozenset[int] | None:
    """Return the clusters that a frame tells of; None if it is no such frame, or one of another version."""
    if len(found) < _HEAD.size:
        return None
    *_, kind, mark, count = _HEAD.unpack_from(found)
    if kind != ETHERTYPE_AGENTS or mark != _MARK or count > MOST or len(found) < _HEAD.size + 8 * count:
        return None
    return frozenset(int.from_bytes(found[at : at + 8]) for at in range(_HEAD.size, _HEAD.size + 8 * count, 8))


def not_reached(ports: Iterable[TunnelPort], peers: Peers) -> frozenset[int] | None:
    """Return the clusters that this gateway does not reach by any tunnel of its own; None without such tunnels."""
    reached: dict[str, bool] = {}
    for port in ports:
        if port.peer_kind is PeerKind.REMOTE:
            reached[port.peer] = reached.get(port.peer, False) or peers[port.name].live
    return frozenset(number_of(name) for name, live in reached.items() if not live) if reached else None


def unreachable(
    own: frozenset[int] | None, gateways: Mapping[int, bool], told: Mapping[int, Told], now: float
) -> frozenset[int]:
    """Return the clusters that every gateway which counts says it does not reach.

    `own`: what this Node says, if it is a gateway. `gateways`: the others of this cluster by port, and whether
    they are live. Those that are live count. Where none is, all do that still speak: a gateway that reaches no
    cluster asks not to be used (BFD).
    """
    fresh = {port: one.clusters for port, one in told.items() if now < one.until and port in gateways}
    counts = [port for port, live in gateways.items() if live]
    if not counts and own is None:
        counts = list(fresh)
    said = [fresh.get(port, frozenset()) for port in counts] + ([] if own is None else [own])
    return frozenset.intersection(*said) if said else frozenset()


def named(numbers: frozenset[int], clusters: Iterable[str]) -> frozenset[str]:
    """Return those of the clusters that have one of these numbers."""
    return frozenset(one for one in clusters if number_of(one) in numbers) if numbers else frozenset()
