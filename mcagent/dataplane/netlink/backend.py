"""The netlink backend: our device's state, addresses, neighbours, routes and policy rules.

Owns what carries our mark and nothing else: the devices it is given by name, routes of our protocol number
in our tables, rules of our protocol number.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mcagent.core.plan.render import resource_text
from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink import links, routes
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal, Request
from mcagent.dataplane.netlink.links import RawLink
from mcagent.dataplane.netlink.routes import LAST_METRIC, ROUTE_TYPES, RTN_UNICAST, RTN_UNREACHABLE, RawRoute
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

# What the kernel says when a thing is already as the step wants it: see rtnetlink(7).
_ALREADY_THERE = frozenset({errno.EEXIST})
_ALREADY_GONE = frozenset({errno.ESRCH, errno.ENOENT, errno.ENODEV, errno.EADDRNOTAVAIL})
_FINE = dict.fromkeys((nl.RTM_DELADDR, nl.RTM_DELNEIGH, nl.RTM_DELROUTE, nl.RTM_DELRULE), _ALREADY_GONE)


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
            known = self._known(socket)
            for name, link in known.items():
                if name in self._devices:
                    found |= {one.key: one for one in _on_device(socket, name, link)}
            names = {link.index: name for name, link in known.items()}
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
            for raw in routes.read_routes(socket, table, self._protocol):
                yield _route(raw, names), Request(nl.RTM_DELROUTE, 0, raw.body)
        for rule, body in routes.read_rules(socket, self._protocol):
            yield rule, Request(nl.RTM_DELRULE, 0, body)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so, in order and in bulk. One refusal does not stop the rest.

        What all steps need first is sent first, then what follows for those that were not refused.
        """
        failed: dict[int, BackendError] = {}
        first: list[tuple[int, Request]] = []
        following: list[tuple[int, Request]] = []
        with self._open() as socket:
            known = self._known(socket)
            for place, step in enumerate(steps):
                try:
                    requests = self._requests(step, known)
                except BackendError as error:
                    failed[place] = error
                    continue
                first += [(place, request) for request in requests[:1]]
                following += [(place, request) for request in (*requests[1:], *self._strays.get(step.key, ()))]
            for wave in (first, following):
                sent = [one for one in wave if one[0] not in failed]
                refusals = socket.request([request for _, request in sent])
                for (place, request), refusal in zip(sent, refusals, strict=True):
                    if refusal is not None and refusal.errno not in _FINE.get(request.type, _ALREADY_THERE):
                        failed[place] = _failure(steps[place], refusal)
            for place, step in enumerate(steps):
                if isinstance(step.new, Link) and place not in failed and (refusal := _differs(socket, step.new)):
                    failed[place] = _failure(step, refusal)
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
                return "" if device in self._devices else f"{device} is not our device"
            case Route(table=table) | Rule(table=table):
                return "" if table in self._tables else f"table {table} is not ours"
            case other:
                return f"{type(other).__name__} is not a netlink resource"

    def _known(self, socket: NetlinkSocket) -> dict[str, RawLink]:
        """Return those devices that exist of ours, and of those that our routes may lead to."""
        devices = (*self._route_devices, *self._devices)
        return {name: link for name in devices if (link := links.read_link(socket, name)) is not None}

    def _requests(self, step: Step, known: Mapping[str, RawLink]) -> list[Request]:
        """Return what a step needs, the first thing first. Raises BackendError where it is impossible."""
        if foreign := self._foreign(step):
            raise _failure(step, Refusal(errno.EPERM, foreign), retryable=False)
        new, old = step.new, step.old
        if isinstance(new or old, Rule):
            added = [routes.add_rule(new, self._protocol)] if isinstance(new, Rule) else []
            if isinstance(old, Rule) and (new is None or old.intact):  # else it goes as a stray
                return [*added, routes.delete_rule(old, self._protocol)]
            return added
        if isinstance(old, Route) and new is None:
            return [routes.delete_route(old, self._protocol)]
        device = getattr(new or old, "name" if isinstance(new or old, Link) else "device")
        if device and device not in known:
            if new is None:
                return []
            raise _failure(step, Refusal(errno.ENODEV, device))
        index = known[device].index if device else 0
        match new, old:
            case Route(), _:
                return [routes.put_route(new, self._protocol, index)]
            case Link(), _:
                return [links.configure_link(index, new)]
            case None, Link():
                return [links.release_link(index)]
            case LinkAddress(address=address, prefixlen=length), _:
                return [links.put_address(index, address, length)]
            case None, LinkAddress(address=address, prefixlen=length):
                return [links.delete_address(index, address, length)]
            case Neighbour(address=address, mac=mac), _:
                return [links.put_neighbour(index, address, mac)]
            case None, Neighbour(address=address):
                return [links.delete_neighbour(index, address)]
        raise AssertionError(step)


def _on_device(socket: NetlinkSocket, name: str, link: RawLink) -> Iterator[Resource]:
    """Yield what a device of ours has; without its state where somebody else configured it."""
    if link.alias == links.LINK_ALIAS:
        yield link.state
    for one in links.read_addresses(socket, link.index):
        if one.address.version == 4 or not one.address.is_link_local:  # those of IPv6 are the kernel's own
            yield LinkAddress(device=name, address=one.address, prefixlen=one.prefixlen)
    for address, mac in links.read_permanent_neighbours(socket, link.index):
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


def _differs(socket: NetlinkSocket, link: Link) -> Refusal | None:
    """Return what of a device's configuration the kernel took and did not follow."""
    found = links.read_link(socket, link.name)
    if found is None:
        return Refusal(errno.ENODEV)
    for what in ("mtu", "up", "rp_filter", "forwarding"):
        wanted, value = getattr(link, what), getattr(found.state, what)
        if wanted != value:
            return Refusal(errno.EINVAL, f"{what} stays {value}, {wanted} was asked for")
    return None


def _failure(step: Step, refusal: Refusal, *, retryable: bool = True) -> BackendError:
    """Return the error of a step that the kernel refused, or we did."""
    return BackendError(Backend.NETLINK, step.op, resource_text(step.resource), str(refusal), retryable=retryable)
