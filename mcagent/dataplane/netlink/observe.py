"""Which of the kernel's links, addresses, neighbours, routes and rules are ours, as resources.

Reads only; the kernel filters what is read where it can, so that a Node with thousands of foreign neighbours and
routes costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcagent.dataplane.netlink.connection import RTM_DELROUTE, RTM_DELRULE, NetlinkSocket, Request
from mcagent.dataplane.netlink.links import LINK_ALIAS, read_addresses, read_link, read_permanent_neighbours
from mcagent.dataplane.netlink.routes import (
    LAST_METRIC,
    ROUTE_TYPES,
    RTN_UNICAST,
    RTN_UNREACHABLE,
    RawRoute,
    read_routes,
    read_rules,
)
from mcagent.model.resources import Link, LinkAddress, Neighbour, Resource, ResourceKey, Route, RouteType, Rule

IPV6_METRIC = 1024  # what the kernel makes of an IPv6 route without a metric (include/net/ip6_route.h)
_BY_NUMBER = {number: kind for kind, number in ROUTE_TYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Resources by key, and under the same keys what else carries our mark but is not as we make it.

    A key with strays is reported as not intact, so that it is replaced or deleted; the requests in
    `strays` take away what a plain replace or delete would leave.
    """

    resources: dict[ResourceKey, Resource] = field(default_factory=dict)
    strays: dict[ResourceKey, tuple[Request, ...]] = field(default_factory=dict)

    def put(self, resource: Resource) -> None:
        """Take note of a resource that is as we make it."""
        self.resources[resource.key] = resource

    def put_route_or_rule(self, found: Route | Rule, delete: Request) -> None:
        """Take note of a route or rule; of one that is not intact, or the second of its key, as a stray.

        A stray is deleted by its own description, as `ip route flush` does.
        """
        key = found.key
        if found.intact and key not in self.resources:
            self.resources[key] = found
        else:
            self.resources[key] = replace(found, intact=False)
            self.strays[key] = (*self.strays.get(key, ()), delete)


def observe(
    socket: NetlinkSocket,
    *,
    tables: Sequence[int],
    protocol: int,
    devices: Sequence[str],
    route_devices: Sequence[str] = (),
) -> Observed:
    """List everything of ours. Raises BackendError when the kernel cannot be asked."""
    seen = Observed()
    names: dict[int, str] = {}
    for device in (*route_devices, *devices):
        link = read_link(socket, device)
        if link is None:
            continue
        names[link.index] = device
        if device not in devices:
            continue
        if link.alias == LINK_ALIAS:
            seen.put(
                Link(
                    name=device,
                    mtu=link.mtu,
                    up=link.up,
                    rp_filter=link.rp_filter,
                    forwarding=link.forwarding,
                )
            )
        for one in read_addresses(socket, link.index):
            if one.address.version == 4 or not one.address.is_link_local:  # those of IPv6 are the kernel's own
                seen.put(LinkAddress(device=device, address=one.address, prefixlen=one.prefixlen))
        for address, mac in read_permanent_neighbours(socket, link.index):
            seen.put(Neighbour(device=device, address=address, mac=mac))
    for table in tables:
        for raw in read_routes(socket, table, protocol):
            seen.put_route_or_rule(_route(raw, names), Request(RTM_DELROUTE, 0, raw.body))
    for rule, body in read_rules(socket, protocol):
        seen.put_route_or_rule(rule, Request(RTM_DELRULE, 0, body))
    return seen


def _route(raw: RawRoute, names: Mapping[int, str]) -> Route:
    """Return a route as a resource: not intact with another metric, several paths or a foreign device."""
    unicast = raw.type == RTN_UNICAST
    device = names.get(raw.oif, "") if unicast else ""  # IPv6 throw routes name the loopback device
    metric = 0 if raw.destination.version == 4 else IPV6_METRIC
    return Route(
        table=raw.table,
        destination=raw.destination,
        type=_BY_NUMBER.get(raw.type, RouteType.UNICAST),
        device=device,
        via=raw.gateway,
        source=raw.source,
        intact=raw.plain
        and raw.type in _BY_NUMBER
        and raw.metric == (LAST_METRIC if raw.type == RTN_UNREACHABLE else metric)
        and (raw.gateway is None or raw.onlink)
        and (not unicast or device != ""),
    )
