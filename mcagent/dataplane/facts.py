"""What the Node itself says: addresses, connected networks, the uplink's MTU, the kernel's datapath.

Reads only. Which of it matters is core's business; devices of ours are left out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from mcagent.dataplane.lifelines import default_gateways, read_resolvers
from mcagent.dataplane.netlink import messages
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal
from mcagent.dataplane.netlink.observe import read_link
from mcagent.model.config import Config, DatapathChoice
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address, network_key

# linux/genetlink.h, linux/openvswitch.h
NETLINK_GENERIC = 16
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME = 16, 3, 2
OVS_DATAPATH_FAMILY = "ovs_datapath"

# kube-proxy in IPVS mode holds every ClusterIP on this device (proxier.go, DefaultDummyDevice): they are no
# addresses of the Node, and change with every Service.
SERVICE_DEVICE = "kube-ipvs0"

DEFAULT_MTU = 1500


def observe_facts(
    config: Config, node_ip_hint: Address | None, ofports: Mapping[str, int], resolv_conf: str = ""
) -> Facts:
    """Read the facts of the calling thread's network namespace.

    `node_ip_hint` is the Node's InternalIP as the API says it, which tells the uplink; without it, or when no
    device has it (an address translated outside of the Node), the device of the default route is taken.
    `ofports` (from OVSDB) is passed through. `resolv_conf` is the file with the Node's resolvers, "" for none.
    Raises BackendError when the kernel cannot be asked.
    """
    netlink = NetlinkSocket()
    try:
        ignored = _ignored(netlink, config)
        addresses = [one for one in _addresses(netlink) if one.index not in ignored]
        uplink = _uplink(netlink, addresses, ignored, node_ip_hint)
        connected = {
            route.destination
            for route in _main_routes(netlink, messages.RTPROT_KERNEL)
            if route.oif not in ignored
            and route.gateway is None
            and route.type == messages.RTN_UNICAST
            and _routable(route.destination.network_address)
        }
        return Facts(
            datapath=_datapath(config),
            uplink_mtu=_mtu(netlink, uplink),
            addresses=_sorted_addresses(one.address for one in addresses if _routable(one.address)),
            connected=tuple(sorted(connected, key=network_key)),
            resolvers=read_resolvers(resolv_conf),
            default_gateways=default_gateways(_route_payloads(netlink, 0)),
            ofports=dict(ofports),
        )
    finally:
        netlink.close()


@cache
def kernel_datapath_exists() -> bool:
    """Tell whether the kernel has Open vSwitch's datapath.

    Asking for its generic netlink family makes the kernel load the module by itself where there is one
    (net/netlink/genetlink.c, ctrl_getfamily: request_module). Asked once in a process: a bridge must not change
    its datapath under way. Raises BackendError without a socket.
    """
    generic = NetlinkSocket(NETLINK_GENERIC)
    try:
        name = messages.attribute(CTRL_ATTR_FAMILY_NAME, OVS_DATAPATH_FAMILY.encode() + b"\0")
        answer = generic.get(GENL_ID_CTRL, bytes((CTRL_CMD_GETFAMILY, 1, 0, 0)) + name)
    finally:
        generic.close()
    return not isinstance(answer, Refusal)


def _datapath(config: Config) -> DatapathType:
    if config.datapath is DatapathChoice.AUTO:
        return DatapathType.SYSTEM if kernel_datapath_exists() else DatapathType.NETDEV
    return DatapathType(config.datapath.value)


def _ignored(netlink: NetlinkSocket, config: Config) -> frozenset[int]:
    names = (config.bridge, config.host_port, config.wireguard_device, SERVICE_DEVICE, "ovs-system", "ovs-netdev")
    links = (read_link(netlink, name) for name in names)
    return frozenset(link.index for link in links if link is not None)


def _addresses(netlink: NetlinkSocket) -> list[messages.RawAddress]:
    found = []
    for family in messages.FAMILIES:
        for body in netlink.dump(messages.RTM_GETADDR, messages.address_dump_payload(family)):
            address = messages.parse_address(body)
            if address is not None:
                found.append(address)
    return found


def _main_routes(netlink: NetlinkSocket, protocol: int) -> list[messages.RawRoute]:
    """Return the routes of the main table; `protocol` 0 means of any protocol."""
    routes = map(messages.parse_route, _route_payloads(netlink, protocol))
    # Kernels before 4.20 do not filter.
    return [
        route
        for route in routes
        if route is not None and route.table == messages.RT_TABLE_MAIN and protocol in {0, route.protocol}
    ]


def _route_payloads(netlink: NetlinkSocket, protocol: int) -> Iterator[bytes]:
    for family in messages.FAMILIES:
        payload = messages.route_dump_payload(family, messages.RT_TABLE_MAIN, protocol)
        yield from netlink.dump(messages.RTM_GETROUTE, payload)


def _uplink(
    netlink: NetlinkSocket, addresses: list[messages.RawAddress], ignored: frozenset[int], hint: Address | None
) -> int:
    """Return the index of the device that carries tunnels, or 0 if nothing tells which."""
    for one in addresses:
        if hint is not None and one.address == hint:
            return one.index
    defaults = [
        route
        for route in _main_routes(netlink, 0)
        if not route.destination.prefixlen and route.oif and route.oif not in ignored
    ]
    defaults.sort(key=lambda route: (route.destination.version, route.metric))
    return defaults[0].oif if defaults else 0


def _mtu(netlink: NetlinkSocket, index: int) -> int:
    if not index:
        return DEFAULT_MTU
    answer = netlink.get(messages.RTM_GETLINK, messages.link_get_payload(index=index))
    return DEFAULT_MTU if isinstance(answer, Refusal) else messages.parse_link(answer).mtu


def _routable(address: Address) -> bool:
    return not (address.is_loopback or address.is_link_local or address.is_multicast)


def _sorted_addresses(addresses: Iterable[Address]) -> tuple[Address, ...]:
    return tuple(sorted(set(addresses), key=lambda one: (one.version, int(one))))
