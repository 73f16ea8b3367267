"""The gateways in /status and `mcagent gateways`: live or not, why, since when, and by which decision.

Converts the state of liveness and drain to values of the API. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from mcagent.api.status import DrainStatus, GatewayGroup, GatewayStatus, GatewayTransition, Probes
from mcagent.core.failover.detection import detection_time
from mcagent.core.failover.draining import Draining, Phase
from mcagent.core.failover.liveness import LivenessCause, PeerLiveness
from mcagent.core.failover.observations import OWN_CLUSTER, gateway_name, group_of
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.observe.standard import rfc3339

TunnelCounters = Mapping[str, Mapping[str, int]]  # by port; keys as in Interface.statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport:
    """State of liveness and drain. Times plus `epoch` are seconds since the epoch.

    `active_order` is empty unless gateways are active-standby. `failovers` counts by kind of peer and cause.
    `antrea`: the clusters that run Antrea, as this gateway publishes them. `dead_gateways`: Node names of the
    gateways of this cluster that it reports (`mcagent.core.failover.siblings`).
    """

    peers: Mapping[str, PeerLiveness] = field(default_factory=dict)
    ports: Mapping[str, TunnelPort] = field(default_factory=dict)
    damped: frozenset[str] = frozenset()
    draining: Draining = field(default_factory=Draining)
    isolated: bool = False  # see Facts
    active_order: tuple[str, ...] = ()
    failovers: Mapping[tuple[str, LivenessCause], int] = field(default_factory=dict)
    antrea: frozenset[str] = frozenset()
    dead_gateways: frozenset[str] = frozenset()
    epoch: float = 0.0


def gateways_of(
    live: LiveReport,
    counters: TunnelCounters,
    *,
    own_gateway: str,
    ends: Mapping[str, str] | None = None,
    probed: Mapping[str, ProbeState] | None = None,
    recent: TunnelCounters | None = None,
) -> tuple[GatewayGroup, ...]:
    """Return clusters and their gateways; `own_gateway` is this Node's name if it is one.

    `ends` has the gatewayIP of each tunnel endpoint that is another address (encryption); `probed` what probes say
    of tunnels; `recent` what `counters` has more than some seconds ago, for shares.
    """
    groups: dict[str, list[TunnelPort]] = {}
    for port in sorted(live.ports.values(), key=lambda port: (port.peer, str(port.remote_ip), port.name)):
        if port.peer_kind is not PeerKind.NODE and port.name in live.peers:
            groups.setdefault(group_of(port), []).append(port)
    own = (_own(live, own_gateway),) if own_gateway else ()
    if own:
        groups.setdefault(OWN_CLUSTER, [])
    return tuple(
        GatewayGroup(
            cluster=group.removeprefix("cluster/") if group != OWN_CLUSTER else "",
            own=group == OWN_CLUSTER,
            gateways=(
                *(own if group == OWN_CLUSTER else ()),
                *(
                    structs.replace(
                        _gateway(live, port, counters, ends or {}),
                        probes=_probes((probed or {}).get(port.name)),
                        share=share_of(port.name, [item.name for item in ports], recent or {}),
                    )
                    for port in ports
                ),
            ),
        )
        for group, ports in sorted(groups.items(), key=lambda item: (item[0] != OWN_CLUSTER, item[0]))
    )


def share_of(port: str, ports: Iterable[str], counters: TunnelCounters) -> float | None:
    """Return the part of a cluster's packets that this gateway got (0 to 1); None: no packets."""
    total = sum(counters.get(name, {}).get("tx_packets", 0) for name in ports)
    return counters.get(port, {}).get("tx_packets", 0) / total if total else None


def drain_of(live: LiveReport) -> DrainStatus:
    """Return the state of this Node's drain."""
    state = live.draining
    return DrainStatus(
        phase=state.phase,
        tells=state.signal,
        why=state.why,
        refused=state.refused,
        clean=state.clean,
        since=_drain_time(live),
    )


def _drain_time(live: LiveReport) -> str | None:
    return _time(live, live.draining.since) if live.draining.since else None


def _time(live: LiveReport, at: float) -> str:
    return rfc3339(at + live.epoch, digits=3)


def _gateway(
    live: LiveReport,
    port: TunnelPort,
    counters: TunnelCounters,
    ends: Mapping[str, str],
) -> GatewayStatus:
    peer, name = live.peers[port.name], gateway_name(port)
    end = str(port.remote_ip)
    address = ends.get(end, end)
    statistics = counters.get(port.name, {})
    return GatewayStatus(
        name=ends.get(name, name),
        address=address,
        encrypted=address != end,
        tunnel=port.name,
        live=peer.live,
        active=peer.live and (not live.active_order or name in live.active_order),
        decided_by=peer.cause,
        why=peer.text,
        since=_time(live, peer.since),
        bfd="off" if port.bfd is None else "answers" if peer.answering else "seen" if peer.seen else "never",
        detection_seconds=None if port.bfd is None else detection_time(port.bfd),
        damped=port.name in live.damped,
        gone=peer.gone,
        flaps=peer.flaps,
        packets_sent=statistics.get("tx_packets", 0),
        packets_received=statistics.get("rx_packets", 0),
        transitions=tuple(
            GatewayTransition(
                at=_time(live, transition.at),
                live=transition.live,
                decided_by=transition.cause,
                why=transition.text,
            )
            for transition in peer.transitions
        ),
    )


def _probes(probed: ProbeState | None) -> Probes | None:
    """Return the results of a tunnel's probes; None: within this cluster, or before the first probe."""
    if probed is None:
        return None
    return Probes(
        answers=bool(probed.answers),
        round_trip_seconds=probed.round_trip,
        loss_ratio=probed.loss,
        of=len(probed.recent),
        full_size_passes=probed.full,
        full_size_bytes=probed.mtu,
    )


def _own(live: LiveReport, name: str) -> GatewayStatus:
    state = live.draining
    serving = state.phase is Phase.SERVING
    why, cause = "this Node", LivenessCause.API
    if not serving:
        why, cause = f"this Node: {state.phase} ({state.why})", LivenessCause.DRAIN
    elif live.isolated:
        why, cause = "this Node: it reaches no other cluster, and others are there", LivenessCause.BFD
    usable = serving and not live.isolated
    return GatewayStatus(name=name, live=usable, active=usable, decided_by=cause, why=why, since=_drain_time(live))
