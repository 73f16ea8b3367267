"""The status of encryption: handshakes of peers, and likely causes of missing ones, the most certain first. Pure.

WireGuard reports no causes. It counts only authenticated packets as received, so a valid initiation of the peer
shows in the counters; a packet that did not leave the Node is not counted as sent.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcagent.api.status import EncryptedPeer, EncryptionRefusal, EncryptionStatus
from mcagent.model.dataplane.wireguard import WireGuardPeerStatus
from mcagent.model.net import socket_text
from mcagent.model.node_state import EncryptionState, RemoteEnd
from mcagent.model.plan import Desired
from mcagent.model.problem import Severity

# A session ends 180 s after its handshake, and a new one starts after 120 s if there are packets to send
# (WireGuard whitepaper, section 6.1), such as keepalives and BFD.
STALE = 180.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardReport:
    """The state of the device, read on request. `now` and times are seconds since the epoch."""

    peers: tuple[WireGuardPeerStatus, ...] = ()
    key_created: float = 0.0  # 0: there is no key
    restarts: int = 0  # of wireguard-go
    now: float = 0.0


def encryption_of(
    summary: EncryptionState | None, report: WireGuardReport, unneeded: Container[str] = ()
) -> EncryptionStatus:
    """Return the status of encryption. `unneeded`: clusters to which this gateway sends nothing."""
    if summary is None:
        return EncryptionStatus()
    publication = summary.publication
    published = publication.there if publication is not None else None
    status = {peer.public_key: peer for peer in report.peers}
    return EncryptionStatus(
        mode=summary.mode,
        fallback=summary.fallback,
        implementation=summary.implementation or "",
        device=summary.device,
        public_key=summary.public_key,
        next_public_key=summary.next_public_key,
        key_age=report.now - report.key_created if report.key_created else None,
        published=published is not None and published.public_key == summary.public_key,
        published_next_key=published.next_public_key if published is not None else "",
        restarts=report.restarts,
        peers=tuple(
            _peer(summary, cluster_id, end, status, report, unneeded=cluster_id in unneeded)
            for cluster_id, ends in sorted(summary.ends.items())
            for end in ends
        ),
        not_used=tuple(
            EncryptionRefusal(
                subject=problem.subject, path=problem.path, reason=problem.reason, message=problem.message
            )
            for problem in summary.problems
            if problem.severity is Severity.ERROR
        ),
    )


def peer_status(end: RemoteEnd, status: Mapping[str, WireGuardPeerStatus]) -> WireGuardPeerStatus | None:
    """Return the device's peer of a gateway, by its present or its announced next key."""
    return status.get(end.public_key) or status.get(end.next_public_key)


def _peer(
    summary: EncryptionState,
    cluster_id: str,
    end: RemoteEnd,
    status: Mapping[str, WireGuardPeerStatus],
    report: WireGuardReport,
    *,
    unneeded: bool,
) -> EncryptedPeer:
    peer, now = peer_status(end, status), report.now
    state, words = _state(end, peer, now)
    if unneeded:
        state, words = "unneeded", "runs Antrea, which knows the key of this cluster's first gateway alone"
    bad = state not in ("established", "clear", "unneeded")
    return EncryptedPeer(
        cluster=cluster_id,
        gateway=str(end.gateway),
        tunnel_endpoint=str(end.address),
        public_key=end.public_key,
        next_public_key=end.next_public_key,
        port=end.port,
        state=state,
        text=words,
        causes=tuple(causes(summary, end, peer, key_created=report.key_created, now=now)) if bad else (),
        handshake_age=now - peer.last_handshake if peer is not None and peer.last_handshake else None,
        endpoint=socket_text(*peer.endpoint) if peer is not None and peer.endpoint else "",
        received=peer.received if peer is not None else 0,
        sent=peer.sent if peer is not None else 0,
    )


def _state(end: RemoteEnd, seen: WireGuardPeerStatus | None, now: float) -> tuple[str, str]:
    if not end.public_key:
        return "clear", "is reached unencrypted (encryptionFallback: allowClear)"
    if seen is None:
        return "missing", "is not on the device"
    if not seen.last_handshake:
        return "never", "has had no handshake"
    if now - seen.last_handshake > STALE:
        return "stale", f"has had no handshake for {now - seen.last_handshake:.0f} s"
    return "established", "has a session"


def summary_of(desired: Desired | None) -> EncryptionState | None:
    """Return the encryption state of a desired state."""
    return desired.state.encryption if desired is not None else None


def ends_of(summary: EncryptionState | None) -> Mapping[str, str]:
    """Return the gatewayIP of each tunnel endpoint behind the device, both as text."""
    if summary is None:
        return {}
    return {str(end.address): str(end.gateway) for ends in summary.ends.values() for end in ends}


def sessions(summary: EncryptionState | None, report: WireGuardReport) -> Mapping[str, Sequence[str]]:
    """Return the gatewayIPs with a session, by cluster: these gateways have the keys that they publish."""
    if summary is None:
        return {}
    status = {peer.public_key: peer for peer in report.peers}
    return {
        cluster_id: [
            str(end.gateway)
            for end in ends
            if _state(end, peer_status(end, status), report.now)[0] == "established"
        ]
        for cluster_id, ends in summary.ends.items()
    }


# --- causes


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
