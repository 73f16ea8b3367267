"""Connection tracking as a value: zones, NAT both ways, marks and labels, related ICMP errors.

Owns what a `ct` action does to one packet, and returns the table as it is afterwards; nothing here is changed in
place. Must not know flows or topologies. Two datapaths differ in when a connection counts as established;
both are modelled. Sources: net/openvswitch/conntrack.c and nf_conntrack_proto_tcp.c, nf_nat_core.c (Linux),
lib/conntrack.c and lib/conntrack-other.c (Open vSwitch 3.1).
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
    """Whose connection tracking is imitated."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackEntry:
    """A connection: what its packets look like before NAT in either direction, and what was stored with it."""

    original: Tuple5
    reply: Tuple5
    mark: int = 0
    label: int = 0
    replied: bool = False

    @property
    def nat(self) -> int:
        """Which NAT it has: SNAT and DNAT bits."""
        undone = self.reply.reversed()
        state = 0
        if (undone.src, undone.src_port) != (self.original.src, self.original.src_port):
            state |= CT_SNAT
        if (undone.dst, undone.dst_port) != (self.original.dst, self.original.dst_port):
            state |= CT_DNAT
        return state


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
    """A `ct` action with everything it reads from the packet's registers read."""

    zone: int
    commit: bool = False
    force: bool = False
    nat: Nat | None = None
    mark: MaskedValue = MaskedValue()
    label: MaskedValue = MaskedValue()


@dataclass(frozen=True, slots=True, kw_only=True)
class CtResult:
    """What a `ct` action makes of a packet: the packet, its ct fields, the table afterwards."""

    packet: Packet
    zone: int
    state: int
    mark: int
    label: int
    table: ConnectionTable
    key: Tuple5 | None  # as the zone knows the packet, before NAT
    drop: str = ""  # why the packet ends here, or ""

    def __str__(self) -> str:
        flags = "".join(f"+{name}" for name, bit in CT_BITS.items() if self.state & bit)
        return f"zone {self.zone} {flags} mark={self.mark:#x} label={self.label:#x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTable:
    """All connections of one switch. `index` has both tuples of each: (number, whether it is the reply)."""

    datapath: Datapath = Datapath.KERNEL
    connections: Mapping[int, ConntrackEntry] = field(default_factory=dict)
    index: Mapping[Tuple5, tuple[int, bool]] = field(default_factory=dict)
    serial: int = 0
    left: frozenset[Tuple5] = frozenset()  # reply tuples of connections that have expired and are not swept yet

    def find(self, key: Tuple5) -> ConntrackEntry | None:
        """Return the connection that a packet with this tuple belongs to."""
        entry = self.index.get(key)
        return self.connections[entry[0]] if entry else None

    def zone(self, zone: int) -> tuple[ConntrackEntry, ...]:
        """Return the connections of a zone."""
        return tuple(c for c in self.connections.values() if c.original.zone == zone)

    def knowing(self, connections: Iterable[ConntrackEntry]) -> ConnectionTable:
        """Return the table with these connections, too."""
        table = self
        for one in connections:
            table = table._stored(table.serial, one, serial=table.serial + 1)
        return table

    def without(self, zone: int) -> ConnectionTable:
        """Return the table with a zone flushed."""
        kept = {n: c for n, c in self.connections.items() if c.original.zone != zone}
        index = {key: entry for key, entry in self.index.items() if entry[0] in kept}
        return replace(self, connections=kept, index=index)

    def expired(self, zone: int) -> ConnectionTable:
        """Return the table with a zone's connections expired, but not swept yet.

        To the userspace datapath what undoes NAT is a connection of its own, which stays until then, and takes the
        tuple (conn_expired and "Missing parent conn" in lib/conntrack.c). The kernel looks at no expired ones.
        """
        gone = self.without(zone)
        if self.datapath is Datapath.KERNEL:
            return gone
        return replace(gone, left=self.left | {c.reply for c in self.zone(zone) if c.nat})

    def track(self, packet: Packet, request: CtRequest, before: CtResult | None = None) -> CtResult:
        """Do what `ct(...)` does to a packet. `before` is the last ct action that the same packet met."""
        zone = request.zone
        cached = before if before is not None and before.zone == zone and before.key is not None else None
        key = cached.key if cached is not None else tuple_of(packet, zone)
        if key is None:
            return self._result(packet, zone, CT_INV | CT_TRK)
        if packet.quoted is not None:
            return self._related(packet, packet.quoted, request)
        entry = self.index.get(key)
        if entry is not None and request.force and request.commit and entry[1]:
            return self._removed(entry[0])._new(packet, key, request)
        if entry is None and key in self.left:
            return self._result(packet, zone, CT_INV | CT_TRK)
        if entry is None:
            return self._new(packet, key, request)
        return self._known(packet, key, entry, request, cached)

    def _new(self, packet: Packet, key: Tuple5, request: CtRequest) -> CtResult:
        if not may_begin(packet, self.datapath):
            return self._result(packet, key.zone, CT_INV | CT_TRK)
        state = CT_NEW | CT_TRK
        if not request.commit:
            return self._result(packet, key.zone, state, key)
        nat = request.nat
        reply = self._translated(key, nat) if nat is not None and nat.kind else key.reversed()
        if reply is None or self._taken(reply):
            return self._result(packet, key.zone, state, key, drop=f"ct zone {key.zone}: the reply tuple is taken")
        made = ConntrackEntry(original=key, reply=reply, mark=request.mark.over(0), label=request.label.over(0))
        table = self._stored(self.serial, made, serial=self.serial + 1)
        return table._result(_written(packet, reply.reversed()), key.zone, state | made.nat, key, made)

    def _known(
        self, packet: Packet, key: Tuple5, entry: tuple[int, bool], request: CtRequest, cached: CtResult | None
    ) -> CtResult:
        number, is_reply = entry
        known = self.connections[number]
        if cached is not None:  # the same packet again: it was counted, and perhaps translated, before
            state = cached.state
        elif is_reply:
            known = replace(known, replied=True)
            state = CT_EST | CT_RPL | CT_TRK
        else:
            state = CT_TRK | (CT_NEW if self._still_new(known) else CT_EST)
        if request.commit:
            known = replace(known, mark=request.mark.over(known.mark), label=request.label.over(known.label))
        if request.nat is not None and not state & (CT_SNAT | CT_DNAT) and self._translates(request.nat, state):
            meant = known.original if is_reply else known.reply
            packet = _written(packet, meant.reversed())
            state |= _swapped(known.nat) if is_reply else known.nat
        return self._stored(number, known)._result(packet, key.zone, state, key, known)

    def _related(self, packet: Packet, quoted: Packet, request: CtRequest) -> CtResult:
        """Track an ICMP error by the packet it quotes, which is as it left this switch: after NAT.

        So the reverse of the quoted packet is a tuple we know.
        """
        sent = tuple_of(quoted, request.zone)
        entry = self.index.get(sent.reversed()) if sent is not None else None
        if sent is None or entry is None:
            return self._result(packet, request.zone, CT_INV | CT_TRK)
        known, is_reply = self.connections[entry[0]], entry[1]  # an error travels against what it quotes
        state = CT_REL | CT_TRK | (CT_RPL if is_reply else 0)
        # The kernel leaves an error of the original direction alone unless the action commits (ovs_ct_nat).
        reaches = self.datapath is Datapath.USERSPACE or is_reply or request.commit
        if request.nat is not None and known.nat and reaches:
            meant = known.original if is_reply else known.reply
            nats = _swapped(known.nat) if is_reply else known.nat
            packet = replace(
                packet,
                src=meant.dst if nats & CT_SNAT else packet.src,
                dst=meant.src if nats & CT_DNAT else packet.dst,
                quoted=_written(quoted, meant),
            )
            state |= nats
        return self._result(packet, request.zone, state, entry and sent.reversed(), known)

    def _still_new(self, known: ConntrackEntry) -> bool:
        if known.replied:
            return False
        if self.datapath is Datapath.KERNEL:
            return True
        return known.original.proto != IP_TCP

    def _translates(self, nat: Nat, state: int) -> bool:
        """The kernel translates a connection that is still new only where the action says how."""
        return self.datapath is Datapath.USERSPACE or not state & CT_NEW or bool(nat.kind)

    def _translated(self, key: Tuple5, nat: Nat) -> Tuple5 | None:
        """Return the reply tuple after NAT, with another source port where the first choice is taken."""
        assert nat.address is not None
        if nat.kind == "src":
            wanted = replace(key.reversed(), dst=nat.address, dst_port=self._first_port(key, nat))
        else:
            port = nat.port or key.dst_port
            wanted = replace(key.reversed(), src=nat.address, src_port=port)
        if not self._taken(wanted):
            return wanted
        low, size = 1024, 65536 - 1024
        if nat.port is not None and nat.last_port is not None:
            low, size = nat.port, nat.last_port + 1 - nat.port
        for step in range(1, size):  # the next one that is free (nat_get_unique_l4 in lib/conntrack.c)
            port = low + (wanted.dst_port - low + step) % size
            other = replace(wanted, dst_port=port)
            if key.proto in (IP_ICMP, IP_ICMPV6):
                other = replace(other, src_port=port)
            if not self._taken(other):
                return other
        return None

    def _first_port(self, key: Tuple5, nat: Nat) -> int:
        """Return the source port that is tried first.

        Of a range the kernel keeps a client's port that is in it (get_unique_tuple in Linux' nf_nat_core.c); in
        userspace a hash of the connection chooses (set_sport_range in lib/conntrack.c), here a simpler one.
        """
        if nat.port is None or key.proto in (IP_ICMP, IP_ICMPV6):
            return key.src_port
        last = nat.last_port or nat.port
        if self.datapath is Datapath.KERNEL and nat.port <= key.src_port <= last:
            return key.src_port
        return nat.port + key.src_port % (last + 1 - nat.port)

    def _taken(self, key: Tuple5) -> bool:
        return key in self.index or key in self.left

    def _stored(self, number: int, connection: ConntrackEntry, serial: int | None = None) -> ConnectionTable:
        if self.connections.get(number) == connection:
            return self
        connections = {**self.connections, number: connection}
        if serial is None:
            return replace(self, connections=connections)
        index = {**self.index, connection.reply: (number, True), connection.original: (number, False)}
        return replace(self, connections=connections, index=index, serial=serial)

    def _removed(self, number: int) -> ConnectionTable:
        kept = {n: c for n, c in self.connections.items() if n != number}
        return replace(self, connections=kept, index={k: e for k, e in self.index.items() if e[0] != number})

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
    """Return how a zone knows a packet; None for what is not tracked."""
    if packet.src is None or packet.dst is None:
        return None
    if packet.proto in (IP_ICMP, IP_ICMPV6):
        return Tuple5(zone, packet.proto, packet.src, packet.src_port, packet.dst, packet.src_port)
    return Tuple5(zone, packet.proto, packet.src, packet.src_port, packet.dst, packet.dst_port)


def may_begin(packet: Packet, datapath: Datapath = Datapath.KERNEL) -> bool:
    """Tell whether a packet may begin a connection: one from a TCP's middle may (loose mode), a reply may not.

    The userspace datapath takes a reset, too (tcp_valid_new in OVS' lib/conntrack-tcp.c).
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


def _swapped(nat: int) -> int:
    """Return the bits for the reply direction: undoing a source NAT rewrites the destination."""
    swapped = CT_DNAT if nat & CT_SNAT else 0
    return swapped | (CT_SNAT if nat & CT_DNAT else 0)


def _written(packet: Packet, key: Tuple5) -> Packet:
    """Return the packet with the addresses and ports of the tuple."""
    second = packet.dst_port if packet.proto in (IP_ICMP, IP_ICMPV6) else key.dst_port
    return replace(packet, src=key.src, src_port=key.src_port, dst=key.dst, dst_port=second)
