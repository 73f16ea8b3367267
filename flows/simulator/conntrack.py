"""Connection tracking as a value: zones, NAT both ways, marks and labels, related ICMP errors.

Owns the effect of a `ct` action on a packet and on the table, in the kernel and in the userspace datapath. Must
not know flows or topologies. Sources: net/openvswitch/conntrack.c, nf_conntrack_proto_tcp.c and nf_nat_core.c
(Linux), lib/conntrack.c and lib/conntrack-other.c (Open vSwitch 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from flows.actions import Nat
from flows.fields import (
    CT_BITS,
    CT_DNAT,
    CT_EST,
    CT_INV,
    CT_NEW,
    CT_REL,
    CT_RPL,
    CT_SNAT,
    CT_TRK,
    IP_ICMP,
    IP_ICMPV6,
    IP_TCP,
    Address,
)
from flows.simulator.packet import ACK, ECHO6_REQUEST, ECHO_REQUEST, FIN, RST, SYN, Packet


class Datapath(StrEnum):
    """The datapath whose connection tracking is simulated."""

    KERNEL = "kernel"  # established once a reply was seen
    USERSPACE = "userspace"  # TCP at its second packet already; translated from the second packet on


@dataclass(frozen=True, slots=True)
class Tuple5:
    """One direction of a connection in a zone. An ICMP echo has its identifier as both ports."""

    zone: int
    proto: int
    src: Address
    src_port: int
    dst: Address
    dst_port: int

    def reversed(self) -> Tuple5:
        """Return the other direction, without NAT."""
        return Tuple5(self.zone, self.proto, self.dst, self.dst_port, self.src, self.src_port)

    def nat_to(self, translated: Tuple5) -> int:
        """Return the NAT between this tuple and a translated one: CT_SNAT and CT_DNAT bits."""
        snat = CT_SNAT if (self.src, self.src_port) != (translated.src, translated.src_port) else 0
        dnat = CT_DNAT if (self.dst, self.dst_port) != (translated.dst, translated.dst_port) else 0
        return snat | dnat


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackEntry:
    """A conntrack entry: the tuples of its packets before NAT in each direction, and the stored mark and label."""

    original: Tuple5
    reply: Tuple5
    mark: int = 0
    label: int = 0
    replied: bool = False

    @property
    def nat(self) -> int:
        """The NAT of the connection: CT_SNAT and CT_DNAT bits."""
        return self.original.nat_to(self.translated(is_reply=False))

    def translated(self, *, is_reply: bool) -> Tuple5:
        """Return the tuple of the packets of one direction after NAT."""
        return self.original.reversed() if is_reply else self.reply.reversed()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedValue:
    """Bits to be written into a mark or label."""

    value: int = 0
    mask: int = 0

    def over(self, old: int) -> int:
        """Return `old` with these bits written."""
        return (old & ~self.mask) | (self.value & self.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class CtRequest:
    """A `ct` action with the values of registers resolved."""

    zone: int
    commit: bool = False
    force: bool = False
    nat: Nat | None = None
    mark: MaskedValue = MaskedValue()
    label: MaskedValue = MaskedValue()


@dataclass(frozen=True, slots=True, kw_only=True)
class CtResult:
    """The result of a `ct` action: the packet, its ct fields, and the resulting table."""

    packet: Packet
    zone: int
    state: int
    mark: int
    label: int
    table: ConnectionTable
    key: Tuple5 | None  # the tuple of the packet in the zone, before NAT
    drop: str = ""  # why the packet is dropped, or ""

    def __str__(self) -> str:
        flags = "".join(f"+{name}" for name, bit in CT_BITS.items() if self.state & bit)
        return f"zone {self.zone} {flags} mark={self.mark:#x} label={self.label:#x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTable:
    """All connections of a switch. `index`: both tuples of each -> (its number, whether it is the reply tuple)."""

    datapath: Datapath = Datapath.KERNEL
    connections: Mapping[int, ConntrackEntry] = field(default_factory=dict)
    index: Mapping[Tuple5, tuple[int, bool]] = field(default_factory=dict)
    serial: int = 0
    unswept: frozenset[Tuple5] = frozenset()  # reply tuples of connections that have expired and are not swept

    def find(self, key: Tuple5) -> ConntrackEntry | None:
        """Return the connection of a packet with this tuple."""
        entry = self.index.get(key)
        return self.connections[entry[0]] if entry else None

    def zone(self, zone: int) -> tuple[ConntrackEntry, ...]:
        """Return the connections of a zone."""
        return tuple(c for c in self.connections.values() if c.original.zone == zone)

    def knowing(self, connections: Iterable[ConntrackEntry]) -> ConnectionTable:
        """Return the table with these connections added."""
        table = self
        for connection in connections:
            table = table._added(connection)
        return table

    def without(self, zone: int) -> ConnectionTable:
        """Return the table with a zone flushed."""
        return self._without(number for number, c in self.connections.items() if c.original.zone == zone)

    def expired(self, zone: int) -> ConnectionTable:
        """Return the table with a zone's connections expired, but not swept.

        In the userspace datapath the reply direction of a translated connection is an entry of its own, which
        occupies its tuple until it is swept (conn_expired and "Missing parent conn" in lib/conntrack.c). The
        kernel ignores expired entries.
        """
        flushed = self.without(zone)
        if self.datapath is Datapath.KERNEL:
            return flushed
        return replace(flushed, unswept=self.unswept | {c.reply for c in self.zone(zone) if c.nat})

    def track(self, packet: Packet, request: CtRequest, previous: CtResult | None = None) -> CtResult:
        """Apply `ct(...)` to a packet. `previous`: the result of the last ct action on the same packet."""
        zone = request.zone
        cached = previous if previous is not None and previous.zone == zone and previous.key is not None else None
        key = cached.key if cached is not None else tuple_of(packet, zone)
        if key is None:
            return self._result(packet, zone, CT_INV | CT_TRK)
        if packet.quoted is not None:
            return self._related(packet, packet.quoted, request)
        entry = self.index.get(key)
        if entry is not None and request.force and request.commit and entry[1]:
            return self._without([entry[0]])._new(packet, key, request)
        if entry is None:
            return self._new(packet, key, request)
        return self._existing(packet, key, entry, request, cached)

    def _new(self, packet: Packet, key: Tuple5, request: CtRequest) -> CtResult:
        if key in self.unswept or not may_begin(packet, self.datapath):
            return self._result(packet, key.zone, CT_INV | CT_TRK)
        state = CT_NEW | CT_TRK
        if not request.commit:
            return self._result(packet, key.zone, state, key)
        nat = request.nat
        reply = self._translated(key, nat) if nat is not None and nat.kind else key.reversed()
        if reply is None or self._in_use(reply):
            return self._result(packet, key.zone, state, key, drop=f"ct zone {key.zone}: the reply tuple is taken")
        mark, label = request.mark.over(0), request.label.over(0)
        connection = ConntrackEntry(original=key, reply=reply, mark=mark, label=label)
        packet, state = _written(packet, reply.reversed()), state | connection.nat
        return self._added(connection)._result(packet, key.zone, state, key, connection)

    def _existing(
        self, packet: Packet, key: Tuple5, entry: tuple[int, bool], request: CtRequest, cached: CtResult | None
    ) -> CtResult:
        number, is_reply = entry
        connection = self.connections[number]
        if cached is not None:  # the same packet again: it has been counted, and maybe translated
            state = cached.state
        elif is_reply:
            connection = replace(connection, replied=True)
            state = CT_EST | CT_RPL | CT_TRK
        else:
            state = CT_TRK | (CT_NEW if self._still_new(connection) else CT_EST)
        if request.commit:
            mark, label = request.mark.over(connection.mark), request.label.over(connection.label)
            connection = replace(connection, mark=mark, label=label)
        if request.nat is not None and not state & (CT_SNAT | CT_DNAT) and self._translates(request.nat, state):
            translated = connection.translated(is_reply=is_reply)
            packet = _written(packet, translated)
            state |= key.nat_to(translated)
        return self._updated(number, connection)._result(packet, key.zone, state, key, connection)

    def _related(self, packet: Packet, quoted: Packet, request: CtRequest) -> CtResult:
        """Track an ICMP error by the packet it quotes, which left after NAT: its reverse, `key`, is in `index`."""
        sent = tuple_of(quoted, request.zone)
        key = sent.reversed() if sent is not None else None
        if key is None or key not in self.index:
            return self._result(packet, request.zone, CT_INV | CT_TRK)
        number, is_reply = self.index[key]  # an error travels against the packet that it quotes
        connection = self.connections[number]
        state = CT_REL | CT_TRK | (CT_RPL if is_reply else 0)
        # The kernel leaves an error of the original direction alone unless the action commits (ovs_ct_nat).
        reaches = self.datapath is Datapath.USERSPACE or is_reply or request.commit
        if request.nat is not None and connection.nat and reaches:
            translated = connection.translated(is_reply=is_reply)
            nat = key.nat_to(translated)
            packet = replace(
                packet,
                src=translated.src if nat & CT_SNAT else packet.src,
                dst=translated.dst if nat & CT_DNAT else packet.dst,
                quoted=_written(quoted, translated.reversed()),
            )
            state |= nat
        return self._result(packet, request.zone, state, key, connection)

    def _still_new(self, connection: ConntrackEntry) -> bool:
        return not connection.replied and (self.datapath is Datapath.KERNEL or connection.original.proto != IP_TCP)

    def _translates(self, nat: Nat, state: int) -> bool:
        """Tell whether the action translates: the kernel translates a new connection only if `kind` is given."""
        return self.datapath is Datapath.USERSPACE or not state & CT_NEW or bool(nat.kind)

    def _translated(self, key: Tuple5, nat: Nat) -> Tuple5 | None:
        """Return the reply tuple after NAT, with another source port if the first choice is in use; else None."""
        assert nat.address is not None
        if nat.kind == "src":
            reply = replace(key.reversed(), dst=nat.address, dst_port=self._first_port(key, nat))
        else:
            reply = replace(key.reversed(), src=nat.address, src_port=nat.port or key.dst_port)
        if not self._in_use(reply):
            return reply
        low, size = 1024, 65536 - 1024
        if nat.port is not None and nat.last_port is not None:
            low, size = nat.port, nat.last_port + 1 - nat.port
        for step in range(1, size):  # the next free port (nat_get_unique_l4 in lib/conntrack.c)
            port = low + (reply.dst_port - low + step) % size
            candidate = replace(reply, dst_port=port)
            if key.proto in (IP_ICMP, IP_ICMPV6):
                candidate = replace(candidate, src_port=port)
            if not self._in_use(candidate):
                return candidate
        return None

    def _first_port(self, key: Tuple5, nat: Nat) -> int:
        """Return the first source port to try.

        With a range the kernel keeps a client's port inside it (get_unique_tuple in Linux' nf_nat_core.c). The
        userspace datapath hashes the connection (set_sport_range in lib/conntrack.c); here the hash is simpler.
        """
        if nat.port is None or key.proto in (IP_ICMP, IP_ICMPV6):
            return key.src_port
        last = nat.last_port or nat.port
        if self.datapath is Datapath.KERNEL and nat.port <= key.src_port <= last:
            return key.src_port
        return nat.port + key.src_port % (last + 1 - nat.port)

    def _in_use(self, key: Tuple5) -> bool:
        return key in self.index or key in self.unswept

    def _added(self, connection: ConntrackEntry) -> ConnectionTable:
        number = self.serial
        connections = {**self.connections, number: connection}
        index = {**self.index, connection.reply: (number, True), connection.original: (number, False)}
        return replace(self, connections=connections, index=index, serial=number + 1)

    def _updated(self, number: int, connection: ConntrackEntry) -> ConnectionTable:
        if self.connections[number] == connection:
            return self
        return replace(self, connections={**self.connections, number: connection})

    def _without(self, numbers: Iterable[int]) -> ConnectionTable:
        removed = set(numbers)
        connections = {n: c for n, c in self.connections.items() if n not in removed}
        index = {key: entry for key, entry in self.index.items() if entry[0] in connections}
        return replace(self, connections=connections, index=index)

    def _result(
        self,
        packet: Packet,
        zone: int,
        state: int,
        key: Tuple5 | None = None,
        connection: ConntrackEntry | None = None,
        *,
        drop: str = "",
    ) -> CtResult:
        mark, label = (connection.mark, connection.label) if connection else (0, 0)
        return CtResult(
            packet=packet, zone=zone, state=state, mark=mark, label=label, table=self, key=key, drop=drop
        )


def tuple_of(packet: Packet, zone: int) -> Tuple5 | None:
    """Return the tuple of a packet in a zone; None for a packet that is not tracked."""
    if packet.src is None or packet.dst is None:
        return None
    if packet.proto in (IP_ICMP, IP_ICMPV6):
        return Tuple5(zone, packet.proto, packet.src, packet.src_port, packet.dst, packet.src_port)
    return Tuple5(zone, packet.proto, packet.src, packet.src_port, packet.dst, packet.dst_port)


def may_begin(packet: Packet, datapath: Datapath = Datapath.KERNEL) -> bool:
    """Tell whether a packet may create an entry: a mid-stream TCP packet may (loose mode), a SYN+ACK may not.

    In the userspace datapath a reset may, too (tcp_valid_new in OVS' lib/conntrack-tcp.c).
    """
    if packet.proto == IP_TCP:
        handshake = packet.tcp_flags & (SYN | ACK | RST | FIN)
        if datapath is Datapath.USERSPACE and handshake in (RST, RST | ACK):
            return True
        return handshake in (SYN, ACK) or (handshake == ACK | FIN)
    if packet.proto == IP_ICMP:
        return packet.icmp_type == ECHO_REQUEST
    if packet.proto == IP_ICMPV6:
        return packet.icmp_type == ECHO6_REQUEST
    return True


def _written(packet: Packet, key: Tuple5) -> Packet:
    """Return the packet with the addresses and ports of a tuple."""
    second = packet.dst_port if packet.proto in (IP_ICMP, IP_ICMPV6) else key.dst_port
    return replace(packet, src=key.src, src_port=key.src_port, dst=key.dst, dst_port=second)
