"""Reads the facts of the Node: addresses, connected networks, the uplink's MTU, the kernel's datapath, and the
addresses on other networks that the Node needs: resolvers and default gateways.

Changes nothing and decides nothing. The agent's own devices are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from mcagent.dataplane.main_routes import MainTable, routable
from mcagent.dataplane.netlink.connection import NetlinkRefusal, NetlinkSocket, attribute
from mcagent.dataplane.netlink.links import LINK_ALIAS, RawAddress, read_addresses, read_link
from mcagent.dataplane.netlink.routes import RTN_UNICAST, RawRoute, next_hops, route_to
from mcagent.model.config import Config, DatapathChoice
from mcagent.model.dataplane.facts import POD_DEVICES, SINGLE_DEVICES, DatapathType, Facts
from mcagent.model.dataplane.wireguard import MAX_DEVICES, device_names
from mcagent.model.net import Address, Network, network_key, parse_address

# linux/genetlink.h, linux/openvswitch.h
NETLINK_GENERIC = 16
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME = 16, 3, 2
OVS_DATAPATH_FAMILY = "ovs_datapath"

# kube-proxy in IPVS mode assigns every ClusterIP to this device (proxier.go, DefaultDummyDevice): they are not
# addresses of the Node, and change with every Service.
SERVICE_DEVICE = "kube-ipvs0"

# IFLA_INFO_KIND of the local port of a bridge on the userspace datapath (lib/netdev-linux.c: a tap device)
USERSPACE_PORT = "tun"

FORWARDED_REVERSE_PATH = (
    5,
    19,
)  # Linux: nft_fib takes `fib saddr . iif oif` in the hook forward (nft_fib_validate)

DEFAULT_MTU = 1500

# systemd-resolved(8): the resolvers that its stub (127.0.0.53 in resolv.conf) forwards to
RESOLVED = Path("/run/systemd/resolve/resolv.conf")
RESOLV_CONF_MAX = 1 << 16  # bytes read of each file


def observe_facts(
    config: Config,
    node_ip_hint: Address | None,
    ofports: Mapping[str, int],
    resolv_conf: str = "",
    table: MainTable | None = None,
) -> Facts:
    """Read the facts of the calling thread's network namespace.

    `node_ip_hint` is the Node's InternalIP in the API, whose device is the uplink; without it, or when no device
    has it (the address is translated outside of the Node), the uplink is the device of the default route.
    `ofports` (from OVSDB) is copied. `resolv_conf` is the file with the Node's resolvers, "" for none. With
    the `table` of the last reading, only changed routes are parsed. Raises BackendError when the kernel cannot be
    read.
    """
    with closing(NetlinkSocket()) as netlink:
        ignored = _ignored(netlink, config)
        addresses = [entry for entry in read_addresses(netlink) if entry.index not in ignored]
        routes = (table or MainTable()).read(netlink, ignored)
        uplink = _uplink(addresses, [route for route in routes.defaults if route.oif not in ignored], node_ip_hint)
        link = read_link(netlink, index=uplink) if uplink else None
        shared = _shared(netlink, routes.by_device, uplink)
        service_device = read_link(netlink, SERVICE_DEVICE)
    datapath = _datapath(config)
    outside = datapath is DatapathType.NETDEV and link is not None and link.kind != USERSPACE_PORT
    return Facts(
        datapath=datapath,
        uplink_outside=link.state.name if link is not None and outside else "",
        uplink_mtu=link.state.mtu if link is not None else DEFAULT_MTU,
        addresses=_usable(entry.address for entry in addresses),
        connected=routes.connected,
        routed=routes.routed,
        shared_devices=shared,
        checks_forwarded=_kernel_version() >= FORWARDED_REVERSE_PATH,
        ipvs=service_device is not None,
        resolvers=read_resolvers(resolv_conf),
        default_gateways=_usable(hop for route in routes.defaults for hop in next_hops(route)),
        ofports=dict(ofports),
    )


def read_resolvers(resolv_conf: str) -> tuple[Address, ...]:
    """Read the resolvers of a resolv.conf(5) ("": none) and of systemd-resolved, sorted.

    Files that cannot be read and malformed lines are ignored.
    """
    resolvers: set[Address] = set()
    for path in (Path(resolv_conf), RESOLVED) if resolv_conf else ():
        with suppress(OSError), path.open("rb") as file:
            for line in file.read(RESOLV_CONF_MAX).decode(errors="replace").splitlines():
                words = line.split()
                if len(words) > 1 and words[0] == "nameserver":
                    with suppress(ValueError):
                        resolvers.add(parse_address(words[1].partition("%")[0]))
    return _usable(resolvers)


@cache
def kernel_datapath_exists() -> bool:
    """Return whether the kernel has Open vSwitch's datapath.

    A request for its generic netlink family makes the kernel load the module, if there is one
    (net/netlink/genetlink.c, ctrl_getfamily: request_module). Requested once in a process: a bridge must not
    change its datapath while it is in use. Raises BackendError without a socket.
    """
    name = attribute(CTRL_ATTR_FAMILY_NAME, OVS_DATAPATH_FAMILY.encode() + b"\0")
    with closing(NetlinkSocket(NETLINK_GENERIC)) as generic:
        answer = generic.get(GENL_ID_CTRL, bytes((CTRL_CMD_GETFAMILY, 1, 0, 0)) + name)
    return not isinstance(answer, NetlinkRefusal)


def _kernel_version() -> tuple[int, ...]:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, release.groups())) if release else ()


def _datapath(config: Config) -> DatapathType:
    if config.datapath is DatapathChoice.AUTO:
        return DatapathType.SYSTEM if kernel_datapath_exists() else DatapathType.NETDEV
    return DatapathType(config.datapath.value)


def _ignored(netlink: NetlinkSocket, config: Config) -> frozenset[int]:
    first, *further = device_names(config.wireguard_device, MAX_DEVICES)
    names = (config.bridge, config.host_port, first, SERVICE_DEVICE, "ovs-system", "ovs-netdev")
    links = (read_link(netlink, name) for name in names)
    # Their names follow from the first one's: devices of other programs may have them.
    marked = (link for name in further if (link := read_link(netlink, name)) and link.alias == LINK_ALIAS)
    return frozenset(link.index for link in (*links, *marked) if link is not None)


def _shared(
    netlink: NetlinkSocket, by_device: Mapping[int, Iterable[Network]], uplink: int
) -> tuple[tuple[Network, str], ...]:
    """Return the IPv4 networks behind a device that leads to several Pods, each with the device's name, sorted.

    The uplink leads to Pods only if it is a bridge: a virtual machine or container has one of the kind veth, too.
    """
    behind = {
        (network, link.state.name)
        for index, networks in by_device.items()
        if (link := read_link(netlink, index=index)) is not None
        and link.kind in POD_DEVICES
        and (index != uplink or link.kind not in SINGLE_DEVICES)
        for network in networks
    }
    return tuple(sorted(behind, key=lambda entry: (network_key(entry[0]), entry[1])))


def _uplink(addresses: Sequence[RawAddress], defaults: Iterable[RawRoute], hint: Address | None) -> int:
    """Return the index of the device that carries tunnels; 0: unknown."""
    for entry in addresses:
        if hint is not None and entry.address == hint:
            return entry.index
    by_preference = sorted(defaults, key=lambda route: (route.destination.version, route.metric))
    return next((route.oif for route in by_preference if route.oif), 0)


def _usable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return addresses sorted, without unroutable ones, which no other cluster can claim."""
    usable = {address for address in addresses if routable(address) and not address.is_unspecified}
    return tuple(sorted(usable, key=lambda address: (address.version, int(address))))


def leads_to_pod(address: Address, host_port: str) -> bool:
    """Return whether the kernel delivers packets for an address directly to a device, as for Pods of this Node.

    False for the Node's own addresses, for addresses behind a router, and for routes to the bridge (`host_port`).
    Raises BackendError.
    """
    with closing(NetlinkSocket()) as netlink:
        route = route_to(netlink, address)
        link = read_link(netlink, index=route.oif) if route is not None and route.oif else None
    return (
        route is not None
        and route.type == RTN_UNICAST
        and next(next_hops(route), None) is None
        and link is not None
        and link.state.name != host_port
    )
