"""Asks connections whether they still are, or how they came: a gateway is lost, or all conntrack of this Node.

What is told to `Prober` comes from the loop's thread and returns at once; the work is done by a thread of its own,
since a Node may have very many connections. Which are asked, and how: `mcagent.dataplane.conntrack.probes`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from flows.fields import PORT_CONTROLLER
from mcagent.dataplane.conntrack.probes import Connection, may_be_translated, probe, questions, served, services_of
from mcagent.model.errors import BackendError
from mcagent.model.net import Network
from mcagent.model.node_state import AcceptedCluster, NodeState
from mcagent.model.plan import Desired
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

# Seconds after the loss. More than once, because others may find out later than this Node that a gateway is gone.
# The kernel answers such packets of a connection every 0.5 s at most (tcp_invalid_ratelimit).
ATTEMPTS = (0.0, 0.6, 2.0)


class Prober:
    """Asks in its own thread. `connections` lists those of this Node, `send` gives frames to the bridge."""

    def __init__(
        self,
        *,
        connections: Callable[[], Iterable[Connection]],
        send: Callable[[int, Sequence[bytes]], None],
        attempts: Sequence[float] = ATTEMPTS,
    ) -> None:
        self._connections, self._send, self._attempts = connections, send, attempts
        self._condition = threading.Condition()
        # By what happened: moments of the monotonic clock, the next one first, and what to do then.
        self._due: dict[str, tuple[list[float], Callable[[], None]]] = {}
        self._stopping = False
        self._thread = Supervised(self._run, name="probes")

    def start(self) -> None:
        """Begin to do what is asked for."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is not asked yet is not."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(timeout=1.0)

    def gateway_lost(self, in_port: int, desired: Desired | None) -> None:
        """Ask the connections of this Node. `in_port`: a tunnel to any gateway of this cluster."""
        if desired is not None:
            state = desired.state
            clusters = tuple(state.clusters.values())
            self._soon("a gateway", partial(self._ask_snated, in_port, clusters, state.published_pods))

    def state_lost(self, state: NodeState) -> None:
        """Ask the clients of this Node's endpoints: its conntrack is gone, and its flows are there again."""
        self._soon("conntrack", partial(self._ask_served, state))

    def _soon(self, lost: str, ask: Callable[[], None]) -> None:
        now = time.monotonic()
        with self._condition:
            self._due[lost] = ([now + after for after in self._attempts], ask)
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopping and (wait := self._next() - time.monotonic()) > 0:
                    self._condition.wait(wait if wait < math.inf else None)
                if self._stopping:
                    return
                lost = min(self._due, key=lambda one: self._due[one][0])
                moments, ask = self._due[lost]
                moments.pop(0)
                if not moments:
                    del self._due[lost]
            try:
                ask()
            except BackendError as error:
                log.warning("connections may hang, since %s was lost: %s", lost, error)

    def _next(self) -> float:
        return min((moments[0] for moments, _ in self._due.values()), default=math.inf)

    def _ask_snated(self, in_port: int, clusters: Sequence[AcceptedCluster], published: Sequence[Network]) -> None:
        found = may_be_translated(self._connections(), clusters, published)
        if found:
            self._send(in_port, [probe(one) for one in found])
            log.info("a gateway was lost: %d SNATed connections were asked whether they go on", len(found))

    def _ask_served(self, state: NodeState) -> None:
        services = services_of(state.services, state.service_ids)
        found = served(self._connections(), state.clusters.values(), services)
        if found:
            self._send(PORT_CONTROLLER, [frame for one in found for frame in questions(one, services)])
            log.info("conntrack was lost: clients of %d connections were asked how they came here", len(found))
