"""Liveness, damping and drain in the loop: fills what of `Facts` comes from BFD and from whoever asks to drain.

`Failover.facts` is called by the loop's thread in every pass; `report` and `hand_over` by any. What is decided is
decided by `mcagent.core.failover`; this holds the states and the clock.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from mcagent.agent.reachability import Reachability
from mcagent.agent.tunnel_probes import TunnelProbes
from mcagent.core.failover import draining, liveness
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
from mcagent.core.failover.silence import POLL_INTERVAL, Silence
from mcagent.core.local_cluster.gateways import Lingering
from mcagent.dataplane.ovsdb.observe import BridgeState
from mcagent.model.config import Config, GatewayMode
from mcagent.model.errors import BackendError
from mcagent.model.facts import Facts
from mcagent.model.node_state import Role
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired
from mcagent.model.resources import HostPort, PeerKind, PortStatistics, TunnelPort
from mcagent.observe.gateways import LiveReport

log = logging.getLogger(__name__)


class Failover:
    """The states of liveness and drain of this Node."""

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gateway_lost` is called with the port of a tunnel to a gateway of this cluster, and what is desired.

        `reachability` tells and hears what gateways reach; without it all is taken for reached. `probes` measures
        the tunnels to other clusters.
        """
        self._state, self._packets, self._counters = state, packets, counters
        self._damping, self._drain_timeout, self._clock = damping, drain_timeout, clock
        self._gateway_lost = gateway_lost
        self._reachability = reachability
        self._probes = probes
        self._wanted: tuple[TunnelPort, ...] = ()  # the tunnels that there are
        self._advance = liveness.advance({}, (), clock(), damping)
        self._draining: Draining | None = None
        self._lingering = Lingering()
        self._silence = Silence()
        self._leaving = False  # this Node's own Gateway is among those that linger
        self._order: tuple[str, ...] | None = None
        self._isolated = False
        self._begins: frozenset[str] = frozenset()
        self._failovers: Counter[tuple[str, LivenessCause]] = Counter()
        self._stopping = ""
        self._inputs: tuple[object, ...] = (None, None, None, None)
        self._ports: Mapping[str, TunnelPort] = {}  # of all peers, also of those that are gone
        self.report = LiveReport()

    @property
    def wake(self) -> float:
        """When to look again though nothing is reported (the clock's seconds); may be inf."""
        drain = self._draining or Draining()
        if drain.phase is Phase.DRAINED and self._leaving:
            return -math.inf  # nothing keeps this Node a gateway any more
        heard = math.inf if self._reachability is None else self._reachability.wake
        return min(self._advance.wake, drain.wake, self._lingering.wakes, self._silence.wake, heard)

    @property
    def handed_over(self) -> bool:
        """Whether nothing has to be waited for after `hand_over`."""
        state = self._draining
        return state is None or state.phase is Phase.DRAINED or bool(state.refused)

    def hand_over(self, why: str) -> None:
        """Drain from the next pass on, for as long as the process lives; `why` is for people."""
        self._stopping = why

    def linger(self, snapshot: Snapshot, config: Config) -> Snapshot:
        """Return the snapshot with gateways that the API has no more, until their peers have moved.

        This Node's own leaves as soon as it has handed over.
        """
        self._lingering = self._lingering.at(snapshot, config, self._clock(), self._drain_timeout)
        if self._draining is not None and self._draining.phase is Phase.DRAINED:
            self._lingering = self._lingering.without(config.node_name)
        self._leaving = any(gateway.meta.name == config.node_name for gateway in self._lingering.leaving)
        return self._lingering.put_into(snapshot)

    def facts(self, facts: Facts, snapshot: Snapshot, config: Config, desired: Desired | None) -> Facts:
        """Return the facts with what is live now; `desired` is the last pass's."""
        now = self._clock()
        state = self._state()
        # What is announced counts only where an order is kept: else a change elsewhere needs no look at tunnels.
        ordered = config.gateways is GatewayMode.ACTIVE_STANDBY
        self._listen(state, now)
        inputs = (state, snapshot.nodes, desired if ordered else None, self._silence.silent)
        moved = any(one is not other for one, other in zip(inputs, self._inputs, strict=True))
        if moved or now >= self._advance.wake:
            first = self._inputs[0] is None
            self._inputs = inputs
            self._look(state, snapshot, config, desired, now, first=first)
        unreachable: frozenset[int] = frozenset()
        if self._reachability is not None:
            unreachable = self._reachability.look(self._wanted, self._advance.peers)
        narrow: frozenset[str] = frozenset()
        if self._probes is not None:
            narrow = self._probes.look(self._wanted, self._advance.peers, _largest_packet(desired))
        self._draining = drain = self._drain(state, snapshot, config.node_name, desired, now)
        order = self._order or ()
        self.report = LiveReport(
            peers=self._advance.peers,
            ports=self._ports,
            damped=self._advance.damped,
            draining=drain,
            isolated=self._isolated,
            active_order=order,
            failovers=dict(self._failovers),
            epoch=time.time() - now,
        )
        return replace(
            facts,
            bfd_seen=self._advance.seen,
            bfd_unanswered=self._advance.unanswered,
            damped=self._advance.damped,
            bfd_begins=self._begins,
            silent=self._silence.silent,
            drain=drain.signal,
            isolated=self._isolated,
            active_order=order,
            unreachable=unreachable,
            narrow=narrow,
        )

    def _listen(self, state: BridgeState, now: float) -> None:
        """Find out from which peers nothing ever came."""
        seen = self._advance.seen
        unanswered = frozenset(
            port.name for port, _ in state.tunnels if port.bfd and not port.bfd_seen and port.name not in seen
        )
        try:
            self._silence = self._silence.update(unanswered, self._counters, now)
        except BackendError as error:
            self._silence = replace(self._silence, wake=now + POLL_INTERVAL)
            log.debug("%s", error)

    def _look(
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
        seen = observations(tunnels, snapshot.nodes, self._silence.silent)
        self._advance = liveness.advance(self._advance.peers, seen, now, self._damping, first=first)
        self._begins = half_up_tunnels(tunnels, self._advance)
        alone = isolated(tunnels, self._advance)
        if alone is not self._isolated:
            self._isolated = alone
            log.log(
                logging.WARNING if alone else logging.INFO,
                "this gateway reaches %s: its cluster %s it",
                "no other cluster" if alone else "another cluster again",
                "is asked not to use" if alone else "may use",
            )
        ports = {port.name: port for port, _ in tunnels}
        self._wanted = tuple(ports.values())
        every = {**self._ports, **ports}
        self._ports = {name: every[name] for name in self._advance.peers if name in every}
        for peer in self._advance.changed:
            self._count(peer)
        self._ask_connections(ports, desired)
        if config.gateways is not GatewayMode.ACTIVE_STANDBY or config.failback:
            self._order = None
        elif desired is None:
            self._order = self._order or state.active_order
        else:
            known = state.active_order if self._order is None else self._order
            self._order = active_order(known, announced(desired.state), ports.values(), self._advance)

    def _ask_connections(self, ports: Mapping[str, TunnelPort], desired: Desired | None) -> None:
        """What a gateway of this cluster has SNATed ends with it. One that lost a cluster may be this one."""
        lost = {peer.group for peer in self._advance.changed if _lost(peer)}
        peers = self._advance.peers
        lost -= {peer.group for peer in peers.values() if peer.live and peer.group != OWN_CLUSTER}
        near = [port.ofport for port in ports.values() if port.peer_kind is PeerKind.GATEWAY]
        if near and any(group == OWN_CLUSTER or group.startswith("cluster/") for group in lost):
            self._gateway_lost(near[0], desired)

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
            gateway = desired.state.role is Role.GATEWAY
        else:
            gateway = any(one.meta.name == own for one in snapshot.gateways.values())
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
        """Return why this Node must not go, or "": nobody would take over."""
        if not gateway:
            return NO_GATEWAY
        going = self._draining is not None and self._draining.phase is not Phase.SERVING
        for port, _ in state.tunnels:
            if port.peer_kind is PeerKind.GATEWAY and self._advance.peers[port.name].live:
                node = snapshot.nodes.get(port.peer)
                if going or node is None or not node.drain:
                    return ""
        return "no other gateway of this cluster is live to take over"


def _largest_packet(desired: Desired | None) -> int:
    """Return the bytes of the largest IP packet that the host port takes; 0: there is none yet."""
    every = desired.fragments["base"].resources if desired is not None and "base" in desired.fragments else ()
    return next((one.mtu for one in every if isinstance(one, HostPort)), 0)


def _lost(peer: PeerLiveness) -> bool:
    """Tell whether it cannot be used, which is more than not being trusted yet."""
    return not peer.live and peer.cause is not LivenessCause.DAMPING
