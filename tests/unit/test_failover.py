"""Liveness and drain as the loop meets them: what the facts say, who may go, which gateway is active."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from mcagent.agent import failover
from mcagent.core.failover import liveness
from mcagent.core.failover.detection import QUIET_ALARM
from mcagent.core.failover.draining import Phase
from mcagent.core.failover.liveness import DAMPED_AFTER, LivenessCause
from mcagent.core.failover.silence import ENOUGH, POLL_INTERVAL, UNANSWERED
from mcagent.model.config import Config, GatewayMode
from mcagent.model.dataplane.facts import Drain
from mcagent.model.dataplane.resources import PeerKind, PortStatistics
from mcagent.model.node_state import AcceptedCluster, NodeRole, NodeState
from mcagent.model.plan import Desired
from mcagent.observe.cluster_links import links_of
from mcagent.observe.gateways import gateways_of
from tests.worlds.failover_steps import DOWN, UP, Place, node, snapshot, tunnel


def test_a_longer_detection_time_survives_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    """The multiplier in the database tells it. It ends after a quiet time, or by the key; the log says so."""
    place = Place()
    port, status = place.tunnels[3]
    assert port.bfd is not None
    place.tunnels[3] = (replace(port, bfd=replace(port.bfd, mult=12)), status)
    factors = place.facts().bfd_factors
    assert factors == {"mc-3": 4}
    assert place.facts(60.0).bfd_factors is factors
    caplog.set_level(logging.INFO)
    assert place.facts(QUIET_ALARM).bfd_factors == {"mc-3": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "BFD of the tunnel to east (192.0.2.3): detection time 0.6 s instead of 1.2 s (3600 s without need)"
    ]
    place.config = replace(place.config, bfd_remote_adapt=False)
    assert place.facts(1.0).bfd_factors == {}


def test_facts_are_equal_while_nothing_changes() -> None:
    """Time alone decides nothing while all are live."""
    place = Place()
    first = place.facts()
    assert place.facts(5.0) == first
    assert first.bfd_seen == {"mc-2", "mc-3", "mc-4"}
    assert first.damped == frozenset()
    assert first.drain is Drain.NONE


def test_a_changed_cluster_costs_no_step_of_the_liveness_of_all_tunnels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does when a cluster begins to run Antrea: its gateways are judged in another way."""
    place = Place()
    east = AcceptedCluster(cluster_id="east", cidrs=(), gateways=(), snat=False)
    advance = Mock(wraps=liveness.advance)
    monkeypatch.setattr(liveness, "advance", advance)
    for changed in (east, replace(east, snat=True), replace(east, mtu=1400)):
        place.desired = Desired(fragments={}, state=NodeState(clusters={"east": changed}))
        place.facts()
    assert advance.call_count == 1
    place.desired = Desired(fragments={}, state=NodeState(clusters={"east": replace(east, antrea=True)}))
    place.facts()
    assert advance.call_count == 2


def test_a_lost_gateway_is_held_and_released_when_the_time_is_over() -> None:
    """The loop is woken for it."""
    place = Place()
    place.facts()
    place.say(3, DOWN)
    assert place.facts(1.0).damped == frozenset()  # Open vSwitch has left it by itself
    assert place.live.wake == place.now + DAMPED_AFTER
    assert place.facts(DAMPED_AFTER).damped == {"mc-3"}
    assert place.live.report.failovers == {("remote", LivenessCause.BFD): 1}
    place.say(3, UP)
    assert place.facts(1.0).damped == {"mc-3"}
    assert place.live.wake == place.now + 1.0
    assert place.facts(1.0).damped == frozenset()
    assert place.live.report.peers["mc-3"].live


def test_a_peer_that_is_never_heard_of_is_looked_for() -> None:
    """The loop is woken to look at counters, until the peer speaks."""
    place = Place()
    place.tunnels[4] = (place.tunnels[4][0], DOWN)
    assert place.facts().silent == frozenset()
    assert place.live.wake <= place.now + POLL_INTERVAL
    sent = {"tx_packets": ENOUGH, "rx_packets": 0}
    place.counters = {"mc-4": PortStatistics(counters=sent, link_up=True)}
    assert place.facts(POLL_INTERVAL).silent == {"mc-4"}
    assert "nothing ever came" in place.live.report.peers["mc-4"].text
    place.say(4, UP)
    assert place.facts(0.1).bfd_seen >= {"mc-4"}
    assert place.facts(0.1).silent == frozenset()
    assert place.live.wake == math.inf


def test_a_silent_peer_is_idle_until_traffic_was_sent_to_its_cluster() -> None:
    """BFD and probes do not count: packets of the cluster's flows do, by its number."""
    place = Place()
    place.desired = Desired(fragments={}, state=NodeState(cluster_ids={"east": 17}))
    place.tunnels[4] = (place.tunnels[4][0], DOWN)
    place.facts()
    place.counters = {"mc-4": PortStatistics(counters={"tx_packets": 1000, "rx_packets": 0}, link_up=True)}
    place.sent = {16: 1000, 17: UNANSWERED - 1}
    facts = place.facts(POLL_INTERVAL)
    assert facts.silent == facts.idle == {"mc-4"}
    place.sent = {17: UNANSWERED}
    assert place.facts(POLL_INTERVAL / 2).idle == {"mc-4"}  # counters are read with those of tunnels
    assert place.facts(POLL_INTERVAL / 2).idle == frozenset()
    assert place.facts().silent == {"mc-4"}


def test_traffic_before_a_tunnel_was_new_does_not_count() -> None:
    """Antrea's gateway moved: the new one sent nothing yet, and nothing was sent to the cluster since."""
    place = Place()
    place.desired = Desired(fragments={}, state=NodeState(cluster_ids={"east": 17}))
    old, new = place.tunnels[3][0], place.tunnels[4][0]
    place.tunnels = {3: (old, DOWN)}
    place.facts()
    place.sent = {17: 1000}
    place.tunnels = {4: (new, DOWN)}
    place.facts(1.0)
    place.counters = {"mc-4": PortStatistics(counters={"tx_packets": 1000, "rx_packets": 0}, link_up=True)}
    assert place.facts(POLL_INTERVAL).idle == {"mc-4"}
    place.sent = {17: 1000 + UNANSWERED}
    assert place.facts(POLL_INTERVAL).idle == frozenset()


def test_a_session_that_begins_is_hurried_only_where_nothing_else_is_live() -> None:
    """Open vSwitch would take a second for each packet; with another gateway there is no hurry."""
    place = Place()
    place.facts()
    begins = {**DOWN, "state": "init"}
    place.say(3, begins)
    assert not place.facts(1.0).bfd_begins
    place.say(4, DOWN)
    assert place.facts(1.0).bfd_begins == {"mc-3"}
    place.say(2, begins)
    assert place.facts(1.0).bfd_begins == {"mc-2", "mc-3"}
    place.say(3, UP)
    assert place.facts(1.0).bfd_begins == {"mc-2"}


def test_connections_are_asked_when_a_gateway_that_may_know_them_is_lost() -> None:
    """One of this cluster, by whomever it is told; or all of another cluster, but not one of several."""
    place = Place()
    place.facts()
    near = place.tunnels[2][0].ofport
    place.say(3, DOWN)
    place.facts(1.0)
    assert place.lost == []
    place.say(4, DOWN)
    place.facts(1.0)
    assert place.lost == [near]
    place.say(2, DOWN)
    place.facts(1.0)
    place.say(2, UP)  # damping holds it: no news
    place.facts(1.0)
    place.facts(5.0)
    assert place.lost == [near, near]
    place.say(2, {**UP, "forwarding": "false", "remote_diagnostic": "Concatenated Path Down"})
    place.facts(1.0)
    assert place.lost == [near, near, near]


def test_a_gateway_that_reaches_no_other_cluster_steps_back_while_another_is_there() -> None:
    """Not for one lost gateway of several, not when it is alone; a sibling that says the same changes nothing."""
    place = Place()
    assert not place.facts().isolated
    place.say(3, DOWN)
    assert not place.facts(1.0).isolated
    place.say(4, DOWN)
    assert place.facts(1.0).isolated
    assert "reaches no other cluster" in str(gateways_of(place.live.report, {}, own_gateway="g1"))
    place.say(2, {**UP, "forwarding": "false", "remote_diagnostic": "Concatenated Path Down"})
    assert place.facts(1.0).isolated
    place.say(2, DOWN)
    assert not place.facts(1.0).isolated
    place.say(2, UP)
    assert place.facts(1.0).isolated
    place.say(4, UP)
    assert not place.facts(1.0).isolated


def test_a_node_that_becomes_a_gateway_is_isolated_until_a_tunnel_is_up() -> None:
    """A worker has no tunnels to other clusters: it is isolated before its first one as a gateway exists."""
    place = Place()
    remotes = [place.tunnels.pop(number) for number in (3, 4)]
    assert place.facts().isolated
    assert "reaches no other cluster" not in str(gateways_of(place.live.report, {}, own_gateway="g1"))
    for number, (port, _) in zip((3, 4), remotes, strict=True):
        place.tunnels[number] = (port, DOWN)
    assert place.facts(1.0).isolated
    place.say(4, UP)
    place.facts(1.0)
    assert not place.facts(5.0).isolated


def test_seen_survives_a_restart_by_the_port() -> None:
    """What OVSDB remembers counts from the first look."""
    place = Place()
    place.tunnels[3] = tunnel(3, "east", PeerKind.REMOTE, DOWN, has_answered=True)
    place.tunnels[4] = tunnel(4, "east", PeerKind.REMOTE, DOWN)
    assert place.facts().bfd_seen == {"mc-2", "mc-3"}


def test_a_drained_gateway_tells_the_other_clusters_first() -> None:
    """Annotation: REMOTE, then ALL; taken away: NONE at once."""
    place = Place()
    place.facts()
    place.snapshot = snapshot(node("g1", drain=True), node("g2"))
    phases = place.until(Phase.DRAINED)
    assert [phases.index(Drain.REMOTE), phases[-1]] == [0, Drain.ALL]
    assert place.live.report.draining.clean
    assert "annotation" in place.live.report.draining.why
    place.snapshot = snapshot()
    assert place.facts().drain is Drain.NONE


def test_the_last_gateway_does_not_go() -> None:
    """Without a live sibling a drain is refused with the reason, whoever asks; it goes on when one is there."""
    place = Place()
    place.facts()
    place.say(2, DOWN)
    place.flag = True
    assert place.facts().drain is Drain.NONE
    assert "no other gateway" in place.live.report.draining.refused
    place.live.hand_over("the end")
    place.facts()
    assert place.live.handed_over  # nothing to wait for
    place.say(2, UP)
    place.facts(10.0)  # still held
    place.facts(10.0)
    place.until(Phase.DRAINED)


def test_of_two_that_are_asked_at_once_none_goes() -> None:
    """Else both would; the one that has gone already stays away."""
    place = Place()
    place.facts()
    source = snapshot(node("g1", drain=True), node("g2", drain=True))
    place.snapshot = source
    assert place.facts().drain is Drain.NONE
    place.snapshot = snapshot(node("g1", drain=True), node("g2"))
    place.until(Phase.DRAINED)
    place.snapshot = source
    assert place.facts().drain is Drain.ALL


def test_a_drained_gateway_returns_when_the_last_other_one_dies() -> None:
    """Better against the wish than not at all."""
    place = Place()
    place.facts()
    place.flag = True
    place.until(Phase.DRAINED)
    place.say(2, DOWN)
    assert place.facts().drain is Drain.NONE


def test_a_cordoned_gateway_hands_over_and_a_cordoned_worker_has_nothing_to() -> None:
    """Cordoned: the same as drained."""
    place = Place()
    place.facts()
    place.snapshot = snapshot(node("g1", unschedulable=True), node("g2"))
    place.until(Phase.DRAINED)
    worker = Place(Config(node_name="w1"))
    worker.snapshot = snapshot(node("g1"), node("g2"), node("w1", unschedulable=True))
    assert worker.facts().drain is Drain.NONE
    assert worker.live.report.draining.refused == ""


def test_an_agent_that_ends_hands_over_first() -> None:
    """drainOnStop: from the next pass on, until nothing comes any more."""
    place = Place()
    place.facts()
    place.live.hand_over("the agent ends")
    assert not place.live.handed_over
    place.until(Phase.DRAINED)
    assert place.live.handed_over


def test_a_gateway_that_is_none_any_more_hands_over_before_it_becomes_a_worker() -> None:
    """Its Gateway is deleted: it stays one, in the last place, until its peers have moved."""
    place = Place()
    place.snapshot = place.live.linger(snapshot(), place.config)
    place.facts()
    deleted = snapshot(gateways=("-", "g2"))
    deleted = replace(deleted, gateways={"g2": deleted.gateways["g2"]})
    place.desired = Desired(fragments={}, state=NodeState(role=NodeRole.GATEWAY))
    for _ in range(100):
        place.snapshot = place.live.linger(deleted, place.config)
        drain = place.facts().drain
        if place.live.report.draining.phase is Phase.DRAINED:
            break
        assert [g.meta.name for g in place.snapshot.leaving] == ["g1"]
        assert drain is not Drain.NONE
        assert place.now < place.live.wake < place.now + 5.0
        place.now = place.live.wake
    assert "gone" in place.live.report.draining.why
    assert place.live.wake < place.now  # at once
    place.snapshot = place.live.linger(deleted, place.config)
    assert place.snapshot.leaving == ()
    assert place.live.wake > place.now
    place.desired = Desired(fragments={}, state=NodeState(role=NodeRole.WORKER))
    assert place.facts().drain is Drain.NONE


def test_with_active_standby_a_returning_gateway_takes_nothing_back() -> None:
    """The order of the API counts at first; then who took over stays active."""

    gateways = (ip_address("192.0.2.4"), ip_address("192.0.2.3"))
    east = AcceptedCluster(cluster_id="east", cidrs=(), gateways=gateways, snat=False)
    place = Place(Config(node_name="g1", gateways=GatewayMode.ACTIVE_STANDBY))
    place.desired = Desired(fragments={}, state=NodeState(role=NodeRole.GATEWAY, clusters={"east": east}))
    assert place.facts().active_order == ("192.0.2.4",)
    place.say(4, DOWN)
    assert place.facts(1.0).active_order == ("192.0.2.3",)
    place.say(4, UP)
    place.facts(1.0)
    assert place.facts(10.0).active_order == ("192.0.2.3",)
    back = Place(replace(place.config, failback=True))
    back.desired = place.desired
    assert back.facts().active_order == ()


def test_the_time_of_a_transition_is_the_same_in_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a pass takes: each other text is a write to the API. It follows only a step of the clock."""
    place, texts = Place(), list[str]()
    for ahead in (0.0, 0.3, 0.6, 0.9, 0.01, 3600.0):
        wall = SimpleNamespace(time=lambda ahead=ahead: 1e9 + place.now + ahead)
        monkeypatch.setattr(failover, "time", wall)
        place.facts(30.0)
        texts.append(links_of(place.live.report, {})[0].since)
    assert texts == ["2001-09-09T01:48:50Z"] * 5 + ["2001-09-09T02:48:50Z"]
