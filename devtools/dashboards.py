"""Writes Grafana's dashboards into a directory: python -m devtools.dashboards DIRECTORY.

What they show. How that is written down for Grafana: `devtools.grafana`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from devtools.grafana import Dashboard, Panel, text

C = 'cluster=~"$cluster"'
NODE = f'{C},instance=~"$gateway"'
PAIR = f'{C},peer_kind="remote",peer=~"$peer"'
REMOTE = f'{C},peer_kind="remote"'


def _rate(metric: str, labels: str) -> str:
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def _share(labels: str, of: str) -> str:
    """Return the part of each tunnel in the packets sent to all gateways that are alike but for labels `of`."""
    sent = _rate("mcagent_tunnel_transmit_packets_total", labels)
    return f"{sent} / ignoring ({of}) group_left sum without ({of}) ({sent})"


def _p99(metric: str, by: str, legend: str) -> tuple[str, str]:
    groups = f"{by}, le" if by else "le"
    return f"histogram_quantile(0.99, sum by ({groups}) ({_rate(f'{metric}_bucket', C)}))", legend


def _number(title: str, query: str, *, red_at: float = 1, below: bool = False, about: str = "") -> Panel:
    return Panel(
        title=title, queries=[(query, "")], kind="stat", width=4, red_at=red_at, red_below=below, about=about
    )


def _traffic(labels: str, by: str, legend: str) -> list[Panel]:
    return [
        Panel(
            title=f"{word} {quantity}",
            unit=unit,
            queries=[(f"sum by ({by}) ({_rate(f'mcagent_tunnel_{direction}_{metric}_total', labels)})", legend)],
        )
        for quantity, metric, unit in (("bytes", "bytes", "Bps"), ("packets", "packets", "pps"))
        for word, direction in (("Received", "receive"), ("Sent", "transmit"))
    ]


OVERVIEW = Dashboard(
    name="overview",
    title="mcagent / Overview",
    panels=(
        _number("Agents", f"count(mcagent_ready{{{C}}})", below=True),
        _number("Agents not ready", f"count(mcagent_ready{{{C}}} == 0) or vector(0)"),
        _number("Gateways", f"sum(mcagent_gateway_active{{{C}}})", below=True),
        _number(
            "Clusters lost",
            f"count(max by (cluster, peer) (mcagent_tunnel_live{{{REMOTE}}}) == 0) or vector(0)",
            about="Clusters that no gateway reaches.",
        ),
        _number(
            "Problems of the input",
            f'sum(mcagent_problems{{{C},severity="error"}}) or vector(0)',
            about="What is not used: mcagent status names it.",
        ),
        _number("Firing alerts", 'count(ALERTS{alertstate="firing",alertname=~"Mcagent.*"}) or vector(0)'),
        Panel(
            title="Live gateways by remote cluster",
            queries=[
                (
                    f"min by (cluster, peer) (sum by (cluster, instance, peer) (mcagent_tunnel_live{{{REMOTE}}}))",
                    "{{cluster}} → {{peer}}",
                )
            ],
            about="As the gateway sees it that sees fewest.",
        ),
        Panel(
            title="Gateways lost, by cause",
            queries=[
                (f"sum by (peer_kind, cause) (increase(mcagent_failovers_total{{{C}}}[$__rate_interval]))",
                 "{{peer_kind}}: {{cause}}")
            ],
        ),
        *_traffic(REMOTE, "cluster, peer", "{{cluster}}, {{peer}}"),
        Panel(
            title="Packets dropped by the pipeline",
            unit="pps",
            queries=[(f"sum by (reason) ({_rate('mcagent_dropped_packets_total', C)})", "{{reason}}")],
        ),
        Panel(
            title="Packets dropped by nft",
            unit="pps",
            queries=[(f"sum by (reason) ({_rate('mcagent_nft_dropped_packets_total', C)})", "{{reason}}")],
        ),
        Panel(
            title="Put back after a change by another program",
            queries=[
                (f"sum by (backend) (increase(mcagent_drift_corrections_total{{{C}}}[$__rate_interval]))",
                 "{{backend}}")
            ],
        ),
        Panel(
            title="Time of a pass, 99 %",
            unit="s",
            queries=[
                _p99("mcagent_reconcile_duration_seconds", "phase", "{{phase}}")
            ],
        ),
    ),
)  # fmt: skip

GATEWAY = Dashboard(
    name="gateway",
    title="mcagent / Gateway",
    variables=(("gateway", f"label_values(mcagent_gateway_active{{{C}}}, instance)"),),
    panels=(
        _number("Is a gateway", f"sum(mcagent_gateway_active{{{NODE}}})", below=True),
        _number("Ready", f"min(mcagent_ready{{{NODE}}})", below=True),
        _number("Tunnels without a live peer", f"count(mcagent_tunnel_live{{{NODE}}} == 0) or vector(0)"),
        Panel(
            title="Handing over",
            kind="stat",
            queries=[(f"max by (phase) (mcagent_drain_phase{{{NODE}}}) == 1", "{{phase}}")],
            width=4,
        ),
        _number("Resources", f"sum(mcagent_objects{{{NODE}}})", below=True),
        _number("Apply errors in an hour", f"sum(increase(mcagent_apply_errors_total{{{NODE}}}[1h]))"),
        Panel(
            title="Peers that are used",
            kind="state-timeline",
            width=24,
            queries=[(f"mcagent_tunnel_live{{{NODE}}}", "{{peer_kind}} {{peer}} {{tunnel}}")],
        ),
        Panel(
            title="BFD losses",
            queries=[
                (f"sum by (peer, tunnel) (increase(mcagent_bfd_flaps_total{{{NODE}}}[$__rate_interval]))",
                 "{{peer}} {{tunnel}}")
            ],
        ),
        Panel(
            title="Share of a cluster's gateways",
            unit="percentunit",
            queries=[
                (_share(f'{NODE},peer_kind="remote"', "tunnel"), "{{peer}} {{tunnel}}"),
                (_share(f'{NODE},peer_kind="gateway"', "tunnel, peer"), "{{peer}}"),
            ],
        ),
        *_traffic(NODE, "peer_kind, peer", "{{peer_kind}} {{peer}}"),
        Panel(
            title="Drops and errors of tunnels",
            unit="pps",
            queries=[
                (f"sum by (peer) ({_rate(f'mcagent_tunnel_{what}_total', NODE)})", f"{{{{peer}}}}: {what}")
                for what in ("receive_drops", "receive_errors", "transmit_drops", "transmit_errors")
            ],
        ),
        Panel(
            title="New connections to exported Services",
            unit="cps",
            queries=[
                (
                    f"topk(20, sum by (export) ({_rate('mcagent_exported_connections_total', NODE)}))",
                    "{{export}}",
                )
            ],
            about="The twenty Services with most of them.",
        ),
        Panel(
            title="Endpoints of exported Services",
            queries=[(f"mcagent_exported_endpoints{{{NODE}}}", "{{export}}")],
        ),
    ),
)  # fmt: skip

_PROBES = "mcagent_tunnel_probes"
_ROUND_TRIPS = _rate("mcagent_tunnel_probe_round_trip_seconds_bucket", PAIR)

CLUSTER_PAIR = Dashboard(
    name="cluster-pair",
    title="mcagent / Cluster pair",
    variables=(("peer", f"label_values(mcagent_tunnel_live{{{REMOTE}}}, peer)"),),
    panels=(
        _number(
            "Live gateways there",
            f"min(sum by (instance) (mcagent_tunnel_live{{{PAIR}}}))",
            below=True,
            about="As the gateway sees it that sees fewest.",
        ),
        _number("Tunnels there", f"count(mcagent_tunnel_up{{{PAIR}}})", below=True),
        _number("BFD losses in a day", f"sum(increase(mcagent_bfd_flaps_total{{{PAIR}}}[1d]))"),
        Panel(
            title="Last change",
            kind="stat",
            unit="dateTimeAsIso",
            width=8,
            queries=[(f"max(mcagent_tunnel_state_change_timestamp_seconds{{{PAIR}}}) * 1000", "")],
        ),
        Panel(
            title="Gateways that are used",
            kind="state-timeline",
            width=24,
            queries=[(f"mcagent_tunnel_live{{{PAIR}}}", "{{instance}} → {{tunnel}}")],
        ),
        *_traffic(PAIR, "instance, tunnel", "{{instance}} {{tunnel}}"),
        Panel(
            title="Share of each gateway there",
            unit="percentunit",
            queries=[(_share(PAIR, "tunnel"), "{{instance}} → {{tunnel}}")],
        ),
        Panel(
            title="Round trip, median and 99 %",
            unit="s",
            queries=[
                (
                    f"histogram_quantile({part}, sum by (instance, tunnel, le) ({_ROUND_TRIPS}))",
                    f"{{{{instance}}}} {{{{tunnel}}}} {part}",
                )
                for part in (0.5, 0.99)
            ],
            about="Of probes through the tunnel; none where the other end answers none (Antrea, older versions).",
        ),
        Panel(
            title="Probes lost",
            unit="percentunit",
            queries=[
                (
                    f"{_rate(f'{_PROBES}_lost_total', PAIR)} / {_rate(f'{_PROBES}_total', PAIR)}",
                    "{{instance}} {{tunnel}}",
                )
            ],
        ),
        Panel(
            title="Largest packets pass",
            kind="state-timeline",
            queries=[(f"mcagent_tunnel_full_size_passes{{{PAIR}}}", "{{instance}} → {{tunnel}}")],
        ),
        Panel(
            title="Age of the last WireGuard handshake",
            unit="s",
            queries=[
                (
                    f'time() - (mcagent_wireguard_peer_last_handshake_timestamp_seconds{{{C},peer=~"$peer"}} > 0)',
                    "{{instance}} {{tunnel}}",
                )
            ],
            about="Only with trafficEncryptionMode: wireGuard. Above 180 s there is none any more.",
        ),
    ),
)

CONTROL_PLANE = Dashboard(
    name="control-plane",
    title="mcagent / Control plane",
    panels=(
        _number("Hold a Lease", f"sum(mcagent_controller_is_leader{{{C}}})", below=True),
        _number("Members without leader", f"count(mcagent_controller_leader_connected{{{C}}} == 0) or vector(0)"),
        _number("Refused objects", f"sum(mcagent_controller_refused_objects{{{C}}})"),
        _number("Contended objects", f"sum(mcagent_controller_contended_objects{{{C}}})"),
        _number("Keys waiting", f"sum(mcagent_controller_queue_depth{{{C}}})", red_at=200),
        Panel(
            title="Certificates end",
            kind="stat",
            unit="dateTimeAsIso",
            width=4,
            queries=[
                (f"min(mcagent_controller_webhook_certificate_expiry_timestamp_seconds{{{C}}} > 0) * 1000", "")
            ],
        ),
        Panel(
            title="Keys that wait",
            queries=[
                (f"max by (reconciler) (mcagent_controller_queue_depth{{{C}}})", "{{reconciler}}"),
                (f"sum(mcagent_controller_queue_delayed{{{C}}})", "(for their time)"),
            ],
        ),
        Panel(
            title="Reconciled, by result",
            unit="ops",
            queries=[(f"sum by (result) ({_rate('mcagent_controller_reconciles_total', C)})", "{{result}}")],
        ),
        Panel(
            title="Time to reconcile a key, 99 %",
            unit="s",
            queries=[
                _p99("mcagent_controller_reconcile_duration_seconds", "reconciler", "{{reconciler}}")
            ],
        ),
        Panel(
            title="Written",
            unit="ops",
            queries=[
                (f"sum by (side, kind, verb) ({_rate('mcagent_controller_writes_total', C)})",
                 "{{side}} {{verb}} {{kind}}")
            ],
        ),
        Panel(
            title="Answers of API servers",
            unit="ops",
            queries=[
                (f"sum by (side, code) ({_rate('mcagent_controller_api_requests_total', C)})", "{{side}} {{code}}")
            ],
        ),
        Panel(
            title="Objects known",
            queries=[(f"max by (side, kind) (mcagent_controller_objects{{{C}}})", "{{side}} {{kind}}")],
        ),
        Panel(
            title="Watches closed",
            queries=[
                (f"count by (side, kind) (mcagent_controller_informer_connected{{{C}}} == 0) or vector(0)",
                 "{{side}} {{kind}}")
            ],
        ),
        Panel(
            title="Time of an admission review, 99 %",
            unit="s",
            queries=[
                _p99("mcagent_controller_webhook_duration_seconds", "", "99 %")
            ],
        ),
    ),
)  # fmt: skip

DASHBOARDS = (OVERVIEW, GATEWAY, CLUSTER_PAIR, CONTROL_PLANE)


if __name__ == "__main__":
    for made in DASHBOARDS:
        Path(sys.argv[1], f"mcagent-{made.name}.json").write_text(text(made), encoding="utf-8")
