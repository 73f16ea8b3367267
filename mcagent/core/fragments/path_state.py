"""The state of each tunnel as a path: watched by BFD, on standby, its place in the order of active-standby.

It combines BFD (configuration, and whether the peer has ever answered), flap damping, Node readiness, drain and
the order of active-standby. A change of one tunnel changes the value of that tunnel only. Must not know flows.
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
from mcagent.model.facts import DatapathType, Drain, Facts
from mcagent.model.node_state import LocalGateway, Role
from mcagent.model.problem import Problem, Severity
from mcagent.model.resources import Bfd, PeerKind

# A tunnel and what the Node says of it: the port's number; whether the peer has answered BFD once, flap damping
# keeps it on standby, its session is half up while it is needed. Plain tuples: there are thousands in a pass.
Said = tuple[Tunnel, int, bool, bool, bool]
Observed = Sequence[Said]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRules:
    """What holds for all tunnels: BFD by kind of peer and, with active-standby, the order of gateways."""

    bfd: Mapping[PeerKind, Bfd | None]
    ordered: bool
    order: tuple[str, ...]  # to be kept in the bridge; () where it does not count
    ranks: Mapping[str, int]  # the same, by name

    def rank(self, name: str, place: int) -> int:
        """Return where a gateway stands; `place` is its place in the API's order."""
        if not self.ordered:
            return 0
        return self.ranks.get(name, len(self.ranks) + place)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathState:
    """A tunnel as it is now. `rank`: where it stands among those of its group, with active-standby."""

    tunnel: Tunnel
    ofport: int
    bfd: Bfd | None
    watched: bool  # BFD is on, and the peer has answered once
    standby: bool
    rank: int

    @property
    def next_hop(self) -> NextHop:
        """The tunnel as flows see it."""
        return NextHop(ofport=self.ofport, watched=self.watched, standby=self.standby)


def path_rules(local: LocalCluster, facts: Facts, config: Config) -> PathRules:
    """Return the rules on this Node. A Node that drains, or reaches no other cluster, says so by BFD."""
    ordered = config.gateways is GatewayMode.ACTIVE_STANDBY
    order = facts.active_order if ordered and not config.failback else ()
    near = _signalled(config.bfd_local, facts.drain is Drain.ALL or facts.isolated)
    workers = near if local.bfd_on_workers else None
    return PathRules(
        bfd={
            PeerKind.NODE: workers,
            PeerKind.GATEWAY: near if local.role is Role.GATEWAY else workers,
            PeerKind.REMOTE: _signalled(config.bfd_remote, facts.drain is not Drain.NONE),
        },
        ordered=ordered,
        order=order,
        ranks={name: rank for rank, name in enumerate(order)},
    )


def observed(
    tunnels: Mapping[str, tuple[Tunnel, ...]],
    ofports: Mapping[str, int],
    *,
    seen: frozenset[str],
    damped: frozenset[str],
    begins: frozenset[str],
) -> dict[str, Observed]:
    """Return the tunnels with what the Node says of them."""
    return {
        key: [(t, ofports[t.name], t.name in seen, t.name in damped, t.name in begins) for t in found]
        for key, found in tunnels.items()
    }


def cluster_paths(found: Observed, rules: PathRules) -> tuple[PathState, ...]:
    """Return the state of the tunnels to one remote cluster, in the order of the API."""
    return tuple(
        _path(one, rules, rank=rules.rank(str(one[0].address), place) if rules.ordered else 0)
        for place, one in enumerate(found)
    )


def node_paths(value: tuple[Observed, LocalGateway | None], rules: PathRules) -> tuple[PathState, ...]:
    """Return the state of the tunnel to a Node of this cluster, which may be a gateway."""
    found, gateway = value
    if gateway is None:
        return tuple(_path(one, rules) for one in found)
    rank, standby = rules.rank(gateway.node, gateway.place), bool(gateway.standby)
    return tuple(_path(one, rules, standby=standby, rank=rank) for one in found)


def _path(said: Said, rules: PathRules, *, standby: bool = False, rank: int = 0) -> PathState:
    tunnel, ofport, seen, damped, begins = said
    bfd = rules.bfd[tunnel.peer_kind]
    if bfd is not None and begins:
        bfd = _at_once(bfd)
    return PathState(
        tunnel=tunnel,
        ofport=ofport,
        bfd=bfd,
        watched=bfd is not None and seen,
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
    """Return the problems of a peer's tunnels from which nothing ever came, or that only small packets pass."""
    tunnels, checked = peer
    found = []
    for tunnel in tunnels:
        if tunnel.name in narrow:
            message = (
                f"small packets pass the tunnel to {tunnel.gateway}, the largest that {config.host_port} takes do "
                f"not: the path MTU is smaller than mtu says"
            )
            found.append(checked.meta.problem("spec.gatewayInfos", "PathMtu", message, Severity.WARNING))
        if tunnel.name not in silent:
            continue
        remote = tunnel.peer_kind is PeerKind.REMOTE
        port = config.wireguard_port if remote and config.encrypts else tunnel_port(config)
        causes = [f"UDP port {port} is blocked", "the address is wrong", "no agent runs there"]
        if datapath is DatapathType.NETDEV:
            causes.append("its uplink, or this Node's, is no port of a bridge of its userspace Open vSwitch")
        message = f"packets are sent to {tunnel.gateway} and none ever came from there: {', or '.join(causes)}"
        path = "spec.gatewayInfos" if remote else "status.addresses"
        found.append(checked.meta.problem(path, "PeerSilent", message, Severity.WARNING))
    return tuple(found)


def next_hops(paths: Iterable[PathState], rules: PathRules) -> NextHopGroup:
    """Return the gateways of this cluster (but this Node) to choose from, with active-standby in order."""
    found = sorted(
        (path for path in paths if path.tunnel.peer_kind is PeerKind.GATEWAY),
        key=lambda path: (path.rank, path.ofport),
    )
    return NextHopGroup(next_hops=tuple(path.next_hop for path in found), ordered=rules.ordered)


def _at_once(bfd: Bfd) -> Bfd:
    """Return settings that make Open vSwitch send now, and the peer answer.

    While a session is not up a packet is due once in a second, also when there is something to say (lib/bfd.c,
    bfd_set_next_tx). A changed interval begins a poll sequence (RFC 5880, 6.8.3), whose packets do not wait.
    """
    return replace(bfd, min_tx=bfd.min_tx + 1)


def _signalled(bfd: Bfd | None, down: bool) -> Bfd | None:
    """Return the settings; `down` tells the peer that nothing is to be sent this way (RFC 5880, 6.8.17)."""
    return replace(bfd, cpath_down=True) if bfd is not None and down else bfd
