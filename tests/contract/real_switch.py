"""A pipeline in a real Open vSwitch (userspace datapath), and packets through it: to check the simulator by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from scapy.all import ICMP, IP, TCP, UDP, Ether, Raw

from flows.fields import IP_ICMP, IP_TCP, IP_UDP
from flows.flow import Flow, Group
from flows.simulate import Packet
from mcagent.lab.netns import run
from mcagent.lab.ovs import OvsInstance

BRIDGE = "br-x"
_CONNECTION = re.compile(
    r"^(?P<proto>\w+),orig=\((?P<orig>[^)]*)\),reply=\((?P<reply>[^)]*)\)(?P<rest>.*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, order=True)
class RealConnection:
    """An entry of `dpctl/dump-conntrack`, as far as the simulator knows such things."""

    zone: int
    proto: str
    original: tuple[str, ...]
    reply: tuple[str, ...]
    mark: int
    label: int


@dataclass(frozen=True, kw_only=True)
class RealSwitch:
    """A bridge with one internal port for every port number, and what left by each so far."""

    ovs: OvsInstance
    ports: tuple[int, ...]
    sent: dict[int, int] = field(default_factory=dict)

    @classmethod
    def create(cls, ovs: OvsInstance, ports: Iterable[int]) -> RealSwitch:
        """Make the bridge, in place of one that was there, with these ports up."""
        numbers = tuple(sorted(ports))
        args = ["--if-exists", "del-br", BRIDGE, "--", "add-br", BRIDGE]
        args += ["--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail-mode=secure"]
        args += ["protocols=OpenFlow13,OpenFlow15", "other_config:disable-in-band=true"]
        for number in numbers:
            args += ["--", "add-port", BRIDGE, f"x{number}", "--", "set", "interface", f"x{number}"]
            args += ["type=internal", f"ofport_request={number}"]
        ovs.vsctl(*args)
        lines = [f"link set x{number} addrgenmode none up" for number in numbers]
        run(["ip", "-n", ovs.namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")
        switch = cls(ovs=ovs, ports=numbers)
        switch.outputs()
        return switch

    @property
    def _mgmt(self) -> str:
        return self.ovs.mgmt(BRIDGE)

    def load(self, flows: Iterable[Flow], groups: Iterable[Group]) -> None:
        """Replace everything by these flows and groups, and forget all connections."""
        self.ovs.ofctl("del-flows", self._mgmt)
        self.ovs.ofctl("del-groups", self._mgmt)
        lines = [f"group_id={group.group_id},{group.body_text}" for group in groups]
        self.ovs.ofctl("--bundle", "add-groups", self._mgmt, "-", stdin="\n".join(lines) + "\n")
        lines = [
            f"table={flow.table},cookie={flow.cookie:#x},priority={flow.priority}"
            f"{',' * bool(flow.match_text)}{flow.match_text},actions={flow.actions_text}"
            for flow in flows
        ]
        self.ovs.ofctl("--bundle", "add-flows", self._mgmt, "-", stdin="\n".join(lines) + "\n")
        self.ovs.appctl("dpctl/flush-conntrack")

    def dump_flows(self) -> str:
        """Return the flows as ovs-ofctl(8) prints them."""
        return self.ovs.ofctl("--no-names", "--no-stats", "dump-flows", self._mgmt)

    def dump_groups(self) -> str:
        """Return the groups as ovs-ofctl(8) prints them."""
        return self.ovs.ofctl("--no-names", "dump-groups", self._mgmt)

    def cut(self, dead: Iterable[int]) -> None:
        """Take these ports' carrier away, and give it to all others."""
        gone = set(dead)
        lines = [f"link set x{n} {'down' if n in gone else 'up'}" for n in self.ports]
        run(["ip", "-n", self.ovs.namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")

    def outputs(self) -> list[int]:
        """Return the ports by which packets left since the last call, once for each packet."""
        left: list[int] = []
        text = self.ovs.ofctl("--no-names", "dump-ports", self._mgmt)
        for number, sent in re.findall(r"port +(\d+): rx.*?tx pkts=(\d+)", text, re.DOTALL):
            left += [int(number)] * (int(sent) - self.sent.get(int(number), 0))
            self.sent[int(number)] = int(sent)
        return left

    def inject(self, packet: Packet) -> list[int]:
        """Let a packet come in for real, conntrack and all, and return the ports by which it left."""
        message = f"in_port={packet.in_port},packet={frame(packet).hex()},actions=table"
        self.ovs.ofctl("packet-out", self._mgmt, message)
        return self.outputs()

    def connections(self) -> list[RealConnection]:
        """Return what conntrack of the userspace datapath knows."""
        found = []
        for match in _CONNECTION.finditer(self.ovs.appctl("dpctl/dump-conntrack")):
            rest = dict(re.findall(r"(zone|mark|labels)=(\w+)", match["rest"]))
            found.append(
                RealConnection(
                    zone=int(rest.get("zone", "0")),
                    proto=match["proto"],
                    original=_tuple(match["orig"]),
                    reply=_tuple(match["reply"]),
                    mark=int(rest.get("mark", "0"), 0),
                    label=int(rest.get("labels", "0"), 0),
                )
            )
        return sorted(found)

    def trace(self, packet: Packet, ct_next: Iterable[str] = ()) -> str:
        """Return what ofproto/trace says; `ct_next` are the states that ct actions find, in order."""
        states = [word for state in ct_next for word in ("--ct-next", state)]
        return self.ovs.appctl("ofproto/trace", *states, BRIDGE, flow_text(packet))


def _tuple(text: str) -> tuple[str, ...]:
    values = dict(item.split("=") for item in text.split(","))
    ports = ("id",) if "id" in values else ("sport", "dport")
    return (values["src"], values["dst"], *(values[name] for name in ports))


def frame(packet: Packet) -> bytes:
    """Return the packet's bytes."""
    ether = Ether(src=packet.eth_src, dst=packet.eth_dst, type=packet.eth_type)
    if packet.src is None:
        return bytes(ether / Raw(b"\0" * 46))
    ip = IP(src=str(packet.src), dst=str(packet.dst), ttl=packet.ttl, proto=packet.proto)
    if packet.proto == IP_TCP:
        inner = TCP(sport=packet.src_port, dport=packet.dst_port, flags=packet.tcp_flags, seq=1, ack=1)
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
    name = {IP_TCP: "tcp", IP_UDP: "udp", IP_ICMP: "icmp"}[packet.proto]
    parts += [name, f"nw_src={packet.src}", f"nw_dst={packet.dst}", f"nw_ttl={packet.ttl}"]
    if packet.proto == IP_ICMP:
        parts += [f"icmp_type={packet.icmp_type}", f"icmp_code={packet.icmp_code}"]
    else:
        parts += [f"{name}_src={packet.src_port}", f"{name}_dst={packet.dst_port}"]
    return ",".join(parts)
