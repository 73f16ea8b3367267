"""The WireGuard backend: the devices of encrypted traffic between clusters, and their peers.

Owns the devices of certain names, which it creates and marks, and the choice of an implementation. WireGuard's
`replace_peers` is never used: a change concerns single peers.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from mcagent.dataplane.wireguard.device import read_link
from mcagent.dataplane.wireguard.driver import DeviceChange, Driver, wireguard_error
from mcagent.dataplane.wireguard.kernel import KernelDriver
from mcagent.dataplane.wireguard.keys import Keys, KeyStore
from mcagent.dataplane.wireguard.own_device import OwnDevice
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
    """WireGuard devices and peers of the calling thread's network namespace. Thread-safe.

    Unlike other backends it changes resources outside of `apply` in one case: see `hand_over`.
    """

    name = Backend.WIREGUARD

    def __init__(
        self,
        *,
        devices: Sequence[str],
        keys: KeyStore,
        run_directory: Path,
        implementation: WireGuardImplementation | None = None,
    ) -> None:
        """Opens and runs nothing before the first call.

        `devices` are the names of the agent's devices: the first may be of either implementation, the others are
        the kernel's. `run_directory` is for the record of the wireguard-go process. `implementation` is the only
        one to use (None: the kernel's where it exists).
        """
        first, *further = devices
        self._keys = keys
        self._userspace = WireGuardGo(first, run_directory)
        drivers: tuple[Driver, ...] = (KernelDriver(first), self._userspace)
        self._allowed = [driver for driver in drivers if implementation in {None, driver.implementation}]
        self._first = OwnDevice(first, drivers, keys, self._several)
        self._further = tuple(OwnDevice(name, (KernelDriver(name),), keys, self._several) for name in further)
        self._devices = {device.name: device for device in (self._first, *self._further)}
        self._chosen: WireGuardImplementation | None = None
        self._searched = -math.inf  # monotonic seconds
        self._observed = False
        self._reported: frozenset[tuple[str, str]] = frozenset()  # last returned by `ready`
        self._lock = threading.RLock()  # guards the devices and all of the above

    # --- the backend's contract -------------------------------------------------------------------------

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Read the agent's devices and their peers. Raises BackendError when the kernel cannot be read."""
        with self._lock:
            resources = [resource for device in self._devices.values() for resource in device.observe()]
            self._observed = True
        return {resource.key: resource for resource in resources}

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Carry out the steps, adjacent steps on a device's peers together; a refused step stops no other."""
        failed: dict[int, BackendError] = {}
        with self._lock:
            read_link(self._first.name)  # raises if the kernel cannot be read
            for (kind, name), run in groupby(enumerate(steps), key=lambda item: _subject(item[1])):
                batch = dict(run)
                try:
                    device = self._device(name)
                    if kind is WireGuardPeer:
                        failed |= device.change_peers(batch)
                    else:
                        for step in batch.values():
                            device.change_device(step)
                except BackendError as error:
                    failed |= dict.fromkeys(batch, error)
        return ApplyResult.of(steps, failed)

    def close(self) -> None:
        """Does nothing: devices, peers and wireguard-go stay."""

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

        If the file was lost but a device of the agent still has its key, that key is kept.
        """
        with self._lock:
            return self._keys.ensure(self._key_in_use)

    def statuses(self) -> tuple[WireGuardPeerStatus, ...]:
        """Read the status of each peer of each device. Raises BackendError."""
        with self._lock:
            running = {name: device.running() for name, device in self._devices.items()}
        return tuple(
            replace(
                peer,
                device=name,
                device_key=state[1].public_key,
                device_port=state[1].listen_port,
                silent=peer.public_key in self._devices[name].silent,
            )
            for name, state in running.items()
            if state is not None
            for peer in state[1].peers.values()
        )

    def ready(self) -> frozenset[tuple[str, str]]:
        """Return device and public key of the peers that are in a session and answer, by the last reading.

        Empty while no further device has any: then the first one is used in any case.
        """
        with self._lock:
            if not self._observed:  # an agent that starts anew must not take all for unused
                with contextlib.suppress(BackendError):
                    self.observe()
            self._reported = self._sessions()
            return self._reported

    @property
    def restarts(self) -> int:
        """Number of wireguard-go processes that replaced one that died."""
        return self._userspace.restarts

    def process(self) -> int | None:
        """Return the PID of the first device's wireguard-go process; None: it does not run."""
        with self._lock:
            return self._userspace.process()

    def rebind(self) -> None:
        """Make wireguard-go open its socket again, without a source address. Raises BackendError.

        Builds before 2023 keep sending from an address that the Node has lost.
        """
        with self._lock:
            running = self._first.running()
            if running is not None and running[0] is self._userspace:
                self._userspace.write(DeviceChange(listen_port=running[1].listen_port))

    @property
    def awaits_keys(self) -> bool:
        """Whether a peer has announced a key, so that `hand_over` has to be called often."""
        with self._lock:
            return any(device.awaits_keys for device in self._devices.values())

    def hand_over(self) -> None:
        """Move the networks of each peer that has begun to use its announced key. Raises BackendError.

        Packets of such a peer are dropped until then: WireGuard accepts from a key only its networks.
        """
        with self._lock:
            for device in self._devices.values():
                if device.awaits_keys:
                    device.hand_over()

    def differs(self) -> bool:
        """Return whether devices or peers differ from those last applied or observed. Raises BackendError.

        Also, whether `ready` would return another set than last time.
        """
        with self._lock:
            differences = [device.differs() for device in self._devices.values()]  # reads all of them
            return any(differences) or self._sessions() != self._reported

    # --- devices ----------------------------------------------------------------------------------------

    def _device(self, name: str) -> OwnDevice:
        device = self._devices.get(name)
        if device is None:
            raise wireguard_error("change", f"device {name}", "it is not ours", retryable=False)
        return device

    def _several(self) -> bool:
        """Return whether the agent has more than one device. Raises BackendError."""
        return any(device.exists() for device in self._further)

    def _sessions(self) -> frozenset[tuple[str, str]]:
        if not any(device.live for device in self._further):
            return frozenset()
        return frozenset((device.name, key) for device in self._devices.values() for key in device.live)

    def _key_in_use(self) -> bytes | None:
        for name, device in self._devices.items():
            running = device.running()
            key = running[1].private_key if running is not None else None
            if key is not None:
                log.warning("key file %s was lost; device %s still has the key: kept", self._keys.path, name)
                return key
        return None


def _subject(step: Step) -> tuple[type[Resource], str]:
    """Return the kind of a step's resource and the name of the device that it concerns."""
    resource = step.resource
    if isinstance(resource, WireGuardPeer):
        return WireGuardPeer, resource.device
    return WireGuardDevice, str(resource.key[1])
