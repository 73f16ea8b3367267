"""The state of each tunnel: its BFD settings, whether BFD watches it, standby, and its active-standby rank.

Inputs are the BFD configuration, whether the peer has ever answered, flap damping, Node readiness, drain and the
order of active gateways. A change of one tunnel changes the value of that tunnel only. Must not know flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flows.pipeline import NextHop, NextHopGroup
from mcagent.core.fragments.tunnel_guard import tunnel_port
from mcagent.core.local_cluster.nodes import CheckedNode
from mcagent.core.local_cluster.topology import LocalCluster
from mcagent.core.remote_clusters.claims import CheckedCluster
from mcagent.core.tunnels import Tunnel
from mcagent.model.config import Config, GatewayMode
from mcagent.model.dataplane.facts import DatapathType, Drain, Facts
from mcagent.model.dataplane.resources import Bfd, PeerKind
from mcagent.model.node_state import AcceptedCluster, LocalGateway, NodeRole
from mcagent.model.problem import Problem, Severity

# A tunnel with the Node's observations: port number; the peer has answered BFD; flap damping keeps it on standby;
# its session is half up and needed; the factor of its detection time. Plain tuples, since a pass builds thousands.
TunnelObservation = tuple[Tunnel, int, bool, bool, bool, int]
PeerObservations = Sequence[TunnelObservation]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRules:
    """The settings of all tunnels: BFD by kind of peer and, with active-standby, the order of gateways."""

    bfd: Mapping[PeerKind, Bfd | None]
    ordered: bool
    order: tuple[str, ...]  # gateways in the order stored in the bridge; () if no order is kept
    ranks: Mapping[str, int]  # index in `order`, by gateway

    def rank(self, name: str, place: int) -> int:
        """Return the rank of a gateway, the lowest first. `place`: its index in the API's order."""
        if not self.ordered:
            return 0
        return self.ranks.get(name, len(self.ranks) + place)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathState:
    """The current state of a tunnel. `rank`: its order within its group, with active-standby."""

    tunnel: Tunnel
    ofport: int
    bfd: Bfd | None
    watched: bool  # BFD is on, and the peer has answered once
    standby: bool
    rank: int

    @property
    def next_hop(self) -> NextHop:
        """The tunnel as a next hop for `flows.pipeline`."""
        return NextHop(ofport=self.ofport, watched=self.watched, standby=self.standby)


def path_rules(local: LocalCluster, has_clusters: bool, facts: Facts, config: Config) -> PathRules:
    """Return the path rules of this Node. A Node that drains, and an isolated gateway, signal path down by BFD.

    `has_clusters`: there are tunnels to remote clusters, so a gateway can be isolated.
    """
    ordered = config.gateways is GatewayMode.ACTIVE_STANDBY
    order = facts.active_order if ordered and not config.failback else ()
    is_isolated = facts.isolated and has_clusters and local.role is NodeRole.GATEWAY
    near = _signalled(config.bfd_local, facts.drain is Drain.ALL or is_isolated)
    workers = near if local.bfd_on_workers else None
    return PathRules(
        bfd={
            PeerKind.NODE: workers,
            PeerKind.GATEWAY: near if local.role is NodeRole.GATEWAY else workers,
            PeerKind.REMOTE: _signalled(config.bfd_remote, facts.drain is not Drain.NONE),
        },
        ordered=ordered,
        order=order,
        ranks={name: rank for rank, name in enumerate(order)},
    )


def observe_tunnels(
    tunnels: Mapping[str, tuple[Tunnel, ...]],
    ofports: Mapping[str, int],
    factors: Mapping[str, int],
    *,
    answered: frozenset[str],
    damped: frozenset[str],
    half_up: frozenset[str],
) -> dict[str, PeerObservations]:
    """Join the tunnels of each peer with the observations of this Node, which are sets of tunnel names.

    `factors`: of the detection time, by tunnel; 1 if it has none.
    """
    return {
        key: [
            (
                *(t, ofports[t.name], t.name in answered, t.name in damped, t.name in half_up),
                factors.get(t.name, 1),
            )
            for t in peer_tunnels
        ]
        for key, peer_tunnels in tunnels.items()
    }


def cluster_paths(observations: PeerObservations, rules: PathRules) -> tuple[PathState, ...]:
    """Return the state of the tunnels to one remote cluster, in the order of the API."""
    return tuple(
        _path(observation, rules, rank=rules.rank(str(observation[0].address), index) if rules.ordered else 0)
        for index, observation in enumerate(observations)
    )


def node_paths(value: tuple[PeerObservations, LocalGateway | None], rules: PathRules) -> tuple[PathState, ...]:
    """Return the state of the tunnel to a Node of this cluster, which may be a gateway."""
    observations, gateway = value
    if gateway is None:
        return tuple(_path(observation, rules) for observation in observations)
    rank, standby = rules.rank(gateway.node, gateway.place), bool(gateway.standby)
    return tuple(_path(observation, rules, standby=standby, rank=rank) for observation in observations)


def _path(observation: TunnelObservation, rules: PathRules, *, standby: bool = False, rank: int = 0) -> PathState:
    tunnel, ofport, answered, damped, half_up, factor = observation
    bfd = rules.bfd[tunnel.peer_kind]
    if bfd is not None and factor > 1:
        bfd = replace(bfd, mult=bfd.mult * factor)
    if bfd is not None and half_up:
        bfd = _at_once(bfd)
    return PathState(
        tunnel=tunnel,
        ofport=ofport,
        bfd=bfd,
        watched=bfd is not None and answered,
        standby=standby or damped,
        rank=rank,
    )


def problems(
    peer: tuple[tuple[Tunnel, ...], CheckedNode | CheckedCluster],
    silent: frozenset[str],
    narrow: frozenset[str],
    datapath: DatapathType,
    config: Config,
) -> tuple[Problem, ...]:
    """Report tunnels of a peer through which no packet (`silent`) or only small packets (`narrow`) arrive."""
    tunnels, checked = peer
    reported = []
    for tunnel in tunnels:
        if tunnel.name in narrow:
            message = (
                f"small packets pass the tunnel to {tunnel.gateway}, the largest that {config.host_port} takes do "
                f"not: the path MTU is smaller than mtu says"
            )
            reported.append(checked.meta.problem("spec.gatewayInfos", "PathMtu", message, Severity.WARNING))
        if tunnel.name not in silent:
            continue
        remote = tunnel.peer_kind is PeerKind.REMOTE
        port = config.wireguard_port if tunnel.encrypted else tunnel_port(config)
        causes = [f"UDP port {port} is blocked", "the address is wrong", "no agent runs there"]
        if datapath is DatapathType.NETDEV:
            causes.append("its uplink, or this Node's, is no port of a bridge of its userspace Open vSwitch")
        message = f"packets are sent to {tunnel.gateway} and none ever came from there: {', or '.join(causes)}"
        path = "spec.gatewayInfos" if remote else "status.addresses"
        reported.append(checked.meta.problem(path, "PeerSilent", message, Severity.WARNING))
    return tuple(reported)


def cluster_problems(
    peer: tuple[tuple[Tunnel, ...], CheckedCluster, AcceptedCluster | None],
    first: bool,
    idle: frozenset[str],
    *observations: *tuple[frozenset[str], frozenset[str], DatapathType, Config],
) -> tuple[Problem, ...]:
    """Report silent and narrow tunnels to another cluster, as `problems` does.

    `first`: this Node is the first gateway of its cluster. Antrea's gateways send only answers, and only to the
    first gateway, so their tunnels to other gateways, and `idle` tunnels, are not reported.
    """
    tunnels, checked, cluster = peer
    if cluster is not None and cluster.antrea:
        tunnels = tuple(tunnel for tunnel in tunnels if first and tunnel.name not in idle)
    return problems((tunnels, checked), *observations)


def next_hops(paths: Iterable[PathState], rules: PathRules) -> NextHopGroup:
    """Return the other gateways of this cluster as next hops, by rank."""
    gateway_paths = sorted(
        (path for path in paths if path.tunnel.peer_kind is PeerKind.GATEWAY),
        key=lambda path: (path.rank, path.ofport),
    )
    return NextHopGroup(next_hops=tuple(path.next_hop for path in gateway_paths), ordered=rules.ordered)


def _at_once(bfd: Bfd) -> Bfd:
    """Return BFD settings with a changed interval, so that Open vSwitch sends now and the peer answers.

    While a session is not up, Open vSwitch sends one packet per second, even after a change of state (lib/bfd.c,
    bfd_set_next_tx). A changed interval starts a poll sequence (RFC 5880, 6.8.3), whose packets are not delayed.
    """
    return replace(bfd, min_tx=bfd.min_tx + 1)


def _signalled(bfd: Bfd | None, down: bool) -> Bfd | None:
    """Return the settings with path down if `down`: the peer then stops sending (RFC 5880, 6.8.17)."""
    return replace(bfd, cpath_down=True) if bfd is not None and down else bfd
