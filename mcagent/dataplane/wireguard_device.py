"""Sets up a device: made where there is none, and given key, port, MTU and addresses. Peers stay as they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mcagent.dataplane.wireguard_driver import DeviceChange, Driver, RawDevice, wireguard_error
from mcagent.dataplane.wireguard_link import RawDeviceLink, configure, mark, read_link
from mcagent.dataplane.wireguard_rekey import Rekey
from mcagent.model.wireguard import WireGuardDevice, WireGuardImplementation

log = logging.getLogger(__name__)

# By IFLA_INFO_KIND.
KINDS = {"wireguard": WireGuardImplementation.KERNEL, "tun": WireGuardImplementation.USERSPACE}
_MISSING = {
    WireGuardImplementation.KERNEL: "this kernel has no WireGuard",
    WireGuardImplementation.USERSPACE: "there is no wireguard-go, or no /dev/net/tun: install both",
}
_Drivers = Mapping[WireGuardImplementation, Driver]


def device_resource(
    name: str, link: RawDeviceLink, implementation: WireGuardImplementation, raw: RawDevice, *, running: bool
) -> WireGuardDevice:
    """Return what is there as a resource."""
    hosts = all(length == address.max_prefixlen for address, length in link.addresses)
    return WireGuardDevice(
        name=name,
        listen_port=raw.listen_port,
        mtu=link.mtu,
        public_key=raw.public_key,
        addresses=tuple(address for address, _ in link.addresses),
        implementation=implementation,
        fwmark=raw.fwmark,
        intact=running and link.up and hosts,
    )


def put_device(device: WireGuardDevice, private_key: bytes, drivers: _Drivers, rekey: Rekey) -> bool:
    """Make the device so; return whether it had to be made anew, so without peers. Raises BackendError.

    A device of ours of the other implementation gives way; one of somebody else is an error.
    """
    name = device.name
    driver = drivers[device.implementation]
    link = _make_room(device, drivers)
    new = link is None or not link.ours or not driver.running(name)
    if new:
        driver.create(name)
        mark(name)
    raw = driver.read(name)
    change = DeviceChange(
        private_key=private_key if raw.public_key != device.public_key else None,
        listen_port=device.listen_port if raw.listen_port != device.listen_port else None,
        fwmark=device.fwmark if raw.fwmark != device.fwmark else None,
    )
    another_key = bool(raw.public_key) and change.private_key is not None
    if another_key:
        log.info("device %s gets public key %s, before: %s", name, device.public_key, raw.public_key)
        rekey.change(name, driver, raw, change)
    elif change != DeviceChange():
        driver.write(name, change)
    link = read_link(name)
    if link is None:
        raise wireguard_error("set up", f"device {name}", "was removed meanwhile")
    configure(device, link)
    return new


def _make_room(device: WireGuardDevice, drivers: _Drivers) -> RawDeviceLink | None:
    """Return the device that is there and fits; one of ours that does not is removed."""
    if not drivers[device.implementation].available():
        raise wireguard_error("set up", f"device {device.name}", _MISSING[device.implementation])
    link = read_link(device.name)
    if link is None:
        return None
    fits = KINDS.get(link.kind) is device.implementation
    if link.ours and not fits and link.kind in KINDS:
        drivers[KINDS[link.kind]].remove(device.name)
        return None
    # One without our mark that nobody has set up: we were ended between making and marking it.
    if fits and (link.ours or not (link.up or link.addresses)):
        return link
    reason = "somebody else has a device of that name: remove it, or configure another name"
    raise wireguard_error("set up", f"device {device.name}", reason)
