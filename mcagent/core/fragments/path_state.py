"""What is known of each tunnel as a way to a gateway: is it watched, is it on standby, which comes first.

Puts together BFD (configuration, and what was seen of peers), flap damping, Node readiness, drain and the order of
active-standby. A change of one tunnel changes the value of that tunnel only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flows import pipeline
from mcagent.core.fragments.tunnels import Tunnel, Tunnels
from mcagent.core.local_cluster.topology import Local
from mcagent.model.config import Config, GatewayMode
from mcagent.model.facts import Drain, Facts
from mcagent.model.resources import Bfd, PeerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A tunnel's port as it is now. `rank`: where it stands among those of its group, with active-standby."""

    ofport: int
    bfd: Bfd | None
    watched: bool  # BFD is on, and the peer has answered once
    standby: bool
    rank: int

    @property
    def lasting(self) -> tuple[object, ...]:
        """What the port itself follows from, whatever group it is in."""
        return (self.ofport, self.bfd, self.watched)

    @property
    def used(self) -> tuple[object, ...]:
        """What flows and groups over the port follow from."""
        return (self.ofport, self.watched, self.standby, self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathState:
    """Tells of every tunnel what `Port` holds."""

    local: Local
    facts: Facts
    ofports: Mapping[str, int]
    bfd: Mapping[PeerKind, Bfd | None]
    ordered: bool
    kept_order: tuple[str, ...]  # to be kept in the bridge; () where it does not count
    ranks: Mapping[str, int]

    @classmethod
    def of(cls, local: Local, facts: Facts, config: Config, ofports: Mapping[str, int]) -> PathState:
        """Return what is known now."""
        ordered = config.gateways is GatewayMode.ACTIVE_STANDBY
        order = facts.active_order if ordered and not config.failback else ()
        near = _signalled(config.bfd_local, facts.drain is Drain.ALL or facts.isolated)
        workers = near if local.bfd_on_workers else None
        return cls(
            local=local,
            facts=facts,
            ofports=ofports,
            bfd={
                PeerKind.NODE: workers,
                PeerKind.GATEWAY: near if local.role == "gateway" else workers,
                PeerKind.REMOTE: _signalled(config.bfd_remote, facts.drain is not Drain.NONE),
            },
            ordered=ordered,
            kept_order=order,
            ranks={name: rank for rank, name in enumerate(order)},
        )

    def moved_since(self, before: PathState) -> set[str] | None:
        """Return the tunnels whose `port` may not be what `before` said; None where that may be any."""
        if self.bfd != before.bfd or self.ordered != before.ordered or self.ranks != before.ranks:
            return None
        moved = (
            set(self.facts.damped ^ before.facts.damped) if self.facts.damped is not before.facts.damped else set()
        )
        if self.facts.bfd_seen is not before.facts.bfd_seen:
            moved |= self.facts.bfd_seen ^ before.facts.bfd_seen
        moved |= self.facts.bfd_begins ^ before.facts.bfd_begins
        if self.ofports is not before.ofports:
            moved.update(name for name, number in self.ofports.items() if before.ofports.get(name) != number)
        return moved

    def port(self, tunnel: Tunnel, *, standby: bool = False, name: str = "", place: int = 0) -> Port:
        """Return what is known of a tunnel; `name` and `place` say where it stands in an order."""
        bfd = self.bfd[tunnel.peer_kind]
        if bfd is not None and tunnel.name in self.facts.bfd_begins:
            bfd = _at_once(bfd)
        return Port(
            ofport=self.ofports[tunnel.name],
            bfd=bfd,
            watched=bfd is not None and tunnel.name in self.facts.bfd_seen,
            standby=standby or tunnel.name in self.facts.damped,
            rank=self.ranks.get(name, len(self.ranks) + place) if self.ordered else 0,
        )

    def ports(self, tunnels: tuple[Tunnel, ...]) -> tuple[Port, ...]:
        """Return what is known of the tunnels to one remote cluster, in the order of the API."""
        return tuple(
            [self.port(tunnel, name=str(tunnel.address), place=place) for place, tunnel in enumerate(tunnels)]
        )

    def choice(self, tunnels: Tunnels) -> pipeline.NextHopGroup:
        """Return the gateways of this cluster (but this Node) to choose from, with active-standby in order."""
        found = []
        for gateway in self.local.gateways:
            owner = tunnels.get(f"node/{gateway.node}")
            if owner is not None:
                (tunnel,) = owner[1]
                standby = bool(gateway.standby)
                found.append(self.port(tunnel, standby=standby, name=gateway.node, place=gateway.place))
        found.sort(key=lambda port: (port.rank, port.ofport))
        return pipeline.NextHopGroup(
            next_hops=tuple(
                pipeline.NextHop(ofport=p.ofport, watched=p.watched, standby=p.standby) for p in found
            ),
            ordered=self.ordered,
        )


def _at_once(bfd: Bfd) -> Bfd:
    """Return settings that make Open vSwitch send now, and the peer answer.

    While a session is not up a packet is due once in a second, also when there is something to say (lib/bfd.c,
    bfd_set_next_tx). A changed interval begins a poll sequence (RFC 5880, 6.8.3), whose packets do not wait.
    """
    return replace(bfd, min_tx=bfd.min_tx + 1)


def _signalled(bfd: Bfd | None, down: bool) -> Bfd | None:
    """Return the settings; `down` tells the peer that nothing is to be sent this way (RFC 5880, 6.8.17)."""
    return replace(bfd, cpath_down=True) if bfd is not None and down else bfd
