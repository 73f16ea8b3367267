"""Makes steps so: each becomes requests, and these go to the kernel in bulk.

Owns which requests a step needs, and what the kernel's refusals mean.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from mcagent.dataplane.netlink import links, routes
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal, Request
from mcagent.dataplane.netlink.messages import RTM_DELADDR, RTM_DELNEIGH, RTM_DELROUTE, RTM_DELRULE
from mcagent.model.plan import Step
from mcagent.model.resources import Link, LinkAddress, Neighbour, ResourceKey, Route, Rule

# What the kernel says when a thing is already as the step wants it: see rtnetlink(7).
_ALREADY_THERE = frozenset({errno.EEXIST})
_ALREADY_GONE = frozenset({errno.ESRCH, errno.ENOENT, errno.ENODEV, errno.EADDRNOTAVAIL})
_FINE = dict.fromkeys((RTM_DELADDR, RTM_DELNEIGH, RTM_DELROUTE, RTM_DELRULE), _ALREADY_GONE)


class RefusedError(Exception):
    """The kernel refused a request, or we did; becomes the BackendError of its step."""

    def __init__(self, refusal: Refusal, *, retryable: bool = True) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.retryable = retryable


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

    def write(self, steps: Sequence[Step]) -> list[RefusedError | None]:
        """Make the steps so, in order, and return why each failed. Raises BackendError for the socket.

        What all steps need first is sent first, then what follows for those that were not refused.
        """
        outcome: list[RefusedError | None] = [None] * len(steps)
        first: list[tuple[int, Request]] = []
        following: list[tuple[int, Request]] = []
        for place, step in enumerate(steps):
            try:
                requests = self._requests(step)
            except RefusedError as refused:
                outcome[place] = refused
                continue
            first += [(place, request) for request in requests[:1]]
            following += [(place, request) for request in (*requests[1:], *self._strays.get(step.key, ()))]
        for wave in (first, following):
            sent = [one for one in wave if outcome[one[0]] is None]
            refusals = self._socket.request([request for _, request in sent])
            for (place, request), refusal in zip(sent, refusals, strict=True):
                if refusal is not None and refusal.errno not in _FINE.get(request.type, _ALREADY_THERE):
                    outcome[place] = RefusedError(refusal)
        for place, step in enumerate(steps):
            if isinstance(step.new, Link) and outcome[place] is None:
                outcome[place] = self._differs(step.new)
        return outcome

    def _requests(self, step: Step) -> list[Request]:
        """Return what a step needs, the first thing first. Raises RefusedError."""
        new, old = step.new, step.old
        match new or old:
            case Link(name=name):
                index = self._index(name, gone=new is None)
                if isinstance(new, Link):
                    return [links.configure_link(index, new)]
                return [links.release_link(index)] if index else []
            case LinkAddress(device=device, address=address, prefixlen=length):
                index = self._index(device, gone=new is None)
                change = links.put_address if new is not None else links.delete_address
                return [change(index, address, length)] if index else []
            case Neighbour(device=device, address=address, mac=mac):
                index = self._index(device, gone=new is None)
                if new is not None:
                    return [links.put_neighbour(index, address, mac)]
                return [links.delete_neighbour(index, address)] if index else []
            case Route() as route:
                if new is None:
                    return [routes.delete_route(route, self._protocol)]
                if route.via is not None and route.via.version != route.destination.version:
                    raise RefusedError(Refusal(errno.EINVAL, "next hop of the other family"), retryable=False)
                oif = self._index(route.device) if route.device else 0
                return [routes.put_route(route, self._protocol, oif)]
            case Rule():
                added = [routes.add_rule(new, self._protocol)] if isinstance(new, Rule) else []
                if isinstance(old, Rule) and (new is None or old.intact):  # else it goes as a stray
                    return [*added, routes.delete_rule(old, self._protocol)]
                return added
        raise AssertionError(step)

    def _differs(self, link: Link) -> RefusedError | None:
        """Return what of a device's configuration the kernel took and did not follow."""
        found = links.read_link(self._socket, link.name)
        if found is None:
            return RefusedError(Refusal(errno.ENODEV))
        for what in ("mtu", "up", "rp_filter", "forwarding"):
            wanted, value = getattr(link, what), getattr(found, what)
            if wanted != value:
                return RefusedError(Refusal(errno.EINVAL, f"{what} stays {value}, {wanted} was asked for"))
        return None

    def _index(self, device: str, *, gone: bool = False) -> int:
        """Return a device's index; 0 for one that does not exist when `gone`, else RefusedError."""
        if device not in self._indexes:
            link = links.read_link(self._socket, device)
            self._indexes[device] = link.index if link is not None else 0
        if not self._indexes[device] and not gone:
            raise RefusedError(Refusal(errno.ENODEV, device))
        return self._indexes[device]
