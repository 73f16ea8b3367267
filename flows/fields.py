"""Match fields, declared once: name, width, prerequisites, whether maskable, and their text format.

Names and order are those of ovs-fields(7) and of match_format() in OVS' lib/match.c. All values are integers of
the field's width (addresses, MACs and states, too), so that a match is `packet & mask == value` for every field.
Users of the library declare bit ranges of registers and marks as `Bits`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

from flows.errors import FlowError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Prerequisites = tuple[tuple["MatchField", tuple[int, ...]], ...]  # each of the fields has one of the values

ETH_IPV4, ETH_IPV6, ETH_ARP = 0x0800, 0x86DD, 0x0806  # IANA ieee-802-numbers
IP_ICMP, IP_TCP, IP_UDP, IP_ICMPV6, IP_SCTP = 1, 6, 17, 58, 132  # IANA protocol-numbers

# Conntrack state bits in the order in which OVS writes them (CS_STATES in lib/packets.h).
CT_NEW, CT_EST, CT_REL, CT_RPL, CT_INV, CT_TRK, CT_SNAT, CT_DNAT = (1 << bit for bit in range(8))
# Fragment bits (FLOW_NW_FRAG_* in lib/flow.h): any fragment; one that is not the first.
FRAG_ANY, FRAG_LATER = 1, 2

# The reserved ports of OpenFlow 1.5, section 7.2.1, as far as they are used.
PORT_IN_PORT, PORT_CONTROLLER, PORT_LOCAL = 0xFFFFFFF8, 0xFFFFFFFD, 0xFFFFFFFE
# TCP flags (RFC 9293, section 3.1), in the order in which OVS writes them (packet_tcp_flag_to_string).
TCP_BITS = {name: 1 << bit for bit, name in enumerate(("fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"))}


class ValueFormat(Enum):
    """The text format of a field's value in Open vSwitch."""

    DECIMAL = "decimal"
    HEX = "hex"
    MAC = "mac"
    IPV4 = "ipv4"
    IPV6 = "ipv6"
    CT_STATE = "ct_state"
    TCP_FLAGS = "tcp_flags"
    FRAG = "frag"
    PORT = "port"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatchField:
    """A field of a packet or of its metadata. Fields are compared by identity: each exists once.

    `name`: in a match; `set_name`: in set_field and in a group's field list; `nxm`: in move, load and output.
    `order`: the position in the text of a match.
    """

    name: str
    set_name: str
    nxm: str
    width: int
    form: ValueFormat
    order: int
    needs: Prerequisites = ()
    maskable: bool = True
    full_mask: int = dataclass_field(init=False)  # all bits of the field

    def __post_init__(self) -> None:
        object.__setattr__(self, "full_mask", (1 << self.width) - 1)

    def __repr__(self) -> str:
        return f"MatchField({self.set_name})"


class HashField(NamedTuple):
    """A field whose bits in `mask` are input of a select group's hash."""

    field: MatchField
    mask: int


class Term(NamedTuple):
    """One condition of a match: `packet[field] & mask == value`."""

    field: MatchField
    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Bits:
    """A named range of bits of a field: `high - low + 1` bits from `low`.

    Ranges of the same bits are equal even if their names differ, since a dump has no names.
    """

    name: str = dataclass_field(compare=False)
    field: MatchField
    low: int
    high: int
    purpose: str = dataclass_field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < self.field.width:
            raise FlowError("", self.name, f"bits {self.low}..{self.high} do not fit {self.field.set_name}")

    @property
    def mask(self) -> int:
        """The bits within the field."""
        return ((1 << (self.high - self.low + 1)) - 1) << self.low

    def shifted(self, value: int) -> int:
        """Shift `value` to its position in the field; FlowError if it does not fit."""
        if value < 0 or value >> (self.high - self.low + 1):
            raise FlowError("", self.name, f"{value} does not fit {self.high - self.low + 1} bits")
        return value << self.low

    def is_(self, value: int) -> Term:
        """Return the condition that these bits hold `value`."""
        return Term(self.field, self.shifted(value), self.mask)

    @property
    def text(self) -> str:
        """The range as move and output write it."""
        if self.low == 0 and self.high == self.field.width - 1:
            return f"{self.field.nxm}[]"
        if self.low == self.high:
            return f"{self.field.nxm}[{self.low}]"
        return f"{self.field.nxm}[{self.low}..{self.high}]"


_fields: list[MatchField] = []


def _field(
    name: str, width: int, form: ValueFormat, nxm: str, *, set_name: str = "", needs: Prerequisites = (),
    maskable: bool = True,
) -> MatchField:  # fmt: skip
    """Declare a field; the order of the calls is the order in the text of a match."""
    field = MatchField(
        name=name, set_name=set_name or name, nxm=nxm, width=width, form=form, order=len(_fields),
        needs=needs, maskable=maskable,
    )  # fmt: skip
    _fields.append(field)
    return field


PKT_MARK = _field("pkt_mark", 32, ValueFormat.HEX, "NXM_NX_PKT_MARK")
CONJ_ID = _field("conj_id", 32, ValueFormat.DECIMAL, "NXM_NX_CONJ_ID", maskable=False)
CT_STATE = _field("ct_state", 32, ValueFormat.CT_STATE, "NXM_NX_CT_STATE")
CT_ZONE = _field("ct_zone", 16, ValueFormat.DECIMAL, "NXM_NX_CT_ZONE", maskable=False)
CT_MARK = _field("ct_mark", 32, ValueFormat.HEX, "NXM_NX_CT_MARK")
CT_LABEL = _field("ct_label", 128, ValueFormat.HEX, "NXM_NX_CT_LABEL")
# The addresses of a connection's first packet.
CT_NW_SRC = _field("ct_nw_src", 32, ValueFormat.IPV4, "NXM_NX_CT_NW_SRC")
CT_NW_DST = _field("ct_nw_dst", 32, ValueFormat.IPV4, "NXM_NX_CT_NW_DST")
ETH_TYPE = _field("dl_type", 16, ValueFormat.HEX, "NXM_OF_ETH_TYPE", set_name="eth_type", maskable=False)
_IP = ((ETH_TYPE, (ETH_IPV4,)),)
_IP6 = ((ETH_TYPE, (ETH_IPV6,)),)
_ANY_IP = ((ETH_TYPE, (ETH_IPV4, ETH_IPV6)),)
IP_PROTO = _field("nw_proto", 8, ValueFormat.DECIMAL, "NXM_OF_IP_PROTO", needs=_ANY_IP, maskable=False)
_TCP, _UDP, _SCTP = ((*_ANY_IP, (IP_PROTO, (number,))) for number in (IP_TCP, IP_UDP, IP_SCTP))
_ICMP4, _ICMP6 = (*_IP, (IP_PROTO, (IP_ICMP,))), (*_IP6, (IP_PROTO, (IP_ICMPV6,)))
REGISTERS = tuple(_field(f"reg{n}", 32, ValueFormat.HEX, f"NXM_NX_REG{n}") for n in range(16))
TUN_ID = _field("tun_id", 64, ValueFormat.HEX, "NXM_NX_TUN_ID")
METADATA = _field("metadata", 64, ValueFormat.HEX, "OXM_OF_METADATA")
IN_PORT = _field("in_port", 32, ValueFormat.PORT, "NXM_OF_IN_PORT", maskable=False)
ETH_SRC = _field("dl_src", 48, ValueFormat.MAC, "NXM_OF_ETH_SRC", set_name="eth_src")
ETH_DST = _field("dl_dst", 48, ValueFormat.MAC, "NXM_OF_ETH_DST", set_name="eth_dst")
IPV4_SRC = _field("nw_src", 32, ValueFormat.IPV4, "NXM_OF_IP_SRC", set_name="ip_src", needs=_IP)
IPV4_DST = _field("nw_dst", 32, ValueFormat.IPV4, "NXM_OF_IP_DST", set_name="ip_dst", needs=_IP)
IPV6_SRC = _field("ipv6_src", 128, ValueFormat.IPV6, "NXM_NX_IPV6_SRC", needs=_IP6)
IPV6_DST = _field("ipv6_dst", 128, ValueFormat.IPV6, "NXM_NX_IPV6_DST", needs=_IP6)
IP_TOS = _field("nw_tos", 8, ValueFormat.DECIMAL, "NXM_OF_IP_TOS", needs=_ANY_IP, maskable=False)
IP_TTL = _field("nw_ttl", 8, ValueFormat.DECIMAL, "NXM_NX_IP_TTL", needs=_ANY_IP, maskable=False)
IP_FRAG = _field("nw_frag", 2, ValueFormat.FRAG, "NXM_NX_IP_FRAG", needs=_ANY_IP)
TCP_SRC = _field("tp_src", 16, ValueFormat.DECIMAL, "NXM_OF_TCP_SRC", set_name="tcp_src", needs=_TCP)
TCP_DST = _field("tp_dst", 16, ValueFormat.DECIMAL, "NXM_OF_TCP_DST", set_name="tcp_dst", needs=_TCP)
UDP_SRC = _field("tp_src", 16, ValueFormat.DECIMAL, "NXM_OF_UDP_SRC", set_name="udp_src", needs=_UDP)
UDP_DST = _field("tp_dst", 16, ValueFormat.DECIMAL, "NXM_OF_UDP_DST", set_name="udp_dst", needs=_UDP)
SCTP_SRC = _field("tp_src", 16, ValueFormat.DECIMAL, "OXM_OF_SCTP_SRC", set_name="sctp_src", needs=_SCTP)
SCTP_DST = _field("tp_dst", 16, ValueFormat.DECIMAL, "OXM_OF_SCTP_DST", set_name="sctp_dst", needs=_SCTP)
ICMP_TYPE = _field("icmp_type", 8, ValueFormat.DECIMAL, "NXM_OF_ICMP_TYPE", needs=_ICMP4, maskable=False)
ICMP_CODE = _field("icmp_code", 8, ValueFormat.DECIMAL, "NXM_OF_ICMP_CODE", needs=_ICMP4, maskable=False)
ICMPV6_TYPE = _field(
    "icmp_type", 8, ValueFormat.DECIMAL, "NXM_NX_ICMPV6_TYPE", set_name="icmpv6_type", needs=_ICMP6, maskable=False
)
ICMPV6_CODE = _field(
    "icmp_code", 8, ValueFormat.DECIMAL, "NXM_NX_ICMPV6_CODE", set_name="icmpv6_code", needs=_ICMP6, maskable=False
)
TCP_FLAGS = _field("tcp_flags", 16, ValueFormat.TCP_FLAGS, "NXM_NX_TCP_FLAGS", needs=_TCP)

FIELDS: tuple[MatchField, ...] = tuple(_fields)
BY_SET_NAME: dict[str, MatchField] = {field.set_name: field for field in FIELDS}
BY_NXM: dict[str, MatchField] = {field.nxm: field for field in FIELDS}
# The transport ports of all protocols have the same names in a match; the protocol selects the field.
PORTS_SRC = {IP_TCP: TCP_SRC, IP_UDP: UDP_SRC, IP_SCTP: SCTP_SRC}
PORTS_DST = {IP_TCP: TCP_DST, IP_UDP: UDP_DST, IP_SCTP: SCTP_DST}
PROTOCOLS = {"tcp": IP_TCP, "udp": IP_UDP, "sctp": IP_SCTP}

IPV4_ONLY = Term(ETH_TYPE, ETH_IPV4, 0xFFFF)
IPV6_ONLY = Term(ETH_TYPE, ETH_IPV6, 0xFFFF)


def exact(field: MatchField, value: int) -> Term:
    """Return the condition that the whole field holds `value`; FlowError if it does not fit."""
    if value < 0 or value >> field.width:
        raise FlowError("", field.set_name, f"{value} does not fit {field.width} bits")
    return Term(field, value, field.full_mask)


def eth_type_of(net: Network | Address) -> Term:
    """Return the condition on the Ethernet type for an address family."""
    return IPV4_ONLY if net.version == 4 else IPV6_ONLY


def source_in(where: Network | Address) -> tuple[Term, Term]:
    """Return the conditions that the source is in a network or equals an address, with the Ethernet type."""
    return _lies_in(IPV4_SRC, IPV6_SRC, where)


def destination_in(where: Network | Address) -> tuple[Term, Term]:
    """Return the conditions that the destination is in a network or equals an address, with the Ethernet type."""
    return _lies_in(IPV4_DST, IPV6_DST, where)


def _lies_in(ipv4: MatchField, ipv6: MatchField, where: Network | Address) -> tuple[Term, Term]:
    field = ipv4 if where.version == 4 else ipv6
    if isinstance(where, IPv4Address | IPv6Address):
        return eth_type_of(where), Term(field, int(where), field.full_mask)
    return eth_type_of(where), in_network(field, where)


def in_network(field: MatchField, net: Network) -> Term:
    """Return the condition that a field has an address of a network."""
    return Term(field, int(net.network_address), int(net.netmask))


def ct_state(text: str) -> Term:
    """Return the condition on the conntrack state, from the syntax of OVS ("+trk+new-rpl")."""
    return flags(CT_STATE, text)


def tcp_flags(text: str) -> Term:
    """Return the condition on the TCP flags, from the syntax of OVS ("-syn+ack")."""
    return flags(TCP_FLAGS, text)


def flags(field: MatchField, text: str) -> Term:
    """Return the condition on a field of flags (`FLAG_BITS`); FlowError for an unknown flag."""
    bits = FLAG_BITS[field.form]
    value = mask = 0
    for sign, name in re.findall(r"([+-]|^)([^+-]*)", text):
        bit = bits.get(name)
        if bit is None or not sign:
            raise FlowError("", field.name, f'"{sign}{name}" is none of its flags: {", ".join(bits)}')
        mask |= bit
        value |= bit if sign == "+" else 0
    return Term(field, value, mask)


CT_BITS = {
    "new": CT_NEW, "est": CT_EST, "rel": CT_REL, "rpl": CT_RPL, "inv": CT_INV, "trk": CT_TRK,
    "snat": CT_SNAT, "dnat": CT_DNAT,
}  # fmt: skip
FLAG_BITS = {ValueFormat.CT_STATE: CT_BITS, ValueFormat.TCP_FLAGS: TCP_BITS}
