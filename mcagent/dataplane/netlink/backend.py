"""The netlink backend: our device's state, addresses, neighbours, routes and policy rules.

Owns what carries our mark and nothing else: the devices it is given by name, routes of our protocol number
in our tables, rules of our protocol number.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mcagent.dataplane.netlink.apply import Writer, failure
from mcagent.dataplane.netlink.connection import RTM_DELROUTE, RTM_DELRULE, NetlinkSocket, Refusal, Request
from mcagent.dataplane.netlink.links import (
    LINK_ALIAS,
    RawLink,
    read_addresses,
    read_link,
    read_permanent_neighbours,
)
from mcagent.dataplane.netlink.routes import (
    LAST_METRIC,
    ROUTE_TYPES,
    RTN_UNICAST,
    RTN_UNREACHABLE,
    RawRoute,
    read_routes,
    read_rules,
)
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import (
    Backend,
    Link,
    LinkAddress,
    Neighbour,
    Resource,
    ResourceKey,
    Route,
    RouteType,
    Rule,
)

IPV6_METRIC = 1024  # what the kernel makes of an IPv6 route without a metric (include/net/ip6_route.h)
_BY_NUMBER = {number: kind for kind, number in ROUTE_TYPES.items()}


class NetlinkBackend:
    """Links, addresses, neighbours, routes and rules of the calling thread's network namespace."""

    name = Backend.NETLINK

    def __init__(
        self,
        *,
        route_tables: Sequence[int],
        route_protocol: int,
        devices: Sequence[str],
        route_devices: Sequence[str] = (),
    ) -> None:
        """Remember what is ours; nothing is opened before the first call.

        `route_tables` and `route_protocol` are numbers of rtnetlink(7) that nobody else on the Node uses;
        `devices` the names of devices that are ours alone, `route_devices` those that another backend sets up and
        that our routes may lead to.
        """
        self._tables = tuple(route_tables)
        self._protocol = route_protocol
        self._devices = tuple(devices)
        self._route_devices = tuple(route_devices)
        self._strays: Mapping[ResourceKey, tuple[Request, ...]] = {}
        self._socket: NetlinkSocket | None = None
        self.port = 0  # of the socket that routes are changed through, for who watches events; any thread

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return what of ours exists. Raises BackendError when the kernel cannot be asked.

        What carries our mark and is not as we make it, or is the second of its key, is reported as not intact, so
        that it is replaced or deleted. It goes as a stray then, by its own description, as `ip route flush` does.
        """
        found: dict[ResourceKey, Resource] = {}
        strays: dict[ResourceKey, tuple[Request, ...]] = {}
        with self._open() as socket:
            devices = (*self._route_devices, *self._devices)
            links = {name: link for name in devices if (link := read_link(socket, name)) is not None}
            for name, link in links.items():
                if name in self._devices:
                    found |= {one.key: one for one in _on_device(socket, name, link)}
            names = {link.index: name for name, link in links.items()}
            for one, delete in self._marked(socket, names):
                if one.intact and one.key not in found:
                    found[one.key] = one
                else:
                    found[one.key] = replace(one, intact=False)
                    strays[one.key] = (*strays.get(one.key, ()), delete)
        self._strays = strays
        return found

    def _marked(self, socket: NetlinkSocket, names: Mapping[int, str]) -> Iterator[tuple[Route | Rule, Request]]:
        """Yield routes and rules of our protocol number, each with the request that deletes just this one."""
        for table in self._tables:
            for raw in read_routes(socket, table, self._protocol):
                yield _route(raw, names), Request(RTM_DELROUTE, 0, raw.body)
        for rule, body in read_rules(socket, self._protocol):
            yield rule, Request(RTM_DELRULE, 0, body)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so, in order and in bulk. One refusal does not stop the rest."""
        foreign = {place: why for place, step in enumerate(steps) if (why := self._foreign(step))}
        failed = {
            place: failure(steps[place], Refusal(errno.EPERM, why), retryable=False)
            for place, why in foreign.items()
        }
        possible = {place: step for place, step in enumerate(steps) if place not in foreign}
        with self._open() as socket:
            failed |= Writer(socket, self._protocol, self._strays).write(possible)
        return ApplyResult.of(steps, failed)

    def close(self) -> None:
        """Close the socket; everything programmed stays."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @contextmanager
    def _open(self) -> Iterator[NetlinkSocket]:
        """Lend the socket; one that failed is not used again."""
        if self._socket is None:
            self._socket = NetlinkSocket()
            self.port = self._socket.port
        try:
            yield self._socket
        except BackendError:
            self.close()
            raise

    def _foreign(self, step: Step) -> str:
        """Return what of a step is not ours, or "": a mistake above must not reach a foreign object."""
        match step.resource:
            case Link(name=device) | LinkAddress(device=device) | Neighbour(device=device):
                return "" if device in self._devices else f"{device} is not a device of ours"
            case Route(table=table) | Rule(table=table):
                return "" if table in self._tables else f"table {table} is not ours"
            case other:
                return f"{type(other).__name__} is not a resource of netlink"


def _on_device(socket: NetlinkSocket, name: str, link: RawLink) -> Iterator[Resource]:
    """Yield what a device of ours has; without its state where somebody else configured it."""
    if link.alias == LINK_ALIAS:
        yield link.state
    for one in read_addresses(socket, link.index):
        if one.address.version == 4 or not one.address.is_link_local:  # those of IPv6 are the kernel's own
            yield LinkAddress(device=name, address=one.address, prefixlen=one.prefixlen)
    for address, mac in read_permanent_neighbours(socket, link.index):
        yield Neighbour(device=name, address=address, mac=mac)


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
