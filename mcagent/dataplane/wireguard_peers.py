"""Which resources a device's peers are, and which changes make them what they should be. Pure.

A peer that announced the key it will use next is on the device under one of two keys: its present one until the
first handshake under the next, from then on that. WireGuard follows a peer to another endpoint by itself, so an
endpoint counts as different only when nothing vouches for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mcagent.dataplane.wireguard_driver import Endpoint, PeerChange, RawDevice, RawPeer
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
        if live is None:
            continue
        before = rest.pop(peer.public_key, None) if key != peer.public_key else None
        left = before is not None and bool(before.allowed_ips)  # without them it is about to go: see `handover`
        endpoint = live.endpoint
        if endpoint is None or _vouched(live, now):
            endpoint = peer.endpoint
        found.append(_resource(peer, live, endpoint, intact=live.endpoint is not None and not left))
    for live in rest.values():
        stranger = WireGuardPeer(
            device=device, public_key=live.public_key, endpoint=_NOWHERE, allowed_ips=(), keepalive=0
        )
        found.append(_resource(stranger, live, live.endpoint or _NOWHERE, intact=True))
    return found


def key_in_use(peer: WireGuardPeer, raw: Mapping[str, RawPeer]) -> str:
    """Return the key under which the device has, or should have, the peer.

    It is the successor's once that is on the device: only a handshake under it puts it there.
    """
    return peer.successor if peer.successor in raw else peer.public_key


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
    gone = {after.public_key, before.successor if before is not None else ""} - {key}
    changes.extend(PeerChange(public_key=one, remove=True) for one in sorted(gone) if one in raw)
    return changes


def whole(peer: WireGuardPeer, key: str) -> PeerChange:
    """Return the change that makes the peer from nothing under that key."""
    return PeerChange(
        public_key=key, endpoint=peer.endpoint, keepalive=peer.keepalive, allowed_ips=peer.allowed_ips
    )


def removals(gone: WireGuardPeer, raw: Mapping[str, RawPeer], wanted: Iterable[WireGuardPeer]) -> list[PeerChange]:
    """Return what takes a peer away, without what another one stands on."""
    kept = {key_in_use(peer, raw) for peer in wanted}
    keys = (gone.public_key, gone.successor)
    return [PeerChange(public_key=key, remove=True) for key in keys if key in raw and key not in kept]


def handover(peer: WireGuardPeer) -> list[PeerChange]:
    """Return the changes that put the successor in the peer's place: the networks move.

    The old key stays on the device for a moment (`drop_old`): with it would go what is being encrypted under it.
    """
    return [whole(peer, peer.successor), PeerChange(public_key=peer.public_key, keepalive=0)]


def drop_old(peer: WireGuardPeer) -> list[PeerChange]:
    """Return the change that takes away the key which a peer that was handed over had before."""
    return [PeerChange(public_key=peer.public_key, remove=True)]


def goes_first(peers: Iterable[WireGuardPeer], raw: RawDevice, ours: str) -> bool:
    """Tell whether a peer with a lower key than ours has announced another one, and is not done with it."""
    waiting = (one.successor for one in peers if one.successor and one.public_key < ours)
    return any(key not in raw.peers or not raw.peers[key].last_handshake for key in waiting)


def outlived(raw: RawDevice, since: float, now: float) -> bool:
    """Tell whether a key that the device had until `since` is of no use any more. Times: seconds since the epoch.

    All peers have shaken hands under the key that followed, or no session made under the old one is left.
    """
    return now - since > SESSION or all(peer.last_handshake > since for peer in raw.peers.values())


def conflict(peer: WireGuardPeer, others: Iterable[WireGuardPeer]) -> str:
    """Return why the peer's keys cannot be told from those of the others, or "" if they can."""
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
