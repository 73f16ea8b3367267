"""One pass of failover: (state, what the pass observed, time) -> next state. Pure.

Owns what a pass hands to the next one: liveness and isolation, the active gateways, the gateways to report, the
verdicts on clusters, and the drain. Must not know clocks, counters of ports or databases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mcagent.core.failover import draining, liveness
from mcagent.core.failover.draining import NO_GATEWAY, Draining, Packets, Phase
from mcagent.core.failover.liveness import Advance, Damping, LivenessCause, PeerLiveness
from mcagent.core.failover.observations import (
    OWN_CLUSTER,
    active_order,
    announced,
    half_up_tunnels,
    isolated,
    observations,
)
from mcagent.core.failover.siblings import dead_gateways
from mcagent.core.remote_clusters.verdicts import Verdicts
from mcagent.model.config import Config, GatewayMode
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.model.node_state import AcceptedCluster, NodeRole
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired

Tunnels = tuple[tuple[TunnelPort, Mapping[str, str]], ...]  # with their column bfd_status


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverInputs:
    """What a pass observed. Values that are equal must be the same objects, so that liveness takes no step.

    `stored_order`: the active gateways in the database. `silent`: ports through which no packet came. `drain`:
    requested on the Node itself; `stopping`: why it drains until the process ends. `packets`: None if they are
    not counted. `desired`: the desired state of the last pass.
    """

    tunnels: Tunnels
    stored_order: tuple[str, ...]
    silent: frozenset[str]
    drain: bool
    stopping: str
    packets: Packets | None
    snapshot: Snapshot
    config: Config
    desired: Desired | None
    damping: Damping
    drain_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverState:
    """The state after a pass. `order`: the active gateways; None without active-standby, or with failback."""

    advance: Advance
    tunnels: tuple[TunnelPort, ...] = ()
    ports: Mapping[str, TunnelPort] = field(default_factory=dict)  # of all peers, also those without a tunnel now
    half_up: frozenset[str] = frozenset()
    isolated: bool = False  # see `observations.isolated`
    order: tuple[str, ...] | None = None
    dead_gateways: frozenset[str] = frozenset()
    dead_wake: float = math.inf  # when to look for dead gateways again
    verdicts: Verdicts = field(default_factory=Verdicts)
    clusters: Mapping[str, AcceptedCluster] = field(default_factory=dict)
    antrea: frozenset[str] = frozenset()  # those of them that run Antrea
    draining: Draining | None = None
    compared: tuple[object, ...] = ()  # what liveness depends on
    gateways: Mapping[str, object] | None = None  # what verdicts depend on beside liveness

    @property
    def phase(self) -> Phase:
        """The phase of the drain."""
        return self.draining.phase if self.draining is not None else Phase.SERVING

    @property
    def wake(self) -> float:
        """When a step is due without another input; may be inf."""
        drain = self.draining.wake if self.draining is not None else math.inf
        return min(self.advance.wake, drain, self.dead_wake)

    @property
    def is_isolated_gateway(self) -> bool:
        """Whether this Node is a gateway that reaches no other cluster, while another gateway is up."""
        return self.isolated and any(port.peer_kind is PeerKind.REMOTE for port in self.tunnels)


def step(before: FailoverState, inputs: FailoverInputs, now: float) -> FailoverState:
    """Return the state after a pass at the time `now`, in seconds."""
    state = _with_clusters(before, inputs.desired)
    # The desired state is an input only of active-standby, which compares announced orders of gateways.
    ordered = inputs.desired if inputs.config.gateways is GatewayMode.ACTIVE_STANDBY else None
    nodes, gateways = inputs.snapshot.nodes, inputs.snapshot.gateways
    compared = (inputs.tunnels, inputs.stored_order, nodes, ordered, inputs.silent, state.antrea)
    pairs = zip(compared, before.compared, strict=True) if before.compared else ()
    changed = not before.compared or any(current is not previous for current, previous in pairs)
    if changed or now >= before.advance.wake:
        state = _with_liveness(replace(state, compared=compared), inputs, now, first=not before.compared)
    advance, tunnels = state.advance, state.tunnels
    if advance is not before.advance or now >= before.dead_wake:
        names, wake = dead_gateways(tunnels, advance.peers, now, inputs.damping)
        state = replace(state, dead_gateways=names, dead_wake=wake)
    if advance is not before.advance or gateways is not before.gateways:
        verdicts = state.verdicts.update(
            tunnels, gateways.values(), seen=advance.seen, unanswered=advance.unanswered
        )
        state = replace(state, verdicts=verdicts, gateways=gateways)
    return replace(state, draining=_drain(state, inputs, now))


def _with_clusters(state: FailoverState, desired: Desired | None) -> FailoverState:
    clusters = desired.state.clusters if desired is not None else {}
    if clusters is state.clusters:
        return state
    antrea = frozenset(name for name, cluster in clusters.items() if cluster.antrea)
    antrea = state.antrea if antrea == state.antrea else antrea  # a change of others costs no step
    return replace(state, clusters=clusters, antrea=antrea)


def _with_liveness(state: FailoverState, inputs: FailoverInputs, now: float, *, first: bool) -> FailoverState:
    observed = observations(inputs.tunnels, inputs.snapshot.nodes, inputs.silent, state.antrea)
    advance = liveness.advance(state.advance.peers, observed, now, inputs.damping, first=first)
    ports = {port.name: port for port, _ in inputs.tunnels}
    all_ports = {**state.ports, **ports}
    return replace(
        state,
        advance=advance,
        tunnels=tuple(ports.values()),
        ports={name: all_ports[name] for name in advance.peers if name in all_ports},
        half_up=half_up_tunnels(inputs.tunnels, advance),
        isolated=isolated(inputs.tunnels, advance, state.antrea),
        order=_order(state.order, inputs, advance),
    )


def _order(before: tuple[str, ...] | None, inputs: FailoverInputs, advance: Advance) -> tuple[str, ...] | None:
    if inputs.config.gateways is not GatewayMode.ACTIVE_STANDBY or inputs.config.failback:
        return None
    if inputs.desired is None:
        return before or inputs.stored_order
    order = inputs.stored_order if before is None else before
    return active_order(order, announced(inputs.desired.state), (port for port, _ in inputs.tunnels), advance)


def _drain(state: FailoverState, inputs: FailoverInputs, now: float) -> Draining:
    snapshot, own = inputs.snapshot, inputs.config.node_name
    if inputs.desired is not None:
        gateway = inputs.desired.state.role is NodeRole.GATEWAY
    else:
        gateway = own in {item.meta.name for item in snapshot.gateways.values()}
    why = inputs.stopping or draining.drain_reason(own, snapshot, flag=inputs.drain, gateway=gateway)
    refused = _refused(state, inputs, gateway=gateway) if why else ""
    packets, timeout = inputs.packets, inputs.drain_timeout
    return draining.advance(state.draining, why=why, refused=refused, packets=packets, now=now, timeout=timeout)


def _refused(state: FailoverState, inputs: FailoverInputs, *, gateway: bool) -> str:
    """Return why this Node must not drain, "" if it may: a live gateway can take over."""
    if not gateway:
        return NO_GATEWAY
    for port, _ in inputs.tunnels:
        if port.peer_kind is PeerKind.GATEWAY and state.advance.peers[port.name].live:
            node = inputs.snapshot.nodes.get(port.peer)
            if state.phase is not Phase.SERVING or node is None or not node.drain:
                return ""
    return "no other gateway of this cluster is live to take over"


def is_lost(peer: PeerLiveness) -> bool:
    """Tell whether a peer is down, rather than kept on standby by damping."""
    return not peer.live and peer.cause is not LivenessCause.DAMPING


def connections_lost(advance: Advance) -> bool:
    """Tell whether a gateway of this cluster was lost, with its SNAT state.

    The lost gateway may be this one, if it has lost all gateways of a cluster.
    """
    groups = {peer.group for peer in advance.changed if is_lost(peer)}
    groups -= {peer.group for peer in advance.peers.values() if peer.live and peer.group != OWN_CLUSTER}
    return any(group == OWN_CLUSTER or group.startswith("cluster/") for group in groups)
