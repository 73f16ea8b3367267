"""What `mcagent gateways`, /status and the metrics of liveness say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mcagent.agent.reports.link_reader import SPAN
from mcagent.agent.reports.recent_traffic import RecentTraffic
from mcagent.agent.reports.reporter import NodeRecorder
from mcagent.api.status import PassStatus, Status
from mcagent.cli.inspect import gateways as command
from mcagent.core.failover.draining import NO_GATEWAY, Draining, Phase
from mcagent.core.failover.liveness import Advance, Damping, Observation, Peers, advance
from mcagent.core.failover.observations import group_of
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.dataplane.resources import PeerKind, PortStatistics
from mcagent.model.event import Event
from mcagent.observe.gateways import LiveReport, drain_of, gateways_of
from mcagent.observe.metrics.liveness import liveness_metrics, probe_metrics
from mcagent.observe.report import Report
from tests.worlds.core_inputs import tunnel_port

PORTS = {
    p.name: p
    for p in (
        tunnel_port(2, "node-2", PeerKind.GATEWAY),
        tunnel_port(3, "east", PeerKind.REMOTE),
        tunnel_port(4, "east", PeerKind.REMOTE),
        tunnel_port(5, "worker", PeerKind.NODE),
    )
}
COUNTERS = {"mc-3": {"tx_packets": 75, "rx_packets": 7}, "mc-4": {"tx_packets": 25}}


def looks(now: float, before: Peers, down: str = "") -> Advance:
    """Return the next state with all tunnels up but one."""
    observations = [
        Observation(
            port=p.name,
            group=group_of(p),
            bfd=True,
            state="down" if p.name == down else "up",
            forwarding=p.name != down,
        )
        for p in PORTS.values()
    ]
    return advance(before, observations, now, Damping())


@pytest.fixture
def live() -> LiveReport:
    """A gateway whose tunnel mc-4 was lost two seconds after its start."""
    last = looks(12.0, looks(10.0, {}).peers, down="mc-4")
    return LiveReport(peers=last.peers, ports=PORTS, damped=last.damped, epoch=1_000_000.0)


def test_each_gateway_is_told_with_cause_time_and_share(live: LiveReport) -> None:
    """This cluster first, this Node in it; Nodes that are no gateways are not shown."""
    own, east = gateways_of(live, COUNTERS, own_gateway="node-1", recent=COUNTERS)
    assert [g.name for g in own.gateways] == ["node-1", "node-2"]
    good, bad = east.gateways
    assert (good.live, good.decided_by, good.share, good.packets_received) == (True, "BFD", 0.75, 7)
    assert (bad.live, bad.since, bad.flaps) == (False, "1970-01-12T13:46:52.000Z", 1)
    assert [t.decided_by for t in bad.transitions] == ["BFD"]
    assert (good.detection_seconds, own.gateways[0].detection_seconds) == (0.3, None)


def test_probes_are_shown_beside_the_tunnel(live: LiveReport) -> None:
    """Round trip, loss and what is not answered, in the table, the values and the metrics."""
    lossy = replace(ProbeState(answers=True, sent=2, lost=1, recent=(0.0204, None)), mtu=1400, full=False)
    probed = {"mc-3": lossy, "mc-4": ProbeState(answers=False)}
    groups = gateways_of(live, COUNTERS, own_gateway="", probed=probed)
    (near,), (good, bad) = (group.gateways for group in groups)
    assert near.probes is None
    assert good.probes is not None
    assert bad.probes is not None
    assert bad.probes.loss_ratio is None
    assert (good.probes.round_trip_seconds, good.probes.loss_ratio) == (0.0204, 0.5)
    shown = command.text(Status(node="n", drain=drain_of(live), gateways=groups))
    assert "20.4 ms    50 %, all of 1400 bytes  " in shown
    assert "no answer" in shown
    samples = [sample for family in probe_metrics(live, probed) for sample in family.samples]
    assert {sample.labels["tunnel"] for sample in samples} == {"mc-3"}
    values = {sample.name: sample.value for sample in samples}
    assert values["mcagent_tunnel_probes_lost_total"] == 1
    assert values["mcagent_tunnel_full_size_passes"] == 0


def test_the_table_is_for_people(live: LiveReport) -> None:
    """One line for each gateway, with why; history on request; how far a drain is in the first line."""
    drained = replace(live, draining=Draining(phase=Phase.DRAINED, why="asked", clean=False))
    gateways = gateways_of(live, COUNTERS, own_gateway="node-1", recent=COUNTERS)
    status = Status(node="node-1", drain=drain_of(drained), gateways=gateways)
    shown = command.text(status, history=True).splitlines()
    assert "drained, though packets still came (asked)" in shown[0]
    (line,) = [line for line in shown if "192.0.2.4 " in line]
    assert "NOT LIVE" in line
    assert "  1970-01-12T13:46:52Z  " in line
    assert line.endswith("BFD is down")
    assert any(line.startswith("  1970-01-12T13:46:52.000Z  NOT LIVE") for line in shown)
    (line,) = [line for line in shown if "192.0.2.3 " in line]
    assert "75 %" in line


def test_metrics_follow_the_same_state(live: LiveReport) -> None:
    """BFD, flaps, time of change and share for every tunnel."""
    values = {
        (sample.name, sample.labels.get("tunnel", "")): sample.value
        for family in liveness_metrics(live, COUNTERS)
        for sample in family.samples
    }
    assert values["mcagent_bfd_up", "mc-3"] == 1
    assert values["mcagent_bfd_up", "mc-4"] == 0
    assert values["mcagent_bfd_flaps_total", "mc-4"] == 1
    assert values["mcagent_tunnel_bfd_detection_seconds", "mc-4"] == 0.3
    assert ("mcagent_tunnel_bfd_detection_seconds", "mc-5") not in values
    assert values["mcagent_tunnel_state_change_timestamp_seconds", "mc-4"] == 1_000_012.0
    assert values["mcagent_gateway_share_ratio", "mc-3"] == 0.75
    assert ("mcagent_gateway_share_ratio", "mc-5") not in values


def test_what_happens_is_told_once() -> None:
    """Drift, contended and the steps of a drain; nothing twice, and nothing of workers that are cordoned."""
    events: list[Event] = []
    recorder = NodeRecorder("node-1", events.append)
    quiet = PassStatus(trigger="", result="unchanged")
    recorder.turned(Report(passes=1, last_pass=quiet), Draining())
    assert events == []
    drift = structs.replace(quiet, drift="netlink: put back what was gone: route 10.0.0.0/8")
    for _ in range(3):
        recorder.turned(Report(passes=2, last_pass=drift), Draining())
    contended = structs.replace(quiet, contended=("somebody else",))
    recorder.turned(Report(passes=3, last_pass=contended), Draining())
    recorder.turned(Report(passes=4, last_pass=contended), Draining(phase=Phase.REMOTE, why="asked"))
    recorder.turned(Report(passes=5, last_pass=quiet), Draining(phase=Phase.LOCAL, why="asked"))
    recorder.turned(Report(passes=6, last_pass=quiet), Draining(phase=Phase.DRAINED, why="asked"))
    recorder.turned(Report(passes=7, last_pass=quiet), Draining())
    recorder.turned(Report(passes=8, last_pass=quiet), Draining(why="asked", refused=NO_GATEWAY))
    recorder.turned(Report(passes=9, last_pass=quiet), Draining(why="asked", refused="no other"))
    assert [event.reason for event in events] == [
        "DriftCorrected",
        "ChangedAgainAndAgain",
        "GatewayDraining",
        "GatewayDrained",
        "GatewayReturned",
        "DrainRefused",
    ]
    assert events[0].subject == "Node node-1"


def test_a_share_is_of_the_last_seconds(live: LiveReport) -> None:
    """A gateway that gets no more packets loses its share within 20 s, however many it got before."""
    now, sent = [0.0], {"mc-3": 1000, "mc-4": 0}
    recent = RecentTraffic(
        lambda: {name: PortStatistics(counters={"tx_packets": n}, link_up=True) for name, n in sent.items()},
        clock=lambda: now[0],
    )

    def shares() -> list[float | None]:
        return [g.share for g in gateways_of(live, COUNTERS, own_gateway="", recent=recent())[1].gateways]

    def two_seconds_later(**packets: int) -> None:
        now[0] += 2
        for name, number in packets.items():
            sent[name.replace("_", "-")] += number
        recent.sample()

    recent.sample()
    assert shares() == [None, None]
    for _ in range(10):
        two_seconds_later(mc_3=30, mc_4=10)
    assert shares() == [0.75, 0.25]
    for _ in range(10):
        two_seconds_later(mc_4=10)
    assert shares() == [0.0, 1.0]
    sent["mc-4"] = 0
    two_seconds_later(mc_4=5)  # the tunnel was created again
    assert shares() == [0.0, 1.0]


@pytest.mark.parametrize("readings", [(True, False, True), (False, True)])
def test_a_share_is_not_of_all_packets_after_counters_could_not_be_read(
    live: LiveReport, readings: tuple[bool, ...]
) -> None:
    """The reading before that counts again; without one, the next is the first."""
    now, sent = [0.0], {"mc-3": 1000, "mc-4": 0}
    readable = [True]

    def ports() -> dict[str, PortStatistics]:
        counters = {name: PortStatistics(counters={"tx_packets": n}, link_up=True) for name, n in sent.items()}
        return counters if readable[0] else {}

    recent = RecentTraffic(ports, clock=lambda: now[0])
    for readable[0] in readings:
        recent.sample()
        now[0] += SPAN
        sent["mc-4"] += 10
    group = gateways_of(live, COUNTERS, own_gateway="", recent=recent())[1]
    assert [gateway.share for gateway in group.gateways] == [0.0, 1.0]
