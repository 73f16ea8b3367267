"""The kernel's routes, rules and switches as the doctor sees them. Lookups are the kernel's own (RTM_GETROUTE)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path

from mcagent.core.doctor.observed import KernelSeen, RouteSeen, RuleSeen
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink.connection import NetlinkRefusal, NetlinkSocket, attributes, number, pack
from mcagent.dataplane.netlink.links import read_addresses, read_link, read_links
from mcagent.dataplane.netlink.routes import (
    FIB_RULE_HDR,
    RTA_DST,
    RTA_OIF,
    RTA_TABLE,
    RTMSG,
    RTN_UNICAST,
    parse_rule,
    read_routes,
)
from mcagent.model.config import Config
from mcagent.model.errors import BackendError
from mcagent.model.net import Address, Network

MOST_ROUTES = 256  # networks whose lookup is tried
_LOOKUP_TABLE = 0x1000  # RTM_F_LOOKUP_TABLE: say which table it was (linux/rtnetlink.h)
_SYSCTL = Path("/proc/sys/net/ipv4")
_NETSTAT = Path("/proc/thread-self/net/netstat")  # of this thread's namespace; /proc/net is the process'


def see_kernel(
    config: Config, peers: Iterable[Address], own: Address | None, wanted_mtu: Callable[[int], int]
) -> KernelSeen:
    """Look at the calling thread's namespace. `peers`: where tunnels lead; `own`: this Node's address, if known.

    `wanted_mtu`: what the host port may have, by the uplink's MTU. Raises nothing.
    """
    try:
        with closing(NetlinkSocket()) as netlink:
            return _see(netlink, config, tuple(peers), own, wanted_mtu)
    except BackendError as error:
        return KernelSeen(error=str(error))


def _see(
    netlink: NetlinkSocket,
    config: Config,
    peers: tuple[Address, ...],
    own: Address | None,
    wanted_mtu: Callable[[int], int],
) -> KernelSeen:
    names = {link.index: link.state.name for link in read_links(netlink)}
    host = read_link(netlink, config.host_port)
    backs = tuple((peer, names.get(_lookup(netlink, peer)[0], "")) for peer in peers)
    uplink = _uplink(netlink, own) or next((index for peer in peers if (index := _lookup(netlink, peer)[0])), 0)
    link = read_link(netlink, index=uplink) if uplink else None
    ours, rules = _rules(netlink, config)
    return KernelSeen(
        kernel_datapath=kernel_datapath_exists(),
        host_mtu=host.state.mtu if host is not None else 0,
        wanted_mtu=wanted_mtu(link.state.mtu) if link is not None else 0,
        uplink=link.state.name if link is not None else "",
        uplink_mtu=link.state.mtu if link is not None else 0,
        uplink_strict=link is not None and max(_switch("all", "rp_filter"), link.state.rp_filter) == 1,
        ip_forward=_read(_SYSCTL / "ip_forward") != "0",
        routes=tuple(_routes(netlink, config, names)),
        our_rules=ours,
        rules=rules,
        backs=backs,
    )


def _uplink(netlink: NetlinkSocket, own: Address | None) -> int:
    return next((one.index for one in read_addresses(netlink) if own is not None and one.address == own), 0)


def _lookup(netlink: NetlinkSocket, address: Address) -> tuple[int, int]:
    """Return device and table by which the kernel would send to an address; 0, 0 where it would not."""
    length = 8 * len(address.packed)
    header = RTMSG.pack(nl.family(address), length, 0, 0, 0, 0, 0, 0, _LOOKUP_TABLE)
    answer = netlink.get(nl.RTM_GETROUTE, header + pack({RTA_DST: address.packed}))
    if isinstance(answer, NetlinkRefusal):
        return 0, 0
    found = attributes(answer, RTMSG.size)
    return number(found.get(RTA_OIF)), number(found.get(RTA_TABLE))


def _routes(netlink: NetlinkSocket, config: Config, names: dict[int, str]) -> Iterator[RouteSeen]:
    """Yield the lookup of an address in each network that our table leads to the host port."""
    found = [
        route
        for route in read_routes(netlink, config.route_table, config.route_protocol)
        if route.type == RTN_UNICAST and names.get(route.oif) == config.host_port
    ]
    for route in found[:MOST_ROUTES]:
        address = _inside(route.destination)
        device, table = _lookup(netlink, address)
        yield RouteSeen(destination=route.destination, address=address, device=names.get(device, ""), table=table)


def _inside(network: Network) -> Address:
    """Return an address of the network that is likely no tunnel endpoint."""
    return ip_address(
        int(network.network_address) + (network.num_addresses - 1) // 2 + (network.num_addresses > 1)
    )


def _rules(netlink: NetlinkSocket, config: Config) -> tuple[int, tuple[RuleSeen, ...]]:
    """Return how many rules are ours, and those of others that have a mark."""
    ours, others = 0, []
    for body in netlink.dump(nl.RTM_GETRULE, FIB_RULE_HDR.pack(nl.AF_INET, 0, 0, 0, 0, 0, 0)):
        parsed = parse_rule(body)
        if parsed is None:
            continue
        protocol, rule = parsed
        if protocol == config.route_protocol:
            ours += 1
        elif rule.fwmask:
            others.append(
                RuleSeen(priority=rule.priority, table=rule.table, fwmark=rule.fwmark, fwmask=rule.fwmask)
            )
    return ours, tuple(others)


def reverse_path_drops() -> int:
    """Return how many packets reverse path filters have dropped (TcpExt IPReversePathFilter); 0 if nobody says."""
    lines = [line.split() for line in _read(_NETSTAT).splitlines() if line.startswith("TcpExt:")]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        return 0
    value = dict(zip(*lines, strict=True)).get("IPReversePathFilter", "0")
    return int(value) if value.isdecimal() else 0


def _switch(device: str, name: str) -> int:
    text = _read(_SYSCTL / "conf" / device / name)
    return int(text) if text.isdecimal() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def own_address(towards: Iterable[Address]) -> Address | None:
    """Return the address that this Node would send from, to the first of these to which it has a way."""
    for address in towards:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            try:
                one.connect((str(address), 9))  # sends nothing
            except OSError:
                continue
            return ip_address(one.getsockname()[0])
    return None
