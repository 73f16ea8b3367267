"""The status of encryption: handshakes of peers, and likely causes of missing ones, the most certain first. Pure.

WireGuard reports no causes. It counts only authenticated packets as received, so a valid initiation of the peer
shows in the counters; a packet that did not leave the Node is not counted as sent.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from mcagent.api.status import EncryptedPeer, EncryptionRefusal, EncryptionStatus
from mcagent.model.config import NodeTrafficEncryption
from mcagent.model.dataplane.wireguard import WireGuardPeerStatus
from mcagent.model.net import socket_text
from mcagent.model.node_state import EncryptionState, Publication, RemoteEnd
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION
from mcagent.model.plan import Desired
from mcagent.model.problem import Severity

# A session ends 180 s after its handshake, and a new one starts after 120 s if there are packets to send
# (WireGuard whitepaper, section 6.1), such as keepalives and BFD.
STALE = 180.0  # seconds

StatusesByKey = Mapping[str, Sequence[WireGuardPeerStatus]]  # by public key, the first device first


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardReport:
    """The state of the devices, read on request. `now` and times are seconds since the epoch."""

    peers: tuple[WireGuardPeerStatus, ...] = ()  # of all devices, those of the first device first
    key_created: float = 0.0  # 0: there is no key
    restarts: int = 0  # of wireguard-go
    now: float = 0.0
    complete: bool = True  # False: the devices could not be read

    def by_key(self) -> StatusesByKey:
        """Return the statuses by public key: one for each device."""
        statuses: dict[str, list[WireGuardPeerStatus]] = {}
        for peer in self.peers:
            statuses.setdefault(peer.public_key, []).append(peer)
        return statuses


def _is_stale(peer: WireGuardPeerStatus, now: float) -> bool:
    return not peer.last_handshake or now - peer.last_handshake > STALE


def encryption_of(
    summary: EncryptionState | None, report: WireGuardReport, unneeded: Container[str] = ()
) -> EncryptionStatus:
    """Return the status of encryption. `unneeded`: clusters to which this gateway sends nothing."""
    if summary is None:
        return EncryptionStatus()
    published = [publication.published for publication in publications(summary)]
    next_keys = {info.next_public_key if info is not None else "" for info in published}
    status = report.by_key()
    return EncryptionStatus(
        mode=summary.mode,
        node_mode=summary.node_mode,
        fallback=summary.fallback,
        implementation=summary.implementation or "",
        device=summary.devices[0] if summary.devices else "",
        devices=summary.devices,
        public_key=summary.public_key,
        next_public_key=summary.next_public_key,
        key_age=report.now - report.key_created if report.key_created else None,
        published=bool(published)
        and all(info is not None and info.public_key == summary.public_key for info in published),
        published_next_key=next_keys.pop() if len(next_keys) == 1 else "",
        restarts=report.restarts,
        peers=(
            *(
                _peer(
                    summary,
                    EncryptionPeer(end=end, cluster=cluster_id),
                    status,
                    report,
                    unneeded=cluster_id in unneeded,
                )
                for cluster_id, ends in sorted(summary.ends.items())
                for end in ends
            ),
            *(
                _peer(summary, EncryptionPeer(end=end, node=node), status, report, unneeded=False)
                for node, end in sorted(summary.node_ends.items())
            ),
        ),
        not_used=tuple(
            EncryptionRefusal(
                subject=problem.subject, path=problem.path, reason=problem.reason, message=problem.message
            )
            for problem in summary.problems
            if problem.severity is Severity.ERROR
        ),
    )


def publications(summary: EncryptionState) -> tuple[Publication, ...]:
    """Return where this Node's key has to be published: for other clusters, and for the Nodes of this one."""
    to_nodes = summary.node_publication if summary.node_mode is not NodeTrafficEncryption.NONE else None
    return tuple(filter(None, (summary.publication, to_nodes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionPeer:
    """A gateway of another cluster, or a Node of this one."""

    end: RemoteEnd
    cluster: str = ""
    node: str = ""

    def publication(self, summary: EncryptionState) -> Publication | None:
        """Return the object that publishes this Node's key to the peer."""
        return summary.node_publication if self.node else summary.publication


def peer_status(end: RemoteEnd, statuses: StatusesByKey) -> WireGuardPeerStatus | None:
    """Return a peer on the first device, by its present or announced next key.

    With the bytes of all devices, and the last handshake on any: packets take a device that has a session.
    """
    of_devices = statuses.get(end.public_key) or statuses.get(end.next_public_key)
    if not of_devices:
        return None
    received, sent = sum(peer.received for peer in of_devices), sum(peer.sent for peer in of_devices)
    last_handshake = max(peer.last_handshake for peer in of_devices)
    return replace(of_devices[0], received=received, sent=sent, last_handshake=last_handshake)


def session_ages(end: RemoteEnd, statuses: StatusesByKey, now: float) -> tuple[float, ...]:
    """Return the seconds since the last handshake on each device on which a peer has a session and answers."""
    keys = (key for key in (end.public_key, end.next_public_key) if key)
    last_handshakes: dict[str, float] = {}
    for peer in chain.from_iterable(statuses.get(key, ()) for key in keys):
        if not _is_stale(peer, now) and not peer.silent:
            last_handshakes[peer.device] = max(peer.last_handshake, last_handshakes.get(peer.device, 0.0))
    return tuple(now - last_handshake for last_handshake in last_handshakes.values())


def _peer(
    summary: EncryptionState,
    of: EncryptionPeer,
    statuses: StatusesByKey,
    report: WireGuardReport,
    *,
    unneeded: bool,
) -> EncryptedPeer:
    end = of.end
    peer, now = peer_status(end, statuses), report.now
    state, words = _state(end, peer, now)
    if state == "missing" and not report.complete:
        state, words = "unknown", "is not known: WireGuard's devices could not be read"
    if state == "clear" and of.node:
        words = "is reached unencrypted (nodeTrafficEncryption: preferred)"
    if unneeded:
        state, words = "unneeded", "runs Antrea, which knows the key of this cluster's first gateway alone"
    bad = state not in ("established", "clear", "unneeded", "unknown")
    ages = session_ages(end, statuses, now)
    sessions = len(ages)
    if not ages and peer is not None and peer.last_handshake:
        ages = (now - peer.last_handshake,)
    likely = tuple(causes(summary, of, peer, key_created=report.key_created, now=now)) if bad else ()
    if state == "established" and end.devices > max(1, sessions):
        words = f"has a session on {sessions} of {end.devices} WireGuard devices, which carry all connections"
        likely = (_ports_of_devices(end, peer),)
    return EncryptedPeer(
        cluster=of.cluster,
        node=of.node,
        gateway=str(end.gateway),
        tunnel_endpoint=str(end.address),
        public_key=end.public_key,
        next_public_key=end.next_public_key,
        port=end.port,
        state=state,
        text=words,
        causes=likely,
        handshake_age=max(ages, default=None),
        devices=end.devices,
        sessions=sessions,
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
    if _is_stale(seen, now):
        return "stale", f"has had no handshake for {now - seen.last_handshake:.0f} s"
    return "established", "has a session"


def _ports_of_devices(end: RemoteEnd, seen: WireGuardPeerStatus | None) -> str:
    """Return the likely cause of missing sessions on some of the devices."""
    last = end.devices - 1
    own_port = seen.device_port if seen is not None else 0
    return_path = f", or {own_port} to {own_port + last} of this Node on the way back," if own_port else ""
    ports = f"UDP ports {end.port} to {end.port + last} of {end.gateway}"
    closed = f"one of {ports}{return_path} is closed by a firewall or security group"
    return f"{closed}; or wireGuard.devices was changed just now"


def summary_of(desired: Desired | None) -> EncryptionState | None:
    """Return the encryption state of a desired state."""
    return desired.state.encryption if desired is not None else None


def ends_of(summary: EncryptionState | None) -> Mapping[str, str]:
    """Return the peer's address in the API of each tunnel endpoint behind the device, both as text."""
    if summary is None:
        return {}
    ends = (*chain.from_iterable(summary.ends.values()), *summary.node_ends.values())
    return {str(end.address): str(end.gateway) for end in ends}


def sessions(summary: EncryptionState | None, report: WireGuardReport) -> Mapping[str, Sequence[str]]:
    """Return the gatewayIPs with a session, by cluster: these gateways have the keys that they publish."""
    if summary is None:
        return {}
    status = report.by_key()
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
    summary: EncryptionState,
    peer: EncryptionPeer,
    seen: WireGuardPeerStatus | None,
    *,
    key_created: float,
    now: float,
) -> Iterator[str]:
    """Name the likely causes for a peer without a (recent) handshake. Times: seconds since the epoch."""
    end = peer.end
    if seen is None:
        yield "the device is down, or the peer could not be added: the agent's log says why"
        return
    yield from _own_key(peer.publication(summary), seen)
    yield from _clock(seen, key_created, now)
    own = summary.own_gateway if not peer.node else None
    if own is not None and own.version != end.gateway.version:
        yield f"the gateway is reached by IPv{end.gateway.version}, this Node's gatewayIP is IPv{own.version}"
    yield from _endpoint(end, seen)
    if seen.last_handshake:
        yield f"{'the Node' if peer.node else 'the gateway'}, or the network to {end.gateway}, is down"
        yield f"its key is no longer {end.public_key}, and the new one is unknown: compare its {_object(peer)}"
        return
    yield from _never(summary, peer, seen)


def _object(peer: EncryptionPeer) -> str:
    return f"Node object (annotation {NODE_KEY_ANNOTATION})" if peer.node else "Gateway object"


def _own_key(publication: Publication | None, seen: WireGuardPeerStatus) -> Iterator[str]:
    """Yield problems of the published key: peers need the device's key."""
    if publication is None:
        yield "this Node has no Gateway object, so its key is published nowhere"
        return
    published = publication.published
    if published is None or not published.public_key:
        yield f"this Node's key is not published yet ({publication.meta.subject}): the other side cannot know it"
        return
    if seen.device_key and published.public_key != seen.device_key:
        yield (
            f"{publication.meta.subject} publishes key {published.public_key}, the device has {seen.device_key}: "
            "the other side encrypts to the wrong one"
        )
    elif publication.published != publication.desired:
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


def _never(summary: EncryptionState, peer: EncryptionPeer, seen: WireGuardPeerStatus) -> Iterator[str]:
    """Yield the causes that the counters allow for a peer without any handshake."""
    end = peer.end
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
        f"the {'other Node' if peer.node else 'other cluster'} has not learned this Node's key: "
        f"`mcagent wireguard show` on that {'Node' if peer.node else 'gateway'} has to list "
        f"{summary.public_key or 'it'}"
    )
    yield (
        f"it listens on another port than {end.port} (wireGuard.port), or its key is no longer {end.public_key}: "
        f"compare its {_object(peer)}"
    )
