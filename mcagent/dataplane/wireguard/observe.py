"""The WireGuard devices that are ours: which there are, what drives each, and what they say of themselves.

Owns the choice of an implementation and the drivers. A device is ours when it has one of the names given and our
mark; others are never read or written. Changes no peer and knows no desired state: that is the backend's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcagent.dataplane.wireguard.driver import DeviceChange, Driver, RawDevice
from mcagent.dataplane.wireguard.kernel import KernelDriver
from mcagent.dataplane.wireguard.link import RawDeviceLink, read_link
from mcagent.dataplane.wireguard.userspace import WireGuardGo
from mcagent.model.errors import BackendError
from mcagent.model.wireguard import WireGuardDevice, WireGuardImplementation, WireGuardPeerStatus

# By IFLA_INFO_KIND.
KINDS = {"wireguard": WireGuardImplementation.KERNEL, "tun": WireGuardImplementation.USERSPACE}


class OwnDevices:
    """Our WireGuard devices in the calling thread's network namespace. Safe for several threads."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        run_directory: Path,
        binary: str,
        only: WireGuardImplementation | None,
    ) -> None:
        """Remember what is ours; nothing is opened or run before the first call. See `WireGuardBackend`."""
        self.names = tuple(names)
        self.lock = threading.RLock()  # held while devices are read or changed
        self._only = only
        self._userspace = WireGuardGo(run_directory, binary)
        self.drivers: Mapping[WireGuardImplementation, Driver] = {
            WireGuardImplementation.KERNEL: KernelDriver(),
            WireGuardImplementation.USERSPACE: self._userspace,
        }
        self._chosen: WireGuardImplementation | None = None

    def implementation(self) -> WireGuardImplementation | None:
        """Return what new devices are made with; None if there is neither. Raises BackendError.

        It stays what it was first: a device does not change its implementation under way.
        """
        with self.lock:
            if self._chosen is None:
                allowed = (one for one in self.drivers if self._only in {None, one})
                self._chosen = next((one for one in allowed if self.drivers[one].available()), None)
            return self._chosen

    def find(self, name: str) -> tuple[RawDeviceLink, Driver] | None:
        """Return the device's link and what drives it; None where there is none of ours. Raises BackendError."""
        link = read_link(name)
        if link is None or not link.ours or link.kind not in KINDS:
            return None
        return link, self.drivers[KINDS[link.kind]]

    def read(self, name: str) -> RawDevice | None:
        """Return what the device says; None where none of ours runs that could say it. Raises BackendError."""
        found = self.find(name)
        return read_running(name, found[1]) if found is not None else None

    def statuses(self) -> tuple[WireGuardPeerStatus, ...]:
        """Return what each device says of each of its peers. Raises BackendError."""
        with self.lock:
            said = ((name, self.read(name)) for name in self.names)
            return tuple(
                WireGuardPeerStatus(
                    device=name,
                    public_key=raw.public_key,
                    endpoint=raw.endpoint,
                    last_handshake=raw.last_handshake,
                    received=raw.received,
                    sent=raw.sent,
                    device_key=device.public_key,
                    device_port=device.listen_port,
                )
                for name, device in said
                if device is not None
                for raw in device.peers.values()
            )

    @property
    def restarts(self) -> int:
        """How many wireguard-go processes were started in place of one that died."""
        return self._userspace.restarts

    def processes(self) -> tuple[int, ...]:
        """Return the wireguard-go processes of our devices that live."""
        with self.lock:
            found = (self._userspace.process(name) for name in self.names)
            return tuple(pid for pid in found if pid is not None)

    def bind_again(self) -> None:
        """Make wireguard-go forget by which address it reached its peers. Raises BackendError.

        The builds before 2023 keep sending from an address that the Node has no longer.
        """
        with self.lock:
            for name in self.names:
                found = self.find(name)
                if found is not None and found[1] is self._userspace and self._userspace.running(name):
                    port = self._userspace.read(name).listen_port
                    self._userspace.write(name, DeviceChange(listen_port=port))


def read_running(name: str, driver: Driver) -> RawDevice | None:
    """Return what the device says, or None where nothing runs that could say it. Raises BackendError."""
    if not driver.running(name):
        return None
    try:
        return driver.read(name)
    except BackendError:
        if driver.running(name):
            raise
        return None


def device_resource(
    name: str, link: RawDeviceLink, implementation: WireGuardImplementation, raw: RawDevice, *, running: bool
) -> WireGuardDevice:
    """Return the device as a resource."""
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
