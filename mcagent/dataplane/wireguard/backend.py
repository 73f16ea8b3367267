"""The WireGuard backend: the device of encrypted traffic between clusters, and its peers.

Owns the device of one name, made by it and marked as its own, and the choice of an implementation. `replace_peers`
is never used: a change is one of the peer it concerns.
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
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, Resource, ResourceKey
from mcagent.model.wireguard import WireGuardDevice, WireGuardImplementation, WireGuardPeer, WireGuardPeerStatus

log = logging.getLogger(__name__)

AGAIN = 60.0  # seconds between questions for an implementation: each has the kernel look for a module


class WireGuardBackend:
    """WireGuard device and peers of the calling thread's network namespace. Safe for several threads.

    Unlike other backends it acts by itself in one case: see `hand_over`.
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
        """Remember what is ours; nothing is opened or run before the first call.

        `device` is a name that is ours alone; `run_directory` is where the record of the wireguard-go process is
        kept while it runs. `implementation` is the only one to use (None: the kernel's where there is one).
        """
        self._name = device
        self._keys = keys
        self._userspace = WireGuardGo(device, run_directory)
        self._drivers: tuple[Driver, ...] = (KernelDriver(device), self._userspace)
        self._allowed = [one for one in self._drivers if implementation in {None, one.implementation}]
        self._chosen: WireGuardImplementation | None = None
        self._asked = -math.inf  # monotonic seconds
        self._lock = threading.RLock()  # held while the device is read or changed
        # What was last applied or observed; peers by public key.
        self._made: WireGuardDevice | None = None
        self._applied: dict[str, WireGuardPeer] = {}

    # --- the backend's contract -------------------------------------------------------------------------

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return our device and its peers. Raises BackendError when the kernel cannot be asked."""
        with self._lock:
            self._made, self._applied = self._look()
            device = () if self._made is None else (self._made,)
            return {one.key: one for one in (*device, *self._applied.values())}

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so, runs of peers together; one refusal stops no other."""
        failed: dict[int, BackendError] = {}
        with self._lock:
            read_link(self._name)  # whether the kernel can be asked at all
            for kind, run in groupby(enumerate(steps), key=lambda one: type(one[1].resource)):
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
        """Device, peers and wireguard-go stay; nothing else is open."""

    # --- facts and state --------------------------------------------------------------------------------

    def implementation(self) -> WireGuardImplementation | None:
        """Return what a new device is made with; None if there is neither. Raises BackendError.

        It stays what it was first: a device does not change its implementation under way.
        """
        with self._lock:
            if self._chosen is None and time.monotonic() - self._asked > AGAIN:
                self._chosen = next((one.implementation for one in self._allowed if one.available()), None)
                self._asked = time.monotonic()
            return self._chosen

    def keys(self) -> Keys:
        """Return this Node's keys, making them on first use. Raises BackendError for an unusable key file.

        Where the file was lost but our device still has its key, that one is kept.
        """
        with self._lock:
            return self._keys.ensure(self._key_in_use)

    def statuses(self) -> tuple[WireGuardPeerStatus, ...]:
        """Return what the device says of each of its peers. Raises BackendError."""
        with self._lock:
            found = self._running()
        device = found[1] if found is not None else RawDevice()
        key, port = device.public_key, device.listen_port
        return tuple(replace(peer, device_key=key, device_port=port) for peer in device.peers.values())

    @property
    def restarts(self) -> int:
        """How many wireguard-go processes were started in place of one that died."""
        return self._userspace.restarts

    def process(self) -> int | None:
        """Return the number of our device's wireguard-go process; None where none lives."""
        with self._lock:
            return self._userspace.process()

    def bind_again(self) -> None:
        """Make wireguard-go forget by which address it reached its peers. Raises BackendError.

        The builds before 2023 keep sending from an address that the Node has no longer.
        """
        with self._lock:
            found = self._running()
            if found is not None and found[0] is self._userspace:
                self._userspace.write(DeviceChange(listen_port=found[1].listen_port))

    @property
    def awaits_keys(self) -> bool:
        """Whether a peer has announced a key: `hand_over` is to be called often."""
        with self._lock:
            return any(peer.successor for peer in self._applied.values())

    def hand_over(self) -> None:
        """Move the networks of each peer that has begun to use the key it announced. Raises BackendError.

        What such a peer sends is dropped until then: WireGuard takes from a key only what comes from its networks.
        """
        with self._lock:
            found = self._running()
            changes = handovers(self._applied, found[1].peers) if found is not None else []
            if found is not None and changes:
                found[0].write(DeviceChange(peers=changes))
                for key in (one.public_key for one in changes if one.allowed_ips):
                    log.info("a peer of %s uses the key now that it announced: %s", self._name, key)

    def disturbed(self) -> bool:
        """Tell whether device or peers differ from what was last applied or observed. Raises BackendError."""
        with self._lock:
            return self._look() != (self._made, self._applied)

    # --- reading ----------------------------------------------------------------------------------------

    def _find(self) -> tuple[RawLink, Driver] | None:
        """Return our device and what drives it; None where there is none, or it is not ours."""
        link = read_link(self._name)
        if link is None or link.alias != LINK_ALIAS:
            return None
        return next(((link, driver) for driver in self._drivers if driver.kind == link.kind), None)

    def _running(self) -> tuple[Driver, RawDevice] | None:
        """Return what drives our device, and what that says; None where none of ours runs."""
        found = self._find()
        raw = found[1].read() if found is not None else None
        return (found[1], raw) if found is not None and raw is not None else None

    def _look(self) -> tuple[WireGuardDevice | None, dict[str, WireGuardPeer]]:
        found = self._find()
        if found is None:
            return None, {}
        link, driver = found
        raw = driver.read()
        device = device_resource(link, driver.implementation, raw)
        peers = observed_peers(self._name, raw.peers if raw is not None else {}, self._applied, time.time())
        return device, {peer.public_key: peer for peer in peers}

    def _key_in_use(self) -> bytes | None:
        found = self._running()
        key = found[1].private_key if found is not None else None
        if key is not None:
            log.warning("key file %s was lost; device %s still has the key: kept", self._keys.path, self._name)
        return key

    # --- changing ---------------------------------------------------------------------------------------

    def _change_device(self, steps: Mapping[int, Step]) -> None:
        for step in steps.values():
            if isinstance(step.new, WireGuardDevice):
                self._put_device(step.new)
            else:
                found = self._find()
                if found is not None:
                    found[1].remove()
                self._made, self._applied = None, {}

    def _put_device(self, device: WireGuardDevice) -> None:
        """Make the device so. One of ours of the other implementation gives way; its peers stay otherwise."""
        keys = self._keys.load()
        private_key = keys.private_of(device.public_key) if keys is not None else None
        if private_key is None:
            reason = f"key file {self._keys.path} has no private key for {device.public_key}"
            raise wireguard_error("set up", f"device {device.name}", reason, retryable=False)
        driver = next(one for one in self._drivers if one.implementation is device.implementation)
        if not driver.available():
            reason = (
                f"no {driver.implementation} WireGuard here: load the kernel's module, or install wireguard-go"
            )
            raise wireguard_error("set up", f"device {device.name}", reason)
        raw = driver.read() if self._make_room(driver) else None
        if raw is None:
            driver.create()
            self._made, self._applied = None, {}
        _bring(device, private_key, driver, raw or driver.read() or RawDevice())
        self._made = device

    def _make_room(self, driver: Driver) -> bool:
        """Tell whether our device is there as that driver makes it; one of the other implementation is removed."""
        found = self._find()
        if found is not None:
            if found[1] is not driver:
                found[1].remove()
            return found[1] is driver
        link = read_link(self._name)
        # One without our mark that nobody has set up: we were ended between making and marking it.
        if link is not None and (link.kind != driver.kind or link.state.up or read_addresses(link)):
            reason = "a device of that name is not ours: remove it, or configure another name"
            raise wireguard_error("set up", f"device {self._name}", reason)
        return False

    def _change_peers(self, steps: Mapping[int, Step]) -> dict[int, BackendError]:
        found = self._running()
        if found is None:
            reason = "no such device of ours, or it is not running"
            missing = wireguard_error("change", f"peers of device {self._name}", reason)
            return {place: missing for place, step in steps.items() if step.new is not None}
        self._applied, failed = change_peers(*found, self._applied, steps)
        return failed


def _bring(device: WireGuardDevice, private_key: bytes, driver: Driver, raw: RawDevice) -> None:
    """Make the device, which says `raw`, what it should be."""
    other_key = raw.public_key != device.public_key
    peers: list[PeerChange] = []
    if raw.public_key and other_key:
        log.info("device %s gets public key %s, before: %s", device.name, device.public_key, raw.public_key)
        # Turned on, a keepalive is sent at once: each peer is shaken hands with, traffic or none.
        kept_alive = [one for one in raw.peers.values() if one.keepalive]
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
