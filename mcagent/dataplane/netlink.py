"""The netlink backend: our device's state, addresses, neighbours, routes and policy rules.

Owns what carries our mark and nothing else: the devices it is given by name, routes of our protocol number
in our tables, rules of our protocol number. Routes go to the kernel in bulk (`rtmsg`, `rtsocket`); the few
other changes go through pyroute2, which is imported when the first of them is made (a restart that finds
the world right never needs it).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from mcagent.dataplane import rtmsg
from mcagent.dataplane.netlink_observe import LINK_ALIAS, Observed, observe, read_link
from mcagent.dataplane.rtsocket import Refusal, Request, RtSocket
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Op, Step
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

# What the kernel says when a thing is already as the step wants it: see rtnetlink(7).
_ALREADY_THERE = frozenset({errno.EEXIST})
_ALREADY_GONE = frozenset({errno.ESRCH, errno.ENOENT, errno.ENODEV, errno.EADDRNOTAVAIL})
_SYSCTL = Path("/proc/sys/net/ipv4/conf")


class _RefusedError(Exception):
    """One request was refused; becomes the BackendError of its step."""

    def __init__(self, refusal: Refusal, *, retryable: bool = True) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.retryable = retryable


class NetlinkBackend:
    """Links, addresses, neighbours, routes and rules of the calling thread's network namespace."""

    name = Backend.NETLINK

    def __init__(self, *, route_tables: Sequence[int], route_protocol: int, devices: Sequence[str]) -> None:
        """Remember what is ours; nothing is opened before the first call.

        `route_tables` and `route_protocol` are numbers of rtnetlink(7) that nobody else on the Node uses;
        `devices` the names of devices that are ours alone.
        """
        self._tables = tuple(route_tables)
        self._protocol = route_protocol
        self._devices = tuple(devices)
        self._strays: Mapping[ResourceKey, tuple[Request, ...]] = {}
        self._socket: RtSocket | None = None

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return what of ours exists. Raises BackendError when the kernel cannot be asked."""
        return self._observe().resources

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so, in order; runs of routes go in bulk. One refusal does not stop the rest."""
        done: list[Step] = []
        failed: list[tuple[Step, BackendError]] = []
        with self._open() as socket:
            writer = _Writer(socket, self._protocol)
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
            seen = observe(socket, tables=self._tables, protocol=self._protocol, devices=self._devices)
        self._strays = seen.strays
        return seen

    @contextmanager
    def _open(self) -> Iterator[RtSocket]:
        """Lend the socket; one that failed is not used again."""
        if self._socket is None:
            self._socket = RtSocket()
        try:
            yield self._socket
        except BackendError:
            self.close()
            raise

    def _others(self, writer: _Writer, socket: RtSocket, steps: Sequence[Step]) -> list[_RefusedError | None]:
        outcome: list[_RefusedError | None] = []
        for step in steps:
            try:
                self._check_ours(step)
                writer.write(step)
                _raise_first(socket.request(self._strays.get(step.key, ())), _ALREADY_GONE)
            except _RefusedError as refused:
                outcome.append(refused)
            else:
                outcome.append(None)
        return outcome

    def _routes(self, socket: RtSocket, steps: Sequence[Step]) -> list[_RefusedError | None]:
        indexes: dict[str, int] = {}
        outcome: list[_RefusedError | None] = []
        requests: list[Request] = []
        owners: list[int] = []  # the step of each request
        for place, step in enumerate(steps):
            outcome.append(None)
            try:
                self._check_ours(step)
                request = self._route_request(socket, step, indexes)
            except _RefusedError as refused:
                outcome[place] = refused
                continue
            for one in (request, *self._strays.get(step.key, ())):
                requests.append(one)
                owners.append(place)
        for place, request, refusal in zip(owners, requests, socket.request(requests), strict=True):
            fine = _ALREADY_GONE if request.type == rtmsg.RTM_DELROUTE else _ALREADY_THERE
            if refusal is not None and refusal.errno not in fine:
                outcome[place] = _RefusedError(refusal)
        return outcome

    def _route_request(self, socket: RtSocket, step: Step, indexes: dict[str, int]) -> Request:
        route = step.new or step.old
        assert isinstance(route, Route)
        if step.new is None:
            # Destination, table and protocol say which one; its device may be gone already.
            payload = rtmsg.route_payload(
                table=route.table,
                protocol=self._protocol,
                destination=route.destination,
                kind=rtmsg.RTN_UNSPEC,
            )
            return Request(rtmsg.RTM_DELROUTE, 0, payload)
        if route.via is not None and route.via.version != route.destination.version:
            raise _RefusedError(Refusal(errno.EINVAL, "next hop of the other family"), retryable=False)
        oif = 0
        if route.device:
            if route.device not in indexes:
                indexes[route.device] = _index(socket, route.device)
            oif = indexes[route.device]
        payload = rtmsg.route_payload(
            table=route.table,
            protocol=self._protocol,
            destination=route.destination,
            kind=rtmsg.RTN_THROW if route.type is RouteType.THROW else rtmsg.RTN_UNICAST,
            oif=oif,
            gateway=route.via,
            source=route.source,
        )
        # An addition replaces too: a leftover of another protocol in our own table must not stay in the way.
        return Request(rtmsg.RTM_NEWROUTE, rtmsg.NLM_F_CREATE | rtmsg.NLM_F_REPLACE, payload)

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
            raise _RefusedError(Refusal(errno.EPERM, foreign), retryable=False)


class _Writer:
    """Changes of links, addresses, neighbours and rules through pyroute2, opened for one `apply`."""

    def __init__(self, socket: RtSocket, protocol: int) -> None:
        self._socket = socket
        self._protocol = protocol

    def write(self, step: Step) -> None:
        """Make one step so; raises _RefusedError."""
        new, old = step.new, step.old
        if isinstance(new, Link):
            self._configure(new)
        elif isinstance(old, Link) and step.op is Op.DELETE:
            self._call("link", "set", _ALREADY_GONE, ifname=old.name, state="down", ifalias="")
        elif isinstance(new, LinkAddress):
            # Link scope keeps the kernel from choosing a link-local address as source elsewhere.
            scope = rtmsg.RT_SCOPE_LINK if new.address.is_link_local else rtmsg.RT_SCOPE_UNIVERSE
            self._address("add", new, _ALREADY_THERE, scope=scope)
        elif isinstance(old, LinkAddress):
            self._address("del", old, _ALREADY_GONE)
        elif isinstance(new, Neighbour):
            self._neighbour("replace", new, _ALREADY_THERE, lladdr=new.mac, state="permanent")
        elif isinstance(old, Neighbour):
            self._neighbour("del", old, _ALREADY_GONE)
        else:
            if isinstance(new, Rule):
                self._rule("add", new, _ALREADY_THERE)
            if isinstance(old, Rule) and (new is None or old.intact):
                self._rule("del", old, _ALREADY_GONE)

    def _configure(self, link: Link) -> None:
        index = _index(self._socket, link.name)
        state = "up" if link.up else "down"
        self._call("link", "set", frozenset(), index=index, mtu=link.mtu, ifalias=LINK_ALIAS, state=state)
        switches = {
            rtmsg.IPV4_DEVCONF_RP_FILTER: link.rp_filter,
            rtmsg.IPV4_DEVCONF_FORWARDING: int(link.forwarding),
        }
        request = Request(rtmsg.RTM_SETLINK, 0, rtmsg.link_ipv4_payload(index, switches))
        refusal = self._socket.request([request])[0]
        if refusal is not None:
            self._write_sysctls(link, refusal)
        found = read_link(self._socket, link.name)
        if found is None:
            raise _RefusedError(Refusal(errno.ENODEV))
        for what, wanted, value in (
            ("MTU", link.mtu, found.mtu),
            ("up", link.up, found.up),
            ("rp_filter", link.rp_filter, found.rp_filter),
            ("forwarding", link.forwarding, found.forwarding),
        ):
            if wanted != value:
                raise _RefusedError(Refusal(errno.EINVAL, f"{what} stays {value}, {wanted} was asked for"))

    def _write_sysctls(self, link: Link, refusal: Refusal) -> None:
        """Set by /proc/sys what netlink refused."""
        try:
            (_SYSCTL / link.name / "rp_filter").write_text(str(link.rp_filter))
            (_SYSCTL / link.name / "forwarding").write_text(str(int(link.forwarding)))
        except OSError as error:
            raise _RefusedError(
                Refusal(refusal.errno, f"{refusal.message}; {error.filename}: {error.strerror}".lstrip("; "))
            ) from None

    def _address(self, command: str, address: LinkAddress, fine: frozenset[int], **more: object) -> None:
        index = _index(self._socket, address.device, gone=command == "del")
        if index:
            self._call(
                "addr",
                command,
                fine,
                index=index,
                address=str(address.address),
                prefixlen=address.prefixlen,
                **more,
            )

    def _neighbour(self, command: str, entry: Neighbour, fine: frozenset[int], **more: object) -> None:
        index = _index(self._socket, entry.device, gone=command == "del")
        if index:
            self._call("neigh", command, fine, ifindex=index, dst=str(entry.address), **more)

    def _rule(self, command: str, rule: Rule, fine: frozenset[int]) -> None:
        # Of one that is not intact, whatever has its priority, table and protocol goes.
        marked = rule.fwmask and rule.intact
        mark = {"fwmark": rule.fwmark, "fwmask": rule.fwmask} if marked else {}
        self._call(
            "rule",
            command,
            fine,
            priority=rule.priority,
            table=rule.table,
            family=rtmsg.AF_INET if rule.family == 4 else rtmsg.AF_INET6,
            FRA_PROTOCOL=self._protocol,
            **mark,
        )

    def _call(self, method: str, command: str, fine: frozenset[int], **arguments: object) -> None:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            # A socket for each call: pyroute2's are bound to one thread, and one that failed stays so.
            with IPRoute() as route:
                getattr(route, method)(command, **arguments)
        except NetlinkError as error:  # not an OSError
            if error.code not in fine:
                raise _RefusedError(Refusal(error.code)) from None
        except OSError as error:
            if error.errno not in fine:
                raise _RefusedError(Refusal(error.errno or errno.EIO)) from None


def _index(socket: RtSocket, device: str, *, gone: bool = False) -> int:
    """Return a device's index; 0 for one that does not exist when `gone`, else _RefusedError."""
    link = read_link(socket, device)
    if link is not None:
        return link.index
    if gone:
        return 0
    raise _RefusedError(Refusal(errno.ENODEV, device))


def _raise_first(refusals: Sequence[Refusal | None], fine: frozenset[int]) -> None:
    for refusal in refusals:
        if refusal is not None and refusal.errno not in fine:
            raise _RefusedError(refusal)


def _error(step: Step, error: _RefusedError) -> BackendError:
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
