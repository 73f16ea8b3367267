"""Which resources a device's peers are, and which changes make them what they should be.

A peer that announced the key it will use next (its successor) is on the device twice: under its present key with
its networks, and under the next one without any, so that it is answered as soon as it begins to use that. After
the first handshake under the next key the networks move there.

WireGuard follows a peer to another endpoint by itself, so an endpoint counts as different only when nothing
vouches for it.

Peers of a batch are changed together, and by themselves those that are refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import replace
from itertools import chain

from mcagent.dataplane.wireguard.driver import (
    DeviceChange,
    Driver,
    Endpoint,
    PeerChange,
    RawDevice,
    RawPeer,
    wireguard_error,
)
from mcagent.model.errors import BackendError
from mcagent.model.net import parse_address
from mcagent.model.plan import Step
from mcagent.model.wireguard import WireGuardPeer

# A session is dropped 180 s after its handshake (whitepaper, section 6.1, Reject-After-Time). As long as there is
# one, the endpoint is where authenticated packets came from.
SESSION = 180.0  # seconds
_NOWHERE: Endpoint = (parse_address("0.0.0.0"), 0)  # of a peer of somebody else's that has no endpoint yet

Peers = Mapping[str, WireGuardPeer]  # of one device, by public key


def observed_peers(device: str, raw: Mapping[str, RawPeer], applied: Peers, now: float) -> list[WireGuardPeer]:
    """Return the device's peers as resources.

    `applied` is what was last asked of the device; it tells which key is whose successor, and which endpoint was
    the configured one. `now` is in seconds since the epoch.
    """
    found: list[WireGuardPeer] = []
    rest = dict(raw)
    for peer in applied.values():
        key = key_in_use(peer, raw)
        ours = {one: rest.pop(one) for one in (peer.public_key, peer.successor) if one in rest}
        live = ours.pop(key, None)
        if live is None:
            continue
        answered = peer.successor in {"", key, *ours}  # as soon as it begins to use the next key
        moved = not any(other.allowed_ips for other in ours.values())
        endpoint = live.endpoint
        if endpoint is None or _vouched(live, now):
            endpoint = peer.endpoint
        found.append(
            replace(
                peer,
                endpoint=endpoint,
                allowed_ips=live.allowed_ips,
                keepalive=live.keepalive,
                intact=live.endpoint is not None and not live.preshared and answered and moved,
            )
        )
    strangers = (
        WireGuardPeer(
            device=device,
            public_key=live.public_key,
            endpoint=live.endpoint or _NOWHERE,
            allowed_ips=live.allowed_ips,
            keepalive=live.keepalive,
        )
        for live in rest.values()
    )
    return [*found, *strangers]


def key_in_use(peer: WireGuardPeer, raw: Mapping[str, RawPeer]) -> str:
    """Return the key under which the device has, or should have, the peer's networks."""
    live = raw.get(peer.successor)
    return peer.successor if live is not None and (live.last_handshake or live.allowed_ips) else peer.public_key


def change_peers(
    driver: Driver, raw: RawDevice, before: Peers, steps: Mapping[int, Step]
) -> tuple[dict[str, WireGuardPeer], dict[int, BackendError]]:
    """Make the steps so; return what is asked of the device now, and the errors, by the place of their step.

    `raw` is the device as it is, `before` what was asked of it until now.
    """
    puts = {place: step.new for place, step in steps.items() if isinstance(step.new, WireGuardPeer)}
    gone = {
        place: step.old for place, step in steps.items() if isinstance(step.old, WireGuardPeer) and not step.new
    }
    put, deleted = ({peer.public_key for peer in some.values()} for some in (puts, gone))
    # One that publishes the key it had announced takes the place of its former self.
    wanted = {key: one for key, one in before.items() if key not in deleted and one.successor not in put}
    wanted |= {peer.public_key: peer for peer in puts.values()}
    kept = {key for peer in wanted.values() for key in (key_in_use(peer, raw.peers), peer.successor)}
    now = time.time()
    changes = {
        place: peer_changes(before.get(peer.public_key), peer, raw.peers, now, kept)
        for place, peer in puts.items()
    }
    for place, peer in gone.items():
        changes[place] = _removals({peer.public_key, peer.successor} - kept, raw.peers)
    errors: dict[int, BackendError] = {}
    for place, reason in _write(driver, changes).items():
        device, key = map(str, steps[place].key[1:])
        errors[place] = wireguard_error(steps[place].op, f"peer {key} of {device}", reason)
        if place in puts:
            del wanted[key]
            if key in before:
                wanted[key] = before[key]
    return wanted, errors


def peer_changes(
    before: WireGuardPeer | None, after: WireGuardPeer, raw: Mapping[str, RawPeer], now: float, kept: Set[str]
) -> list[PeerChange]:
    """Return what makes the device have `after`; `before` is what was last asked of it under the same key.

    `kept` are the keys that this peer and others stand on.
    """
    key = key_in_use(after, raw)
    live = raw.get(key, RawPeer(public_key=key))
    changes: list[PeerChange] = []
    if live.preshared:
        changes += _removals({key}, raw)  # nothing else takes a preshared key away
        live = RawPeer(public_key=key)
    change = _differences(before, after, live, now)
    if change != PeerChange(public_key=key):
        changes.append(change)
    if after.successor not in {"", key, *raw}:
        changes.append(PeerChange(public_key=after.successor))
    return changes + _removals({after.public_key, before.successor if before is not None else ""} - kept, raw)


def handovers(applied: Peers, raw: Mapping[str, RawPeer]) -> list[PeerChange]:
    """Return what follows from handshakes under announced keys: the peer's networks move to the new key.

    The old key goes one look later: with it would go what is being encrypted under it.
    """
    changes: list[PeerChange] = []
    for peer in applied.values():
        live = raw.get(peer.successor)
        if live is None or not live.last_handshake:
            continue
        if set(peer.allowed_ips) - set(live.allowed_ips):
            new = PeerChange(public_key=peer.successor, keepalive=peer.keepalive, allowed_ips=peer.allowed_ips)
            changes += [new, PeerChange(public_key=peer.public_key, keepalive=0)]
        elif peer.public_key in raw:
            changes.append(PeerChange(public_key=peer.public_key, remove=True))
    return changes


def _removals(keys: Set[str], raw: Mapping[str, RawPeer]) -> list[PeerChange]:
    return [PeerChange(public_key=key, remove=True) for key in sorted(keys) if key in raw]


def _write(driver: Driver, changes: Mapping[int, list[PeerChange]]) -> dict[int, str]:
    """Write all changes together; where that is refused, each by itself, to find the one to blame."""
    everything = list(chain.from_iterable(changes.values()))
    try:
        if everything:
            driver.write(DeviceChange(peers=everything))
    except BackendError as error:
        if len(changes) == 1:
            return dict.fromkeys(changes, error.reason)
        return {place: why for one in changes.items() for place, why in _write(driver, dict([one])).items()}
    return {}


def _differences(before: WireGuardPeer | None, after: WireGuardPeer, live: RawPeer, now: float) -> PeerChange:
    moved = before is not None and before.endpoint != after.endpoint
    astray = live.endpoint != after.endpoint and (moved or not _vouched(live, now))
    replaced = not set(live.allowed_ips) <= set(after.allowed_ips)
    has = () if replaced else live.allowed_ips
    return PeerChange(
        public_key=live.public_key,
        endpoint=after.endpoint if astray else None,
        keepalive=after.keepalive if live.keepalive != after.keepalive else None,
        allowed_ips=tuple(one for one in after.allowed_ips if one not in has),
        replace_allowed_ips=replaced,
    )


def _vouched(live: RawPeer, now: float) -> bool:
    """Tell whether authenticated packets came from the endpoint not long ago."""
    return live.endpoint is not None and 0 <= now - live.last_handshake < SESSION
