"""The network device under WireGuard, whoever encrypts: state, MTU, addresses, and the mark that it is ours.

Owns what rtnetlink says of the device; keys and peers are the drivers'.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence

from mcagent.dataplane.netlink import links
from mcagent.dataplane.netlink.connection import NetlinkSocket, Request
from mcagent.dataplane.netlink.links import LINK_ALIAS, RawLink
from mcagent.dataplane.wireguard.driver import RawDevice, wireguard_error
from mcagent.model.errors import BackendError
from mcagent.model.net import Address
from mcagent.model.wireguard import WireGuardDevice, WireGuardImplementation

# What the kernel says when a device or an address is already as it is asked to be.
_FINE = frozenset({errno.EEXIST, errno.ENODEV, errno.EADDRNOTAVAIL})


def read_link(name: str) -> RawLink | None:
    """Return the device of that name, or None if there is none. Raises BackendError."""
    with _rtnetlink("read", name) as socket:
        return links.read_link(socket, name)


def read_addresses(link: RawLink) -> list[tuple[Address, int]]:
    """Return the device's addresses with their prefix lengths, sorted by family, then value. Raises BackendError.

    Link-local ones, the kernel's own, are left out.
    """
    with _rtnetlink("read", link.state.name) as socket:
        found = [(one.address, one.prefixlen) for one in links.read_addresses(socket, link.index)]
    mattering = (one for one in found if not one[0].is_link_local)
    return sorted(mattering, key=lambda one: (one[0].version, int(one[0])))


def change_link(operation: str, name: str, requests: Sequence[Request]) -> None:
    """Make the requests about a device. Raises BackendError, but not for what is so already."""
    with _rtnetlink(operation, name) as socket:
        refusals = socket.request(requests)
    for refusal in refusals:
        if refusal is not None and refusal.errno not in _FINE:
            raise wireguard_error(operation, f"device {name}", str(refusal))


def configure(device: WireGuardDevice) -> None:
    """Mark the device as ours, give it its MTU, state and addresses, and take other addresses away."""
    link = read_link(device.name)
    if link is None:
        raise wireguard_error("set up", f"device {device.name}", "was removed meanwhile")
    has, wanted = set(read_addresses(link)), {(one, one.max_prefixlen) for one in device.addresses}
    requests = [links.delete_address(link.index, *one) for one in has - wanted]
    requests += [links.put_address(link.index, *one) for one in wanted - has]
    if (link.alias, link.state.mtu, link.state.up) != (LINK_ALIAS, device.mtu, True):
        requests.insert(0, links.bring_up(link.index, device.mtu))  # the mark goes before what else is ours
    change_link("set up", device.name, requests)


def device_resource(
    link: RawLink, implementation: WireGuardImplementation, raw: RawDevice | None
) -> WireGuardDevice:
    """Return the device as a resource; `raw` is None where it does not run. Raises BackendError."""
    addresses = read_addresses(link)
    hosts = all(length == address.max_prefixlen for address, length in addresses)
    running = raw is not None
    raw = raw or RawDevice()
    return WireGuardDevice(
        name=link.state.name,
        listen_port=raw.listen_port,
        mtu=link.state.mtu,
        public_key=raw.public_key,
        addresses=tuple(address for address, _ in addresses),
        implementation=implementation,
        fwmark=raw.fwmark,
        intact=running and link.state.up and hosts,
    )


@contextlib.contextmanager
def _rtnetlink(operation: str, name: str) -> Iterator[NetlinkSocket]:
    """Lend a socket; what fails with it is about the device."""
    try:
        with contextlib.closing(NetlinkSocket()) as socket:
            yield socket
    except BackendError as error:
        raise wireguard_error(operation, f"device {name}", error.reason) from None
