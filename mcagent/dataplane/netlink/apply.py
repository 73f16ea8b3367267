"""Makes steps so: each becomes requests, and these go to the kernel in bulk.

Owns which requests a step needs, and what the kernel's refusals mean.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from mcagent.core.plan.render import resource_text
from mcagent.dataplane.netlink import links, routes
from mcagent.dataplane.netlink.connection import (
    RTM_DELADDR,
    RTM_DELNEIGH,
    RTM_DELROUTE,
    RTM_DELRULE,
    NetlinkSocket,
    Refusal,
    Request,
)
from mcagent.model.errors import BackendError
from mcagent.model.plan import Step
from mcagent.model.resources import Backend, Link, LinkAddress, Neighbour, ResourceKey, Route, Rule

# What the kernel says when a thing is already as the step wants it: see rtnetlink(7).
_ALREADY_THERE = frozenset({errno.EEXIST})
_ALREADY_GONE = frozenset({errno.ESRCH, errno.ENOENT, errno.ENODEV, errno.EADDRNOTAVAIL})
_FINE = dict.fromkeys((RTM_DELADDR, RTM_DELNEIGH, RTM_DELROUTE, RTM_DELRULE), _ALREADY_GONE)


def failure(step: Step, refusal: Refusal, *, retryable: bool = True) -> BackendError:
    """Return the error of a step that the kernel refused, or we did."""
    return BackendError(Backend.NETLINK, step.op, resource_text(step.resource), str(refusal), retryable=retryable)


class Writer:
    """Makes steps so, for one `apply`: device indexes are asked once."""

    def __init__(
        self, socket: NetlinkSocket, protocol: int, strays: Mapping[ResourceKey, tuple[Request, ...]]
    ) -> None:
        """`strays`: what else has to go with a resource, as `observe` found it."""
        self._socket = socket
        self._protocol = protocol
        self._strays = strays
        self._indexes: dict[str, int] = {}

    def write(self, steps: Mapping[int, Step]) -> dict[int, BackendError]:
        """Make the steps so, given by place, in order; return the errors of those that failed, by place.

        What all steps need first is sent first, then what follows for those that were not refused. Raises
        BackendError for the socket.
        """
        failed: dict[int, BackendError] = {}
        first: list[tuple[int, Request]] = []
        following: list[tuple[int, Request]] = []
        for place, step in steps.items():
            requests = self._requests(step)
            if isinstance(requests, Refusal):
                failed[place] = failure(step, requests)
                continue
            first += [(place, request) for request in requests[:1]]
            following += [(place, request) for request in (*requests[1:], *self._strays.get(step.key, ()))]
        for wave in (first, following):
            sent = [one for one in wave if one[0] not in failed]
            refusals = self._socket.request([request for _, request in sent])
            for (place, request), refusal in zip(sent, refusals, strict=True):
                if refusal is not None and refusal.errno not in _FINE.get(request.type, _ALREADY_THERE):
                    failed[place] = failure(steps[place], refusal)
        for place, step in steps.items():
            if isinstance(step.new, Link) and place not in failed and (why := self._differs(step.new)):
                failed[place] = failure(step, why)
        return failed

    def _requests(self, step: Step) -> list[Request] | Refusal:
        """Return what a step needs, the first thing first; or why it is impossible."""
        new, old = step.new, step.old
        if isinstance(new or old, Rule):
            added = [routes.add_rule(new, self._protocol)] if isinstance(new, Rule) else []
            if isinstance(old, Rule) and (new is None or old.intact):  # else it goes as a stray
                return [*added, routes.delete_rule(old, self._protocol)]
            return added
        if isinstance(old, Route) and new is None:
            return [routes.delete_route(old, self._protocol)]
        device = getattr(new or old, "name" if isinstance(new or old, Link) else "device")
        index = self._index(device)
        if device and not index:
            return [] if new is None else Refusal(errno.ENODEV, device)
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

    def _differs(self, link: Link) -> Refusal | None:
        """Return what of a device's configuration the kernel took and did not follow."""
        found = links.read_link(self._socket, link.name)
        if found is None:
            return Refusal(errno.ENODEV)
        for what in ("mtu", "up", "rp_filter", "forwarding"):
            wanted, value = getattr(link, what), getattr(found.state, what)
            if wanted != value:
                return Refusal(errno.EINVAL, f"{what} stays {value}, {wanted} was asked for")
        return None

    def _index(self, device: str) -> int:
        """Return a device's index; 0 for one that does not exist, and for "" (none)."""
        if device and device not in self._indexes:
            link = links.read_link(self._socket, device)
            self._indexes[device] = link.index if link is not None else 0
        return self._indexes.get(device, 0)
