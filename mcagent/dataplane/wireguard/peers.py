"""Which resources a device's peers are, and which changes make them what they should be. Pure.

A peer that announced the key it will use next (its successor) is on the device twice: under its present key with
its networks, and under the next one without any, so that it is answered as soon as it begins to use that. After
the first handshake under the next key the networks move there.

WireGuard follows a peer to another endpoint by itself, so an endpoint counts as different only when nothing
vouches for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mcagent.dataplane.wireguard.driver import Endpoint, PeerChange, RawPeer
from mcagent.model.net import Network, parse_address
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
        live = rest.pop(key, None)
        other = rest.pop(({peer.public_key, peer.successor} - {key}).pop(), None) if peer.successor else None
        if live is None:
            continue
        ready = not peer.successor or key == peer.successor or other is not None
        moved = other is None or not other.allowed_ips
        endpoint = live.endpoint
        if endpoint is None or _vouched(live, now):
            endpoint = peer.endpoint
        found.append(_resource(peer, live, endpoint, intact=live.endpoint is not None and ready and moved))
    for live in rest.values():
        stranger = WireGuardPeer(
            device=device, public_key=live.public_key, endpoint=_NOWHERE, allowed_ips=(), keepalive=0
        )
        found.append(_resource(stranger, live, live.endpoint or _NOWHERE, intact=True))
    return found


def key_in_use(peer: WireGuardPeer, raw: Mapping[str, RawPeer]) -> str:
    """Return the key under which the device has, or should have, the peer's networks."""
    live = raw.get(peer.successor)
    return peer.successor if live is not None and (live.last_handshake or live.allowed_ips) else peer.public_key


def keys_needed(wanted: Iterable[WireGuardPeer], raw: Mapping[str, RawPeer]) -> set[str]:
    """Return the keys that the device has to have for these peers."""
    return {key for peer in wanted for key in (key_in_use(peer, raw), peer.successor)}


def peer_changes(
    before: WireGuardPeer | None, after: WireGuardPeer, raw: Mapping[str, RawPeer], now: float
) -> list[PeerChange]:
    """Return what makes the device have `after`; `before` is what was last asked of it under the same key."""
    key = key_in_use(after, raw)
    changes: list[PeerChange] = []
    live = raw.get(key)
    if live is not None and live.preshared:
        changes.append(PeerChange(public_key=key, remove=True))  # nothing else takes a preshared key away
        live = None
    if live is None:
        changes.append(whole(after, key))
    else:
        changes.extend(_differences(before, after, live, now))
    if after.successor not in {"", key, *raw}:
        changes.append(PeerChange(public_key=after.successor))
    gone = {after.public_key, before.successor if before is not None else ""} - {key, after.successor}
    changes.extend(PeerChange(public_key=one, remove=True) for one in sorted(gone) if one in raw)
    return changes


def whole(peer: WireGuardPeer, key: str) -> PeerChange:
    """Return the change that makes the peer from nothing under that key."""
    return PeerChange(
        public_key=key, endpoint=peer.endpoint, keepalive=peer.keepalive, allowed_ips=peer.allowed_ips
    )


def removals(gone: WireGuardPeer, raw: Mapping[str, RawPeer], wanted: Iterable[WireGuardPeer]) -> list[PeerChange]:
    """Return what takes a peer away, without what another one stands on."""
    kept = keys_needed(wanted, raw)
    keys = (gone.public_key, gone.successor)
    return [PeerChange(public_key=key, remove=True) for key in keys if key in raw and key not in kept]


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


def conflict(peer: WireGuardPeer, others: Iterable[WireGuardPeer]) -> str:
    """Return why the peer's keys cannot be distinguished from those of the others, or "" if they can."""
    for other in others:
        if peer.successor and peer.successor in {other.public_key, other.successor}:
            return f"the key it announces is that of peer {other.public_key}"
    return ""


def _differences(
    before: WireGuardPeer | None, after: WireGuardPeer, live: RawPeer, now: float
) -> list[PeerChange]:
    change = PeerChange(public_key=live.public_key)
    moved = before is not None and before.endpoint != after.endpoint
    if live.endpoint != after.endpoint and (moved or not _vouched(live, now)):
        change = replace(change, endpoint=after.endpoint)
    if live.keepalive != after.keepalive:
        change = replace(change, keepalive=after.keepalive)
    has, wanted = frozenset(live.allowed_ips), frozenset(after.allowed_ips)
    if has - wanted:
        change = replace(change, allowed_ips=after.allowed_ips, replace_allowed_ips=True)
    elif wanted - has:
        missing: tuple[Network, ...] = tuple(one for one in after.allowed_ips if one not in has)
        change = replace(change, allowed_ips=missing)
    return [] if change == PeerChange(public_key=live.public_key) else [change]


def _resource(peer: WireGuardPeer, live: RawPeer, endpoint: Endpoint, *, intact: bool) -> WireGuardPeer:
    return replace(
        peer,
        endpoint=endpoint,
        allowed_ips=live.allowed_ips,
        keepalive=live.keepalive,
        intact=intact and not live.preshared,
    )


def _vouched(live: RawPeer, now: float) -> bool:
    """Tell whether authenticated packets came from the endpoint not long ago."""
    return live.endpoint is not None and 0 <= now - live.last_handshake < SESSION
