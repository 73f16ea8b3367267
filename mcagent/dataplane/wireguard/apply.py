"""Makes devices and their peers what they should be.

A device is made where there is none and given key, port, MTU and addresses; its peers stay. Peers of a batch are
changed together, and by themselves those that are refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcagent.dataplane.wireguard.driver import DeviceChange, Driver, PeerChange, RawPeer, wireguard_error
from mcagent.dataplane.wireguard.keys import is_key
from mcagent.dataplane.wireguard.link import RawDeviceLink, configure, mark, read_link
from mcagent.dataplane.wireguard.observe import KINDS
from mcagent.dataplane.wireguard.peers import Peers, conflict, keys_needed, peer_changes, removals
from mcagent.model.errors import BackendError
from mcagent.model.plan import Step
from mcagent.model.wireguard import WireGuardDevice, WireGuardImplementation, WireGuardPeer

log = logging.getLogger(__name__)

_MISSING = {
    WireGuardImplementation.KERNEL: "this kernel has no WireGuard",
    WireGuardImplementation.USERSPACE: "there is no wireguard-go, or no /dev/net/tun: install both",
}
_Drivers = Mapping[WireGuardImplementation, Driver]
_Changes = list[tuple[int, list[PeerChange]]]  # by the place of their step


def change_peers(
    device: str, driver: Driver, before: Peers, steps: Sequence[Step]
) -> tuple[dict[str, WireGuardPeer], list[BackendError | None]]:
    """Make the steps so; return what is asked of the device now, and each step's error.

    `before` is what was asked of it until now. Raises BackendError when the device cannot be read.
    """
    raw = driver.read(device)
    now = time.time()
    wanted = dict(before)
    outcome: list[BackendError | None] = [None] * len(steps)
    puts: _Changes = []
    for place, step in enumerate(steps):
        new, old = step.new, step.old
        if not isinstance(new, WireGuardPeer):
            wanted.pop(str(step.key[-1]), None)
            continue
        # One that publishes the key it had announced takes the place of its former self.
        wanted = {key: one for key, one in wanted.items() if one.successor != new.public_key}
        others = [one for key, one in wanted.items() if key != new.public_key]
        problem = _objection(new, raw.public_key) or conflict(new, others)
        if problem:
            name = f"peer {new.public_key} of {device}"
            outcome[place] = wireguard_error(step.op, name, problem, retryable=False)
            continue
        known = before.get(new.public_key, old if isinstance(old, WireGuardPeer) else None)
        puts.append((place, peer_changes(known, new, raw.peers, now)))
        wanted[new.public_key] = replace(new, intact=True)
    changes = _without_removing(puts, wanted, raw.peers)
    changes += [
        (place, removals(step.old, raw.peers, wanted.values()))
        for place, step in enumerate(steps)
        if step.new is None and isinstance(step.old, WireGuardPeer)
    ]
    _write(device, driver, steps, changes, outcome)
    for step, error in zip(steps, outcome, strict=True):
        if error is not None and isinstance(step.new, WireGuardPeer):
            wanted.pop(step.new.public_key, None)
            if step.new.public_key in before:
                wanted[step.new.public_key] = before[step.new.public_key]
    return wanted, outcome


def _without_removing(puts: _Changes, wanted: Peers, raw: Mapping[str, RawPeer]) -> _Changes:
    """Leave out removals of what another peer stands on."""
    found: _Changes = []
    for place, changes in puts:
        own = {change.public_key for change in changes if not change.remove}
        kept = keys_needed(wanted.values(), raw) - own
        found.append((place, [one for one in changes if not (one.remove and one.public_key in kept)]))
    return found


def _write(
    device: str, driver: Driver, steps: Sequence[Step], changes: _Changes, outcome: list[BackendError | None]
) -> None:
    """Write all changes together; where that is refused, each by itself, to find the one to blame."""
    everything = [one for _, found in changes for one in found]
    if not everything:
        return
    try:
        driver.write(device, DeviceChange(peers=everything))
    except BackendError:
        for place, found in changes:
            if not found:
                continue
            try:
                driver.write(device, DeviceChange(peers=found))
            except BackendError as error:
                name = f"peer {steps[place].key[-1]} of {device}"
                outcome[place] = wireguard_error(steps[place].op, name, error.reason)


def _objection(peer: WireGuardPeer, own_key: str) -> str:
    """Return why no device can have such a peer, or "" if one can."""
    for key in filter(None, (peer.public_key, peer.successor)):
        if not is_key(key):
            return f'"{key}" is no key: 44 characters of base64 were expected'
        if key == own_key:
            return "has this device's own key"
    if not 0 < peer.endpoint[1] < 1 << 16:
        return f"endpoint port {peer.endpoint[1]} is none"
    if not 0 <= peer.keepalive < 1 << 16:
        return f"keepalive of {peer.keepalive} s: 0 to 65535 is possible"
    return ""


def put_device(device: WireGuardDevice, private_key: bytes, drivers: _Drivers) -> bool:
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
    if raw.public_key and change.private_key is not None:
        log.info("device %s gets public key %s, before: %s", name, device.public_key, raw.public_key)
        # Turned on, a keepalive is sent at once: each peer is shaken hands with, traffic or none.
        change = replace(change, peers=[one for peer in raw.peers.values() for one in _turned_on(peer)])
    if change != DeviceChange():
        driver.write(name, change)
    link = read_link(name)
    if link is None:
        raise wireguard_error("set up", f"device {name}", "was removed meanwhile")
    configure(device, link)
    return new


def _turned_on(peer: RawPeer) -> list[PeerChange]:
    seconds = (0, peer.keepalive) if peer.keepalive else ()
    return [PeerChange(public_key=peer.public_key, keepalive=one) for one in seconds]


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
