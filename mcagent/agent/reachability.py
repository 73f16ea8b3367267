"""Announces to this cluster's Nodes which remote clusters this gateway does not reach, and receives announcements.

Owns the thread that sends announcements, and the last one of each gateway. `update` is called by the loop's thread
in every pass, `receive` by the thread that reads packets from the bridge. `mcagent.core.failover.reachability`
decides what is announced and what follows from it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from mcagent.core.failover import reachability
from mcagent.core.failover.liveness import Peers
from mcagent.core.failover.reachability import AGAIN, EVERY, LASTS, ReachabilityState
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.model.errors import BackendError
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

TIMES_AFTER = len(AGAIN) + math.ceil(LASTS / EVERY)  # number of announcements that all are reached again


class Reachability:
    """Which clusters this cluster's gateways reach. `start`, then `stop`; without `start` nothing is announced."""

    def __init__(
        self,
        *,
        send: Callable[[Sequence[int], bytes], None],
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` sends a frame out by ports; `changed` is called when a gateway's announcement differs."""
        self._send, self._changed, self._clock = send, changed, clock
        self._own: frozenset[int] | None = None  # this, the next two and `wake` belong to the loop's thread
        self._gateways: dict[int, bool] = {}
        self._inputs: tuple[object, object] = (None, None)
        self.wake = math.inf  # when `update` is due though nothing is received
        self._lock = threading.Lock()  # guards all below
        self._announced: dict[int, ReachabilityState] = {}  # received, by port
        self._nodes: tuple[int, ...] = ()  # ports to this cluster's Nodes
        self._clusters: frozenset[int] = frozenset()  # to be announced to them
        self._times = TIMES_AFTER + 1  # of announcement: none is due yet
        self._announcing = BackgroundLoop(self._announce, name="reachability")

    def start(self) -> None:
        """Start the thread."""
        self._announcing.start()

    def stop(self) -> None:
        """End the thread."""
        self._announcing.stop()

    def receive(self, port: int, frame: bytes) -> None:
        """Store an announcement that arrived by the tunnel to a gateway of this cluster."""
        clusters = reachability.decode_frame(frame)
        if clusters is None:
            log.debug("cannot parse a frame of %d bytes from port %d", len(frame), port)
            return
        now = self._clock()
        with self._lock:
            previous = self._announced.get(port)
            self._announced[port] = ReachabilityState(clusters, now + LASTS)
        if (previous.clusters if previous is not None and now < previous.until else frozenset()) != clusters:
            self._changed()

    def update(self, ports: Iterable[TunnelPort], peers: Peers) -> frozenset[int]:
        """Take tunnels and peers; return the numbers of the clusters that no gateway reaches.

        Both arguments must be the same objects while they are equal.
        """
        if self._inputs[0] is not ports or self._inputs[1] is not peers:
            self._inputs = (ports, peers)
            self._take_tunnels(ports, peers)
        now = self._clock()
        with self._lock:
            announced = self._announced = {
                port: announcement for port, announcement in self._announced.items() if now < announcement.until
            }
        self.wake = min(
            (announcement.until for announcement in announced.values() if announcement.clusters), default=math.inf
        )
        return reachability.unreachable_from_all(self._own, self._gateways, announced, now)

    def _take_tunnels(self, ports: Iterable[TunnelPort], peers: Peers) -> None:
        self._own = reachability.unreachable_clusters(ports, peers)
        near = [port for port in ports if port.peer_kind is not PeerKind.REMOTE]
        self._gateways = {
            port.ofport: peers[port.name].live for port in near if port.peer_kind is PeerKind.GATEWAY
        }
        clusters = self._own or frozenset()
        with self._lock:
            self._nodes = tuple(port.ofport for port in near)
            if clusters != self._clusters:
                self._clusters, self._times = clusters, 0
                self._announcing.wake()

    def _announce(self) -> float:
        """Announce each change, then repeat it: while a cluster is not reached, and TIMES_AFTER times after."""
        with self._lock:
            clusters, nodes, times = self._clusters, self._nodes, self._times
            if times > TIMES_AFTER and not clusters:
                return math.inf
            self._times += 1
        try:
            self._send(nodes, reachability.encode_frame(clusters))
        except BackendError as error:
            log.debug("%s", error)
        return AGAIN[times] if times < len(AGAIN) else EVERY
