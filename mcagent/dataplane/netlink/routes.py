"""Routes and policy rules: parses the answers of rtnetlink(7) and makes the requests that change them.

Owns the layout of these messages (linux/rtnetlink.h, linux/fib_rules.h). Knows neither names of devices nor which
tables are the agent's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address

from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink.connection import NetlinkRequest, NetlinkSocket, attributes, number, pack
from mcagent.model.dataplane.resources import Route, RouteType, Rule
from mcagent.model.net import Address, Network

RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_MULTIPATH = 1, 4, 5, 6, 7, 9
RTA_CACHEINFO, RTA_TABLE, RTA_VIA, RTA_PREF = 12, 15, 18, 20
RTN_UNSPEC, RTN_UNICAST, RTN_UNREACHABLE, RTN_THROW = 0, 1, 7, 9
RTNH_F_ONLINK = 4
RT_TABLE_COMPAT, RT_TABLE_MAIN = 252, 254
RTPROT_KERNEL = 2
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RT_SCOPE_NOWHERE = 0, 253, 255
FRA_PRIORITY, FRA_FWMARK, FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_FWMASK, FRA_PROTOCOL = 6, 10, 14, 15, 16, 21
FR_ACT_TO_TBL = 1

LAST_METRIC = 2**32 - 1  # of unreachable routes: all others take precedence
ANY_LENGTH = 2**32 - 1  # of FRA_SUPPRESS_PREFIXLEN: no limit
ROUTE_TYPES = {
    RouteType.UNICAST: RTN_UNICAST,
    RouteType.THROW: RTN_THROW,
    RouteType.UNREACHABLE: RTN_UNREACHABLE,
}

RTMSG = struct.Struct("=BBBBBBBBI")  # family, dst_len, src_len, tos, table, protocol, scope, type, flags
RTNEXTHOP = struct.Struct("=HBBi")  # length, flags, hops, interface
FIB_RULE_HDR = struct.Struct("=BBBBBxxBI")  # family, dst_len, src_len, tos, table, action, flags

# Attributes of routes and rules that the agent creates (the kernel adds CACHEINFO and PREF to IPv6 routes).
_ROUTE_ATTRIBUTES = frozenset(
    {RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_TABLE, RTA_CACHEINFO, RTA_PREF}
)
_RULE_ATTRIBUTES = frozenset(
    {FRA_PRIORITY, FRA_FWMARK, FRA_TABLE, FRA_FWMASK, FRA_PROTOCOL, FRA_SUPPRESS_PREFIXLEN}
)


@dataclass(frozen=True, slots=True)
class RawRoute:
    """A route. `plain`: it has only attributes that the agent uses. `body`: the payload of its message."""

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
    """Parse RTM_NEWROUTE or RTM_DELROUTE of an IP route (MPLS and multicast have other groups)."""
    family, dst_len, src_len, tos, table, protocol, _, kind, flags = RTMSG.unpack_from(payload)
    values = attributes(payload, RTMSG.size)
    network = int.from_bytes(values.get(RTA_DST, b""), "big")
    of_family = IPv4Network if family == nl.AF_INET else IPv6Network
    return RawRoute(
        table=number(values.get(RTA_TABLE), table),
        protocol=protocol,
        type=kind,
        destination=of_family((network, dst_len)),
        oif=number(values.get(RTA_OIF)),
        gateway=ip_address(values[RTA_GATEWAY]) if RTA_GATEWAY in values else None,
        source=ip_address(values[RTA_PREFSRC]) if RTA_PREFSRC in values else None,
        onlink=bool(flags & RTNH_F_ONLINK),
        metric=number(values.get(RTA_PRIORITY)),
        plain=not src_len and not tos and values.keys() <= _ROUTE_ATTRIBUTES,
        body=payload,
    )


def parse_rule(payload: bytes) -> tuple[int, Rule] | None:
    """Parse protocol and rule of RTM_NEWRULE or RTM_DELRULE; None for families other than IP (multicast routing).

    The rule is not `intact` when it has an attribute or flag that the agent does not use.
    """
    family, dst_len, src_len, tos, table, action, flags = FIB_RULE_HDR.unpack_from(payload)
    if family not in nl.FAMILIES:
        return None
    values = attributes(payload, FIB_RULE_HDR.size)
    plain = not (dst_len or src_len or tos or flags) and action == FR_ACT_TO_TBL
    unlimited = number(values.get(FRA_SUPPRESS_PREFIXLEN), ANY_LENGTH) == ANY_LENGTH
    rule = Rule(
        family=4 if family == nl.AF_INET else 6,
        priority=number(values.get(FRA_PRIORITY)),
        table=number(values.get(FRA_TABLE), table),
        fwmark=number(values.get(FRA_FWMARK)),
        fwmask=number(values.get(FRA_FWMASK)),
        intact=plain and unlimited and values.keys() <= _RULE_ATTRIBUTES,
    )
    return values.get(FRA_PROTOCOL, b"\0")[0], rule


def read_routes(
    socket: NetlinkSocket, table: int, protocol: int = 0, matches: Callable[[bytes], bool] = lambda _: True
) -> Iterator[RawRoute]:
    """Yield the routes of one table and protocol (0: any) whose payload `matches`. Raises BackendError.

    The kernel filters, and its answers are checked again, because yielded routes may be deleted.
    """
    for family in nl.FAMILIES:
        header = RTMSG.pack(family, 0, 0, 0, _short(table), protocol, 0, 0, 0)
        for body in socket.dump(nl.RTM_GETROUTE, header + pack({RTA_TABLE: table})):
            route = parse_route(body) if matches(body) else None
            if route is not None and route.table == table and protocol in {0, route.protocol}:
                yield route


def default_or_connected(payload: bytes) -> bool:
    """Return whether a route is a default route or one that the kernel added for an address, by its header."""
    _, dst_len, _, _, _, protocol, _, _, _ = RTMSG.unpack_from(payload)
    return not dst_len or protocol == RTPROT_KERNEL


def read_rules(socket: NetlinkSocket, protocol: int) -> Iterator[tuple[Rule, bytes]]:
    """Yield the policy rules of one protocol, each with its message. Raises BackendError."""
    for rule_protocol, rule, body in read_all_rules(socket):
        if rule_protocol == protocol:
            yield rule, body


def read_all_rules(socket: NetlinkSocket) -> Iterator[tuple[int, Rule, bytes]]:
    """Yield protocol, rule and message of every policy rule. Raises BackendError."""
    for family in nl.FAMILIES:
        for body in socket.dump(nl.RTM_GETRULE, FIB_RULE_HDR.pack(family, 0, 0, 0, 0, 0, 0)):
            parsed = parse_rule(body)
            if parsed is not None:
                yield *parsed, body


def next_hops(route: RawRoute) -> Iterator[Address]:
    """Yield the gateways of a route: its own, one of the other family (RTA_VIA), and those of several paths."""
    yield from _hops(route.body, RTMSG.size)


def _hops(data: bytes, offset: int) -> Iterator[Address]:
    values = attributes(data, offset)
    gateway, via, paths = (values.get(kind, b"") for kind in (RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH))
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


def put_route(route: Route, protocol: int, oif: int) -> NetlinkRequest:
    """Make the request that adds a route by the device of index `oif` (0: none).

    It replaces any other route of that destination and metric, including one of another protocol in the agent's
    table. A gateway is always on-link.
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
    return NetlinkRequest(nl.RTM_NEWROUTE, nl.NLM_F_CREATE | nl.NLM_F_REPLACE, payload)


def delete_route(route: Route, protocol: int) -> NetlinkRequest:
    """Make the request that deletes a route, also after its device was deleted.

    Destination, table, protocol and metric identify it, and the type if the route is intact.
    """
    kind = ROUTE_TYPES[route.type] if route.intact else RTN_UNSPEC
    return NetlinkRequest(nl.RTM_DELROUTE, 0, _route(route, protocol, RT_SCOPE_NOWHERE, kind, 0))


def add_rule(rule: Rule, protocol: int) -> NetlinkRequest:
    """Make the request that adds a rule."""
    return NetlinkRequest(nl.RTM_NEWRULE, nl.NLM_F_CREATE | nl.NLM_F_EXCL, _rule(rule, protocol))


def delete_rule(rule: Rule, protocol: int) -> NetlinkRequest:
    """Make the request that deletes a rule; if it is not intact, by its priority and table alone."""
    return NetlinkRequest(nl.RTM_DELRULE, 0, _rule(rule if rule.intact else replace(rule, fwmask=0), protocol))


def _short(table: int) -> int:
    """Return the u8 of a table in a header; RTA_TABLE and FRA_TABLE have the number."""
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
