"""The WireGuard backend: the device of encrypted traffic between clusters, and its peers.

Owns the devices it is given by name, made by it and marked as its own. Puts together which those are
(`wireguard_own`), a device's link (`wireguard_link`), what encrypts (`wireguard_kernel`, `wireguard_go`), keys
(`wireguard_keys`, `wireguard_turn`) and decisions about peers (`wireguard_peers`). `replace_peers` is never used:
a change is one of the peer it concerns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from mcagent.dataplane.wireguard_change import change_peers
from mcagent.dataplane.wireguard_device import device_resource, put_device
from mcagent.dataplane.wireguard_driver import DeviceChange, Endpoint, PeerChange, RawDevice, wireguard_error
from mcagent.dataplane.wireguard_handover import Handover
from mcagent.dataplane.wireguard_keys import Keys, KeyStore
from mcagent.dataplane.wireguard_link import read_link
from mcagent.dataplane.wireguard_own import OwnDevices, read_running
from mcagent.dataplane.wireguard_peers import drop_old, handover, observed_peers, whole
from mcagent.dataplane.wireguard_rekey import Rekey
from mcagent.dataplane.wireguard_turn import KeyTurn
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, Resource, ResourceKey
from mcagent.model.wireguard import WireGuardDevice, WireGuardImplementation, WireGuardPeer

log = logging.getLogger(__name__)


class WireGuardBackend:
    """WireGuard devices and peers of the calling thread's network namespace.

    Unlike other backends it acts by itself in one case: see `WireGuardPeer.successor`.
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
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Remember what is ours; nothing is opened or run before the first call.

        `devices` are names that are ours alone; `run_directory` is where records of wireguard-go processes are
        kept while they run. `implementation` is the only one to use (None: the kernel's where there is one).
        `changed` is called, from another thread, after a peer was handed over to its successor.
        """
        self.own = OwnDevices(devices, run_directory=run_directory, binary=binary, only=implementation)
        self._lock = self.own.lock
        self._keys = keys
        self._changed = changed
        self._applied: dict[str, dict[str, WireGuardPeer]] = {}  # by device and public key
        self._made: dict[str, WireGuardDevice] = {}
        self._unanswered: list[tuple[str, WireGuardPeer]] = []  # handed over, and no handshake seen yet
        self._handed: set[str] = set()  # keys that were announced, and that their owners use now
        self._rekey = Rekey()
        self._turn = KeyTurn(self.own, keys, self._rekey)
        self._handover = Handover(self._private_keys, self._shaken_hands, self._look_back)

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
            self._watch_initiations()
        return ApplyResult(done=tuple(done), failed=tuple(failed))

    def close(self) -> None:
        """End the watch for handshakes; devices, peers and wireguard-go stay."""
        self._handover.watch(0)

    # --- facts and state --------------------------------------------------------------------------------

    def keys(self) -> Keys:
        """Return this Node's keys, making them on first use. Raises BackendError for an unusable key file.

        Where the file was lost but a device of ours still has its key, that one is kept.
        """
        with self._lock:
            return self._keys.ensure(self._key_in_use)

    def public_keys(self) -> tuple[str, str]:
        """Return the key to use and publish now, and the one announced to follow it: see `KeyTurn`."""
        with self._lock:
            return self._turn.public_keys(self.keys(), self._applied)

    def retire(self) -> None:
        """Forget the key used before this one as soon as no peer can be using it. Raises BackendError."""
        with self._lock:
            self._turn.retire()

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
        found = self.own.private_key()
        if found is None:
            return None
        log.warning("key file %s was lost; device %s still has the key: kept", self._keys.path, found[0])
        return found[1]

    def _forget(self, name: str) -> None:
        self._applied.pop(name, None)
        self._made.pop(name, None)
        self._handed.clear()

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
        self._rekey.end()
        self._forget(name)

    def _put_device(self, device: WireGuardDevice) -> None:
        keys = self._keys.load()
        private = keys.private_of(device.public_key) if keys is not None else None
        if private is None:
            reason = f"key file {self._keys.path} has no private key for {device.public_key}"
            raise wireguard_error("set up", f"device {device.name}", reason, retryable=False)
        if put_device(device, private, self.own.drivers, self._rekey):
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
            self._handed -= {step.new.successor for step in steps if isinstance(step.new, WireGuardPeer)}
            self._applied[device], outcome = change_peers(device, ours[1], before, steps)
        except BackendError as error:
            return [error] * len(steps)
        return outcome

    # --- peers that change their key --------------------------------------------------------------------

    def _watch_initiations(self) -> None:
        ports = {
            self._made[device].listen_port
            for device, peers in self._applied.items()
            if device in self._made and any(peer.successor for peer in peers.values())
        }
        self._handover.watch(next(iter(ports), 0))

    def _private_keys(self) -> list[bytes]:
        keys = self._keys.load()
        return [pair.private for pair in keys.all] if keys is not None else []

    def _shaken_hands(self, public_key: str, endpoint: Endpoint) -> None:
        """Give the peer's networks to the key that it now uses."""
        with self._lock:
            for device, peers in self._applied.items():
                for peer in peers.values():
                    if peer.successor == public_key:
                        self._hand_over(device, replace(peer, endpoint=endpoint))

    def _hand_over(self, device: str, peer: WireGuardPeer) -> None:
        made = self._made.get(device)
        if made is None or peer.successor in self._handed:  # a later handshake under the same key
            return
        self._rekey.let(peer.endpoint[0])  # our own change may not be over; it is this side now that begins
        # Nothing is read before: with a thousand peers that takes long, and the peer is waiting.
        self.own.drivers[made.implementation].write(device, DeviceChange(peers=handover(peer)))
        self._handed.add(peer.successor)
        self._unanswered.append((device, peer))
        log.info("peer %s of %s uses its next key now: %s", peer.public_key, device, peer.successor)
        self._changed()

    def _look_back(self) -> None:
        """Take away old keys of peers that were handed over; begin anew with those that did not shake hands."""
        with self._lock:
            unanswered, self._unanswered = self._unanswered, []
            for device, peer in unanswered:
                made = self._made.get(device)
                raw = read_running(device, self.own.drivers[made.implementation]) if made is not None else None
                found = raw.peers.get(peer.successor) if raw is not None else None
                if made is None or raw is None or found is None:
                    continue
                changes = drop_old(peer) if peer.public_key in raw.peers else []
                if not found.last_handshake:
                    changes += [PeerChange(public_key=peer.successor, remove=True), whole(peer, peer.successor)]
                    self._unanswered.append((device, peer))
                if changes:
                    self.own.drivers[made.implementation].write(device, DeviceChange(peers=changes))


def _device_of(step: Step) -> str:
    """Return the device of a peer's step, "" for any other step."""
    resource = step.new or step.old
    return resource.device if isinstance(resource, WireGuardPeer) else ""
