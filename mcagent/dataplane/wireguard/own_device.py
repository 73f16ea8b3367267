"""One of the agent's WireGuard devices: finds it, reads it, and changes it and its peers.

Owns what was last applied or observed of the device. Another program's device of that name is never changed.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence

from mcagent.dataplane.netlink.links import LINK_ALIAS, RawLink
from mcagent.dataplane.wireguard.device import configure, device_resource, is_loose, read_addresses, read_link
from mcagent.dataplane.wireguard.driver import DeviceChange, Driver, PeerChange, RawDevice, wireguard_error
from mcagent.dataplane.wireguard.keys import KeyStore
from mcagent.dataplane.wireguard.peers import (
    Exchange,
    Peers,
    change_peers,
    exchanges_after,
    handovers,
    live_peers,
    observed_peers,
    silent_peers,
)
from mcagent.model.dataplane.resources import Resource
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardPeer
from mcagent.model.errors import BackendError
from mcagent.model.plan import Step

log = logging.getLogger(__name__)


class OwnDevice:
    """A device of the calling thread's network namespace, and its peers. Calls come from one thread at a time."""

    def __init__(self, name: str, drivers: Sequence[Driver], keys: KeyStore, loose: Callable[[], bool]) -> None:
        """`drivers` are the implementations that it may be of.

        `loose` returns whether a device that this process has neither applied nor observed is to have a loose
        check of sources. Opens nothing before the first call.
        """
        self.name = name
        self.live: frozenset[str] = frozenset()  # keys of peers in a session that answer, by the last reading
        self.silent: frozenset[str] = frozenset()  # keys of peers that do not answer
        self._exchanges: Mapping[str, Exchange] = {}
        self._drivers = tuple(drivers)
        self._keys = keys
        self._loose = loose
        # As last applied or observed; peers by public key.
        self._device: WireGuardDevice | None = None
        self._applied: Peers = {}

    # --- reading ----------------------------------------------------------------------------------------

    def observe(self) -> tuple[Resource, ...]:
        """Read the device and its peers; empty without a device that has the agent's mark. Raises BackendError."""
        self._device, self._applied = self._read_resources()
        return () if self._device is None else (self._device, *self._applied.values())

    def differs(self) -> bool:
        """Return whether device or peers differ from those last applied or observed. Raises BackendError."""
        return self._read_resources() != (self._device, self._applied)

    def running(self) -> tuple[Driver, RawDevice] | None:
        """Return the device's driver and its state; None: it does not exist or run. Raises BackendError."""
        existing = self._find()
        if existing is None:
            self.live = frozenset()
            return None
        _, driver = existing
        raw = driver.read()
        self._note(raw, self._applied)
        return (driver, raw) if raw is not None else None

    @property
    def awaits_keys(self) -> bool:
        """Whether a peer has announced a key that it does not use yet."""
        return any(peer.successor for peer in self._applied.values())

    def exists(self) -> bool:
        """Return whether there is a device with the agent's mark. Raises BackendError."""
        return self._find() is not None

    def _find(self) -> tuple[RawLink, Driver] | None:
        """Return the agent's device and its driver; None: there is none with the agent's mark."""
        link = read_link(self.name)
        if link is None or link.alias != LINK_ALIAS:
            return None
        return next(((link, driver) for driver in self._drivers if driver.kind == link.kind), None)

    def _read_resources(self) -> tuple[WireGuardDevice | None, dict[str, WireGuardPeer]]:
        existing = self._find()
        if existing is None:
            self.live = frozenset()
            return None, {}
        link, driver = existing
        raw = driver.read()
        # A check that is loose by net.ipv4.conf.default.rp_filter alone is no difference.
        expected = self._device.loose_source_check if self._device is not None else self._loose()
        device = device_resource(link, driver.implementation, raw, loose=expected and is_loose(link))
        raw_peers = raw.peers if raw is not None else {}
        peers = {
            peer.public_key: peer for peer in observed_peers(self.name, raw_peers, self._applied, time.time())
        }
        self._note(raw, peers)
        return device, peers

    def _note(self, raw: RawDevice | None, peers: Peers) -> None:
        """Take note of which peers are in a session and answer."""
        raw_peers, now = raw.peers if raw is not None else {}, time.monotonic()
        self._exchanges = exchanges_after(self._exchanges, raw_peers, now)
        self.silent = silent_peers(self._exchanges, now)
        self.live = live_peers(raw_peers, peers, time.time()) - self.silent

    # --- changing ---------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Move the networks of each peer that has begun to use its announced key. Raises BackendError."""
        running = self.running()
        changes = handovers(self._applied, running[1].peers) if running is not None else []
        if running is not None and changes:
            running[0].write(DeviceChange(peers=changes))
            for key in (change.public_key for change in changes if change.allowed_ips):
                log.info("a peer of %s uses the key now that it announced: %s", self.name, key)

    def change_device(self, step: Step) -> None:
        """Add, change or delete the device. Raises BackendError."""
        if isinstance(step.new, WireGuardDevice):
            self._put_device(step.new)
        else:
            existing = self._find()
            if existing is not None:
                existing[1].remove()
            self._device, self._applied, self.live = None, {}, frozenset()

    def change_peers(self, steps: Mapping[int, Step]) -> dict[int, BackendError]:
        """Carry out steps on peers, all together; return errors by place. Raises BackendError."""
        running = self.running()
        if running is None:
            reason = "no such device of ours, or it is not running"
            missing = wireguard_error("change", f"peers of device {self.name}", reason)
            return {place: missing for place, step in steps.items() if step.new is not None}
        self._applied, failed = change_peers(*running, self._applied, steps)
        return failed

    def _put_device(self, device: WireGuardDevice) -> None:
        """Configure the device; its peers stay. One of the other implementation is deleted first."""
        keys = self._keys.load()
        private_key = keys.private_of(device.public_key) if keys is not None else None
        if private_key is None:
            reason = f"key file {self._keys.path} has no private key for {device.public_key}"
            raise wireguard_error("set up", f"device {device.name}", reason, retryable=False)
        driver = next((item for item in self._drivers if item.implementation is device.implementation), None)
        if driver is None:
            reason = f"only the first device may be of the implementation {device.implementation}"
            raise wireguard_error("set up", f"device {device.name}", reason, retryable=False)
        if not driver.available():
            reason = (
                f"no {driver.implementation} WireGuard here: load the kernel's module, or install wireguard-go"
            )
            raise wireguard_error("set up", f"device {device.name}", reason)
        raw = driver.read() if self._make_room(driver) else None
        if raw is None:
            driver.create()
            self._device, self._applied = None, {}
        _configure(device, private_key, driver, raw or driver.read() or RawDevice())
        self._device = device

    def _make_room(self, driver: Driver) -> bool:
        """Return whether the agent's device of that driver exists; delete one of the other implementation."""
        existing = self._find()
        if existing is not None:
            if existing[1] is not driver:
                existing[1].remove()
            return existing[1] is driver
        link = read_link(self.name)
        # A device without mark and configuration: the agent ended between creating and marking it.
        if link is not None and (link.kind != driver.kind or link.state.up or read_addresses(link)):
            reason = "a device of that name is not ours: remove it, or configure another name"
            raise wireguard_error("set up", f"device {self.name}", reason)
        return False


def _configure(device: WireGuardDevice, private_key: bytes, driver: Driver, raw: RawDevice) -> None:
    """Configure the device, whose state is `raw`."""
    other_key = raw.public_key != device.public_key
    peers: list[PeerChange] = []
    if raw.public_key and other_key:
        log.info("device %s gets public key %s, before: %s", device.name, device.public_key, raw.public_key)
        # Enabling keepalives sends one at once, which starts a handshake with each peer even without traffic.
        kept_alive = [peer for peer in raw.peers.values() if peer.keepalive]
        peers = [PeerChange(public_key=p.public_key, keepalive=s) for p in kept_alive for s in (0, p.keepalive)]
    change = DeviceChange(
        private_key=private_key if other_key else None,
        listen_port=device.listen_port if raw.listen_port != device.listen_port else None,
        fwmark=device.fwmark if raw.fwmark != device.fwmark else None,
        peers=peers,
    )
    try:
        driver.write(change)
        configure(device)
    except BackendError as error:
        in_use = error.reason == os.strerror(errno.EADDRINUSE)
        reason = f"UDP port {device.listen_port} is already in use" if in_use else error.reason
        raise wireguard_error("set up", f"device {device.name}", reason) from None
