"""The state of encryption: handshakes of peers, likely causes of missing ones, and metrics.

Converts the device's state and the desired state to plain values for /status, `mcagent wireguard` and Prometheus.
Decides nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mcagent.model.net import Address, socket_text
from mcagent.model.node_state import EncryptionState, RemoteEnd
from mcagent.model.plan import Desired
from mcagent.model.problem import Severity
from mcagent.model.resources import TunnelPort
from mcagent.model.wireguard import WireGuardImplementation, WireGuardPeerStatus
from mcagent.observe.wireguard_causes import causes

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
) -> dict[str, object]:
    """Make the JSON value of encryption in /status. `unneeded`: clusters to which this gateway sends nothing."""
    if summary is None:
        return {"mode": "unknown", "peers": [], "notUsed": []}
    publication = summary.publication
    published = publication.there if publication is not None else None
    status = {peer.public_key: peer for peer in report.peers}
    return {
        "mode": str(summary.mode),
        "fallback": str(summary.fallback),
        "implementation": str(summary.implementation) if summary.implementation is not None else "",
        "device": summary.device,
        "publicKey": summary.public_key,
        "nextPublicKey": summary.next_public_key,
        "keyAge": report.now - report.key_created if report.key_created else None,
        "published": published is not None and published.public_key == summary.public_key,
        "publishedNextKey": published.next_public_key if published is not None else "",
        "restarts": report.restarts,
        "peers": [
            _peer(summary, cluster_id, end, status, report, unneeded=cluster_id in unneeded)
            for cluster_id, ends in sorted(summary.ends.items())
            for end in ends
        ],
        "notUsed": [
            {
                "subject": problem.subject,
                "path": problem.path,
                "reason": problem.reason,
                "message": problem.message,
            }
            for problem in summary.problems
            if problem.severity is Severity.ERROR
        ],
    }


def _status(end: RemoteEnd, status: Mapping[str, WireGuardPeerStatus]) -> WireGuardPeerStatus | None:
    return status.get(end.public_key) or status.get(end.next_public_key)


def _peer(
    summary: EncryptionState,
    cluster_id: str,
    end: RemoteEnd,
    status: Mapping[str, WireGuardPeerStatus],
    report: WireGuardReport,
    *,
    unneeded: bool,
) -> dict[str, object]:
    peer, now = _status(end, status), report.now
    state, words = _state(end, peer, now)
    if unneeded:
        state, words = "unneeded", "runs Antrea, which knows the key of this cluster's first gateway alone"
    bad = state not in ("established", "clear", "unneeded")
    age = now - peer.last_handshake if peer is not None and peer.last_handshake else None
    return {
        "cluster": cluster_id,
        "gateway": str(end.gateway),
        "tunnelEndpoint": str(end.address),
        "publicKey": end.public_key,
        "nextPublicKey": end.next_public_key,
        "port": end.port,
        "state": state,
        "text": words,
        "causes": list(causes(summary, end, peer, key_created=report.key_created, now=now)) if bad else [],
        "handshakeAge": age,
        "endpoint": socket_text(*peer.endpoint) if peer is not None and peer.endpoint else "",
        "received": peer.received if peer is not None else 0,
        "sent": peer.sent if peer is not None else 0,
    }


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


def wireguard_metrics(desired: Desired, report: WireGuardReport) -> Iterator[Metric]:
    """Yield the metrics of encryption; none while it is off."""
    summary = summary_of(desired)
    if summary is None or str(summary.mode) == "none":
        return
    info = GaugeMetricFamily(
        "mcagent_encryption_info",
        "1 for the mode and implementation of encryption between clusters.",
        labels=["mode", "implementation"],
    )
    for implementation in (*WireGuardImplementation, None):
        values = [str(summary.mode), str(implementation or "none")]
        info.add_metric(values, float(summary.implementation is implementation))
    published = GaugeMetricFamily(
        "mcagent_wireguard_key_published",
        "1 when WireGuard's key and port in this Node's Gateway object are up to date.",
    )
    publication = summary.publication
    up_to_date = publication is not None and publication.there == publication.wanted
    published.add_metric([], float(up_to_date))
    created = GaugeMetricFamily(
        "mcagent_wireguard_key_created_timestamp_seconds", "When this Node's key was generated."
    )
    if report.key_created:
        created.add_metric([], report.key_created)
    restarts = CounterMetricFamily(
        "mcagent_wireguard_process_restarts", "wireguard-go processes that replaced one that died."
    )
    restarts.add_metric([], report.restarts)
    yield from (info, published, created, restarts)
    tunnels = {
        resource.remote_ip: resource.name
        for fragment in desired.fragments.values()
        for resource in fragment.resources
        if isinstance(resource, TunnelPort)
    }
    yield from _of_peers(summary, tunnels, {peer.public_key: peer for peer in report.peers})


def _of_peers(
    summary: EncryptionState, tunnels: Mapping[Address, str], status: Mapping[str, WireGuardPeerStatus]
) -> Iterable[Metric]:
    labels = ["peer", "tunnel"]
    handshake = GaugeMetricFamily(
        "mcagent_wireguard_peer_last_handshake_timestamp_seconds",
        "Time of the last handshake with a gateway of another cluster; 0: never.",
        labels=labels,
    )
    received = CounterMetricFamily(
        "mcagent_wireguard_peer_receive_bytes", "Encrypted bytes received.", labels=labels
    )
    sent = CounterMetricFamily("mcagent_wireguard_peer_transmit_bytes", "Encrypted bytes sent.", labels=labels)
    where = GaugeMetricFamily(
        "mcagent_wireguard_peer_endpoint_info",
        "1 when a gateway's endpoint is the configured one, 0 when another (it roams).",
        labels=labels,
    )
    clear = GaugeMetricFamily(
        "mcagent_wireguard_peer_unencrypted",
        "1 for a gateway to which traffic is unencrypted (encryptionFallback: allowClear).",
        labels=labels,
    )
    for cluster_id, ends in sorted(summary.ends.items()):
        for end in ends:
            values = [cluster_id, tunnels.get(end.address, "")]
            clear.add_metric(values, float(not end.public_key))
            peer = _status(end, status)
            if peer is None or not end.public_key:
                continue
            handshake.add_metric(values, peer.last_handshake)
            received.add_metric(values, peer.received)
            sent.add_metric(values, peer.sent)
            where.add_metric(values, float(peer.endpoint == (end.gateway, end.port)))
    return (handshake, received, sent, where, clear)
