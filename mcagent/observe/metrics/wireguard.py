"""The metrics of encryption."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from mcagent.model.dataplane.resources import TunnelPort
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.net import Address
from mcagent.model.node_state import EncryptionState
from mcagent.model.plan import Desired
from mcagent.observe.metric_families import counter, gauge, single
from mcagent.observe.wireguard import WireGuardReport, peer_status, publications, session_ages, summary_of


def wireguard_metrics(desired: Desired, report: WireGuardReport) -> Iterator[Metric]:
    """Yield the metrics of encryption; none while it is off."""
    summary = summary_of(desired)
    if summary is None or str(summary.mode) == "none":
        return
    text = "1 for the mode and implementation of encryption between clusters."
    in_use = [
        ([str(summary.mode), str(implementation or "none")], summary.implementation is implementation)
        for implementation in (*WireGuardImplementation, None)
    ]
    yield gauge("mcagent_encryption_info", text, ["mode", "implementation"], in_use)
    text = "1 when WireGuard's keys and port in this Node's Gateway and Node objects are up to date."
    of_node = publications(summary)
    up_to_date = bool(of_node) and all(publication.published == publication.desired for publication in of_node)
    yield single("mcagent_wireguard_key_published", text, up_to_date)
    text = "When this Node's key was generated."
    created = [((), report.key_created)] if report.key_created else []
    yield gauge("mcagent_wireguard_key_created_timestamp_seconds", text, (), created)
    text = "wireguard-go processes that replaced one that died."
    yield counter("mcagent_wireguard_process_restarts", text, (), [((), report.restarts)])
    tunnels = {
        resource.remote_ip: resource.name
        for fragment in desired.fragments.values()
        for resource in fragment.resources
        if isinstance(resource, TunnelPort)
    }
    yield from _of_peers(summary, tunnels, report)
    yield from _of_devices(summary, report)


def _of_peers(
    summary: EncryptionState, tunnels: Mapping[Address, str], report: WireGuardReport
) -> Iterator[Metric]:
    statuses = report.by_key()
    of_nodes = {name: (end,) for name, end in summary.node_ends.items()}
    ends = [
        ([peer_name, tunnels.get(end.address, "")], end)
        for peer_name, ends_of_peer in (*sorted(summary.ends.items()), *sorted(of_nodes.items()))
        for end in ends_of_peer
    ]
    peers = [
        (values, end, peer)
        for values, end in ends
        if end.public_key and (peer := peer_status(end, statuses)) is not None
    ]
    labels = ["peer", "tunnel"]
    text = "Time of the last handshake with a peer: a gateway of another cluster, or a Node; 0: never."
    handshakes = [(values, peer.last_handshake) for values, _, peer in peers]
    yield gauge("mcagent_wireguard_peer_last_handshake_timestamp_seconds", text, labels, handshakes)
    received = [(values, peer.received) for values, _, peer in peers]
    yield counter("mcagent_wireguard_peer_receive_bytes", "Encrypted bytes received.", labels, received)
    sent = [(values, peer.sent) for values, _, peer in peers]
    yield counter("mcagent_wireguard_peer_transmit_bytes", "Encrypted bytes sent.", labels, sent)
    text = "1 when a peer's endpoint is the configured one, 0 when another (it roams)."
    where = [(values, peer.endpoint == (end.gateway, end.port)) for values, end, peer in peers]
    yield gauge("mcagent_wireguard_peer_endpoint_configured", text, labels, where)
    text = "1 for a peer to which traffic is unencrypted (encryptionFallback, nodeTrafficEncryption)."
    clear = [(values, not end.public_key) for values, end in ends]
    yield gauge("mcagent_wireguard_peer_unencrypted", text, labels, clear)
    text = "WireGuard devices on which a peer has a session."
    sessions = [(values, len(session_ages(end, statuses, report.now))) for values, end in ends if end.public_key]
    sessions = sessions if report.complete else []
    yield gauge("mcagent_wireguard_peer_sessions", text, labels, sessions)


def _of_devices(summary: EncryptionState, report: WireGuardReport) -> Iterator[Metric]:
    devices = summary.devices if report.complete else ()  # a 0 would be a reset of the counters
    by_device = {name: [peer for peer in report.peers if peer.device == name] for name in devices}
    received = [([name], sum(peer.received for peer in peers)) for name, peers in by_device.items()]
    text = "Encrypted bytes that a WireGuard device received."
    yield counter("mcagent_wireguard_device_receive_bytes", text, ["device"], received)
    sent = [([name], sum(peer.sent for peer in peers)) for name, peers in by_device.items()]
    text = "Encrypted bytes that a WireGuard device sent."
    yield counter("mcagent_wireguard_device_transmit_bytes", text, ["device"], sent)
