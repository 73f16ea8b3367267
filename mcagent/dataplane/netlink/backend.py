"""The netlink backend: the agent's device with addresses and neighbours, routes and policy rules.

Owns the devices that it is given by name, routes of the agent's protocol number in its tables, and all rules of
this number; other resources are never changed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mcagent.core.plan.render import resource_text
from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink import links, routes
from mcagent.dataplane.netlink.connection import NetlinkRefusal, NetlinkRequest, NetlinkSocket
from mcagent.dataplane.netlink.links import RawLink
from mcagent.dataplane.netlink.routes import LAST_METRIC, ROUTE_TYPES, RTN_UNICAST, RTN_UNREACHABLE, RawRoute
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import (
    Link,
    LinkAddress,
    Neighbour,
    Resource,
    ResourceKey,
    Route,
    RouteType,
    Rule,
)
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step

IPV6_METRIC = 1024  # metric that the kernel gives to an IPv6 route without one (include/net/ip6_route.h)
_BY_NUMBER = {number: kind for kind, number in ROUTE_TYPES.items()}

# Errors that mean that the step's result exists already: see rtnetlink(7).
_ALREADY_EXISTS = frozenset({errno.EEXIST})
_ALREADY_DELETED = frozenset({errno.ESRCH, errno.ENOENT, errno.ENODEV, errno.EADDRNOTAVAIL})
_HARMLESS = dict.fromkeys((nl.RTM_DELADDR, nl.RTM_DELNEIGH, nl.RTM_DELROUTE, nl.RTM_DELRULE), _ALREADY_DELETED)


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
        """Opens no socket before the first call.

        `route_tables` and `route_protocol` are numbers of rtnetlink(7) that no other program on the Node uses.
        `devices` are the names of the agent's devices; `route_devices` those that another backend creates and that
        the agent's routes may use.
        """
        self._tables = tuple(route_tables)
        self._protocol = route_protocol
        self._devices = tuple(devices)
        self._route_devices = tuple(route_devices)
        self._strays: Mapping[ResourceKey, tuple[NetlinkRequest, ...]] = {}
        self._socket: NetlinkSocket | None = None
        self.port = 0  # of the socket that changes routes, for the monitor of events; any thread

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Read the agent's resources. Raises BackendError when the kernel cannot be read.

        A route or rule of the agent's protocol that the agent would not create, or the second one of a key, is
        reported as not intact, so that it is replaced or deleted: as a stray, by its own message, as `ip route
        flush` does.
        """
        resources: dict[ResourceKey, Resource] = {}
        strays: dict[ResourceKey, tuple[NetlinkRequest, ...]] = {}
        with self._open() as socket:
            existing = self._existing_devices(socket)
            for name, link in existing.items():
                if name in self._devices:
                    resources |= {resource.key: resource for resource in _on_device(socket, name, link)}
            names = {link.index: name for name, link in existing.items()}
            for resource, delete in self._tagged(socket, names):
                if resource.intact and resource.key not in resources:
                    resources[resource.key] = resource
                else:
                    resources[resource.key] = replace(resource, intact=False)
                    strays[resource.key] = (*strays.get(resource.key, ()), delete)
        self._strays = strays
        return resources

    def _tagged(
        self, socket: NetlinkSocket, names: Mapping[int, str]
    ) -> Iterator[tuple[Route | Rule, NetlinkRequest]]:
        """Yield routes and rules of the agent's protocol, each with the request that deletes exactly this one."""
        for table in self._tables:
            for raw in routes.read_routes(socket, table, self._protocol):
                yield _route(raw, names), NetlinkRequest(nl.RTM_DELROUTE, 0, raw.body)
        for rule, body in routes.read_rules(socket, self._protocol):
            yield rule, NetlinkRequest(nl.RTM_DELRULE, 0, body)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Carry out the steps, in order and in bulk. A refused step does not stop the others.

        The first request of every step is sent first, then the further ones of steps that were not refused.
        """
        failed: dict[int, BackendError] = {}
        first: list[tuple[int, NetlinkRequest]] = []
        following: list[tuple[int, NetlinkRequest]] = []
        with self._open() as socket:
            existing = self._existing_devices(socket)
            for place, step in enumerate(steps):
                try:
                    requests = self._requests(step, existing)
                except BackendError as error:
                    failed[place] = error
                    continue
                first += [(place, request) for request in requests[:1]]
                following += [(place, request) for request in (*requests[1:], *self._strays.get(step.key, ()))]
            for wave in (first, following):
                sent = [item for item in wave if item[0] not in failed]
                refusals = socket.request([request for _, request in sent])
                for (place, request), refusal in zip(sent, refusals, strict=True):
                    if refusal is not None and refusal.errno not in _HARMLESS.get(request.type, _ALREADY_EXISTS):
                        failed[place] = _failure(steps[place], refusal)
            for place, step in enumerate(steps):
                if isinstance(step.new, Link) and place not in failed and (refusal := _differs(socket, step.new)):
                    failed[place] = _failure(step, refusal)
        return ApplyResult.of(steps, failed)

    def close(self) -> None:
        """Close the socket; resources stay."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @contextmanager
    def _open(self) -> Iterator[NetlinkSocket]:
        """Provide the socket; after an error it is closed and opened again later."""
        if self._socket is None:
            self._socket = NetlinkSocket()
            self.port = self._socket.port
        try:
            yield self._socket
        except BackendError:
            self.close()
            raise

    def _foreign(self, step: Step) -> str:
        """Return why a step is outside of the agent's resources, or "": a guard against wrong plans."""
        match step.resource:
            case Link(name=device) | LinkAddress(device=device) | Neighbour(device=device):
                return "" if device in self._devices else f"{device} is not our device"
            case Rule() if step.new is None:
                return ""  # `observe` knows it by its protocol, also one to a table of another configuration
            case Route(table=table) | Rule(table=table):
                return "" if table in self._tables else f"table {table} is not ours"
            case other:
                return f"{type(other).__name__} is not a netlink resource"

    def _existing_devices(self, socket: NetlinkSocket) -> dict[str, RawLink]:
        """Read the devices that exist, of the agent's and of those that its routes may use."""
        devices = (*self._route_devices, *self._devices)
        return {name: link for name in devices if (link := links.read_link(socket, name)) is not None}

    def _requests(self, step: Step, existing: Mapping[str, RawLink]) -> list[NetlinkRequest]:
        """Make the requests of a step, in order. Raises BackendError where it is impossible."""
        if foreign := self._foreign(step):
            raise _failure(step, NetlinkRefusal(errno.EPERM, foreign), retryable=False)
        new, old = step.new, step.old
        if isinstance(new or old, Rule):
            added = [routes.add_rule(new, self._protocol)] if isinstance(new, Rule) else []
            if isinstance(old, Rule) and (new is None or old.intact):  # else it is deleted as a stray
                return [*added, routes.delete_rule(old, self._protocol)]
            return added
        if isinstance(old, Route) and new is None:
            return [routes.delete_route(old, self._protocol)]
        device = getattr(new or old, "name" if isinstance(new or old, Link) else "device")
        if device and device not in existing:
            if new is None:
                return []
            raise _failure(step, NetlinkRefusal(errno.ENODEV, device))
        index = existing[device].index if device else 0
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
    """Yield the resources of a device; without its Link if another program configured it, or gave it a master."""
    if link.alias == links.LINK_ALIAS and not link.master:
        yield link.state
    for entry in links.read_addresses(socket, link.index):
        if entry.address.version == 4 or not entry.address.is_link_local:  # IPv6 link-local ones are the kernel's
            yield LinkAddress(device=name, address=entry.address, prefixlen=entry.prefixlen)
    for address, mac in links.read_permanent_neighbours(socket, link.index):
        yield Neighbour(device=name, address=address, mac=mac)


def _route(raw: RawRoute, names: Mapping[int, str]) -> Route:
    """Convert a route; it is not intact with another metric, several paths or a foreign device."""
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
        mtu=raw.mtu,
        intact=raw.plain
        and raw.type in _BY_NUMBER
        and raw.metric == (LAST_METRIC if raw.type == RTN_UNREACHABLE else metric)
        and (raw.gateway is None or raw.onlink)
        and (not unicast or device != ""),
    )


def _differs(socket: NetlinkSocket, link: Link) -> NetlinkRefusal | None:
    """Return a setting that the kernel accepted for a device without applying it; None: there is none."""
    actual = links.read_link(socket, link.name)
    if actual is None:
        return NetlinkRefusal(errno.ENODEV)
    for setting in ("mtu", "up", "rp_filter", "forwarding"):
        desired, value = getattr(link, setting), getattr(actual.state, setting)
        if desired != value:
            return NetlinkRefusal(errno.EINVAL, f"{setting} stays {value}, {desired} was asked for")
    return None


def _failure(step: Step, refusal: NetlinkRefusal, *, retryable: bool = True) -> BackendError:
    """Make the error of a step that the kernel or this backend refused."""
    return BackendError(Backend.NETLINK, step.op, resource_text(step.resource), str(refusal), retryable=retryable)
