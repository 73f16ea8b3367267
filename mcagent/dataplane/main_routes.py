"""Reads the Node's main routing table, again and again, and what the facts need of it.

Owns the routes of the last reading: a route that has not changed is not parsed again, and the networks of an
unchanged table are not computed again. A routing daemon may have added thousands, and any change of a route, an
address or a device makes the agent read the facts. Must not know the agent's own devices; they are a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcagent.dataplane.netlink.connection import AF_INET, FAMILIES, NetlinkSocket
from mcagent.dataplane.netlink.routes import (
    RT_TABLE_MAIN,
    RTN_UNICAST,
    RTPROT_KERNEL,
    RawRoute,
    devices,
    dump_routes,
    leads_to_network,
    parse_route,
)
from mcagent.model.net import Address, Network, network_key


@dataclass(frozen=True, slots=True, kw_only=True)
class MainRoutes:
    """The default routes, and the networks of the other routes.

    `connected`: with a route that the kernel added for an address, sorted. `routed`: IPv4 networks with another
    route, sorted. `by_device`: IPv4 networks with more than one address, by the index of the one device to which
    their route leads.
    """

    defaults: tuple[RawRoute, ...]
    connected: tuple[Network, ...]
    routed: tuple[Network, ...]
    by_device: Mapping[int, frozenset[Network]]


@dataclass(frozen=True, slots=True)
class _Reading:
    """The routes of one IP version: their messages, and what follows from them without the ignored devices."""

    bodies: tuple[bytes, ...]
    ignored: frozenset[int]
    routes: MainRoutes


class MainTable:
    """The main routing table of the network namespace in which it is read. Used by one thread at a time."""

    def __init__(self) -> None:
        self._readings: dict[int, _Reading] = {}
        self._parsed: dict[int, dict[bytes, RawRoute]] = {}

    def read(self, netlink: NetlinkSocket, ignored: frozenset[int]) -> MainRoutes:
        """Read the routes; `ignored`: devices whose routes count only if they are default. Raises BackendError."""
        ipv4, ipv6 = (self._read(netlink, family, ignored) for family in FAMILIES)
        return MainRoutes(
            defaults=ipv4.defaults + ipv6.defaults,
            connected=ipv4.connected + ipv6.connected,
            routed=ipv4.routed,
            by_device=ipv4.by_device,
        )

    def _read(self, netlink: NetlinkSocket, family: int, ignored: frozenset[int]) -> MainRoutes:
        bodies = tuple(filter(leads_to_network, dump_routes(netlink, family, RT_TABLE_MAIN)))
        last = self._readings.get(family)
        if last is not None and (last.bodies, last.ignored) == (bodies, ignored):
            return last.routes
        before = self._parsed.get(family, {})
        parsed = self._parsed[family] = {body: before.get(body) or parse_route(body) for body in bodies}
        routes = [route for route in parsed.values() if route.table == RT_TABLE_MAIN]
        reading = _Reading(bodies, ignored, _main_routes(routes, ignored, ipv4=family == AF_INET))
        self._readings[family] = reading
        return reading.routes


def _main_routes(routes: Iterable[RawRoute], ignored: frozenset[int], *, ipv4: bool) -> MainRoutes:
    defaults = tuple(route for route in routes if not route.destination.prefixlen)
    unicast = [
        route
        for route in routes
        if route.type == RTN_UNICAST and route.destination.prefixlen and ignored.isdisjoint(devices(route))
    ]
    connected = {
        route.destination for route in unicast if (route.protocol, route.gateway) == (RTPROT_KERNEL, None)
    }
    routed: set[Network] = set()
    by_device: dict[int, set[Network]] = {}
    for route in unicast if ipv4 else ():
        if route.protocol != RTPROT_KERNEL:
            routed.add(route.destination)
        if route.oif and route.destination.prefixlen < 32:
            by_device.setdefault(route.oif, set()).add(route.destination)
    return MainRoutes(
        defaults=defaults,
        connected=_routable_networks(connected),
        routed=_routable_networks(routed),
        by_device={device: frozenset(networks) for device, networks in by_device.items()},
    )


def _routable_networks(networks: Iterable[Network]) -> tuple[Network, ...]:
    usable = {network for network in networks if routable(network.network_address)}
    return tuple(sorted(usable, key=network_key))


def routable(address: Address) -> bool:
    """Return whether packets to an address may pass a router."""
    return not (address.is_loopback or address.is_link_local or address.is_multicast)
