"""Tells this cluster's Nodes which remote clusters this gateway does not reach, and hears what others tell.

Owns the thread that tells, and what was heard. `look` is called by the loop's thread in every pass, `heard` by the
thread that follows the bridge. What is told and what follows is decided by `mcagent.core.failover.reachability`.
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
from mcagent.model.errors import BackendError
from mcagent.model.resources import PeerKind, TunnelPort
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

TIMES_AFTER = len(AGAIN) + math.ceil(LASTS / EVERY)  # that it is told that all are reached again


class Reachability:
    """What this Node's gateways reach. `start`, then `stop`; without `start` nothing is told."""

    def __init__(
        self,
        *,
        send: Callable[[Sequence[int], bytes], None],
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` sends a frame out by ports; `changed` is called when a gateway told something new."""
        self._send, self._changed, self._clock = send, changed, clock
        self._own: frozenset[int] | None = None  # this one, the next two and `wake`: of the loop's thread
        self._gateways: dict[int, bool] = {}
        self._known: tuple[object, object] = (None, None)
        self.wake = math.inf  # when to look again though nothing is heard
        self._lock = threading.Condition()  # of all below
        self._told: dict[int, ReachabilityState] = {}  # what was heard, by port
        self._nodes: tuple[int, ...] = ()  # ports to this cluster's Nodes
        self._clusters: frozenset[int] = frozenset()  # to be told to them
        self._times = TIMES_AFTER + 1  # that it was told: nothing is to be told yet
        self._closed = threading.Event()
        self._thread = Supervised(self._tell, name="reachability", until=self._closed)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._lock:
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join()

    def heard(self, port: int, found: bytes) -> None:
        """Take a frame that came in by the tunnel to a gateway of this cluster."""
        clusters = reachability.decode_frame(found)
        if clusters is None:
            log.debug("cannot parse a frame of %d bytes from port %d", len(found), port)
            return
        now = self._clock()
        with self._lock:
            before = self._told.get(port)
            self._told[port] = ReachabilityState(clusters, now + LASTS)
        if (before.clusters if before is not None and now < before.until else frozenset()) != clusters:
            self._changed()

    def look(self, ports: Iterable[TunnelPort], peers: Peers) -> frozenset[int]:
        """Return the clusters that nobody reaches now, by number. Both are the same objects while equal."""
        if self._known[0] is not ports or self._known[1] is not peers:
            self._known = (ports, peers)
            self._see(ports, peers)
        now = self._clock()
        with self._lock:
            told = self._told = {port: one for port, one in self._told.items() if now < one.until}
        self.wake = min((one.until for one in told.values() if one.clusters), default=math.inf)
        return reachability.unreachable_from_all(self._own, self._gateways, told, now)

    def _see(self, ports: Iterable[TunnelPort], peers: Peers) -> None:
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
                self._lock.notify()

    def _tell(self) -> None:
        """Tell after each change, then again and again while there is anything to tell, and a while after."""
        while not self._closed.is_set():
            with self._lock:
                clusters, nodes, times = self._clusters, self._nodes, self._times
                if times > TIMES_AFTER and not clusters:
                    if not self._closed.is_set():  # `stop` may have notified before this thread had the lock
                        self._lock.wait()
                    continue
                self._times += 1
            try:
                self._send(nodes, reachability.encode_frame(clusters))
            except BackendError as error:
                log.debug("%s", error)
            with self._lock:
                if self._clusters == clusters and not self._closed.is_set():
                    self._lock.wait(AGAIN[times] if times < len(AGAIN) else EVERY)
