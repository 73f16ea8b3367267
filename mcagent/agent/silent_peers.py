"""Peers from which no packet ever arrived, and those of them that were sent no traffic: reads their counters.

`mcagent.core.failover.silence` decides which are silent. A gateway of Antrea sends nothing by itself, so its
silence means something only after traffic to its cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from mcagent.core.failover.silence import POLL_INTERVAL, UNANSWERED, Silence
from mcagent.model.dataplane.resources import PeerKind, PortStatistics, TunnelPort
from mcagent.model.errors import BackendError

log = logging.getLogger(__name__)


class SilentPeers:
    """State of the tunnels whose peer never answered BFD. `update` is called in every pass."""

    def __init__(
        self,
        counters: Callable[[], Mapping[str, PortStatistics]],
        sent: Callable[[Iterable[int]], Mapping[int, int]],
    ) -> None:
        """`counters` reads those of tunnels, `sent` the packets sent to remote clusters, by their numbers."""
        self._counters, self._sent = counters, sent
        self._sent_before: dict[str, int] | None = None  # packets to its cluster when a tunnel was new, by port
        self.silence = Silence()
        self.unheard: frozenset[str] = frozenset()  # tunnels to Nodes of this cluster from which nothing came yet
        self.idle: frozenset[str] = frozenset()  # silent tunnels to clusters to which hardly any traffic was sent

    def update(
        self, ports: Sequence[TunnelPort], bfd_seen: frozenset[str], cluster_ids: Mapping[str, int], now: float
    ) -> None:
        """Update the state. `bfd_seen`: ports whose peer answered BFD. `cluster_ids`: numbers of clusters."""
        unanswered = frozenset(p.name for p in ports if p.bfd and not p.bfd_seen and p.name not in bfd_seen)
        remote = [p for p in ports if p.peer_kind is PeerKind.REMOTE and p.name in unanswered]
        try:
            self._count_from(remote, unanswered, cluster_ids)
            before, self.silence = self.silence, self.silence.update(unanswered, self._counters, now)
            if self.silence.wake != before.wake:
                silent = [port for port in remote if port.name in self.silence.silent]
                sent, counted = self._sent_by_port(silent, cluster_ids), self._sent_before or {}
                self.idle = frozenset(n for n, packets in sent.items() if packets - counted.get(n, 0) < UNANSWERED)
        except BackendError as error:
            self.silence = replace(self.silence, wake=now + POLL_INTERVAL)
            log.debug("%s", error)
        nodes = {p.name for p in ports if p.peer_kind is not PeerKind.REMOTE}
        unheard = frozenset(nodes & unanswered - self.silence.heard)
        self.unheard = self.unheard if self.unheard == unheard else unheard

    def _count_from(
        self, remote: Sequence[TunnelPort], unanswered: frozenset[str], cluster_ids: Mapping[str, int]
    ) -> None:
        """Keep the packets that were sent to a cluster before a tunnel to it was new. Raises BackendError.

        The counter of a cluster goes on when its gateway moves.
        """
        before = self._sent_before
        if before is None:  # at the start all packets count
            self._sent_before = dict.fromkeys(unanswered, 0)
        elif before.keys() != unanswered:
            new = self._sent_by_port([port for port in remote if port.name not in before], cluster_ids)
            self._sent_before = {name: before.get(name, new.get(name, 0)) for name in unanswered}

    def _sent_by_port(self, remote: Sequence[TunnelPort], cluster_ids: Mapping[str, int]) -> dict[str, int]:
        """Return the packets sent to the cluster of each port, without BFD and probes. Raises BackendError."""
        numbers = {port.name: cluster_ids.get(port.peer, -1) for port in remote}
        sent = self._sent(set(numbers.values()) - {-1}) if numbers else {}
        return {name: sent.get(number, 0) for name, number in numbers.items()}
