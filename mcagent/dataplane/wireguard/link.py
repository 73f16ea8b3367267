"""The network device under WireGuard, whoever encrypts: state, MTU, addresses, and the mark that it is ours.

Owns what rtnetlink says of the device; keys and peers are the drivers'.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from mcagent.dataplane.netlink import links
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal
from mcagent.dataplane.netlink.links import LINK_ALIAS
from mcagent.dataplane.wireguard.driver import wireguard_error
from mcagent.model.errors import BackendError
from mcagent.model.net import Address
from mcagent.model.wireguard import WireGuardDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDeviceLink:
    """The device as rtnetlink has it; link-local addresses, the kernel's own, are left out."""

    index: int
    kind: str  # IFLA_INFO_KIND: "wireguard", "tun", ...
    mtu: int
    up: bool
    ours: bool  # carries our mark
    addresses: tuple[tuple[Address, int], ...]  # with prefix length; sorted by family, then value


def read_link(name: str) -> RawDeviceLink | None:
    """Return the device of that name, or None if there is none. Raises BackendError."""
    try:
        socket = NetlinkSocket()
        try:
            link = links.read_link(socket, name)
            if link is None:
                return None
            found = [one for one in links.read_addresses(socket, link.index) if not one.address.is_link_local]
        finally:
            socket.close()
    except BackendError as error:
        raise wireguard_error("read", f"device {name}", error.reason) from None
    return RawDeviceLink(
        index=link.index,
        kind=link.kind,
        mtu=link.mtu,
        up=link.up,
        ours=link.alias == LINK_ALIAS,
        addresses=tuple(
            (one.address, one.prefixlen)
            for one in sorted(found, key=lambda one: (one.address.version, int(one.address)))
        ),
    )


def mark(name: str) -> None:
    """Write that the device is ours."""
    change_link("set", frozenset(), ifname=name, ifalias=LINK_ALIAS)


def configure(device: WireGuardDevice, found: RawDeviceLink) -> None:
    """Give the device its MTU, addresses and state, and take other addresses away."""
    wanted = {(address, address.max_prefixlen) for address in device.addresses}
    for address, prefixlen in set(found.addresses) - wanted:
        what = {"index": found.index, "address": str(address), "prefixlen": prefixlen}
        _call("addr", "del", frozenset({errno.EADDRNOTAVAIL}), str(address), **what)
    for address, prefixlen in wanted - set(found.addresses):
        what = {"index": found.index, "address": str(address), "prefixlen": prefixlen}
        _call("addr", "add", frozenset({errno.EEXIST}), str(address), **what)
    if found.mtu != device.mtu or not found.up:
        try:
            change_link("set", frozenset(), index=found.index, mtu=device.mtu, state="up")
        except BackendError as error:
            if error.reason == str(Refusal(errno.EADDRINUSE)):
                reason = f"UDP port {device.listen_port} is in use by somebody else"
                raise wireguard_error("set up", f"device {device.name}", reason) from None
            raise


def change_link(command: str, fine: frozenset[int], **arguments: object) -> None:
    """Make one rtnetlink request about a link through pyroute2. Raises BackendError, but not for a fine errno."""
    _call("link", command, fine, str(arguments.get("ifname", arguments.get("index"))), **arguments)


def _call(method: str, command: str, fine: frozenset[int], about: str, **arguments: object) -> None:
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as route:
            getattr(route, method)(command, **arguments)
    except (NetlinkError, OSError) as error:  # the first is no OSError
        number = error.code if isinstance(error, NetlinkError) else error.errno or errno.EIO
        if number not in fine:
            raise wireguard_error(f"{method} {command}", f"device {about}", str(Refusal(number))) from None
