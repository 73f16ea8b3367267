"""A pipeline in a real Open vSwitch, and packets through it: to check the simulator by."""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from scapy.all import ICMP, IP, TCP, UDP, Ether, Raw

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from flows.actions import Meter
from flows.fields import IP_ICMP, IP_TCP, IP_UDP
from flows.flow import Flow, Group
from flows.simulator import ConnectionTable, Datapath, Packet
from flows.simulator.packet import PROTOCOL_NAMES, SYN
from mcagent.model.dataplane.facts import DatapathType
from tests.contract.ovs_values import DATAPATH
from tests.worlds.topologies import Node, World

TRACKING = Datapath.KERNEL if DATAPATH is DatapathType.SYSTEM else Datapath.USERSPACE
BRIDGE = "br-x"
ETH_P_ALL = 3
DEADLINE = 5.0  # seconds until a packet that was sent must be seen
_CONNECTION = re.compile(r"^(?P<proto>\w+),orig=\((?P<orig>[^)]*)\),reply=\((?P<reply>[^)]*)\)(?P<rest>.*)$", re.M)


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """A connection as both worlds can say it: zone, protocol, both tuples, mark and label."""

    zone: int
    proto: str
    original: tuple[str, ...]
    reply: tuple[str, ...]
    mark: int
    label: int


@dataclass(frozen=True, kw_only=True)
class RealSwitch:
    """A bridge with one internal port for every port number; `wire` sees what leaves by any of them."""

    ovs: OvsInstance
    ports: tuple[int, ...]
    wire: socket.socket

    @classmethod
    def create(cls, ovs: OvsInstance, ports: Iterable[int]) -> RealSwitch:
        """Make the bridge, in place of one that was there, with these ports up. Close it after use."""
        numbers = tuple(sorted(ports))
        args = ["--if-exists", "del-br", BRIDGE, "--", "add-br", BRIDGE]
        args += ["--", "set", "bridge", BRIDGE, f"datapath_type={DATAPATH}", "fail-mode=secure"]
        args += ["protocols=OpenFlow13,OpenFlow15", "other_config:disable-in-band=true"]
        for number in numbers:
            args += ["--", "add-port", BRIDGE, f"x{number}", "--", "set", "interface", f"x{number}"]
            args += ["type=internal", f"ofport_request={number}"]
        ovs.vsctl(*args)
        ovs.ofctl("set-frags", ovs.mgmt(BRIDGE), "nx-match")  # as the agent does
        lines = [f"link set x{number} addrgenmode none up" for number in numbers]
        netns.run(["ip", "-n", ovs.namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")
        wire = netns.call(
            ovs.namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        )
        return cls(ovs=ovs, ports=numbers, wire=wire)

    def close(self) -> None:
        """Let go of the socket; the bridge goes with its Open vSwitch."""
        self.wire.close()

    @classmethod
    def of(cls, ovs: OvsInstance, world: World, node: Node) -> RealSwitch:
        """Make the bridge of a Node, with its whole pipeline. Close it after use."""
        tunnels = {number for (name, _), number in world.ports.items() if name == node.name}
        switch = cls.create(ovs, {1, *tunnels})
        switch.load(*world.entries(node))
        return switch

    @property
    def _mgmt(self) -> str:
        return self.ovs.mgmt(BRIDGE)

    def load(self, flows: Iterable[Flow], groups: Iterable[Group]) -> None:
        """Replace everything by these flows and groups, and forget all connections. Meters let everything pass."""
        self.ovs.ofctl("del-flows", self._mgmt)
        self.ovs.ofctl("del-groups", self._mgmt)
        self.ovs.ofctl("del-meters", self._mgmt)
        flows = list(flows)
        for number in {action.meter_id for flow in flows for action in flow.actions if isinstance(action, Meter)}:
            self.ovs.ofctl("add-meter", self._mgmt, f"meter={number},pktps,band=type=drop,rate=1000000")
        lines = [f"group_id={group.group_id},{group.body_text}" for group in groups]
        self.ovs.ofctl("--bundle", "add-groups", self._mgmt, "-", stdin="\n".join(lines) + "\n")
        lines = [
            f"table={flow.table},cookie={flow.cookie:#x},priority={flow.priority}"
            f"{',' * bool(flow.match_text)}{flow.match_text},actions={flow.actions_text}"
            for flow in flows
        ]
        self.ovs.ofctl("--bundle", "add-flows", self._mgmt, "-", stdin="\n".join(lines) + "\n")
        self.ovs.appctl("dpctl/flush-conntrack")

    def dump_flows(self) -> list[str]:
        """Return the flows as ovs-ofctl(8) prints them, without statistics."""
        return _entries(self.ovs.ofctl("--no-names", "--no-stats", "dump-flows", self._mgmt))

    def dump_groups(self) -> list[str]:
        """Return the groups as ovs-ofctl(8) prints them."""
        return _entries(self.ovs.ofctl("--no-names", "dump-groups", self._mgmt))

    def cut(self, dead: Iterable[int]) -> None:
        """Take these ports' carrier away, give it to all others, and return when the switch knows."""
        gone = set(dead)
        lines = [f"link set x{n} {'down' if n in gone else 'up'}" for n in self.ports]
        netns.run(["ip", "-n", self.ovs.namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")

        def down() -> set[int]:
            text = self.ovs.ofctl("--no-names", "dump-ports-desc", self._mgmt)
            ports = re.findall(r"^ (\d+)\(.*?state: +(\w+)", text, re.MULTILINE | re.DOTALL)
            return {int(number) for number, state in ports if state == "LINK_DOWN"}

        wait_until(lambda: down() == gone, "the switch to know which ports are down", timeout=DEADLINE)

    def inject(self, packet: Packet, expected: int) -> list[tuple[int, bytes]]:
        """Let a packet come in for real, conntrack and all; return what left: port and bytes.

        The kernel's datapath asks ovs-vswitchd about a packet that conntrack has seen, so that it leaves some time
        later: this waits for as many as are expected. What comes besides shows at the next call, or in `settled`.
        """
        message = f"in_port={packet.in_port},packet={frame(packet).hex()},actions=table"
        self.ovs.ofctl("packet-out", self._mgmt, message)
        frames: list[tuple[int, bytes]] = []
        while self._seen(frames, DEADLINE if len(frames) < expected else 0.0):
            pass
        return sorted(frames)

    def forward(self, port: int, frames: Iterable[bytes]) -> list[tuple[int, bytes]]:
        """Let frames come in by a port's device; return what left: port and bytes.

        The last one must leave in one piece. It is sent once more when it has: fragments of the userspace datapath
        leave after what was received with them.
        """

        def by_device() -> socket.socket:
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            sender.bind((f"x{port}", 0))
            return sender

        sent_frames: list[tuple[int, bytes]] = []
        with netns.call(self.ovs.namespace, by_device) as sender:
            for frame in frames:
                sender.send(frame)
            for copies in (1, 2):
                while sum(data == frame for _, data in sent_frames) < copies:
                    assert self._seen(sent_frames, DEADLINE), "the last frame has not left"
                if copies == 1:
                    sender.send(frame)
        return [(number, data) for number, data in sent_frames if data != frame]

    def settled(self) -> list[tuple[int, bytes]]:
        """Return what leaves that nobody waited for."""
        self.ovs.appctl("revalidator/wait")  # ovs-vswitchd has answered the datapath's questions by then
        frames: list[tuple[int, bytes]] = []
        while self._seen(frames, 0.0):
            pass
        return frames

    def _seen(self, frames: list[tuple[int, bytes]], wait: float) -> bool:
        """Add the next packet that the switch sent out, if one comes in time, and tell whether one was there."""
        if not select.select([self.wire], [], [], wait)[0]:
            return False
        data, (device, _, kind, *_) = self.wire.recvfrom(65535)
        if device.startswith("x") and kind != socket.PACKET_OUTGOING:  # the namespace's own comes in by the ports
            frames.append((int(device[1:]), data))
        return True

    def connections(self) -> list[Known]:
        """Return what the datapath's conntrack knows."""
        found = []
        for match in _CONNECTION.finditer(self.ovs.appctl("dpctl/dump-conntrack")):
            connections = dict(re.findall(r"(zone|mark|labels)=(\w+)", match["rest"]))
            found.append(
                Known(
                    zone=int(connections.get("zone", "0")),
                    proto=match["proto"],
                    original=_tuple(match["orig"]),
                    reply=_tuple(match["reply"]),
                    mark=int(connections.get("mark", "0"), 0),
                    label=int(connections.get("labels", "0"), 0),
                )
            )
        return sorted(found)

    def trace(self, packet: Packet, ct_next: Iterable[str] = ()) -> str:
        """Return what ofproto/trace says; `ct_next` are the states that ct actions find, in order."""
        states = [word for state in ct_next for word in ("--ct-next", state)]
        return self.ovs.appctl("ofproto/trace", *states, BRIDGE, flow_text(packet))


def _entries(dump: str) -> list[str]:
    return [line.strip() for line in dump.splitlines() if "cookie=" in line or "group_id=" in line]


def _tuple(text: str) -> tuple[str, ...]:
    values = dict(item.split("=") for item in text.split(","))
    ports = ("id",) if "id" in values else ("sport", "dport")
    return (values["src"], values["dst"], *(values[name] for name in ports))


def known(table: ConnectionTable) -> list[Known]:
    """Return the simulator's connections as the real switch lists its own."""
    found = []
    for connection in table.connections.values():
        tuples = []
        for packet in (connection.original, connection.reply):
            ports = (packet.src_port,) if packet.proto == IP_ICMP else (packet.src_port, packet.dst_port)
            tuples.append((str(packet.src), str(packet.dst), *(str(port) for port in ports)))
        found.append(
            Known(
                zone=connection.original.zone,
                proto=PROTOCOL_NAMES[connection.original.proto],
                original=tuples[0],
                reply=tuples[1],
                mark=connection.mark,
                label=connection.label,
            )
        )
    return sorted(found)


def frame(packet: Packet) -> bytes:
    """Return the packet's bytes. A TCP's sequence numbers are such that conntrack believes them."""
    ether = Ether(src=packet.eth_src, dst=packet.eth_dst, type=packet.eth_type)
    if packet.src is None:
        return bytes(ether / Raw(b"\0" * 46))
    ip = IP(src=str(packet.src), dst=str(packet.dst), ttl=packet.ttl, proto=packet.proto)
    if packet.proto == IP_TCP:
        flags = packet.tcp_flags
        sequence = 1000 if flags & SYN else 1001
        inner = TCP(sport=packet.src_port, dport=packet.dst_port, flags=flags, seq=sequence, ack=1001)
    elif packet.proto == IP_UDP:
        inner = UDP(sport=packet.src_port, dport=packet.dst_port) / Raw(b"mc")
    else:
        inner = ICMP(type=packet.icmp_type, code=packet.icmp_code, id=packet.src_port)
    return bytes(ether / ip / inner)


def flow_text(packet: Packet) -> str:
    """Return the packet as ofproto/trace takes it."""
    parts = [f"in_port={packet.in_port},dl_src={packet.eth_src},dl_dst={packet.eth_dst}"]
    if packet.src is None:
        return f"{parts[0]},dl_type=0x{packet.eth_type:04x}"
    name = PROTOCOL_NAMES[packet.proto]
    parts += [name, f"nw_src={packet.src}", f"nw_dst={packet.dst}", f"nw_ttl={packet.ttl}"]
    if packet.proto == IP_ICMP:
        parts += [f"icmp_type={packet.icmp_type}", f"icmp_code={packet.icmp_code}"]
    else:
        parts += [f"{name}_src={packet.src_port}", f"{name}_dst={packet.dst_port}"]
    return ",".join(parts)
