"""Routes and policy rules: parses the answers of rtnetlink(7) and makes the requests that change them.

Owns the layout of these messages (linux/rtnetlink.h, linux/fib_rules.h). Knows neither names of devices nor which
tables are the agent's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address

from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink.connection import (
    NetlinkRefusal,
    NetlinkRequest,
    NetlinkSocket,
    attributes,
    number,
    pack,
)
from mcagent.model.dataplane.resources import Route, RouteType, Rule
from mcagent.model.net import Address, Network

RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS, RTA_MULTIPATH = 1, 4, 5, 6, 7, 8, 9
RTA_CACHEINFO, RTA_TABLE, RTA_VIA, RTA_PREF = 12, 15, 18, 20
RTAX_MTU = 2
RTN_UNSPEC, RTN_UNICAST, RTN_UNREACHABLE, RTN_THROW = 0, 1, 7, 9
RTNH_F_ONLINK = 4
RTM_F_LOOKUP_TABLE = 0x1000  # asks for the table of an IPv4 route; those of IPv6 have it, and refuse the flag
RT_TABLE_COMPAT, RT_TABLE_MAIN = 252, 254
RTPROT_KERNEL = 2
RTPROT_BOOT, RTPROT_STATIC, RTPROT_DHCP = 3, 4, 16  # of administrators: ip(8), network managers, DHCP clients
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RT_SCOPE_NOWHERE = 0, 253, 255
FRA_DST, FRA_PRIORITY, FRA_FWMARK, FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_FWMASK = 1, 6, 10, 14, 15, 16
FRA_PROTOCOL, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_SPORT_MASK = 21, 22, 23, 28
FR_ACT_TO_TBL = 1

LAST_METRIC = 2**32 - 1  # of unreachable routes: all others take precedence
ANY_LENGTH = 2**32 - 1  # of FRA_SUPPRESS_PREFIXLEN: no limit
WHOLE_PORT = b"\xff\xff"  # FRA_SPORT_MASK, which the kernel adds to a rule on a single port (Linux 6.15)
ROUTE_TYPES = {
    RouteType.UNICAST: RTN_UNICAST,
    RouteType.THROW: RTN_THROW,
    RouteType.UNREACHABLE: RTN_UNREACHABLE,
}

RTMSG = struct.Struct("=BBBBBBBBI")  # family, dst_len, src_len, tos, table, protocol, scope, type, flags
RTNEXTHOP = struct.Struct("=HBBi")  # length, flags, hops, interface
FIB_RULE_HDR = struct.Struct("=BBBBBxxBI")  # family, dst_len, src_len, tos, table, action, flags
PORT_RANGE = struct.Struct("=HH")  # first, last

# Attributes of routes and rules that the agent creates (the kernel adds CACHEINFO and PREF to IPv6 routes).
_ROUTE_ATTRIBUTES = frozenset(
    {RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS, RTA_TABLE, RTA_CACHEINFO, RTA_PREF}
)
_RULE_ATTRIBUTES = frozenset(
    {
        *(FRA_PRIORITY, FRA_FWMARK, FRA_TABLE, FRA_FWMASK, FRA_PROTOCOL, FRA_SUPPRESS_PREFIXLEN),
        *(FRA_DST, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_SPORT_MASK),
    }
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
    mtu: int
    plain: bool
    body: bytes


# --- answers and events ---------------------------------------------------------------------------------


def parse_route(payload: bytes) -> RawRoute:
    """Parse RTM_NEWROUTE or RTM_DELROUTE of an IP route (MPLS and multicast have other groups)."""
    family, dst_len, src_len, tos, table, protocol, _, kind, flags = RTMSG.unpack_from(payload)
    values = attributes(payload, RTMSG.size)
    metrics = attributes(values.get(RTA_METRICS, b""))
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
        mtu=number(metrics.get(RTAX_MTU)),
        plain=not src_len and not tos and values.keys() <= _ROUTE_ATTRIBUTES and metrics.keys() <= {RTAX_MTU},
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
    plain = not (src_len or tos or flags) and action == FR_ACT_TO_TBL
    unlimited = number(values.get(FRA_SUPPRESS_PREFIXLEN), ANY_LENGTH) == ANY_LENGTH
    exact = values.get(FRA_SPORT_MASK, WHOLE_PORT) == WHOLE_PORT
    address = values.get(FRA_DST, b"")
    destination: Network | None = None
    if dst_len and address:
        of_family = IPv4Network if family == nl.AF_INET else IPv6Network
        destination = of_family((int.from_bytes(address, "big"), dst_len), strict=False)
        exact = exact and destination.network_address.packed == address
    ports = values.get(FRA_SPORT_RANGE, b"")
    rule = Rule(
        family=4 if family == nl.AF_INET else 6,
        priority=number(values.get(FRA_PRIORITY)),
        table=number(values.get(FRA_TABLE), table),
        fwmark=number(values.get(FRA_FWMARK)),
        fwmask=number(values.get(FRA_FWMASK)),
        destination=destination,
        protocol=values.get(FRA_IP_PROTO, b"\0")[0],
        source_ports=PORT_RANGE.unpack_from(ports) if ports else None,
        intact=plain and unlimited and exact and values.keys() <= _RULE_ATTRIBUTES,
    )
    return values.get(FRA_PROTOCOL, b"\0")[0], rule


def dump_routes(socket: NetlinkSocket, family: int, table: int, protocol: int = 0) -> list[bytes]:
    """Return the payloads of the routes of one IP version, table and protocol (0: any). Raises BackendError.

    The kernel filters; not every kernel does.
    """
    header = RTMSG.pack(family, 0, 0, 0, _short(table), protocol, 0, 0, 0)
    return socket.dump(nl.RTM_GETROUTE, header + pack({RTA_TABLE: table}))


def read_routes(socket: NetlinkSocket, table: int, protocol: int = 0) -> Iterator[RawRoute]:
    """Yield the routes of one table and protocol (0: any). Raises BackendError.

    The kernel filters, and its answers are checked again, because yielded routes may be deleted.
    """
    for family in nl.FAMILIES:
        for route in map(parse_route, dump_routes(socket, family, table, protocol)):
            if route.table == table and protocol in {0, route.protocol}:
                yield route


def route_to(socket: NetlinkSocket, address: Address) -> RawRoute | None:
    """Return the route by which the kernel sends to an address; None: it has none. Raises BackendError."""
    flags = RTM_F_LOOKUP_TABLE if address.version == 4 else 0
    header = RTMSG.pack(nl.family(address), 8 * len(address.packed), 0, 0, 0, 0, 0, 0, flags)
    answer = socket.get(nl.RTM_GETROUTE, header + pack({RTA_DST: address.packed}))
    return None if isinstance(answer, NetlinkRefusal) else parse_route(answer)


def leads_to_network(payload: bytes) -> bool:
    """Return whether a route is more than the way to one Pod of this Node, by its header.

    Yielded are default routes, routes that the kernel added for an address, and other IPv4 routes, but not those
    to single addresses behind a device: a Node has one for each Pod.
    """
    family, dst_len, _, _, _, protocol, scope, kind, _ = RTMSG.unpack_from(payload)
    if not dst_len or protocol == RTPROT_KERNEL:
        return True
    return bool(family == nl.AF_INET and kind == RTN_UNICAST and (dst_len < 32 or scope < RT_SCOPE_LINK))


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


def devices(route: RawRoute) -> Iterator[int]:
    """Yield the indexes of the devices of a route, several if it has several paths."""
    if route.oif:
        yield route.oif
    for device, _ in _paths(attributes(route.body, RTMSG.size).get(RTA_MULTIPATH, b"")):
        yield device


def next_hops(route: RawRoute) -> Iterator[Address]:
    """Yield the gateways of a route: its own, one of the other family (RTA_VIA), and those of several paths."""
    yield from _hops(route.body, RTMSG.size)


def _hops(data: bytes, offset: int) -> Iterator[Address]:
    values = attributes(data, offset)
    gateway, via, paths = (values.get(kind, b"") for kind in (RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH))
    for raw in (gateway, via[2:]):  # struct rtvia: u16 family, address
        if len(raw) in {4, 16}:
            yield ip_address(raw)
    for _, path in _paths(paths):
        yield from _hops(path, RTNEXTHOP.size)


def _paths(paths: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the device and the bytes of each path of RTA_MULTIPATH."""
    place = 0
    while place + RTNEXTHOP.size <= len(paths):
        length, _, _, device = RTNEXTHOP.unpack_from(paths, place)
        if length < RTNEXTHOP.size:
            return
        yield device, paths[place : place + length]
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
        RTA_METRICS: pack({RTAX_MTU: route.mtu}) if route.mtu else None,
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
    if not rule.intact:
        rule = Rule(priority=rule.priority, table=rule.table, family=rule.family)
    return NetlinkRequest(nl.RTM_DELRULE, 0, _rule(rule, protocol))


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
    length = rule.destination.prefixlen if rule.destination is not None else 0
    header = FIB_RULE_HDR.pack(family, length, 0, 0, _short(rule.table), FR_ACT_TO_TBL, 0)
    values = {
        FRA_DST: rule.destination.network_address.packed if rule.destination is not None and length else None,
        FRA_TABLE: rule.table,
        FRA_PRIORITY: rule.priority,
        FRA_PROTOCOL: bytes([protocol]),
        FRA_FWMARK: rule.fwmark if rule.fwmask else None,
        FRA_FWMASK: rule.fwmask or None,
        FRA_IP_PROTO: bytes([rule.protocol]) if rule.protocol else None,
        FRA_SPORT_RANGE: PORT_RANGE.pack(*rule.source_ports) if rule.source_ports is not None else None,
    }
    return header + pack(values)
