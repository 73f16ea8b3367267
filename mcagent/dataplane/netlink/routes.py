"""Routes and policy rules: what rtnetlink(7) answers, and the requests that change them.

Owns the layout of these messages (linux/rtnetlink.h, linux/fib_rules.h). Knows no names of devices, and not
which tables are ours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address

from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink.connection import NetlinkSocket, Request, attributes, number, pack
from mcagent.model.net import Address, Network
from mcagent.model.resources import Route, RouteType, Rule

RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_MULTIPATH = 1, 4, 5, 6, 7, 9
RTA_CACHEINFO, RTA_TABLE, RTA_VIA, RTA_PREF = 12, 15, 18, 20
RTN_UNSPEC, RTN_UNICAST, RTN_UNREACHABLE, RTN_THROW = 0, 1, 7, 9
RTNH_F_ONLINK = 4
RT_TABLE_COMPAT, RT_TABLE_MAIN = 252, 254
RTPROT_KERNEL = 2
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RT_SCOPE_NOWHERE = 0, 253, 255
FRA_PRIORITY, FRA_FWMARK, FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_FWMASK, FRA_PROTOCOL = 6, 10, 14, 15, 16, 21
FR_ACT_TO_TBL = 1

LAST_METRIC = 2**32 - 1  # of unreachable routes: any other comes first
ANY_LENGTH = 2**32 - 1  # of FRA_SUPPRESS_PREFIXLEN: no limit
ROUTE_TYPES = {
    RouteType.UNICAST: RTN_UNICAST,
    RouteType.THROW: RTN_THROW,
    RouteType.UNREACHABLE: RTN_UNREACHABLE,
}

RTMSG = struct.Struct("=BBBBBBBBI")  # family, dst_len, src_len, tos, table, protocol, scope, type, flags
RTNEXTHOP = struct.Struct("=HBBi")  # length, flags, hops, interface
FIB_RULE_HDR = struct.Struct("=BBBBBxxBI")  # family, dst_len, src_len, tos, table, action, flags

# What a route or rule of ours may carry (the kernel adds CACHEINFO and PREF to IPv6 routes); the rest is foreign.
_ROUTE_ATTRIBUTES = frozenset(
    {RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_TABLE, RTA_CACHEINFO, RTA_PREF}
)
_RULE_ATTRIBUTES = frozenset(
    {FRA_PRIORITY, FRA_FWMARK, FRA_TABLE, FRA_FWMASK, FRA_PROTOCOL, FRA_SUPPRESS_PREFIXLEN}
)


@dataclass(frozen=True, slots=True)
class RawRoute:
    """A route. `plain` is False when it has something that no route of ours has; `body` is the message itself."""

    table: int
    protocol: int
    type: int
    destination: Network
    oif: int
    gateway: Address | None
    source: Address | None
    onlink: bool
    metric: int
    plain: bool
    body: bytes


# --- answers and events ---------------------------------------------------------------------------------


def parse_route(payload: bytes) -> RawRoute:
    """Read RTM_NEWROUTE or RTM_DELROUTE of an IP route (those of MPLS and multicast have groups of their own)."""
    family, dst_len, src_len, tos, table, protocol, _, kind, flags = RTMSG.unpack_from(payload)
    found = attributes(payload, RTMSG.size)
    network = int.from_bytes(found.get(RTA_DST, b""), "big")
    of_family = IPv4Network if family == nl.AF_INET else IPv6Network
    return RawRoute(
        table=number(found.get(RTA_TABLE), table),
        protocol=protocol,
        type=kind,
        destination=of_family((network, dst_len)),
        oif=number(found.get(RTA_OIF)),
        gateway=ip_address(found[RTA_GATEWAY]) if RTA_GATEWAY in found else None,
        source=ip_address(found[RTA_PREFSRC]) if RTA_PREFSRC in found else None,
        onlink=bool(flags & RTNH_F_ONLINK),
        metric=number(found.get(RTA_PRIORITY)),
        plain=not src_len and not tos and found.keys() <= _ROUTE_ATTRIBUTES,
        body=payload,
    )


def parse_rule(payload: bytes) -> tuple[int, Rule] | None:
    """Read protocol and rule of RTM_NEWRULE or RTM_DELRULE; None for families other than IP (multicast routing).

    The rule is not `intact` when it has something that no rule of ours has.
    """
    family, dst_len, src_len, tos, table, action, flags = FIB_RULE_HDR.unpack_from(payload)
    if family not in nl.FAMILIES:
        return None
    found = attributes(payload, FIB_RULE_HDR.size)
    plain = not (dst_len or src_len or tos or flags) and action == FR_ACT_TO_TBL
    unlimited = number(found.get(FRA_SUPPRESS_PREFIXLEN), ANY_LENGTH) == ANY_LENGTH
    rule = Rule(
        family=4 if family == nl.AF_INET else 6,
        priority=number(found.get(FRA_PRIORITY)),
        table=number(found.get(FRA_TABLE), table),
        fwmark=number(found.get(FRA_FWMARK)),
        fwmask=number(found.get(FRA_FWMASK)),
        intact=plain and unlimited and found.keys() <= _RULE_ATTRIBUTES,
    )
    return found.get(FRA_PROTOCOL, b"\0")[0], rule


def read_routes(
    socket: NetlinkSocket, table: int, protocol: int = 0, wanted: Callable[[bytes], bool] = lambda _: True
) -> Iterator[RawRoute]:
    """Yield the routes of one table and protocol (0: any) whose message is `wanted`. Raises BackendError.

    The kernel filters, and a foreign route is passed over whatever it lists: what is yielded may be deleted.
    """
    for family in nl.FAMILIES:
        header = RTMSG.pack(family, 0, 0, 0, _short(table), protocol, 0, 0, 0)
        for body in socket.dump(nl.RTM_GETROUTE, header + pack({RTA_TABLE: table})):
            route = parse_route(body) if wanted(body) else None
            if route is not None and route.table == table and protocol in {0, route.protocol}:
                yield route


def default_or_connected(payload: bytes) -> bool:
    """Tell whether a route is a default route, or one that the kernel made for an address, by its header."""
    _, dst_len, _, _, _, protocol, _, _, _ = RTMSG.unpack_from(payload)
    return not dst_len or protocol == RTPROT_KERNEL


def read_rules(socket: NetlinkSocket, protocol: int) -> Iterator[tuple[Rule, bytes]]:
    """Yield the policy rules of one protocol, each with its message. Raises BackendError."""
    for family in nl.FAMILIES:
        for body in socket.dump(nl.RTM_GETRULE, FIB_RULE_HDR.pack(family, 0, 0, 0, 0, 0, 0)):
            found = parse_rule(body)
            if found is not None and found[0] == protocol:
                yield found[1], body


def next_hops(route: RawRoute) -> Iterator[Address]:
    """Yield the gateways of a route: its own, one of the other family (RTA_VIA), and those of several paths."""
    yield from _hops(route.body, RTMSG.size)


def _hops(data: bytes, offset: int) -> Iterator[Address]:
    found = attributes(data, offset)
    gateway, via, paths = (found.get(kind, b"") for kind in (RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH))
    for raw in (gateway, via[2:]):  # struct rtvia: u16 family, address
        if len(raw) in {4, 16}:
            yield ip_address(raw)
    place = 0
    while place + RTNEXTHOP.size <= len(paths):
        length, _, _, _ = RTNEXTHOP.unpack_from(paths, place)
        if length < RTNEXTHOP.size:
            return
        yield from _hops(paths[place : place + length], RTNEXTHOP.size)
        place += (length + 3) & ~3


# --- requests -------------------------------------------------------------------------------------------


def put_route(route: Route, protocol: int, oif: int) -> Request:
    """Return the request that makes a route, by the device of index `oif` (0: none).

    It replaces any other route of that destination and metric: a leftover of another protocol in our own table
    must not stay in the way. A gateway is always on-link.
    """
    scope = RT_SCOPE_UNIVERSE
    if route.type is RouteType.UNICAST and route.via is None and route.destination.version == 4:
        scope = RT_SCOPE_LINK
    flags = RTNH_F_ONLINK if route.via is not None else 0
    values = {
        RTA_GATEWAY: route.via.packed if route.via is not None else None,
        RTA_OIF: oif or None,
        RTA_PREFSRC: route.source.packed if route.source is not None else None,
    }
    payload = _route(route, protocol, scope, ROUTE_TYPES[route.type], flags) + pack(values)
    return Request(nl.RTM_NEWROUTE, nl.NLM_F_CREATE | nl.NLM_F_REPLACE, payload)


def delete_route(route: Route, protocol: int) -> Request:
    """Return the request that deletes a route; its device may be gone already.

    Destination, table, protocol, metric and type say which one; the type only of one that is as we made it.
    """
    kind = ROUTE_TYPES[route.type] if route.intact else RTN_UNSPEC
    return Request(nl.RTM_DELROUTE, 0, _route(route, protocol, RT_SCOPE_NOWHERE, kind, 0))


def add_rule(rule: Rule, protocol: int) -> Request:
    """Return the request that adds a rule."""
    return Request(nl.RTM_NEWRULE, nl.NLM_F_CREATE | nl.NLM_F_EXCL, _rule(rule, protocol))


def delete_rule(rule: Rule, protocol: int) -> Request:
    """Return the request that deletes a rule; of one that is not intact, whatever has its priority and table."""
    return Request(nl.RTM_DELRULE, 0, _rule(rule if rule.intact else replace(rule, fwmask=0), protocol))


def _short(table: int) -> int:
    """Return what the u8 of a header says of a table; RTA_TABLE and FRA_TABLE have the number."""
    return table if table < 256 else RT_TABLE_COMPAT


def _route(route: Route, protocol: int, scope: int, kind: int, flags: int) -> bytes:
    destination = route.destination
    header = RTMSG.pack(
        nl.family(destination), destination.prefixlen, 0, 0, _short(route.table), protocol, scope, kind, flags
    )
    values = {
        RTA_TABLE: route.table,
        RTA_DST: destination.network_address.packed if destination.prefixlen else None,
        RTA_PRIORITY: LAST_METRIC if route.type is RouteType.UNREACHABLE else None,
    }
    return header + pack(values)


def _rule(rule: Rule, protocol: int) -> bytes:
    family = nl.AF_INET if rule.family == 4 else nl.AF_INET6
    header = FIB_RULE_HDR.pack(family, 0, 0, 0, _short(rule.table), FR_ACT_TO_TBL, 0)
    marked = {FRA_FWMARK: rule.fwmark, FRA_FWMASK: rule.fwmask} if rule.fwmask else {}
    return header + pack(
        {FRA_TABLE: rule.table, FRA_PRIORITY: rule.priority, FRA_PROTOCOL: bytes([protocol]), **marked}
    )
