"""Converts a device's peers to resources, and computes and writes the changes to the desired peers.

A peer that has announced its next key (successor) is on the device twice: under its present key with its networks,
and under the next one without networks, so that handshakes with the next key are answered. After the first
handshake under the next key the networks move there.

WireGuard follows a peer to another endpoint by itself, so an endpoint counts as different only without a recent
handshake.

Peers of a batch are changed together; if that is refused, each by itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
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
from mcagent.model.dataplane.wireguard import WireGuardPeer
from mcagent.model.errors import BackendError
from mcagent.model.net import parse_address
from mcagent.model.plan import Step

# A session ends 180 s after its handshake (whitepaper, section 6.1, Reject-After-Time). During a session the
# endpoint is the source of authenticated packets.
SESSION = 180.0  # seconds
ANSWERS_WITHIN = 20.0  # seconds until a peer that is sent data counts as silent: two answers are missing
DATA = 1000  # bytes, without keepalives: more than the handshakes between two answers of a peer without traffic
KEEPALIVE = 32  # bytes of a packet without data
_NOWHERE: Endpoint = (parse_address("0.0.0.0"), 0)  # of another program's peer without endpoint

Peers = Mapping[str, WireGuardPeer]  # of one device, by public key


def observed_peers(device: str, raw: Mapping[str, RawPeer], applied: Peers, now: float) -> list[WireGuardPeer]:
    """Convert the device's peers to resources.

    `applied` has the peers that were last applied, with their successors and configured endpoints. `now` is in
    seconds since the epoch.
    """
    peers: list[WireGuardPeer] = []
    remaining = dict(raw)
    for peer in applied.values():
        key = key_in_use(peer, raw)
        entries = {
            public_key: remaining.pop(public_key)
            for public_key in (peer.public_key, peer.successor)
            if public_key in remaining
        }
        live = entries.pop(key, None)
        if live is None:
            continue
        answered = peer.successor in {"", key, *entries}  # handshakes with the next key
        moved = not any(other.allowed_ips for other in entries.values())
        endpoint = live.endpoint
        if endpoint is None or _in_session(live, now):
            endpoint = peer.endpoint
        peers.append(
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
        for live in remaining.values()
    )
    return [*peers, *strangers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a peer's counters have shown: bytes received, when they last grew, and bytes sent until then.

    `unanswered_since`: when data was first seen unanswered; None: nothing is. Times are seconds of a clock that is
    never set back.
    """

    received: int
    at: float
    sent: int
    unanswered_since: float | None = None


def exchanges_after(before: Mapping[str, Exchange], raw: Mapping[str, RawPeer], now: float) -> dict[str, Exchange]:
    """Return the exchanges with the peers of a device, by key, after a reading of their counters.

    A peer answers data within 10 s, at least by an empty packet (whitepaper, section 6.5). Without data it may be
    silent until the next handshake.
    """
    exchanges = {}
    for key, peer in raw.items():
        last = before.get(key) or Exchange(received=-1, at=now, sent=0)
        keepalives = KEEPALIVE * (now - last.at) / peer.keepalive if peer.keepalive else 0.0
        if last.received != peer.received:
            last = Exchange(received=peer.received, at=now, sent=peer.sent)
        elif last.unanswered_since is None and peer.sent - last.sent >= DATA + keepalives:
            last = replace(last, unanswered_since=now)
        exchanges[key] = last
    return exchanges


def silent_peers(exchanges: Mapping[str, Exchange], now: float) -> frozenset[str]:
    """Return the keys of peers that data is sent to and that do not answer."""
    waiting = ((key, exchange.unanswered_since) for key, exchange in exchanges.items())
    return frozenset(key for key, since in waiting if since is not None and now - since > ANSWERS_WITHIN)


def key_in_use(peer: WireGuardPeer, raw: Mapping[str, RawPeer]) -> str:
    """Return the key that has, or should have, the peer's networks on the device."""
    live = raw.get(peer.successor)
    return peer.successor if live is not None and (live.last_handshake or live.allowed_ips) else peer.public_key


def change_peers(
    driver: Driver, raw: RawDevice, before: Peers, steps: Mapping[int, Step]
) -> tuple[dict[str, WireGuardPeer], dict[int, BackendError]]:
    """Carry out the steps; return the peers applied now by public key, and the errors by the place of their step.

    `raw` is the present state of the device, `before` the peers applied until now.
    """
    puts = {place: step.new for place, step in steps.items() if isinstance(step.new, WireGuardPeer)}
    deletions = {
        place: step.old for place, step in steps.items() if isinstance(step.old, WireGuardPeer) and not step.new
    }
    put, deleted = ({peer.public_key for peer in peers.values()} for peers in (puts, deletions))
    # A peer that publishes the key that it had announced replaces the peer with its former key.
    desired = {key: peer for key, peer in before.items() if key not in deleted and peer.successor not in put}
    desired |= {peer.public_key: peer for peer in puts.values()}
    keys_in_use = {key for peer in desired.values() for key in (key_in_use(peer, raw.peers), peer.successor)}
    now = time.time()
    changes = {
        place: peer_changes(before.get(peer.public_key), peer, raw.peers, now, keys_in_use)
        for place, peer in puts.items()
    }
    for place, peer in deletions.items():
        changes[place] = _removals({peer.public_key, peer.successor} - keys_in_use, raw.peers)
    errors: dict[int, BackendError] = {}
    for place, reason in _write(driver, changes).items():
        device, key = map(str, steps[place].key[1:])
        errors[place] = wireguard_error(steps[place].op, f"peer {key} of {device}", reason)
        if place in puts:
            del desired[key]
            if key in before:
                desired[key] = before[key]
    return desired, errors


def live_peers(raw: Mapping[str, RawPeer], applied: Peers, now: float) -> frozenset[str]:
    """Return the public keys of peers in a session; of one that uses its announced key, both keys.

    `now` is in seconds since the epoch.
    """
    live = {key for key, peer in raw.items() if 0 <= now - peer.last_handshake < SESSION}
    return frozenset(live | {peer.public_key for peer in applied.values() if peer.successor in live})


def peer_changes(
    before: WireGuardPeer | None,
    after: WireGuardPeer,
    raw: Mapping[str, RawPeer],
    now: float,
    keys_in_use: Set[str],
) -> list[PeerChange]:
    """Return the changes after which the device has `after`; `before` was last applied under the same key.

    `keys_in_use`: keys of this and other peers, which are not removed.
    """
    key = key_in_use(after, raw)
    live = raw.get(key, RawPeer(public_key=key))
    changes: list[PeerChange] = []
    if live.preshared:
        changes += _removals({key}, raw)  # a preshared key cannot be removed otherwise
        live = RawPeer(public_key=key)
    change = _differences(before, after, live, now)
    if change != PeerChange(public_key=key):
        changes.append(change)
    if after.successor not in {"", key, *raw}:
        changes.append(PeerChange(public_key=after.successor))
    return changes + _removals(
        {after.public_key, before.successor if before is not None else ""} - keys_in_use, raw
    )


def handovers(applied: Peers, raw: Mapping[str, RawPeer]) -> list[PeerChange]:
    """Return the changes after handshakes under announced keys: the peer's networks move to the new key.

    The next call removes the old key: packets that are being encrypted under it would be lost now.
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
    """Write all changes together; if that is refused, each by itself. Return reasons by place."""
    all_changes = list(chain.from_iterable(changes.values()))
    try:
        if all_changes:
            driver.write(DeviceChange(peers=all_changes))
    except BackendError as error:
        if len(changes) == 1:
            return dict.fromkeys(changes, error.reason)
        return {
            place: reason for item in changes.items() for place, reason in _write(driver, dict([item])).items()
        }
    return {}


def _differences(before: WireGuardPeer | None, after: WireGuardPeer, live: RawPeer, now: float) -> PeerChange:
    moved = before is not None and before.endpoint != after.endpoint
    wrong_endpoint = live.endpoint != after.endpoint and (moved or not _in_session(live, now))
    replaced = not set(live.allowed_ips) <= set(after.allowed_ips)
    present = () if replaced else live.allowed_ips
    return PeerChange(
        public_key=live.public_key,
        endpoint=after.endpoint if wrong_endpoint else None,
        keepalive=after.keepalive if live.keepalive != after.keepalive else None,
        allowed_ips=tuple(network for network in after.allowed_ips if network not in present),
        replace_allowed_ips=replaced,
    )


def _in_session(live: RawPeer, now: float) -> bool:
    """Return whether the last handshake is recent, so that the endpoint is the source of authenticated packets."""
    return live.endpoint is not None and 0 <= now - live.last_handshake < SESSION
