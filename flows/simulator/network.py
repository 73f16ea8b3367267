"""Several switches joined by tunnels, each with its Node's kernel behind one port: where does a packet end?

Owns the hops between switches. It is a value, too: sending returns the network as it is afterwards.
Must not know what the switches' flows are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flows.simulator.conntrack import ConnectionTable, Datapath
from flows.simulator.packet import Packet
from flows.simulator.switch import SimulatedSwitch, SwitchWalk

Port = tuple[str, int]  # switch, number of the port
MAX_HOPS = 64  # walks that one packet may cause before it counts as looping


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketWalk:
    """All that came of one packet: walks in order, copies handed to kernels, reasons of drops, faults of flows."""

    walks: tuple[tuple[str, SwitchWalk], ...]
    deliveries: tuple[tuple[str, Packet], ...]
    drops: tuple[str, ...]
    problems: tuple[str, ...]
    network: Network

    @property
    def path(self) -> tuple[str, ...]:
        """The switches, in the order in which the packet met them."""
        return tuple(name for name, _ in self.walks)

    def __str__(self) -> str:
        lines = [f"[{name}] {walk}" for name, walk in self.walks]
        lines += [f"delivered at {name}: {packet}" for name, packet in self.deliveries]
        return "\n".join([*lines, *(f"!! {problem}" for problem in self.problems)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Switches by name and the tunnels between their ports (each listed from both ends).

    A port in `dead` carries nothing, and its switch knows (liveness detection). A port in `cut` carries nothing
    and its switch does not know yet. A port in `silent` carries all, but its switch takes it for dead: the peer
    does not speak the protocol of liveness detection, or says that nothing is to be sent to it.
    """

    switches: Mapping[str, SimulatedSwitch]
    tunnels: Mapping[Port, Port]
    connections: Mapping[str, ConnectionTable] = field(default_factory=dict)
    datapath: Datapath = Datapath.KERNEL
    dead: frozenset[Port] = frozenset()
    cut: frozenset[Port] = frozenset()
    silent: frozenset[Port] = frozenset()
    host_port: int = 1

    def live(self, switch: str) -> frozenset[int]:
        """Return the ports of a switch that groups may count on."""
        ends = {end for end in self.tunnels if end[0] == switch and end not in self.dead | self.silent}
        return frozenset({self.host_port, *(number for _, number in ends)})

    def losing(self, *names: str) -> Network:
        """Return the network without the tunnels of these switches; every other switch knows."""
        ends = {end for a, b in self.tunnels.items() for end in (a, b) if a[0] in names or b[0] in names}
        return replace(self, dead=self.dead | ends)

    def cutting(self, *pairs: tuple[str, str]) -> Network:
        """Return the network without the tunnels between these switches; both know."""
        gone = {frozenset(pair) for pair in pairs}
        ends = {end for a, b in self.tunnels.items() for end in (a, b) if frozenset((a[0], b[0])) in gone}
        return replace(self, dead=self.dead | ends)

    def forgetting(self, zone: int, *names: str) -> Network:
        """Return the network with this zone of these switches' connection tables flushed."""
        kept = {n: t.without(zone) if n in names else t for n, t in self.connections.items()}
        return replace(self, connections=kept)

    def expiring(self, zone: int, *names: str) -> Network:
        """Return the network with all that this zone of these switches' connection tables knows just expired."""
        kept = {n: t.expired(zone) if n in names else t for n, t in self.connections.items()}
        return replace(self, connections=kept)

    def over(self, datapath: Datapath) -> Network:
        """Return the network with no connections and this kind of connection tracking everywhere."""
        return replace(self, connections={}, datapath=datapath)

    def send(self, switch: str, packet: Packet) -> PacketWalk:
        """Let a packet come in at `packet.in_port` of a switch and follow every copy to its end."""
        tables = dict(self.connections)
        walks: list[tuple[str, SwitchWalk]] = []
        deliveries: list[tuple[str, Packet]] = []
        drops: list[str] = []
        problems: list[str] = []
        waiting = [(switch, packet)]
        while waiting:
            if len(walks) == MAX_HOPS:
                problems.append(f"more than {MAX_HOPS} hops: a loop between switches")
                break
            name, arrived = waiting.pop(0)
            before = tables.get(name) or ConnectionTable(datapath=self.datapath)
            walk = self.switches[name].walk(arrived, before, self.live(name))
            tables[name] = walk.connections
            walks.append((name, walk))
            drops += [f"{name}: {why}" for why in walk.drops]
            problems += [f"{name}: {what}" for what in walk.problems]
            for number, copy in walk.outputs:
                if number == self.host_port:
                    deliveries.append((name, copy))
                    continue
                end = self.tunnels.get((name, number))
                if end is None or {end, (name, number)} & (self.dead | self.cut):
                    drops.append(f"{name}: port {number} {'does not exist' if end is None else 'is cut off'}")
                else:
                    waiting.append((end[0], replace(copy, in_port=end[1])))
        return PacketWalk(
            walks=tuple(walks),
            deliveries=tuple(deliveries),
            drops=tuple(drops),
            problems=tuple(problems),
            network=replace(self, connections=tables),
        )
