"""The netlink backend: our device's state, addresses, neighbours, routes and policy rules.

Owns what carries our mark and nothing else: the devices it is given by name, routes of our protocol number
in our tables, rules of our protocol number. Routes go to the kernel in bulk (`rtmsg`, `rtsocket`), the few
other changes one by one (`netlink_write`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from mcagent.dataplane.netlink import messages
from mcagent.dataplane.netlink.apply import (
    ALREADY_GONE,
    ALREADY_THERE,
    RefusedError,
    Writer,
    device_index,
    raise_first,
)
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal, Request
from mcagent.dataplane.netlink.observe import LAST_METRIC, ROUTE_TYPES, Observed, observe
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
        """Return what of ours exists. Raises BackendError when the kernel cannot be asked."""
        return self._observe().resources

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so, in order; runs of routes go in bulk. One refusal does not stop the rest."""
        done: list[Step] = []
        failed: list[tuple[Step, BackendError]] = []
        with self._open() as socket:
            writer = Writer(socket, self._protocol)
            for routes, run in groupby(steps, key=lambda step: isinstance(step.new or step.old, Route)):
                batch = list(run)
                outcome = self._routes(socket, batch) if routes else self._others(writer, socket, batch)
                for step, error in zip(batch, outcome, strict=True):
                    if error is None:
                        done.append(step)
                    else:
                        failed.append((step, _error(step, error)))
        return ApplyResult(done=tuple(done), failed=tuple(failed))

    def close(self) -> None:
        """Close the socket; everything programmed stays."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _observe(self) -> Observed:
        with self._open() as socket:
            seen = observe(
                socket,
                tables=self._tables,
                protocol=self._protocol,
                devices=self._devices,
                route_devices=self._route_devices,
            )
        self._strays = seen.strays
        return seen

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

    def _others(self, writer: Writer, socket: NetlinkSocket, steps: Sequence[Step]) -> list[RefusedError | None]:
        outcome: list[RefusedError | None] = []
        for step in steps:
            try:
                self._check_ours(step)
                writer.write(step)
                raise_first(socket.request(self._strays.get(step.key, ())), ALREADY_GONE)
            except RefusedError as refused:
                outcome.append(refused)
            else:
                outcome.append(None)
        return outcome

    def _routes(self, socket: NetlinkSocket, steps: Sequence[Step]) -> list[RefusedError | None]:
        indexes: dict[str, int] = {}
        outcome: list[RefusedError | None] = []
        requests: list[Request] = []
        owners: list[int] = []  # the step of each request
        for place, step in enumerate(steps):
            outcome.append(None)
            try:
                self._check_ours(step)
                request = self._route_request(socket, step, indexes)
            except RefusedError as refused:
                outcome[place] = refused
                continue
            for one in (request, *self._strays.get(step.key, ())):
                requests.append(one)
                owners.append(place)
        for place, request, refusal in zip(owners, requests, socket.request(requests), strict=True):
            fine = ALREADY_GONE if request.type == messages.RTM_DELROUTE else ALREADY_THERE
            if refusal is not None and refusal.errno not in fine:
                outcome[place] = RefusedError(refusal)
        return outcome

    def _route_request(self, socket: NetlinkSocket, step: Step, indexes: dict[str, int]) -> Request:
        route = step.new or step.old
        assert isinstance(route, Route)
        if step.new is None:
            # Destination, table, protocol and type say which one; its device may be gone already.
            payload = messages.route_payload(
                table=route.table,
                protocol=self._protocol,
                destination=route.destination,
                kind=ROUTE_TYPES[route.type] if route.intact else messages.RTN_UNSPEC,
                metric=LAST_METRIC if route.type is RouteType.UNREACHABLE else 0,
                delete=True,
            )
            return Request(messages.RTM_DELROUTE, 0, payload)
        if route.via is not None and route.via.version != route.destination.version:
            raise RefusedError(Refusal(errno.EINVAL, "next hop of the other family"), retryable=False)
        oif = 0
        if route.device:
            if route.device not in indexes:
                indexes[route.device] = device_index(socket, route.device)
            oif = indexes[route.device]
        payload = messages.route_payload(
            table=route.table,
            protocol=self._protocol,
            destination=route.destination,
            kind=ROUTE_TYPES[route.type],
            oif=oif,
            gateway=route.via,
            source=route.source,
            metric=LAST_METRIC if route.type is RouteType.UNREACHABLE else 0,
        )
        # An addition replaces too: a leftover of another protocol in our own table must not stay in the way.
        return Request(messages.RTM_NEWROUTE, messages.NLM_F_CREATE | messages.NLM_F_REPLACE, payload)

    def _check_ours(self, step: Step) -> None:
        """Refuse a step outside of what is ours: a mistake above must not reach a foreign object."""
        match step.new or step.old:
            case Link(name=device) | LinkAddress(device=device) | Neighbour(device=device):
                foreign = "" if device in self._devices else f"{device} is not a device of ours"
            case Route(table=table) | Rule(table=table):
                foreign = "" if table in self._tables else f"table {table} is not ours"
            case other:
                foreign = f"{type(other).__name__} is not a resource of netlink"
        if foreign:
            raise RefusedError(Refusal(errno.EPERM, foreign), retryable=False)


def _error(step: Step, error: RefusedError) -> BackendError:
    resource = step.new or step.old
    return BackendError(
        Backend.NETLINK, step.op, describe(resource), str(error.refusal), retryable=error.retryable
    )


def describe(resource: Any) -> str:
    """Name a resource of netlink for people, in the words of ip(8)."""
    match resource:
        case Link(name=name):
            return f"link {name}"
        case LinkAddress(device=device, address=address, prefixlen=length):
            return f"address {address}/{length} dev {device}"
        case Neighbour(device=device, address=address):
            return f"neighbour {address} dev {device}"
        case Route(table=table, destination=destination):
            return f"route {destination} table {table}"
        case Rule(priority=priority, table=table, family=family):
            return f"rule {priority} lookup {table}" + (" (IPv6)" if family == 6 else "")
    return repr(resource)
