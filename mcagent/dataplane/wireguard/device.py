"""The network device of WireGuard, of either implementation: state, MTU, addresses, and the agent's mark.

Owns the device's attributes of rtnetlink; the drivers own keys and peers.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence

from mcagent.dataplane.netlink import links
from mcagent.dataplane.netlink.connection import NetlinkRequest, NetlinkSocket
from mcagent.dataplane.netlink.links import LINK_ALIAS, RawLink
from mcagent.dataplane.wireguard.driver import RawDevice, wireguard_error
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardImplementation
from mcagent.model.errors import BackendError
from mcagent.model.net import Address

# Errors that mean that the requested state exists already.
_HARMLESS = frozenset({errno.EEXIST, errno.ENODEV, errno.EADDRNOTAVAIL})


def read_link(name: str) -> RawLink | None:
    """Read a device by name; None: it does not exist. Raises BackendError."""
    with _rtnetlink("read", name) as socket:
        return links.read_link(socket, name)


def read_addresses(link: RawLink) -> list[tuple[Address, int]]:
    """Read the device's addresses with their prefix lengths, sorted by family, then value. Raises BackendError.

    Without link-local addresses, which are the kernel's.
    """
    with _rtnetlink("read", link.state.name) as socket:
        entries = list(links.read_addresses(socket, link.index))
    addresses = [(entry.address, entry.prefixlen) for entry in entries if not entry.address.is_link_local]
    return sorted(addresses, key=lambda item: (item[0].version, int(item[0])))


def change_link(operation: str, name: str, requests: Sequence[NetlinkRequest]) -> None:
    """Send requests about a device. Raises BackendError, except if the requested state exists already."""
    with _rtnetlink(operation, name) as socket:
        refusals = socket.request(requests)
    for refusal in refusals:
        if refusal is not None and refusal.errno not in _HARMLESS:
            raise wireguard_error(operation, f"device {name}", str(refusal))


def configure(device: WireGuardDevice) -> None:
    """Set mark, MTU, state, check of sources and addresses of the device, and delete other addresses."""
    link = read_link(device.name)
    if link is None:
        raise wireguard_error("set up", f"device {device.name}", "was removed meanwhile")
    present = set(read_addresses(link))
    desired = {(address, address.max_prefixlen) for address in device.addresses}
    requests = [links.delete_address(link.index, *address) for address in present - desired]
    requests += [links.put_address(link.index, *address) for address in desired - present]
    strict = device.loose_source_check and not is_loose(link)
    if strict or (link.alias, link.state.mtu, link.state.up) != (LINK_ALIAS, device.mtu, True):
        # The mark comes first.
        requests.insert(0, links.bring_up(link.index, device.mtu, loose=device.loose_source_check))
    change_link("set up", device.name, requests)


def device_resource(
    link: RawLink, implementation: WireGuardImplementation, raw: RawDevice | None, *, loose: bool
) -> WireGuardDevice:
    """Convert the device to a resource; `raw` is None if it does not run. Raises BackendError.

    `loose`: its check of sources is loose, as it should be.
    """
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
        loose_source_check=loose,
        intact=running and link.state.up and hosts,
    )


def is_loose(link: RawLink) -> bool:
    """Return whether the device has the loose check of sources of RFC 3704."""
    return link.state.rp_filter == links.LOOSE


@contextlib.contextmanager
def _rtnetlink(operation: str, name: str) -> Iterator[NetlinkSocket]:
    """Provide a socket; its errors become errors of the device."""
    try:
        with contextlib.closing(NetlinkSocket()) as socket:
            yield socket
    except BackendError as error:
        raise wireguard_error(operation, f"device {name}", error.reason) from None
