"""Why a peer has probably not shaken hands: what can be seen from this Node alone, the surest first. Pure.

WireGuard says nothing itself. It counts as received only what the peer's key has proven to be its, so one
initiation that was understood shows in the counters; a packet that did not leave the Node is not counted as sent.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.model.node_state import EncryptionState, RemoteEnd
from mcagent.model.wireguard import WireGuardPeerStatus


def causes(
    summary: EncryptionState, end: RemoteEnd, seen: WireGuardPeerStatus | None, *, key_created: float, now: float
) -> Iterator[str]:
    """Name the likely causes for a gateway without a (recent) handshake. Times: seconds since the epoch."""
    if seen is None:
        yield "the device is down, or the peer could not be added: the agent's log says why"
        return
    yield from _own_key(summary, seen)
    yield from _clock(seen, key_created, now)
    own = summary.own_gateway
    if own is not None and own.version != end.gateway.version:
        yield f"the gateway is reached by IPv{end.gateway.version}, this Node's gatewayIP is IPv{own.version}"
    yield from _endpoint(end, seen)
    if seen.last_handshake:
        yield f"the gateway, or the network to {end.gateway}, is down"
        yield f"its key is no longer {end.public_key}, and the new one is unknown: compare its Gateway object"
        return
    yield from _never(summary, end, seen)


def _own_key(summary: EncryptionState, seen: WireGuardPeerStatus) -> Iterator[str]:
    """Whether others can know the key that the device has."""
    found = summary.publication
    if found is None:
        yield "this Node has no Gateway object, so its key is published nowhere"
        return
    there = found.there
    if there is None or not there.public_key:
        yield f"this Node's key is not published yet ({found.meta.subject}): the other side cannot know it"
        return
    if seen.device_key and there.public_key != seen.device_key:
        yield (
            f"{found.meta.subject} publishes key {there.public_key}, the device has {seen.device_key}: "
            "the other side encrypts to the wrong one"
        )
    elif found.there != found.wanted:
        yield f"what {found.meta.subject} publishes is not up to date yet"
    if seen.device_port and there.port and there.port != seen.device_port:
        yield f"{found.meta.subject} publishes UDP port {there.port}, the device listens on {seen.device_port}"


def _clock(seen: WireGuardPeerStatus, key_created: float, now: float) -> Iterator[str]:
    """A clock that was set back: WireGuard refuses a handshake that says it is older than the last one."""
    ahead = max(seen.last_handshake, key_created) - now
    if ahead > 1:
        yield (
            f"this Node's clock is behind by {ahead:.0f} s or more (its key, or a handshake, lies in the future): "
            "others refuse its handshakes as replays until the clock is right"
        )


def _endpoint(end: RemoteEnd, seen: WireGuardPeerStatus) -> Iterator[str]:
    """Whether packets go where the gateway says it is."""
    if seen.endpoint is None:
        yield "no endpoint of it is known, so nothing is sent"
        return
    address, port = seen.endpoint
    if address != end.gateway:
        yield f"packets go to {address}, where it was last heard; it publishes {end.gateway}"
    elif port != end.port:
        yield f"packets go to UDP port {port}; it publishes {end.port}"


def _never(summary: EncryptionState, end: RemoteEnd, seen: WireGuardPeerStatus) -> Iterator[str]:
    """What the counters tell."""
    here = f"UDP port {seen.device_port}" if seen.device_port else "the UDP port"
    if seen.received:
        yield (
            f"its handshakes arrive here, our answers do not get there: UDP port {end.port} of {end.gateway} is "
            "closed by a firewall or security group"
        )
        return
    if not seen.sent:
        yield f"nothing could be sent: is there a route to {end.gateway}, and may UDP leave this Node?"
    yield (
        f"UDP port {end.port} of {end.gateway}, or {here} of this Node on the way back, is closed by a firewall "
        "or security group"
    )
    yield (
        "the other cluster has not learned this Node's key: `mcagent wireguard show` on that gateway has to list "
        f"{summary.public_key or 'it'}"
    )
    yield (
        f"it listens on another port than {end.port} (wireGuard.port), or its key is no longer {end.public_key}: "
        "compare its Gateway object"
    )
