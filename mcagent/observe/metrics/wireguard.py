"""The metrics of encryption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mcagent.model.dataplane.resources import TunnelPort
from mcagent.model.dataplane.wireguard import WireGuardImplementation, WireGuardPeerStatus
from mcagent.model.net import Address
from mcagent.model.node_state import EncryptionState
from mcagent.model.plan import Desired
from mcagent.observe.wireguard import WireGuardReport, peer_status, summary_of


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
            peer = peer_status(end, status)
            if peer is None or not end.public_key:
                continue
            handshake.add_metric(values, peer.last_handshake)
            received.add_metric(values, peer.received)
            sent.add_metric(values, peer.sent)
            where.add_metric(values, float(peer.endpoint == (end.gateway, end.port)))
    return (handshake, received, sent, where, clear)
