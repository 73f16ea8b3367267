"""Likely causes of a missing handshake, from the state of this Node alone, the most certain first. Pure.

WireGuard reports no causes. It counts only authenticated packets as received, so a valid initiation of the peer
shows in the counters; a packet that did not leave the Node is not counted as sent.
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
    """Yield problems of the published key: other clusters need the device's key."""
    publication = summary.publication
    if publication is None:
        yield "this Node has no Gateway object, so its key is published nowhere"
        return
    published = publication.there
    if published is None or not published.public_key:
        yield f"this Node's key is not published yet ({publication.meta.subject}): the other side cannot know it"
        return
    if seen.device_key and published.public_key != seen.device_key:
        yield (
            f"{publication.meta.subject} publishes key {published.public_key}, the device has {seen.device_key}: "
            "the other side encrypts to the wrong one"
        )
    elif publication.there != publication.wanted:
        yield f"what {publication.meta.subject} publishes is not up to date yet"
    if seen.device_port and published.port and published.port != seen.device_port:
        subject, port = publication.meta.subject, seen.device_port
        yield f"{subject} publishes UDP port {published.port}, the device listens on {port}"


def _clock(seen: WireGuardPeerStatus, key_created: float, now: float) -> Iterator[str]:
    """Yield whether the clock was set back: WireGuard rejects a handshake with an older time than the last one."""
    ahead = max(seen.last_handshake, key_created) - now
    if ahead > 1:
        yield (
            f"this Node's clock is behind by {ahead:.0f} s or more (its key, or a handshake, lies in the future): "
            "others refuse its handshakes as replays until the clock is right"
        )


def _endpoint(end: RemoteEnd, seen: WireGuardPeerStatus) -> Iterator[str]:
    """Yield whether packets are sent to another endpoint than the published one."""
    if seen.endpoint is None:
        yield "no endpoint of it is known, so nothing is sent"
        return
    address, port = seen.endpoint
    if address != end.gateway:
        yield f"packets go to {address}, where it was last heard; it publishes {end.gateway}"
    elif port != end.port:
        yield f"packets go to UDP port {port}; it publishes {end.port}"


def _never(summary: EncryptionState, end: RemoteEnd, seen: WireGuardPeerStatus) -> Iterator[str]:
    """Yield the causes that the counters allow for a peer without any handshake."""
    own_port = f"UDP port {seen.device_port}" if seen.device_port else "the UDP port"
    if seen.received:
        yield (
            f"its handshakes arrive here, our answers do not get there: UDP port {end.port} of {end.gateway} is "
            "closed by a firewall or security group"
        )
        return
    if not seen.sent:
        yield f"nothing could be sent: is there a route to {end.gateway}, and may UDP leave this Node?"
    yield (
        f"UDP port {end.port} of {end.gateway}, or {own_port} of this Node on the way back, is closed by a "
        "firewall or security group"
    )
    yield (
        "the other cluster has not learned this Node's key: `mcagent wireguard show` on that gateway has to list "
        f"{summary.public_key or 'it'}"
    )
    yield (
        f"it listens on another port than {end.port} (wireGuard.port), or its key is no longer {end.public_key}: "
        "compare its Gateway object"
    )
