"""What the Node itself says: addresses, connected networks, the uplink's MTU, the kernel's datapath; and what it
cannot do without on other networks: its resolvers and its default gateways.

Reads only. Which of it matters is core's business; devices of ours are left out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from mcagent.dataplane.netlink.connection import RTM_GETROUTE, NetlinkSocket, Refusal, attribute, family, pack
from mcagent.dataplane.netlink.links import RawAddress, read_addresses, read_link
from mcagent.dataplane.netlink.routes import (
    RT_TABLE_MAIN,
    RTA_DST,
    RTMSG,
    RTN_UNICAST,
    RTPROT_KERNEL,
    RawRoute,
    default_or_connected,
    next_hops,
    parse_route,
    read_routes,
)
from mcagent.model.config import Config, DatapathChoice
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address, Network, network_key, parse_address

# linux/genetlink.h, linux/openvswitch.h
NETLINK_GENERIC = 16
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME = 16, 3, 2
OVS_DATAPATH_FAMILY = "ovs_datapath"

# kube-proxy in IPVS mode holds every ClusterIP on this device (proxier.go, DefaultDummyDevice): they are no
# addresses of the Node, and change with every Service.
SERVICE_DEVICE = "kube-ipvs0"

# IFLA_INFO_KIND of the local port of a bridge on the userspace datapath (lib/netdev-linux.c: a tap device)
USERSPACE_PORT = "tun"

DEFAULT_MTU = 1500

# systemd-resolved(8): behind its stub (127.0.0.53 in resolv.conf) are those that it was given
RESOLVED = Path("/run/systemd/resolve/resolv.conf")
RESOLV_CONF_MAX = 1 << 16  # bytes that are read of each


def observe_facts(
    config: Config, node_ip_hint: Address | None, ofports: Mapping[str, int], resolv_conf: str = ""
) -> Facts:
    """Read the facts of the calling thread's network namespace.

    `node_ip_hint` is the Node's InternalIP as the API says it, which tells the uplink; without it, or when no
    device has it (an address translated outside of the Node), the device of the default route is taken.
    `ofports` (from OVSDB) is passed through. `resolv_conf` is the file with the Node's resolvers, "" for none.
    Raises BackendError when the kernel cannot be asked.
    """
    with closing(NetlinkSocket()) as netlink:
        ignored = _ignored(netlink, config)
        addresses = [one for one in read_addresses(netlink) if one.index not in ignored]
        routes = list(read_routes(netlink, RT_TABLE_MAIN, wanted=default_or_connected))
        defaults = [route for route in routes if not route.destination.prefixlen]
        uplink = _uplink(addresses, [route for route in defaults if route.oif not in ignored], node_ip_hint)
        link = read_link(netlink, index=uplink) if uplink else None
    datapath = _datapath(config)
    outside = datapath is DatapathType.NETDEV and link is not None and link.kind != USERSPACE_PORT
    return Facts(
        datapath=datapath,
        uplink_outside=link.state.name if link is not None and outside else "",
        uplink_mtu=link.state.mtu if link is not None else DEFAULT_MTU,
        addresses=_usable(one.address for one in addresses),
        connected=_connected(route for route in routes if route.oif not in ignored),
        resolvers=read_resolvers(resolv_conf),
        default_gateways=_usable(hop for route in defaults for hop in next_hops(route)),
        ofports=dict(ofports),
    )


def read_resolvers(resolv_conf: str) -> tuple[Address, ...]:
    """Return the resolvers of a resolv.conf(5) and those behind systemd-resolved, sorted; "" means none.

    A file that cannot be read names none, and so does a line that makes no sense.
    """
    found: set[Address] = set()
    for path in (Path(resolv_conf), RESOLVED) if resolv_conf else ():
        with suppress(OSError), path.open("rb") as file:
            for line in file.read(RESOLV_CONF_MAX).decode(errors="replace").splitlines():
                words = line.split()
                if len(words) > 1 and words[0] == "nameserver":
                    with suppress(ValueError):
                        found.add(parse_address(words[1].partition("%")[0]))
    return _usable(found)


@cache
def kernel_datapath_exists() -> bool:
    """Tell whether the kernel has Open vSwitch's datapath.

    Asking for its generic netlink family makes the kernel load the module by itself where there is one
    (net/netlink/genetlink.c, ctrl_getfamily: request_module). Asked once in a process: a bridge must not change
    its datapath under way. Raises BackendError without a socket.
    """
    name = attribute(CTRL_ATTR_FAMILY_NAME, OVS_DATAPATH_FAMILY.encode() + b"\0")
    with closing(NetlinkSocket(NETLINK_GENERIC)) as generic:
        answer = generic.get(GENL_ID_CTRL, bytes((CTRL_CMD_GETFAMILY, 1, 0, 0)) + name)
    return not isinstance(answer, Refusal)


def _datapath(config: Config) -> DatapathType:
    if config.datapath is DatapathChoice.AUTO:
        return DatapathType.SYSTEM if kernel_datapath_exists() else DatapathType.NETDEV
    return DatapathType(config.datapath.value)


def _ignored(netlink: NetlinkSocket, config: Config) -> frozenset[int]:
    names = (config.bridge, config.host_port, config.wireguard_device, SERVICE_DEVICE, "ovs-system", "ovs-netdev")
    links = (read_link(netlink, name) for name in names)
    return frozenset(link.index for link in links if link is not None)


def _connected(routes: Iterable[RawRoute]) -> tuple[Network, ...]:
    """Return the networks that the Node is connected to: those that the kernel made a route to, for an address."""
    direct = {
        route.destination
        for route in routes
        if (route.protocol, route.type, route.gateway) == (RTPROT_KERNEL, RTN_UNICAST, None)
    }
    return tuple(sorted((one for one in direct if _routable(one.network_address)), key=network_key))


def _uplink(addresses: Sequence[RawAddress], defaults: Iterable[RawRoute], hint: Address | None) -> int:
    """Return the index of the device that carries tunnels, or 0 if nothing tells which."""
    for one in addresses:
        if hint is not None and one.address == hint:
            return one.index
    by_preference = sorted(defaults, key=lambda route: (route.destination.version, route.metric))
    return next((route.oif for route in by_preference if route.oif), 0)


def _usable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return addresses sorted, without those that nobody could claim anyway."""
    kept = {address for address in addresses if _routable(address) and not address.is_unspecified}
    return tuple(sorted(kept, key=lambda one: (one.version, int(one))))


def _routable(address: Address) -> bool:
    return not (address.is_loopback or address.is_link_local or address.is_multicast)


def leads_to_pod(address: Address, host_port: str) -> bool:
    """Tell whether the kernel hands packets for an address to a device of its own, as it does for Pods here.

    Not so for the Node's own addresses, what is behind a router, and what goes to the bridge. Raises BackendError.
    """
    header = RTMSG.pack(family(address), 8 * len(address.packed), 0, 0, 0, 0, 0, 0, 0)
    with closing(NetlinkSocket()) as netlink:
        answer = netlink.get(RTM_GETROUTE, header + pack({RTA_DST: address.packed}))
        if isinstance(answer, Refusal):
            return False
        route = parse_route(answer)
        link = read_link(netlink, index=route.oif) if route.oif else None
    return (
        route.type == RTN_UNICAST
        and next(next_hops(route), None) is None
        and link is not None
        and link.state.name != host_port
    )
