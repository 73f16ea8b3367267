"""The gateways in /status and `mcagent gateways`: live or not, why, since when, and by which decision.

Converts the state of liveness and drain to plain values. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mcagent.core.failover.draining import Draining, Phase
from mcagent.core.failover.liveness import LivenessCause, PeerLiveness
from mcagent.core.failover.observations import OWN_CLUSTER, gateway_name, group_of
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.resources import PeerKind, TunnelPort
from mcagent.observe.standard import rfc3339

TunnelCounters = Mapping[str, Mapping[str, int]]  # by port; keys as in Interface.statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport:
    """State of liveness and drain. Times plus `epoch` are seconds since the epoch.

    `active_order` is empty unless gateways are active-standby. `failovers` counts by kind of peer and cause.
    """

    peers: Mapping[str, PeerLiveness] = field(default_factory=dict)
    ports: Mapping[str, TunnelPort] = field(default_factory=dict)
    damped: frozenset[str] = frozenset()
    draining: Draining = field(default_factory=Draining)
    isolated: bool = False  # see Facts
    active_order: tuple[str, ...] = ()
    failovers: Mapping[tuple[str, LivenessCause], int] = field(default_factory=dict)
    epoch: float = 0.0


def gateways_of(
    live: LiveReport,
    counters: TunnelCounters,
    *,
    own_gateway: str,
    ends: Mapping[str, str] | None = None,
    probed: Mapping[str, ProbeState] | None = None,
) -> list[dict[str, object]]:
    """Make the JSON value of clusters and their gateways; `own_gateway` is this Node's name if it is one.

    `ends` has the gatewayIP of each tunnel endpoint that is another address (encryption); `probed` what probes say
    of tunnels.
    """
    groups: dict[str, list[TunnelPort]] = {}
    for port in sorted(live.ports.values(), key=lambda item: (item.peer, str(item.remote_ip), item.name)):
        if port.peer_kind is not PeerKind.NODE and port.name in live.peers:
            groups.setdefault(group_of(port), []).append(port)
    if own_gateway:
        groups.setdefault(OWN_CLUSTER, [])
    return [
        {
            "cluster": group.removeprefix("cluster/") if group != OWN_CLUSTER else "",
            "own": group == OWN_CLUSTER,
            "gateways": [
                *([_own(live, own_gateway)] if group == OWN_CLUSTER and own_gateway else []),
                *(
                    {**_gateway(live, port, counters, ports, ends or {}), "probes": _probes(probed, port)}
                    for port in ports
                ),
            ],
        }
        for group, ports in sorted(groups.items(), key=lambda item: (item[0] != OWN_CLUSTER, item[0]))
    ]


def share_of(port: str, ports: Iterable[str], counters: TunnelCounters) -> float | None:
    """Return the part of a cluster's packets that this gateway got (0 to 1); None: no packets yet."""
    total = sum(counters.get(name, {}).get("tx_packets", 0) for name in ports)
    return counters.get(port, {}).get("tx_packets", 0) / total if total else None


def drain_of(live: LiveReport) -> dict[str, object]:
    """Make the JSON value of this Node's drain."""
    state = live.draining
    return {
        "phase": str(state.phase),
        "tells": str(state.signal),
        "why": state.why,
        "refused": state.refused,
        "clean": state.clean,
        "since": rfc3339(state.since + live.epoch, digits=3) if state.since else None,
    }


def _gateway(
    live: LiveReport,
    port: TunnelPort,
    counters: TunnelCounters,
    ports: Iterable[TunnelPort],
    ends: Mapping[str, str],
) -> dict[str, object]:
    peer = live.peers[port.name]
    name = gateway_name(port)
    statistics = counters.get(port.name, {})
    return {
        "name": ends.get(name, name),
        "address": ends.get(str(port.remote_ip), str(port.remote_ip)),
        "encrypted": str(port.remote_ip) in ends and ends[str(port.remote_ip)] != str(port.remote_ip),
        "tunnel": port.name,
        "live": peer.live,
        "active": peer.live and (not live.active_order or name in live.active_order),
        "decidedBy": str(peer.cause),
        "why": peer.text,
        "since": rfc3339(peer.since + live.epoch, digits=3),
        "bfd": "off" if port.bfd is None else "answers" if peer.answering else "seen" if peer.seen else "never",
        "damped": port.name in live.damped,
        "gone": peer.gone,
        "flaps": peer.flaps,
        "packetsSent": statistics.get("tx_packets", 0),
        "packetsReceived": statistics.get("rx_packets", 0),
        "share": share_of(port.name, [item.name for item in ports], counters),
        "transitions": [
            {
                "at": rfc3339(transition.at + live.epoch, digits=3),
                "live": transition.live,
                "decidedBy": str(transition.cause),
                "why": transition.text,
            }
            for transition in peer.transitions
        ],
    }


def _probes(probed: Mapping[str, ProbeState] | None, port: TunnelPort) -> dict[str, object] | None:
    """Make the JSON value of a tunnel's probes; None: within this cluster, or before the first probe."""
    result = (probed or {}).get(port.name)
    if result is None:
        return None
    return {
        "answers": bool(result.answers),
        "roundTripSeconds": result.round_trip,
        "lossRatio": result.loss,
        "of": len(result.recent),
        "fullSizePasses": result.full,
        "fullSizeBytes": result.mtu,
    }


def _own(live: LiveReport, name: str) -> dict[str, object]:
    state = live.draining
    serving = state.phase is Phase.SERVING
    why, cause = "this Node", LivenessCause.API
    if not serving:
        why, cause = f"this Node: {state.phase} ({state.why})", LivenessCause.DRAIN
    elif live.isolated:
        why, cause = "this Node: it reaches no other cluster, and others are there", LivenessCause.BFD
    return {
        "name": name,
        "address": "",
        "encrypted": False,
        "tunnel": "",
        "live": serving and not live.isolated,
        "active": serving and not live.isolated,
        "decidedBy": str(cause),
        "why": why,
        "since": rfc3339(state.since + live.epoch, digits=3) if state.since else None,
        "bfd": "",
        "damped": False,
        "gone": False,
        "flaps": 0,
        "packetsSent": 0,
        "packetsReceived": 0,
        "share": None,
        "transitions": [],
        "probes": None,
    }
