"""Liveness, damping and drain: adds to `Facts` the results of BFD and of requests to drain.

`Failover.facts` is called by the loop's thread in every pass; `report` and `hand_over` by any thread.
`mcagent.core.failover` decides; this module holds the states and the clock.
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
from mcagent.core.failover import draining, liveness
from mcagent.core.failover.detection import Detection
from mcagent.core.failover.draining import NO_GATEWAY, Draining, Packets, Phase
from mcagent.core.failover.liveness import Damping, LivenessCause, PeerLiveness
from mcagent.core.failover.observations import (
    OWN_CLUSTER,
    active_order,
    announced,
    half_up_tunnels,
    isolated,
    observations,
)
from mcagent.core.failover.siblings import dead_gateways
from mcagent.core.failover.silence import Silence
from mcagent.core.local_cluster.gateways import Lingering
from mcagent.core.remote_clusters.verdicts import Verdicts
from mcagent.dataplane.ovsdb.observe import BridgeState
from mcagent.model.config import Config, GatewayMode
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import PeerKind, PortStatistics, TunnelPort
from mcagent.model.node_state import AcceptedCluster, NodeRole
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired
from mcagent.observe.gateways import LiveReport

log = logging.getLogger(__name__)


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
        self._state, self._packets = state, packets
        self._damping, self._drain_timeout, self._clock = damping, drain_timeout, clock
        self._gateway_lost = gateway_lost
        self._reachability = reachability
        self._probes = probes
        self._tunnels: tuple[TunnelPort, ...] = ()
        self._advance = liveness.advance({}, (), clock(), damping)
        self._draining: Draining | None = None
        self._lingering = Lingering()
        self._silent = SilentPeers(counters, sent)
        self._verdicts = Verdicts()
        self._dead_gateways: tuple[frozenset[str], float] = (frozenset(), math.inf)  # and when to look again
        self._leaving = False  # this Node's own Gateway is among those that linger
        self._order: tuple[str, ...] | None = None
        self._isolated = False
        self._begins: frozenset[str] = frozenset()
        self._detection = Detection()
        self._failovers: Counter[tuple[str, LivenessCause]] = Counter()
        self._stopping = ""
        self._inputs: tuple[object, ...] = (None, None, None, None, None)
        self._clusters: Mapping[str, AcceptedCluster] = {}
        self._antrea: frozenset[str] = frozenset()  # those of them that run Antrea
        self._verdict_inputs: tuple[object, ...] = (None, None)
        self._ports: Mapping[str, TunnelPort] = {}  # of all peers, including those whose tunnel was deleted
        self.report = LiveReport()

    @property
    def wake(self) -> float:
        """When a pass is due without a report of a change (seconds of the clock); may be inf."""
        drain = self._draining or Draining()
        if drain.phase is Phase.DRAINED and self._leaving:
            return -math.inf  # this Node ends its role as a gateway at once
        reachability = math.inf if self._reachability is None else self._reachability.wake
        waking = (
            self._advance.wake,
            drain.wake,
            self._lingering.wakes,
            self._silent.silence.wake,
            self._dead_gateways[1],
        )
        return min(*waking, reachability)

    @property
    def handed_over(self) -> bool:
        """Whether `hand_over` is complete, or cannot be done."""
        state = self._draining
        return state is None or state.phase is Phase.DRAINED or bool(state.refused)

    def hand_over(self, reason: str) -> None:
        """Drain from the next pass until the process ends; `reason` is shown to users."""
        self._stopping = reason

    def linger(self, snapshot: Snapshot, config: Config) -> Snapshot:
        """Add to the snapshot gateways that were deleted from the API, until their peers use others.

        This Node's own Gateway is removed as soon as it has drained.
        """
        self._lingering = self._lingering.at(snapshot, config, self._clock(), self._drain_timeout)
        if self._draining is not None and self._draining.phase is Phase.DRAINED:
            self._lingering = self._lingering.without(config.node_name)
        self._leaving = any(gateway.meta.name == config.node_name for gateway in self._lingering.leaving)
        return self._lingering.put_into(snapshot)

    def facts(self, facts: Facts, snapshot: Snapshot, config: Config, desired: Desired | None) -> Facts:
        """Add liveness and drain to the facts; `desired` is the desired state of the last pass."""
        now = self._clock()
        state = self._state()
        # The desired state is an input only of active-standby, which compares announced orders of gateways.
        ordered = config.gateways is GatewayMode.ACTIVE_STANDBY
        silence = self._update_silence(state, desired, now)
        clusters = desired.state.clusters if desired is not None else {}
        if clusters is not self._clusters:
            self._clusters = clusters
            antrea = frozenset(name for name, cluster in clusters.items() if cluster.antrea)
            self._antrea = self._antrea if antrea == self._antrea else antrea  # a change of others costs no step
        inputs = (state, snapshot.nodes, desired if ordered else None, silence.silent, self._antrea)
        changed = any(current is not previous for current, previous in zip(inputs, self._inputs, strict=True))
        if changed or now >= self._advance.wake:
            first = self._inputs[0] is None
            self._inputs = inputs
            self._update_liveness(state, snapshot, config, desired, now, first=first)
        if changed or now >= self._dead_gateways[1]:
            self._dead_gateways = dead_gateways(self._tunnels, self._advance.peers, now, self._damping)
        self._update_verdicts(snapshot)
        unreachable: frozenset[int] = frozenset()
        if self._reachability is not None:
            unreachable = self._reachability.update(self._tunnels, self._advance.peers)
        narrow: frozenset[str] = frozenset()
        if self._probes is not None:
            narrow = self._probes.update(
                self._tunnels, self._advance.peers, desired.state.mtu if desired is not None else 0
            )
        self._update_detection(state, config, now)
        self._draining = drain = self._drain(state, snapshot, config.node_name, desired, now)
        order = self._order or ()
        self.report = LiveReport(
            peers=self._advance.peers,
            ports=self._ports,
            damped=self._advance.damped,
            draining=drain,
            isolated=self._is_isolated_gateway,
            active_order=order,
            failovers=dict(self._failovers),
            antrea=self._verdicts.to_publish(config.node_name, clusters),
            dead_gateways=self._dead_gateways[0],
            epoch=time.time() - now,
        )
        return replace(
            facts,
            bfd_seen=self._advance.seen,
            bfd_unanswered=self._advance.unanswered,
            antrea=self._verdicts.antrea,
            damped=self._advance.damped,
            bfd_begins=self._begins,
            bfd_factors=self._detection.factors,
            silent=silence.silent,
            unheard=self._silent.unheard - self._advance.seen,
            idle=self._silent.idle,
            drain=drain.signal,
            isolated=self._isolated,
            active_order=order,
            unreachable=unreachable,
            narrow=narrow,
        )

    def _update_silence(self, state: BridgeState, desired: Desired | None, now: float) -> Silence:
        """Update the silent peers; return them."""
        cluster_ids = desired.state.cluster_ids if desired is not None else {}
        self._silent.update([port for port, _ in state.tunnels], self._advance.seen, cluster_ids, now)
        return self._silent.silence

    @property
    def _is_isolated_gateway(self) -> bool:
        return self._isolated and any(port.peer_kind is PeerKind.REMOTE for port in self._tunnels)

    def _update_detection(self, state: BridgeState, config: Config, now: float) -> None:
        """Adapt the detection time of tunnels to other clusters to what probes have measured."""
        configured = config.bfd_remote if config.bfd_remote_adapt else None
        probed = self._probes.report() if self._probes is not None else {}
        self._detection = self._detection.update(state.tunnels, probed, configured, now)
        for change in self._detection.changes:
            where = f"{change.port.peer} ({change.port.remote_ip})"
            text = "BFD of the tunnel to %s: detection time %g s instead of %g s (%s)"
            log.info(text, where, change.after, change.before, change.reason)

    def _update_verdicts(self, snapshot: Snapshot) -> None:
        """Update the verdicts on clusters, if BFD or the Gateways of this cluster changed."""
        inputs = (self._advance, snapshot.gateways)
        if any(current is not previous for current, previous in zip(inputs, self._verdict_inputs, strict=True)):
            self._verdict_inputs = inputs
            self._verdicts = self._verdicts.update(
                self._tunnels,
                snapshot.gateways.values(),
                seen=self._advance.seen,
                unanswered=self._advance.unanswered,
            )

    def _update_liveness(
        self,
        state: BridgeState,
        snapshot: Snapshot,
        config: Config,
        desired: Desired | None,
        now: float,
        *,
        first: bool,
    ) -> None:
        tunnels = state.tunnels
        observed = observations(tunnels, snapshot.nodes, self._silent.silence.silent, self._antrea)
        self._advance = liveness.advance(self._advance.peers, observed, now, self._damping, first=first)
        self._begins = half_up_tunnels(tunnels, self._advance)
        ports = {port.name: port for port, _ in tunnels}
        was_isolated = self._is_isolated_gateway
        self._isolated, self._tunnels = isolated(tunnels, self._advance, self._antrea), tuple(ports.values())
        if (is_isolated := self._is_isolated_gateway) is not was_isolated:
            log.log(
                logging.WARNING if is_isolated else logging.INFO,
                "this gateway reaches %s: its cluster %s it",
                "no other cluster" if is_isolated else "another cluster again",
                "is asked not to use" if is_isolated else "may use",
            )
        all_ports = {**self._ports, **ports}
        self._ports = {name: all_ports[name] for name in self._advance.peers if name in all_ports}
        for peer in self._advance.changed:
            self._count(peer)
        self._probe_connections(ports, desired)
        if config.gateways is not GatewayMode.ACTIVE_STANDBY or config.failback:
            self._order = None
        elif desired is None:
            self._order = self._order or state.active_order
        else:
            order = state.active_order if self._order is None else self._order
            self._order = active_order(order, announced(desired.state), ports.values(), self._advance)

    def _probe_connections(self, ports: Mapping[str, TunnelPort], desired: Desired | None) -> None:
        """Have connections probed after a gateway of this cluster was lost: its SNAT state is lost, too.

        The lost gateway may be this one, if it has lost all gateways of a cluster.
        """
        lost_groups = {peer.group for peer in self._advance.changed if _lost(peer)}
        peers = self._advance.peers
        lost_groups -= {peer.group for peer in peers.values() if peer.live and peer.group != OWN_CLUSTER}
        gateway_ports = [port.ofport for port in ports.values() if port.peer_kind is PeerKind.GATEWAY]
        if gateway_ports and any(group == OWN_CLUSTER or group.startswith("cluster/") for group in lost_groups):
            self._gateway_lost(gateway_ports[0], desired)

    def _count(self, peer: PeerLiveness) -> None:
        port = self._ports.get(peer.port)
        kind = port.peer_kind if port is not None else PeerKind.NODE
        if _lost(peer):
            self._failovers[str(kind), peer.cause] += 1
        where = f"{port.peer} ({port.remote_ip})" if port is not None else peer.port
        level = logging.INFO if peer.live or peer.cause is not LivenessCause.BFD else logging.WARNING
        verdict = "is used" if peer.live else "is not used"
        log.log(level, "%s %s %s: %s (%s)", kind, where, verdict, peer.text, peer.cause)

    def _drain(
        self, state: BridgeState, snapshot: Snapshot, own: str, desired: Desired | None, now: float
    ) -> Draining:
        before = self._draining
        if desired is not None:
            gateway = desired.state.role is NodeRole.GATEWAY
        else:
            gateway = own in {item.meta.name for item in snapshot.gateways.values()}
        why = self._stopping or draining.drain_reason(own, snapshot, flag=state.drain, gateway=gateway)
        refused = self._refused(snapshot, state, gateway=gateway) if why else ""
        active = before is not None and before.phase in (Phase.REMOTE, Phase.LOCAL)
        packets = self._packets() if active and why and not refused else None
        after = draining.advance(
            before, why=why, refused=refused, packets=packets, now=now, timeout=self._drain_timeout
        )
        if before is None or (before.phase, before.refused) != (after.phase, after.refused):
            if after.refused:
                log.warning("drain has no effect: %s (%s)", after.refused, why)
            elif before is not None or after.phase is not Phase.SERVING:
                log.info("drain: %s%s", after.phase, f" ({why})" if why else "")
        return after

    def _refused(self, snapshot: Snapshot, state: BridgeState, *, gateway: bool) -> str:
        """Return why this Node must not drain, "" if it may: a live gateway can take over."""
        if not gateway:
            return NO_GATEWAY
        is_draining = self._draining is not None and self._draining.phase is not Phase.SERVING
        for port, _ in state.tunnels:
            if port.peer_kind is PeerKind.GATEWAY and self._advance.peers[port.name].live:
                node = snapshot.nodes.get(port.peer)
                if is_draining or node is None or not node.drain:
                    return ""
        return "no other gateway of this cluster is live to take over"


def _lost(peer: PeerLiveness) -> bool:
    """Return whether a peer is down, rather than kept on standby by damping."""
    return not peer.live and peer.cause is not LivenessCause.DAMPING
