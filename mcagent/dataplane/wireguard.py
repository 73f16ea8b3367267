"""The WireGuard backend: the device of encrypted traffic between clusters, and its peers.

Owns the devices it is given by name, made by it and marked as its own; other WireGuard devices are never read or
written. Puts together the device's link (`wireguard_link`), what encrypts (`wireguard_kernel`, `wireguard_go`),
keys (`wireguard_keys`) and decisions about peers (`wireguard_peers`). `replace_peers` is never used: a change is
one of the peer it concerns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from mcagent.dataplane.wireguard_change import change_peers
from mcagent.dataplane.wireguard_device import KINDS, device_resource, put_device
from mcagent.dataplane.wireguard_driver import (
    DeviceChange,
    Driver,
    Endpoint,
    PeerChange,
    RawDevice,
    wireguard_error,
)
from mcagent.dataplane.wireguard_go import WireGuardGo
from mcagent.dataplane.wireguard_handover import Handover
from mcagent.dataplane.wireguard_kernel import KernelDriver
from mcagent.dataplane.wireguard_keys import Keys, KeyStore
from mcagent.dataplane.wireguard_link import RawDeviceLink, read_link
from mcagent.dataplane.wireguard_peers import drop_old, goes_first, handover, observed_peers, outlived, whole
from mcagent.dataplane.wireguard_rekey import Rekey
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, Resource, ResourceKey
from mcagent.model.wireguard import (
    WireGuardDevice,
    WireGuardImplementation,
    WireGuardPeer,
    WireGuardPeerStatus,
)

log = logging.getLogger(__name__)

TURN = 5.0  # seconds that a new key of ours waits for peers that announced one, too, and go first


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
        self._devices = tuple(devices)
        self._keys = keys
        self._only = implementation
        self._userspace = WireGuardGo(run_directory, binary)
        self._drivers: Mapping[WireGuardImplementation, Driver] = {
            WireGuardImplementation.KERNEL: KernelDriver(),
            WireGuardImplementation.USERSPACE: self._userspace,
        }
        self._changed = changed
        self._chosen: WireGuardImplementation | None = None
        self._lock = threading.RLock()
        self._applied: dict[str, dict[str, WireGuardPeer]] = {}  # by device and public key
        self._made: dict[str, WireGuardDevice] = {}
        self._waiting = ("", 0.0)  # a promoted key, and until when (monotonic) it waits for its turn
        self._unanswered: list[tuple[str, WireGuardPeer]] = []  # handed over, and no handshake seen yet
        self._handed: set[str] = set()  # keys that were announced, and that their owners use now
        self._rekey = Rekey()
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
            for name in self._devices:
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

    def implementation(self) -> WireGuardImplementation | None:
        """Return what new devices are made with; None if there is neither. Raises BackendError.

        It stays what it was first: a device does not change its implementation under way.
        """
        with self._lock:
            if self._chosen is None:
                allowed = (one for one in self._drivers if self._only in {None, one})
                self._chosen = next((one for one in allowed if self._drivers[one].available()), None)
            return self._chosen

    def keys(self) -> Keys:
        """Return this Node's keys, making them on first use. Raises BackendError for an unusable key file.

        Where the file was lost but a device of ours still has its key, that one is kept.
        """
        with self._lock:
            return self._keys.ensure(self._key_in_use)

    def statuses(self) -> tuple[WireGuardPeerStatus, ...]:
        """Return what each device says of each of its peers. Raises BackendError."""
        with self._lock:
            found: list[WireGuardPeerStatus] = []
            for name in self._devices:
                ours = self._ours(name)
                if ours is None or not ours[1].running(name):
                    continue
                device = ours[1].read(name)
                found.extend(
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
                    for raw in device.peers.values()
                )
            return tuple(found)

    def public_keys(self) -> tuple[str, str]:
        """Return the key to use and publish now, and the one announced to follow it ("": none).

        That is what the key file says, except that a key which has just been promoted waits for its turn: two that
        change in the same few milliseconds would each lose what waits for the other's answer, so of two that both
        have announced the one with the lower key goes first. Raises BackendError.
        """
        with self._lock:
            keys = self.keys()
            current, previous = keys.current.public, keys.previous
            if previous is None or not self._others_turn(previous.public):
                self._waiting = ("", 0.0)
                return current, keys.next.public if keys.next is not None else ""
            if self._waiting[0] != current:
                self._waiting = (current, time.monotonic() + TURN)
            return (previous.public, current) if time.monotonic() < self._waiting[1] else (current, "")

    def _others_turn(self, ours: str) -> bool:
        """Tell whether a device still has that key of ours while a peer that goes first is not done."""
        for name, peers in self._applied.items():
            found = self._ours(name) if any(peer.successor for peer in peers.values()) else None
            raw = _read(name, found[1]) if found is not None else None
            if raw is None or raw.public_key != ours:
                continue
            if goes_first(peers.values(), raw, ours):
                return True
        return False

    def retire(self) -> None:
        """Forget the key used before this one as soon as no peer can be using it. Raises BackendError."""
        with self._lock:
            keys = self._keys.load()
            if keys is None or keys.previous is None:
                return
            now = time.time()
            for name in self._devices:
                ours = self._ours(name)
                raw = _read(name, ours[1]) if ours is not None else None
                if raw is None or raw.public_key != keys.current.public:
                    return
                # An agent that has just started does not know when it was; from now on is late enough.
                if not outlived(raw, self._rekey.changed.setdefault(name, now), now):
                    return
            self._keys.drop_previous(keys.previous.public)
            log.info("forgot the WireGuard key before this one: %s", keys.previous.public)

    @property
    def restarts(self) -> int:
        """How many wireguard-go processes were started in place of one that died."""
        return self._userspace.restarts

    def processes(self) -> tuple[int, ...]:
        """Return the wireguard-go processes of our devices that live."""
        with self._lock:
            found = (self._userspace.process(name) for name in self._devices)
            return tuple(pid for pid in found if pid is not None)

    def disturbed(self) -> bool:
        """Tell whether devices or peers differ from what was last applied or observed. Raises BackendError."""
        with self._lock:
            expected: dict[ResourceKey, Resource] = {one.key: one for one in self._made.values()}
            expected |= {peer.key: peer for peers in self._applied.values() for peer in peers.values()}
            return self._look() != expected

    def bind_again(self) -> None:
        """Make wireguard-go forget by which address it reached its peers. Raises BackendError.

        The builds before 2023 keep sending from an address that the Node has no longer.
        """
        with self._lock:
            for name in self._devices:
                ours = self._ours(name)
                if ours is not None and ours[1] is self._userspace and self._userspace.running(name):
                    port = self._userspace.read(name).listen_port
                    self._userspace.write(name, DeviceChange(listen_port=port))

    # --- reading ----------------------------------------------------------------------------------------

    def _look(self) -> dict[ResourceKey, WireGuardDevice | WireGuardPeer]:
        found: dict[ResourceKey, WireGuardDevice | WireGuardPeer] = {}
        now = time.time()
        for name in self._devices:
            ours = self._ours(name)
            if ours is None:
                continue
            link, driver = ours
            raw = _read(name, driver)
            running = raw is not None
            raw = raw or RawDevice(public_key="", listen_port=0, fwmark=0)
            device = device_resource(name, link, driver.implementation, raw, running=running)
            found[device.key] = device
            for peer in observed_peers(name, raw.peers, self._applied.get(name, {}), now):
                found[peer.key] = peer
        return found

    def _ours(self, name: str) -> tuple[RawDeviceLink, Driver] | None:
        link = read_link(name)
        if link is None or not link.ours or link.kind not in KINDS:
            return None
        return link, self._drivers[KINDS[link.kind]]

    def _key_in_use(self) -> bytes | None:
        for name in self._devices:
            ours = self._ours(name)
            private = ours[1].private_key(name) if ours is not None else None
            if private is not None:
                log.warning("key file %s was lost; device %s still has the key: kept", self._keys.path, name)
                return private
        return None

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
            if resource.name not in self._devices:
                raise wireguard_error(step.op, f"device {resource.name}", "is not ours", retryable=False)
            if step.new is None:
                self._remove_device(resource.name)
            else:
                self._put_device(resource)
        except BackendError as error:
            return error
        return None

    def _remove_device(self, name: str) -> None:
        ours = self._ours(name)
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
        if put_device(device, private, self._drivers, self._rekey):
            self._forget(device.name)
        self._made[device.name] = device

    # --- peers ------------------------------------------------------------------------------------------

    def _peers(self, device: str, steps: Sequence[Step]) -> list[BackendError | None]:
        try:
            ours = self._ours(device) if device in self._devices else None
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
        self._drivers[made.implementation].write(device, DeviceChange(peers=handover(peer)))
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
                raw = _read(device, self._drivers[made.implementation]) if made is not None else None
                found = raw.peers.get(peer.successor) if raw is not None else None
                if made is None or raw is None or found is None:
                    continue
                changes = drop_old(peer) if peer.public_key in raw.peers else []
                if not found.last_handshake:
                    changes += [PeerChange(public_key=peer.successor, remove=True), whole(peer, peer.successor)]
                    self._unanswered.append((device, peer))
                if changes:
                    self._drivers[made.implementation].write(device, DeviceChange(peers=changes))


def _device_of(step: Step) -> str:
    """Return the device of a peer's step, "" for any other step."""
    resource = step.new or step.old
    return resource.device if isinstance(resource, WireGuardPeer) else ""


def _read(name: str, driver: Driver) -> RawDevice | None:
    """Return what the device says, or None where nothing runs that could say it. Raises BackendError."""
    if not driver.running(name):
        return None
    try:
        return driver.read(name)
    except BackendError:
        if driver.running(name):
            raise
        return None
