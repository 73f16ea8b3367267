"""What of the kernel's links, addresses, neighbours, routes and rules is ours, as resources.

Owns the translation from rtnetlink answers to the values of `mcagent.model.resources`. Reads only; what it
reads is filtered by the kernel where the kernel can, so that a Node with thousands of foreign neighbours
and routes costs nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mcagent.dataplane.netlink import messages
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal, Request
from mcagent.model.errors import BackendError
from mcagent.model.resources import Link, LinkAddress, Neighbour, Resource, ResourceKey, Route, RouteType, Rule

# Written into IFLA_IFALIAS of a device that we configured, so that a device which OVSDB has just created
# anew does not look as if its Link had been applied.
LINK_ALIAS = "mcagent"
IPV6_METRIC = 1024  # what the kernel makes of an IPv6 route without a metric (include/net/ip6_route.h)
LAST_METRIC = 2**32 - 1  # of unreachable routes: any other comes first
ROUTE_TYPES = {
    RouteType.UNICAST: messages.RTN_UNICAST,
    RouteType.THROW: messages.RTN_THROW,
    RouteType.UNREACHABLE: messages.RTN_UNREACHABLE,
}
_BY_NUMBER = {number: kind for kind, number in ROUTE_TYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Resources by key, and under the same keys what else carries our mark but is not as we make it.

    A key with strays is reported as not intact, so that it is replaced or deleted; the requests in
    `strays` take away what a plain replace or delete would leave.
    """

    resources: dict[ResourceKey, Resource] = field(default_factory=dict)
    strays: dict[ResourceKey, tuple[Request, ...]] = field(default_factory=dict)


def read_link(socket: NetlinkSocket, name: str) -> messages.RawLink | None:
    """Return a device by name, or None if there is none. Raises BackendError for any other answer."""
    answer = socket.get(messages.RTM_GETLINK, messages.link_get_payload(name=name))
    if not isinstance(answer, Refusal):
        return messages.parse_link(answer)
    if answer.errno == errno.ENODEV:
        return None
    raise BackendError("netlink", "list", f"link {name}", str(answer))


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
    for device in route_devices:
        link = read_link(socket, device)
        if link is not None:
            names[link.index] = device
    for device in devices:
        link = read_link(socket, device)
        if link is None:
            continue
        names[link.index] = device
        if link.alias == LINK_ALIAS:
            _put(
                seen,
                Link(
                    name=device,
                    mtu=link.mtu,
                    up=link.up,
                    rp_filter=link.rp_filter,
                    forwarding=link.forwarding,
                ),
            )
        for resource in _on_device(socket, device, link.index):
            _put(seen, resource)
    for family in messages.FAMILIES:
        for table in tables:
            payload = messages.route_dump_payload(family, table, protocol)
            for body in socket.dump(messages.RTM_GETROUTE, payload):
                raw = messages.parse_route(body)
                # The kernel filters where it can (from 4.20); older ones list everything.
                if raw is not None and raw.table == table and raw.protocol == protocol:
                    _route(seen, raw, body, names)
        for body in socket.dump(messages.RTM_GETRULE, messages.rule_dump_payload(family)):
            rule = messages.parse_rule(body)
            if rule is not None and rule.protocol == protocol:
                _rule(seen, rule, body)
    return seen


def _put(seen: Observed, resource: Resource) -> None:
    seen.resources[resource.key] = resource


def _on_device(socket: NetlinkSocket, device: str, index: int) -> Iterable[LinkAddress | Neighbour]:
    for family in messages.FAMILIES:
        for body in socket.dump(messages.RTM_GETADDR, messages.address_dump_payload(family, index)):
            address = messages.parse_address(body)
            if address is None or address.index != index:
                continue
            if family == messages.AF_INET6 and address.address.is_link_local:
                continue  # the kernel's own
            yield LinkAddress(device=device, address=address.address, prefixlen=address.prefixlen)
        for body in socket.dump(messages.RTM_GETNEIGH, messages.neighbour_dump_payload(family, index)):
            entry = messages.parse_neighbour(body)
            if entry is not None and entry.index == index and entry.permanent:
                yield Neighbour(device=device, address=entry.address, mac=entry.mac)


def _route(seen: Observed, raw: messages.RawRoute, body: bytes, names: dict[int, str]) -> None:
    unicast = raw.type == messages.RTN_UNICAST
    route = Route(
        table=raw.table,
        destination=raw.destination,
        type=_BY_NUMBER.get(raw.type, RouteType.UNICAST),
        device=names.get(raw.oif, "") if unicast else "",  # IPv6 throw routes name the loopback device
        via=raw.gateway,
        source=raw.source,
    )
    key = route.key
    metric = 0 if raw.destination.version == 4 else IPV6_METRIC
    as_made = (
        raw.plain
        and raw.type in _BY_NUMBER
        and raw.metric == (LAST_METRIC if raw.type == messages.RTN_UNREACHABLE else metric)
        and (raw.gateway is None or raw.onlink)
        and (not unicast or route.device != "")
    )
    if as_made and key not in seen.resources:
        seen.resources[key] = route
        return
    # Of another metric, several paths or another device: deleted by its own description, as `ip route
    # flush` does.
    seen.strays[key] = (*seen.strays.get(key, ()), Request(messages.RTM_DELROUTE, 0, body))
    seen.resources[key] = replace(route, intact=False)


def _rule(seen: Observed, raw: messages.RawRule, body: bytes) -> None:
    family = 4 if raw.family == messages.AF_INET else 6
    rule = Rule(priority=raw.priority, table=raw.table, family=family, fwmark=raw.fwmark, fwmask=raw.fwmask)
    key = rule.key
    if raw.plain and key not in seen.resources:
        seen.resources[key] = rule
        return
    seen.strays[key] = (*seen.strays.get(key, ()), Request(messages.RTM_DELRULE, 0, body))
    seen.resources[key] = replace(rule, intact=False)
