"""What this Node cannot do without on other networks: its resolvers and its default gateways. Reads only."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import ip_address
from itertools import islice
from pathlib import Path

from mcagent.dataplane.netlink import messages
from mcagent.model.net import Address, parse_address

# systemd-resolved(8): behind its stub (127.0.0.53 in resolv.conf) are those that it has been told
RESOLVED = Path("/run/systemd/resolve/resolv.conf")
MOST_BYTES, MOST_RESOLVERS = 1 << 16, 64
RTA_MULTIPATH, RTA_VIA = 9, 18  # linux/rtnetlink.h
_RTNEXTHOP = struct.Struct("=HBBi")  # struct rtnexthop: length, flags, hops, interface
_VIA_FAMILY = struct.Struct("=H")  # struct rtvia: family, address


def read_resolvers(resolv_conf: str) -> tuple[Address, ...]:
    """Return the resolvers of a resolv.conf(5) and those behind systemd-resolved, sorted; "" means none.

    A file that cannot be read names none, and so does a line that makes no sense.
    """
    if not resolv_conf:
        return ()
    found: set[Address] = set()
    for path in (Path(resolv_conf), RESOLVED):
        try:
            with path.open("rb") as file:
                text = file.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
        lines = (line.split() for line in text.splitlines())
        named = (words[1] for words in lines if len(words) > 1 and words[0] == "nameserver")
        for name in islice(named, MOST_RESOLVERS):
            try:
                found.add(parse_address(name.partition("%")[0]))
            except ValueError:
                continue
    return _usable(found)


def default_gateways(routes: Iterable[bytes]) -> tuple[Address, ...]:
    """Return the next hops of default routes, also of those with several, from RTM_NEWROUTE; sorted."""
    found: set[Address] = set()
    for payload in routes:
        parsed = messages.parse_route(payload)
        if parsed is not None and not parsed.destination.prefixlen and parsed.table == messages.RT_TABLE_MAIN:
            found.update(_hops(payload, messages.RTMSG.size))
    return _usable(found)


def _hops(data: bytes, offset: int) -> Iterable[Address]:
    attributes = messages.attributes(data, offset)
    gateway, via, several = (attributes.get(kind) for kind in (messages.RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH))
    if gateway is not None and len(gateway) in (4, 16):
        yield ip_address(gateway)
    if via is not None and len(via) in (2 + 4, 2 + 16):
        yield ip_address(via[_VIA_FAMILY.size :])
    place = 0
    while several is not None and place + _RTNEXTHOP.size <= len(several):
        length, _, _, _ = _RTNEXTHOP.unpack_from(several, place)
        if length < _RTNEXTHOP.size:
            return
        yield from _hops(several[place : place + length], _RTNEXTHOP.size)
        place += (length + 3) & ~3


def _usable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return them sorted, without those that nobody could claim anyway."""
    kept = (a for a in addresses if not (a.is_loopback or a.is_link_local or a.is_multicast or a.is_unspecified))
    return tuple(sorted(kept, key=lambda one: (one.version, int(one))))
