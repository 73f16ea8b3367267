"""The netlink backend: our device's state, addresses, neighbours, routes and policy rules.

Owns what carries our mark and nothing else: the devices it is given by name, routes of our protocol number
in our tables, rules of our protocol number.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mcagent.dataplane.netlink.apply import Writer, failure
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal, Request
from mcagent.dataplane.netlink.observe import observe
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, Link, LinkAddress, Neighbour, Resource, ResourceKey, Route, Rule


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
        with self._open() as socket:
            seen = observe(
                socket,
                tables=self._tables,
                protocol=self._protocol,
                devices=self._devices,
                route_devices=self._route_devices,
            )
        self._strays = seen.strays
        return seen.resources

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
