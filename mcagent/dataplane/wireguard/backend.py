"""The WireGuard backend: the device of encrypted traffic between clusters, and its peers.

Owns the devices it is given by name, made by it and marked as its own. `replace_peers` is never used: a change is
one of the peer it concerns.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from mcagent.dataplane.nft.process import run_nft
from mcagent.dataplane.wireguard.apply import change_peers, put_device
from mcagent.dataplane.wireguard.driver import DeviceChange, RawDevice, wireguard_error
from mcagent.dataplane.wireguard.keys import Keys, KeyStore
from mcagent.dataplane.wireguard.link import read_link
from mcagent.dataplane.wireguard.observe import OwnDevices, device_resource, read_running
from mcagent.dataplane.wireguard.peers import handovers, observed_peers
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, Resource, ResourceKey
from mcagent.model.wireguard import WireGuardDevice, WireGuardImplementation, WireGuardPeer

log = logging.getLogger(__name__)

FORMER_TABLE = "mcagent-rekey"  # of family inet: an earlier agent's, which it used while a key changed


class WireGuardBackend:
    """WireGuard devices and peers of the calling thread's network namespace.

    Unlike other backends it acts by itself in one case: see `hand_over`.
    """

    name = Backend.WIREGUARD

    def __init__(
        self,
        *,
        devices: Sequence[str],
        keys: KeyStore,
        run_directory: Path,
        implementation: WireGuardImplementation | None = None,
        binary: str = "wireguard-go",
    ) -> None:
        """Remember what is ours; nothing is opened or run before the first call.

        `devices` are names that are ours alone; `run_directory` is where records of wireguard-go processes are
        kept while they run. `implementation` is the only one to use (None: the kernel's where there is one).
        """
        self.own = OwnDevices(devices, run_directory=run_directory, binary=binary, only=implementation)
        self._lock = self.own.lock
        self._keys = keys
        self._applied: dict[str, dict[str, WireGuardPeer]] = {}  # by device and public key
        self._made: dict[str, WireGuardDevice] = {}

    # --- the backend's contract -------------------------------------------------------------------------

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return our devices and their peers. Raises BackendError when the kernel cannot be asked."""
        with self._lock:
            found = self._look()
            self._applied = {}
            for resource in found.values():
                if isinstance(resource, WireGuardPeer):
                    self._applied.setdefault(resource.device, {})[resource.public_key] = resource
            self._made = {one.name: one for one in found.values() if isinstance(one, WireGuardDevice)}
            return dict(found)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so, devices one by one and runs of peers together; one refusal stops no other."""
        done: list[Step] = []
        failed: list[tuple[Step, BackendError]] = []
        with self._lock:
            for name in self.own.names:
                read_link(name)  # whether the kernel can be asked at all
            for device, run in groupby(steps, key=_device_of):
                batch = list(run)
                outcome = self._peers(device, batch) if device else [self._device(step) for step in batch]
                for step, error in zip(batch, outcome, strict=True):
                    if error is None:
                        done.append(step)
                    else:
                        failed.append((step, error))
        return ApplyResult(done=tuple(done), failed=tuple(failed))

    def close(self) -> None:
        """Devices, peers and wireguard-go stay; nothing else is open."""

    # --- facts and state --------------------------------------------------------------------------------

    def keys(self) -> Keys:
        """Return this Node's keys, making them on first use. Raises BackendError for an unusable key file.

        Where the file was lost but a device of ours still has its key, that one is kept.
        """
        with self._lock:
            return self._keys.ensure(self._key_in_use)

    @property
    def awaits_keys(self) -> bool:
        """Whether a peer has announced a key: `hand_over` is to be called often."""
        with self._lock:
            return any(peer.successor for peers in self._applied.values() for peer in peers.values())

    def hand_over(self) -> None:
        """Move the networks of each peer that has begun to use the key it announced. Raises BackendError.

        What such a peer sends is dropped until then: WireGuard takes from a key only what comes from its networks.
        """
        with self._lock:
            for device, peers in self._applied.items():
                found = self.own.find(device) if any(peer.successor for peer in peers.values()) else None
                raw = read_running(device, found[1]) if found is not None else None
                changes = handovers(peers, raw.peers) if raw is not None else []
                if found is not None and changes:
                    found[1].write(device, DeviceChange(peers=changes))
                    for key in (one.public_key for one in changes if one.allowed_ips):
                        log.info("a peer of %s uses the key now that it announced: %s", device, key)

    def disturbed(self) -> bool:
        """Tell whether devices or peers differ from what was last applied or observed. Raises BackendError."""
        with self._lock:
            expected: dict[ResourceKey, Resource] = {one.key: one for one in self._made.values()}
            expected |= {peer.key: peer for peers in self._applied.values() for peer in peers.values()}
            return self._look() != expected

    # --- reading ----------------------------------------------------------------------------------------

    def _look(self) -> dict[ResourceKey, WireGuardDevice | WireGuardPeer]:
        found: dict[ResourceKey, WireGuardDevice | WireGuardPeer] = {}
        now = time.time()
        for name in self.own.names:
            ours = self.own.find(name)
            if ours is None:
                continue
            link, driver = ours
            raw = read_running(name, driver)
            running = raw is not None
            raw = raw or RawDevice(public_key="", listen_port=0, fwmark=0)
            device = device_resource(name, link, driver.implementation, raw, running=running)
            found[device.key] = device
            for peer in observed_peers(name, raw.peers, self._applied.get(name, {}), now):
                found[peer.key] = peer
        return found

    def _key_in_use(self) -> bytes | None:
        for name in self.own.names:
            raw = self.own.read(name)
            if raw is not None and raw.private_key is not None:
                log.warning("key file %s was lost; device %s still has the key: kept", self._keys.path, name)
                return raw.private_key
        return None

    def _forget(self, name: str) -> None:
        self._applied.pop(name, None)
        self._made.pop(name, None)

    # --- devices ----------------------------------------------------------------------------------------

    def _device(self, step: Step) -> BackendError | None:
        resource = step.new or step.old
        try:
            if not isinstance(resource, WireGuardDevice):
                raise wireguard_error(step.op, repr(resource), "is no resource of WireGuard", retryable=False)
            if resource.name not in self.own.names:
                raise wireguard_error(step.op, f"device {resource.name}", "is not ours", retryable=False)
            if step.new is None:
                self._remove_device(resource.name)
            else:
                self._put_device(resource)
        except BackendError as error:
            return error
        return None

    def _remove_device(self, name: str) -> None:
        ours = self.own.find(name)
        if ours is not None:
            ours[1].remove(name)
        remove_former_table()
        self._forget(name)

    def _put_device(self, device: WireGuardDevice) -> None:
        keys = self._keys.load()
        private = keys.private_of(device.public_key) if keys is not None else None
        if private is None:
            reason = f"key file {self._keys.path} has no private key for {device.public_key}"
            raise wireguard_error("set up", f"device {device.name}", reason, retryable=False)
        if put_device(device, private, self.own.drivers):
            self._forget(device.name)
        self._made[device.name] = device

    # --- peers ------------------------------------------------------------------------------------------

    def _peers(self, device: str, steps: Sequence[Step]) -> list[BackendError | None]:
        try:
            ours = self.own.find(device) if device in self.own.names else None
            if ours is None or not ours[1].running(device):
                reason = "there is no such device of ours, or it does not run"
                missing = wireguard_error("change", f"peers of device {device}", reason)
                return [None if step.new is None else missing for step in steps]
            before = self._applied.get(device, {})
            self._applied[device], outcome = change_peers(device, ours[1], before, steps)
        except BackendError as error:
            return [error] * len(steps)
        return outcome


def remove_former_table() -> None:
    """Take away what an earlier agent left, if it did; its rules have ended by themselves."""
    with contextlib.suppress(OSError):
        run_nft(["-f", "-"], f"add table inet {FORMER_TABLE}\ndelete table inet {FORMER_TABLE}\n")


def _device_of(step: Step) -> str:
    """Return the device of a peer's step, "" for any other step."""
    resource = step.new or step.old
    return resource.device if isinstance(resource, WireGuardPeer) else ""
