"""A gateway whose tunnels go down and come back, step by step, with its own time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address

from mcagent.agent.failover import Failover
from mcagent.core.failover.draining import Packets, Phase
from mcagent.core.failover.liveness import Damping
from mcagent.dataplane.ovsdb.observe import BridgeState
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Drain, Facts
from mcagent.model.dataplane.resources import PeerKind, PortStatistics, TunnelPort
from mcagent.model.objects import Gateway, Kind, Meta, Node, Snapshot
from mcagent.model.plan import Desired
from tests.worlds.core_inputs import tunnel_port

Tunnel = tuple[TunnelPort, Mapping[str, str]]
UP = {"state": "up", "forwarding": "true", "flap_count": "1", "remote_diagnostic": "No Diagnostic"}
DOWN = {"state": "down", "forwarding": "false", "flap_count": "2"}


def tunnel(number: int, peer: str, kind: PeerKind, status: dict[str, str], has_answered: bool = False) -> Tunnel:
    """Return a tunnel to a peer, with its BFD."""
    return tunnel_port(number, peer, kind, seen=has_answered), status


def node(name: str, **changes: bool) -> Node:
    """Return a Node."""
    return replace(Node(meta=Meta(kind=Kind.NODE, name=name)), **changes)  # type: ignore[arg-type]


def snapshot(*nodes: Node, gateways: tuple[str, ...] = ("g1", "g2")) -> Snapshot:
    """Return a cluster."""
    objects = [
        Gateway(
            meta=Meta(kind=Kind.GATEWAY, name=name),
            gateway_ip=ip_address(f"192.0.2.{number}"),
            internal_ip=ip_address(f"192.0.2.{number}"),
        )
        for number, name in enumerate(gateways, 1)
    ]
    return Snapshot(
        nodes={n.meta.name: n for n in nodes or (node("g1"), node("g2"), node("w1"))},
        gateways={g.meta.name: g for g in objects},
    )


class Place:
    """Gateway g1 with a sibling g2 and one remote cluster that has two gateways."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config(node_name="g1")
        self.now = 100.0
        self.tunnels = {
            2: tunnel(2, "g2", PeerKind.GATEWAY, UP),
            3: tunnel(3, "east", PeerKind.REMOTE, UP),
            4: tunnel(4, "east", PeerKind.REMOTE, UP),
        }
        self.flag = False
        self.packets = Packets()
        self.counters: dict[str, PortStatistics] = {}
        self.sent: dict[int, int] = {}
        self.snapshot = snapshot()
        self.base = Facts()
        self.desired: Desired | None = None
        self._state: BridgeState | None = None
        self.lost: list[int] = []
        self.live = Failover(
            state=self.state,
            packets=lambda: self.packets,
            counters=lambda: self.counters,
            damping=Damping(initial=1.0, longest=60.0),
            drain_timeout=5.0,
            gateway_lost=lambda port, _: self.lost.append(port),
            sent=lambda clusters: {number: self.sent[number] for number in clusters if number in self.sent},
            clock=lambda: self.now,
        )

    def state(self) -> BridgeState:
        """What OVSDB says: the same object while it says the same."""
        state = BridgeState(tunnels=tuple(t for _, t in sorted(self.tunnels.items())), drain=self.flag)
        if state != self._state:
            self._state = state
        assert self._state is not None
        return self._state

    def say(self, number: int, status: dict[str, str]) -> None:
        """BFD of a tunnel says something."""
        self.tunnels[number] = (self.tunnels[number][0], status)

    def facts(self, after: float = 0.0) -> Facts:
        """Return the facts of the next pass."""
        self.now += after
        return self.live.facts(self.base, self.snapshot, self.config, self.desired)

    def until(self, phase: Phase, seconds: float = 20.0) -> list[Drain]:
        """Let passes follow as they are asked for until a phase; return what the peers were told."""
        drains = [self.facts().drain]
        end = self.now + seconds
        while self.live.report.draining.phase is not phase:
            assert self.live.wake < end, f"stays {self.live.report.draining}"
            self.now = self.live.wake
            drains.append(self.facts().drain)
        return drains
