"""Liveness, damping and drain: adds to `Facts` the results of BFD and of requests to drain.

`Failover.facts` is called by the loop's thread in every pass; `report` and `hand_over` by any thread.
`mcagent.core.failover` decides (`step`); this module reads, holds the state and the clock, and logs.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from mcagent.agent.reachability import Reachability
from mcagent.agent.silent_peers import SilentPeers
from mcagent.agent.tunnel_probes import TunnelProbes
from mcagent.core.failover import liveness
from mcagent.core.failover.detection import Detection
from mcagent.core.failover.draining import Draining, Packets, Phase
from mcagent.core.failover.liveness import Damping, LivenessCause
from mcagent.core.failover.step import FailoverInputs, FailoverState, connections_lost, is_lost, step
from mcagent.core.local_cluster.gateways import Lingering
from mcagent.dataplane.ovsdb.observe import BridgeState
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import PeerKind, PortStatistics
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired
from mcagent.observe.gateways import LiveReport

log = logging.getLogger(__name__)

STEP = 1.0  # seconds: less is the time between two readings of clocks


class Failover:
    """State of liveness and drain of this Node."""

    def __init__(
        self,
        *,
        state: Callable[[], BridgeState],
        packets: Callable[[], Packets | None],
        counters: Callable[[], Mapping[str, PortStatistics]],
        damping: Damping,
        drain_timeout: float,
        reachability: Reachability | None = None,
        probes: TunnelProbes | None = None,
        gateway_lost: Callable[[int, Desired | None], None] = lambda *_: None,
        sent: Callable[[Iterable[int]], Mapping[int, int]] = lambda _: {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state` reads the bridge, `packets` and `counters` its statistics. `drain_timeout`: seconds per phase.

        `gateway_lost` is called with the OpenFlow port of a tunnel to a gateway of this cluster, and the desired
        state. `sent` reads the packets sent to remote clusters, by their numbers. `reachability` exchanges with
        other gateways which clusters they reach; without it all clusters count as reached. `probes` measures the
        tunnels to other clusters.
        """
        self._bridge, self._packets = state, packets
        self._damping, self._drain_timeout, self._clock = damping, drain_timeout, clock
        self._gateway_lost = gateway_lost
        self._reachability = reachability
        self._probes = probes
        self._state = FailoverState(advance=liveness.advance({}, (), clock(), damping))
        self._lingering = Lingering()
        self._silent = SilentPeers(counters, sent)
        self._leaving = False  # this Node's own Gateway is among those that linger
        self._detection = Detection()
        self._failovers: Counter[tuple[str, LivenessCause]] = Counter()
        self._stopping = ""
        self.report = LiveReport()

    @property
    def wake(self) -> float:
        """When a pass is due without a report of a change (seconds of the clock); may be inf."""
        if self._state.phase is Phase.DRAINED and self._leaving:
            return -math.inf  # this Node ends its role as a gateway at once
        reachability = math.inf if self._reachability is None else self._reachability.wake
        return min(self._state.wake, self._lingering.wakes, self._silent.silence.wake, reachability)

    @property
    def handed_over(self) -> bool:
        """Whether `hand_over` is complete, or cannot be done."""
        drain = self._state.draining
        return drain is None or drain.phase is Phase.DRAINED or bool(drain.refused)

    def hand_over(self, reason: str) -> None:
        """Drain from the next pass until the process ends; `reason` is shown to users."""
        self._stopping = reason

    def linger(self, snapshot: Snapshot, config: Config) -> Snapshot:
        """Add to the snapshot gateways that were deleted from the API, until their peers use others.

        This Node's own Gateway is removed as soon as it has drained.
        """
        self._lingering = self._lingering.at(snapshot, config, self._clock(), self._drain_timeout)
        if self._state.phase is Phase.DRAINED:
            self._lingering = self._lingering.without(config.node_name)
        self._leaving = any(gateway.meta.name == config.node_name for gateway in self._lingering.leaving)
        return self._lingering.put_into(snapshot)

    def facts(self, facts: Facts, snapshot: Snapshot, config: Config, desired: Desired | None) -> Facts:
        """Add liveness and drain to the facts; `desired` is the desired state of the last pass."""
        now, bridge, before = self._clock(), self._bridge(), self._state
        cluster_ids = desired.state.cluster_ids if desired is not None else {}
        self._silent.update([port for port, _ in bridge.tunnels], before.advance.seen, cluster_ids, now)
        silent = self._silent.silence.silent
        inputs = FailoverInputs(
            tunnels=bridge.tunnels,
            stored_order=bridge.active_order,
            silent=silent,
            drain=bridge.drain,
            stopping=self._stopping,
            packets=self._packets() if before.phase in (Phase.REMOTE, Phase.LOCAL) else None,
            snapshot=snapshot,
            config=config,
            desired=desired,
            damping=self._damping,
            drain_timeout=self._drain_timeout,
        )
        self._state = state = step(before, inputs, now)
        if state.advance is not before.advance:
            self._liveness_changed(before, state, desired)
        unreachable: frozenset[int] = frozenset()
        if self._reachability is not None:
            unreachable = self._reachability.update(state.tunnels, state.advance.peers)
        narrow: frozenset[str] = frozenset()
        if self._probes is not None:
            mtu = desired.state.mtu if desired is not None else 0
            narrow = self._probes.update(state.tunnels, state.advance.peers, mtu)
        self._update_detection(bridge, config, now)
        drain, order, advance = state.draining or Draining(), state.order or (), state.advance
        _log_drain(before.draining, drain)
        self.report = LiveReport(
            peers=advance.peers,
            ports=state.ports,
            damped=advance.damped,
            draining=drain,
            isolated=state.is_isolated_gateway,
            active_order=order,
            failovers=dict(self._failovers),
            antrea=state.verdicts.to_publish(config.node_name, state.clusters),
            dead_gateways=state.dead_gateways,
            epoch=self._epoch(self.report.epoch),
        )
        return replace(
            facts,
            bfd_seen=advance.seen,
            bfd_unanswered=advance.unanswered,
            antrea=state.verdicts.antrea,
            damped=advance.damped,
            bfd_begins=state.half_up,
            bfd_factors=self._detection.factors,
            silent=silent,
            unheard=self._silent.unheard - advance.seen,
            idle=self._silent.idle,
            drain=drain.signal,
            isolated=state.isolated,
            active_order=order,
            unreachable=unreachable,
            narrow=narrow,
        )

    def _epoch(self, before: float) -> float:
        """Return the time of day at 0 of the clock, as `before` but for steps: what is published must not vary."""
        epoch = time.time() - self._clock()
        return epoch if abs(epoch - before) >= STEP else before

    def _update_detection(self, state: BridgeState, config: Config, now: float) -> None:
        """Adapt the detection time of tunnels to other clusters to what probes have measured."""
        configured = config.bfd_remote if config.bfd_remote_adapt else None
        probed = self._probes.report() if self._probes is not None else {}
        self._detection = self._detection.update(state.tunnels, probed, configured, now)
        for change in self._detection.changes:
            where = f"{change.port.peer} ({change.port.remote_ip})"
            text = "BFD of the tunnel to %s: detection time %g s instead of %g s (%s)"
            log.info(text, where, change.after, change.before, change.reason)

    def _liveness_changed(self, before: FailoverState, state: FailoverState, desired: Desired | None) -> None:
        """Log and count the transitions, and have connections probed if a gateway took their SNAT state along."""
        if (is_isolated := state.is_isolated_gateway) is not before.is_isolated_gateway:
            log.log(
                logging.WARNING if is_isolated else logging.INFO,
                "this gateway reaches %s: its cluster %s it",
                "no other cluster" if is_isolated else "another cluster again",
                "is asked not to use" if is_isolated else "may use",
            )
        for peer in state.advance.changed:
            port = state.ports.get(peer.port)
            kind = port.peer_kind if port is not None else PeerKind.NODE
            if is_lost(peer):
                self._failovers[str(kind), peer.cause] += 1
            where = f"{port.peer} ({port.remote_ip})" if port is not None else peer.port
            level = logging.INFO if peer.live or peer.cause is not LivenessCause.BFD else logging.WARNING
            verdict = "is used" if peer.live else "is not used"
            log.log(level, "%s %s %s: %s (%s)", kind, where, verdict, peer.text, peer.cause)
        gateway_ports = [port.ofport for port in state.tunnels if port.peer_kind is PeerKind.GATEWAY]
        if gateway_ports and connections_lost(state.advance):
            self._gateway_lost(gateway_ports[0], desired)


def _log_drain(before: Draining | None, after: Draining) -> None:
    if before is not None and (before.phase, before.refused) == (after.phase, after.refused):
        return
    if after.refused:
        log.warning("drain has no effect: %s (%s)", after.refused, after.why)
    elif before is not None or after.phase is not Phase.SERVING:
        log.info("drain: %s%s", after.phase, f" ({after.why})" if after.why else "")
