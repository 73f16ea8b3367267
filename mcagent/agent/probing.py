"""When a gateway of this cluster is lost: asks connections that it may have SNATed whether they still are.

`Prober.gateway_lost` is called by the loop's thread and returns at once; the work is done by a thread of its own,
since a Node may have very many connections. Which are asked, and how: `mcagent.core.probes`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcagent.core.candidate import Remote
from mcagent.core.probes import Connection, may_be_translated, probe
from mcagent.model.errors import BackendError
from mcagent.model.net import Network
from mcagent.model.plan import Desired

log = logging.getLogger(__name__)

# Seconds after the loss. More than once, because others may find out later than this Node that a gateway is gone.
# The kernel answers such packets of a connection every 0.5 s at most (tcp_invalid_ratelimit).
ATTEMPTS = (0.0, 0.6, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    in_port: int
    clusters: tuple[Remote, ...]
    published: tuple[Network, ...]


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
        self._loss: _Loss | None = None
        self._due: list[float] = []  # moments of the monotonic clock, the next one first
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)

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
        clusters = desired.summary.get("clusters") if desired is not None else None
        published = desired.summary.get("publishedPodCIDRs") if desired is not None else None
        if not isinstance(clusters, Mapping) or not isinstance(published, tuple):
            return
        now = time.monotonic()
        with self._condition:
            self._loss = _Loss(in_port=in_port, clusters=tuple(clusters.values()), published=published)
            self._due = [now + after for after in self._attempts]
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopping and (not self._due or self._due[0] > time.monotonic()):
                    self._condition.wait(self._due[0] - time.monotonic() if self._due else None)
                if self._stopping:
                    return
                self._due.pop(0)
                loss = self._loss
            assert loss is not None
            try:
                self._ask(loss)
            except BackendError as error:
                log.warning("connections that a lost gateway has SNATed may hang: %s", error)

    def _ask(self, loss: _Loss) -> None:
        found = may_be_translated(self._connections(), loss.clusters, loss.published)
        if found:
            self._send(loss.in_port, [probe(one) for one in found])
            log.info("a gateway was lost: %d SNATed connections were asked whether they go on", len(found))
