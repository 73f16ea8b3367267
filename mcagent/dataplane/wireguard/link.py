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
        raise _error("read", name, error.reason) from None
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
        _address("del", found.index, address, prefixlen, frozenset({errno.EADDRNOTAVAIL}))
    for address, prefixlen in wanted - set(found.addresses):
        _address("add", found.index, address, prefixlen, frozenset({errno.EEXIST}))
    if found.mtu != device.mtu or not found.up:
        try:
            change_link("set", frozenset(), index=found.index, mtu=device.mtu, state="up")
        except BackendError as error:
            if error.reason == _words(errno.EADDRINUSE):
                raise _error(
                    "set up", device.name, f"UDP port {device.listen_port} is in use by somebody else"
                ) from None
            raise


def change_link(command: str, fine: frozenset[int], **arguments: object) -> None:
    """Make one rtnetlink link request through pyroute2. Raises BackendError, unless the errno is a fine one."""
    _call("link", command, fine, str(arguments.get("ifname", arguments.get("index"))), **arguments)


def _address(command: str, index: int, address: Address, prefixlen: int, fine: frozenset[int]) -> None:
    _call("addr", command, fine, f"{address}", index=index, address=str(address), prefixlen=prefixlen)


def _call(method: str, command: str, fine: frozenset[int], about: str, **arguments: object) -> None:
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as route:
            getattr(route, method)(command, **arguments)
    except NetlinkError as error:  # not an OSError
        number = error.code
    except OSError as error:
        number = error.errno or errno.EIO
    else:
        return
    if number not in fine:
        raise _error(f"{method} {command}", about, _words(number))


def _words(number: int) -> str:
    return str(Refusal(number))


def _error(operation: str, name: str, reason: str) -> BackendError:
    return wireguard_error(operation, f"device {name}", reason)
