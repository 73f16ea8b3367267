"""rtnetlink messages as bytes: the few that the agent sends in bulk, and those that it reads.

Owns the layout (linux/netlink.h, linux/rtnetlink.h, linux/if_link.h, linux/neighbour.h, linux/fib_rules.h;
netlink(7), rtnetlink(7)) and nothing else: no socket, no device names, no resources. pyroute2 needs 0.4 to
1 ms to encode or decode one message; a Node has thousands of routes, so these are packed here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from mcagent.model.net import Address, Network

AF_UNSPEC, AF_INET, AF_INET6 = 0, 2, 10
FAMILIES = (AF_INET, AF_INET6)

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_REPLACE, NLM_F_CREATE = 0x1, 0x4, 0x10, 0x100, 0x400
NLM_F_DUMP = 0x300
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200  # in NLMSG_ERROR
NLMSGERR_ATTR_MSG = 1

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34

IFF_UP = 0x1
IFLA_IFNAME, IFLA_MTU, IFLA_IFALIAS, IFLA_AF_SPEC, IFLA_INET_CONF = 3, 4, 20, 26, 1
IFLA_LINKINFO, IFLA_INFO_KIND = 18, 1
IPV4_DEVCONF_FORWARDING, IPV4_DEVCONF_RP_FILTER = 1, 8  # linux/ip.h
IFA_ADDRESS, IFA_LOCAL = 1, 2
NDA_DST, NDA_LLADDR, NDA_IFINDEX = 1, 2, 8
NUD_PERMANENT = 0x80
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC = 1, 4, 5, 6, 7
RTA_CACHEINFO, RTA_TABLE, RTA_PREF = 12, 15, 20
RTN_UNSPEC, RTN_UNICAST, RTN_UNREACHABLE, RTN_THROW = 0, 1, 7, 9
RTNH_F_ONLINK = 4
RT_TABLE_COMPAT, RT_TABLE_MAIN = 252, 254
RTPROT_KERNEL = 2
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RT_SCOPE_NOWHERE = 0, 253, 255
FRA_PRIORITY, FRA_FWMARK, FRA_TABLE, FRA_FWMASK, FRA_PROTOCOL = 6, 10, 15, 16, 21
FRA_SUPPRESS_PREFIXLEN = 14
FR_ACT_TO_TBL = 1

NLMSGHDR = struct.Struct("=IHHII")  # length, type, flags, sequence, port
NLATTR = struct.Struct("=HH")  # length, type
IFINFOMSG = struct.Struct("=BxHiII")  # family, type, index, flags, change
IFADDRMSG = struct.Struct("=BBBBI")  # family, prefixlen, flags, scope, index
NDMSG = struct.Struct("=BxxxiHBB")  # family, ifindex, state, flags, type
RTMSG = struct.Struct("=BBBBBBBBI")  # family, dst_len, src_len, tos, table, protocol, scope, type, flags
FIB_RULE_HDR = struct.Struct("=BBBBBxxBI")  # family, dst_len, src_len, tos, table, action, flags
U32 = struct.Struct("=I")

# What a route of ours may carry; the kernel adds CACHEINFO and PREF to IPv6 ones. Anything else is foreign.
_ROUTE_ATTRIBUTES = frozenset(
    {RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_TABLE, RTA_CACHEINFO, RTA_PREF}
)
_RULE_ATTRIBUTES = frozenset(
    {FRA_PRIORITY, FRA_FWMARK, FRA_TABLE, FRA_FWMASK, FRA_PROTOCOL, FRA_SUPPRESS_PREFIXLEN}
)


@dataclass(frozen=True, slots=True)
class RawLink:
    """A device, of RTM_NEWLINK."""

    index: int
    name: str
    mtu: int
    up: bool
    alias: str
    rp_filter: int
    forwarding: bool


@dataclass(frozen=True, slots=True)
class RawAddress:
    """An address of a device, of RTM_NEWADDR."""

    index: int
    address: Address
    prefixlen: int


@dataclass(frozen=True, slots=True)
class RawNeighbour:
    """A neighbour entry, of RTM_NEWNEIGH; `mac` is "" where it has none."""

    index: int
    address: Address
    mac: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class RawRoute:
    """A route, of RTM_NEWROUTE. `plain` is False when it has something that no route of ours has."""

    table: int
    protocol: int
    type: int
    scope: int
    destination: Network
    oif: int
    gateway: Address | None
    source: Address | None
    onlink: bool
    metric: int
    plain: bool


@dataclass(frozen=True, slots=True)
class RawRule:
    """A policy rule, of RTM_NEWRULE. `plain` is False when it has something that no rule of ours has."""

    family: int
    priority: int
    table: int
    protocol: int
    fwmark: int
    fwmask: int
    plain: bool


def attribute(kind: int, data: bytes) -> bytes:
    """Pack one attribute, padded to four bytes."""
    return NLATTR.pack(4 + len(data), kind) + data + bytes(-len(data) % 4)


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """Unpack attributes from `offset` to the end; the last one of a type counts, the nested flag is dropped."""
    found: dict[int, bytes] = {}
    end = len(data)
    while offset + 4 <= end:
        length, kind = NLATTR.unpack_from(data, offset)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Split what one recv returned into (type, flags, sequence, payload)."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, sequence, _ = NLMSGHDR.unpack_from(data, offset)
        if length < 16:
            return
        yield kind, flags, sequence, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


# --- requests -------------------------------------------------------------------------------------------


def route_payload(
    *,
    table: int,
    protocol: int,
    destination: Network,
    kind: int,
    oif: int = 0,
    gateway: Address | None = None,
    source: Address | None = None,
    metric: int = 0,
    delete: bool = False,
) -> bytes:
    """Pack the payload of RTM_NEWROUTE and, with `delete`, of RTM_DELROUTE. A gateway is always on-link.

    For RTM_DELROUTE: RTN_UNSPEC as `kind` means whatever route of the table and protocol has that destination.
    """
    version4 = destination.version == 4
    onlink = RTNH_F_ONLINK if gateway is not None else 0
    if delete:
        scope = RT_SCOPE_NOWHERE
    elif kind == RTN_UNICAST and gateway is None and version4:
        scope = RT_SCOPE_LINK
    else:
        scope = RT_SCOPE_UNIVERSE
    parts = [
        RTMSG.pack(
            AF_INET if version4 else AF_INET6,
            destination.prefixlen,
            0,
            0,
            table if table < 256 else RT_TABLE_COMPAT,
            protocol,
            scope,
            kind,
            onlink,
        ),
        attribute(RTA_TABLE, U32.pack(table)),
    ]
    if destination.prefixlen:
        parts.append(attribute(RTA_DST, destination.network_address.packed))
    if gateway is not None:
        parts.append(attribute(RTA_GATEWAY, gateway.packed))
    if oif:
        parts.append(attribute(RTA_OIF, U32.pack(oif)))
    if source is not None:
        parts.append(attribute(RTA_PREFSRC, source.packed))
    if metric:
        parts.append(attribute(RTA_PRIORITY, U32.pack(metric)))
    return b"".join(parts)


def route_dump_payload(family: int, table: int, protocol: int) -> bytes:
    """Pack the payload of an RTM_GETROUTE dump that the kernel filters (NETLINK_GET_STRICT_CHK)."""
    header = RTMSG.pack(family, 0, 0, 0, table if table < 256 else RT_TABLE_COMPAT, protocol, 0, 0, 0)
    return header + attribute(RTA_TABLE, U32.pack(table))


def link_get_payload(*, name: str = "", index: int = 0) -> bytes:
    """Pack the payload of RTM_GETLINK for one device, by name or index."""
    header = IFINFOMSG.pack(AF_UNSPEC, 0, index, 0, 0)
    return header + (attribute(IFLA_IFNAME, name.encode() + b"\0") if name else b"")


def link_ipv4_payload(index: int, values: dict[int, int]) -> bytes:
    """Pack RTM_SETLINK that sets per-device IPv4 switches (net/ipv4/devinet.c, inet_set_link_af).

    `values` maps IPV4_DEVCONF_* to the value. It is what writing /proc/sys/net/ipv4/conf/DEV does, but needs
    CAP_NET_ADMIN only, not a writable /proc/sys.
    """
    switches = b"".join(attribute(kind, U32.pack(value)) for kind, value in values.items())
    inet = attribute(AF_INET, attribute(IFLA_INET_CONF, switches))
    return IFINFOMSG.pack(AF_UNSPEC, 0, index, 0, 0) + attribute(IFLA_AF_SPEC, inet)


def address_dump_payload(family: int, index: int = 0) -> bytes:
    """Pack the payload of an RTM_GETADDR dump of one device, or of all (index 0)."""
    return IFADDRMSG.pack(family, 0, 0, 0, index)


def neighbour_dump_payload(family: int, index: int) -> bytes:
    """Pack the payload of an RTM_GETNEIGH dump of one device."""
    return NDMSG.pack(family, 0, 0, 0, 0) + attribute(NDA_IFINDEX, U32.pack(index))


def rule_dump_payload(family: int) -> bytes:
    """Pack the payload of an RTM_GETRULE dump."""
    return FIB_RULE_HDR.pack(family, 0, 0, 0, 0, 0, 0)


# --- answers and events ---------------------------------------------------------------------------------


def _u32(data: bytes | None, default: int = 0) -> int:
    return int(U32.unpack_from(data)[0]) if data else default


def parse_link(payload: bytes) -> RawLink:
    """Read RTM_NEWLINK or RTM_DELLINK."""
    _, _, index, flags, _ = IFINFOMSG.unpack_from(payload)
    found = attributes(payload, IFINFOMSG.size)
    inet = attributes(attributes(found.get(IFLA_AF_SPEC, b"")).get(AF_INET, b""))
    conf = inet.get(IFLA_INET_CONF, b"")  # an array of u32: the first is number 1
    switches = dict(enumerate(struct.unpack(f"={len(conf) // 4}I", conf), start=1))
    return RawLink(
        index=index,
        name=found.get(IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        mtu=_u32(found.get(IFLA_MTU)),
        up=bool(flags & IFF_UP),
        alias=found.get(IFLA_IFALIAS, b"").rstrip(b"\0").decode(errors="replace"),
        rp_filter=switches.get(IPV4_DEVCONF_RP_FILTER, 0),
        forwarding=bool(switches.get(IPV4_DEVCONF_FORWARDING, 0)),
    )


def parse_link_kind(payload: bytes) -> str:
    """Read what kind of device RTM_NEWLINK is about ("veth", "tun", ...); "" where its driver names none."""
    info = attributes(attributes(payload, IFINFOMSG.size).get(IFLA_LINKINFO, b""))
    return info.get(IFLA_INFO_KIND, b"").rstrip(b"\0").decode(errors="replace")


def parse_address(payload: bytes) -> RawAddress | None:
    """Read RTM_NEWADDR or RTM_DELADDR; None for families other than IP."""
    family, prefixlen, _, _, index = IFADDRMSG.unpack_from(payload)
    found = attributes(payload, IFADDRMSG.size)
    raw = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS)
    if family not in FAMILIES or raw is None:
        return None
    return RawAddress(index=index, address=ip_address(raw), prefixlen=prefixlen)


def parse_neighbour(payload: bytes) -> RawNeighbour | None:
    """Read RTM_NEWNEIGH or RTM_DELNEIGH; None for families other than IP (bridge FDB entries)."""
    family, index, state, _, _ = NDMSG.unpack_from(payload)
    found = attributes(payload, NDMSG.size)
    if family not in FAMILIES or NDA_DST not in found:
        return None
    mac = found.get(NDA_LLADDR, b"").hex(":")
    return RawNeighbour(
        index=index, address=ip_address(found[NDA_DST]), mac=mac, permanent=bool(state & NUD_PERMANENT)
    )


def parse_route(payload: bytes) -> RawRoute | None:
    """Read RTM_NEWROUTE or RTM_DELROUTE; None for families other than IP (MPLS, multicast)."""
    family, dst_len, src_len, tos, table, protocol, scope, kind, flags = RTMSG.unpack_from(payload)
    if family not in FAMILIES:
        return None
    found = attributes(payload, RTMSG.size)
    raw = found.get(RTA_DST)
    if family == AF_INET:
        destination: Network = IPv4Network((int.from_bytes(raw or b"", "big"), dst_len))
        gateway: Address | None = IPv4Address(found[RTA_GATEWAY]) if RTA_GATEWAY in found else None
    else:
        destination = IPv6Network((int.from_bytes(raw or b"", "big"), dst_len))
        gateway = IPv6Address(found[RTA_GATEWAY]) if RTA_GATEWAY in found else None
    return RawRoute(
        table=_u32(found.get(RTA_TABLE), table),
        protocol=protocol,
        type=kind,
        scope=scope,
        destination=destination,
        oif=_u32(found.get(RTA_OIF)),
        gateway=gateway,
        source=ip_address(found[RTA_PREFSRC]) if RTA_PREFSRC in found else None,
        onlink=bool(flags & RTNH_F_ONLINK),
        metric=_u32(found.get(RTA_PRIORITY)),
        plain=not src_len and not tos and found.keys() <= _ROUTE_ATTRIBUTES,
    )


def parse_rule(payload: bytes) -> RawRule | None:
    """Read RTM_NEWRULE or RTM_DELRULE; None for families other than IP (multicast routing rules)."""
    family, dst_len, src_len, tos, table, action, flags = FIB_RULE_HDR.unpack_from(payload)
    if family not in FAMILIES:
        return None
    found = attributes(payload, FIB_RULE_HDR.size)
    return RawRule(
        family=family,
        priority=_u32(found.get(FRA_PRIORITY)),
        table=_u32(found.get(FRA_TABLE), table),
        protocol=found.get(FRA_PROTOCOL, b"\0")[0],
        fwmark=_u32(found.get(FRA_FWMARK)),
        fwmask=_u32(found.get(FRA_FWMASK)),
        plain=not (dst_len or src_len or tos or flags)
        and action == FR_ACT_TO_TBL
        and found.keys() <= _RULE_ATTRIBUTES
        and found.get(FRA_SUPPRESS_PREFIXLEN, b"\xff\xff\xff\xff") == b"\xff\xff\xff\xff",
    )
