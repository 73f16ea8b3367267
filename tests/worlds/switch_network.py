"""A network of switches with tunnels between them, and the kernel of its Node behind one port of each switch.

Owns the hops between switches. A network is a value: `send` returns the network with the resulting connection
tables. Must not know the purpose of the flows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flows.simulator.conntrack import ConnectionTable, Datapath
from flows.simulator.packet import Packet
from flows.simulator.switch import SimulatedSwitch, SwitchWalk

Port = tuple[str, int]  # switch, number of the port
MAX_HOPS = 64  # walks of one packet after which it counts as looping


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketWalk:
    """The results of one packet: walks in order, deliveries to kernels, reasons of drops, errors in the flows."""

    walks: tuple[tuple[str, SwitchWalk], ...]
    deliveries: tuple[tuple[str, Packet], ...]
    drops: tuple[str, ...]
    problems: tuple[str, ...]
    network: Network

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the switches, in the order of the packet."""
        return tuple(name for name, _ in self.walks)

    def __str__(self) -> str:
        lines = [f"[{name}] {walk}" for name, walk in self.walks]
        lines += [f"delivered at {name}: {packet}" for name, packet in self.deliveries]
        return "\n".join([*lines, *(f"!! {problem}" for problem in self.problems)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Switches by name, and the tunnels between their ports (each listed from both ends).

    A port in `dead` loses all packets, and its switch has detected that. A port in `cut` loses all packets, and
    its switch has not detected it. A port in `silent` loses no packets, but its switch considers it dead: the peer
    does not answer BFD, or signals path down.
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
        """Return the ports that the groups of a switch consider live."""
        ends = {end for end in self.tunnels if end[0] == switch and end not in self.dead | self.silent}
        return frozenset({self.host_port, *(number for _, number in ends)})

    def losing(self, *names: str) -> Network:
        """Return the network with all tunnels of these switches dead."""
        ends = {end for a, b in self.tunnels.items() for end in (a, b) if a[0] in names or b[0] in names}
        return replace(self, dead=self.dead | ends)

    def cutting(self, *pairs: tuple[str, str]) -> Network:
        """Return the network with the tunnels between these pairs of switches dead."""
        removed = {frozenset(pair) for pair in pairs}
        ends = {end for a, b in self.tunnels.items() for end in (a, b) if frozenset((a[0], b[0])) in removed}
        return replace(self, dead=self.dead | ends)

    def forgetting(self, zone: int, *names: str) -> Network:
        """Return the network with a zone of these switches flushed."""
        connections = {n: t.without(zone) if n in names else t for n, t in self.connections.items()}
        return replace(self, connections=connections)

    def expiring(self, zone: int, *names: str) -> Network:
        """Return the network with all connections of a zone of these switches expired, but not swept."""
        connections = {n: t.expired(zone) if n in names else t for n, t in self.connections.items()}
        return replace(self, connections=connections)

    def over(self, datapath: Datapath) -> Network:
        """Return the network without connections, with another datapath in all switches."""
        return replace(self, connections={}, datapath=datapath)

    def send(self, switch: str, packet: Packet) -> PacketWalk:
        """Send a packet into `packet.in_port` of a switch and follow all copies until delivery or drop."""
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
            connections = tables.get(name) or ConnectionTable(datapath=self.datapath)
            walk = self.switches[name].walk(arrived, connections, self.live(name))
            tables[name] = walk.connections
            walks.append((name, walk))
            drops += [f"{name}: {why}" for why in walk.drops]
            problems += [f"{name}: {problem}" for problem in walk.problems]
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
