"""The WireGuard backend: the device of encrypted traffic between clusters, and its peers.

Owns the device of one name, which it creates and marks, and the choice of an implementation. WireGuard's
`replace_peers` is never used: a change concerns single peers.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from mcagent.dataplane.netlink.links import LINK_ALIAS, RawLink
from mcagent.dataplane.wireguard.device import configure, device_resource, read_addresses, read_link
from mcagent.dataplane.wireguard.driver import DeviceChange, Driver, PeerChange, RawDevice, wireguard_error
from mcagent.dataplane.wireguard.kernel import KernelDriver
from mcagent.dataplane.wireguard.keys import Keys, KeyStore
from mcagent.dataplane.wireguard.peers import change_peers, handovers, observed_peers
from mcagent.dataplane.wireguard.userspace import WireGuardGo
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import Resource, ResourceKey
from mcagent.model.dataplane.wireguard import (
    WireGuardDevice,
    WireGuardImplementation,
    WireGuardPeer,
    WireGuardPeerStatus,
)
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step

log = logging.getLogger(__name__)

RETRY = 60.0  # seconds between searches for an implementation: each makes the kernel search for a module


class WireGuardBackend:
    """WireGuard device and peers of the calling thread's network namespace. Thread-safe.

    Unlike other backends it changes resources outside of `apply` in one case: see `hand_over`.
    """

    name = Backend.WIREGUARD

    def __init__(
        self,
        *,
        device: str,
        keys: KeyStore,
        run_directory: Path,
        implementation: WireGuardImplementation | None = None,
    ) -> None:
        """Opens and runs nothing before the first call.

        `device` is the name of the agent's device; `run_directory` is for the record of the wireguard-go process.
        `implementation` is the only one to use (None: the kernel's where it exists).
        """
        self._name = device
        self._keys = keys
        self._userspace = WireGuardGo(device, run_directory)
        self._drivers: tuple[Driver, ...] = (KernelDriver(device), self._userspace)
        self._allowed = [driver for driver in self._drivers if implementation in {None, driver.implementation}]
        self._chosen: WireGuardImplementation | None = None
        self._searched = -math.inf  # monotonic seconds
        self._lock = threading.RLock()  # guards the device and all below
        # As last applied or observed; peers by public key.
        self._device: WireGuardDevice | None = None
        self._applied: dict[str, WireGuardPeer] = {}

    # --- the backend's contract -------------------------------------------------------------------------

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Read the agent's device and its peers. Raises BackendError when the kernel cannot be read."""
        with self._lock:
            self._device, self._applied = self._read_resources()
            device = () if self._device is None else (self._device,)
            return {resource.key: resource for resource in (*device, *self._applied.values())}

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Carry out the steps, adjacent steps on peers together; a refused step stops no other."""
        failed: dict[int, BackendError] = {}
        with self._lock:
            read_link(self._name)  # raises if the kernel cannot be read
            for kind, run in groupby(enumerate(steps), key=lambda item: type(item[1].resource)):
                batch = dict(run)
                try:
                    if kind is WireGuardPeer:
                        failed |= self._change_peers(batch)
                    else:
                        self._change_device(batch)
                except BackendError as error:
                    failed |= dict.fromkeys(batch, error)
        return ApplyResult.of(steps, failed)

    def close(self) -> None:
        """Does nothing: device, peers and wireguard-go stay."""

    # --- facts and state --------------------------------------------------------------------------------

    def implementation(self) -> WireGuardImplementation | None:
        """Return the implementation for a new device; None: there is none. Raises BackendError.

        The first result is kept: a device does not change its implementation while it is in use.
        """
        with self._lock:
            if self._chosen is None and time.monotonic() - self._searched > RETRY:
                self._chosen = next(
                    (driver.implementation for driver in self._allowed if driver.available()), None
                )
                self._searched = time.monotonic()
            return self._chosen

    def keys(self) -> Keys:
        """Return this Node's keys; generate them on first use. Raises BackendError for an unusable key file.

        If the file was lost but the agent's device still has its key, that key is kept.
        """
        with self._lock:
            return self._keys.ensure(self._key_in_use)

    def statuses(self) -> tuple[WireGuardPeerStatus, ...]:
        """Read the status of each peer of the device. Raises BackendError."""
        with self._lock:
            running = self._running()
        device = running[1] if running is not None else RawDevice()
        key, port = device.public_key, device.listen_port
        return tuple(replace(peer, device_key=key, device_port=port) for peer in device.peers.values())

    @property
    def restarts(self) -> int:
        """Number of wireguard-go processes that replaced one that died."""
        return self._userspace.restarts

    def process(self) -> int | None:
        """Return the PID of the device's wireguard-go process; None: it does not run."""
        with self._lock:
            return self._userspace.process()

    def rebind(self) -> None:
        """Make wireguard-go open its socket again, without a source address. Raises BackendError.

        Builds before 2023 keep sending from an address that the Node has lost.
        """
        with self._lock:
            running = self._running()
            if running is not None and running[0] is self._userspace:
                self._userspace.write(DeviceChange(listen_port=running[1].listen_port))

    @property
    def awaits_keys(self) -> bool:
        """Whether a peer has announced a key, so that `hand_over` has to be called often."""
        with self._lock:
            return any(peer.successor for peer in self._applied.values())

    def hand_over(self) -> None:
        """Move the networks of each peer that has begun to use its announced key. Raises BackendError.

        Packets of such a peer are dropped until then: WireGuard accepts from a key only its networks.
        """
        with self._lock:
            running = self._running()
            changes = handovers(self._applied, running[1].peers) if running is not None else []
            if running is not None and changes:
                running[0].write(DeviceChange(peers=changes))
                for key in (change.public_key for change in changes if change.allowed_ips):
                    log.info("a peer of %s uses the key now that it announced: %s", self._name, key)

    def differs(self) -> bool:
        """Return whether device or peers differ from those last applied or observed. Raises BackendError."""
        with self._lock:
            return self._read_resources() != (self._device, self._applied)

    # --- reading ----------------------------------------------------------------------------------------

    def _find(self) -> tuple[RawLink, Driver] | None:
        """Return the agent's device and its driver; None: there is none with the agent's mark."""
        link = read_link(self._name)
        if link is None or link.alias != LINK_ALIAS:
            return None
        return next(((link, driver) for driver in self._drivers if driver.kind == link.kind), None)

    def _running(self) -> tuple[Driver, RawDevice] | None:
        """Return the driver of the agent's device and its state; None: the device does not run."""
        existing = self._find()
        if existing is None:
            return None
        _, driver = existing
        raw = driver.read()
        return (driver, raw) if raw is not None else None

    def _read_resources(self) -> tuple[WireGuardDevice | None, dict[str, WireGuardPeer]]:
        existing = self._find()
        if existing is None:
            return None, {}
        link, driver = existing
        raw = driver.read()
        device = device_resource(link, driver.implementation, raw)
        peers = observed_peers(self._name, raw.peers if raw is not None else {}, self._applied, time.time())
        return device, {peer.public_key: peer for peer in peers}

    def _key_in_use(self) -> bytes | None:
        running = self._running()
        key = running[1].private_key if running is not None else None
        if key is not None:
            log.warning("key file %s was lost; device %s still has the key: kept", self._keys.path, self._name)
        return key

    # --- changing ---------------------------------------------------------------------------------------

    def _change_device(self, steps: Mapping[int, Step]) -> None:
        for step in steps.values():
            if isinstance(step.new, WireGuardDevice):
                self._put_device(step.new)
            else:
                existing = self._find()
                if existing is not None:
                    existing[1].remove()
                self._device, self._applied = None, {}

    def _put_device(self, device: WireGuardDevice) -> None:
        """Configure the device; its peers stay.

        The agent's device of the other implementation is deleted first.
        """
        keys = self._keys.load()
        private_key = keys.private_of(device.public_key) if keys is not None else None
        if private_key is None:
            reason = f"key file {self._keys.path} has no private key for {device.public_key}"
            raise wireguard_error("set up", f"device {device.name}", reason, retryable=False)
        driver = next(item for item in self._drivers if item.implementation is device.implementation)
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
        link = read_link(self._name)
        # A device without mark and configuration: the agent ended between creating and marking it.
        if link is not None and (link.kind != driver.kind or link.state.up or read_addresses(link)):
            reason = "a device of that name is not ours: remove it, or configure another name"
            raise wireguard_error("set up", f"device {self._name}", reason)
        return False

    def _change_peers(self, steps: Mapping[int, Step]) -> dict[int, BackendError]:
        running = self._running()
        if running is None:
            reason = "no such device of ours, or it is not running"
            missing = wireguard_error("change", f"peers of device {self._name}", reason)
            return {place: missing for place, step in steps.items() if step.new is not None}
        self._applied, failed = change_peers(*running, self._applied, steps)
        return failed


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
