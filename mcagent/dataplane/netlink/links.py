"""Links, addresses and neighbours: parses the answers of rtnetlink(7) and makes the requests that change them.

Owns the layout of these messages (linux/if_link.h, linux/if_addr.h, linux/neighbour.h). Does not know which
devices are the agent's.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink.connection import (
    NetlinkRefusal,
    NetlinkRequest,
    NetlinkSocket,
    attributes,
    number,
    pack,
    text,
)
from mcagent.model.dataplane.resources import Link
from mcagent.model.errors import BackendError
from mcagent.model.net import Address

# IFLA_IFALIAS of a device that the agent configured. A device that Open vSwitch created again lacks it, so
# that its Link is applied again.
LINK_ALIAS = "mcagent"

IFF_UP = 0x1
IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_LINKINFO, IFLA_IFALIAS, IFLA_AF_SPEC = 3, 4, 10, 18, 20, 26
IFLA_INFO_KIND = 1  # of IFLA_LINKINFO
IFLA_INET_CONF = 1  # of IFLA_AF_SPEC, AF_INET
IPV4_DEVCONF_FORWARDING, IPV4_DEVCONF_RP_FILTER = 1, 8  # linux/ip.h
LOOSE = 2  # rp_filter: the source is reachable by any device (RFC 3704)
IFA_ADDRESS, IFA_LOCAL = 1, 2
NDA_DST, NDA_LLADDR, NDA_IFINDEX = 1, 2, 8
NUD_PERMANENT = 0x80
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK = 0, 253

IFINFOMSG = struct.Struct("=BxHiII")  # family, type, index, flags, change
IFADDRMSG = struct.Struct("=BBBBI")  # family, prefixlen, flags, scope, index
NDMSG = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type


@dataclass(frozen=True, slots=True)
class RawLink:
    """A device. `kind` is IFLA_INFO_KIND ("veth", "tun", ...), "" where its driver names none.

    `master`: index of the bridge, bond or VRF that it is part of, or 0.
    """

    index: int
    kind: str
    alias: str
    state: Link
    master: int = 0


@dataclass(frozen=True, slots=True)
class RawAddress:
    """An address of a device."""

    index: int
    address: Address
    prefixlen: int


# --- answers and events ---------------------------------------------------------------------------------


def parse_link(payload: bytes) -> RawLink:
    """Parse RTM_NEWLINK or RTM_DELLINK."""
    _, _, index, flags, _ = IFINFOMSG.unpack_from(payload)
    values = attributes(payload, IFINFOMSG.size)
    inet = attributes(attributes(values.get(IFLA_AF_SPEC, b"")).get(nl.AF_INET, b""))
    conf = inet.get(IFLA_INET_CONF, b"")  # an array of u32: the first is number 1
    switches = dict(enumerate(struct.unpack(f"={len(conf) // 4}I", conf), start=1))
    state = Link(
        name=text(values.get(IFLA_IFNAME)),
        mtu=number(values.get(IFLA_MTU)),
        up=bool(flags & IFF_UP),
        rp_filter=switches.get(IPV4_DEVCONF_RP_FILTER, 0),
        forwarding=bool(switches.get(IPV4_DEVCONF_FORWARDING, 0)),
    )
    kind = text(attributes(values.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND))
    alias, master = text(values.get(IFLA_IFALIAS)), number(values.get(IFLA_MASTER))
    return RawLink(index=index, kind=kind, alias=alias, state=state, master=master)


def parse_address(payload: bytes) -> RawAddress | None:
    """Parse RTM_NEWADDR or RTM_DELADDR; None for families other than IP."""
    family, prefixlen, _, _, index = IFADDRMSG.unpack_from(payload)
    values = attributes(payload, IFADDRMSG.size)
    raw = values.get(IFA_LOCAL) or values.get(IFA_ADDRESS)
    if family not in nl.FAMILIES or raw is None:
        return None
    return RawAddress(index=index, address=ip_address(raw), prefixlen=prefixlen)


def read_link(socket: NetlinkSocket, name: str = "", *, index: int = 0) -> RawLink | None:
    """Read a device by name or index; None: it does not exist. Raises BackendError for other errors."""
    by_name = pack({IFLA_IFNAME: name.encode() + b"\0" if name else None})
    answer = socket.get(nl.RTM_GETLINK, IFINFOMSG.pack(nl.AF_UNSPEC, 0, index, 0, 0) + by_name)
    if not isinstance(answer, NetlinkRefusal):
        return parse_link(answer)
    if answer.errno == errno.ENODEV:
        return None
    raise BackendError("netlink", "list", f"link {name or index}", str(answer))


def read_links(socket: NetlinkSocket) -> list[RawLink]:
    """Read all devices. Raises BackendError."""
    return [parse_link(body) for body in socket.dump(nl.RTM_GETLINK, IFINFOMSG.pack(nl.AF_UNSPEC, 0, 0, 0, 0))]


def read_addresses(socket: NetlinkSocket, index: int = 0) -> Iterator[RawAddress]:
    """Yield the IP addresses of one device, or of all (index 0). Raises BackendError."""
    for family in nl.FAMILIES:
        for body in socket.dump(nl.RTM_GETADDR, IFADDRMSG.pack(family, 0, 0, 0, index)):
            address = parse_address(body)
            if address is not None:
                yield address


def read_permanent_neighbours(socket: NetlinkSocket, index: int) -> Iterator[tuple[Address, str]]:
    """Yield address and MAC address of the permanent neighbour entries of one device. Raises BackendError."""
    for family in nl.FAMILIES:
        for body in socket.dump(nl.RTM_GETNEIGH, NDMSG.pack(family, 0, 0, 0, 0) + pack({NDA_IFINDEX: index})):
            _, _, state, _, _ = NDMSG.unpack_from(body)
            values = attributes(body, NDMSG.size)
            if state & NUD_PERMANENT and NDA_DST in values:
                yield ip_address(values[NDA_DST]), values.get(NDA_LLADDR, b"").hex(":")


# --- requests -------------------------------------------------------------------------------------------


def configure_link(index: int, link: Link) -> NetlinkRequest:
    """Make the request that sets state, MTU, per-device IPv4 switches and alias of a device, without a master.

    The switches are those of /proc/sys/net/ipv4/conf/DEV (net/ipv4/devinet.c, inet_set_link_af), but this needs
    CAP_NET_ADMIN only, not a writable /proc/sys.
    """
    conf = _inet_conf({IPV4_DEVCONF_RP_FILTER: link.rp_filter, IPV4_DEVCONF_FORWARDING: int(link.forwarding)})
    alias = LINK_ALIAS.encode() + b"\0"
    values = pack({IFLA_IFALIAS: alias, IFLA_MTU: link.mtu, IFLA_MASTER: 0, IFLA_AF_SPEC: conf})
    return NetlinkRequest(nl.RTM_NEWLINK, 0, _state(index, up=link.up) + values)


def release_link(index: int) -> NetlinkRequest:
    """Make the request that sets a device down and removes its alias."""
    return NetlinkRequest(nl.RTM_NEWLINK, 0, _state(index, up=False) + pack({IFLA_IFALIAS: b""}))


def create_link(name: str, kind: str) -> NetlinkRequest:
    """Make the request that creates a device of a kind without parameters."""
    values = pack({IFLA_IFNAME: name.encode() + b"\0", IFLA_LINKINFO: pack({IFLA_INFO_KIND: kind.encode()})})
    return NetlinkRequest(nl.RTM_NEWLINK, nl.NLM_F_CREATE | nl.NLM_F_EXCL, _state(0, up=False) + values)


def bring_up(index: int, mtu: int, *, loose: bool = False) -> NetlinkRequest:
    """Make the request that sets a device up, with MTU and alias; `loose`: and with a loose check of sources."""
    conf = _inet_conf({IPV4_DEVCONF_RP_FILTER: LOOSE}) if loose else None
    values = pack({IFLA_IFALIAS: LINK_ALIAS.encode() + b"\0", IFLA_MTU: mtu, IFLA_AF_SPEC: conf})
    return NetlinkRequest(nl.RTM_NEWLINK, 0, _state(index, up=True) + values)


def delete_link(name: str) -> NetlinkRequest:
    """Make the request that deletes a device."""
    return NetlinkRequest(nl.RTM_DELLINK, 0, _state(0, up=False) + pack({IFLA_IFNAME: name.encode() + b"\0"}))


def put_address(index: int, address: Address, prefixlen: int) -> NetlinkRequest:
    """Make the request that adds an address to a device."""
    # With link scope the kernel does not choose a link-local address as source for other destinations.
    scope = RT_SCOPE_LINK if address.is_link_local else RT_SCOPE_UNIVERSE
    return NetlinkRequest(
        nl.RTM_NEWADDR, nl.NLM_F_CREATE | nl.NLM_F_EXCL, _address(index, address, prefixlen, scope)
    )


def delete_address(index: int, address: Address, prefixlen: int) -> NetlinkRequest:
    """Make the request that deletes an address from a device."""
    return NetlinkRequest(nl.RTM_DELADDR, 0, _address(index, address, prefixlen, RT_SCOPE_UNIVERSE))


def put_neighbour(index: int, address: Address, mac: str) -> NetlinkRequest:
    """Make the request that adds or replaces a permanent neighbour entry."""
    payload = _neighbour(index, address, NUD_PERMANENT) + pack({NDA_LLADDR: bytes.fromhex(mac.replace(":", ""))})
    return NetlinkRequest(nl.RTM_NEWNEIGH, nl.NLM_F_CREATE | nl.NLM_F_REPLACE, payload)


def delete_neighbour(index: int, address: Address) -> NetlinkRequest:
    """Make the request that deletes a neighbour entry."""
    return NetlinkRequest(nl.RTM_DELNEIGH, 0, _neighbour(index, address, 0))


def _inet_conf(switches: Mapping[int, int]) -> bytes:
    """Pack IFLA_AF_SPEC with per-device IPv4 switches."""
    return pack({nl.AF_INET: pack({IFLA_INET_CONF: pack(switches)})})


def _state(index: int, *, up: bool) -> bytes:
    return IFINFOMSG.pack(nl.AF_UNSPEC, 0, index, IFF_UP if up else 0, IFF_UP)


def _neighbour(index: int, address: Address, state: int) -> bytes:
    return NDMSG.pack(nl.family(address), index, state, 0, 0) + pack({NDA_DST: address.packed})


def _address(index: int, address: Address, prefixlen: int, scope: int) -> bytes:
    header = IFADDRMSG.pack(nl.family(address), prefixlen, 0, scope, index)
    return header + pack({IFA_LOCAL: address.packed, IFA_ADDRESS: address.packed})
